"""The findings on measurements made by hand: values, and where they hold or fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.stats import spearmanr

from mechclust.evidence import Bound, check_part
from mechclust.evidence.finding_tables import findings_markdown_table
from mechclust.studies.cluster_factors import ClusterFactorsConfig
from mechclust.studies.cluster_factors.config import (
    ARMS,
    CONSTANT,
    OVERLAPS,
    PRIVATE,
    PRIVATE_WIDE,
    PRIVATE_Y,
    SHARED,
    SHARED_WIDE,
    SHARED_Y,
    TWO,
    measured_steps,
    overlap_arm,
    task_of,
)
from mechclust.studies.cluster_factors.figures import BOTH, NEITHER, OUTPUT, TASK, UNDECIDED, phases
from mechclust.studies.cluster_factors.findings import findings_of
from mechclust.studies.cluster_factors.measurements import CURVES, probes_of
from mechclust.studies.cluster_factors.results import ArmResults
from mechclust.studies.cluster_factors.swap import KINDS, POSITIONS
from mechclust.studies.study import Job
from tasks import InstructionFollowing

CONFIG = ClusterFactorsConfig(
    seeds=(200, 201, 202),
    task=InstructionFollowing(n_tasks=12, variants=20, n_outputs=5, n_eval_tasks=12, n_eval=100),
)
STEPS = np.array(measured_steps(CONFIG))
EARLY = STEPS.tolist().index(100)
LAYERS = np.arange(7)
ELSEWHERE = {2, 3, 4, 6, 7, 10}  # T3 is gone; task-clusters tests the others
IDS = [f"T{i}" for i in range(1, 25) if i not in ELSEWHERE]
CHECKS = {"T1", "T5", "T8"}
OVERLAP_ARMS = [overlap_arm(overlap) for overlap in OVERLAPS]


@dataclass(frozen=True)
class Run:
    """Measurements of one network: as ``ArmResults``, without the axis of the seeds."""

    steps: np.ndarray
    ari: dict[str, np.ndarray]
    null: dict[str, np.ndarray]
    linear: np.ndarray
    accuracy: np.ndarray
    became: np.ndarray


Runs = dict[str, list[Run]]
Change = Callable[[Run], Run]


def stacked(of_arm: list[Run]) -> ArmResults:
    """Return the results of an arm whose seeds have these measurements."""

    def curves(name: str) -> dict[str, np.ndarray]:
        return {curve: np.stack([getattr(run, name)[curve] for run in of_arm]) for curve in of_arm[0].ari}

    return ArmResults(
        steps=STEPS,
        ari=curves("ari"),
        null=curves("null"),
        linear=np.stack([run.linear for run in of_arm]),
        accuracy=np.stack([run.accuracy for run in of_arm]),
        became=np.stack([run.became for run in of_arm]),
    )


def results_of(found: Runs) -> dict[str, ArmResults]:
    return {arm: stacked(of_arm) for arm, of_arm in found.items()}


def curves_of(arm: str) -> list[str]:
    return [curve for curve, (probe, _) in CURVES.items() if probe in probes_of(CONFIG, arm)]


def random_run(arm: str, seed: int) -> Run:
    """A run in which every seed, step, layer, position and kind has a value of its own."""
    draw = np.random.default_rng([seed, list(ARMS).index(arm)])
    curves = curves_of(arm)
    shape = (len(STEPS), len(LAYERS))
    ari = {name: draw.random(shape) for name in curves}
    draw.random((len(curves), *shape))  # the recorded conclusions are of the draws after these
    return Run(
        steps=STEPS,
        ari=ari,
        null={name: np.sort(0.2 * draw.random((*shape, 2))) for name in curves},
        linear=draw.random(shape),
        accuracy=draw.random(len(STEPS)),
        became=draw.random((len(POSITIONS), len(KINDS), len(LAYERS))),
    )


def ideal_run(arm: str, seed: int) -> Run:
    """A run in which every finding holds and no control does, with noise of .01."""
    draw = np.random.default_rng([seed, list(ARMS).index(arm)])
    grown = np.linspace(0, 1, len(STEPS)) ** 0.3
    overlap = ARMS[arm].task.get("overlap", 0.0)
    depth = LAYERS / LAYERS[-1]

    def curve(start: float, end: np.ndarray | float) -> np.ndarray:
        return start + grown[:, None] * (np.asarray(end) - start) * np.ones(len(LAYERS))

    task = curve(0.06, 0.1 + (0.7 - 0.6 * overlap) * depth)
    if overlap == 0:
        task[EARLY, 1:3] = task[-1, 1:3] + 0.2
        task[EARLY, 5:] = task[-1, 5:] - 0.2
    ari = {
        "x task": task,
        "x output": curve(0.05, 0.1 + (0.8 if overlap else 0.5) * depth),
        "x input": curve(0.1, 1 - 0.85 * depth),
        "x task|output": curve(0.05, 0.15),
        "x output|task": curve(0.05, 0.75),
        "instruction task": curve(0.1, 0.3 + 0.6 * depth),
        "mean task": curve(0.65, 0.9),
        "mean output": curve(0.05, 0.3),
        "mean input": curve(0.05, 0.1),
    }
    ari = {name: x + draw.normal(0, 0.01, x.shape) for name, x in ari.items() if name in curves_of(arm)}
    ari["x task"][:, 0] = 0.11
    if arm == SHARED_Y:
        ari["instruction task"] = ari["instruction task"] * 0.3
    became = draw.uniform(0, 0.02, (len(POSITIONS), len(KINDS), len(LAYERS)))
    if overlap == 0:
        became[POSITIONS.index("input"), KINDS.index("task"), 4:] += 0.8
    return Run(
        steps=STEPS,
        ari=ari,
        null={name: np.broadcast_to([0.02, 0.05], (*x.shape, 2)) for name, x in ari.items()},
        linear=curve(0.2, 0.97) + draw.uniform(0, 0.01, (len(STEPS), len(LAYERS))),
        accuracy=np.linspace(0, 0.99 - 0.005 * draw.random(), len(STEPS)),
        became=became,
    )


def runs(make: Callable[[str, int], Run] = ideal_run, **changes: Change) -> Runs:
    """Runs by arm, for each seed; the names of changed arms have underscores."""
    made = {}
    for arm in ARMS:
        change = changes.get(arm.replace("-", "_").replace(".", "_"), _as_it_is)
        made[arm] = [change(make(arm, seed)) for seed in CONFIG.seeds]
    return made


def _as_it_is(run: Run) -> Run:
    return run


def changed(changes: dict[str, Change]) -> Runs:
    return runs(**{arm.replace("-", "_").replace(".", "_"): change for arm, change in changes.items()})


def edited(**curves: float | np.ndarray) -> Change:
    """Set curves at the end, in layers 1 to 6; names have ``_`` for a space."""

    def change(run: Run) -> Run:
        ari = {name: x.copy() for name, x in run.ari.items()}
        for name, value in curves.items():
            ari[name.replace("_", " ")][-1, 1:] = value
        return replace(run, ari=ari)

    return change


@pytest.fixture(scope="module")
def ideal() -> Runs:
    return runs()


# ---- values ----


def expected_values(found: Runs) -> dict[str, tuple[list[list[float]], list[list[float]] | None]]:
    """Return the values of every finding's parts and of its control's, by indices written out for six layers."""

    def end(arm: str, curve: str, layer: int = 6, step: int = -1) -> list[float]:
        return [run.ari[curve][step][layer] for run in found[arm]]

    def apart(arm: str, one: str, other: str, step: int = -1) -> list[float]:
        return [a - b for a, b in zip(end(arm, one, 6, step), end(arm, other, 6, step), strict=True)]

    def rank(seed: int, step: int) -> float:
        ari = [found[arm][seed].ari["x task"][step][6] for arm in OVERLAP_ARMS]
        return float(spearmanr(OVERLAPS, ari).statistic)

    def migrate(arm: str) -> list[list[float]]:
        ends = [(run.ari["x task"][EARLY], run.ari["x task"][-1]) for run in found[arm]]
        low = [(a[1] + a[2] - b[1] - b[2]) / 2 for a, b in ends]
        return [low, [(b[5] + b[6] - a[5] - a[6]) / 2 for a, b in ends]]

    def became(arm: str, kind: int) -> list[list[float]]:
        return [run.became[1][kind].tolist()[1:] for run in found[arm]]  # position 1: x

    def effect(arm: str) -> list[float]:
        kinds = zip(*(became(arm, kind) for kind in range(3)), strict=True)
        return [max(task) - max(*random, *halves) for task, random, halves in kinds]

    def upper(kind: int) -> list[float]:
        return [sum(s[3:]) / 3 - sum(s[:3]) / 3 for s in became(PRIVATE, kind)]

    def linear(step: int) -> list[list[float]]:
        return [[run.linear[step][6] for run in found[SHARED]], end(SHARED, "x task", 6, step)]

    def over_overlaps(label: str, layer: int, seed: int, step: int) -> float:
        return float(np.mean([found[arm][seed].ari[f"x {label}"][step][layer] for arm in OVERLAP_ARMS]))

    def layered(step: int) -> list[list[float]]:
        first = [over_overlaps("input", 1, s, step) - over_overlaps("output", 1, s, step) for s in range(3)]
        return [first, [over_overlaps("output", 6, s, step) - over_overlaps("input", 6, s, step) for s in range(3)]]

    def wide(step: int) -> list[list[float]]:
        return [end(PRIVATE_WIDE, "instruction task", 6, step), apart(SHARED_WIDE, "x output", "x task", step)]

    def losses(private: str, shared: str) -> list[list[float]]:
        both = [end(private, "instruction task"), apart(shared, "x output", "x task")]
        return [*both, end(shared, "instruction task")]

    best_start = [[max(run.ari["instruction task"][0]) for run in found[arm]] for arm in OVERLAP_ARMS]
    within = ("x output|task", "x task|output")
    return {
        "T1": ([[min(found[arm][s].accuracy[-1] for arm in ARMS) for s in range(3)]], None),
        "T5": ([[max(c) - min(c) for c in (run.ari["x task"][:, 0] for run in found[PRIVATE])]], None),
        "T9": ([apart(SHARED, "x output", "x task")], [apart(PRIVATE, "x output", "x task")]),
        "T11": ([[rank(s, -1) for s in range(3)]], [[rank(s, 0) for s in range(3)]]),
        "T12": (
            [end(arm, "x output") for arm in OVERLAP_ARMS],
            [end(arm, "x output", 6, 0) for arm in OVERLAP_ARMS],
        ),
        "T13": ([end(arm, "instruction task") for arm in OVERLAP_ARMS], best_start),
        "T14": (layered(-1), layered(0)),
        "T15": (migrate(TWO), migrate(SHARED)),
        "T16": (migrate(CONSTANT), migrate(SHARED)),
        "T17": ([effect(PRIVATE)], [effect(SHARED)]),
        "T18": ([effect(SHARED)], [effect(PRIVATE)]),
        "T19": ([upper(0)], [upper(2)]),  # kinds 0: the tasks' difference, 2: halves of one task
        "T20": (linear(-1), linear(0)),
        "T21": (losses(PRIVATE_Y, SHARED_Y), losses(PRIVATE, SHARED)),
        "T22": (wide(-1), wide(0)),
        "T23": ([end(PRIVATE, "mean task", 0, 0)], [end(PRIVATE, "instruction task", 0, 0)]),
        "T24": ([apart(SHARED, *within)], [apart(SHARED, *within, 0)]),
    }


def test_values_are_those_of_the_seeds_arms_layers_and_steps_that_a_finding_names() -> None:
    found = runs(random_run)
    findings = {finding.id: finding for finding in findings_of(CONFIG, results_of(found))}
    assert list(findings) == IDS
    for id, (parts, control_parts) in expected_values(found).items():
        finding = findings[id]
        assert np.allclose([part.values for part in finding.parts], parts, atol=1e-12), id
        assert (finding.control is None) == (control_parts is None), id
        if finding.control is not None:
            assert np.allclose([part.values for part in finding.control.parts], control_parts, atol=1e-12), id
    of_input = [task_of(CONFIG, Job(PRIVATE, seed)).input_only_accuracy() for seed in CONFIG.seeds]
    assert findings["T8"].parts == (check_part("", of_input, Bound("<=", 3 / 12)),)
    assert [part.name for part in findings["T12"].parts] == [f"overlap {overlap:g}" for overlap in OVERLAPS]


# ---- verdicts ----


def test_every_finding_holds_on_ideal_runs_and_no_control_does(ideal: Runs) -> None:
    findings = findings_of(CONFIG, results_of(ideal))
    assert {finding.id: finding.verdict for finding in findings} == dict.fromkeys(IDS, "holds")
    assert {finding.id for finding in findings if finding.kind == "check"} == CHECKS
    assert {finding.id for finding in findings if finding.control is None} == CHECKS
    assert {finding.id for finding in findings if finding.shown == "headline"} == {"T9", "T11", "T13"}


def test_findings_fail_on_runs_that_contradict_them() -> None:
    found = changed({SHARED: edited(x_output=0.05)})
    verdicts = {finding.id: finding.verdict for finding in findings_of(CONFIG, results_of(found))}
    assert {id for id, verdict in verdicts.items() if verdict != "holds"} == {"T9", "T12"}


def test_one_overlap_that_is_undecided_leaves_the_finding_undecided() -> None:
    by_seed = iter([0.1, 0.9, 0.5])
    found = changed({overlap_arm(0.6): lambda run: edited(x_output=next(by_seed))(run)})
    verdicts = {finding.id: finding.verdict for finding in findings_of(CONFIG, results_of(found))}
    assert verdicts["T12"] == "undecided"


def test_findings_about_a_missing_arm_are_not_tested(ideal: Runs) -> None:
    few = {arm: ideal[arm] for arm in (PRIVATE, SHARED)}
    findings = {
        finding.id: finding for finding in findings_of(replace(CONFIG, arms=(PRIVATE, SHARED)), results_of(few))
    }
    tested = {id for id, finding in findings.items() if finding.verdict != "not tested"}
    assert tested == CHECKS | {"T9", "T17", "T18", "T19", "T20", "T23", "T24"}
    assert findings["T15"].why_not == "needs the arm 'outputs-2'"
    assert findings["T11"].why_not == "needs the arm 'overlap-0.2'"
    assert "| T15 |" in findings_markdown_table(list(findings.values()))


# ---- phases and tables ----


def phase_of(task: list[float], output: list[float]) -> str:
    """Return the phase of a layer with these indices, one per seed."""
    index = {"x task": np.array(task)[:, None, None], "x output": np.array(output)[:, None, None]}
    arm = ArmResults(
        steps=STEPS[:1],
        ari=index,
        null={curve: np.stack([values, values], axis=-1) for curve, values in index.items()},
        linear=index["x task"],
        accuracy=index["x task"][:, 0],
        became=np.zeros((len(task), 1, 1, 1)),
    )
    (phase,) = phases(arm, 0, 0.5)
    return str(phase)


class TestPhases:
    def test_of_intervals(self) -> None:
        high = [0.8, 0.85, 0.9]
        low = [0.1, 0.12, 0.11]
        wide = [0.1, 0.9, 0.5]
        assert phase_of(high, low) == TASK
        assert phase_of(low, high) == OUTPUT
        assert phase_of(high, high) == BOTH
        assert phase_of(low, low) == NEITHER
        assert phase_of(wide, low) == phase_of(high, wide) == UNDECIDED
        assert phase_of([0.9], [0.1]) == UNDECIDED  # one seed
