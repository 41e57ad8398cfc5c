"""The measured heads of one model, and the rules by which they are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float, Shaped

from mechclust.studies.heads_in_models.config import HeadsInModelsConfig
from probes import ProbeResult

_Values = Float[np.ndarray, "layer head"]
_Called = Bool[np.ndarray, "layer head"]


@dataclass(frozen=True)
class Heads:
    """The heads of one model.

    Attributes:
        labels: the equivalences. The first is the task's, the second a control.
        values: measures by name. The last axis is the label, if they have it.
        chance: within-ratio of random labels.
        accuracy: accuracy of the model.
        clusters: task-ARI and output-ARI of the residual stream by layer, or ``None`` if not measured.
        place: layer and head of a planted head.
        carried: share of answers that become the donor's when several heads are interchanged together, by the names of
            ``together.DONORS``. Empty if not measured.
        changed: share of answers that change at all, by these names.
        discovery: the result of ``discover_together``, or ``None`` if not measured.
        uncalled: labels for which no head is called, see ``config.clustered_by_attention``.
    """

    labels: tuple[str, ...]
    values: Mapping[str, Shaped[np.ndarray, "layer head ..."]]
    chance: Float[np.ndarray, "label"]
    accuracy: float
    clusters: Float[np.ndarray, "residual 2"] | None = None
    place: tuple[int, int] | None = None
    carried: Mapping[str, float] = field(default_factory=dict)
    changed: Mapping[str, float] = field(default_factory=dict)
    discovery: ProbeResult | None = None
    uncalled: frozenset[str] = frozenset()

    def labelled(self, measure: str, label: str) -> _Values:
        """Return a measure that all labels have."""
        return np.asarray(self.values[measure][..., self.labels.index(label)])

    def ratio(self, label: str) -> _Values:
        """Return the within-ratio as a share of its value for random labels."""
        return self.labelled("within_ratio", label) / self.chance[self.labels.index(label)]

    def selectivity(self, label: str) -> _Values:
        """Return the share of answers changed between the label's classes minus that within, or NaN if untested."""
        return self.labelled("changed_between", label) - self.labelled("changed_within", label)

    def called(self, config: HeadsInModelsConfig, label: str) -> _Called:
        """Return whether the rule calls each head a clustering head of the label, see ``config.share``.

        False for all heads if the label is one of ``uncalled``.
        """
        ratio = self.ratio(label)
        if label in self.uncalled:
            return np.zeros_like(ratio, dtype=bool)
        follows = self.labelled("causal_p_holm", label) <= config.level  # False for NaN, a head that was not tested
        within = self.labelled("changed_within", label)
        between = self.labelled("changed_between", label)
        return follows & (within <= config.share * between) & (ratio <= config.share)

    def alike(self, config: HeadsInModelsConfig, label: str) -> _Called:
        """Return whether each head's outputs are similar within the label's classes, whether or not they are read."""
        return (self.labelled("output_p_holm", label) <= config.level) & (self.ratio(label) <= config.share)

    def strongest(self, n: int) -> set[int]:
        """Return the heads with the largest effect, numbered through all layers."""
        effect = self.values["effect"].ravel()
        return {int(i) for i in np.argsort(-effect, kind="stable")[:n] if effect[i] > 0}


def heads_from(result: ProbeResult, labels: tuple[str, ...]) -> Heads:
    """Return the heads of a result of ``measure_heads``."""
    values = {name: result[name].numpy() for name in result if result[name].ndim >= 2}
    return Heads(labels, values, result["within_ratio_chance"].numpy(), float(result["accuracy"]))


def switching_heads(
    config: HeadsInModelsConfig, ends: Sequence[Heads], follows: str = "asked", ignores: str = "other"
) -> _Called:
    """Return which heads are alike for one label but not for the other, at every ending."""
    alike = [heads.alike(config, follows) & (heads.ratio(ignores) > config.share) for heads in ends]
    return np.logical_and.reduce(alike)
