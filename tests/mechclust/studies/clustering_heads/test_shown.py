"""Which networks have a page, and what their spikes are put down to."""

from __future__ import annotations

from dataclasses import replace

import torch

from mechclust.studies.clustering_heads.shown import diagnosis_texts, shown_networks
from tests.mechclust.studies.clustering_heads.made_runs import CONFIG, SOLVED, N, network, results_of, weak


def test_a_textbook_head_then_the_worst_failure_then_other_solved_networks():
    networks = [weak(accuracy=0.7), network(), network(textbook=True), network(line=None), weak(accuracy=0.6)]
    found = results_of(*networks)
    for n, seeds in ((0, [2]), (1, [2]), (3, [2, 4, 1]), (9, [2, 4, 1, 3, 0])):
        assert [one.seed for one in shown_networks(replace(CONFIG, sandbox=n), found)] == seeds


def diagnosed(**low):
    """Return the diagnosis of a spike at epoch 300, with curves lowered at the given epochs."""
    one = network(spikes=(300,))
    for name in ("smallest_norm", "margin"):
        one.dynamics[name][:] = 1.0
    for name, epoch in low.items():
        one.dynamics[name][epoch] = 0.1
    ((spike, causes),) = one.diagnoses()
    assert spike.epoch == 300
    return causes


def test_a_spike_is_put_down_to_what_was_small_at_its_epoch_or_the_one_before():
    assert diagnosed(smallest_norm=299) == ["small norm"]
    assert diagnosed(margin=300) == ["cluster near a boundary"]
    assert diagnosed(margin=300, smallest_norm=300) == ["small norm", "cluster near a boundary"]
    assert diagnosed(margin=298, smallest_norm=301) == []


def test_small_is_below_a_tenth_of_the_quiet_epochs():
    """Epochs before the task was solved, and within 10 of a spike, are not quiet."""
    for place, causes in ((0.05, ["small norm"]), (0.2, [])):
        one = network(spikes=(300,))
        norm = one.dynamics["smallest_norm"]
        norm[:] = 0.0
        quiet = [*range(SOLVED, 290), *range(311, len(norm))]
        norm[quiet] = torch.linspace(1, 2, len(quiet), dtype=norm.dtype)
        norm[289:311] = 1 + place
        one.dynamics["margin"][:] = 1.0
        assert one.diagnoses()[0][1] == causes


def test_without_spikes_or_a_solution_there_is_no_diagnosis():
    assert network().diagnoses() == []
    assert weak(spikes=(300,), solved=10**6).diagnoses() == []


def test_a_spike_says_why_it_has_no_diagnosis():
    one = network(spikes=(300,))
    one.dynamics["train_loss"][100] = 9.0
    one.dynamics["margin"][:] = 1.0
    one.dynamics["smallest_norm"][:] = 1.0
    before_solving = "not diagnosed: before solving"
    assert diagnosis_texts(one) == {100: before_solving, 300: "neither norm nor margin small"}
    late = network(solved=N - 12, spikes=(N - 5,))
    assert diagnosis_texts(late) == {N - 5: "not diagnosed: no epoch is far from every spike"}
