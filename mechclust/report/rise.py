"""Judge whether a measure grows over training, or from layer to layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from mechclust.evidence import Bound, Part, mean_part
from mechclust.report.spearman import spearman_correlation


def judge_rise_with_step(
    steps: Sequence[int] | Int[np.ndarray, "checkpoint"], curves: Float[np.ndarray, "seed checkpoint"]
) -> tuple[Part, ...]:
    """Judge whether a measure rises with log step, then saturates: it changes little over the last third of training.

    If the last third has no other checkpoint than the end, the change is that since the checkpoint before.

    Args:
        steps: of the checkpoints. The last is the end of training.
        curves: the measure.

    Example:
        >>> parts = judge_rise_with_step([0, 1, 10, 20, 30], np.array([[0.0, 0.5, 0.75, 1.0, 1.0]]))
        >>> [(part.name, round(part.measured, 3)) for part in parts]
        [('Spearman', 0.975), ('late change', 0.0)]
    """
    late = min(int(np.searchsorted(steps, 2 * steps[-1] / 3)), len(steps) - 2)
    correlations = [spearman_correlation(np.asarray(steps), curve) for curve in curves]
    return (
        mean_part("Spearman", correlations, Bound(">", 0.8)),
        mean_part("late change", np.abs(curves[:, -1] - curves[:, late]), Bound("<", 0.1)),
    )


def judge_rise_with_layer(layers: Float[np.ndarray, "seed layer"]) -> tuple[Part, ...]:
    """Judge whether a measure rises with layer.

    Args:
        layers: the measure at layers 0 to n.
    """
    last = layers.shape[1] - 1
    correlations = [spearman_correlation(np.arange(last + 1), of_seed) for of_seed in layers]
    return (
        mean_part("Spearman", correlations, Bound(">", 0.8)),
        mean_part(f"layer {last} - layer 1", layers[:, last] - layers[:, 1], Bound(">=", 0.2)),
    )
