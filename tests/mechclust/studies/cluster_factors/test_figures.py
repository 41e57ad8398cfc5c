"""Figures show the means, ranges and bands of the runs, for every seed, layer and step a value of its own."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from mechclust.evidence.intervals import mean_interval
from mechclust.studies.cluster_factors import figures
from mechclust.studies.cluster_factors.config import CONSTANT, OVERLAPS, PRIVATE, SHARED, TWO, overlap_arm
from mechclust.studies.cluster_factors.figures import UNDECIDED, layer_verdicts, phases
from mechclust.studies.cluster_factors.swap import KINDS, POSITIONS
from tests.mechclust.studies.cluster_factors.test_findings import (
    CONFIG,
    LAYERS,
    STEPS,
    Runs,
    random_run,
    results_of,
    runs,
)

N = len(LAYERS)


@pytest.fixture(scope="module")
def found() -> Runs:
    return runs(random_run)


def has_curve(axis: Axes, values: list[np.ndarray]) -> bool:
    """Whether a panel has the mean of these seeds' curves as a line, and a band from the lowest to the highest."""
    lines = [np.asarray(line.get_ydata()) for line in axis.lines]
    mean = sum(values) / len(values)
    bands = [band.get_datalim(axis.transData) for band in axis.collections]
    ends = min(np.min(values, axis=0)), max(np.max(values, axis=0))
    drawn = any(len(line) == len(mean) and np.allclose(line, mean) for line in lines)
    return drawn and any(np.allclose((band.y0, band.y1), ends) for band in bands)


def test_curves_by_layer_are_of_the_end_of_training(found: Runs) -> None:
    figure = figures.by_layer_figure(results_of(found))
    panels = dict(zip(found, figure.axes, strict=False))
    for arm, of_arm in found.items():
        for label in ("task", "output", "input"):
            assert has_curve(panels[arm], [run.ari[f"x {label}"][-1] for run in of_arm]), (arm, label)
        linear = sum(run.linear[-1] for run in of_arm) / len(of_arm)
        assert any(np.allclose(line.get_ydata(), linear) for line in panels[arm].lines)
    assert panels[TWO].get_title() == "2 private outputs"
    within = figures.within_the_other_figure(results_of(found))
    titles = [axis.get_title() for axis in within.axes]
    assert "overlap 0" not in titles  # an output belongs to one task there
    shared = within.axes[titles.index("overlap 1")]
    assert has_curve(shared, [run.ari["x task|output"][-1] for run in found[SHARED]])
    assert has_curve(shared, [run.ari["x output|task"][-1] for run in found[SHARED]])


def test_curves_over_training_have_a_line_and_an_interval_for_each_layer(found: Runs) -> None:
    figure = figures.over_training_figure(results_of(found), (TWO, CONSTANT, "not run"))
    assert len(figure.axes) == 4
    for row, curve in enumerate(("x task", "instruction task")):
        for column, arm in enumerate((TWO, CONSTANT)):
            axis = figure.axes[2 * row + column]
            lines = [np.asarray(line.get_ydata()) for line in axis.lines]
            bars = [of.get_segments()[0][:, 1] for of in axis.collections if hasattr(of, "get_segments")]
            for layer in range(N):
                values = [run.ari[curve][:, layer] for run in found[arm]]
                assert any(len(y) == len(STEPS) and np.allclose(y, sum(values) / 3) for y in lines)
                assert any(np.allclose(bar, mean_interval([of[-1] for of in values])) for bar in bars)


def test_swaps_and_accuracy_are_means_over_seeds(found: Runs) -> None:
    chosen = {arm: found[arm] for arm in (PRIVATE, SHARED)}
    figure = figures.swaps_figure(results_of(chosen))
    for row in range(len(POSITIONS)):
        for column, arm in enumerate(chosen):
            for kind in range(len(KINDS)):
                values = [run.became[row, kind] for run in found[arm]]
                assert has_curve(figure.axes[2 * row + column], values)
    accuracy = figures.accuracy_figure(results_of(chosen))
    for axis, runs_of_arm in zip(accuracy.axes, chosen.values(), strict=True):
        assert has_curve(axis, [run.accuracy for run in runs_of_arm])


def test_the_phase_diagram_has_the_phase_of_every_overlap_layer_and_step() -> None:
    ideal = results_of(runs())
    figure = figures.phase_diagram_figure(CONFIG, ideal)
    for column, step in enumerate(STEPS):
        axis = figure.axes[column]  # the top row: at x
        assert axis.get_title() == f"step {step}"
        assert axis.get_yticks().tolist() == list(range(CONFIG.n_layers + 1))
        cells = {(p.get_x() + 0.5, p.get_y() + 0.5): p for p in axis.patches if isinstance(p, Rectangle)}
        by_input = set()
        for i, overlap in enumerate(OVERLAPS):
            of_arm = ideal[overlap_arm(overlap)]
            for layer, phase in enumerate(phases(of_arm, column, CONFIG.clear)):
                assert to_hex(cells[i, layer].get_facecolor()) == figures.PHASE_COLORS[phase].lower()
                assert (cells[i, layer].get_hatch() is not None) == (phase == UNDECIDED)
            clear = layer_verdicts(of_arm.ari["x input"][:, column], CONFIG.clear) == "holds"
            by_input |= {(i, layer) for layer in np.flatnonzero(clear)}
        dots = {(int(x), int(y)) for line in axis.lines for x, y in zip(*line.get_data(), strict=True)}
        assert dots == by_input
    assert len(dots) > 0
