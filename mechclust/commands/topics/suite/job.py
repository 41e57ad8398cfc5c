"""One encoder of a suite, trained or random: what is measured of it, as a job that another process may do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechclust.attention import AttentionView, attention_view
from mechclust.commands.topics.suite.vectors import PARTS, WordStates
from mechclust.commands.topics.suite.view import load_view, save_view
from mechclust.commands.topics.variants import Variant
from mechclust.models import token_embeddings
from mechclust.models.tokenizers import tokenization_of
from probes import (
    DistanceMatchedTopicAttention,
    ProbeResult,
    TopicEmbedding,
    attention_pattern,
    load_result,
    run,
)
from probes.functional.topic_attention import WordTopics
from probes.functional.topic_embedding import GroupSums
from probes.store.digest import digest_of
from probes.store.files import file_name, versions
from tasks import InputError
from tasks.text.beginning import Bos
from tasks.text.encoding import EncodedCorpus, check_tokenizer, encode

_KINDS = tuple((name, selves) for name in ("rows", "hook_embed", "contextual") for selves in (False, True))
VECTORS = tuple(f"{name}, self-pairs in" if selves else name for name, selves in _KINDS)
"""Ways to take and compare words' vectors: rows of the embedding, states of layer 0 and of the last block, means over
occurrences; a word with itself counts as of the same topic or not."""
_SHOWN_TOKENS, _SHOWN_HEADS = 72, 8


@dataclass(frozen=True)
class SuiteReading:
    """How documents are read and measured.

    Attributes:
        max_length: tokens of a window.
        tokens_per_batch: most tokens of a forward pass.
        bos: see ``ModelSettings``.
        resamples: of the documents.
        seed: of the resampling.
        document: whose attention is shown.
    """

    max_length: int
    tokens_per_batch: int
    bos: Bos
    resamples: int
    seed: int
    document: int


@dataclass(frozen=True)
class Measured:
    """What was found of one encoder.

    Attributes:
        attention: by topic seed, variant and head: ``ratio`` and ``matched``; over all heads ``overall_ratio``,
            ``overall_matched`` with ``_resampled``, and ``by_distance``.
        embedding: by topic seed, variant, ``VECTORS`` and similarity: ``ratio``, ``difference``, ``mean``, and
            ``ratio_without`` each part of the documents.
        view: attention of one document, where it was asked for.
    """

    attention: ProbeResult
    embedding: ProbeResult
    view: AttentionView | None = None


@dataclass(frozen=True)
class ModelJob:
    """An encoder to measure.

    Attributes:
        name: in tables and folders.
        load: gives the model with its tokenizer.
        identity: of the model, such as its directory and the seed of its random weights.
        words: that the topics are about.
        topics: by topic seed, the same variants for each; their topics are over ``words``.
        documents: texts.
        reading: how these are read.
        folder: where measurements are kept.
        shown: whether attention of a document is kept to be shown.
        about: stands in the results' metadata; may be another in a later run.
    """

    name: str
    load: Callable[[], Any]
    identity: str
    words: list[str]
    topics: Mapping[int, Sequence[Variant]]
    documents: Sequence[str]
    reading: SuiteReading
    folder: Path
    shown: bool
    about: Mapping[str, Any]

    @property
    def place(self) -> Path:
        """The folder of its measurements."""
        drawn = [v.topics for variants in self.topics.values() for v in variants]
        names = [repr([(seed, v.name) for v in variants]) for seed, variants in self.topics.items()]
        measured = (DistanceMatchedTopicAttention.states, PARTS, VECTORS)
        settings = repr((self.identity, self.reading, self.shown, versions(), measured))
        digest = digest_of([settings, *names, *self.words, *self.documents, *drawn])
        return self.folder / f"{file_name(self.name)}-{digest[:16]}"


def measure_model(job: ModelJob) -> Measured | str:
    """What is found of an encoder, read where it is kept; or why it cannot be measured."""
    if (kept := _kept(job)) is not None:
        return kept
    try:
        found = _measure(job)
    except InputError as error:
        return str(error)
    except (RuntimeError, MemoryError) as error:  # too little memory, a kernel that is missing: others may go on
        why = str(error).strip().splitlines() or [type(error).__name__]
        return f"measuring it failed: {why[0]}; it is tried again the next time"
    place = job.place
    found.attention.save(place / "attention.safetensors")
    if found.view is not None:
        save_view(place / "view.safetensors", found.view)
    found.embedding.save(place / "embedding.safetensors")  # the last
    return found


def _kept(job: ModelJob) -> Measured | None:
    place = job.place
    if (place / "embedding.safetensors").exists():
        with suppress(InputError):  # a damaged one is measured again
            view = load_view(place / "view.safetensors") if job.shown else None
            attention, embedding = (load_result(place / f"{name}.safetensors") for name in ("attention", "embedding"))
            own, vectors = (replace(r, metadata={**r.metadata, **job.about}) for r in (attention, embedding))
            return Measured(own, vectors, view)
    return None


def _measure(job: ModelJob) -> Measured:
    hooked, how = job.load(), job.reading
    tokenizer = hooked.tokenizer
    check_tokenizer(tokenizer)
    n_ctx, d_vocab = hooked.cfg.n_ctx, hooked.cfg.d_vocab
    max_length = how.max_length if n_ctx is None else min(how.max_length, n_ctx)
    encoded = encode(job.documents, tokenizer, job.words, max_length, bos=how.bos, d_vocab=d_vocab)
    encoded.check_whole()
    tokens = encoded.token_of_word
    # What is not seen has no topic: no room is kept for it.
    seen = [[v.topics & (tokens >= 0)[:, None] for v in variants] for variants in job.topics.values()]
    attention = [
        DistanceMatchedTopicAttention(
            topics, attention_pattern(), "word", max(1, max_length - 1), how.resamples, "document", how.seed
        )
        if _usable(topics)
        else None
        for variants in seen
        for topics in variants
    ]
    if not any(attention):
        raise InputError(
            f"of the {len(job.words)} topic words, the {int((tokens >= 0).sum())} that the tokenizer leaves whole have "
            "fewer than two topics at every threshold; give more text or larger thresholds"
        )
    states = WordStates.of(encoded, len(job.words))
    gathered = states.probe()
    used = [probe for probe in attention if probe is not None]
    *found, _ = run(hooked, states.batches(how.tokens_per_batch), [*used, gathered])
    by_probe = iter(found)
    results = [None if probe is None else next(by_probe) for probe in attention]

    table = token_embeddings(hooked)
    rows = table[tokens.clamp(min=0).to(table.device)].to("cpu", torch.float64)
    whole = _vectors(rows, states, gathered, -1)
    without = (_vectors(rows, states, gathered, part) for part in range(PARTS))  # one of them in memory at a time
    lost = {"occurrences": encoded.occurrences, "lost": encoded.lost, "words_seen": int((tokens >= 0).sum())}
    about = {
        **job.about,
        **lost,
        "tokenization": tokenization_of(tokenizer, bos=how.bos),
        "model": found[0].metadata["model"],
    }
    topics_of = dict(zip(job.topics, seen, strict=True))
    measured = Measured(
        attention=_attention(job, results, about), embedding=_embedding(job, topics_of, whole, without, about)
    )
    if not job.shown:
        return measured
    return Measured(measured.attention, measured.embedding, _view(hooked, encoded, results, job))


def _usable(topics: Tensor) -> bool:
    return int(topics.any(dim=0).sum()) >= 2


def _coords(job: ModelJob) -> dict[str, list[str]]:
    variants = next(iter(job.topics.values()))
    return {"topic_seed": [str(seed) for seed in job.topics], "variant": [v.name for v in variants]}


def _attention(job: ModelJob, results: Sequence[ProbeResult | None], about: Mapping[str, Any]) -> ProbeResult:
    """The measures of all topic models and variants as one result."""
    some = next(result for result in results if result is not None)
    coords, shape = _coords(job), (len(job.topics), -1)
    named = {  # the unmatched ratio is over all distances, within documents
        "ratio": "ratio_unmatched", "matched": "ratio", "overall_ratio": "overall_ratio_unmatched",
        "overall_matched": "overall_ratio", "overall_ratio_resampled": "overall_ratio_unmatched_resampled",
        "overall_matched_resampled": "overall_ratio_resampled",
    }  # fmt: skip
    values: dict[str, Tensor] = {}
    axes: dict[str, tuple[str, ...]] = {}
    for name, measure in named.items():
        rows = [torch.full_like(some[measure], torch.nan) if r is None else r[measure] for r in results]
        stacked = torch.stack(rows)
        values[name] = stacked.reshape(*shape, *stacked.shape[1:])
        axes[name] = ("topic_seed", "variant", *some.axes[measure])
    nothing = torch.full_like(some["by_distance"][0, 0], torch.nan)
    means = torch.stack([nothing if r is None else r["by_distance"].mean(dim=(0, 1)) for r in results])
    values["by_distance"] = means.reshape(*shape, *means.shape[1:])
    axes["by_distance"] = ("topic_seed", "variant", "bucket", "distance")
    pairs = torch.stack([torch.zeros(2) if r is None else r["pairs"].sum(dim=-1).float() for r in results]).double()
    values["pairs"], axes["pairs"] = pairs.reshape(*shape, 2), ("topic_seed", "variant", "bucket")
    notes = [] if all(r is not None for r in results) else ["a variant of fewer than two topics has no number"]
    return ProbeResult(
        "TopicsSuiteAttention", values, axes, {**some.coords, **coords}, some.layers, {**about, "versions": versions()},
        notes,
    )  # fmt: skip


_Vectors = tuple[dict[str, Tensor], Tensor]


def _vectors(rows: Tensor, states: WordStates, gathered: TopicEmbedding, left_out: int) -> _Vectors:
    """Every kind of word vector, and which words were met, in all documents or without a part of them."""
    (first, last), met = states.means(gathered, left_out)
    return {"rows": rows, "hook_embed": first, "contextual": last}, met


def _embedding(
    job: ModelJob,
    topics: Mapping[int, Sequence[Tensor]],
    whole: _Vectors,
    without: Iterable[_Vectors],
    about: Mapping[str, Any],
) -> ProbeResult:
    """Similarity of word vectors of all topic models and variants as one result."""
    every = [each for variants in topics.values() for each in variants]
    parts = [[_ratios(each, *part) for each in every] for part in without]
    found: list[dict[str, Tensor] | None] = []
    for number, each in enumerate(every):
        if not _usable(each):
            found.append(None)
            continue
        vectors, met = whole
        without_selves, with_selves = (
            TopicEmbedding(each, self_pairs=selves, n_permutations=0).compare_vectors(vectors, met)
            for selves in (False, True)
        )
        measures = {  # in the order of VECTORS
            name: torch.stack([without_selves[name], with_selves[name]], dim=1).flatten(0, 1)
            for name in ("ratio", "difference", "mean")
        }
        measures["ratio_without"] = torch.stack([part[number] for part in parts], dim=-1)
        found.append(measures)
    some = next(each for each in found if each is not None)
    values = {}
    for name, x in some.items():
        stacked = torch.stack([torch.full_like(x, torch.nan) if each is None else each[name] for each in found])
        values[name] = stacked.reshape(len(topics), -1, *x.shape)
    place = ("topic_seed", "variant", "vectors", "similarity")
    return ProbeResult(
        "TopicsSuiteEmbedding",
        values,
        {"ratio": place, "difference": place, "mean": (*place, "bucket"), "ratio_without": (*place, "left_out")},
        {
            **_coords(job),
            "vectors": list(VECTORS),
            "similarity": ["cosine", "dot"],
            "bucket": ["same_topic", "different_topic"],
            "left_out": [str(part) for part in range(PARTS)],
        },
        metadata={**about, "versions": versions()},
    )


def _ratios(topics: Tensor, vectors: Mapping[str, Tensor], met: Tensor) -> Tensor:
    """``[vectors similarity]`` in the order of ``VECTORS``; NaN where fewer than two topics were met."""
    if not _usable(topics[met]):
        return torch.full((len(VECTORS), 2), torch.nan, dtype=torch.float64)
    known = WordTopics.from_topics(topics[met])
    of = {name: rows[met][known.row >= 0] for name, rows in vectors.items()}
    return torch.stack([GroupSums(known.group, known, selves).similarity(of[name]).ratio for name, selves in _KINDS])


def _view(
    hooked: Any, encoded: EncodedCorpus, results: Sequence[ProbeResult | None], job: ModelJob
) -> AttentionView | None:
    """The heads with the highest ratio on the beginning of a document, its words coloured by topic."""
    windows = np.flatnonzero(encoded.documents == job.reading.document)
    if not len(windows):
        return None
    which = int(windows[0])
    ids, words = encoded.windows[which][:_SHOWN_TOKENS], encoded.labels[which][:_SHOWN_TOKENS].tolist()
    place = next(i for i, result in enumerate(results) if result is not None)
    variant = [v for variants in job.topics.values() for v in variants][place]
    labels = [None if w < 0 else topic_label(variant.topics[w]) for w in words]
    result = results[place]
    assert result is not None
    heads = result.top_heads("ratio_unmatched", _SHOWN_HEADS)
    if not heads:
        return None
    return attention_view(hooked, ids.tolist(), heads=heads, labels=labels)


def topic_label(topics: Tensor) -> str | None:
    """``topic 3`` of a word; of one that has several, the first; ``None`` without any."""
    numbers = topics.nonzero().flatten().tolist()
    return f"topic {numbers[0]}" if numbers else None
