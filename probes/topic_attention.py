"""Does attention keep to words of one topic? (Li, Li & Risteski, arXiv 2303.04245)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int, Shaped
from numpy.typing import ArrayLike
from torch import Tensor

from probes.engine.attention import Attention, AttentionReadout, EveryPair
from probes.engine.result import ProbeResult
from probes.engine.sites import Sites, attention
from probes.engine.state import Sum
from probes.engine.topic_probe import TopicProbe, words_by_position
from probes.functional.topic_attention import BUCKETS, WordTopics, document_weights, within_sums
from tasks import Batch

_EVERY_LAYER = attention()  # a state of the probe has the function's name


class TopicAttention(TopicProbe):
    """Attention between words of the same topic relative to different topics, in each document, per layer and head.

    Ordered (query, key) pairs of positions fall into the buckets ``same_word`` (the diagonal
    included), ``same_topic`` (a different word) and ``different_topic``. Pairs with a position that
    has no topic (special tokens, padding) are left out, and nothing is renormalised.

    The two buckets are compared within documents (the examples of a batch), combined with the weights of Mantel and
    Haenszel: attention is larger throughout in short documents, and documents of few topics have more same-topic
    pairs, so that plain averages differ even if attention ignores topics.

    Measures:
        ``ratio`` (site, head): ``same_topic_within`` / ``different_topic_within``; 1 if attention ignores topics.
        ``ratio_null_low``, ``ratio_null_high``, ``p_value`` (site, head): central 95% of the ratio
            when the topics are permuted among the words, and the share at least as high.
        ``best_ratio``, ``best_ratio_null_low``, ``best_ratio_null_high``, ``best_p_value`` (site): the largest ratio
            of the heads, and the largest of the heads under the same permutations.
        ``overall_ratio``, ``overall_ratio_null_low``, ``overall_ratio_null_high``, ``overall_p_value``: the same for
            the plain mean over sites and heads.
        ``same_topic_within``, ``different_topic_within`` (site, head): mean attention over these pairs of a document,
            averaged over documents with the same weights; ``overall_same_topic_within``,
            ``overall_different_topic_within``: their means over sites and heads.
        ``sum``, ``mean`` (site, head, bucket): attention summed over the pairs of all documents, and that over their
            number; ``overall_mean`` (bucket): the mean over sites and heads. These are the plain averages of the
            paper's table and say nothing about topics by themselves.
        ``pairs`` (bucket): how many, the same at all sites.

    Memory: ``sites x heads x (5 + 2 n_permutations)`` numbers, independent of the number of examples.
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
        words: the per-token label that holds each position's row in ``topics`` (negative: left out), and
            says what the same word is; ``None``: the token ids are the rows.
        n_permutations: number of relabellings for the interval; 0 for none.
        seed: for the relabellings.

    Raises:
        InputError: for topics of the wrong shape, fewer than two topics, topics that do not fit the
            vocabulary, or sites that are not attention.

    Example:
        >>> probe = TopicAttention(torch.tensor([-1, 0, 0, 1, 1]))
        >>> probe.n_permutations
        99
    """

    readout: BucketSums

    attention = Sum()
    within = Sum()
    weight = Sum()
    pairs = Sum(torch.int64)
    documents = Sum(torch.int64)

    def __init__(
        self,
        topics: ArrayLike,
        at: Sites = _EVERY_LAYER,
        words: str | None = None,
        n_permutations: int = 99,
        seed: int = 0,
    ) -> None:
        super().__init__(topics, at, words, n_permutations, seed)
        self.readout = BucketSums(self._known, self._known.permuted(n_permutations, seed), words)

    def update(self, activations: Mapping[str, Float[Tensor, "batch head column"]], batch: Batch) -> None:
        """Add attention by bucket, over all pairs and within documents."""
        pairs = self.readout.pairs(batch)
        for site, sums in activations.items():
            sums = torch.where(pairs[:, None] > 0, sums, 0)  # without what rounding leaves
            self.attention.add(site, sums[..., :3].sum(dim=0))
            self.within.add(site, within_sums(sums, pairs))
        weight, documents = document_weights(pairs)
        self.pairs.add("pairs", pairs[:, :3].sum(dim=0))
        self.weight.add("weight", weight.sum(dim=0))
        self.documents.add("documents", documents)

    def compute(self) -> ProbeResult:
        """Return means and ratios over all examples so far, with their chance."""
        pairs = self.pairs["pairs"].cpu()
        total = torch.stack([self.attention[site].cpu() for site in self.site_names])  # [site head bucket]
        within = torch.stack([self.within[site].cpu() for site in self.site_names]) / self.weight["weight"].cpu()
        tests, on = self._tests(within)
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
        axes: dict[str, tuple[str, ...]] = {
            **dict.fromkeys(("sum", "mean"), ("site", "head", "bucket")),
            **dict.fromkeys(("pairs", "overall_mean"), ("bucket",)),
            **dict.fromkeys(("same_topic_within", "different_topic_within"), ("site", "head")),
            **dict.fromkeys(("overall_same_topic_within", "overall_different_topic_within"), ()),
        }
        heads = [str(head) for head in range(total.shape[1])]
        return self.result(
            values | tests, axes | on, {"head": heads, "bucket": list(BUCKETS)}, notes=self._notes(within, pairs)
        )

    def _tests(
        self, within: Float[Tensor, "site head 2 labelling"]
    ) -> tuple[dict[str, Float[Tensor, "..."]], dict[str, tuple[str, ...]]]:
        """Return the ratio of each head, of the best head and over all heads, each with its chance, and their axes."""
        ratio = within[:, :, 0] / within[:, :, 1]  # [site head labelling]
        same, different = within.mean(dim=(0, 1))
        values: dict[str, Float[Tensor, "..."]] = {}
        axes: dict[str, tuple[str, ...]] = {}
        for prefix, ratios, on in (
            ("", ratio, ("site", "head")),
            ("best_", _largest(ratio), ("site",)),
            ("overall_", same / different, ()),
        ):
            tested = self._with_null(f"{prefix}ratio", ratios[..., 0], ratios[..., 1:], f"{prefix}p_value")
            values |= tested
            axes |= dict.fromkeys(tested, on)
        return values, axes

    def _notes(self, within: Float[Tensor, "site head 2 labelling"], pairs: Int[Tensor, "bucket"]) -> list[str]:
        """Say which means are of no pairs, which documents do not count, and why a ratio is NaN."""
        notes = self._empty_notes(pairs, BUCKETS)
        with_pairs, with_both = self.documents["documents"].tolist()
        if with_both < with_pairs:
            reason = "have same-topic or different-topic pairs only, and do not count in ratio"
            notes.append(f"{with_pairs - with_both} of {with_pairs} documents {reason}")
        ratio = within[:, :, 0] / within[:, :, 1]
        return notes + self._null_notes(ratio[..., 0], ratio[..., 1:], torch.tensor(with_both))


@dataclass(frozen=True, eq=False)
class BucketSums(AttentionReadout):
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
        row = self.topics.rows_of(words_by_position(batch, self.words))
        meet = None if self.topics.disjoint else self.topics.same.to(row.device)
        same_word, meeting = attention.relabelled_mass(row, self._labels.to(row.device), meet)
        different_words = meeting[..., 0]
        same_topic = meeting[..., 1]
        buckets = torch.stack([same_word, same_topic, different_words - same_topic], dim=-1)
        return torch.cat([buckets, meeting[..., 2:]], dim=-1)

    def pairs(self, batch: Batch) -> Int[Tensor, "batch column"]:
        """Return how many pairs each document has."""
        examples, length = batch.tokens.shape
        every_pair = EveryPair(examples, length, batch.tokens.device)
        return self.read(every_pair, batch)[:, 0].round().long()

    @cached_property
    def _labels(self) -> Int[Tensor, "labelling row"]:
        """One class for all words, whose pairs are all pairs; then the groups as they are, and relabelled."""
        return torch.cat([torch.zeros_like(self.topics.group)[None], self.topics.group[None], self.permuted])


def _largest(by_head: Float[Tensor, "site head ..."]) -> Float[Tensor, "site ..."]:
    """Return the largest of the heads, without those where it is undefined."""
    largest = torch.nan_to_num(by_head, nan=-torch.inf, posinf=torch.inf).amax(dim=1)
    return torch.where(largest == -torch.inf, torch.nan, largest)
