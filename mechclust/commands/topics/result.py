"""What ``mechclust topics`` found, and its tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from mechclust.commands.topics.config import TopicsConfig
from mechclust.commands.topics.sentences import conclusions, first_token_notes
from mechclust.models.tokenizers import in_words
from mechclust.report.html import table_html
from mechclust.report.text import short_name
from probes import ProbeResult
from probes.engine.sites import head_name
from tasks import TopicModel
from tasks.text.encoding import EncodedCorpus
from tasks.text.topic_model import least_threshold

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Variant:
    """One way to say which words have which topics.

    Attributes:
        threshold: the ambiguity threshold.
        overlap: whether words kept by several topics have all of them, or none.
        topics: ``[n_words n_topics]`` bool, over the words that any variant keeps.
    """

    threshold: float
    overlap: bool
    topics: Tensor

    @property
    def name(self) -> str:
        """Such as ``0.001-overlap``, for files."""
        return f"{self.threshold:g}-{'overlap' if self.overlap else 'no-overlap'}"

    @property
    def title(self) -> str:
        """Such as ``threshold 0.001 with overlap``, for sentences."""
        return f"threshold {self.threshold:g} {'with' if self.overlap else 'without'} overlap"

    @property
    def n_topics(self) -> int:
        """Topics that have a word."""
        return int(self.topics.any(dim=0).sum())


@dataclass(frozen=True)
class ModelMeasures:
    """One model under every variant. ``None`` where a variant leaves fewer than two topics.

    Attributes:
        attention: of ``TopicAttention``.
        vectors: of ``TopicEmbedding`` at the residual stream: each word's mean hidden state.
        embedding: the same measures of the rows of the token embedding matrix.
    """

    attention: Sequence[ProbeResult | None]
    vectors: Sequence[ProbeResult | None]
    embedding: Sequence[ProbeResult | None]


@dataclass(frozen=True, repr=False)
class TopicsResult:
    """What ``measure_topics`` found.

    Attributes:
        model: the model's name.
        config: what was asked for.
        topics: the topic model.
        n_documents: documents it was fitted on.
        n_files: files they came from.
        encoded: the documents measured, as tokens, and what the tokenizer lost.
        variants: thresholds with and without overlap, in the order of the measurements.
        trained: of the model.
        untrained: of each untrained model.
        empty_files: files that held no word.
        corpus_notes: what was left out of the corpus or cut, in sentences.

    Example:
        >>> result = measure_topics("bert-base-uncased", TopicsConfig((Path("corpus.txt"),)))  # doctest: +SKIP
        >>> result.to_dataframe()  # doctest: +SKIP
    """

    model: str
    config: TopicsConfig
    topics: TopicModel
    n_documents: int
    n_files: int
    encoded: EncodedCorpus
    variants: Sequence[Variant]
    trained: ModelMeasures
    untrained: Sequence[ModelMeasures]
    empty_files: Sequence[str] = ()
    corpus_notes: Sequence[str] = ()

    def __repr__(self) -> str:
        size = f"{self.topics.n_topics} topics of {self.n_documents} documents, {len(self.variants)} variants"
        return f"TopicsResult({short_name(self.model)}, {size})"

    def to_dataframe(self) -> pd.DataFrame:
        """One row per variant, layer (0: ``blocks.0``) and head, with its name (such as ``L0H3``): mean attention and
        pairs by bucket, the ratio of same to different topic with its null interval, and the ratio of untrained models.
        The means of these two are within documents, that of the same word over all pairs. NaN where a variant leaves
        nothing."""
        import pandas as pd

        rows = []
        some = next(result for result in self.trained.attention if result is not None)
        for i, variant in enumerate(self.variants):
            found = self.trained.attention[i]
            for s, site in enumerate(some.coords["site"]):
                for h, head in enumerate(some.coords["head"]):
                    row = {**_key(variant), "layer": some.layers[site], "site": site, "head": int(head)}
                    row["name"] = head_name(row["layer"], row["head"])
                    for b, bucket in enumerate(some.coords["bucket"]):
                        within = bucket != "same_word"
                        row[bucket] = _number(found, *((f"{bucket}_within", s, h) if within else ("mean", s, h, b)))
                        row[f"pairs_{bucket}"] = 0 if found is None else int(found["pairs"][b])
                    for name, measure in _MEASURES.items():
                        row[name] = _number(found, measure, s, h)
                    if self.untrained:
                        row["untrained"] = _mean(_number(m.attention[i], "ratio", s, h) for m in self.untrained)
                    rows.append(row)
        return pd.DataFrame(rows)

    def by_layer(self) -> pd.DataFrame:
        """One row per variant and layer: similarity of the words' mean hidden states (0: the embedding)."""
        import pandas as pd

        rows = []
        some = next(result for result in self.trained.vectors if result is not None)
        for i, variant in enumerate(self.variants):
            for s, site in enumerate(some.coords["site"]):
                row: dict[str, Any] = {**_key(variant), "layer": some.layers[site], "site": site}
                row.update(self._similarity("vectors", i, s))
                rows.append(row)
        return pd.DataFrame(rows)

    def summary(self) -> pd.DataFrame:
        """One row per variant: ratio of same-topic to different-topic cosine and dot product in the token
        embedding matrix and of attention within documents over all layers and heads, with differences, chance
        intervals, and the same for untrained models."""
        import pandas as pd

        rows = []
        for i, variant in enumerate(self.variants):
            row: dict[str, Any] = {
                **_key(variant),
                "topics": variant.n_topics,
                "words": int((variant.topics.any(dim=1) & (self.encoded.token_of_word >= 0)).sum()),
                **self._similarity("embedding", i, 0),
            }
            for name, measure in _MEASURES.items():
                row[f"attention_{name}"] = _number(self.trained.attention[i], f"overall_{measure}")
            row["attention_difference"] = _difference(self.trained.attention[i])
            if self.untrained:
                results = [m.attention[i] for m in self.untrained]
                row["attention_untrained"] = _mean(_number(r, "overall_ratio") for r in results)
                row["attention_difference_untrained"] = _mean(map(_difference, results))
            rows.append(row)
        return pd.DataFrame(rows).rename(columns={f"{k}_ratio": k for k in ("cosine", "dot", "attention")})

    def by_measure(self) -> pd.DataFrame:
        """One row per measure and variant: ``measure, threshold, overlap, topics, words, value, null_low, null_high,
        p_value, untrained``.

        The measures: attention over all layers and heads as the ratio of same-topic to different-topic pairs; cosine
        and dot product in the token embedding matrix as the difference of these, since a mean between topics may be
        near 0.
        """
        import pandas as pd

        rows = []
        for measure, (kind, names, place, column) in _MEASURED.items():
            for i, (variant, row) in enumerate(zip(self.variants, self._summary.itertuples(), strict=True)):
                found = getattr(self.trained, kind)[i]
                entry = {"measure": measure, **_key(variant), "topics": row.topics, "words": row.words}
                entry |= {name: _number(found, f, *place) for name, f in zip(_TESTED, names, strict=True)}
                if self.untrained:
                    entry["untrained"] = getattr(row, f"{column}_untrained")
                rows.append(entry)
        return pd.DataFrame(rows)

    @cached_property
    def _summary(self) -> pd.DataFrame:
        return self.summary()

    @cached_property
    def sentences(self) -> list[str]:
        """Whether words of a topic belong together beyond chance, in attention and in embeddings; the most important
        first."""
        return conclusions(self.by_measure(), self.tables["attention"], self.config.n_permutations)

    def by_topic(self) -> pd.DataFrame:
        """One row per topic, the largest first: its share of the corpus and its likeliest words."""
        import pandas as pd

        words = [", ".join(likeliest) for likeliest in self.topics.top_words(10)]
        shares = float("nan") if self.topics.shares is None else self.topics.shares.tolist()
        table = pd.DataFrame({"topic": range(len(words)), "share": shares, "likeliest words": words})
        return table.sort_values("share", ascending=False, kind="stable")

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Every table by the name of its file, computed once."""
        return {
            "summary": self._summary,
            "attention": self.to_dataframe(),
            "layers": self.by_layer(),
            "topics": self.by_topic(),
        }

    def _repr_html_(self) -> str:
        return table_html(
            self.by_measure(),
            f"Topic structure in {short_name(self.model)}",
            [*self.sentences, *self.notes],
            missing="–",
        )

    @property
    def notes(self) -> list[str]:
        """What was left out or could not be measured, and why, and how to read the numbers."""
        encoded, n_topics, shares = self.encoded, self.topics.n_topics, self.topics.shares
        share = encoded.lost / encoded.occurrences if encoded.occurrences else float("nan")
        never = int((encoded.token_of_word < 0).sum())
        notes = [
            f"{encoded.lost} of {encoded.occurrences} occurrences of topic words ({share:.0%}) do not count: the "
            f"tokenizer splits or does not know them; {never} of {len(encoded.words)} topic words are never one token."
        ]
        if n := len(self.empty_files):
            which = "1 file holds no word and was" if n == 1 else f"{n} files hold no word and were"
            notes.append(f"{which} left out: {self.empty_files[0]!r}{' and others' * (n > 1)}.")
        if encoded.n_cut:
            notes.append(
                f"{encoded.n_cut} documents were longer than a window and cut into several "
                f"({len(encoded.windows)} windows in all); words in different windows are not compared."
            )
        if shares is not None and (weak := int((shares < 0.1 / n_topics).sum())):
            notes.append(
                f"{weak} of {n_topics} topics have less than a tenth of an even share of the corpus; their words mean "
                "little. Ask for fewer topics, or give more text."
            )
        return [
            *notes,
            *self.corpus_notes,
            *self._read(),
            *self._empty_notes(),
            "Case is ignored: several token ids can be the same word; its row of the embedding matrix is its most "
            "frequent token's.",
            "Cosine and dot product: rows of the token embedding matrix, over all pairs of different words. A ratio "
            "divides by the mean of different-topic pairs; where that is near 0, as with untrained embeddings, the "
            "ratio says little and the difference counts.",
        ]

    def _read(self) -> list[str]:
        found = next(r for r in self.trained.embedding if r is not None)
        used = found.metadata.get("tokenization")
        return [] if used is None else [in_words(used), *first_token_notes(used)]

    def _empty_notes(self) -> list[str]:
        """Where a value is NaN, and why; the same reason once."""
        where: dict[str, list[str]] = {}
        for i, variant in enumerate(self.variants):
            reasons: dict[str, list[str]] = {}
            for kind, what in _KINDS.items():
                found = getattr(self.trained, kind)[i]
                for note in [_TOO_FEW] if found is None else found.notes:
                    if "were not seen" not in note:  # said of all variants at once
                        reasons.setdefault(note, []).append(what)
            for note, kinds in reasons.items():
                where.setdefault(f"{', '.join(kinds)}: {note}.", []).append(variant.title)
        notes = [
            f"At {'every threshold' if len(names) == len(self.variants) else ', '.join(names)}: {reason}"
            for reason, names in where.items()
        ]
        v = len(self.topics.words)
        if alone := sorted({variant.threshold for variant in self.variants if int(v * variant.threshold) == 0}):
            notes.append(
                f"Of {v} words, threshold {', '.join(f'{t:g}' for t in alone)} keeps one per topic, which makes no pair"
                f"; give thresholds of at least {least_threshold(v):g}, or more text."
            )
        return notes

    def _similarity(self, kind: str, variant: int, site: int) -> dict[str, float]:
        found, row = getattr(self.trained, kind)[variant], {}
        for j, similarity in enumerate(("cosine", "dot")):
            for name, measure in {**_MEASURES, "difference": "difference"}.items():
                row[f"{similarity}_{name}"] = _number(found, measure, site, j)
            if self.untrained:
                others = [getattr(m, kind)[variant] for m in self.untrained]
                row[f"{similarity}_untrained"] = _mean(_number(r, "ratio", site, j) for r in others)
                row[f"{similarity}_difference_untrained"] = _mean(_number(r, "difference", site, j) for r in others)
        return row


_KINDS = {"attention": "attention", "embedding": "token embeddings", "vectors": "hidden states"}
_TOO_FEW = "fewer than two topics keep a word, so there is nothing to compare"
_TESTED = ("value", "null_low", "null_high", "p_value")
# By name: of which results, the quantities behind _TESTED, where they stand, and the summary's column.
_RATIO = tuple(f"overall_{name}" for name in ("ratio", "ratio_null_low", "ratio_null_high", "p_value"))
_DIFFERENCE = ("difference", "difference_null_low", "difference_null_high", "difference_p_value")
_MEASURED: dict[str, tuple[str, tuple[str, ...], tuple[int, ...], str]] = {
    "attention, ratio": ("attention", _RATIO, (), "attention"),
    "cosine, difference": ("embedding", _DIFFERENCE, (0, 0), "cosine_difference"),
    "dot, difference": ("embedding", _DIFFERENCE, (0, 1), "dot_difference"),
}
_MEASURES = {"ratio": "ratio", "null_low": "ratio_null_low", "null_high": "ratio_null_high", "p_value": "p_value"}


def _key(variant: Variant) -> dict[str, Any]:
    return {"threshold": variant.threshold, "overlap": variant.overlap}


def _number(result: ProbeResult | None, measure: str, *place: int) -> float:
    return float("nan") if result is None else float(result[measure][place])


def _difference(result: ProbeResult | None) -> float:
    return _number(result, "overall_same_topic_within") - _number(result, "overall_different_topic_within")


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
