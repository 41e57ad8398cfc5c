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


@pytest.mark.parametrize(("solved", "holds"), [(0, False), (1, True), (2, True), (3, False)])
def test_h1_is_a_share_within_two_bounds(solved, holds):
    found = claim("H1", *[head(accuracy=1.0 if i < solved else 0.5) for i in range(4)])
    assert (found.measured, found.holds, found.seeds) == (solved / 4, holds, 4)
    low, high = found.interval
    assert 0 <= low < solved / 4 + 0.01
    assert high > solved / 4 - 0.01


def test_h1a_names_solved_networks_without_an_integer_head():
    assert claim("H1a", head(), head(accuracy=0.5, integer=False)).holds
    found = claim("H1a", head(), head(integer=False))
    assert (found.holds, found.measured) == (False, 0.5)
    assert "solved without one: seeds 1" in found.note


def test_h1b_counts_textbook_heads_among_the_solved():
    assert claim("H1b", head(), head(), head(textbook=True)).holds
    assert not claim("H1b", head(), head(textbook=True)).holds


def test_h1c_wants_both_sides_right():
    strong, weak = head(accuracy=0.9), head(accuracy=0.6, integer=False)
    assert claim("H1c", strong, weak).holds
    assert not claim("H1c", strong, head(accuracy=0.6)).holds
    assert not claim("H1c", head(accuracy=0.9, integer=False), weak).holds


@pytest.mark.parametrize(("solved", "holds"), [(17, True), (9, True), (8, False), (25, True), (26, False)])
def test_h1d_compares_shares(solved, holds):
    final = {"replication": {seed: (1.0, 1.0 if seed < solved else 0.5) for seed in range(40)}}
    assert claim("H1d", head(), final=final).holds is holds


def test_h2_is_the_order_of_two_dates():
    found = claim("H2", head(), head(formed=120))
    assert (found.measured, found.holds) == (1.0, True)
    assert "median lead 40 epochs" in found.note
    assert claim("H2", head(formed=SOLVED + 1), head()).measured == 0.5
    assert claim("H2", head(formed=N), head()).measured == 0.5  # a head that never forms is no success
    assert claim("H2", head(integer=False), head()).seeds == 1  # no final partition to follow


def test_h3_looks_from_where_the_loss_is_that_of_guessing():
    assert claim("H3", head()).holds  # the fall from 2.0 to .69 at the start does not count
    assert not claim("H3", head(peak=300)).holds
    assert claim("H3", head(peak=SOLVED + 10)).holds
    assert not claim("H3", head(peak=SOLVED + 11)).holds


def test_h3b_leaves_spikes_out():
    spiky = head(spikes=(250,), peak=250)
    assert not claim("H3", spiky).holds
    assert claim("H3b", head(spikes=(250,))).holds


def test_h4a_compares_spikes_with_quiet_epochs():
    spiky = head(spikes=(200, 250, 300)), head(spikes=(220,))
    found = claim("H4a", *spiky)
    assert (found.measured, found.holds, found.seeds) == (1.0, True, 2)
    assert "cluster near a boundary at 4 of 4" in found.note
    assert "changes its class at 4 of 4" in found.note
    assert claim("H4e", *spiky).measured > 0
    far = head(spikes=(200, 250, 300), near=False)
    assert not claim("H4a", far, far).holds
    assert not claim("H4a", spiky[0], spiky[0], far).holds  # its mean is above 0, its interval is not


def test_h4e_looks_at_the_epoch_before():
    late = head(spikes=(200,))
    late.dynamics["margin"][199] = 2.0  # small at the spike alone
    assert claim("H4a", late, late).measured == 1.0
    assert claim("H4e", late, late).measured <= 0


def test_h4a_without_spikes_is_not_tested():
    found = claim("H4a", head())
    assert (found.holds, found.measured, found.seeds) == (None, None, 0)


def test_h4b_counts_spikes_after_solving_in_the_same_seeds():
    heads = [head(spikes=(200, 250)), head(spikes=(260,)), head(accuracy=0.5, solved=N), head(solved=N - 50)]
    calm = {i: NetworkTraining(dynamics()) for i in range(4)}
    found = claim("H4b", *heads, mitigated={"larger eps": calm}, final={"larger eps": {0: (1.0, 1.0)}})
    assert found.seeds == 2  # the third never solves it, the fourth too late to count
    assert found.measured == pytest.approx(100 * 1.5 / (N - 1 - SOLVED))
    assert "2 of 4 seeds left out" in found.note
    assert claim("H4b", heads[0], heads[0], mitigated={"larger eps": calm}).holds
    wild = {i: NetworkTraining(dynamics(spikes=(200, 250, 300, 350))) for i in range(2)}
    assert not claim("H4c", *heads[:2], mitigated={"slower feed-forward": wild}).holds


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
    assert (found.holds, found.measured) == (True, pytest.approx(0.99))
    assert "barrier in loss on the straight line between the two 24.0" in found.note
    assert not claim("H5", head(), curriculum={0: curriculum(1.0, 1.0)}).holds
    assert not claim("H5", head(), curriculum={0: curriculum(0.25, 0.9)}).holds
    assert claim("H5", head()).holds is None


@pytest.mark.parametrize(("there", "scratch", "holds"), [(20, 1, True), (2, 1, False), (1, 1, False), (0, 19, False)])
def test_h6_compares_the_same_seeds(there, scratch, holds):
    final = {
        "transfer": {i: (1.0, 1.0 if i < there else 0.4) for i in range(20)},
        "scratch": {i: (1.0, 1.0 if i < scratch else 0.4) for i in range(40)},
    }
    found = claim("H6", head(), final=final)
    assert (found.holds, found.seeds) == (holds, 20)
    assert found.measured == pytest.approx((there - scratch) / 20)
    assert f"{there} of 20 by transfer" in found.note
    assert f"from scratch over all 40 seeds {scratch / 40:.3f}" in found.note
    assert claim("H6", head()).holds is None


def test_h7_needs_all_three_interventions():
    assert claim("H7", head(), head()).holds
    assert not claim("H7", head(centroid=0.9)).holds
    assert not claim("H7", head(swap=0.9)).holds
    assert not claim("H7", head(ablated=0.6)).holds
    assert claim("H7", head(), head(accuracy=0.5, centroid=0.1)).seeds == 1  # solved networks alone


def test_h7c_is_a_control_that_a_deaf_model_fails():
    assert claim("H7c", head()).holds
    assert not claim("H7c", head(misplaced=1.0)).holds


def test_a_size_that_tests_nothing_says_so():
    claims = claims_of(replace(CONFIG, test_claims=False), runs(head(), head()))
    assert {c.holds for c in claims} == {None}
