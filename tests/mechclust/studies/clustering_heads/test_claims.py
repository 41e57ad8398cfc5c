"""Claims of the clustering-head study on constructed runs: each holds where it is true, and not where it is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mechclust.studies.clustering_heads.claims import claims_of
from mechclust.studies.clustering_heads.config import ClusteringHeadsConfig
from mechclust.studies.clustering_heads.results import HeadsResults, NetworkTraining, TrainedNetwork
from probes import ProbeResult

CONFIG = ClusteringHeadsConfig(seeds=(0, 1, 2, 3), mitigations=4)
N = 400
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
        "crossings": np.isin(epochs, spikes).astype(int),
    }
    axes = {name: ("epoch", "group") if values.ndim == 2 else ("epoch",) for name, values in curves.items()}
    coords = {"epoch": [str(e) for e in epochs], "group": ["a", "b", "c", "all"]}
    return ProbeResult("HeadDynamics", {k: torch.from_numpy(v) for k, v in curves.items()}, axes, coords)


def head(accuracy=1.0, integer=True, textbook=False, centroid=1.0, swap=1.0, ablated=0.5, misplaced=0.5, **run):
    def number(value):
        return torch.tensor(float(value), dtype=torch.float64)

    scalars = {"integer_head": number(integer), "verdict": number(2 if textbook else integer)}
    found = ProbeResult("ClusteringHead", scalars, dict.fromkeys(scalars, ()), {})
    checks = {"accuracy": number(accuracy), "majority_accuracy": number(0.5), "ablated_accuracy": number(ablated)}
    by_partition = {
        "centroid_accuracy": torch.tensor([0.4, centroid], dtype=torch.float64),
        "misplaced_accuracy": torch.tensor([0.4, misplaced], dtype=torch.float64),
        "swap_agreement": torch.tensor([0.4, swap], dtype=torch.float64),
    }
    axes = {**dict.fromkeys(checks, ()), **dict.fromkeys(by_partition, ("partition",))}
    causal = ProbeResult("causal_checks", {**checks, **by_partition}, axes, {"partition": ["multiset", "integer_sum"]})
    untrained = ProbeResult("ClusteringHead", {"integer_head": number(0)}, {"integer_head": ()}, {})
    return TrainedNetwork(dynamics(accuracy=accuracy, **run), 0, 2, found, causal, untrained)


def runs(*heads, final=None, mitigated=None, curriculum=None):
    heads = {i: replace(h, seed=i) for i, h in enumerate(heads)}
    base = {"base": {i: (h.accuracy, h.accuracy) for i, h in heads.items()}}
    return HeadsResults(heads, mitigated or {}, {**base, **(final or {})}, curriculum or {})


def claim(id, *heads, **rest):
    return next(c for c in claims_of(CONFIG, runs(*heads, **rest)) if c.id == id)


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
    found = claim("H1", *[head(accuracy=1.0 if i < solved else 0.5) for i in range(100)])
    assert (found.measured, found.verdict, found.seeds) == (solved / 100, verdict, 100)
    low, high = found.interval
    assert 0 <= low < solved / 100 + 0.01
    assert high > solved / 100 - 0.01


def test_h1a_names_solved_networks_without_an_integer_head():
    """No share's interval is 1 alone: that every one is cannot be shown, only refuted."""
    assert claim("H1a", head(), head(accuracy=0.5, integer=False)).verdict == "undecided"
    found = claim("H1a", head(), head(integer=False))
    assert (found.verdict, found.measured) == ("does not hold", 0.5)
    assert "solved without one: seeds 1" in found.note


def test_h1b_counts_textbook_heads_among_the_solved():
    assert claim("H1b", *20 * [head()], *4 * [head(textbook=True)]).verdict == "holds"
    assert claim("H1b", head(), head(), head(textbook=True)).verdict == "undecided"
    assert claim("H1b", *4 * [head()], *20 * [head(textbook=True)]).verdict == "does not hold"


