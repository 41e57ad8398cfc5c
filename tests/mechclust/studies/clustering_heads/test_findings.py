"""Findings of the clustering-head study on constructed runs: each holds where it is true, and not where it is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mechclust.studies.clustering_heads.findings import findings_of
from mechclust.studies.clustering_heads.config import ClusteringHeadsConfig
from mechclust.studies.clustering_heads.curriculum_findings import curriculum_findings
from mechclust.studies.clustering_heads.dynamics_findings import dynamics_findings
from mechclust.studies.clustering_heads.head_findings import head_findings
from mechclust.studies.clustering_heads.intervention_figures import intervention_panels
from mechclust.studies.clustering_heads.replay import FROZEN
from mechclust.studies.clustering_heads.results import HeadsResults, NetworkTraining, TrainedNetwork
from mechclust.studies.clustering_heads.solved_findings import solved_findings
from mechclust.studies.clustering_heads.start_findings import start_findings
from mechclust.studies.clustering_heads.start_figures import circuits
from probes import ProbeResult

N = 400
CONFIG = ClusteringHeadsConfig(seeds=(0, 1, 2, 3), mitigations=4, epochs=N, test_findings=False)
FORMED, SOLVED = 100, 150  # epochs of the constructed run


def end(before, accuracy):
    """Accuracy that passes the mark when it is solved, and ends as told."""
    values = np.where(before, 0.5, 1.0)
    values[-1] = accuracy
    return values


def dynamics(formed=FORMED, solved=SOLVED, spikes=(), near=True, peak=None, accuracy=None):
    """A run whose head forms and whose loss falls at given epochs; spikes come with a small margin if ``near``."""
    epochs = np.arange(N)
    loss = np.where(epochs < solved, 0.69, 0.01)
    loss[0] = 2.0
    margin, norm = 1.0 + 0.1 * np.sin(epochs), 1.0 + 0.1 * np.cos(epochs)
    gradient = np.ones((N, 4))
    gradient[min(solved, N - 1) if peak is None else peak] = 50.0
    for spike in spikes:
        loss[spike] = 0.3
        margin[spike - 1 : spike + 1] = 0.01 if near else 2.0
        norm[spike - 1 : spike + 1] = 2.0
    curves = {
        "train_loss": loss,
        "test_loss": loss,
        "train_accuracy": np.where(epochs < solved, 0.5, 1.0),
        "test_accuracy": np.where(epochs < solved, 0.5, 1.0) if accuracy is None else end(epochs < solved, accuracy),
        "within_ratio": np.where(epochs < formed, 0.9, 0.01),
        "smallest_norm": norm,
        "margin": margin,
        "gradient_norm": gradient,
    }
    axes = {name: ("epoch", "group") if values.ndim == 2 else ("epoch",) for name, values in curves.items()}
    coords = {"epoch": [str(e) for e in epochs], "group": ["a", "b", "c", "all"]}
    return ProbeResult("HeadDynamics", {k: torch.from_numpy(v) for k, v in curves.items()}, axes, coords)


def number(value):
    return torch.tensor(float(value), dtype=torch.float64)


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def head(
    accuracy=1.0, integer=True, textbook=False, plane=False, ready=(SOLVED, SOLVED + 40), gone=(), follows=1.0,
    by_sum=0.6, random=0.5, wrong=0.5, **run,
):  # fmt: skip
    scalars = {
        "integer_head": number(integer),
        "verdict": number(2 if textbook else integer),
        "integer_match": number(integer),
        "integer_accuracy": number(1),
        "integer_deviation": number(0.1 if integer else 0.4),
        "planar_match": number(plane),
        "planar_accuracy": number(1),
        "planar_deviation": number(0.1),
    }
    found = ProbeResult("ClusteringHead", scalars, dict.fromkeys(scalars, ()), {})
    untrained = ProbeResult("ClusteringHead", {"integer_head": number(0)}, {"integer_head": ()}, {})
    parts = {"stitching": stitched(*ready), "replay": replayed(gone), "donors": donors(follows, by_sum, random, wrong)}
    trained = dynamics(accuracy=accuracy, **run)
    return TrainedNetwork(trained, 0, 2, found, untrained, **parts)


def stitched(head, classifier):
    epochs = np.arange(N)
    curves = {
        "head_accuracy": epochs >= head,
        "classifier_accuracy": epochs >= classifier,
        "accuracy": epochs >= SOLVED,
    }
    values = {name: torch.from_numpy(np.where(there, 1.0, 0.5)) for name, there in curves.items()}
    return ProbeResult("Stitching", values, dict.fromkeys(values, ("epoch",)), {"epoch": [str(e) for e in epochs]})


def replayed(gone):
    """``gone``: for each spike whether it is without norm direction, norm scale, wedges, attention."""
    gone = torch.tensor([[*row, 0, 0] for row in gone], dtype=torch.float64).reshape(-1, len(FROZEN))
    values = {
        "gone": gone,
        "loss": 0.1 - 0.09 * gone,
        "spike_loss": gone[:, 0] * 0 + 0.3,
        "quiet_loss": gone[:, 0] * 0 + 0.01,
    }
    axes = {name: ("spike", "frozen") if x.ndim == 2 else ("spike",) for name, x in values.items()}
    return ProbeResult("Replay", values, axes, {"spike": [str(i) for i in range(len(gone))], "frozen": list(FROZEN)})


def donors(follows, by_sum, random, wrong):
    values = {
        "follows": numbers([1.0, follows, random], [1.0, by_sum, random]),
        "random_draws": torch.full((2, 4), random, dtype=torch.float64),
        "wrong_accuracy": numbers(wrong, wrong),
        "accuracy": numbers(1.0, 1.0),
    }
    axes = {"follows": ("partition", "kind"), "random_draws": ("partition", "draw")}
    axes |= dict.fromkeys(("wrong_accuracy", "accuracy"), ("partition",))
    coords = {"partition": ["head", "sum"], "kind": ["output", "centroid", "random classes"], "draw": list("0123")}
    return ProbeResult("FollowTheDonor", values, axes, coords, metadata={"classes": [6, 6]})


def runs(*heads, final=None, mitigated=None, curriculum=None, full_batch=None, **more):
    heads = {i: replace(h, seed=i) for i, h in enumerate(heads)}
    base = {"base": {i: (h.accuracy, h.accuracy) for i, h in heads.items()}}
    return HeadsResults(heads, mitigated or {}, {**base, **(final or {})}, curriculum or {}, full_batch or {}, **more)


def finding(id, *heads, config=None, **rest):
    """A finding, judged without its null draws unless a configuration is given; a size that tests it."""
    config = config or replace(CONFIG, test_findings=True)
    results = runs(*heads, **rest)
    findings = [
        *solved_findings(config, results), *dynamics_findings(config, results), *curriculum_findings(config, results),
        *start_findings(results), *head_findings(results),
    ]  # fmt: skip
    (found,) = (f for f in findings if f.id == id)
    return found.judgement() if found.data is None else found.claimed(found.data, why_not=found.why_not)


@pytest.mark.parametrize(
    ("solved", "verdict"),
    [
        (0, "does not hold"),
        (10, "does not hold"),
        (30, "undecided"),
        (42, "holds"),
        (55, "undecided"),
        (90, "does not hold"),
    ],
)
def test_h1_is_a_share_within_two_bounds(solved, verdict):
    found = finding("H1", *[head(accuracy=1.0 if i < solved else 0.5) for i in range(100)])
    assert (found.measured, found.verdict, found.seeds) == (solved / 100, verdict, 100)
    low, high = found.interval
    assert 0 <= low < solved / 100 + 0.01
    assert high > solved / 100 - 0.01


def test_h1a_finds_lines_and_planes_and_names_what_it_misses():
    weak = 40 * [head(accuracy=0.6, integer=False)]
    assert finding("H1a", *40 * [head()], *weak).verdict == "holds"
    plane = [head(integer=False, plane=True)]
    assert finding("H1a", *20 * [head()], *20 * plane, *weak).verdict == "holds"
    found = finding("H1a", head(), head(integer=False), *weak, head(accuracy=0.9))
    assert (found.verdict, found.measured) == ("undecided", 0.5)
    assert "solved without: seeds 1; 1 networks in between are left out" in found.note
    assert finding("H1a", *40 * [head()], *40 * [head(accuracy=0.6)]).verdict == "does not hold"
    assert finding("H1a", head()).note.startswith(
        "not tested: networks above 0.98 and networks at 0.75 or below are needed"
    )


def test_h1b_counts_textbook_heads_among_the_solved():
    assert finding("H1b", *20 * [head()], *4 * [head(textbook=True)]).verdict == "holds"
    assert finding("H1b", head(), head(), head(textbook=True)).verdict == "undecided"
    assert finding("H1b", *4 * [head()], *20 * [head(textbook=True)]).verdict == "does not hold"


def test_h1c_is_an_area_with_an_interval_over_networks():
    weak = 40 * [head(accuracy=0.6, integer=False)]
    found = finding("H1c", *40 * [head()], *weak)
    assert (found.measured, found.verdict, found.seeds) == (1.0, "holds", 40)
    half = [*20 * [head()], *20 * [head(integer=False, plane=True)]]
    assert finding("H1c", *half, *weak).measured == 0.75  # half above all, half equal to all
    assert finding("H1c", *half, *weak).verdict == "does not hold"
    assert finding("H1e", *half, *weak).verdict == "holds"


@pytest.mark.parametrize(
    ("solved", "verdict"),
    [(17, "holds"), (9, "undecided"), (25, "undecided"), (3, "does not hold"), (34, "does not hold")],
)
def test_h1d_compares_shares(solved, verdict):
    final = {"replication": {seed: (1.0, 1.0 if seed < solved else 0.5) for seed in range(40)}}
    assert finding("H1d", head(), final=final).verdict == verdict


def test_h2_is_the_order_in_which_head_and_classifier_are_ready():
    found = finding("H2", *20 * [head()])
    assert (found.measured, found.verdict) == (1.0, "holds")
    assert "median lead 40 epochs; ready at epoch 150 and 190" in found.note
    assert finding("H2", *20 * [head(ready=(190, 150))]).verdict == "does not hold"
    together = finding("H2", *20 * [head(ready=(150, 150))])
    assert together.note.startswith("not tested: both parts are always ready at the same epoch")
    mixed = finding("H2", *20 * [head()], *30 * [head(ready=(150, 150))])
    assert (mixed.seeds, mixed.verdict) == (20, "holds")
    assert "30 runs in which both are ready at the same epoch are left out" in mixed.note
    assert finding("H2", *10 * [head()], *10 * [head(ready=(190, 150))]).verdict == "undecided"
    assert finding("H2", head(integer=False), head(accuracy=0.5)).seeds == 1  # every solved network, no other


def test_h2b_is_the_mean_difference_before_solving():
    found = finding("H2b", head(ready=(75, 160)), head(ready=(90, 160)))
    assert found.per_seed == pytest.approx((0.25, 0.2))
    assert finding("H2b", head(ready=(160, 75)), head(ready=(160, 78))).verdict == "does not hold"


def test_h2b_without_epochs_before_solving_says_so():
    assert finding("H2b", head(solved=0)).note.startswith("not tested: every network is solved at the first snapshot")


def full_batch(peaks=True, drops=((100, 120), (200, 220)), second=0.5):
    """A run whose loss falls in phases; the feed-forward layer's part of the gradient there is .2, later ``second``."""
    epochs, loss, gradient = np.arange(N), np.full(N, 0.69), np.full((N, 4), 0.01)
    loss[:3] = 2.0
    level = [0.69, 0.36, 0.01]
    for k, (start, end) in enumerate(drops):
        loss[start:end] = np.linspace(level[k], level[k + 1], end - start)
        loss[end:] = level[k + 1]
        gradient[start - 5 : end + 5, 3] = 1.0 if peaks else 0.01
        gradient[start - 5 : end + 5, 2] = gradient[start, 3] * np.sqrt(0.2 if k == 0 else second)
    curves = {"train_loss": loss, "gradient_norm": gradient, "test_accuracy": np.ones(N)}
    axes = {name: ("epoch", "group") if values.ndim == 2 else ("epoch",) for name, values in curves.items()}
    coords = {"epoch": [str(e) for e in epochs], "group": ["embeddings", "attention", "feed-forward", "all"]}
    values = {name: torch.from_numpy(x) for name, x in curves.items()}
    return NetworkTraining(ProbeResult("HeadDynamics", values, axes, coords))


