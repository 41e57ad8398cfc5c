"""What is planted is where it should be, of the size asked for, and gone afterwards."""

from __future__ import annotations

import pytest
import torch

from mechclust.models import ModelConfig, build_model, load_pretrained
from mechclust.models.plain_model import plain_model
from mechclust.models.weights import get_weights
from mechclust.studies.planted_layers import plant_in, rounded_in
from tasks import InputError
from tests.mechclust.models.families import FAMILIES

LLAMA, ELECTRA, ALBERT = (FAMILIES[name] for name in ("llama", "electra", "albert"))


@pytest.fixture
def model():
    return build_model(ModelConfig(d_vocab=9, n_ctx=4, n_layers=3, d_model=8, n_heads=2))


def weights(model):
    return {name: weight.clone() for name, weight in get_weights(model).items()}


def changed(before, after):
    return [name for name, weight in before.items() if not torch.equal(weight, after[name])]


class TestPlantIn:
    def test_changes_the_matrices_of_these_layers_by_so_much(self, model):
        with torch.no_grad():  # biases of heads are matrices under TransformerLens 3.9, and 0 when they are made
            for name, weight in model.named_parameters():
                if ".b_" in name:
                    weight.add_(1)
        before = weights(model)
        with plant_in(model, [2, 3], noise=0.25):
            after = weights(model)
        names = [f"attn.W_{k}" for k in "QKVO"] + ["mlp.W_in", "mlp.W_out"]
        assert sorted(changed(before, after)) == sorted(f"blocks.{i}.{name}" for i in (1, 2) for name in names)
        for name in changed(before, after):
            ratio = float((after[name] - before[name]).norm() / before[name].norm())
            assert ratio == pytest.approx(0.25, rel=1e-4)

    def test_gives_the_same_bits_back_also_after_an_error(self, model):
        before = weights(model)
        with pytest.raises(RuntimeError, match="inside"), plant_in(model, [1], noise=3.0):
            raise RuntimeError("inside")
        assert changed(before, weights(model)) == []

    def test_noise_is_that_of_its_seed_whatever_else_is_planted(self, model):
        found = []
        for layers, seed in (([2], 0), ([2, 3], 0), ([2], 1)):
            with plant_in(model, layers, noise=0.1, seed=seed):
                found.append(weights(model)["blocks.1.mlp.W_in"])
        assert torch.equal(found[0], found[1])
        assert not torch.equal(found[0], found[2])

    @pytest.mark.parametrize("family", [LLAMA, ELECTRA], ids=lambda family: family.name)
    def test_of_a_model_of_hugging_face_changes_that_block_alone(self, family):
        model = load_pretrained(family.build())
        theirs = plain_model(model)
        before = {name: weight.clone() for name, weight in theirs.state_dict().items()}
        with plant_in(model, [2], noise=0.1):
            after = {name: weight.clone() for name, weight in theirs.state_dict().items()}
        names = changed(before, after)
        assert names
        assert all(".1." in name for name in names)
        matrices = [name for name, weight in before.items() if ".1." in name and weight.ndim > 1]
        assert sorted(names) == sorted(matrices)
        assert changed(before, theirs.state_dict()) == []

    @pytest.mark.parametrize(
        ("layers", "noise", "message"),
        [
            ([4], 0.1, "no layer 4 in this model (it has layers 1-3)"),
            ([0], 0.1, "no layer 0 in this model (it has layers 1-3)"),
            ([], 0.1, "no layers given; name some of 1 to 3"),
            ([1], 0.0, "noise is 0.0; expected a relative norm above 0, such as 0.1"),
        ],
    )
    def test_refusals(self, model, layers, noise, message):
        with pytest.raises(InputError) as refused, plant_in(model, layers, noise=noise):
            pass
        assert str(refused.value) == message

    def test_refuses_layers_that_share_their_weights(self):
        model = load_pretrained(ALBERT.build())
        with pytest.raises(InputError) as refused, plant_in(model, [1], noise=0.1):
            pass
        assert str(refused.value) == (
            "layers 1 and 3 of this ReadOnlyModel share their weights, so that no change is in one of them alone; "
            "choose another architecture"
        )


def test_rounded_weights_are_those_of_bfloat16_for_a_while(model):
    before = weights(model)
    with rounded_in(model):
        inside = weights(model)
    assert all(torch.equal(weight, before[name].bfloat16().float()) for name, weight in inside.items())
    assert "blocks.0.mlp.W_in" in changed(before, inside)
    assert changed(before, weights(model)) == []
