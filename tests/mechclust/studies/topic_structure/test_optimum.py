"""The minimiser with weight decay: of some documents, of all documents of a length, and in the limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mechclust.models import build_model
from mechclust.studies.topic_structure import TopicTransformerConfig, stage_one_value
from mechclust.studies.topic_structure.follow import DevLoss, WayToMinimiser
from mechclust.studies.topic_structure.optimum import (
    drawn_moments,
    minimiser,
    moments_of,
    population_moments,
    value_distance,
)
from probes.engine.hooked_model import forward
from tasks import InputError, TopicDocuments

EXACT = TopicDocuments(
    n_topics=3,
    words_per_topic=2,
    sampler="subset",
    topics_per_document=2,
    objective="squared",
    boundaries=False,
    exact_shares=True,
    lengths=(20, 20),
    selected_share=0.3,
    correct_share=0.4,
    random_share=0.2,
    n_documents=60,
)
UNIFORM = TopicTransformerConfig(
    d_vocab=EXACT.d_vocab, embedding="one-hot", decoder="identity", bias=False, attention="uniform"
)


def set_to(value):
    model = build_model(UNIFORM)
    with torch.no_grad():
        model.blocks[0].attn.W_V.copy_(value.T)
    return model


class TestMinimiser:
    @pytest.mark.parametrize("task", [EXACT, replace(EXACT, exact_shares=False, lengths=(9, 20))], ids=["exact", "any"])
    def test_has_no_gradient_on_its_documents(self, task):
        decay = 0.01
        model = set_to(minimiser(moments_of(task), decay)).double()
        (batch,) = task.batches("train", task.n_documents)
        (task.d_vocab * task.loss(forward(model, batch), batch)).backward()  # the sum over outputs
        weight = model.blocks[0].attn.W_V
        assert float(weight.detach().abs().max()) > 0.05
        torch.testing.assert_close(weight.grad, -decay * weight.detach(), rtol=0, atol=1e-6)

    def test_needs_weight_decay(self):
        with pytest.raises(InputError, match=r"weight_decay is 0\.0; expected a positive number"):
            minimiser(population_moments(EXACT), 0.0)


class TestPopulation:
    def test_is_the_mean_over_many_documents(self):
        (found,) = drawn_moments(EXACT, (20_000,), seed=3)
        known = population_moments(EXACT)
        for a, b in zip(found, known, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1.5e-3)
            assert float(b.max()) > 0.01
        # what sets the words of a topic apart from each other, far above the noise
        assert float(known.targets[4, 4] - known.targets[4, 5]) > 2e-3

    def test_tends_to_the_closed_form(self):
        task = replace(EXACT, lengths=(100_000, 100_000))
        assert value_distance(minimiser(population_moments(task), 1e-3), stage_one_value(task), task) < 0.02
        assert value_distance(minimiser(population_moments(EXACT), 1e-3), stage_one_value(EXACT), EXACT) > 0.1

    @pytest.mark.parametrize("fields", [{"sampler": "dirichlet"}, {"exact_shares": False}, {"lengths": (10, 20)}])
    def test_is_known_for_theorys_documents_only(self, fields):
        with pytest.raises(InputError, match="population moments are known for documents with sampler 'subset'"):
            population_moments(replace(EXACT, **fields))


class TestDrawn:
    def test_goes_on_from_the_documents_before(self):
        first, second = drawn_moments(EXACT, (30, 70), seed=1)
        (alone,) = drawn_moments(EXACT, (30,), seed=1)
        assert torch.equal(first.inputs, alone.inputs)
        rest = 70 / 40 * second.inputs - 30 / 40 * first.inputs  # of the 40 that came after
        assert float(rest.sum()) == pytest.approx(1)
        assert not torch.allclose(rest, first.inputs, atol=1e-4)

    def test_has_other_documents_for_another_seed(self):
        (one,), (other,) = drawn_moments(EXACT, (30,), seed=1), drawn_moments(EXACT, (30,), seed=2)
        assert not torch.equal(one.inputs, other.inputs)

    def test_comes_nearer_to_the_population_with_the_root_of_the_documents(self):
        ladder, goal = (250, 1000, 4000, 16_000), minimiser(population_moments(EXACT), 0.01)
        far = [value_distance(minimiser(of, 0.01), goal, EXACT) for of in drawn_moments(EXACT, ladder, seed=5)]
        assert -0.7 < np.polyfit(np.log(ladder), np.log(far), 1)[0] < -0.3


class TestFollow:
    def test_the_way_ends_where_the_minimiser_is(self):
        from mechclust.studies.topic_structure.arms import DECAY

        way = WayToMinimiser(EXACT)
        way(0, set_to(torch.zeros(EXACT.d_vocab, EXACT.d_vocab)))
        way(7, set_to(minimiser(moments_of(EXACT), DECAY)))
        result = way.compute()
        assert result.coords["step"] == ["0", "7"]
        assert result["own"].tolist() == pytest.approx([1, 0], abs=1e-5)
        assert float(result["other"][1]) > 0.1
        assert float(result["closed"][1]) > 0.1

    def test_the_loss_is_that_of_all_development_documents(self):
        task, model = replace(EXACT, objective="cross-entropy"), set_to(stage_one_value(EXACT))
        dev = DevLoss(task)
        dev(3, model)
        (batch,) = task.batches("dev", task.n_documents)
        with torch.no_grad():
            expected = task.loss(forward(model, batch), batch)
        assert float(dev.compute()["loss"][0]) == pytest.approx(float(expected), rel=1e-5)