def test_h3_compares_the_gradient_where_the_loss_falls_with_plateaus():
    found = finding("H3", head(), full_batch={i: full_batch() for i in range(3)})
    assert (found.measured, found.verdict) == (pytest.approx(2.0), "holds")
    assert "falls of the loss: 2 in 3 of 3 runs" in found.note
    assert finding("H3", head(), full_batch={i: full_batch(peaks=False) for i in range(3)}).verdict == "does not hold"
    assert "the full-batch run was not made" in finding("H3", head()).note
    assert "the loss falls in none of the runs" in finding("H3", head(), full_batch={0: full_batch(drops=())}).note


def test_h3b_compares_the_feed_forward_share_of_two_falls():
    found = finding("H3b", head(), full_batch={i: full_batch(second=0.5 + 0.01 * i) for i in range(3)})
    assert (found.measured, found.verdict) == (pytest.approx(0.31, abs=0.01), "holds")
    once = {0: full_batch(drops=((100, 120),))}
    assert "no run has two falls of the loss" in finding("H3b", head(), full_batch=once).note


def test_h4a_and_h4f_compare_with_the_control_within_runs():
    calm = [head(gone=[(1, 0, 0, 0), (1, 0, 0, 0)]), head(gone=[(1, 0, 0, 0)]), head()]
    found = finding("H4a", *calm)
    assert (found.measured, found.verdict, found.seeds) == (1.0, "holds", 2)
    assert (
        "3 spikes of 2 runs; shares gone: norm direction 1.00, norm scale 0.00, wedges 0.00, attention 0.00"
        in found.note
    )
    assert finding("H4f", *calm).verdict == "does not hold"
    assert finding("H4g", *calm).verdict == "does not hold"
    both = [head(gone=[(1, 1, 1, 1), (0, 0, 0, 0)]), head(gone=[(1, 1, 1, 1)])]
    assert finding("H4f", *both).measured == 0  # whatever is frozen helps as much
    assert "no loss spike after the task was solved" in finding("H4a", head()).note


