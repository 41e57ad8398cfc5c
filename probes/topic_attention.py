"""Probes of topic structure: in attention patterns, and in word vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from probes.functional.topic_attention import BUCKETS, PairTable, WordTopics
from probes.functional.topic_embedding import SIMILARITIES, GroupSums
from probes.hooks import Models
from probes.probe import Probe
from probes.readout import all_tokens
from probes.result import ProbeResult
from probes.sites import Site, Sites, attention_pattern, embedding
from probes.state import Sum
from tasks import Batch, InputError


class _TopicProbe(Probe):
    """What the two probes share: which word stands where, and its topics."""

    readout = all_tokens()

    def __init__(self, topics: ArrayLike, at: Sites, words: str | None, n_permutations: int, seed: int) -> None:
        for name, value in (("n_permutations", n_permutations), ("seed", seed)):
            if value < 0:
                raise InputError(f"{name} is {value}; expected at least 0")
        self.topics, self.at, self.words = topics, at, words
        self.n_permutations, self.seed = n_permutations, seed
        self._known = WordTopics.of(topics)

    def bind(self, model: Models) -> list[Site]:
        """Also checks that the topics fit the model's vocabulary, where its token ids are the words."""
        d_vocab = getattr(getattr(model, "cfg", None), "d_vocab", None)
        if self.words is None and d_vocab is not None and d_vocab != len(self._known.row):
            raise InputError(
                f"topics are given for {len(self._known.row)} words, but the model's vocabulary has {d_vocab} tokens; "
                "give one row a token, or name a per-token label with words="
            )
        return super().bind(model)

    def _words(self, batch: Batch) -> Tensor:
        """``[batch pos]`` the word at each position, -1 at padding."""
        words = batch.tokens if self.words is None else batch.label(self.words)
        if words.ndim != 2:
            raise InputError(f"label {self.words!r} is per example; {type(self).__name__} needs a word a token")
        return words if batch.attention_mask is None else torch.where(batch.attention_mask, words, -1)

    def _null(self, observed: Tensor, null: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Central 95% of ``null [... n_permutations]`` and the share at least as high as observed.

        Relabellings whose ratio is undefined are left out.
        """
        if not self.n_permutations:
            low, high, p = (torch.full_like(observed, torch.nan) for _ in range(3))
            return low, high, p
        low, high = torch.nanquantile(null, torch.tensor([0.025, 0.975], dtype=null.dtype), dim=-1)
        defined = (~null.isnan()).sum(dim=-1)
        p = (1.0 + (null >= observed[..., None]).sum(dim=-1).double()) / (1 + defined)
        return low, high, torch.where(torch.isnan(observed) | (defined == 0), torch.nan, p)

    def _null_notes(self, ratio: Tensor, null: Tensor, pairs: Tensor) -> list[str]:
        """Why a ratio, its interval or its p-value is NaN although there are pairs."""
        notes = []
        if bool(ratio.isnan().any()) and bool((pairs > 0).all()):
            notes.append("a ratio is NaN where both of its means are 0")
        if not self.n_permutations:
            notes.append("n_permutations is 0, so there is no interval and no p_value")
        elif undefined := int(null.isnan().flatten(0, -2).any(dim=0).sum()):
            notes.append(
                f"{undefined} of {self.n_permutations} relabellings have no ratio somewhere "
                "(no such pair met, or both means are 0), and are left out there"
            )
        return notes

    def _empty_notes(self, pairs: Tensor, buckets: Sequence[str]) -> list[str]:
        what = {
            "same_word": "no token has a topic",
            "same_topic": "no two different words of one topic met",
            "different_topic": "no two words of different topics met",
        }
        return [f"{b}: {what[b]}, so its mean is NaN" for b, n in zip(buckets, pairs.tolist(), strict=True) if not n]


class TopicAttention(_TopicProbe):
    """Mean attention between words of the same topic, and of different topics, per layer and head.

    Ordered (query, key) pairs of positions fall into the buckets ``same_word`` (the diagonal
    included), ``same_topic`` (a different word) and ``different_topic``. Pairs with a position that
    has no topic (special tokens, padding) are left out, and nothing is renormalised.

    Measures:
        ``sum``, ``mean`` (site, head, bucket): summed attention, and that over the number of pairs.
        ``pairs`` (bucket): how many, the same at all sites.
        ``ratio`` (site, head): mean over same-topic pairs / mean over different-topic pairs.
        ``ratio_null_low``, ``ratio_null_high``, ``p_value`` (site, head): central 95% of the ratio
            when the topics are handed out anew to the words, and the share at least as high.
        ``overall_mean`` (bucket), ``overall_ratio``, ``overall_ratio_null_low``, ...: the plain mean
            over sites and heads, and the ratio of those means.

    Memory: ``sites x heads x (3 + n_permutations)`` numbers, independent of the number of examples.
    Cost: the positions with a topic, squared, times ``heads x n_permutations`` a site.

    The interval takes topics to be exchangeable over words given the documents. Where documents differ much
    in length it is too narrow: attention is larger throughout in short ones.

    Source: Li, Li & Risteski (ICML 2023), section on attention; the interval is ours.

    Args:
        topics: ``[n_words]`` integer topic of each word (negative: none), or ``[n_words n_topics]``
            membership; two words share a topic when their sets meet.
        at: attention patterns to measure.
        words: the per-token label that holds each position's row in ``topics`` (negative: left out), and
            says what the same word is; ``None``: the token ids are the rows.
        n_permutations: relabellings behind the interval; 0 for none.
        seed: of the relabellings.

    Raises:
        InputError: for topics of another form, fewer than two topics, topics that do not fit the
            vocabulary, or sites that are no attention patterns.

    Example:
        >>> probe = TopicAttention(torch.tensor([-1, 0, 0, 1, 1]))
        >>> probe.n_permutations
        99
    """

    attention = Sum()
    pairs = Sum(torch.int64)

    def __init__(
        self,
        topics: ArrayLike,
        at: Sites = attention_pattern(),
        words: str | None = None,
        n_permutations: int = 99,
        seed: int = 0,
    ) -> None:
        super().__init__(topics, at, words, n_permutations, seed)
        self._permuted = self._known.permuted(n_permutations, seed)

    def update(self, activations: Mapping[str, Tensor], batch: Batch) -> None:
        found = PairTable.of(self._words(batch), self._known, self._permuted).sums(activations)
        for site, sums in found.items():
            self.attention.add(site, torch.cat([sums.sum, sums.null_sum], dim=1))
        first = found[self.site_names[0]]
        self.pairs.add("pairs", torch.cat([first.pairs, first.null_pairs]))

    def compute(self) -> ProbeResult:
        counts = self.pairs["pairs"].cpu()
        sums = torch.stack([self.attention[site].cpu() for site in self.site_names])  # [site head 3+n]
        pairs, total = counts[:3], sums[..., :3]
        mean = torch.where(pairs > 0, total / pairs, torch.nan)
        # Relabelling moves pairs between the two buckets of different words; their sum stays.
        same = sums[..., 3:] / counts[3:]
        other = (total[..., 1:].sum(-1, keepdim=True) - sums[..., 3:]) / (pairs[1:].sum() - counts[3:])
        values: dict[str, Tensor] = {"sum": total, "mean": mean, "pairs": pairs}
        axes: dict[str, tuple[str, ...]] = dict.fromkeys(("sum", "mean"), ("site", "head", "bucket"))
        axes["pairs"] = axes["overall_mean"] = ("bucket",)
        values["overall_mean"] = mean.mean(dim=(0, 1))
        null = same.mean(dim=(0, 1)) / other.mean(dim=(0, 1))
        for prefix, m, n, on in (
            ("", mean, same / other, ("site", "head")),
            ("overall_", values["overall_mean"], null, ()),
        ):
            ratio = m[..., 1] / m[..., 2]
            names = [f"{prefix}{k}" for k in ("ratio", "ratio_null_low", "ratio_null_high", "p_value")]
            values.update(zip(names, (ratio, *self._null(ratio, n)), strict=True))
            axes.update(dict.fromkeys(names, on))
        heads = [str(head) for head in range(total.shape[1])]
        return self.result(
            values,
            axes,
            {"head": heads, "bucket": list(BUCKETS)},
            notes=self._empty_notes(pairs, BUCKETS) + self._null_notes(values["ratio"], same / other, pairs[1:]),
        )


class TopicEmbedding(_TopicProbe):
    """Similarity of word vectors of the same topic and of different topics, per site.

    A word's vector is its mean activation at the site: at ``hook_embed`` of a model without positions
    there, its row of the embedding matrix (for the matrix itself use ``functional.topic_similarity``).
    Every pair of different words that were seen counts once each way.

    Measures:
        ``sum``, ``mean`` (site, similarity, bucket): cosine and dot product summed over ``same_topic`` and
            ``different_topic`` pairs, and that over their number.
        ``pairs`` (bucket): how many ordered pairs.
        ``ratio``, ``difference`` (site, similarity): same over, and minus, different topic. Ratios
            explode where the denominator nears 0.
        ``ratio_null_low``, ``ratio_null_high``, ``p_value`` (site, similarity): central 95% of the
            ratio when the topics are handed out anew to the words, and the share at least as high.
        ``difference_null_low``, ``difference_null_high``, ``difference_p_value`` (site, similarity): likewise of
            the difference. Where the mean between topics is near 0 or below, these are the ones to read.

    Memory: ``sites x words with a topic x d_model`` float64 numbers.

    Source: Li, Li & Risteski (ICML 2023), section on embeddings; the interval is ours.

    Args:
        topics: as in ``TopicAttention``.
        at: where to measure.
        words: as in ``TopicAttention``.
        self_pairs: also count a word with itself as the same topic.
        n_permutations: relabellings behind the interval; 0 for none.
        seed: of the relabellings.

    Example:
        >>> TopicEmbedding(torch.tensor([0, 0, 1, 1])).at
        embedding()
    """

    vectors = Sum()
    seen = Sum(torch.int64)

    def __init__(
        self,
        topics: ArrayLike,
        at: Sites = embedding(),
        words: str | None = None,
        self_pairs: bool = False,
        n_permutations: int = 99,
        seed: int = 0,
    ) -> None:
        super().__init__(topics, at, words, n_permutations, seed)
        self.self_pairs = self_pairs

    def update(self, activations: Mapping[str, Tensor], batch: Batch) -> None:
        table = PairTable.of(self._words(batch), self._known)
        word, place = table.word[table.real], table.place
        n_rows = len(self._known.group)
        self.seen.add("words", torch.bincount(word, minlength=n_rows))
        example = torch.arange(len(place), device=place.device)[:, None]
        for site, x in activations.items():
            if x.ndim < 3 or x.shape[:2] != batch.tokens.shape:
                raise InputError(f"{site!r} gives shape {tuple(x.shape)}; expected a vector a token [batch pos ...]")
            rows = x[example, place][table.real].flatten(1)
            rows = rows.to(torch.float32 if rows.device.type == "mps" else torch.float64)
            self.vectors.add(site, rows.new_zeros(n_rows, rows.shape[1]).index_add_(0, word, rows))

    def compute(self) -> ProbeResult:
        count = self.seen["words"].cpu()
        seen = count > 0
        notes = [] if bool(seen.all()) else [f"{int((~seen).sum())} of {len(seen)} words with a topic were not seen"]
        sums = GroupSums(self._known.group[seen], self._known, self.self_pairs)
        found, nulls = [], []
        for site in self.site_names:
            vectors = (self.vectors[site].cpu() / count[:, None])[seen]
            found.append(sums.similarity(vectors))
            nulls.append(sums.null(vectors, self.n_permutations, self.seed))
            if bool((vectors == 0).all(dim=1).any()):
                notes.append(f"{site}: a word's vector is zero, so the mean cosine is NaN")
        ratio = torch.stack([f.ratio for f in found])
        null = torch.stack([n.ratio for n in nulls])
        low, high, p = self._null(ratio, null)
        difference = torch.stack([f.difference for f in found])
        bounds = self._null(difference, torch.stack([n.difference for n in nulls]))
        buckets = BUCKETS[1:]
        values = {
            "sum": torch.stack([f.sum for f in found]),
            "mean": torch.stack([f.mean for f in found]),
            "pairs": sums.pairs,
            "ratio": ratio,
            "difference": difference,
            "ratio_null_low": low,
            "ratio_null_high": high,
            "p_value": p,
            "difference_null_low": bounds[0],
            "difference_null_high": bounds[1],
            "difference_p_value": bounds[2],
        }
        axes: dict[str, tuple[str, ...]] = dict.fromkeys(values, ("site", "similarity"))
        axes.update({"pairs": ("bucket",), **dict.fromkeys(("sum", "mean"), ("site", "similarity", "bucket"))})
        return self.result(
            values,
            axes,
            {"similarity": list(SIMILARITIES), "bucket": list(buckets)},
            metadata={"n_words": int(seen.sum())},
            notes=notes + self._empty_notes(sums.pairs, buckets) + self._null_notes(ratio, null, sums.pairs),
        )
