"""Figures of the clustering-head study: which runs they show. What the others draw is frozen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mechclust.studies.clustering_heads import fall_figures
from mechclust.studies.clustering_heads.arm_figures import ablations_figure
from mechclust.studies.clustering_heads.captions import CAPTIONS
from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
from mechclust.studies.clustering_heads.fall_figures import clean_run, marks_of, two_falls_figure
from mechclust.studies.clustering_heads.figures import draw_figures, training_figure
from mechclust.studies.clustering_heads.results import HeadsResults, load_results
from mechclust.training import Member, TrainConfig, train_ensemble
from tasks import SparseModularAddition
from tests.mechclust.studies.clustering_heads import made_runs as made


@pytest.fixture(scope="module")
def results(smoke):
    return load_results(made.SMALL, smoke[1])


def of(**arms):
    return HeadsResults({}, {}, {}, {}, **arms)


class TestCleanRun:
    def test_is_solved_with_two_falls_and_its_gradient_peaks_there(self):
        once, unsolved = made.full_batch(falls=((100, 120),)), made.full_batch(accuracy=0.8)
        noisy = made.full_batch(gradient_from=50)
        thrice = made.full_batch(falls=((50, 60), (100, 120), (200, 220)), gradient_from=30)
        runs = {1: once, 2: unsolved, 5: noisy, 6: thrice, 7: made.full_batch()}
        assert clean_run(of(curved=runs), 2)[0] == 7
        assert clean_run(of(curved={1: once, 2: unsolved}), 2)[0] == 1
        assert clean_run(of(curved={1: unsolved, 2: made.full_batch(falls=())}), 2)[0] == 2
        assert "if there is one" in CAPTIONS["two_falls"]  # none solves the task in the last case

    def test_marks_stand_before_and_after_the_first_and_the_last_fall(self):
        three = made.full_batch(falls=((50, 60), (100, 120), (200, 220)))
        first, _, last = three.drops(2)
        assert marks_of(three, 2) == [first.start, first.end, last.start, last.end]
        assert len(marks_of(made.full_batch(falls=((100, 120),)), 2)) == 2
        assert marks_of(made.full_batch(falls=()), 2) == [0, made.N - 1]


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


def test_ablations_are_drawn_in_ascending_order(results):
    config = replace(made.SMALL, ablations=replace(made.SMALL.ablations, widths=(64, 16, 32)))
    ends = {f"width {width}": {200: (1.0, width / 64)} for width in (64, 16, 32)}
    figure = ablations_figure(config, replace(results, final=ends))
    width = figure.axes[[axis.get_xlabel() for axis in figure.axes].index("feed-forward width")]
    mean = next(line for line in width.lines if line.get_label() == "mean accuracy")
    assert mean.get_xdata().tolist() == [16, 32, 64]
    assert mean.get_ydata().tolist() == [0.25, 0.5, 1]