def test_h4b_counts_every_seed():
    heads = [head(spikes=(200, 250)), head(spikes=(260,)), head(accuracy=0.5, solved=N), head(solved=N - 50)]
    calm = {i: NetworkTraining(dynamics()) for i in range(4)}
    found = finding("H4b", *heads, mitigated={"larger eps": calm})
    assert found.per_seed == pytest.approx((0.5, 0.25, 0, 0))  # per 100 of 400 epochs; one never solved it
    assert found.parts[1].per_seed == (0, 0, 1, 0)
    assert "spikes after both have solved it 3 and 0, in 3 seeds; solved 0.75 and 1.00" in found.note
    wild = {i: NetworkTraining(dynamics(spikes=(200, 250, 300, 350))) for i in range(4)}
    worse = finding("H4c", *heads[:2], *heads[:2], mitigated={"slower feed-forward": wild})
    assert (worse.measured, worse.verdict) == (pytest.approx(-0.625), "does not hold")
    assert "this mitigation was not run" in finding("H4c", *heads).note


def test_h4b_does_not_hold_for_a_treatment_that_keeps_networks_from_solving():
    heads = [head(spikes=(200, 250, 300)), head(spikes=(200, 250)), head(spikes=(200, 250))]
    never = {i: NetworkTraining(dynamics(solved=N)) for i in range(3)}
    found = finding("H4b", *heads, mitigated={"larger eps": never})
    assert found.parts[0].per_seed == (0, 0, 0)  # there are no epochs to compare
    assert found.parts[1].per_seed == (-1, -1, -1)
    assert found.verdict == "does not hold"


