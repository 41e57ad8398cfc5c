"""What the first checkpoint is, random weights or a trained base, and what is said of structure there."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mechclust import load_pretrained, measure_history
from mechclust.models.weight_digest import has_random_weights, named_weights
from tests.mechclust.commands.history.made import rows
from tests.mechclust.commands.refusals import refusal

LEARNT = "may have been learnt"
NOT_LEARNT = "was not learnt"


def test_draws_of_random_weights(gpt2, write_checkpoint, tmp_path):
    assert has_random_weights(load_pretrained(gpt2, untrained=True))
    assert has_random_weights(load_pretrained(write_checkpoint(tmp_path / "llama", "llama"), untrained=True))


@pytest.mark.parametrize("step", [8, 48])
def test_trained_models(trained_series, step):
    """After eight steps as after many."""
    assert not has_random_weights(load_pretrained(trained_series / f"checkpoint-{step}"))


def test_norms_that_half_precision_cannot_move(gpt2, write_checkpoint, tmp_path):
    """Trained in bfloat16 alone, Llama's norms still hold 1."""
    trained = load_pretrained(write_checkpoint(tmp_path / "llama", "llama"), untrained=True)
    with torch.no_grad():
        for _, weight in named_weights(trained):
            if weight.ndim > 1:
                weight.add_(0.01 * torch.randn_like(weight))
            weight.copy_(weight.bfloat16())
    assert not has_random_weights(trained)
    assert not has_random_weights(trained.bfloat16())
    assert has_random_weights(load_pretrained(gpt2, untrained=True).bfloat16())  # its biases would have moved


def test_one_number_that_changed(gpt2):
    model = load_pretrained(gpt2, untrained=True)
    with torch.no_grad():
        next(weight for name, weight in named_weights(model) if name.endswith("h.0.ln_1.bias"))[3] = 0.1
    assert not has_random_weights(model)


def test_a_model_without_biases_and_norms():
    assert not has_random_weights(torch.nn.Linear(3, 2, bias=False))
    assert not has_random_weights(torch.nn.Linear(3, 1))  # a single number shows nothing


class TestSeries:
    @pytest.fixture
    def tuned(self, series, tmp_path):
        """A series that begins with a model whose biases are trained, called step 0 as a base is."""
        for name, source in (("checkpoint-0", "checkpoint-10"), ("checkpoint-5", "checkpoint-20")):
            shutil.copytree(series / source, tmp_path / "run" / name)
        return tmp_path / "run"

    def test_of_a_trained_base(self, tuned, quick, tmp_path):
        result = measure_history(tuned, quick, tmp_path / "out")
        assert not result.starts_random
        (first,) = (reading for reading in result.readings if reading.what == "First checkpoint")
        assert (first.where, first.value) == ("'checkpoint-0'", "not known to be random")
        assert LEARNT in first.verdict
        assert not any(NOT_LEARNT in text for text in [*result.caveats, *result.sentences])
        curve = result.curves["clusters"]
        early = replace(result, curves={"clusters": replace(curve, p=np.full_like(curve.p, 0.001))})
        ((_, value),) = rows(early, "Crosses chance")
        assert value.startswith("by 'checkpoint-0', ")

    def test_of_random_weights(self, gpt2, tuned, quick):
        shutil.rmtree(tuned / "checkpoint-0")
        shutil.copytree(gpt2, tuned / "checkpoint-0")
        result = measure_history(tuned, quick)
        assert result.starts_random
        assert rows(result, "First checkpoint") == [("'checkpoint-0'", "random weights")]
        assert any(NOT_LEARNT in text for text in result.sentences)


class TestNotANumber:
    """One checkpoint is broken, not an example."""

    @pytest.fixture
    def broken(self, series, tmp_path):
        def write(**changed):
            for name in ("checkpoint-10", "checkpoint-20", "checkpoint-30"):
                shutil.copytree(series / name, tmp_path / "run" / name)
            file = tmp_path / "run" / "checkpoint-20" / "model.safetensors"
            weights = load_file(file)
            for name, factor in changed.items():
                weights[name.replace("__", ".")] *= factor
            save_file(weights, file, {"format": "pt"})
            return tmp_path / "run"

        return write

    def test_in_the_weights(self, broken, quick):
        said = refusal(measure_history, broken(transformer__h__0__mlp__c_fc__weight=float("nan")), quick)
        assert "checkpoint 'checkpoint-20'" in said
        assert "transformer.h.0.mlp.c_fc.weight" in said
        assert "leave this checkpoint out" in said

    def test_in_the_activations(self, broken, quick):
        large = {"c_fc": 1e3, "c_proj": 1e38}
        said = refusal(
            measure_history,
            broken(**{f"transformer__h__0__mlp__{name}__weight": size for name, size in large.items()}),
            quick,
        )
        assert "checkpoint 'checkpoint-20'" in said
        assert "leave this checkpoint out" in said
        assert "leave the example out" not in said
