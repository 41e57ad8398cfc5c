"""The embedding matrix of any model."""

from __future__ import annotations

import pytest
import torch

from mechclust.models import ModelConfig, build_model, load_pretrained, token_embeddings
from tasks import InputError


class TestTokenEmbeddings:
    @pytest.mark.parametrize("family", ["gpt2", "bert", "albert", "bart"])
    def test_are_hugging_face_s(self, encoder_checkpoint, family):
        from transformers import AutoModel

        theirs = AutoModel.from_pretrained(encoder_checkpoint(family))
        expected = theirs.get_input_embeddings().weight
        ours = token_embeddings(load_pretrained(encoder_checkpoint(family)))
        assert torch.equal(ours, expected)
        assert torch.equal(token_embeddings(theirs), expected)
        assert ours.shape == (22, 8 if family == "albert" else 16)
        assert not ours.requires_grad

    def test_of_our_own_models(self):
        from mechclust.models.weights import get_weights

        model = build_model(ModelConfig(d_vocab=9, n_ctx=4, n_layers=1, d_model=8, n_heads=2))
        assert torch.equal(token_embeddings(model), get_weights(model)["embed.W_E"])
        assert token_embeddings(model).shape == (9, 8)

    def test_of_what_has_none(self):
        with pytest.raises(InputError) as error:
            token_embeddings(torch.nn.Linear(2, 3))
        assert str(error.value) == (
            "a Linear has no matrix of token embeddings; give a model from build_model, load_model or load_pretrained"
        )
