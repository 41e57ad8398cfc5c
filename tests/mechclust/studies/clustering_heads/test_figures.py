"""Figures of the clustering-head study: which runs they show, their scales, and what they call things."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from mechclust.evidence.intervals import share_interval
from mechclust.studies import get_study
from mechclust.studies.clustering_heads.figures import ablation_table, ablations, training
from mechclust.studies.clustering_heads.intervention_figures import full_batch, saddle, shown_full_batch
from mechclust.studies.clustering_heads.phase_figures import attention, ideal, name_positions, phases
from mechclust.studies.clustering_heads.results import HeadsResults, NetworkTraining, load_results
from probes import ProbeResult

SMOKE = get_study("clustering-heads").preset("smoke")
N = 400


@pytest.fixture(scope="module")
def results(smoke):
    return load_results(SMOKE, smoke[1])


def run(falls=((100, 120), (200, 220)), accuracy=1.0, peak=1.0):
    """A full-batch run whose loss falls in phases; the gradient is ``peak`` at one step between them."""
    loss, gradient = np.full(N, 0.69), np.full((N, 4), 0.01)
    levels = np.linspace(0.69, 0.01, len(falls) + 1)
    for k, (start, end) in enumerate(falls):
        loss[start:end] = np.linspace(levels[k], levels[k + 1], end - start)
        loss[end:] = levels[k + 1]
        gradient[start:end] = 0.1
    gradient[150] = peak
    values = {"train_loss": loss, "gradient_norm": gradient, "test_accuracy": np.full(N, accuracy)}
    return NetworkTraining(
        ProbeResult(
            "HeadDynamics",
            {name: torch.from_numpy(x) for name, x in values.items()},
            {name: ("epoch", "group")[: x.ndim] for name, x in values.items()},
            {"epoch": [str(10 * i) for i in range(N)], "group": ["embeddings", "attention", "feed-forward", "all"]},
        )
    )


def curved(plateau, end):
    """Smallest and largest eigenvalues at the start, on the plateau, in the fall and at the end."""
    smallest = torch.tensor([[-1.0] * 4, [plateau] * 4, [plateau] * 4, [end] * 4], dtype=torch.float64)
    return ProbeResult(
        "Curvature",
        {"smallest": smallest, "largest": torch.ones(4, dtype=torch.float64)},
        {"smallest": ("snapshot", "rank"), "largest": ("snapshot",)},
        {"snapshot": ["0", "50", "160", str(N - 1)], "rank": list("0123")},
    )


def of(**arms):
    return HeadsResults({}, {}, {}, {}, **arms)


class TestFullBatch:
    once, unsolved = run(falls=((100, 120),)), run(accuracy=0.8)

    def test_shows_the_first_that_solve_the_task_with_two_falls(self):
        runs = {5: run(), 1: self.once, 2: self.unsolved, 9: run(), 3: run(falls=((50, 60), (100, 120), (200, 220)))}
        assert list(shown_full_batch(of(full_batch=runs), 2)) == [3, 5]
        assert list(shown_full_batch(of(full_batch={1: self.once, 2: self.unsolved, 5: run()}), 2)) == [5, 2]
        assert list(shown_full_batch(of(full_batch={1: run(falls=()), 2: self.once}), 2)) == [2, 1]

    def test_a_short_peak_does_not_hide_the_falls(self):
        figure = full_batch(SMOKE, of(full_batch={1: run(peak=80.0)}))
        loss, linear, logarithmic = figure.axes
        assert linear.get_ylim() == (0, pytest.approx(0.1))
        assert linear.get_title(loc="right") == "cut off; largest 80"
        assert logarithmic.get_ylim() == (pytest.approx(0.007), pytest.approx(120))
        assert loss.get_xlim()[1] == pytest.approx(1.2 * 2170, rel=0.02)  # nine tenths of the second fall are over
        (legend,) = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == ["embeddings", "attention", "feed-forward"]

    def test_a_run_that_never_falls_is_shown_whole(self):
        loss, *_ = full_batch(SMOKE, of(full_batch={1: run(falls=())})).axes
        assert loss.get_xlim()[1] == 10 * (N - 1)


class TestSaddle:
    def test_every_run_stands_apart_and_no_half_of_a_panel_is_empty(self):
        found = of(full_batch={i: run() for i in range(2)}, curvature={0: curved(-0.1, -1e-6), 1: curved(-1e-3, -1e-5)})
        _, values, right = saddle(SMOKE, found).axes
        assert (values.get_yscale(), right.get_yscale()) == ("symlog", "symlog")
        places = right.transAxes.inverted().transform(right.transData.transform([(1, 1e-6), (1, 1e-5), (0, 0.1)]))[:, 1]
        assert np.diff(places).min() > 0.1
        assert places.max() < 1
        low, zero = values.get_ylim()[0], values.transAxes.inverted().transform(values.transData.transform((0, 0)))[1]
        assert low < -1
        assert zero > 0.85

    def test_positive_eigenvalues_are_in_view(self):
        found = of(full_batch={0: run()}, curvature={0: curved(0.5, 0.2)})
        _, values, right = saddle(SMOKE, found).axes
        assert values.get_ylim()[1] >= 0.5
        assert right.get_ylim()[0] <= -0.5


def test_a_loss_of_0_is_drawn_as_the_least(results):
    network = next(iter(results.networks.values()))
    curve = network.dynamics["test_loss"].clone()
    network.dynamics["test_loss"][-3:] = 0
    try:
        axes = training(SMOKE, results).axes
    finally:
        network.dynamics["test_loss"][:] = curve
    drawn = np.concatenate([path.vertices[:, 1] for axis in axes for band in axis.collections
                            for path in band.get_paths()])  # fmt: skip
    assert drawn.min() == 1e-10


def test_attention_has_one_scale_with_its_name(smoke, results):
    *maps, bar = attention(SMOKE, results, smoke[1]).axes
    limits = {axis.images[0].get_clim() for axis in maps}
    assert len(maps) == 2
    assert limits == {(0, max(axis.images[0].get_array().max() for axis in maps))}
    assert bar.get_ylabel() == "attention"


def test_moments_of_a_run_say_what_they_count(smoke, results):
    titles = [axis.get_title(loc="left").split("\n")[0] for axis in phases(SMOKE, results, smoke[1]).axes]
    assert titles[0] in ("step 0: start", "epoch 0: start")


class TestIdeal:
    def test_positions_that_coincide_have_one_name(self, smoke, results):
        first, *_ = ideal(SMOKE, results, smoke[1]).axes
        assert {text.get_text() for text in first.texts} - {""} == {"0-2", "3-5"}

    def test_positions_apart_are_listed(self):
        axis = Figure().subplots()
        name_positions(axis, np.array([[0, 1], [0, -1], [0, 1], [1, 1]]))
        assert {text.get_text() for text in axis.texts} == {"0, 2", "1", "3"}


def test_ablations_show_every_setting_with_the_interval_of_its_share(results):
    found = {"bias 0": {200: (1.0, 0.9)}, "dropout 0.5": {200: (1.0, 0.6), 201: (1.0, 1.0)}}
    results = replace(results, final={**results.final, **found})
    figure = ablations(SMOKE, results)
    names = [axis.get_xlabel() for axis in figure.axes]
    assert len(names) == 6
    bias = figure.axes[names.index("biases of the feed-forward layer")]
    assert bias.get_title(loc="right") == "1 or 2 seeds per value"
    assert {0, 1} <= {float(x) for line in bias.lines for x in line.get_xdata()}
    dropout = figure.axes[names.index("dropout of the feed-forward layer")]
    (band,) = dropout.collections
    vertices = band.get_paths()[0].vertices[:, 1]
    low, high = share_interval([0.0, 1.0])
    assert (vertices.min(), vertices.max()) == (pytest.approx(low), pytest.approx(high))
    row = next(row for row in ablation_table(SMOKE, results).split("<tr") if "dropout" in row)
    assert [cell in row for cell in ("0.800 ± 0.283", "0.50", f"{low:.2f} to {high:.2f}")] == [True] * 3
