"""Figures of the clustering-head study: which runs they show, their scales, and what they call things."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mechclust.evidence.intervals import share_interval
from mechclust.studies.clustering_heads import fall_figures
from mechclust.studies.clustering_heads.arm_figures import ablations_figure, curriculum_figure
from mechclust.studies.clustering_heads.captions import CAPTIONS
from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
from mechclust.studies.clustering_heads.fall_figures import clean_run, gradients_figure, marks_of, two_falls_figure
from mechclust.studies.clustering_heads.figures import draw_figures, replay_figure, training_figure
from mechclust.studies.clustering_heads.results import HeadsResults, NetworkTraining, load_results
from mechclust.training import Member, TrainConfig, train_ensemble
from probes import ProbeResult
from tasks import SparseModularAddition
from tests.mechclust.studies.clustering_heads import made_runs as made

N = 400


@pytest.fixture(scope="module")
def results(smoke):
    return load_results(made.SMALL, smoke[1])


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


def of(**arms):
    return HeadsResults({}, {}, {}, {}, **arms)


class TestCleanRun:
    def test_is_solved_with_two_falls_and_its_gradient_peaks_there(self):
        once, unsolved, noisy = run(falls=((100, 120),)), run(accuracy=0.8), run(peak=80.0)
        assert clean_run(of(curved={1: once, 2: unsolved, 5: noisy, 7: run()}), 2)[0] == 7
        assert clean_run(of(curved={1: once, 2: unsolved}), 2)[0] == 1
        assert clean_run(of(curved={1: unsolved, 2: run(falls=())}), 2)[0] == 2
        assert "if there is one" in CAPTIONS["two_falls"]  # none solves the task in the last case

    def test_marks_stand_before_and_after_the_first_and_the_last_fall(self):
        three = run(falls=((50, 60), (100, 120), (200, 220)))
        first, _, last = three.drops(2)
        assert marks_of(three, 2) == [first.start, first.end, last.start, last.end]
        assert len(marks_of(run(falls=((100, 120),)), 2)) == 2
        assert marks_of(run(falls=()), 2) == [0, N - 1]

    def test_no_peak_of_the_gradient_is_cut_off(self):
        figure = gradients_figure(made.SMALL, of(curved={1: run(peak=80.0)}))
        loss, gradient = figure.axes
        assert gradient.get_yscale() == "linear"
        assert gradient.get_ylim() == (0, pytest.approx(84))
        assert loss.get_xlim()[1] == pytest.approx(1.4 * 2170, rel=0.02)  # nine tenths of the second fall are over
        (legend,) = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == [
            "embeddings", "attention", "feed-forward",
        ]  # fmt: skip

    def test_a_run_that_never_falls_is_shown_whole(self):
        loss, _ = gradients_figure(made.SMALL, of(curved={1: run(falls=())})).axes
        assert loss.get_xlim()[1] == 10 * (N - 1)


def test_figures_of_the_full_batch_run_come_one_after_the_other_and_stand_alone(results):
    names = list(draw_figures(made.SMALL, results))
    assert names[names.index("two_falls") + 1] == "gradients"
    alone = draw_figures(replace(made.SMALL, sandbox=0), results)
    assert "two_falls" not in alone
    assert "gradients" in alone
    assert "same run" not in CAPTIONS["gradients"]


def test_sequence_embeddings_are_those_of_every_sequence(results):
    _, _, before, _ = two_falls_figure(made.SMALL, results).axes
    assert [line.get_label() for line in before.lines] == ["0", "1", "2", "3"]
    assert sum(len(line.get_xdata()) for line in before.lines) == 2**6


def test_more_sums_than_colors_are_all_drawn(results, tmp_path, monkeypatch):
    task = SparseModularAddition(p=3, length=5, n_support=5, n_train=16, n_test=16)
    settings = TrainConfig(steps=3, batch_size=16, schedule="constant", clip=None)
    member = Member(PoolingTransformerConfig(n_ctx=5, d_mlp=4), task)
    snapshots = train_ensemble([member], settings, tmp_path, backend="loop", snapshot_every=1)
    monkeypatch.setattr(fall_figures, "snapshots_of", lambda *_: (snapshots, 0))
    figure = two_falls_figure(made.SMALL, results)
    lines = figure.axes[2].lines
    assert [line.get_label() for line in lines] == [str(total) for total in range(11)]
    assert sum(len(line.get_xdata()) for line in lines) == 3**5
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == 11
    assert len(figure.legends[0].get_texts()) == 11


def test_a_loss_that_stays_above_the_published_one_is_in_its_panel(results):
    (seed, trained), *_ = results.curved.items()
    loss = trained.dynamics["train_loss"]
    high = replace(trained.dynamics, values={**trained.dynamics.values, "train_loss": loss - loss.min() + 1})
    _, ours, *_ = two_falls_figure(made.SMALL, replace(results, curved={seed: replace(trained, dynamics=high)})).axes
    low, top = ours.get_ylim()
    drawn = ours.lines[0].get_ydata()
    assert low < drawn.min() < drawn.max() < top


def test_a_loss_of_0_is_drawn_as_the_least(results):
    network = next(iter(results.networks.values()))
    curve = network.dynamics["test_loss"].clone()
    network.dynamics["test_loss"][-3:] = 0
    try:
        axes = training_figure(made.SMALL, results).axes
    finally:
        network.dynamics["test_loss"][:] = curve
    drawn = np.concatenate([path.vertices[:, 1] for axis in axes for band in axis.collections
                            for path in band.get_paths()])  # fmt: skip
    assert drawn.min() == 1e-10


def test_ablations_show_every_setting_with_the_interval_of_its_share(results):
    found = {"bias 0": {200: (1.0, 0.9)}, "dropout 0.5": {200: (1.0, 0.6), 201: (1.0, 1.0)}}
    results = replace(results, final={**results.final, **found})
    figure = ablations_figure(made.SMALL, results)
    names = [axis.get_xlabel() for axis in figure.axes]
    assert len(names) == 6
    bias = figure.axes[names.index("biases of the feed-forward layer")]
    assert bias.get_title(loc="right") == "1 or 2 seeds per value"
    assert {0, 1} <= {float(x) for line in bias.lines for x in line.get_xdata()}
    dropout = figure.axes[names.index("dropout of the feed-forward layer")]
    (area,) = (area for band in dropout.collections for path in band.get_paths() if (area := path.get_extents()).width)
    low, high = share_interval([0.0, 1.0])
    assert (area.y0, area.y1) == (pytest.approx(low), pytest.approx(high))
    assert [float(line.get_ydata()[0]) for line in dropout.lines if line.get_marker() == "_"] == [0.8, 0.5]
    assert dropout.get_title(loc="right") == "2 seeds per value"


def test_ablations_are_drawn_in_ascending_order(results):
    config = replace(made.SMALL, ablations=replace(made.SMALL.ablations, widths=(64, 16, 32)))
    ends = {f"width {width}": {200: (1.0, width / 64)} for width in (64, 16, 32)}
    figure = ablations_figure(config, replace(results, final=ends))
    width = figure.axes[[axis.get_xlabel() for axis in figure.axes].index("feed-forward width")]
    mean = next(line for line in width.lines if line.get_label() == "mean accuracy")
    assert mean.get_xdata().tolist() == [16, 32, 64]
    assert mean.get_ydata().tolist() == [0.25, 0.5, 1]


def test_a_setting_that_was_not_varied_says_so(results):
    some = replace(results, final={"dropout 0.5": {200: (1.0, 0.6)}})
    titles = [axis.get_title(loc="right") for axis in ablations_figure(made.SMALL, some).axes]
    assert titles == ["not run"] * 4 + ["1 seed per value", "not run"]


def heights(axis):
    return [bar.get_height() for bar in axis.patches]


def points(axis):
    """The values of each cloud of points, left to right."""
    return [sorted(line.get_ydata()) for line in axis.lines if line.get_marker() == "o"]


def test_replayed_spikes_are_shares_of_each_network():
    """Columns: norm direction, norm scale, gates, attention, head, feed-forward."""
    networks = [
        made.network(gone=[(1, 0, 0, 0, 1, 0), (0, 0, 1, 0, 1, 0)]),
        made.network(gone=[(1, 0, 1, 0, 1, 1)]),
        made.network(),
    ]
    left, _ = replay_figure(made.results_of(*networks)).axes
    assert heights(left) == [0.75, 0, 0.75, 0, 1, 0.5]
    assert points(left)[0] == [0.5, 1]


def test_the_curriculum_shows_shares_of_networks_that_solve_the_task():
    accuracies = [(0.25, 1.0), (1.0, 0.99), (0.5, 0.3)]
    runs = {seed: made.curriculum(scratch, after) for seed, (scratch, after) in enumerate(accuracies)}
    left, _ = curriculum_figure(made.CONFIG.curriculum, runs).axes
    assert heights(left) == pytest.approx([1, 1 / 3, 1, 2 / 3])  # scratch: train, test; curriculum: train, test
    assert points(left)[1] == [0.25, 0.5, 1.0]
