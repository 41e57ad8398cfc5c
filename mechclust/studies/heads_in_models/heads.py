"""The measured heads of one model, and the rules by which they are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool

from mechclust.studies.heads_in_models.config import HeadsInModelsConfig
from probes import ProbeResult


@dataclass(frozen=True)
class Heads:
    """The heads of one model.

    Attributes:
        labels: the equivalences; the first is that of the task, the second a control.
        values: measures ``[layer head]``, ``[layer head label]`` or, for ``discovered``, ``[layer head example]``.
        chance: ``[label]`` within-ratio of random labels.
        accuracy: the model's.
        clusters: task-ARI and output-ARI of the residual stream by layer, ``[layer 2]``; ``None`` if not measured.
        place: layer and head of a planted head.
        carried: share of answers that become the donor's when several heads are interchanged together, and ``changed``
            share that change at all, by the names of ``together.DONORS``; empty if not measured.
        discovery: what ``discover_together`` found; ``None`` if not measured.
        uncalled: labels for which no head is called; see ``config.clustered_by_attention``.
    """

    labels: tuple[str, ...]
    values: Mapping[str, np.ndarray]
    chance: np.ndarray
    accuracy: float
    clusters: np.ndarray | None = None
    place: tuple[int, int] | None = None
    carried: Mapping[str, float] = field(default_factory=dict)
    changed: Mapping[str, float] = field(default_factory=dict)
    discovery: ProbeResult | None = None
    uncalled: frozenset[str] = frozenset()

    def of(self, measure: str, label: str) -> np.ndarray:
        """``[layer head]`` a measure that exists for every label."""
        return np.asarray(self.values[measure][..., self.labels.index(label)])

    def ratio(self, label: str) -> np.ndarray:
        """``[layer head]`` within-ratio as a share of what random labels give."""
        return self.of("within_ratio", label) / self.chance[self.labels.index(label)]

    def selectivity(self, label: str) -> np.ndarray:
        """``[layer head]`` share of answers changed between the label's classes minus within; NaN if untested."""
        return self.of("changed_between", label) - self.of("changed_within", label)

    def called(self, config: HeadsInModelsConfig, label: str) -> np.ndarray:
        """``[layer head]`` whether the rule calls a head a clustering head of the label; see ``config.share``.

        False for all heads if the label is one of ``uncalled``.
        """
        if label in self.uncalled:
            return np.zeros_like(self.ratio(label), dtype=bool)
        follows = self.of("causal_p_holm", label) <= config.level  # False for NaN, a head that was not tested
        within, between = (self.of(f"changed_{which}", label) for which in ("within", "between"))
        return follows & (within <= config.share * between) & (self.ratio(label) <= config.share)

    def alike(self, config: HeadsInModelsConfig, label: str) -> np.ndarray:
        """``[layer head]`` whether a head's outputs are similar within the label's classes, whatever reads them."""
        return (self.of("output_p_holm", label) <= config.level) & (self.ratio(label) <= config.share)

    def strongest(self, n: int) -> set[int]:
        """The heads with the largest effect, numbered through all layers."""
        effect = self.values["effect"].ravel()
        return {int(i) for i in np.argsort(-effect, kind="stable")[:n] if effect[i] > 0}


def heads_from(result: ProbeResult, labels: tuple[str, ...]) -> Heads:
    """What ``measure_heads`` found."""
    values = {name: result[name].numpy() for name in result if result[name].ndim >= 2}
    return Heads(labels, values, result["within_ratio_chance"].numpy(), float(result["accuracy"]))


def switching_heads(
    config: HeadsInModelsConfig, ends: Sequence[Heads], follows: str = "asked", ignores: str = "other"
) -> Bool[np.ndarray, "layer head"]:
    """Return which heads are alike for one label but not for the other, at every ending."""
    alike = [heads.alike(config, follows) & (heads.ratio(ignores) > config.share) for heads in ends]
    return np.logical_and.reduce(alike)
