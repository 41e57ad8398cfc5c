"""What the study concludes from seeds made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mechclust.studies import get_study
from mechclust.studies.mossa.report import Results, tables_of
from mechclust.studies.mossa.results import SeedResults
from probes import ProbeResult
from tests.frozen import check_frozen
from tests.mechclust.studies.mossa.made import LAYERS, SEEN, measured
from tests.mechclust.studies.mossa.test_findings import noisy

STUDY = get_study("mossa")
PAPER = STUDY.preset("paper")


def projection(seed: int) -> ProbeResult:
    """Two layers of 18 states of six operations."""
    xy = torch.from_numpy(np.random.default_rng(seed).normal(size=(2, 18, 2)))
    axes = {"xy": ("site", "example", "dim"), "label": ("example",)}
    sites = ["blocks.0.hook_resid_post", "blocks.3.hook_resid_post"]
    coords = {"site": sites, "example": [str(i) for i in range(18)], "dim": ["x", "y"]}
    layers = dict(zip(sites, (1, 4), strict=True))
    return ProbeResult("Projection", {"xy": xy, "label": torch.arange(18) % 6}, axes, coords, layers)


def concluded(config: Any, results: Any) -> dict[str, Any]:
    analysis = STUDY.report(config, results)
    return {
        "notes": list(analysis.notes),
        **{finding.id: finding for finding in STUDY.findings(config, results)},
        **tables_of(config, results.runs),
        "captions": [panel.caption for panel in analysis.panels],
        **{panel.name: panel.figure for panel in analysis.panels},
    }


def of_runs(config: Any, runs: list[SeedResults]) -> dict[str, Any]:
    return concluded(config, Results(runs, {"base": projection(0), "tuned": projection(1)}))


def unlike(seed: int) -> SeedResults:
    """A seed whose tasks differ in accuracy, and that was tuned on other tasks than other seeds."""
    draw = np.random.default_rng(seed)
    seen = np.roll(SEEN, 4 * seed)
    return replace(
        measured(seed, dims=([160, 150, 12, 12, 12, 12, 12, 12], [10, 10, 12, 30 + seed, 30, 30, 30, 31])),
        accuracy={name: draw.random(24) for name in ("base", "tuned", "control")},
        chance=0.3 * draw.random(24),
        seen=seen,
        ceiling=draw.uniform(0.9, 1, (int(seen.sum()), LAYERS)),
        notes=(f"seed {seed} has 3 undefined values",) * seed,
    )


def of_unlike_seeds() -> dict[str, Any]:
    return of_runs(replace(PAPER, seeds=(3, 4, 5)), [unlike(seed) for seed in range(3)])


def of_random_seeds() -> dict[str, Any]:
    config = replace(STUDY.preset("lora"), seeds=(3, 4))
    return of_runs(config, [replace(noisy(seed), ceiling=None) for seed in range(2)])


def of_one_seed() -> dict[str, Any]:
    """Every task is seen, and there is no ceiling."""
    all_seen = np.ones(24, dtype=bool)
    run = replace(measured(2), seen=all_seen, ceiling=None, encoded=~all_seen)
    config = replace(STUDY.preset("layer-decay"), seeds=(9,))
    analysis = STUDY.report(config, Results([run], {"base": projection(0)}))
    return {"notes": list(analysis.notes)} | {panel.name: panel.figure for panel in analysis.panels}


CASES = {
    "mossa": of_unlike_seeds,
    "mossa at random": of_random_seeds,
    "mossa of one seed": of_one_seed,
}


@pytest.mark.parametrize("name", CASES)
def test_conclusions_are_the_recorded_ones(name: str) -> None:
    check_frozen(name, CASES[name])


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("has_ceiling", [True, False])
def test_the_caption_names_the_ceiling_where_one_is_drawn(has_ceiling: bool) -> None:
    run = unlike(0) if has_ceiling else replace(unlike(0), ceiling=None)
    analysis = STUDY.report(replace(PAPER, seeds=(3,)), Results([run], {"base": projection(0)}))
    assert ("(ceiling)" in analysis.panels[0].caption) == has_ceiling
