"""Two stages: which of E3's cells (initial weights x optimiser x loss x rate) show them. Findings P4 to P4f."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float

from mechclust.evidence import Bound, Finding
from mechclust.evidence.compared import compared
from mechclust.evidence.findings import untested_findings
from mechclust.report.text import list_text
from mechclust.studies.topic_structure.arms import Cell, released_arm
from mechclust.studies.topic_structure.config import LEAST_STEPS, TopicStructureConfig
from mechclust.studies.topic_structure.results import ArmRuns, TrainedRun, shares_of
from mechclust.studies.topic_structure.stages import two_stages

_PAPER = "Li, Li & Risteski; rule ours"
_SHARE = "W_V makes half of its change before W_K or W_Q makes a tenth"
_UNMOVED = "attention moved in none of its cells"

_Shares = Float[np.ndarray, "seed cell"]
_Cells = Bool[np.ndarray, "cell"]


def stage_findings(config: TopicStructureConfig, runs: ArmRuns) -> list[Finding]:
    """Return P4 to P4f. Bounds were written before any run on the seeds that they are judged by."""
    cells, share = shares_of(config, runs)
    exchanged = np.array([[_exchanged_share(run) for run in runs[cell.arm]] for cell in cells]).T
    moved = ~np.isnan(share).any(axis=0)
    near = {name: moved & _chosen(cells, init="near-zero", optimiser=name) for name in ("SGD", "Adam")}
    default = moved & _chosen(cells, init="default")
    every_near = moved & _chosen(cells, init="near-zero")
    note = _left_out(cells, moved)
    findings = [
        replace(_early(share, exchanged, near), note=note),
        replace(_late(share, default, every_near), note=note),
        _as_released(config, runs),
    ]
    if config.steps < LEAST_STEPS:
        return untested_findings(findings)
    return findings


def _exchanged_share(run: TrainedRun) -> float:
    """Return the share of ``W_K``'s or ``W_Q``'s change, the larger, when ``W_V`` has made a tenth of its own."""
    if not run.moves:
        return math.nan
    shares = [two_stages(run.changes, early=name, late=("W_V",)).early for name in ("W_K", "W_Q")]
    return float(np.nanmax(shares)) if np.isfinite(shares).any() else math.nan


def _chosen(cells: Sequence[Cell], **wanted: str) -> _Cells:
    """Return which cells have these factors."""
    return np.array([all(getattr(cell, factor) == level for factor, level in wanted.items()) for cell in cells])


def _left_out(cells: Sequence[Cell], moved: _Cells) -> str:
    names = [cell.arm.removeprefix("E3 ") for cell, in_all in zip(cells, moved, strict=True) if not in_all]
    if not names:
        return ""
    return f"left out, in some seed attention hardly moved or training diverged: {', '.join(names)}"


def _early(share: _Shares, exchanged: _Shares, groups: Mapping[str, _Cells]) -> Finding:
    """Return the finding on the lowest share over the cells of each group."""
    return compared(
        "P4",
        f"E3, near-zero start, SGD or Adam: {_SHARE}, in every cell in which attention moves",
        {f"{name}, lowest of {chosen.sum()}": Bound(">=", 0.5) for name, chosen in groups.items()},
        [_of_cells(share, chosen).min(axis=1) for chosen in groups.values()],
        "W_V and W_K or W_Q exchanged",
        [_of_cells(exchanged, chosen).min(axis=1) for chosen in groups.values()],
        source=_PAPER,
        shown="page",
        not_tested="" if np.any(list(groups.values())) else _UNMOVED,
    )


def _late(share: _Shares, default: _Cells, near: _Cells) -> Finding:
    """Return the finding on the highest share over all cells with the default start."""
    return compared(
        "P4b",
        f"E3, default start: {_SHARE}, in no cell in which attention moves",
        {"highest": Bound("<", 0.5)},
        [_of_cells(share, default).max(axis=1)],
        "near-zero start",
        [_of_cells(share, near).max(axis=1)],
        source=_PAPER,
        shown="table",
        not_tested="" if default.any() else _UNMOVED,
    )


def _of_cells(share: _Shares, chosen: _Cells) -> Float[np.ndarray, "_ _"]:
    """Return the shares in the chosen cells; without seeds if there are none."""
    return share[:, chosen] if chosen.any() else np.empty((0, 1))


def _as_released(config: TopicStructureConfig, runs: ArmRuns) -> Finding:
    """Return the finding on the network as released, at each rate at which all seeds have a share."""
    share = {}
    left_out = []
    for rate in config.released_rates:
        of_rate = np.array([run.early_share for run in runs[released_arm(rate)]])
        lost = int(np.isnan(of_rate).sum())
        if lost:
            left_out.append(f"{rate:g} ({lost} of {len(of_rate)} seeds)")
        else:
            share[rate] = of_rate
    rule = "left out as in P4, a rule that was added after the results had been seen"
    return compared(
        "P4f",
        f"E3, as released (added vector N(0, 1)), near-zero start, SGD, cross-entropy: {_SHARE}, at "
        f"{list_text(f'rate {rate:g}' for rate in share or config.released_rates)}",
        {f"rate {rate:g}": Bound(">=", 0.5) for rate in share},
        list(share.values()),
        "W_V and W_K or W_Q exchanged",
        [np.array([_exchanged_share(run) for run in runs[released_arm(rate)]]) for rate in share],
        source=_PAPER,
        shown="headline",
        note=f"attention hardly moved or training diverged at rate {', '.join(left_out)}: {rule}" if left_out else "",
        not_tested="" if share else _UNMOVED,
    )
