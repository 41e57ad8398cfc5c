"""Two stages: which of E3's cells (initial weights x optimiser x loss x rate) show them. Findings P4 to P4b."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Control, Finding, Part, mean_part
from mechclust.studies.topic_structure.arms import Cell
from mechclust.studies.topic_structure.config import LEAST_STEPS, TopicStructureConfig
from mechclust.studies.topic_structure.results import ArmRuns, TrainedRun, shares_of
from mechclust.studies.topic_structure.stages import two_stages

_HALF = Bound(">=", 0.5)
_PAPER = "Li, Li & Risteski; rule ours"
_SHARE = "W_V has made half of its total change from the start when W_K or W_Q has made a tenth of its own"
_STILL = "attention moved in none of its cells"

Places = Sequence[int]


def stage_findings(config: TopicStructureConfig, runs: ArmRuns) -> list[Finding]:
    """Return P4 to P4b. Bounds were written before any run on the seeds that they are judged by."""
    known, share = shares_of(config, runs)
    exchanged = np.array([[_exchanged(run) for run in runs[cell.arm]] for cell in known]).T
    moved = ~np.isnan(share).any(axis=0)
    still = [cell.arm.removeprefix("E3 ") for cell, ok in zip(known, moved, strict=True) if not ok]
    note = f"left out, in some seed attention hardly moved or training diverged: {', '.join(still)}" if still else ""
    near = {name: _where(known, moved, init="near-zero", optimiser=name) for name in ("SGD", "Adam")}
    squared = {"SGD, squared": _where(known, moved, init="near-zero", optimiser="SGD", objective="squared")}
    default = {"default start": _where(known, moved, init="default")}
    every_near = {"near-zero start": _where(known, moved, init="near-zero")}
    too_small = "" if config.steps >= LEAST_STEPS else "this size of the study cannot test it"
    return [
        Finding(
            id="P4",
            statement=f"E3, near-zero start, SGD or Adam: {_SHARE}, in every cell in which attention moves",
            source=_PAPER,
            parts=_lowest(share, near),
            control=Control("W_V and W_K or W_Q exchanged", _lowest(exchanged, near)),
            shown="headline",
            not_tested=too_small or _empty(near),
            note=note,
        ),
        Finding(
            id="P4a",
            statement=f"E3, near-zero start, SGD, squared loss: {_SHARE}, at every rate at which attention moves",
            source=_PAPER,
            parts=_lowest(share, squared),
            control=Control("W_V and W_K or W_Q exchanged", _lowest(exchanged, squared)),
            shown="table",
            not_tested=too_small or _empty(squared),
            note="; ".join(filter(None, ["implied by P4", note])),
        ),
        Finding(
            id="P4b",
            statement="E3, default start: this happens in no cell in which attention moves",
            source=_PAPER,
            parts=_highest(share, default),
            control=Control("near-zero start", _highest(share, every_near)),
            shown="table",
            not_tested=too_small or _empty(default),
            note=note,
        ),
    ]


def _exchanged(run: TrainedRun) -> float:
    """Return the share of ``W_K``'s or ``W_Q``'s change, the larger, when ``W_V`` has made a tenth of its own."""
    if not run.moves:
        return math.nan
    shares = [two_stages(run.changes, early=name, late=("W_V",)).early for name in ("W_K", "W_Q")]
    return float(np.nanmax(shares)) if np.isfinite(shares).any() else math.nan


def _where(known: Sequence[Cell], moved: np.ndarray, **wanted: str) -> Places:
    """Return the places of the cells with these factors in which attention moves in every seed."""
    places = []
    for place, cell in enumerate(known):
        if moved[place] and all(getattr(cell, factor) == value for factor, value in wanted.items()):
            places.append(place)
    return places


def _empty(groups: dict[str, Places]) -> str:
    return "" if any(groups.values()) else _STILL


def _lowest(share: Float[np.ndarray, "seed cell"], groups: dict[str, Places]) -> tuple[Part, ...]:
    """Judge the lowest share over the cells of each group."""
    parts = []
    for name, places in groups.items():
        values = share[:, list(places)].min(axis=1) if places else np.empty(0)
        parts.append(mean_part(f"{name}, lowest of {len(places)}", values, _HALF))
    return tuple(parts)


def _highest(share: Float[np.ndarray, "seed cell"], groups: dict[str, Places]) -> tuple[Part, ...]:
    """Judge the highest share over all cells."""
    (places,) = groups.values()
    values = share[:, list(places)].max(axis=1) if places else np.empty(0)
    return (mean_part("highest", values, Bound("<", 0.5)),)
