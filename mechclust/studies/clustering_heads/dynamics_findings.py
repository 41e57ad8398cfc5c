"""Findings on which part is ready first, on the gradient during falls of the loss, and on plateaus: H2 and H3."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import numpy as np
from jaxtyping import Bool, Float

from mechclust.evidence import Bound, Finding
from mechclust.evidence.compared import compared
from mechclust.evidence.random_order import random_order
from mechclust.studies.clustering_heads.claims import FIRST_PAPER
from mechclust.studies.clustering_heads.config import SOLVED, ClusteringHeadsConfig
from mechclust.studies.clustering_heads.curves import first_above
from mechclust.studies.clustering_heads.results import CurvedRun, HeadsResults, TrainedNetwork

_DEEPER = "log10 of the smallest eigenvalue's size, plateaus (median) over end"
_FLATTER = "gradient norm on the plateaus below half of that in the falls (medians)"
_SHUFFLED = "epochs in one random order"
_Networks = Sequence[TrainedNetwork]
_GradientInFalls = tuple[Float[np.ndarray, "epoch"], Bool[np.ndarray, "epoch"]]


def dynamics_findings(config: ClusteringHeadsConfig, results: HeadsResults) -> list[Finding]:
    """Return H2, H3 and H3c."""
    return [_order(results), _gradient(config, results), _saddle(config, results)]


def _order(results: HeadsResults) -> Finding:
    networks = results.solved
    return compared(
        "H2",
        "solved networks: the head solves the task with the final classifier at an earlier epoch than the classifier "
        "does with the final head (share)",
        {"": Bound(">", 0.5)},
        [_head_first(*_ready(networks))],
        _SHUFFLED,
        [_head_first(*_ready(networks, shuffled=True))],
        shares=[""],
        source=f"{FIRST_PAPER}, section on training phases; stitching ours",
        not_tested="" if networks else "no network is solved",
        note=_dates_note(networks),
    )


def _ready(networks: _Networks, *, shuffled: bool = False) -> Float[np.ndarray, "2 network"]:
    """Return the epochs at which head and classifier are ready: they solve the task with the final other part."""
    dates = []
    for network in networks:
        curves = np.stack([network.stitching["head_accuracy"], network.stitching["classifier_accuracy"]])
        if shuffled:
            curves = curves[:, random_order(curves.shape[1])]
        dates.append([first_above(curve, SOLVED) for curve in curves])
    return np.array(dates, dtype=float).reshape(-1, 2).T


def _head_first(
    head: Float[np.ndarray, "network"], classifier: Float[np.ndarray, "network"]
) -> Bool[np.ndarray, "different"]:
    """Return whether the head is ready first, in networks whose parts become ready at different epochs."""
    apart = head != classifier
    return head[apart] < classifier[apart]


def _dates_note(networks: _Networks) -> str:
    if not networks:
        return ""
    head, classifier = _ready(networks)
    solved_at = median(network.solved_or_end for network in networks)
    return (
        f"{(head == classifier).sum()} networks in which both are ready at the same epoch are left out; median lead "
        f"{np.median(classifier - head):g} epochs; ready at epoch {np.median(head):g} and {np.median(classifier):g}; "
        f"both parts of one epoch solve the task at {solved_at:g} (medians)"
    )


def _gradient(config: ClusteringHeadsConfig, results: HeadsResults) -> Finding:
    runs = list(results.full_batch.values())
    measured: list[_GradientInFalls] = []
    for run in runs:
        in_fall, on_plateau = run.falls_and_plateaus(config.task.p)
        if on_plateau.any():
            to_last_fall = in_fall | on_plateau
            measured.append((run.gradient[to_last_fall], in_fall[to_last_fall]))
    counts = [len(run.drops(config.task.p)) for run in runs]
    falls = ", ".join(f"{count} in {counts.count(count)}" for count in sorted(set(counts)))
    return compared(
        "H3",
        "full batch: the gradient norm is more than twice as large where the loss falls as on the plateaus before "
        "(log10 of the ratio of medians)",
        {"": Bound(">", math.log10(2))},
        [_log_ratios(measured)],
        "gradient norms moved by half of each run",
        [_log_ratios([(np.roll(norms, len(norms) // 2), falls) for norms, falls in measured])],
        source=f"{FIRST_PAPER}, figure of gradient norms; its settings are not known",
        not_tested="" if runs else "the full-batch run was not made",
        note=f"falls of the loss: {falls} of {len(runs)} runs" if runs else "",
    )


def _log_ratios(pairs: Sequence[_GradientInFalls]) -> list[float]:
    """Return log10 of the median gradient norm while the loss falls over the median norm otherwise."""
    return [np.log10(np.median(norms[falls]) / np.median(norms[~falls])) for norms, falls in pairs]


def _saddle(config: ClusteringHeadsConfig, results: HeadsResults) -> Finding:
    runs = results.curved_runs(config.task.p)
    return compared(
        "H3c",
        "full batch, runs that solve the task: the plateau is a saddle (share of runs whose Hessian has a negative "
        "eigenvalue at every measured snapshot on the plateaus)",
        {"": Bound(">", 0.5), _DEEPER: Bound(">=", 1), _FLATTER: Bound(">", 0.5)},
        _saddle_values(runs, [run.on_plateaus for run in runs]),
        "untrained networks in place of plateaus",
        _saddle_values(runs, [np.arange(len(run.smallest)) == 0 for run in runs]),
        shares=["", _FLATTER],
        source=f"{FIRST_PAPER}; Hessian ours",
        not_tested="" if runs else "no curvature was measured in a run that solves the task after a plateau",
        note=_eigenvalues_note(runs),
    )


def _saddle_values(
    runs: Sequence[CurvedRun], snapshots: Sequence[Bool[np.ndarray, "snapshot"]]
) -> list[Float[np.ndarray, "run"]]:
    """Return the values of H3c's parts at some snapshots of each run."""
    values = []
    for run, inside in zip(runs, snapshots, strict=True):
        smallest = run.smallest[inside]
        flat = 2 * np.median(run.gradient[inside]) < run.gradient_in_falls
        values.append(((smallest < 0).all(), np.log10(np.median(np.abs(smallest)) / abs(run.smallest[-1])), flat))
    return list(np.array(values, dtype=float).reshape(-1, 3).T)


def _eigenvalues_note(runs: Sequence[CurvedRun]) -> str:
    if not runs:
        return ""
    _, logs, _ = _saddle_values(runs, [run.on_plateaus for run in runs])
    shares = [np.median(-run.smallest[run.on_plateaus] / run.largest[run.on_plateaus]) for run in runs]
    return (
        f"times smaller at the end: {', '.join(f'{ratio:.0f}' for ratio in 10**logs)}; smallest over largest "
        f"eigenvalue on the plateaus: {np.median(shares):.2g} (median)"
    )