def test_h4b_does_not_hold_for_a_treatment_that_only_solves_later():
    heads = [head(spikes=(200, 250, 300)) for _ in range(3)]
    late = {i: NetworkTraining(dynamics(solved=SOLVED + 150, formed=FORMED)) for i in range(3)}
    found = finding("H4b", *heads, mitigated={"larger eps": late})
    assert found.parts[0].per_seed == (0, 0, 0)  # all of the base's spikes came before
    assert found.parts[2].per_seed == pytest.approx((-150 / N,) * 3)
    assert found.verdict == "does not hold"


def test_h4b_is_not_fooled_by_spikes_as_often_in_networks_that_solve_later():
    """42 of 100 seeds, one spike in 170 epochs in either arm; the mitigated ones solve it 150 epochs later."""
    draw = np.random.default_rng(0)

    def spikes(start):
        return tuple(np.flatnonzero(draw.random(N - start) < 1 / 170) + start)

    solving = [head(spikes=spikes(SOLVED + 20)) for _ in range(42)]
    heads = [*solving, *(head(accuracy=0.5, solved=N) for _ in range(58))]
    late = {i: NetworkTraining(dynamics(solved=SOLVED + 150, spikes=spikes(SOLVED + 170))) for i in range(42)}
    late |= {i: NetworkTraining(dynamics(solved=N)) for i in range(42, 100)}
    found = finding("H4b", *heads, mitigated={"larger eps": late})
    assert found.parts[0].verdict != "holds"


