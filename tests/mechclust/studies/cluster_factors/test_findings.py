"""The findings on constructed measurements: each holds where its effect is planted, and only there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mechclust.evidence import family_notes
from mechclust.evidence.intervals import mean_interval
from mechclust.evidence.tables import markdown_table
from mechclust.studies.cluster_factors import ClusterFactorsConfig, figures
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
from mechclust.studies.cluster_factors.findings import findings_of
from mechclust.studies.cluster_factors.phases import BOTH, NEITHER, OUTPUT, TASK, UNDECIDED, phase_of, phases
from mechclust.studies.cluster_factors.results import CURVES, RunResults, table_of
from mechclust.studies.cluster_factors.swap import KINDS, POSITIONS
from tasks import InstructionFollowing

CONFIG = ClusterFactorsConfig(
    task=InstructionFollowing(n_tasks=12, variants=20, n_outputs=5, n_eval_tasks=12, n_eval=100)
)
STEPS = np.array(measured_steps(CONFIG))
LAYERS = np.arange(CONFIG.n_layers + 1)
IDS = [f"T{i}" for i in range(1, 25) if i != 3]  # T3 had too little power and is gone


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
        linear=0.2 + grown[:, None] * 0.77 * LAYERS / LAYERS[-1] + rng.normal(0, 0.01, (len(STEPS), len(LAYERS))),
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
def findings():
    return {finding.id: finding for finding in findings_of(CONFIG, runs())}


class TestFindings:
    def test_hold_where_everything_is_as_predicted(self, findings):
        assert list(findings) == IDS
        assert {id: f.verdict for id, f in findings.items() if f.verdict != "holds"} == {
            "T6": "not specific",  # networks that share all outputs agree as well
        }
        assert {len(part.values) for f in findings.values() for part in f.parts} == {10}
        assert {id for id, f in findings.items() if f.kind == "check"} == {"T1", "T5", "T8"}
        assert {id for id, f in findings.items() if f.shown == "headline"} == {"T9", "T10", "T11"}
        assert all(f.control for f in findings.values() if f.kind == "finding")

    def test_have_the_history_of_the_paper_run(self, findings):
        assert {id for id, f in findings.items() if f.history} == {f"T{i}" for i in (1, 2, *range(4, 11))}
        assert findings["T6"].history[0].verdict == "undecided"

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
            ({arm: edited(x_task=0.4) for arm in map(overlap_arm, OVERLAPS)}, {"T11", "T20"}),
            ({arm: edited(x_input=0.95) for arm in map(overlap_arm, OVERLAPS)}, {"T14"}),
            ({PRIVATE: lambda run: replace(run, accuracy=run.accuracy * 0.9)}, {"T1"}),
        ],
    )
    def test_fail_one_by_one(self, changes, broken):
        made = runs(**{arm.replace("-", "_").replace(".", "_"): change for arm, change in changes.items()})
        found = {finding.id: finding.verdict for finding in findings_of(CONFIG, made)}
        assert {id for id, verdict in found.items() if verdict not in ("holds", "not specific")} == broken

    def test_that_untrained_networks_share_are_not_specific(self):
        """A classifier reads the task from untrained networks too, and their layers cluster alike."""

        def readable_before(run):
            return replace(run, linear=np.broadcast_to(run.linear[-1], run.linear.shape))

        (found,) = (f for f in findings_of(CONFIG, runs(overlap_1=readable_before)) if f.id == "T20")
        assert (found.verdict, found.control.verdict) == ("not specific", "holds")

    def test_are_not_tested_without_their_arm(self):
        few = {arm: of for arm, of in runs().items() if arm in (PRIVATE, SHARED)}
        found = {finding.id: finding for finding in findings_of(replace(CONFIG, arms=(PRIVATE, SHARED)), few)}
        assert found["T9"].verdict == "holds"
        assert found["T10"].verdict == "not tested"
        assert found["T10"].why_not == "needs the arm 'outputs-2-unseen'"
        assert found["T11"].why_not == "needs the arm 'overlap-0.2'"
        assert "| T10 |" in markdown_table(list(found.values()))

    def test_of_a_size_that_cannot_test_are_not_tested(self):
        found = findings_of(replace(CONFIG, test_findings=False), runs())
        assert {finding.verdict for finding in found} == {"not tested"}
        assert found[1].measured == pytest.approx(0.8, abs=0.02)


class TestValues:
    """Each value by hand, from runs of other seeds, layers and steps than any default."""

    @pytest.fixture
    def two(self):
        """Three seeds whose curves differ by layer and step: .1 x seed + .01 x layer + .001 x step."""
        made = runs()
        places = 0.01 * LAYERS + 0.001 * np.arange(len(STEPS))[:, None]
        curves = [0.1 * (seed + 1) + places for seed in range(3)]

        def changed(run, curve):
            return replace(run, ari={name: curve.copy() for name in run.ari}, train_ari=curve[-1] + 0.05)

        return {arm: [changed(run, curve) for run, curve in zip(of, curves, strict=False)] for arm, of in made.items()}

    def test_are_of_the_last_layer_at_the_end(self, two):
        found = {finding.id: finding for finding in findings_of(replace(CONFIG, seeds=(0, 1, 2)), two)}
        end = 0.01 * 6 + 0.001 * (len(STEPS) - 1)
        assert found["T2"].parts[0].values == pytest.approx((0.1 + end, 0.2 + end, 0.3 + end))
        assert found["T6"].parts[0].values == pytest.approx((0.05, 0.05, 0.05))
        assert found["T12"].control.parts[3].values == pytest.approx((0.16, 0.26, 0.36))
        assert found["T23"].parts[0].values == pytest.approx((0.1, 0.2, 0.3))

    def test_of_the_migration_are_of_whole_thirds(self, two):
        early = STEPS.tolist().index(CONFIG.early_step)
        for run in two[TWO]:
            run.ari["x task"][-1] = run.ari["x task"][early] + [9, -0.1, -0.3, 9, 9, 0.2, 0.6]
        found = {finding.id: finding for finding in findings_of(replace(CONFIG, seeds=(0, 1, 2)), two)}
        falls, rises = found["T15"].parts
        assert falls.values == pytest.approx([0.2] * 3)
        assert rises.values == pytest.approx([0.4] * 3)

    def test_of_swaps_are_of_the_best_layer_of_each_kind(self):
        made = runs()
        became = np.zeros((len(POSITIONS), len(KINDS), len(LAYERS)))
        became[POSITIONS.index("input"), KINDS.index("task"), [1, 4]] = 0.2, 0.9
        became[POSITIONS.index("input"), KINDS.index("random"), 2] = 0.3
        became[POSITIONS.index("input"), KINDS.index("halves"), 3] = 0.4
        became[:, :, 0] = 1.0  # the embedding counts nowhere
        made[PRIVATE] = [replace(run, swapped={"became": became}) for run in made[PRIVATE]]
        found = {finding.id: finding for finding in findings_of(CONFIG, made)}
        assert found["T17"].measured == pytest.approx(0.5)
        assert found["T17"].control.parts[0].measured == pytest.approx(0.1)
        assert found["T19"].measured == pytest.approx(0.9 / 3 - 0.2 / 3)

    def test_of_overlaps_are_ordered_by_them(self):
        falls = {finding.id: finding for finding in findings_of(CONFIG, runs())}["T11"]
        assert falls.measured == pytest.approx(-1, abs=0.02)
        assert abs(falls.control.parts[0].measured) < 0.5

    def test_family(self, findings):
        assert family_notes(list(findings.values())) == [
            "With Holm's correction over the 3 headline findings, all 3 that hold still do."
        ]


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
