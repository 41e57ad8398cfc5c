"""Does attention keep to words of one topic? (Li, Li & Risteski, arXiv 2303.04245)"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from probes.functional.topic_attention import BUCKETS, PairTable
from probes.result import ProbeResult
from probes.sites import Sites, attention_pattern
from probes.state import Sum
from probes.topic_probe import TopicProbe
from tasks import Batch


class TopicAttention(TopicProbe):
    """Mean attention between words of the same topic, and of different topics, per layer and head.

    Ordered (query, key) pairs of positions fall into the buckets ``same_word`` (the diagonal
    included), ``same_topic`` (a different word) and ``different_topic``. Pairs with a position that
    has no topic (special tokens, padding) are left out, and nothing is renormalised.

    Measures:
        ``sum``, ``mean`` (site, head, bucket): summed attention, and that over the number of pairs.
        ``pairs`` (bucket): how many, the same at all sites.
        ``ratio`` (site, head): mean over same-topic pairs / mean over different-topic pairs.
        ``ratio_null_low``, ``ratio_null_high``, ``p_value`` (site, head): central 95% of the ratio
            when the topics are permuted among the words, and the share at least as high.
        ``best_ratio``, ``best_ratio_null_low``, ``best_ratio_null_high``, ``best_p_value`` (site): the largest ratio
            of the heads, and the largest of the heads under the same permutations.
        ``overall_mean`` (bucket), ``overall_ratio``, ``overall_ratio_null_low``, ...: the plain mean
            over sites and heads, and the ratio of those means.

    Memory: ``sites x heads x (3 + n_permutations)`` numbers, independent of the number of examples.
    Cost: the positions with a topic, squared, times ``heads x n_permutations`` per site.

    The interval takes topics to be exchangeable over words given the documents. Where documents differ much
    in length it is too narrow: attention is larger throughout in short ones.

    Source: Li, Li & Risteski (ICML 2023), section on attention; the interval is ours.

    Args:
        topics: ``[n_words]`` integer topic of each word (negative: none), or ``[n_words n_topics]``
            membership; two words share a topic when their sets meet.
        at: attention patterns to measure.
        words: the per-token label that holds each position's row in ``topics`` (negative: left out), and
            says what the same word is; ``None``: the token ids are the rows.
        n_permutations: number of relabellings for the interval; 0 for none.
        seed: for the relabellings.

    Raises:
        InputError: for topics of the wrong shape, fewer than two topics, topics that do not fit the
            vocabulary, or sites that are not attention patterns.

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
        ratio, heads_null = mean[..., 1] / mean[..., 2], same / other
        overall = values["overall_mean"]
        for prefix, observed, n, on in (
            ("", ratio, heads_null, ("site", "head")),
            ("best_", _largest(ratio), _largest(heads_null), ("site",)),
            ("overall_", overall[1] / overall[2], null, ()),
        ):
            tested = self._with_null(f"{prefix}ratio", observed, n, f"{prefix}p_value")
            values |= tested
            axes |= dict.fromkeys(tested, on)
        heads = [str(head) for head in range(total.shape[1])]
        return self.result(
            values,
            axes,
            {"head": heads, "bucket": list(BUCKETS)},
            notes=self._empty_notes(pairs, BUCKETS) + self._null_notes(values["ratio"], heads_null, pairs[1:]),
        )


def _largest(of_heads: Tensor) -> Tensor:
    """``[site ...]`` over ``[site head ...]``, without heads where it is undefined."""
    found = torch.nan_to_num(of_heads, nan=-torch.inf, posinf=torch.inf).amax(dim=1)
    return torch.where(found == -torch.inf, torch.nan, found)
