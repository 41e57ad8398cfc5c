"""Two stages: which of E3's cells (initial weights x optimiser x loss x rate) show them. Findings P4 to P4e."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mechclust.evidence import Finding
from mechclust.report.draws import Data, Draw, exchanged_by_column, spread_like
from mechclust.report.findings import Finding, Parts
from mechclust.evidence.bounds import Bound
from mechclust.studies.topic_structure.arms import OBJECTIVES, Cell
from mechclust.studies.topic_structure.config import LEAST_STEPS, TopicStructureConfig
from mechclust.studies.topic_structure.results import ArmRuns, shares_of

_HALF = Bound(">=", 0.5)
_ABOVE = Bound(">", 0)
_PAPER = "Li, Li & Risteski; rule ours"
_SHARE = "W_V has made half of its total change from the start when W_K or W_Q has made a tenth of its own"


def stage_findings(config: TopicStructureConfig, runs: ArmRuns) -> list[Finding]:
    """P4 to P4e. Bounds were written before any run on the seeds that they are judged by."""
    known, share = shares_of(config, runs)
    moved = ~np.isnan(share).any(axis=0)
    still = [cell.arm.removeprefix("E3 ") for cell, ok in zip(known, moved, strict=True) if not ok]
    note = f"left out, in some seed attention hardly moved or training diverged: {', '.join(still)}" if still else ""
    usable = [i for i in range(len(known)) if moved[i]]

    def where(**wanted: str) -> list[int]:
        return [i for i in usable if all(getattr(known[i], key) == value for key, value in wanted.items())]

    near, default = where(init="near-zero"), where(init="default")
    of = {name: where(init="near-zero", optimiser=name) for name in ("SGD", "Adam")}
    squared = where(init="near-zero", optimiser="SGD", objective="squared")
    found = [
        _every(
            "P4", f"E3, near-zero start, SGD or Adam: {_SHARE}, in every cell in which attention moves", _PAPER,
            [(f"{name}, lowest of {len(at)}", at) for name, at in of.items()], _HALF, note,
        ),
        _every(
            "P4a", f"E3, near-zero start, SGD, squared loss: {_SHARE}, at every rate at which attention moves",
            _PAPER, [(f"lowest of {len(squared)}", squared)], _HALF, "; ".join(filter(None, ["implied by P4", note])),
        ),
        _every(
            "P4b", "E3, default start: this happens in no cell in which attention moves", _PAPER,
            [(f"highest of {len(default)}", default)], Bound("<", 0.5), note,
        ),
    ]  # fmt: skip
    pairs = {
        "P4c": ("a near-zero start instead of the default one", _pairs(known, near, default, "init")),
        "P4d": ("SGD instead of Adam", _pairs(known, where(optimiser="SGD"), where(optimiser="Adam"), "optimiser")),
        "P4e": (
            "the squared loss instead of cross-entropy",
            _pairs(known, where(objective=OBJECTIVES[1]), where(objective=OBJECTIVES[0]), "objective"),
        ),
    }
    findings = [(finding, {"share": share[:, at]}) for finding, at in found]
    findings += [
        (_effect(id, what, f"{len(a)} pairs of cells"), {"with": share[:, a] >= 0.5, "without": share[:, b] >= 0.5})
        for id, (what, (a, b)) in pairs.items()
    ]
    return [_judged(config, *finding) for finding in findings]


def _judged(config: TopicStructureConfig, finding: Finding[Data], data: Data) -> Finding:
    if next(iter(data.values())).shape[1] == 0:
        return finding.judged(data, tested=False, why_not="attention moved in none of its cells")
    return finding.judged(data, tested=config.test_findings and config.steps >= LEAST_STEPS)


def _every(
    id: str, statement: str, source: str, groups: Sequence[tuple[str, list[int]]], bound: Bound, note: str
) -> tuple[Finding[Data], list[int]]:
    """A finding on every cell of some groups: the worst of each must satisfy the bound."""
    worst: Callable[..., np.ndarray] = np.min if bound.relation.startswith(">") else np.max
    ends = np.cumsum([0, *(len(at) for _, at in groups)])
    spans = [(name, slice(a, b)) for (name, _), a, b in zip(groups, ends[:-1], ends[1:], strict=True)]

    def parts(data: Data) -> Parts:
        x = data["share"]
        return [(name, worst(x[:, at], axis=1).tolist() if x[:, at].size else [], bound) for name, at in spans]

    planted = _two_stages_everywhere if bound is _HALF else _no_stages
    finding = Finding(
        id, statement, source, parts,
        null=_one_at(planted, bound),
        what=f"these, but for one cell, drawn at random, moved just outside {bound.value:g}, with its measured spread",
        planted=planted,
        planted_what="shares drawn uniformly from .6 to 1" if bound is _HALF else "shares drawn uniformly from 0 to .4",
        note=note,
    )  # fmt: skip
    return finding, [i for _, at in groups for i in at]


def _one_at(planted: Draw, bound: Bound) -> Draw:
    """Shares as planted, but for one cell, drawn at random, whose mean is just outside the bound."""

    def draw(data: Data, rng: np.random.Generator) -> Data:
        share = planted(data, rng)["share"]
        cell = int(rng.integers(share.shape[1]))
        outside = bound.value + (-1e-9 if bound is _HALF else 1e-9)
        share[:, cell] = outside + spread_like(data["share"][:, cell], rng)
        return {**data, "share": share}

    return draw


def _two_stages_everywhere(data: Data, rng: np.random.Generator) -> Data:
    return {**data, "share": rng.uniform(0.6, 1, data["share"].shape)}


def _no_stages(data: Data, rng: np.random.Generator) -> Data:
    return {**data, "share": rng.uniform(0, 0.4, data["share"].shape)}


def _pairs(known: Sequence[Cell], one: list[int], other: list[int], factor: str) -> tuple[list[int], list[int]]:
    """Cells that differ in one factor; for the optimiser, learning rates are paired by rank."""

    def rest(i: int) -> tuple[object, ...]:
        of = sorted({cell.rate for cell in known if cell.optimiser == known[i].optimiser})
        rate = of.index(known[i].rate) if factor == "optimiser" else known[i].rate
        return (*(getattr(known[i], name) for name in ("init", "optimiser", "objective") if name != factor), rate)

    partner = {rest(i): i for i in other}
    matched = [(i, partner[rest(i)]) for i in one if rest(i) in partner]
    return [i for i, _ in matched], [j for _, j in matched]


def _effect(id: str, what: str, note: str) -> Finding[Data]:
    def parts(data: Data) -> Parts:
        if not data["with"].size:
            return [("", [], _ABOVE)]
        change = data["with"].mean(axis=0) - data["without"].mean(axis=0)
        return [("", change.tolist(), _ABOVE)]

    def planted(data: Data, rng: np.random.Generator) -> Data:
        shape = data["with"].shape
        return {"with": rng.random(shape) < 0.8, "without": rng.random(shape) < 0.2}

    return Finding(
        id, f"E3: {what} raises the share of runs with two stages (difference in each pair of cells that differ in "
        "nothing else, learning rates of SGD and Adam paired by rank; interval over pairs)", "ours", parts,
        exchanged_by_column("with", "without"), "in each pair of cells, the two exchanged at random", planted,
        "two stages in 80% of the runs with it and 20% of those without", chance="0", note=note,
    )  # fmt: skip
