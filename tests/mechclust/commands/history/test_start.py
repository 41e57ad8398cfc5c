"""What the first checkpoint is, random weights or a trained base, and what is said of structure there."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mechclust import load_pretrained, measure_history
from mechclust.commands.history.start import Origin, RandomWeights, start_of
from mechclust.models.sketch import constant_sketch_values, sketched_weights, weight_sketch
from tasks import InputError
from tests.mechclust.commands.history.made import rows

LEARNT = "may have been learnt"
NOT_LEARNT = "was not learnt"


@pytest.fixture(scope="module")
def random(gpt2):
    model = load_pretrained(gpt2, untrained=True, seed=3)
    return RandomWeights(weight_sketch(model), constant_sketch_values(model))


def of_weights(model, random, step=None, change=lambda name, weight: None):
    with torch.no_grad():
        for name, weight in sketched_weights(model):
            change(name, weight)
    return start_of("first", step, weight_sketch(model), random)


def test_another_draw_of_random_weights(gpt2, random):
    start = of_weights(load_pretrained(gpt2, untrained=True, seed=8), random)
    assert start.origin == Origin.RANDOM
    assert NOT_LEARNT in start.meaning


def test_a_trained_model(trained_series, untrained_gpt2):
    """After eight steps as after many."""
    model = load_pretrained(trained_series / "checkpoint-8", untrained=True)
    random = RandomWeights(weight_sketch(model), constant_sketch_values(model))
    for step in (8, 48):
        start = of_weights(load_pretrained(trained_series / f"checkpoint-{step}"), random, step)
        assert start.origin == Origin.TRAINED
        assert NOT_LEARNT not in start.meaning
        assert LEARNT in start.meaning


@pytest.mark.parametrize("step", [None, 0])
def test_the_name_step_0_does_not_make_a_trained_base_random(trained_series, step):
    model = load_pretrained(trained_series / "checkpoint-48", untrained=True)
    random = RandomWeights(weight_sketch(model), constant_sketch_values(model))
    assert of_weights(load_pretrained(trained_series / "checkpoint-48"), random, step).origin == Origin.TRAINED


def test_random_weights_of_another_size(gpt2, random):
    """Initialised by other rules than those of its configuration: the name decides if it says step 0."""

    def smaller(name, weight):
        if weight.ndim > 1:
            weight.mul_(0.5)

    unknown, first = (of_weights(load_pretrained(gpt2, untrained=True), random, s, smaller) for s in (1000, 0))
    assert (unknown.origin, first.origin) == (Origin.UNKNOWN, Origin.RANDOM)
    assert unknown.origin.value == "could not be determined"
    assert NOT_LEARNT not in unknown.meaning


def test_what_cannot_be_compared(gpt2, random, write_checkpoint, tmp_path):
    other = write_checkpoint(tmp_path / "other", n_embd=32)
    none = replace(random, constant=torch.zeros_like(random.constant))
    for start in (
        start_of("first", 0, weight_sketch(load_pretrained(other)), random),
        start_of("first", 0, weight_sketch(load_pretrained(gpt2)), none),
        start_of("first", 0, weight_sketch(load_pretrained(gpt2)), "there is too little memory"),
    ):
        assert start.origin == Origin.UNKNOWN
        assert NOT_LEARNT not in start.meaning
        assert LEARNT in start.meaning


def test_few_constants_that_changed(gpt2, random):
    def one(name, weight):
        if name.endswith("h.0.ln_1.bias"):
            weight.add_(0.1)

    start = of_weights(load_pretrained(gpt2, untrained=True), random, 0, one)
    assert start.origin == Origin.UNKNOWN


class TestSeries:
    @pytest.fixture
    def tuned(self, series, tmp_path):
        """A series that begins with a model whose biases are trained, called step 0 as a base is."""
        for name, source in (("checkpoint-0", "checkpoint-10"), ("checkpoint-5", "checkpoint-20")):
            shutil.copytree(series / source, tmp_path / "run" / name)
        return tmp_path / "run"

    def test_of_a_trained_base(self, tuned, quick, tmp_path):
        result = measure_history(tuned, quick, tmp_path / "out")
        assert result.start.origin == Origin.TRAINED
        (first,) = (reading for reading in result.readings if reading.what == "First checkpoint")
        assert (first.where, first.value) == ("'checkpoint-0'", "trained before")
        assert LEARNT in first.verdict
        assert not any(NOT_LEARNT in text for text in [*result.caveats, *result.sentences])
        curve = result.curves["clusters"]
        early = replace(result, curves={"clusters": replace(curve, p=np.full_like(curve.p, 0.001))})
        ((_, value),) = rows(early, "Crosses chance")
        assert value.startswith("by 'checkpoint-0', which was trained before")

    def test_of_random_weights(self, gpt2, tuned, quick):
        shutil.rmtree(tuned / "checkpoint-0")
        shutil.copytree(gpt2, tuned / "checkpoint-0")
        result = measure_history(tuned, quick)
        assert result.start.origin == Origin.RANDOM
        assert rows(result, "First checkpoint") == [("'checkpoint-0'", "random weights")]
        assert any(NOT_LEARNT in text for text in result.sentences)

    def test_the_random_weights_are_made_once(self, tuned, quick, tmp_path, monkeypatch):
        first = measure_history(tuned, quick, tmp_path / "out").start
        monkeypatch.setattr("mechclust.commands.settings.load_pretrained", None)
        assert measure_history(tuned, quick, tmp_path / "out").start == first


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
        with pytest.raises(InputError) as refused:
            measure_history(broken(transformer__h__0__mlp__c_fc__weight=float("nan")), quick)
        assert "checkpoint 'checkpoint-20'" in str(refused.value)
        assert "transformer.h.0.mlp.c_fc.weight" in str(refused.value)
        assert "leave this checkpoint out" in str(refused.value)

    def test_in_the_activations(self, broken, quick):
        large = {"c_fc": 1e3, "c_proj": 1e38}
        with pytest.raises(InputError) as refused:
            measure_history(
                broken(**{f"transformer__h__0__mlp__{name}__weight": size for name, size in large.items()}), quick
            )
        assert "checkpoint 'checkpoint-20'" in str(refused.value)
        assert "leave this checkpoint out" in str(refused.value)
        assert "leave the example out" not in str(refused.value)
