"""What the study concludes from runs made by hand with different values for every seed, checkpoint and layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mechclust.studies.task_clusters import figures
from mechclust.studies.task_clusters.findings import findings_of
from mechclust.studies.task_clusters.results import by_arm, headline
from probes import ProbeResult
from tests.frozen import check_frozen
from tests.mechclust.studies.task_clusters.test_findings import CONFIG, ideal_run, random_run, runs

ONE_SEED = replace(CONFIG, seeds=(3,), arms=("private", "shared"))


def projection(seed: int) -> ProbeResult:
    """Two layers of five states of three tasks."""
    xy = torch.from_numpy(np.random.default_rng(seed).normal(size=(2, 5, 2)))
    values = {"xy": xy, "label": torch.tensor([0, 2, 1, 0, 2])}
    sites = ["blocks.0.hook_resid_pre", "blocks.1.hook_resid_post"]
    axes = {"xy": ("site", "example", "dim"), "label": ("example",)}
    coords = {"site": sites, "example": list("abcde"), "dim": ["x", "y"]}
    return ProbeResult("Projection", values, axes, coords, dict(zip(sites, (0, 2), strict=True)))


def of_all_arms() -> dict[str, Any]:
    found = runs(random_run)
    arms = by_arm(CONFIG, found)
    return {
        "headline": headline(CONFIG, found),
        **{finding.id: finding for finding in findings_of(CONFIG, found)},
        "ari over training": figures.ari_over_training_figure(arms["private"][:2]),
        "ari by layer": figures.ari_by_layer_figure(arms),
        "projections": figures.projections_figure({0: projection(0), 40: projection(1), 100: projection(2)}),
        "accuracy and loss": figures.accuracy_and_loss_figure(found),
    }


def of_one_seed() -> dict[str, Any]:
    found = runs(ideal_run, ONE_SEED)
    return {
        "headline": headline(ONE_SEED, found),
        **{finding.id: finding for finding in findings_of(ONE_SEED, found)},
        "ari by layer": figures.ari_by_layer_figure(by_arm(ONE_SEED, found)),
    }


CASES = {"task-clusters": of_all_arms, "task-clusters of one seed": of_one_seed}


@pytest.mark.parametrize("name", CASES)
def test_conclusions_are_the_recorded_ones(name: str) -> None:
    check_frozen(name, CASES[name])
