"""Which part is ready first, where the gradient is large, and how plateaus curve: H2 and H3."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import numpy as np
from jaxtyping import Bool, Float

from mechclust.evidence import Bound, Finding, Part, mean_part, share_part
from mechclust.studies.clustering_heads.config import SOLVED, ClusteringHeadsConfig
from mechclust.studies.clustering_heads.controls import FIRST_PAPER, control_of
from mechclust.studies.clustering_heads.curves import first_above
from mechclust.studies.clustering_heads.results import HeadsResults, TrainedNetwork

_SHUFFLED = "epochs in one random order"

GradientInFalls = tuple[Float[np.ndarray, "snapshot"], Bool[np.ndarray, "snapshot"]]


def dynamics_findings(config: ClusteringHeadsConfig, results: HeadsResults) -> list[Finding]:
    """Return H2, H2b, H3 and H3c."""
    return [*_order(results), _gradient(config, results), _saddle(config, results)]


def _order(results: HeadsResults) -> list[Finding]:
    networks = results.solved
    not_tested = "" if networks else "no network is solved"
    return [
        Finding(
            id="H2",
            statement="solved networks: the head is ready before the classifier (share of networks whose head solves "
            "the task with the final classifier at an earlier epoch than the classifier does with the final head)",
            source=f"{FIRST_PAPER}, section on training phases; stitching ours",
            parts=_head_first(networks),
            control=control_of(_SHUFFLED, _head_first(networks, shuffled=True)),
            not_tested=not_tested,
            note=_dates_note(networks),
        ),
        Finding(
            id="H2b",
            statement="solved networks, mean over the epochs before the task is solved: accuracy of the epoch's head "
            "with the final classifier, minus that of the reverse",
            source=f"{FIRST_PAPER}; ours",
            parts=_head_ahead(networks),
            control=control_of(_SHUFFLED, _head_ahead(networks, shuffled=True)),
            not_tested=not_tested,
        ),
    ]


def _gradient(config: ClusteringHeadsConfig, results: HeadsResults) -> Finding:
    runs = list(results.full_batch.values())
    pairs = [run.gradient_in_drops(config.task.p) for run in runs]
    found = [pair for pair in pairs if pair is not None]
    counts = [len(run.drops(config.task.p)) for run in runs]
    falls = ", ".join(f"{count} in {counts.count(count)}" for count in sorted(set(counts)))
    return Finding(
        id="H3",
        statement="full batch: the gradient norm is more than twice as large where the loss falls as on the plateaus "
        "before (log10 of the ratio of medians)",
        source=f"{FIRST_PAPER}, figure of gradient norms; its settings are not known",
        parts=_larger_in_falls(found),
        control=control_of("gradient norms moved by half of each run", _larger_in_falls(found, moved=True)),
        not_tested="" if runs else "the full-batch run was not made",
        note=f"falls of the loss: {falls} of {len(runs)} runs" if runs else "",
    )


def _saddle(config: ClusteringHeadsConfig, results: HeadsResults) -> Finding:
    measured = results.saddles(config.task.p)
    plateau, end = np.array(list(measured.values()), dtype=float).reshape(-1, 2).T
    start = np.array([results.curvature_at_start(seed) for seed in measured])
    return Finding(
        id="H3c",
        statement="full batch, runs that solve the task: the plateau is a saddle (minus the smallest eigenvalue of the "
        "Hessian over the largest, median on the plateaus minus the value at the end of training)",
        source=f"{FIRST_PAPER}; Hessian ours",
        parts=_curves_down(plateau, end),
        control=control_of("untrained networks in place of plateaus", _curves_down(start, end)),
        not_tested="" if measured else "no curvature was measured in a run that solves the task after a plateau",
        note=f"medians {np.median(plateau):.3g} and {np.median(end):.3g}" if measured else "",
    )


# ---- what is measured ----


def _stitched(network: TrainedNetwork, part: str, shuffled: bool) -> Float[np.ndarray, "epoch"]:
    """Return the accuracy of each epoch's head or classifier with the final version of the other part."""
    curve = network.stitching[f"{part}_accuracy"].numpy()
    return curve[np.random.default_rng(0).permutation(len(curve))] if shuffled else curve


def _ready(networks: Sequence[TrainedNetwork], shuffled: bool = False) -> Float[np.ndarray, "network part"]:
    """Return the epoch at which head and classifier are ready."""
    dates = [
        [first_above(_stitched(network, part, shuffled), SOLVED) for part in ("head", "classifier")]
        for network in networks
    ]
    return np.array(dates, dtype=float).reshape(-1, 2)


def _head_first(networks: Sequence[TrainedNetwork], *, shuffled: bool = False) -> tuple[Part, ...]:
    """Judge whether the head is ready first, in networks whose parts are not ready at the same epoch."""
    head, classifier = _ready(networks, shuffled).T
    apart = head != classifier
    return (share_part("", head[apart] < classifier[apart], Bound(">", 0.5)),)


def _head_ahead(networks: Sequence[TrainedNetwork], *, shuffled: bool = False) -> tuple[Part, ...]:
    leads = []
    for network in networks:
        if network.solved_at:
            lead = _stitched(network, "head", shuffled) - _stitched(network, "classifier", shuffled)
            leads.append(lead[: network.solved_at].mean())
    return (mean_part("", leads, Bound(">", 0)),)


def _larger_in_falls(pairs: Sequence[GradientInFalls], *, moved: bool = False) -> tuple[Part, ...]:
    ratios = []
    for gradient, falls in pairs:
        norms = np.roll(gradient, len(gradient) // 2) if moved else gradient
        ratios.append(np.log10(np.median(norms[falls]) / np.median(norms[~falls])))
    return (mean_part("", ratios, Bound(">", math.log10(2))),)


def _curves_down(plateau: Float[np.ndarray, "run"], end: Float[np.ndarray, "run"]) -> tuple[Part, ...]:
    return (
        mean_part("", plateau - end, Bound(">", 0)),
        mean_part("on the plateaus", plateau, Bound(">=", 0.01)),
    )


def _dates_note(networks: Sequence[TrainedNetwork]) -> str:
    if not networks:
        return ""
    head, classifier = _ready(networks).T
    solved_at = median(network.solved_or_end for network in networks)
    return (
        f"{(head == classifier).sum()} networks in which both are ready at the same epoch are left out; median lead "
        f"{np.median(classifier - head):g} epochs; ready at epoch {np.median(head):g} and {np.median(classifier):g}; "
        f"both parts of one epoch solve the task at {solved_at:g} (medians)"
    )