def test_h4d_counts_from_where_the_rate_drops():
    late = {0: NetworkTraining(dynamics(spikes=(210, 300)))}
    found = finding("H4d", head(spikes=(170,)), mitigated={"late smaller rate": late})
    assert found.measured == pytest.approx(-1.0)  # two spikes in the 200 epochs of the second half, against none


def curriculum(scratch_test, test, matched=15.0, own=0.5, train=1.0):
    found = ProbeResult(
        "Curriculum",
        {
            "accuracy": torch.tensor([[train, scratch_test], [1.0, test]], dtype=torch.float64),
            "first_accuracy": torch.tensor([1.0, 0.9], dtype=torch.float64),
            "line": torch.tensor([0.0, 25.0, 1.0], dtype=torch.float64),
        },
        {"accuracy": ("arm", "split"), "first_accuracy": ("split",), "line": ("place",)},
        {"arm": ["scratch", "curriculum"], "split": ["train", "test"], "place": ["0", "0.5", "1"]},
    )
    lines = {"matched_line": numbers(0.0, 1 + matched, 1.0), "own_line": numbers([2.0, 1.0, 0.0], [1.0, 1 + own, 0.0])}
    axes = {"matched_line": ("place",), "own_line": ("arm", "place")}
    return replace(found, values={**found.values, **lines}, axes={**found.axes, **axes})


def curricula(scratch_test, test, n=4):
    """Runs whose accuracies differ by a thousandth; without a difference, so few decide nothing."""
    return {i: curriculum(scratch_test - i / 1000, test - i / 1000, train=1 - i / 1000) for i in range(n)}


def test_h5_wants_memory_from_scratch_and_generality_from_the_curriculum():
    found = finding("H5", head(), curriculum={0: curriculum(0.25, 1.0), 1: curriculum(0.3, 0.98)})
    assert (found.verdict, found.measured) == ("undecided", pytest.approx(0.99))
    for scratch, test, verdict in (
        (0.25, 1.0, "holds"), (1.0, 1.0, "does not hold"), (0.25, 0.9, "does not hold")
    ):  # fmt: skip
        assert finding("H5", head(), curriculum=curricula(scratch, test)).verdict == verdict
    assert finding("H5", head(), curriculum=dict.fromkeys(range(4), curriculum(0.25, 1.0))).verdict == "undecided"
    assert finding("H5", head()).verdict == "not tested"


