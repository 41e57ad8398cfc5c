"""Heads and classifiers of two epochs put together, and donors with another sum, against networks known by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mechclust.models import build_model
from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
from mechclust.studies.clustering_heads.donors import _donors, _shuffled, donors_by, follow_the_donor
from mechclust.studies.clustering_heads.stitching import stitching
from mechclust.training import accuracy
from tasks import InputError
from tests.probes.planted_heads import everything, ideal_head, solved_network


def stitched(head, classifier, batch):
    """Accuracy of two models put together, by their formula."""
    w = {k: v.detach() for k, v in classifier.named_parameters()}
    kept = []
    with head.hooks(fwd_hooks=[("blocks.0.attn.hook_z", lambda z, hook: kept.append(z.detach()[:, 0].flatten(1)))]):
        head(batch.tokens)
    (xi,) = kept
    normed = xi / (xi.square().mean(-1, keepdim=True).sqrt() + 1e-5)
    hidden = torch.nn.functional.gelu(normed @ w["blocks.0.mlp.W_in"] + w["blocks.0.mlp.b_in"])
    logits = (xi + hidden @ w["blocks.0.mlp.W_out"] + w["blocks.0.mlp.b_out"]) @ w["embed.W_E"].T
    return float((logits.argmax(-1) == batch.labels["answer"]).double().mean())


class TestStitching:
    def test_every_epoch_is_that_of_two_networks_put_together(self, trained):
        result = stitching(trained, 1)
        (batch,) = trained.tasks[1].batches("test", 48)
        end = trained.model(1)
        assert result.coords["epoch"] == [str(epoch) for epoch in trained.epochs]
        for i, step in enumerate(trained.steps):
            now = trained.model(1, step)
            assert float(result["head_accuracy"][i]) == pytest.approx(stitched(now, end, batch), abs=1e-5)
            assert float(result["classifier_accuracy"][i]) == pytest.approx(stitched(end, now, batch), abs=1e-5)

    def test_at_the_end_all_agree_and_before_they_differ(self, trained):
        result = stitching(trained, 0)
        at_end = accuracy(trained.model(0), trained.tasks[0], "test")[0]
        assert float(result["head_accuracy"][-1]) == float(result["classifier_accuracy"][-1]) == at_end
        assert not torch.equal(result["head_accuracy"], result["classifier_accuracy"])


class TestFollowTheDonor:
    def test_a_solved_network_reads_sums_and_not_answers(self):
        found = follow_the_donor(solved_network(), everything())
        assert float(found["accuracy"]) == 1
        assert found.sel("follows", kind="centroid") == 1
        assert float(found.sel("follows", kind="random classes")) < 0.7  # both answers' means are the same point
        assert found["random_draws"].shape == (20,)
        assert found["random_draws"].mean() == pytest.approx(float(found.sel("follows", kind="random classes")))
        assert found.metadata["classes"] == 6

    def test_classes_that_are_not_read_do_not_carry_the_answer(self):
        """Sums are six points: merged by answer, both means are the middle."""
        batch = everything()
        found = follow_the_donor(solved_network(), batch, batch.labels["answer"])
        assert float(found.sel("follows", kind="centroid")) == pytest.approx(0.5, abs=0.05)

    def test_a_network_with_one_answer_is_noted(self):
        model = ideal_head(8)
        with torch.no_grad():
            for weight in model.blocks[0].mlp.parameters():
                weight.zero_()
            model.blocks[0].mlp.b_out[0] = 50.0
        found = follow_the_donor(model, everything(), draws=2)
        assert found["follows"].isnan().all()
        assert found.notes == ["every donor has the recipient's prediction, so nothing can follow"]

    def test_donors_differ_in_sum_and_answer_and_draws_repeat(self):
        batch = everything()
        sums, answers = batch.labels["sum"], batch.labels["answer"]
        donors = _donors(sums, answers, np.random.default_rng(0))
        assert bool((sums[donors] != sums).all())
        assert bool((answers[donors] != answers).all())
        shuffled = _shuffled(sums, answers, np.random.default_rng(0))
        assert torch.equal(shuffled % 2, sums % 2)
        assert torch.equal(shuffled.bincount(), sums.bincount())
        model = build_model(PoolingTransformerConfig(seed=3))
        first, second = (follow_the_donor(model, batch, draws=2, seed=5)["random_draws"] for _ in range(2))
        assert torch.equal(first.nan_to_num(-1), second.nan_to_num(-1))

    def test_several_partitions_at_once(self):
        model, batch, drawn = solved_network(), everything(), {"draws": 2, "seed": 3}
        found = donors_by(model, batch, {name: batch.labels[name] for name in ("sum", "answer")}, **drawn)
        alone = follow_the_donor(model, batch, batch.labels["answer"], **drawn)
        assert torch.equal(found.sel("follows", partition="answer"), alone["follows"])
        untrained = build_model(PoolingTransformerConfig(seed=4))
        sums = {"sum": batch.labels["sum"]}
        (of_seed,) = donors_by(untrained, batch, sums, **drawn)["random_draws"]
        assert torch.equal(of_seed, follow_the_donor(untrained, batch, **drawn)["random_draws"])
        assert of_seed[0] != of_seed[1]
        assert float(found.sel("follows", partition="sum", kind="centroid")) == 1
        assert found.metadata["classes"] == [6, 2]

    def test_no_draws_are_refused(self):
        with pytest.raises(InputError, match="draws is 0; expected at least 1"):
            follow_the_donor(solved_network(), everything(), draws=0)

    def test_one_answer_is_refused(self):
        batch = everything()
        even = batch.select((batch.labels["answer"] == 0).nonzero()[:, 0])
        with pytest.raises(InputError, match="no example differs from those of sum 0 in sum and answer"):
            follow_the_donor(solved_network(), even)
