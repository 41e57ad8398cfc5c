"""The findings on constructed measurements: each holds where its effect is planted, and only there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mechclust.report.findings import lacking_severity, markdown_table
from mechclust.evidence.families import family_notes
from mechclust.evidence.intervals import mean_interval
from mechclust.studies.cluster_factors import ClusterFactorsConfig, figures
from mechclust.studies.cluster_factors.findings import findings_of
from mechclust.studies.cluster_factors.config import (
    ARMS,
    CONSTANT,
    OVERLAPS,
    PRIVATE,
    PRIVATE_WIDE,
    SHARED,
    SHARED_Y,
    TWO,
    UNSEEN,
    measured_steps,
    names_of,
    overlap_arm,
    overlap_of,
)
from mechclust.studies.cluster_factors.phases import BOTH, NEITHER, OUTPUT, TASK, UNDECIDED, phase_of, phases
from mechclust.studies.cluster_factors.results import CURVES, RunResults, table_of
from mechclust.studies.cluster_factors.swap import KINDS, POSITIONS
from tasks import InstructionFollowing

CONFIG = ClusterFactorsConfig(
    task=InstructionFollowing(n_tasks=12, variants=20, n_outputs=5, n_eval_tasks=12, n_eval=100)
)
STEPS = np.array(measured_steps(CONFIG))
LAYERS = np.arange(CONFIG.n_layers + 1)
IDS = [f"T{i}" for i in range(1, 25)]


def ideal(arm, seed):
    """Measurements of a run in which every finding holds, with noise of .01."""
    rng = np.random.default_rng([seed, list(ARMS).index(arm)])
    grown = np.linspace(0, 1, len(STEPS)) ** 0.3
    overlap = overlap_of(arm)
    early = STEPS.tolist().index(CONFIG.early_step)

    def curve(start, end):
        return start + grown[:, None] * (np.asarray(end) - start) * np.ones(len(LAYERS))

    task = curve(0.06, 0.1 + (0.7 - 0.6 * overlap) * LAYERS / LAYERS[-1])
    if overlap == 0:
        task[early, 1:3] = task[-1, 1:3] + 0.2
        task[early, 5:] = task[-1, 5:] - 0.2
    ari = {
        "x task": task,
        "x output": curve(0.05, 0.1 + 0.8 * LAYERS / LAYERS[-1]),
        "x input": curve(0.1, 1 - 0.85 * LAYERS / LAYERS[-1]),
        "x task|output": curve(0.05, 0.15),
        "x output|task": curve(0.05, 0.75),
        "instruction task": curve(0.1, 0.3 + 0.6 * LAYERS / LAYERS[-1]),
        "mean task": curve(0.65, 0.9),
        "mean output": curve(0.05, 0.3),
        "mean input": curve(0.05, 0.1),
    }
    ari = {name: x + rng.normal(0, 0.01, x.shape) for name, x in ari.items() if CURVES[name][0] in names_of(arm)}
    ari["x task"][:, 0] = 0.11
    if arm == SHARED_Y:
        ari["instruction task"] = ari["instruction task"] * 0.3
    became = rng.uniform(0, 0.02, (len(POSITIONS), len(KINDS), len(LAYERS)))
    if overlap == 0:
        became[POSITIONS.index("input"), KINDS.index("task"), 4:] += 0.8
    return RunResults(
        steps=STEPS,
        ari=ari,
        ami=ari,
        null={name: np.broadcast_to([0.02, 0.05, 0.03], (*x.shape, 3)) for name, x in ari.items()},
        linear=np.linspace(0.2, 0.97, len(LAYERS)) + rng.normal(0, 0.01, (len(STEPS), len(LAYERS))),
        linear_null=np.broadcast_to([0.05, 0.15], (len(STEPS), len(LAYERS), 2)),
        train_ari=ari["x task"][-1] + 0.02,
        accuracy=np.linspace(0, 0.99 - 0.005 * rng.random(), len(STEPS)),
        swapped={"became": became, "stayed": 1 - became},
        loss=np.linspace(3, 1, 100),
    )


def runs(**changes):
    """By arm, for each seed; ``changes`` are functions of one run, by arm with underscores."""
    made = {}
    for arm in ARMS:
        change = changes.get(arm.replace("-", "_").replace(".", "_"), lambda run: run)
        made[arm] = [change(ideal(arm, seed)) for seed in CONFIG.seeds]
    return made


def edited(**curves):
    """Sets curves at the end; names with ``_`` for a space."""

    def change(run):
        ari = {name: x.copy() for name, x in run.ari.items()}
        for name, value in curves.items():
            ari[name.replace("_", " ")][-1, 1:] = value
        return replace(run, ari=ari)

    return change


@pytest.fixture(scope="module")
def carried():
    return {c.id: c for c in findings_of(CONFIG, runs())}


class TestFindings:
    def test_hold_where_everything_is_as_predicted(self, carried):
        assert list(carried) == IDS
        assert {id: c.verdict for id, c in carried.items()} == dict.fromkeys(IDS, "holds")
        assert {c.seeds for c in carried.values()} == {10}
        assert {id for id, c in carried.items() if c.kind == "check"} == {"T5", "T8"}

    def test_are_severe(self, carried):
        assert lacking_severity(carried.values()) == []
        assert {id: c.severity for id, c in carried.items() if c.weak} == {}
        assert all(c.severity_draws >= 200 for c in carried.values() if c.kind == "finding")

    def test_are_called_true_where_they_are_planted(self, carried):
        power = {id: c.power for id, c in carried.items() if c.power is not None}
        assert set(power) == set(IDS) - {"T5", "T8"}
        assert min(power.values()) > 0.9

    def test_have_the_history_of_the_paper_run(self, carried):
        assert {id for id, c in carried.items() if c.history} == set(IDS[:10])
        assert carried["T6"].history[0].verdict == "undecided"

    @pytest.mark.parametrize(
        ("changes", "broken"),
        [
            ({TWO: edited(x_task=0.2)}, {"T2", "T4", "T15"}),
            ({UNSEEN: edited(x_task=0.3)}, {"T10"}),
            ({SHARED: edited(x_output=0.05)}, {"T9", "T12"}),
            ({SHARED: edited(instruction_task=0.2)}, {"T13"}),
            ({SHARED_Y: edited(x_output=0.05)}, {"T21"}),
            ({SHARED_Y: edited(instruction_task=0.7)}, {"T21"}),
            ({PRIVATE_WIDE: edited(instruction_task=0.3)}, {"T22"}),
            ({CONSTANT: lambda run: replace(run, train_ari=run.train_ari + 0.3)}, {"T6"}),
            ({SHARED: lambda run: replace(run, linear=run.linear - 0.5)}, {"T20"}),
            ({SHARED: edited(**{"x_output|task": 0.1})}, {"T24"}),
            ({PRIVATE: lambda run: replace(run, swapped={"became": run.swapped["became"] * 0})}, {"T17", "T19"}),
            (
                {arm: edited(x_task=0.4) for arm in map(overlap_arm, OVERLAPS)},
                {"T11", "T20"},
            ),
            ({arm: edited(x_input=0.95) for arm in map(overlap_arm, OVERLAPS)}, {"T14"}),
            ({PRIVATE: lambda run: replace(run, accuracy=run.accuracy * 0.9)}, {"T1"}),
        ],
    )
    def test_fail_one_by_one(self, changes, broken, monkeypatch):
        monkeypatch.setattr("mechclust.report.findings.severity_of", lambda *_, **__: None)
        made = runs(**{arm.replace("-", "_").replace(".", "_"): change for arm, change in changes.items()})
        found = {c.id: c.verdict for c in findings_of(CONFIG, made)}
        assert {id for id, verdict in found.items() if verdict != "holds"} == broken

    def test_are_not_tested_without_their_arm(self, monkeypatch):
        monkeypatch.setattr("mechclust.report.findings.severity_of", lambda *_, **__: None)
        few = {arm: of for arm, of in runs().items() if arm in (PRIVATE, SHARED)}
        found = {c.id: c for c in findings_of(replace(CONFIG, arms=(PRIVATE, SHARED)), few)}
        assert found["T9"].verdict == "holds"
        assert found["T10"].verdict == "not tested"
        assert "needs the arm 'outputs-2-unseen'" in found["T10"].note
        assert found["T10"].bound == "-"
        assert "| T10 |" in markdown_table(list(found.values()))
        assert family_notes(list(found.values()))


class TestPhases:
    def test_by_intervals(self):
        high, low, wide = [0.8, 0.85, 0.9], [0.1, 0.12, 0.11], [0.1, 0.9, 0.5]
        assert phase_of(high, low, 0.5) == TASK
        assert phase_of(low, high, 0.5) == OUTPUT
        assert phase_of(high, high, 0.5) == BOTH
        assert phase_of(low, low, 0.5) == NEITHER
        assert phase_of(wide, low, 0.5) == phase_of(high, wide, 0.5) == UNDECIDED
        assert phase_of([0.9], [0.1], 0.5) == UNDECIDED  # one seed

    def test_of_an_arm(self):
        found = phases(runs()[SHARED], 0.5)
        assert [len(found), len(found[0])] == [len(STEPS), len(LAYERS)]
        assert (found[0][6], found[-1][6], found[-1][1]) == (NEITHER, OUTPUT, NEITHER)


def test_the_phase_diagram_shows_the_phases_of_every_checkpoint():
    from matplotlib.colors import to_hex
    from matplotlib.patches import Rectangle

    found = runs()
    figure = figures.phase_diagram(CONFIG, found)
    last = figure.axes[len(STEPS) - 1]  # the top row, the end
    assert last.get_title() == "step 1000"
    cells = {(p.get_x() + 0.5, p.get_y() + 0.5): p for p in last.patches if isinstance(p, Rectangle)}
    for i, overlap in enumerate(OVERLAPS):
        for layer, phase in enumerate(phases(found[overlap_arm(overlap)], CONFIG.clear)[-1]):
            assert to_hex(cells[i, layer].get_facecolor()) == figures._PHASE[phase].lower()
            assert (cells[i, layer].get_hatch() is not None) == (phase == UNDECIDED)
    dots = {(int(x), int(y)) for line in last.lines for x, y in zip(*line.get_data(), strict=True)}
    assert dots == {(i, layer) for i in range(6) for layer in range(4)}  # x has .85 in layer 1, .58 in 3, .43 in 4


def test_the_table_has_means_with_their_intervals():
    table = table_of(runs(), "ari").set_index("arm")
    assert table.loc[PRIVATE, "x task|output"] == "–"
    values = [ideal(SHARED, seed).ari["x output"][-1, -1] for seed in CONFIG.seeds]
    low, high = mean_interval(values)
    assert table.loc[SHARED, "x output"] == f"{np.mean(values):.2f} ({low:.2f} to {high:.2f})"
    assert list(table.columns) == [*CURVES, "x task, linear (accuracy)"]