def test_h5b_is_the_barrier_that_matching_leaves_beyond_that_of_one_run():
    found = finding("H5b", head(), curriculum={i: curriculum(0.25, 1.0, matched=10.0 + i) for i in range(4)})
    assert (found.verdict, found.measured) == ("holds", pytest.approx(11.0))
    assert "means: 24.0 without matching, 11.5 with, 0.5 from halfway to the end" in found.note
    low = dict.fromkeys(range(4), curriculum(0.25, 1.0, matched=0.1, own=3.0))
    assert finding("H5b", head(), curriculum=low).verdict == "does not hold"
    assert "the curriculum was not run" in finding("H5b", head()).note


def test_h5c_is_the_same_in_two_dimensions():
    narrow = curricula(0.25, 1.0)
    assert finding("H5c", head(), narrow_curriculum=narrow).verdict == "holds"
    assert "2 dimensions" in finding("H5c", head(), narrow_curriculum=narrow).statement
    assert finding("H5c", head(), curriculum=narrow).verdict == "not tested"


def curved(plateau, end):
    """Hessians whose smallest eigenvalue is the given share of the largest, with the loss of ``full_batch``."""
    shares = numbers(*[plateau] * 4, end)
    smallest = -2 * shares[:, None] + torch.arange(4)
    values = {"smallest": smallest, "largest": torch.full((5,), 2.0, dtype=torch.float64)}
    places = ["5", "10", "50", "60", str(N - 1)]
    axes = {"smallest": ("snapshot", "rank"), "largest": ("snapshot",)}
    return ProbeResult("Curvature", values, axes, {"snapshot": places, "rank": list("0123")})


@pytest.mark.parametrize(
    ("plateau", "end", "verdict"),
    [(0.2, 0.001, "holds"), (0.001, 0.2, "does not hold"), (0.005, 0.001, "does not hold")],
)
def test_h3c_wants_more_negative_curvature_on_the_plateau_than_at_the_end(plateau, end, verdict):
    runs_ = {i: full_batch() for i in range(3)}
    curvature = {i: curved(plateau * (1 + 0.01 * i), end) for i in range(3)}
    found = finding("H3c", head(), full_batch=runs_, curvature=curvature)
    assert (found.verdict, found.seeds) == (verdict, 3)
    assert found.measured == pytest.approx(1.01 * plateau - end)


def test_h3c_leaves_out_runs_that_do_not_solve_the_task():
    curvature = {0: curved(0.2, 0.0)}
    assert finding("H3c", head(), curvature=curvature).verdict == "not tested"
    failed = NetworkTraining(dynamics(accuracy=0.6))
    assert finding("H3c", head(), full_batch={0: failed}, curvature=curvature).verdict == "not tested"


def alone(solved):
    return NetworkTraining(dynamics(solved=solved))


def test_h8_is_the_share_of_second_stages_that_solve_the_task():
    assert finding("H8", head(), second_stage={i: alone(20) for i in range(25)}).verdict == "holds"
    some = {i: alone(20 if i < 12 else N) for i in range(25)}
    assert finding("H8", head(), second_stage=some).verdict == "does not hold"
    found = finding("H8b", *[head() for _ in range(4)], second_stage={i: alone(20 + i) for i in range(4)})
    assert (found.verdict, found.measured) == ("holds", pytest.approx(SOLVED - 21.5))
    never = finding("H8b", *[head() for _ in range(4)], second_stage={i: alone(N) for i in range(4)})
    assert never.measured == SOLVED - (N - 1)
    apart = finding("H8b", head(), second_stage={7: alone(20)})
    assert apart.note.startswith("not tested: no seed was trained in both ways")