def test_h1c_wants_both_sides_right():
    strong, weak = 40 * [head(accuracy=0.9)], 40 * [head(accuracy=0.6, integer=False)]
    assert claim("H1c", *strong, *weak).verdict == "holds"
    assert claim("H1c", *strong, *weak[:4]).verdict == "undecided"
    assert claim("H1c", *strong, *40 * [head(accuracy=0.6)]).verdict == "does not hold"
    assert claim("H1c", *40 * [head(accuracy=0.9, integer=False)], *weak).verdict == "does not hold"


@pytest.mark.parametrize(
    ("solved", "verdict"),
    [(17, "holds"), (9, "undecided"), (25, "undecided"), (3, "does not hold"), (34, "does not hold")],
)
def test_h1d_compares_shares(solved, verdict):
    final = {"replication": {seed: (1.0, 1.0 if seed < solved else 0.5) for seed in range(40)}}
    assert claim("H1d", head(), final=final).verdict == verdict


def test_h2_is_the_order_of_two_dates():
    found = claim("H2", *20 * [head()], *20 * [head(formed=120)])
    assert (found.measured, found.verdict) == (1.0, "holds")
    assert "median lead 40 epochs" in found.note
    assert claim("H2", head(), head()).verdict == "undecided"
    assert claim("H2", head(formed=SOLVED + 1), head()).measured == 0.5
    assert claim("H2", head(formed=N), head()).measured == 0.5  # a head that never forms is no success
    assert claim("H2", head(integer=False), head()).seeds == 1  # no final partition to follow


def test_h3_looks_from_where_the_loss_is_that_of_guessing():
    def verdict(one):
        return claim("H3", *40 * [one]).verdict

    assert verdict(head()) == "holds"  # the fall from 2.0 to .69 at the start does not count
    assert verdict(head(peak=300)) == "does not hold"
    assert verdict(head(peak=SOLVED + 10)) == "holds"
    assert verdict(head(peak=SOLVED + 11)) == "does not hold"


def test_h3b_leaves_spikes_out():
    spiky = head(spikes=(250,), peak=250)
    assert claim("H3", *40 * [spiky]).verdict == "does not hold"
    assert claim("H3b", *40 * [head(spikes=(250,))]).verdict == "holds"


def test_h4a_compares_spikes_with_quiet_epochs():
    spiky = head(spikes=(200, 250, 300)), head(spikes=(220,))
    found = claim("H4a", *spiky)
    assert (found.measured, found.verdict, found.seeds) == (1.0, "holds", 2)
    assert "cluster near a boundary at 4 of 4" in found.note
    assert "changes its class at 4 of 4" in found.note
    assert claim("H4e", *spiky).measured > 0
    far = head(spikes=(200, 250, 300), near=False)
    assert claim("H4a", far, far).verdict == "does not hold"
    assert claim("H4a", spiky[0], spiky[0], far).verdict == "undecided"  # its mean is above 0, its interval is not


def test_h4e_looks_at_the_epoch_before():
    late = head(spikes=(200,))
    late.dynamics["margin"][199] = 2.0  # small at the spike alone
    assert claim("H4a", late, late).measured == 1.0
    assert claim("H4e", late, late).measured <= 0


def test_h4a_without_spikes_is_not_tested():
    found = claim("H4a", head())
    assert (found.verdict, found.measured, found.seeds) == ("not tested", None, 0)


def test_h4b_counts_spikes_after_solving_in_the_same_seeds():
    heads = [head(spikes=(200, 250)), head(spikes=(260,)), head(accuracy=0.5, solved=N), head(solved=N - 50)]
    calm = {i: NetworkTraining(dynamics()) for i in range(4)}
    found = claim("H4b", *heads, mitigated={"larger eps": calm}, final={"larger eps": {0: (1.0, 1.0)}})
    assert found.seeds == 2  # the third never solves it, the fourth too late to count
    assert found.measured == pytest.approx(100 * 1.5 / (N - 1 - SOLVED))
    assert "2 of 4 seeds left out" in found.note
    assert claim("H4b", heads[0], heads[0], mitigated={"larger eps": calm}).verdict == "holds"
    wild = {i: NetworkTraining(dynamics(spikes=(200, 250, 300, 350))) for i in range(2)}
    assert claim("H4c", heads[0], heads[0], mitigated={"slower feed-forward": wild}).verdict == "does not hold"


