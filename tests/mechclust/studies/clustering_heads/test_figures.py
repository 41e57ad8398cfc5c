"""Figures of the clustering-head study: which runs they show, their scales, and what they call things."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from mechclust.evidence.intervals import share_interval
from mechclust.studies import get_study
from mechclust.studies.clustering_heads.arm_figures import ablation_table, ablations, circuits, curriculum
from mechclust.studies.clustering_heads.figures import training
from mechclust.studies.clustering_heads.intervention_figures import (
    donors,
    draw,
    full_batch,
    mitigations,
    replay,
    saddle,
    shown_full_batch,
    stitching,
)
from mechclust.studies.clustering_heads.phase_figures import attention_by_epoch, ideal, name_positions, phases
from mechclust.studies.clustering_heads.results import HeadsResults, NetworkTraining, load_results
from probes import ProbeResult
from tests.mechclust.studies.clustering_heads import made_runs as made

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


def test_attention_has_one_scale_with_its_name(results):
    *maps, bar = attention_by_epoch(SMOKE, results).axes
    limits = {axis.images[0].get_clim() for axis in maps}
    assert len(maps) == 2
    assert limits == {(0, max(axis.images[0].get_array().max() for axis in maps))}
    assert bar.get_ylabel() == "attention"
    assert maps[0].get_ylabel() == "position"


def test_moments_of_a_run_say_what_they_count(results):
    titles = [axis.get_title(loc="left").split("\n")[0] for axis in phases(SMOKE, results).axes]
    assert titles[0] in ("step 0: start", "epoch 0: start")


class TestIdeal:
    def test_positions_that_coincide_have_one_name(self, results):
        first, *_ = ideal(SMOKE, results).axes
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
    table = ablation_table(SMOKE, results)
    (row,) = table[table["setting"] == "dropout of the feed-forward layer"].to_numpy().tolist()
    assert row[2:] == ["0.800 ± 0.283", "0.50", f"{low:.2f} to {high:.2f}", 2]


def heights(axis):
    return [bar.get_height() for bar in axis.patches]


def points(axis):
    """The values of each cloud of points, left to right."""
    return [sorted(line.get_ydata()) for line in axis.lines if line.get_marker() == "o"]


class TestInterventions:
    def test_donors_of_solved_networks_by_partition(self):
        networks = [
            made.network(follows=0.9, by_sum=0.3, draws=(0.4, 0.5)),
            made.network(follows=1.0, by_sum=0.6, draws=(0.6, 0.8)),
            made.weak(follows=0.1),
        ]
        by_head, by_sum = donors(made.results_of(*networks)).axes
        assert points(by_head) == [[0.9, 1.0], pytest.approx([0.45, 0.7])]
        assert points(by_sum) == [[0.3, 0.6], pytest.approx([0.45, 0.7])]

    def test_replayed_spikes_are_shares_of_each_network(self):
        """Columns: norm direction, norm scale, gates, attention, head, feed-forward."""
        networks = [
            made.network(gone=[(1, 0, 0, 0, 1, 0), (0, 0, 1, 0, 1, 0)]),
            made.network(gone=[(1, 0, 1, 0, 1, 1)]),
            made.network(),
        ]
        left, _ = replay(made.results_of(*networks)).axes
        assert heights(left) == [0.75, 0, 0.75, 0, 1, 0.5]
        assert points(left)[0] == [0.5, 1]

    def test_mitigations_show_spikes_of_each_seed(self):
        base = [made.network(spikes=(200, 250, 300)), made.network()]
        treated = {0: made.training(spikes=(200,)), 1: made.training(spikes=(220, 250))}
        results = made.results_of(*base, mitigated={"larger eps": treated})
        (axis,) = mitigations(made.CONFIG, results).axes
        seeds = axis.lines[1].get_xydata()
        assert seeds.round().tolist() == [[3, 1], [0, 2]]

    def test_dates_of_stitched_networks(self):
        networks = [made.network(ready=(140, 180)), made.network(ready=(190, 150)), made.weak(ready=(10, 20))]
        *_, dates = stitching(made.results_of(*networks)).axes
        assert dates.collections[0].get_offsets().tolist() == [[140, 180], [190, 150]]

    def test_areas_stand_in_the_legend_of_the_roc(self):
        solved = [made.network(), made.network(line=None, plane=0.1)]
        drawn = draw(made.CONFIG, made.results_of(*solved, made.weak(), made.weak()))
        assert list(drawn) == ["stitching", "roc", "donors"]
        (axis,) = drawn["roc"].axes
        assert [text.get_text() for text in axis.get_legend().get_texts()] == [
            "line: area 0.750",
            "line or plane: area 1.000",
        ]


def test_the_curriculum_shows_shares_of_networks_that_solve_the_task():
    accuracies = [(0.25, 1.0), (1.0, 0.99), (0.5, 0.3)]
    runs = {seed: made.curriculum(scratch, after) for seed, (scratch, after) in enumerate(accuracies)}
    left, _ = curriculum(made.CONFIG.curriculum, runs).axes
    assert heights(left) == pytest.approx([1, 1 / 3, 1, 2 / 3])  # scratch: train, test; curriculum: train, test
    assert points(left)[1] == [0.25, 0.5, 1.0]


def test_circuits_of_a_start_and_of_the_base_setting():
    base = [made.network(), made.network(textbook=True), made.weak(), made.network(line=None, plane=0.1)]
    heads = {0: made.lattice(0.1, textbook=True), 1: made.lattice(None), 2: made.lattice(0.1)}
    arm = "start positions x3"
    results = made.results_of(*base, started={arm: heads}, final={arm: made.ends(True, True, False)})
    none = dict.fromkeys(("textbook", "integer-weight", "planar", "neither", "not solved"), 0)
    assert circuits(results, arm) == {**none, "textbook": 1, "neither": 1, "not solved": 1}
    assert circuits(results, "base") == {**none, "textbook": 1, "integer-weight": 1, "not solved": 1}  # same seeds