def test_h9_compares_ideal_positions_with_the_same_seeds():
    base = [head(accuracy=1.0 if i < 5 else 0.5) for i in range(20)]
    arm = "start ideal positions"
    started = {arm: {i: head(textbook=i < 15).head for i in range(20)}}
    final = {arm: {i: (1.0, 1.0 if i < 15 else 0.5) for i in range(20)}}
    for id in ("H9", "H9b"):
        assert finding(id, *base, started=started, final=final).verdict == "holds"
    assert finding("H9", *base, started=started, final=final).measured == pytest.approx(0.5)
    assert finding("H9b", *base, started=started, final=final).measured == pytest.approx(0.75)
    same = {arm: {i: (1.0, 1.0 if i < 5 else 0.5) for i in range(20)}}
    assert finding("H9", *base, started=started, final=same).verdict != "holds"
    assert circuits(runs(*base, started=started, final={**final}), arm) == {
        "textbook": 15, "integer-weight": 0, "planar": 0, "neither": 0, "not solved": 5,
    }  # fmt: skip
    assert circuits(runs(*base, started=started, final=final), "base")["integer-weight"] == 5


@pytest.mark.parametrize(
    ("there", "scratch", "verdict"),
    [(20, 1, "holds"), (2, 1, "undecided"), (1, 1, "undecided"), (0, 19, "does not hold")],
)
def test_h6_compares_the_same_seeds(there, scratch, verdict):
    final = {
        "transfer": {i: (1.0, 1.0 if i < there else 0.4) for i in range(20)},
        "scratch": {i: (1.0, 1.0 if i < scratch else 0.4) for i in range(40)},
    }
    found = finding("H6", head(), final=final)
    assert (found.verdict, found.seeds) == (verdict, 20)
    assert found.measured == pytest.approx((there - scratch) / 20)
    assert f"{there} of 20 by transfer" in found.note
    assert f"from scratch over all 40 seeds {scratch / 40:.3f}" in found.note
    assert finding("H6", head()).verdict == "not tested"


def alike(**shares):
    """Four networks whose shares differ by a thousandth; without a difference, so few decide nothing."""
    return [head(**{name: share + i / 1000 for name, share in shares.items()}) for i in range(4)]


def test_h7_is_of_all_solved_networks_beyond_random_classes():
    assert finding("H7", head(), head(integer=False)).seeds == 2
    assert finding("H7", *alike(follows=0.99)).verdict == "holds"
    assert finding("H7", *alike(follows=0.9)).verdict == "does not hold"
    assert finding("H7", *2 * [head(random=0.9)]).verdict == "does not hold"  # random classes carry it as well
    assert finding("H7", *37 * [head()]).verdict == "undecided"  # one in twenty may be otherwise
    assert finding("H7", head(), head(accuracy=0.5, follows=0.1)).seeds == 1
    assert "clusters per network: 6 to 6" in finding("H7", head()).note
    assert finding("H7b", *alike(by_sum=0.6)).verdict == "does not hold"
    assert finding("H7b", *alike(by_sum=0.99)).verdict == "holds"


def test_h7c_is_a_control_that_a_deaf_model_fails():
    assert finding("H7c", *alike(wrong=0.5)).verdict == "holds"
    assert finding("H7c", *alike(wrong=0.99)).verdict == "does not hold"


def test_h7d_is_a_check():
    (found,) = (c for c in findings_of(CONFIG, runs(head(), head())) if c.id == "H7d")
    assert (found.kind, found.measured, found.severity_note) == ("check", 1.0, "")


