from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from mechclust.training import WeightNorms
from tasks import InputError


def planted(**weights: list[Any]) -> nn.Module:
    model = nn.Module()
    for name, value in weights.items():
        model.register_parameter(name, nn.Parameter(torch.tensor(value), requires_grad=name != "frozen"))
    return model


def test_norms_are_frobenius_norms_of_what_is_trained() -> None:
    model, norms = planted(a=[[3.0, 0.0], [0.0, 4.0]], frozen=[1.0], b=[[2.0, 1.0, 2.0]]), WeightNorms()
    norms(0, model)
    with torch.no_grad():
        model.a.mul_(2)
    norms(7, model)
    result = norms.compute()
    assert result["norm"].tolist() == [[5.0, 3.0], [10.0, 3.0]]  # not the spectral norm 4
    assert result["norm"].dtype == torch.float64
    assert result.axes == dict.fromkeys(("norm", "change"), ("step", "weight"))
    assert result.coords == {"step": ["0", "7"], "weight": ["a", "b"]}
    assert result.metadata["versions"]["torch"] == torch.__version__


def test_norms_are_copies_and_leave_no_graph() -> None:
    model, norms = planted(a=[3.0, 4.0]), WeightNorms()
    norms(0, model)
    with torch.no_grad():
        model.a.zero_()
    assert norms.compute()["norm"].tolist() == [[5.0]]
    assert not norms.compute()["norm"].requires_grad
    assert model.a.grad is None


def test_names_choose_weights_and_their_order_frozen_ones_too() -> None:
    model, norms = planted(a=[3.0], frozen=[1.0], b=[2.0]), WeightNorms(["b", "frozen"])
    norms(0, model)
    assert norms.compute().coords["weight"] == ["b", "frozen"]
    assert norms.compute().sel("norm", weight="b", step="0") == 2


def test_small_differences_of_large_norms_survive() -> None:
    """Norms are taken in float64, not rounded to float32 on the way."""
    model, norms = planted(a=[1e4, 1.0]), WeightNorms()
    norms(0, model)
    assert float(norms.compute()["norm"]) == pytest.approx((1e8 + 1) ** 0.5, rel=1e-14)


def test_a_weight_that_turns_changes_and_keeps_its_norm() -> None:
    model, norms = planted(a=[3.0, 4.0], b=[1.0]), WeightNorms()
    norms(2, model)
    with torch.no_grad():
        model.a.copy_(torch.tensor([-3.0, 4.0]))
    norms(3, model)
    result = norms.compute()
    assert result["norm"].tolist() == [[5.0, 1.0], [5.0, 1.0]]
    assert result["change"].tolist() == [[0.0, 0.0], [6.0, 0.0]]


def test_it_follows_a_training_run(tmp_path: Any) -> None:
    from mechclust.models import build_model
    from mechclust.studies.topic_structure.config import TopicTransformerConfig
    from mechclust.training import TrainConfig, train
    from tasks import TopicDocuments

    task = TopicDocuments(n_topics=3, words_per_topic=2, lengths=(5, 8), n_documents=20)
    model, norms, seen = build_model(TopicTransformerConfig(d_vocab=task.d_vocab)), WeightNorms(), []
    config = TrainConfig(steps=5, batch_size=4, checkpoint_every=2)
    callbacks = [norms, lambda step, model: seen.append(model.embed.W_E.norm().item())]
    train(model, task, config, tmp_path, callbacks)
    train(model, task, config, tmp_path, [norms])  # a finished training may be called again
    result = norms.compute()
    assert result.coords["step"] == ["0", "2", "4", "5"]
    assert result.coords["weight"] == [
        *("embed.W_E", "blocks.0.attn.W_Q", "blocks.0.attn.W_K", "blocks.0.attn.W_V", "unembed.b_U")
    ]
    assert result.sel("norm", weight="embed.W_E").tolist() == pytest.approx(seen, rel=1e-6)
    assert len(set(seen)) == 4


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match=re.escape("nothing was recorded; give WeightNorms to train(callbacks=[...])")):
        WeightNorms().compute()
    with pytest.raises(InputError, match=re.escape("no weight 'W' in this model (it has a, frozen)")):
        WeightNorms(["a", "W"])(0, planted(a=[1.0], frozen=[1.0]))
    norms = WeightNorms()
    norms(0, planted(a=[1.0]))
    with pytest.raises(InputError, match="these WeightNorms have followed another run; use new ones for each"):
        norms(1, planted(b=[1.0]))
    assert norms.compute()["norm"].shape == (1, 1)


def test_a_second_run_is_refused() -> None:
    norms = WeightNorms()
    norms(3, planted(a=[1.0]))
    with pytest.raises(InputError, match="these WeightNorms have followed another run; use new ones for each"):
        norms(3, planted(a=[2.0]))
    norms(10, planted(a=[2.0]))
    with pytest.raises(InputError, match="these WeightNorms have followed another run; use new ones for each"):
        norms(5, planted(a=[1.5]))


def test_a_run_whose_weights_became_nan_may_be_called_again() -> None:
    norms = WeightNorms()
    for step, value in ((0, 1.0), (2, float("nan")), (2, float("nan"))):
        norms(step, planted(a=[value]))
    assert norms.compute().coords["step"] == ["0", "2"]


def test_repeated_steps_replace_what_was_recorded_since() -> None:
    """An interrupted training repeats its steps since the last saved state, a finished one its last step."""
    norms = WeightNorms()
    for step, value in ((0, 1.0), (2, 3.0), (4, 5.0), (2, 3.0), (3, 4.0), (3, 4.0)):
        norms(step, planted(a=[value]))
    result = norms.compute()
    assert result.coords["step"] == ["0", "2", "3"]
    assert result["norm"].flatten().tolist() == [1.0, 3.0, 4.0]
    assert result["change"].flatten().tolist() == [0.0, 2.0, 3.0]
