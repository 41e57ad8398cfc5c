"""Areas under ROC curves against scikit-learn's, planar lattices, and which clusters a head is taken to have."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from mechclust.studies.clustering_heads.detector import line_score, on_plane, planar_score, roc_area
from mechclust.studies.clustering_heads.run import head_classes
from probes import ClusteringHead, ProbeResult, run
from tests.probes.planted_heads import everything, solved_network


class TestRocArea:
    def test_is_sklearns_and_ties_count_half(self):
        draw = np.random.default_rng(3)
        positive, negative = draw.integers(2, 9, 30) / 10, draw.integers(0, 6, 50) / 10
        area, (low, high) = roc_area(positive, negative)
        labels = np.repeat([1, 0], [30, 50])
        assert area == pytest.approx(roc_auc_score(labels, np.concatenate([positive, negative])))
        assert low < area < high

    def test_its_interval_covers_the_truth_in_about_95_of_100(self):
        """Of normal scores a distance of 1 apart the area is Phi(1 / sqrt 2)."""
        truth, hits = 0.7602, 0
        for seed in range(100):
            draw = np.random.default_rng(seed)
            _, (low, high) = roc_area(draw.normal(1, 1, 40), draw.normal(0, 1, 40))
            hits += low <= truth <= high
        assert 88 <= hits <= 99


def result(**values):
    found = {name: torch.tensor(float(value)) for name, value in values.items()}
    return ProbeResult("ClusteringHead", found, dict.fromkeys(found, ()), {})


PLANE = {"planar_match": 1, "planar_accuracy": 1.0, "planar_deviation": 0.1}


class TestLattices:
    def test_a_plane_needs_residues_and_clusters(self):
        assert planar_score(result(**PLANE)) == pytest.approx(-0.1)
        assert on_plane(result(**PLANE))
        for name, value in (("match", 0), ("accuracy", 0.9), ("deviation", 0.3), ("match", np.nan)):
            assert not on_plane(result(**{**PLANE, f"planar_{name}": value}))
        assert not on_plane(result(integer_head=0))  # of before there were planar measures

    def test_a_line_needs_residues_and_clusters(self):
        line = {"integer_match": 1, "integer_accuracy": 1.0, "integer_deviation": 0.2}
        assert line_score(result(**line)) == pytest.approx(-0.2)
        assert line_score(result(**{**line, "integer_match": 0})) == -1
        assert line_score(result(**{**line, "integer_accuracy": 0.9})) == -1


def test_clusters_of_a_head_follow_one_rule():
    probe, batch = ClusteringHead(("multiset", "sum"), support=range(5), modulus=2), everything()
    head = run(solved_network(), batch, probe)
    assert torch.equal(head_classes(probe, head), probe.partition("blocks.0.attn.hook_z", 0)[1])
    plane = result(**PLANE, integer_head=0, integer_deviation=0.4)
    assert torch.equal(head_classes(probe, plane), probe.planar_fit("blocks.0.attn.hook_z", 0).classes)
    nothing = result(integer_head=0, integer_deviation=np.nan)
    assert torch.equal(head_classes(probe, nothing), batch.labels["multiset"])