def test_h4d_counts_from_where_the_rate_drops():
    config = replace(CONFIG, epochs=500)
    late = {0: NetworkTraining(dynamics(spikes=(200, 300)))}
    found = next(
        c for c in claims_of(config, runs(head(spikes=(200,)), mitigated={"late smaller rate": late})) if c.id == "H4d"
    )
    assert found.measured == pytest.approx(-100 / (N - 1 - 250))


def curriculum(scratch_test, test):
    return ProbeResult(
        "Curriculum",
        {
            "accuracy": torch.tensor([[1.0, scratch_test], [1.0, test]], dtype=torch.float64),
            "first_accuracy": torch.tensor([1.0, 0.9], dtype=torch.float64),
            "line": torch.tensor([0.0, 25.0, 1.0], dtype=torch.float64),
        },
        {"accuracy": ("arm", "split"), "first_accuracy": ("split",), "line": ("place",)},
        {"arm": ["scratch", "curriculum"], "split": ["train", "test"], "place": ["0", "0.5", "1"]},
    )


def test_h5_wants_memory_from_scratch_and_generality_from_the_curriculum():
    found = claim("H5", head(), curriculum={0: curriculum(0.25, 1.0), 1: curriculum(0.3, 0.98)})
    assert (found.verdict, found.measured) == ("undecided", pytest.approx(0.99))
    assert "barrier in loss on the straight line between the two 24.0" in found.note
    for scratch, test, verdict in (
        (0.25, 1.0, "holds"), (1.0, 1.0, "does not hold"), (0.25, 0.9, "does not hold")
    ):  # fmt: skip
        assert claim("H5", head(), curriculum=dict.fromkeys((0, 1), curriculum(scratch, test))).verdict == verdict
    assert claim("H5", head()).verdict == "not tested"


@pytest.mark.parametrize(
    ("there", "scratch", "verdict"),
    [(20, 1, "holds"), (2, 1, "undecided"), (1, 1, "does not hold"), (0, 19, "does not hold")],
)
def test_h6_compares_the_same_seeds(there, scratch, verdict):
    final = {
        "transfer": {i: (1.0, 1.0 if i < there else 0.4) for i in range(20)},
        "scratch": {i: (1.0, 1.0 if i < scratch else 0.4) for i in range(40)},
    }
    found = claim("H6", head(), final=final)
    assert (found.verdict, found.seeds) == (verdict, 20)
    assert found.measured == pytest.approx((there - scratch) / 20)
    assert f"{there} of 20 by transfer" in found.note
    assert f"from scratch over all 40 seeds {scratch / 40:.3f}" in found.note
    assert claim("H6", head()).verdict == "not tested"


def test_h7_needs_all_three_interventions():
    assert claim("H7", head(), head()).verdict == "holds"
    assert claim("H7", *2 * [head(centroid=0.9)]).verdict == "does not hold"
    assert claim("H7", *2 * [head(swap=0.9)]).verdict == "does not hold"
    assert claim("H7", *2 * [head(ablated=0.6)]).verdict == "does not hold"
    assert claim("H7", head(), head(accuracy=0.5, centroid=0.1)).seeds == 1  # solved networks alone


def test_h7c_is_a_control_that_a_deaf_model_fails():
    assert claim("H7c", head(), head()).verdict == "holds"
    assert claim("H7c", *2 * [head(misplaced=1.0)]).verdict == "does not hold"


def test_a_size_that_tests_nothing_says_so():
    claims = claims_of(replace(CONFIG, test_claims=False), runs(head(), head()))
    assert {c.verdict for c in claims} == {"not tested"}
