"""Does attention keep to words of one topic, also at equal distance?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from torch import Tensor

from probes.engine.attention import Attention, AttentionReadout
from probes.engine.result import ProbeResult
from probes.engine.sites import Sites, attention
from probes.engine.state import Sum
from probes.engine.topic_probe import TopicProbe
from probes.functional.distance_matched_topic_attention import (
    DIFFERENT_WORDS,
    DistanceMatchedPairs,
    matched_sums,
)
from probes.functional.word_topics import WordTopics
from tasks import Batch, InputError
from tasks.settings import check_count

_NO_TEST = "the interval covers the choice of documents, not of words: it does not test that the ratio is 1"
_AXES: Mapping[str, tuple[str, ...]] = {  # of measures that have any
    "ratio": ("site", "head"),
    "ratio_unmatched": ("site", "head"),
    "mean": ("site", "head", "bucket"),
    "by_distance": ("site", "head", "bucket", "distance"),
    "pairs": ("bucket", "distance"),
    "overall_ratio_resampled": ("resample",),
    "overall_ratio_unmatched_resampled": ("resample",),
}
_EVERY_LAYER = attention()  # a state of the probe has the function's name


class DistanceMatchedTopicAttention(TopicProbe):
    """Attention within topics relative to different topics, per layer and head, at equal distances in a document.

    Words of one topic stand closer together, and attention falls with distance, so that ``TopicAttention``'s ratio can
    be above 1 without any regard for topics. Here ordered (query, key) pairs of different words are sorted by their
    document and distance, and both means weigh documents and distances alike, with the weights of Mantel and Haenszel.
    Pairs with a position that has no topic are left out, and weights are not renormalised.

    Measures:
        ``ratio`` (site, head): mean over same-topic pairs / mean over different-topic pairs, at equal distance.
        ``ratio_unmatched`` (site, head): the ratio over all distances up to ``max_distance``, as ``TopicAttention`` has
            it.
        ``mean`` (site, head, bucket): the two means of ``ratio``.
        ``by_distance`` (site, head, bucket, distance): mean attention over the pairs of all documents.
        ``pairs`` (bucket, distance): their number, equal at all sites.
        ``overall_ratio``, ``overall_ratio_unmatched``: of the plain means over sites and heads.
        ``overall_ratio_low``, ``overall_ratio_high``, and likewise for ``unmatched``: central 95% over resampled
            examples, each of which counts as often as a Poisson draw of mean 1 says (a bootstrap over examples).
        ``overall_ratio_resampled``, ``overall_ratio_unmatched_resampled`` (resample): the values behind these. Another
            probe with this ``seed`` resamples the same examples, so that differences can be taken draw by draw.

    Attention that ignores topics has a ratio of 1. The interval does not test this: it covers the choice of documents
    only, and words attract attention whatever their topic. The p-value of ``TopicAttention`` is a test, and a model
    with random weights shows how far from 1 words alone bring the ratio.

    Memory: ``2 x max_distance x sites x heads + 4 n_resamples`` numbers, independent of the number of examples.
    Cost: the pairs that count, times ``heads``, per site.

    Source: buckets as in Li, Li & Risteski (ICML 2023); weights: Mantel & Haenszel (1959). The comparison is ours.

    Args:
        topics: ``[n_words]`` integer topic of each word (negative: none), or ``[n_words n_topics]``
            membership; two words share a topic when their sets meet.
        at: attention to measure.
        words: the per-token label that holds each position's row in ``topics`` (negative: left out); ``None``: the
            token ids are the rows.
        max_distance: pairs farther apart are left out.
        n_resamples: number of resamplings for the interval; 0 for none.
        units: the per-example label of the units to resample, such as the document that a window was cut from;
            ``None``: each example is a unit.
        seed: for the resamplings.

    Raises:
        InputError: for topics of the wrong shape, fewer than two topics, topics that do not fit the vocabulary, sites
            that are not attention, or a negative unit.

    Example:
        >>> probe = DistanceMatchedTopicAttention(torch.tensor([-1, 0, 0, 1, 1]), max_distance=64)
        >>> probe.n_resamples
        199
    """

    readout: _DistanceSums

    attention = Sum()
    matched = Sum()
    weight = Sum()
    pairs = Sum(torch.int64)
    resampled = Sum()

    def __init__(
        self,
        topics: ArrayLike,
        at: Sites = _EVERY_LAYER,
        words: str | None = None,
        max_distance: int = 256,
        n_resamples: int = 199,
        units: str | None = None,
        seed: int = 0,
    ) -> None:
        check_count(max_distance=(max_distance, 1), n_resamples=(n_resamples, 0))
        if n_resamples == 1:
            raise InputError("n_resamples is 1, but one resampling has no variance; give 199, or 0 for no interval")
        super().__init__(topics, at, words, 0, seed)
        self.max_distance = max_distance
        self.n_resamples = n_resamples
        self.units = units
        self.readout = _DistanceSums(self._known, words, max_distance)

    def update(self, activations: Mapping[str, Float[Tensor, "batch head 2 distance"]], batch: Batch) -> None:
        """Add attention by bucket and distance, and each document's sums for matching."""
        pairs = self.readout.pairs(batch)
        number = pairs.pairs()
        by_site = {}
        for site, by_example in activations.items():
            total = rearrange(by_example, "example head bucket distance -> head example bucket distance")
            by_site[site], weight = _both_ways(total, number)
            self.attention.add(site, total.sum(dim=1))
            self.matched.add(site, by_site[site].sum(dim=1))
        self.weight.add("weight", weight.sum(dim=0))
        self.pairs.add("pairs", number.sum(dim=0))
        self.pairs.add("beyond", pairs.beyond())
        self.pairs.add("alone", _alone(number))
        if self.n_resamples:
            overall = torch.stack([each.mean(dim=0) for each in by_site.values()]).mean(dim=0).cpu().double()
            self.resampled.add("sums", torch.einsum("er,e...->r...", self._weights(batch), overall))

    def compute(self) -> ProbeResult:
        """Return the ratios over all examples so far, with intervals."""
        pairs = self.pairs["pairs"].cpu()
        total = torch.stack([self.attention[site].cpu() for site in self.site_names])  # [site head bucket distance]
        means = torch.stack([self.matched[site].cpu() for site in self.site_names])  # [site head way bucket]
        means = means / self.weight["weight"].cpu()[:, None]
        ratio = means[..., 0] / means[..., 1]
        overall = means.mean(dim=(0, 1))
        overall_ratio = overall[:, 0] / overall[:, 1]
        values = {
            "ratio": ratio[..., 0],
            "ratio_unmatched": ratio[..., 1],
            "mean": means[:, :, 0],
            "by_distance": torch.where(pairs > 0, total / pairs, torch.nan),
            "pairs": pairs,
            "overall_ratio": overall_ratio[0],
            "overall_ratio_unmatched": overall_ratio[1],
        }
        resampled = self._resampled()
        coords = {
            "head": [str(head) for head in range(total.shape[1])],
            "bucket": list(DIFFERENT_WORDS),
            "distance": [str(distance) for distance in range(1, self.max_distance + 1)],
        }
        for name, drawn in resampled.items():
            values[f"{name}_low"], values[f"{name}_high"] = _central(drawn)
        if self.n_resamples:
            coords["resample"] = [str(i) for i in range(self.n_resamples)]
            values |= {f"{name}_resampled": drawn for name, drawn in resampled.items()}
        axes = {name: _AXES.get(name, ()) for name in values}
        return self.result(values, axes, coords, notes=self._notes(pairs, resampled["overall_ratio"]))

    def _weights(self, batch: Batch) -> Float[Tensor, "batch resample"]:
        """Return how often each example counts in each resampling: a unit counts equally often wherever it is met."""
        generators = self._generators(self._units_of(batch))
        drawn = [generator.poisson(1.0, self.n_resamples) for generator in generators]
        return torch.from_numpy(np.array(drawn, dtype=np.float64).reshape(len(generators), self.n_resamples))

    def _resampled(self) -> dict[str, Float[Tensor, "resample"]]:
        """Return the resampled values of each measure; none without resamplings."""
        none = torch.empty(0, 2, 2, dtype=torch.float64)
        sums = self.resampled["sums"].cpu() if self.n_resamples else none  # [resample way bucket]
        matched, unmatched = (sums[..., 0] / sums[..., 1]).unbind(dim=1)
        return {"overall_ratio": matched, "overall_ratio_unmatched": unmatched}

    def _notes(self, pairs: Int[Tensor, "bucket distance"], resampled: Float[Tensor, "resample"]) -> list[str]:
        """Say which pairs do not count, why a number is NaN, and that the interval is no test."""
        notes = []
        total = int(pairs.sum())
        alone = int(self.pairs["alone"])
        if alone == total:
            notes.append(
                "at no distance does a document have pairs of the same topic and of different topics, so ratio is NaN"
            )
        elif alone:
            notes.append(
                f"{alone} of {total} pairs do not count in ratio: their document has none of the other kind at that "
                "distance"
            )
        lacking = int((pairs == 0).any(dim=0).sum())
        if lacking:
            notes.append(
                f"at {lacking} of {self.max_distance} distances, one bucket or both have no pairs, so their "
                "by_distance is NaN"
            )
        beyond = int(self.pairs["beyond"])
        if beyond:
            notes.append(f"{beyond} pairs stand more than {self.max_distance} tokens apart and are left out")
        undefined = int(resampled.isnan().sum())
        if undefined and alone < total:
            notes.append(
                f"{undefined} of {self.n_resamples} resamplings draw no document that counts, and are left out"
            )
        notes.append(_NO_TEST if self.n_resamples else "n_resamples is 0, so there is no interval")
        return notes


