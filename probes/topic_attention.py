"""Does attention keep to words of one topic? (Li, Li & Risteski, arXiv 2303.04245)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from numpy.typing import ArrayLike
from torch import Tensor

from probes.engine.attention import Attention, AttentionReadout
from probes.engine.result import ProbeResult
from probes.engine.sites import Sites, attention
from probes.engine.state import Rows, Sum
from probes.engine.topic_probe import TopicProbe
from probes.functional.halves import FEWEST_UNITS, check_n_halves, interval_from_halves
from probes.functional.topic_pairs import (
    BUCKETS,
    topic_pair_document_weights,
    topic_pair_shares,
    topic_pair_sums_within_documents,
)
from probes.functional.word_topics import WordTopics
from tasks import Batch

_EVERY_LAYER = attention()  # a state of the probe has the function's name
_AXES: Mapping[str, tuple[str, ...]] = {  # of measures that have any
    **dict.fromkeys(("sum", "mean"), ("site", "head", "bucket")),
    **dict.fromkeys(("pairs", "overall_mean"), ("bucket",)),
    **dict.fromkeys(("same_topic_within", "different_topic_within"), ("site", "head")),
    **dict.fromkeys(("ratio", "ratio_low", "ratio_high"), ("site", "head")),
    **dict.fromkeys(("ratio_null_low", "ratio_null_high", "p_value"), ("site", "head")),
    **dict.fromkeys(("best_ratio", "best_ratio_low", "best_ratio_high"), ("site",)),
    **dict.fromkeys(("best_ratio_null_low", "best_ratio_null_high", "best_p_value"), ("site",)),
    "best_ratio_halves": ("site", "half"),
}


class TopicAttention(TopicProbe):
    """Attention between words of one topic relative to different topics, in each document, per layer and head.

    Ordered (query, key) pairs of positions fall into the buckets ``same_word`` (the diagonal included), ``same_topic``
    (a different word) and ``different_topic``. Pairs with a position that has no topic (special tokens, padding) are
    left out, and weights are not renormalised.

    The two buckets are compared within documents (the examples of a batch), combined with the weights of Mantel and
    Haenszel, ``n_same n_different / (n_same + n_different)`` for so many pairs: attention is larger throughout in short
    documents, and documents of few topics have more same-topic pairs, so that plain averages differ even if attention
    ignores topics.

    Measures:
        ``ratio`` (site, head): ``same_topic_within`` / ``different_topic_within``; 1 if attention ignores topics.
        ``ratio_null_low``, ``ratio_null_high``, ``p_value`` (site, head): central 95% of the ratio
            when the topics are permuted among the words, and the share at least as high.
        ``ratio_low``, ``ratio_high`` (site, head), with ``n_resamples``: 95% interval over documents
            (``functional.halves.interval_from_halves``, of the logarithm). It is for other documents with these words,
            and no test of topics. ``best_ratio`` (wide enough for the best of the site's heads) and ``overall_ratio``
            have one too. NaN for fewer than 8 documents with both kinds of pairs.
        ``best_ratio_halves`` (site, half): the best head's ratio in each half of the documents.
        ``best_ratio``, ``best_ratio_null_low``, ``best_ratio_null_high``, ``best_p_value`` (site): the largest ratio
            of the heads, and the largest of the heads under each permutation.
        ``overall_ratio``, ``overall_ratio_null_low``, ``overall_ratio_null_high``, ``overall_p_value``: likewise for
            the plain mean over sites and heads.
        ``highest_ratio``, ``highest_ratio_low``, ``highest_ratio_high``: the largest of all heads, with an interval
            wide enough for the best of all.
        ``same_topic_within``, ``different_topic_within`` (site, head): mean attention over these pairs of a document,
            averaged over documents with the same weights; ``overall_same_topic_within``,
            ``overall_different_topic_within``: their means over sites and heads.
        ``sum``, ``mean`` (site, head, bucket): attention summed over the pairs of all documents, and this sum over
            their number; ``overall_mean`` (bucket): the mean over sites and heads. These are the plain averages of the
            paper's table. Alone, they are no evidence of topics.
        ``pairs`` (bucket): their number, equal at all sites.

    Memory: ``sites x heads x (5 + 2 n_permutations + 2 n_resamples)`` numbers, and two for each example with
    ``n_resamples``.
    Cost: in short texts the distinct words with a topic, squared, times ``heads x n_permutations`` per site; in long
    ones one call of attention for every ``d_head`` of the ``topics x n_permutations`` columns.

    The interval takes topics to be exchangeable over words given the documents. A document counts in every
    relabelling as much as it does with the topics as they are, and not at all if it has one topic.

    Source: Li, Li & Risteski (ICML 2023), section on attention, for the plain averages; weights: Mantel & Haenszel
    (1959); the interval is ours.

    Args:
        topics: ``[n_words]`` integer topic of each word (negative: none), or ``[n_words n_topics]``
            membership; two words share a topic when their sets meet.
        at: attention to measure.
        words: the per-token label that holds each position's row in ``topics`` (negative: left out), and identifies
            words; ``None``: the token ids are the rows.
        n_permutations: number of relabellings for the interval; 0 for none.
        seed: for the relabellings and halves.
        n_resamples: number of random halves of the documents behind the interval over documents; 0 for none.
        units: a label with one value per example that says which examples are of one document, such as windows that
            were cut from it; ``None``: each example is a document.

    Raises:
        InputError: for topics of the wrong shape, fewer than two topics, topics that do not fit the
            vocabulary, sites that are not attention, or a negative unit.

    Example:
        >>> probe = TopicAttention(torch.tensor([-1, 0, 0, 1, 1]))
        >>> probe.n_permutations
        99
    """

    readout: _TopicAttentionSums

    attention = Sum()
    within = Sum()
    weight = Sum()
    pairs = Sum(torch.int64)
    documents = Sum(torch.int64)
    halves = Sum()
    units_that_count = Rows()

    def __init__(
        self,
        topics: ArrayLike,
        at: Sites = _EVERY_LAYER,
        words: str | None = None,
        n_permutations: int = 99,
        seed: int = 0,
        n_resamples: int = 0,
        units: str | None = None,
    ) -> None:
        check_n_halves(n_resamples, enough=200)
        super().__init__(topics, at, words, n_permutations, seed)
        self.n_resamples = n_resamples
        self.units = units
        self.readout = _TopicAttentionSums(self._known, self._known.permuted(n_permutations, seed), words)

    def update(self, activations: Mapping[str, Float[Tensor, "batch head column"]], batch: Batch) -> None:
        """Add attention by bucket, over all pairs and within documents."""
        pairs = self.readout.pairs(batch)
        weight, documents = topic_pair_document_weights(pairs)
        shares = topic_pair_shares(pairs, weight)
        by_document = {}
        for site, sums in activations.items():
            sums = torch.where(pairs[:, None] > 0, sums, 0)  # without what rounding leaves
            self.attention.add(site, sums[..., :3].sum(dim=0))
            self.within.add(site, topic_pair_sums_within_documents(sums, shares))
            by_document[site] = sums[..., 1:3] * shares[:, None, :, 0]
        self.pairs.add("pairs", pairs[:, :3].sum(dim=0))
        self.weight.add("weight", weight.sum(dim=0))
        self.documents.add("documents", documents)
        if self.n_resamples:
            has_both = (pairs[:, 1:3] > 0).all(dim=1).cpu()
            self._add_halves(by_document, has_both, batch)

    def _add_halves(
        self, by_document: Mapping[str, Float[Tensor, "batch head 2"]], has_both: Bool[Tensor, "batch"], batch: Batch
    ) -> None:
        """Add the documents to the halves that they are in, which depend on the seed and the document alone."""
        units = self._units_of(batch)
        drawn = [generator.integers(2, size=self.n_resamples) for generator in self._generators(units)]
        in_half = torch.from_numpy(np.array(drawn, dtype=np.float64).reshape(len(units), self.n_resamples))
        for site, of_documents in by_document.items():
            means = of_documents.cpu().double()
            self.halves.add(site, torch.einsum("er,ehk->hkr", in_half, means))
        self.units_that_count.add(
            "units", batch.index[has_both.to(batch.index.device)], units[has_both.to(units.device)]
        )

    def compute(self) -> ProbeResult:
        """Return means and ratios over all examples so far, with their chance."""
        pairs = self.pairs["pairs"].cpu()
        total = torch.stack([self.attention[site].cpu() for site in self.site_names])  # [site head bucket]
        within = torch.stack([self.within[site].cpu() for site in self.site_names]) / self.weight["weight"].cpu()
        mean = torch.where(pairs > 0, total / pairs, torch.nan)
        overall = within[..., 0].mean(dim=(0, 1))
        values: dict[str, Shaped[Tensor, "..."]] = {
            "sum": total,
            "mean": mean,
            "pairs": pairs,
            "overall_mean": mean.mean(dim=(0, 1)),
            "same_topic_within": within[:, :, 0, 0],
            "different_topic_within": within[:, :, 1, 0],
            "overall_same_topic_within": overall[0],
            "overall_different_topic_within": overall[1],
        }
        coords = {"head": [str(head) for head in range(total.shape[1])], "bucket": list(BUCKETS)}
        metadata: dict[str, object] = {}
        if self.n_resamples:
            values |= self._intervals(within)
            coords["half"] = [str(half) for half in range(self.n_resamples)]
            metadata["n_units"] = self._n_units()
        values |= self._tests(within)
        axes = {name: _AXES.get(name, ()) for name in values}
        return self.result(values, axes, coords, metadata=metadata, notes=self._notes(within, pairs))

    def _tests(self, within: Float[Tensor, "site head 2 labelling"]) -> dict[str, Float[Tensor, "..."]]:
        """Return the ratio of each head, of the best head and over all heads, each with its chance."""
        ratio = within[:, :, 0] / within[:, :, 1]  # [site head labelling]
        same, different = within.mean(dim=(0, 1))
        values: dict[str, Float[Tensor, "..."]] = {}
        for prefix, ratios in (("", ratio), ("best_", _largest(ratio)), ("overall_", same / different)):
            values |= self._with_null(f"{prefix}ratio", ratios[..., 0], ratios[..., 1:], f"{prefix}p_value")
        return values

    def _intervals(self, within: Float[Tensor, "site head 2 labelling"]) -> dict[str, Float[Tensor, "..."]]:
        """Return the interval over documents of each ratio, of the best head's and of the mean's."""
        means = within[..., 0]
        halves = torch.stack([self.halves[site].cpu() for site in self.site_names])  # [site head 2 half]
        ratio = means[:, :, 0] / means[:, :, 1]
        of_halves = halves[:, :, 0] / halves[:, :, 1]  # [site head half]
        n_sites, n_heads = ratio.shape
        best = ratio.nan_to_num(nan=-torch.inf).argmax(dim=1)
        highest = int(ratio.flatten().nan_to_num(nan=-torch.inf).argmax())
        overall = means.mean(dim=(0, 1))
        overall_halves = halves.mean(dim=(0, 1))
        of_best = of_halves[torch.arange(n_sites), best]
        values = {"best_ratio_halves": of_best, "highest_ratio": ratio.flatten()[highest]}
        for prefix, ratios, drawn, n_compared in (
            ("", ratio, of_halves, 1),
            ("best_", ratio[torch.arange(n_sites), best], of_best, n_heads),
            ("highest_", ratio.flatten()[highest], of_halves.flatten(0, 1)[highest], n_sites * n_heads),
            ("overall_", overall[0] / overall[1], overall_halves[0] / overall_halves[1], 1),
        ):
            ends = interval_from_halves(
                ratios.log().numpy(), drawn.log().numpy(), self._n_units(), n_compared=n_compared
            )
            for end, log in zip(("low", "high"), ends, strict=True):
                values[f"{prefix}ratio_{end}"] = torch.as_tensor(np.exp(log))
        return values

    def _n_units(self) -> int:
        """Return how many documents have both kinds of pairs."""
        return len(torch.unique(self.units_that_count.get("units")[1]))

    def _notes(self, within: Float[Tensor, "site head 2 labelling"], pairs: Int[Tensor, "bucket"]) -> list[str]:
        """Say which means are of no pairs, which documents do not count, and why a ratio is NaN."""
        notes = self._empty_notes(pairs, BUCKETS)
        with_pairs, with_both = self.documents["documents"].tolist()
        if with_both < with_pairs:
            reason = "have same-topic or different-topic pairs only, and do not count in ratio"
            notes.append(f"{with_pairs - with_both} of {with_pairs} documents {reason}")
        if self.n_resamples and self._n_units() < FEWEST_UNITS:
            notes.append(f"{self._n_units()} documents are too few for an interval ({FEWEST_UNITS} are enough)")
        ratio = within[:, :, 0] / within[:, :, 1]
        return notes + self._null_notes(ratio[..., 0], ratio[..., 1:], torch.tensor(with_both))


@dataclass(frozen=True, eq=False)
class _TopicAttentionSums(AttentionReadout):
    """Reduces attention to its sums over the pairs of each document that are in each bucket.

    The columns are ``BUCKETS``, then the same-topic bucket under each relabelling.

    Attributes:
        topics: which words share a topic.
        permuted: relabelled groups of words.
        words: the per-token label that holds the words; ``None``: the tokens.
    """

    topics: WordTopics
    permuted: Int[Tensor, "permutation row"]
    words: str | None

    def read(self, attention: Attention, batch: Batch) -> Float[Tensor, "batch head column"]:
        """Return the sums, in float64."""
        return _columns(*attention.relabelled_mass(*self._classes(batch)))

    def pairs(self, batch: Batch) -> Int[Tensor, "batch column"]:
        """Return how many pairs each document has."""
        return _columns(*Attention.relabelled_pairs(*self._classes(batch)))

    def _classes(
        self, batch: Batch
    ) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "labelling row"], Bool[Tensor, "group group"] | None]:
        """Return the words of a batch, their groups in every labelling, and which groups meet."""
        row = self.topics.rows_of(batch.words(self.words))
        meet = None if self.topics.disjoint else self.topics.same.to(row.device)
        return row, self._labels.to(row.device), meet

    @cached_property
    def _labels(self) -> Int[Tensor, "labelling row"]:
        """One class for all words, whose pairs are all pairs; then the groups as they are, and relabelled."""
        return torch.cat([torch.zeros_like(self.topics.group)[None], self.topics.group[None], self.permuted])


def _columns(
    same_word: Shaped[Tensor, "*batch"], meeting: Shaped[Tensor, "*batch labelling"]
) -> Shaped[Tensor, "*batch column"]:
    """Return the columns from sums over the same word, and over different words whose groups meet."""
    same_topic = meeting[..., 1]
    buckets = torch.stack([same_word, same_topic, meeting[..., 0] - same_topic], dim=-1)
    return torch.cat([buckets, meeting[..., 2:]], dim=-1)


def _largest(by_head: Float[Tensor, "site head ..."]) -> Float[Tensor, "site ..."]:
    """Return the largest of the heads, without those where it is undefined."""
    largest = torch.nan_to_num(by_head, nan=-torch.inf, posinf=torch.inf).amax(dim=1)
    return torch.where(largest == -torch.inf, torch.nan, largest)
