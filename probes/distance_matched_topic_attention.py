"""Does attention keep to words of one topic, also at equal distance?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from probes.functional.distance_matched_topic_attention import (
    DIFFERENT_WORDS,
    DistancePairs,
    matched_means,
    pooled_means,
)
from probes.result import ProbeResult
from probes.sites import Sites, attention_pattern
from probes.state import Sum
from probes.topic_probe import TopicProbe
from tasks import Batch
from tasks.errors import check_at_least


class DistanceMatchedTopicAttention(TopicProbe):
    """Mean attention within topics and between topics, per layer and head, at the same distances in tokens.

    Words of one topic stand closer together, and attention falls with distance, so that ``TopicAttention``'s ratio can
    be above 1 without any regard for topics. Here ordered (query, key) pairs of different words are sorted by their
    distance too, and the two means are over the same distances, with the weights of Mantel and Haenszel. Pairs with a
    position that has no topic are left out, and nothing is renormalised.

    Measures:
        ``ratio`` (site, head): mean over same-topic pairs / mean over different-topic pairs, at equal distance.
        ``ratio_unmatched`` (site, head): the same over all pairs up to ``max_distance``, as ``TopicAttention`` has it.
        ``mean`` (site, head, bucket): the two means of ``ratio``.
        ``by_distance`` (site, head, bucket, distance): mean attention.
        ``pairs`` (bucket, distance): how many, the same at all sites.
        ``overall_ratio``, ``overall_ratio_unmatched``: of the plain means over sites and heads.
        ``overall_ratio_low``, ``overall_ratio_high`` and the same of ``unmatched``: central 95% over resampled
            examples, each of which counts as often as a Poisson draw of mean 1 says (a bootstrap over examples).
        ``overall_ratio_resampled``, ``overall_ratio_unmatched_resampled`` (resample): the values behind these. Another
            probe with the same ``seed`` resamples the same examples, so that differences can be taken draw by draw.

    Chance is a ratio of 1. A model with random weights shows whether that holds for these texts.

    Memory: ``2 x max_distance x (sites x heads + 2 n_resamples)`` numbers, independent of the number of examples.
    Cost: the pairs that count, times ``heads``, per site.

    Source: buckets as in Li, Li & Risteski (ICML 2023); weights: Mantel & Haenszel (1959). The comparison is ours.

    Args:
        topics: ``[n_words]`` integer topic of each word (negative: none), or ``[n_words n_topics]``
            membership; two words share a topic when their sets meet.
        at: attention patterns to measure.
        words: the per-token label that holds each position's row in ``topics`` (negative: left out); ``None``: the
            token ids are the rows.
        max_distance: pairs farther apart are left out.
        n_resamples: number of resamplings for the interval; 0 for none.
        units: the per-example label of the units to resample, such as the document that a window was cut from;
            ``None``: each example is a unit.
        seed: for the resamplings.

    Raises:
        InputError: for topics of the wrong shape, fewer than two topics, topics that do not fit the vocabulary, sites
            that are not attention patterns, or a negative unit.

    Example:
        >>> probe = DistanceMatchedTopicAttention(torch.tensor([-1, 0, 0, 1, 1]), max_distance=64)
        >>> probe.n_resamples
        199
    """

    attention = Sum()
    pairs = Sum(torch.int64)
    resampled = Sum()

    def __init__(
        self,
        topics: ArrayLike,
        at: Sites = attention_pattern(),
        words: str | None = None,
        max_distance: int = 256,
        n_resamples: int = 199,
        units: str | None = None,
        seed: int = 0,
    ) -> None:
        check_at_least(max_distance=(max_distance, 1), n_resamples=(n_resamples, 0))
        super().__init__(topics, at, words, 0, seed)
        self.max_distance, self.n_resamples, self.units = max_distance, n_resamples, units

    def update(self, activations: Mapping[str, Tensor], batch: Batch) -> None:
        found = DistancePairs.of(self._words(batch), self._known, self.max_distance)
        number = found.pairs()
        sums = found.sums(activations)
        for site, (total, _) in sums.items():
            self.attention.add(site, total)
        self.pairs.add("pairs", number.sum(dim=0))
        self.pairs.add("beyond", found.beyond)
        if self.n_resamples:
            overall = torch.stack([each for _, each in sums.values()]).mean(dim=0)
            both = torch.stack([overall, number.to(overall)], dim=1).cpu().double()
            self.resampled.add("sums", torch.einsum("er,e...->r...", self._weights(batch), both))

    def compute(self) -> ProbeResult:
        pairs = self.pairs["pairs"].cpu()
        total = torch.stack([self.attention[site].cpu() for site in self.site_names])  # [site head 2 distance]
        matched, pooled = matched_means(total, pairs), pooled_means(total, pairs)
        overall, overall_pooled = matched.mean(dim=(0, 1)), pooled.mean(dim=(0, 1))
        values = {
            "ratio": matched[..., 0] / matched[..., 1],
            "ratio_unmatched": pooled[..., 0] / pooled[..., 1],
            "mean": matched,
            "by_distance": torch.where(pairs > 0, total / pairs, torch.nan),
            "pairs": pairs,
            "overall_ratio": overall[0] / overall[1],
            "overall_ratio_unmatched": overall_pooled[0] / overall_pooled[1],
        }
        axes: dict[str, tuple[str, ...]] = {
            **dict.fromkeys(values, ()),
            **dict.fromkeys(("ratio", "ratio_unmatched"), ("site", "head")),
            "mean": ("site", "head", "bucket"),
            "by_distance": ("site", "head", "bucket", "distance"),
            "pairs": ("bucket", "distance"),
        }
        resampled = self._resampled()
        coords = {
            "head": [str(head) for head in range(total.shape[1])],
            "bucket": list(DIFFERENT_WORDS),
            "distance": [str(distance) for distance in range(1, self.max_distance + 1)],
        }
        if self.n_resamples:
            coords["resample"] = [str(i) for i in range(self.n_resamples)]
        for name, drawn in resampled.items():
            values[f"{name}_low"], values[f"{name}_high"] = _central(drawn)
            axes |= dict.fromkeys((f"{name}_low", f"{name}_high"), ())
            if self.n_resamples:
                values[f"{name}_resampled"], axes[f"{name}_resampled"] = drawn, ("resample",)
        return self.result(values, axes, coords, notes=self._notes(pairs))

    def _weights(self, batch: Batch) -> Tensor:
        """``[batch n_resamples]`` how often each example counts: the same for a unit wherever it is met."""
        units = batch.index if self.units is None else batch.label(self.units, per="example")
        numbers = [int(unit) for unit in units]
        check_at_least(**{self.units or "index": (min(numbers, default=0), 0)})
        drawn = [np.random.default_rng([self.seed, unit]).poisson(1.0, self.n_resamples) for unit in numbers]
        return torch.from_numpy(np.array(drawn, dtype=np.float64).reshape(len(numbers), self.n_resamples))

    def _resampled(self) -> dict[str, Tensor]:
        """``[n_resamples]`` by measure."""
        found = {}
        for name, means in (("overall_ratio", matched_means), ("overall_ratio_unmatched", pooled_means)):
            found[name] = torch.empty(0, dtype=torch.float64)
            if self.n_resamples:
                total, number = self.resampled["sums"].cpu().unbind(dim=1)  # [n_resamples 2 distance] each
                mean = means(total, number)
                found[name] = mean[:, 0] / mean[:, 1]
        return found

    def _notes(self, pairs: Tensor) -> list[str]:
        notes = []
        if not bool(((pairs > 0).all(dim=0)).any()):
            notes.append("at no distance are there pairs of the same topic and of different topics, so ratio is NaN")
        alone = int(pairs[:, ~(pairs > 0).all(dim=0)].sum())
        if alone and not notes:
            notes.append(
                f"{alone} of {int(pairs.sum())} pairs stand at distances at which only one bucket has any, and count "
                "in ratio_unmatched alone"
            )
        if lacking := int((pairs == 0).any(dim=0).sum()):
            notes.append(
                f"at {lacking} of {self.max_distance} distances, one bucket or both have no pairs, so their "
                "by_distance is NaN"
            )
        if beyond := int(self.pairs["beyond"]):
            notes.append(f"{beyond} pairs stand more than {self.max_distance} tokens apart and are left out")
        if not self.n_resamples:
            notes.append("n_resamples is 0, so there is no interval")
        return notes


def _central(drawn: Tensor) -> tuple[Tensor, Tensor]:
    """The central 95%; NaN for none."""
    if not len(drawn):
        return drawn.new_full((), torch.nan), drawn.new_full((), torch.nan)
    low, high = torch.nanquantile(drawn, torch.tensor([0.025, 0.975], dtype=drawn.dtype))
    return low, high