@dataclass(frozen=True, eq=False)
class _DistanceSums(AttentionReadout):
    """Reduces attention to its sums over the pairs of each document in each bucket and at each distance.

    Attributes:
        topics: which words share a topic.
        words: the per-token label that holds the words; ``None``: the tokens.
        max_distance: largest distance, in tokens.
    """

    topics: WordTopics
    words: str | None
    max_distance: int

    def read(self, attention: Attention, batch: Batch) -> Float[Tensor, "batch head 2 distance"]:
        """Return the sums, in float64."""
        sums = self.pairs(batch).sums(attention.rows, attention.shape[1])
        return rearrange(sums, "head example bucket distance -> example head bucket distance")

    def pairs(self, batch: Batch) -> DistanceMatchedPairs:
        """Return the pairs of a batch."""
        return DistanceMatchedPairs.from_words(batch.words(self.words), self.topics, self.max_distance)


def _both_ways(
    total: Float[Tensor, "head example bucket distance"], pairs: Int[Tensor, "example bucket distance"]
) -> tuple[Float[Tensor, "head example way bucket"], Float[Tensor, "example way"]]:
    """Return ``matched_sums`` at equal distance and over all distances, with their weights."""
    matched, weight = matched_sums(total, pairs)
    unmatched, weight_unmatched = matched_sums(total.sum(dim=-1, keepdim=True), pairs.sum(dim=-1, keepdim=True))
    return torch.stack([matched, unmatched], dim=2), torch.stack([weight, weight_unmatched], dim=1)


def _alone(pairs: Int[Tensor, "example bucket distance"]) -> Int[Tensor, ""]:
    """Count the pairs whose document has none of the other bucket at their distance."""
    both = (pairs > 0).all(dim=1, keepdim=True)
    return torch.where(both, 0, pairs).sum()


def _central(drawn: Float[Tensor, "resample"]) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Return the ends of the central 95%; NaN for none."""
    if not len(drawn):
        nan = drawn.new_full((), torch.nan)
        return nan, nan
    low, high = torch.nanquantile(drawn, torch.tensor([0.025, 0.975], dtype=drawn.dtype))
    return low, high
