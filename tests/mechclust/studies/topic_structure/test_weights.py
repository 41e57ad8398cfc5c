"""The weights of the topic transformer: how they start, what is trained, and how they are kept."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from mechclust.models import load_model, save_model
from mechclust.models.weights import get_weights
from mechclust.studies.topic_structure.model import TopicTransformer
from mechclust.training import TrainConfig, train
from probes.engine.hooked_model import forward
from tasks import InputError
from tests.mechclust.studies.topic_structure.topic_models import TASK, D, built, config, shaken

PARTS = {
    "embedding": ("trained", "one-hot"),
    "attention": ("trained", "uniform"),
    "value": ("trained", "identity", "fixed"),
    "decoder": ("tied", "free", "identity"),
    "bias": (True, False),
}
TRAINABLE = [
    fields
    for fields in (dict(zip(PARTS, choice, strict=True)) for choice in product(*PARTS.values()))
    if {"trained", "free", True} & set(fields.values())
]


@pytest.fixture(scope="module")
def documents():
    return next(TASK.batches("dev", 12))


class TestWeights:
    @pytest.mark.parametrize("fields", TRAINABLE[::7], ids=str)
    def test_frozen_parts_stay_as_they_are_and_the_rest_is_trained(self, fields):
        model = built(**fields)
        expected = {
            "embed.W_E": fields["embedding"] == "trained",
            **{f"blocks.0.attn.W_{k}": fields["attention"] == "trained" for k in "QK"},
            "blocks.0.attn.W_V": fields["value"] == "trained",
            "unembed.b_U": fields["bias"],
            **({"unembed.W_U": True} if fields["decoder"] == "free" else {}),
        }
        before = {k: v.clone() for k, v in get_weights(model).items()}
        assert before.keys() == expected.keys()
        train(model, TASK, TrainConfig(steps=3, batch_size=8, lr=0.05, weight_decay=0.1))
        after = get_weights(model)
        assert {k: not torch.equal(before[k], after[k]) for k in before} == expected

    def test_what_is_frozen_is_what_its_name_says(self):
        weights = get_weights(built(embedding="one-hot", attention="uniform", value="identity", bias=False))
        eye, zero = torch.eye(D), torch.zeros(D, D)
        for name, expected in (
            ("embed.W_E", eye),
            ("blocks.0.attn.W_V", eye),
            ("blocks.0.attn.W_Q", zero),
            ("blocks.0.attn.W_K", zero),
            ("unembed.b_U", zero[0]),
        ):
            assert torch.equal(weights[name], expected), name

    @pytest.mark.parametrize("std", [0.3, None])
    def test_are_drawn_from_the_seed_alone(self, std):
        before = torch.get_rng_state()
        first = get_weights(built(seed=3, init_std=std))
        assert torch.equal(before, torch.get_rng_state())
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(99)
            again, other = (get_weights(built(seed=s, init_std=std)) for s in (3, 4))
        for name in ("embed.W_E", *(f"blocks.0.attn.W_{k}" for k in "QKV")):
            assert torch.equal(first[name], again[name])
            assert not torch.equal(first[name], other[name])
        assert len({float(v[0, 0]) for v in first.values() if v.ndim == 2}) == 4  # every draw is its own

    def test_have_the_spread_asked_for(self):
        for name, weight in get_weights(built(d_vocab=80, decoder="free", init_std=0.05)).items():
            if weight.ndim == 2:
                assert float(weight.std()) == pytest.approx(0.05, rel=0.05), name
                assert float(weight.abs().max()) > 0.12
            else:
                assert not bool(weight.any())
        for name, weight in get_weights(built(d_vocab=80, d_model=64, decoder="free", init_std=None)).items():
            if weight.ndim == 2:  # uniform within 1 / sqrt(64)
                assert 0.12 < float(weight.abs().max()) <= 0.125, name
                assert float(weight.std()) == pytest.approx(0.125 / math.sqrt(3), rel=0.05)
        assert not bool(get_weights(built(init_std=0.0))["blocks.0.attn.W_V"].any())

    def test_rows_of_a_block_matrix_are_their_own(self):
        """Not one aliased list: changing a row of what was built changes no other row, weight or model."""
        model, other = built(embedding="one-hot", value="identity", attention="uniform"), built(value="identity")
        with torch.no_grad():
            model.blocks[0].attn.W_V[0, 1] = 7.0
        assert int((model.blocks[0].attn.W_V == 7).sum()) == 1
        for weight in (model.embed.W_E, other.blocks[0].attn.W_V):
            assert torch.equal(weight, torch.eye(D))
        assert float(model.paper_value()[1, 0]) == 7.0  # the paper's W_V is the transpose
        assert float(model.paper_value()[0, 1]) == 0.0

    @pytest.mark.parametrize(
        "fields",
        [
            {},
            {"d_model": 5, "decoder": "free"},
            {"embedding": "one-hot", "value": "fixed"},
            {"attention": "uniform"},
        ],
        ids=str,
    )
    def test_a_file_gives_them_back(self, fields, documents, tmp_path):
        model = shaken(built(**fields, seed=8))
        save_model(model, tmp_path / "m.safetensors", step=3)
        loaded = load_model(tmp_path / "m.safetensors")
        assert isinstance(loaded, TopicTransformer)
        assert loaded.config == model.config
        first, again = get_weights(model), get_weights(loaded)
        assert first.keys() == again.keys()
        assert all(torch.equal(first[k], again[k]) for k in first)
        assert torch.equal(forward(model, documents), forward(loaded, documents))
        trained = [[k for k, p in m.named_parameters() if p.requires_grad] for m in (model, loaded)]
        assert trained[0] == trained[1]


class TestConfig:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"d_vocab": 0}, "d_vocab is 0; expected at least 1"),
            ({"d_model": 0}, "d_model is 0; expected at least 1"),
            ({"embedding": "learned"}, "embedding is 'learned'; expected 'trained' or 'one-hot'"),
            ({"attention": "causal"}, "attention is 'causal'; expected 'trained' or 'uniform'"),
            ({"value": "block"}, "value is 'block'; expected 'trained', 'identity' or 'fixed'"),
            ({"decoder": "own"}, "decoder is 'own'; expected 'tied', 'free' or 'identity'"),
            (
                {"embedding": "one-hot", "d_model": 8},
                "a one-hot embedding of 16 tokens has that many dimensions; d_model is 8",
            ),
            ({"decoder": "identity", "d_model": 8}, "an identity decoder needs d_model = d_vocab (16); d_model is 8"),
            ({"init_std": -0.1}, "init_std is -0.1; expected at least 0"),
            ({"seed": -1}, "seed is -1; expected at least 0"),
        ],
        ids=str,
    )
    def test_refuses_what_no_model_can_have(self, fields, message):
        with pytest.raises(InputError) as refused:
            config(**fields)
        assert str(refused.value) == message

    def test_the_width_is_the_vocabulary_or_what_is_said(self):
        assert (config().width, config(d_model=5).width) == (D, 5)
        assert built(d_model=5).cfg.d_model == 5