@pytest.fixture(scope="module")
def findings():
    """The findings in full, on a run in which all is as predicted. Read only."""
    draw = np.random.default_rng(0)
    heads = [
        head(accuracy=1.0 if i < 17 else 0.6, integer=i < 17, textbook=i < 4, spikes=(250, 300) if i < 17 else (),
             solved=SOLVED if i < 17 else N, gone=[(1, 0, 1, 0), (0, 0, 1, 0)] if i < 17 else (),
             ready=(140 - int(draw.integers(20)), 180), follows=0.98 + i / 2000, by_sum=0.6)
        for i in range(40)
    ]  # fmt: skip
    calm = {i: NetworkTraining(dynamics(solved=SOLVED if i < 17 else N)) for i in range(40)}
    results = runs(
        *heads,
        final={
            "replication": {i: (1.0, 1.0 if i < 17 else 0.5) for i in range(40)},
            "transfer": {i: (1.0, 1.0 if i < 8 else 0.5) for i in range(17)},
            "scratch": {i: (1.0, 1.0 if i < 1 else 0.5) for i in range(40)},
            "start ideal positions": {i: (1.0, 1.0 if i % 8 else 0.5) for i in range(25)},
        },
        mitigated={"larger eps": calm},
        curriculum=curricula(0.25, 1.0, 10),
        full_batch={i: full_batch(second=0.4 + 0.05 * (i % 3)) for i in range(6)},
        curvature={i: curved(0.1 + 0.01 * i, 0.001) for i in range(6)},
        narrow_curriculum=curricula(0.25, 1.0, 10),
        second_stage={i: alone(20 + i % 25) for i in range(100)},
        started={"start ideal positions": {i: head(textbook=i < 20).head for i in range(25)}},
    )
    return {c.id: c for c in findings_of(replace(CONFIG, test_findings=True), results)}


class TestSeverity:
    def test_every_finding_that_is_tested_is_severe_and_has_power(self, findings):
        tested = {id: c for id, c in findings.items() if c.kind == "finding" and c.verdict != "not tested"}
        assert set(findings) - set(tested) == {"H4c", "H4d", "H7d"}  # these mitigations were not run
        assert {id: c.severity for id, c in tested.items() if not c.severity >= 0.95} == {}
        assert {id: c.severity_draws for id, c in tested.items() if c.severity_draws != 200} == {}
        powers = {id: c.power for id, c in tested.items() if c.power is not None}
        assert {id for id, power in powers.items() if power < 0.5} <= {"H1", "H1a", "H1b", "H1d"}
        for id in ("H1c", "H1e", "H2", "H2b", "H3b", "H3c", "H4a", "H4b", "H4f", "H5", "H5b", "H5c", "H7", "H8", "H8b"):
            assert findings[id].verdict == "holds", findings[id]

    def test_what_was_predicted_and_what_an_earlier_run_said_stand_with_them(self, findings):
        assert "predicted: undecided" in findings["H2"].note
        (earlier,) = findings["H2"].history
        assert (earlier.run, earlier.seeds, earlier.verdict) == ("paper, 2026-11-21, seeds 200 to 299", 25, "undecided")
        assert findings["H2b"].history == ()

    def test_the_same_data_give_figures(self):
        heads = [head(gone=[(1, 0, 0, 0)]), head(accuracy=0.5, integer=False)]
        results = runs(*heads, mitigated={"larger eps": {0: heads[0]}}, full_batch={i: full_batch() for i in range(2)},
                       curvature={i: curved(0.1, 0.0) for i in range(2)})  # fmt: skip
        panels = {panel.name: panel.figure for panel in intervention_panels(CONFIG, results)}
        assert list(panels) == ["stitching", "roc", "replay", "mitigations", "donors", "full_batch", "saddle"]
        (roc,) = panels["roc"].axes
        assert [text.get_text() for text in roc.get_legend().get_texts()] == [
            "line: area 1.000",
            "line or plane: area 1.000",
        ]
        loss, gradient, logarithmic = panels["full_batch"].axes[::2]
        assert [axis.get_yscale() for axis in (loss, gradient, logarithmic)] == ["linear", "linear", "log"]
        assert len(gradient.lines) == len(logarithmic.lines) == 3
        assert len(panels["saddle"].axes) == 3


def test_a_size_that_tests_nothing_says_so():
    findings = findings_of(CONFIG, runs(head(), head()))
    assert {c.verdict for c in findings} == {"not tested"}
