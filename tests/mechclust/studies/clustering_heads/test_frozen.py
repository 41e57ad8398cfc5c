"""What the study concludes from runs made by hand, of every arm and of few, with seeds of unequal length and number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mechclust.studies import get_study
from mechclust.studies.clustering_heads.ablations import Ablations
from mechclust.studies.clustering_heads.config import (
    IDEAL_POSITIONS,
    MITIGATIONS,
    SCRATCH,
    TRANSFER,
    ClusteringHeadsConfig,
)
from mechclust.studies.clustering_heads.figures import draw_figures
from mechclust.studies.clustering_heads.results import HeadsResults, TrainedNetwork
from mechclust.studies.clustering_heads.study import notes
from mechclust.studies.study import judge_results
from tests.frozen import check_frozen
from tests.mechclust.studies.clustering_heads import made_runs as made

STUDY = get_study("clustering-heads")
GRID = Ablations(seeds=(0, 1, 2), batch_sizes=(16, 64), lrs=(1e-3,), widths=(8,), dropouts=(0.5,), discounts=(0.1, 0.3))
CONFIG = replace(made.CONFIG, sandbox=0, ablations=GRID)


def with_ratio(network: TrainedNetwork, ratio: float) -> TrainedNetwork:
    """Give the head a within-ratio of its multiset, and different gradients to all groups of parameters."""
    ratios = torch.full((1, 1, 2), ratio, dtype=torch.float64)
    axes = {**network.head.axes, "within_ratio": ("layer", "head", "label")}
    coords = {"layer": ["0"], "head": ["0"], "label": ["multiset", "sum"]}
    values = {**network.head.values, "within_ratio": ratios}
    norms = np.outer(np.linspace(3, 0.1, made.N), [1, 2 * ratio, 3, 4])
    curves = {**network.dynamics.values, "gradient_norm": torch.from_numpy(norms)}
    head = replace(network.head, values=values, axes=axes, coords=coords)
    return replace(network, head=head, dynamics=replace(network.dynamics, values=curves))


def networks() -> list[TrainedNetwork]:
    """Return seven networks: five solved ones of every kind, one in between and one that is weak."""
    mixed = [
        made.network(line=0.05, textbook=True, solved=120, spikes=(170, 200, 230, 260, 290), ready=(110, 130)),
        made.network(line=0.2, gone=[(1, 0, 0, 0, 1, 0), (0, 0, 1, 0, 1, 0)], spikes=(180, 300), follows=0.9),
        made.network(line=None, plane=0.1, solved=170, ready=(190, 150), by_sum=0.3, draws=(0.2, 0.5), classes=7),
        made.network(line=None, gone=[(1, 0, 1, 0, 1, 1)], untrained=0.2, ready=((3, 9), 20)),
        made.network(line=0.24, plane=0.3, untrained=0.3, spikes=(390,), ready=(350, 160)),
        made.network(line=0.25, accuracy=0.9, follows=0.2),
        made.weak(plane=0.2, untrained=0.1),
    ]
    return [with_ratio(network, 10.0 ** -(i + 1)) for i, network in enumerate(mixed)]


def every_arm() -> HeadsResults:
    full_batch = {
        4: made.full_batch(),
        5: made.full_batch(falls=((100, 130),), peak=7.0),
        6: made.full_batch(accuracy=0.8, falls=((50, 60), (100, 120), (200, 220)), gradient_from=9),
        7: made.full_batch(falls=((60, 80), (90, 120), (210, 230)), peak=0.3),
    }
    curved = {4: made.full_batch(at_start=3), 7: made.full_batch(falls=((60, 80), (90, 120), (210, 230)), peak=0.3)}
    curvature = {4: made.curved((-0.2, -0.3, -0.5), -1e-3), 7: made.curved((0.1, -0.04, -0.02), -1e-5)}
    heads = {
        0: made.lattice(0.1, textbook=True),
        1: made.lattice(None),
        2: made.lattice(0.1),
        3: made.lattice(None, 0.2),
    }
    final = {
        IDEAL_POSITIONS: made.ends(True, True, False, True),
        "bias 0": made.ends(True, False),
        "batch 16": made.ends(True, True, False),
        "batch 64": {0: (1.0, 0.9), 1: (1.0, 0.995)},
        "lr 0.001": {0: (0.7, 0.6)},
        "width 8": {0: (0.7, 0.6), 1: (0.9, 0.99), 2: (0.9, 0.98)},
        "dropout 0": made.ends(True, False, True),
        "dropout 0.5": made.ends(False, True),
        "discount 0.3": made.ends(True, True),
        SCRATCH: made.ends(True, False, True),
        TRANSFER: made.ends(True, True, True, False),
    }
    mitigated = {
        MITIGATIONS[0]: {0: made.training(spikes=(200,)), 1: made.training(spikes=(220, 250)), 2: made.training()},
        MITIGATIONS[1]: {0: made.training(solved=300), 1: made.training(accuracy=0.6), 2: made.training(spikes=(330,))},
        MITIGATIONS[2]: {i: made.training(spikes=(160, 210 + i, 380)) for i in range(3)},
    }
    curricula = [(0.25, 1.0), (1.0, 0.99), (0.5, 0.3), (0.99, 0.98)]
    curriculum = {i: made.curriculum(*ends, plain=5.0 * i, matched=3.0 - i) for i, ends in enumerate(curricula)}
    return made.results_of(
        *networks(),
        full_batch=full_batch,
        curved=curved,
        curvature=curvature,
        ideal_positions=heads,
        second_stage={0: made.training(solved=60), 1: made.training(solved=90, accuracy=0.7), 9: made.training()},
        final=final,
        mitigated=mitigated,
        curriculum=curriculum,
    )


def concluded(config: ClusteringHeadsConfig, results: HeadsResults) -> dict[str, Any]:
    return {
        "notes": notes(config),
        **{finding.id: finding for finding in judge_results(STUDY, config, results)},
        **draw_figures(config, results),
    }


def of_every_arm() -> dict[str, Any]:
    return concluded(CONFIG, every_arm())


def of_unsolved() -> dict[str, Any]:
    """No network solves the task, no loss falls, and a modulus is as large as that of the paper's."""
    unsolved = [with_ratio(made.weak(accuracy=accuracy), 0.1) for accuracy in (0.75, 0.76, 0.5)]
    results = made.results_of(*unsolved, full_batch={2: made.full_batch(falls=(), accuracy=0.5)})
    return concluded(replace(CONFIG, task=replace(CONFIG.task, length=30)), results)


def of_one_network() -> dict[str, Any]:
    """One network solves the task and has one spike, and its accuracies and dates are at the bounds."""
    one = with_ratio(made.network(line=0.25, accuracy=1.0, spikes=(200,), gone=[(1, 1, 0, 0, 0, 0)]), 0.2)
    results = made.results_of(one, final={"batch 16": {0: (1.0, 0.99)}}, curriculum={0: made.curriculum(0.99, 0.99)})
    return concluded(replace(CONFIG, seeds=(0,), test_findings=False), results)


CASES = {
    "clustering-heads": of_every_arm,
    "clustering-heads unsolved": of_unsolved,
    "clustering-heads of one network": of_one_network,
}


@pytest.mark.parametrize("name", CASES)
def test_conclusions_are_the_recorded_ones(name: str) -> None:
    check_frozen(name, CASES[name])
