"""BERT, ALBERT, BART's encoder, ELECTRA and RoBERTa: hooks see what Hugging Face computes, and
those that are read-only say so."""

from __future__ import annotations

import json
import re
import shutil
from functools import cache
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file, save_file

from mechclust.models import load_pretrained
from tasks import InputError
from tests.mechclust.models.hooked import MASK, NAMES, TOKENS, activations, check_untrained

HEADS = [
    ("albert", None),
    ("albert", "ForPreTraining"),
    ("bart", None),
    ("bart", "ForSequenceClassification"),
    ("bert", None),
    ("bert", "ForPreTraining"),
    ("electra", None),
    ("electra", "ForMaskedLM"),
    ("roberta", None),
    ("roberta", "ForSequenceClassification"),
]
READ_ONLY = [("albert", "ForMaskedLM"), ("bart", "ForConditionalGeneration"), ("electra", "ForPreTraining")]


def tokens_for(family, padded):
    return TOKENS.masked_fill(MASK == 0, 1 if family == "roberta" else 0) if padded else TOKENS


@pytest.fixture(scope="module")
def loaded(encoder_checkpoint):
    """``loaded(family, head)`` loads each once; read only."""
    return cache(lambda family, head=None: load_pretrained(encoder_checkpoint(family, head)))


@pytest.fixture(params=READ_ONLY[:2], ids=lambda p: p[0])
def read_only(request, encoder_checkpoint):
    """A read-only model, alone and of an encoder-decoder, with tokens for it."""
    model = load_pretrained(encoder_checkpoint(*request.param))
    assert type(model).__name__ == "ReadOnlyModel"
    return model, tokens_for(request.param[0], padded=False)


def reference(path, tokens, mask=None):
    """Hugging Face's own hidden states and attentions, under the names of the hooks."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(path, attn_implementation="eager").eval()
    with torch.no_grad():
        result = model(tokens, attention_mask=mask, output_hidden_states=True, output_attentions=True)
    side = "encoder_" if model.config.is_encoder_decoder else ""
    states, patterns = result[f"{side}hidden_states"], result[f"{side}attentions"]
    expected = {"hook_embed": states[0]}
    for i, pattern in enumerate(patterns):
        expected[f"blocks.{i}.hook_resid_pre"] = states[i]
        expected[f"blocks.{i}.attn.hook_pattern"] = pattern
        expected[f"blocks.{i}.hook_resid_post"] = states[i + 1]
    return expected


def check_against_hugging_face(model, path, family, padded, layers=2):
    tokens, mask = tokens_for(family, padded), MASK if padded else None
    expected = reference(path, tokens, mask)
    assert len(expected) == 1 + 3 * layers
    residuals = [expected["hook_embed"], *(expected[f"blocks.{i}.hook_resid_post"] for i in range(layers))]
    patterns = [expected[f"blocks.{i}.attn.hook_pattern"] for i in range(layers)]
    for ours, next_one in [*pairwise(residuals), *pairwise(patterns), (patterns[0], patterns[0].mT)]:
        assert (ours - next_one).abs().max() > 1e-3  # a layer or an axis mistaken for another would show
    output, kept = activations(model, list(expected), tokens, mask)
    for name, value in expected.items():
        torch.testing.assert_close(kept[name], value, atol=1e-6, rtol=0)
        if padded and name.endswith("hook_pattern"):
            assert kept[name][0, :, :, 3:].max() == 0  # nobody attends to padding
    return output, kept


class TestAgainstHuggingFace:
    """With the heads that language models have, and without padding, they are in ``test_families.py``."""

    @pytest.mark.parametrize(("family", "head"), HEADS)
    def test_every_hook_point(self, loaded, encoder_checkpoint, family, head):
        check_against_hugging_face(loaded(family, head), encoder_checkpoint(family, head), family, padded=True)

    def test_albert_with_several_groups_and_layers_in_a_group(self, write_checkpoint, tmp_path):
        path = write_checkpoint(tmp_path, "albert", num_hidden_groups=2, inner_group_num=2)
        check_against_hugging_face(model := load_pretrained(path), path, "albert", padded=True, layers=4)
        assert model.cfg.n_layers == 4

    def test_without_an_embedding_projection(self, write_checkpoint, tmp_path):
        path = write_checkpoint(tmp_path, "electra", embedding_size=16)
        check_against_hugging_face(load_pretrained(path), path, "electra", padded=False)

    def test_patterns_are_asked_for_only_when_read(self, read_only):
        """They take memory in all layers at once; the rest must not change with them."""
        model, tokens = read_only
        asked = []
        model.body.register_forward_pre_hook(
            lambda module, inputs, options: asked.append(options["output_attentions"]), with_kwargs=True
        )
        _, everything = activations(model, tokens=tokens)
        _, some = activations(model, ["hook_embed", "blocks.1.hook_resid_post"], tokens)
        activations(model, ["blocks.1.attn.hook_pattern"], tokens)
        assert asked == [True, False, True]
        assert len(some) == 2
        assert all(torch.equal(value, everything[name]) for name, value in some.items())


class TestWhatComesBack:
    @pytest.mark.parametrize(("family", "head"), [("bert", "ForMaskedLM"), *READ_ONLY])
    def test_tokenizer_hooks_and_mode(self, loaded, family, head):
        model = loaded(family, head)
        assert model.tokenizer("w0 w3 nonsense")["input_ids"] == [2, 5, 1]
        assert set(NAMES) <= set(model.hook_dict)
        assert not any(module.training for module in model.modules())

    @pytest.mark.parametrize(("family", "head"), READ_ONLY)
    def test_the_longest_input(self, loaded, family, head):
        """What ``cfg.n_ctx`` says fits, and one more does not, in Hugging Face either."""
        model = loaded(family, head)
        assert activations(model, tokens=torch.full((1, 16), 7))[0].shape == (1, 16, 16)
        with pytest.raises((IndexError, RuntimeError)):
            model.body(torch.full((1, 17), 7))
        with pytest.raises(InputError) as error:
            model(torch.full((1, 17), 7))
        assert str(error.value) == (
            "this model reads tokens [batch pos] with at most 16 positions, "
            "not of shape [1, 17]; give a batch of sequences cut to model.cfg.n_ctx"
        )
        with pytest.raises(
            InputError, match=r"^this model reads tokens \[batch pos\], not of shape \[3\]; give a batch$"
        ):
            model(torch.tensor([2, 3, 4]))

    def test_types(self, encoder_checkpoint):
        for options in ({}, {"untrained": True}):
            model = load_pretrained(encoder_checkpoint("electra"), dtype=torch.bfloat16, **options)
            assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
            assert (
                activations(model, tokens=tokens_for("electra", False))[1]["blocks.1.attn.hook_pattern"].dtype
                == torch.bfloat16
            )

    def test_moves_as_a_module_does(self, read_only):
        """Tokens follow it: they come from the CPU here."""
        model, tokens = read_only
        output = model.to("meta")(tokens)
        assert (output.device.type, output.shape) == ("meta", (2, 5, 16))

    def test_has_no_pooler(self, loaded):
        """It would be random in a checkpoint saved with a masked-LM head."""
        model = loaded("roberta")
        assert not [name for name, _ in model.named_parameters() if "pooler" in name]

    def test_speaks_on_neither_stream(self, encoder_checkpoint, capfd):
        load_pretrained(encoder_checkpoint("albert", "ForMaskedLM"))
        assert capfd.readouterr() == ("", "")


class TestRandomWeights:
    def test_are_seeded_and_not_the_trained_ones(self, encoder_checkpoint):
        check_untrained(encoder_checkpoint("bart", "ForConditionalGeneration"))


def rewrite(path, change):
    """Changes the tensors of a checkpoint."""
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


class TestRefusals:
    @pytest.fixture(params=[*READ_ONLY, *((family, None) for family in ("albert", "bart", "electra"))], ids=str)
    def copy(self, request, encoder_checkpoint, tmp_path):
        return shutil.copytree(encoder_checkpoint(*request.param), tmp_path / "m")

    def refused(self, path):
        with pytest.raises(InputError) as error:
            load_pretrained(path)
        text = str(error.value)
        start = f"cannot load a model from the directory {str(path)!r}: "
        assert text.startswith(start)
        assert "\n" not in text
        return text.removeprefix(start)

    @pytest.mark.slow
    def test_each_weight_is_needed(self, copy):
        """All but heads, poolers and what is tied to another; each taken out in turn."""
        names = list(load_file(copy / "model.safetensors"))
        body = [k for k in names if any(part in k for part in ("embed", "encoder.", "decoder.layers"))]
        body = [k for k in body if "pooler" not in k]
        assert len(body) > 15
        whole = (copy / "model.safetensors").read_bytes()
        for name in body:
            rewrite(copy, lambda tensors, name=name: tensors.pop(name))
            bare = name.split(".", 1)[1] if name.startswith(("model.", "albert.", "electra.")) else name
            lacks = rf"the checkpoint lacks the weights '((model|albert|electra)\.)?{re.escape(bare)}' for its config"
            assert re.match(lacks, self.refused(copy))
            (copy / "model.safetensors").write_bytes(whole)
        load_pretrained(copy)

    def test_the_shared_embedding_of_bart(self, encoder_checkpoint, tmp_path):
        copy = shutil.copytree(encoder_checkpoint("bart"), tmp_path / "m")
        rewrite(copy, lambda tensors: tensors.pop("shared.weight"))
        assert self.refused(copy).startswith("the checkpoint lacks the weights ")

    @pytest.mark.parametrize(("family", "layers"), [("electra", 1), ("bart", 3)])
    def test_weights_of_another_depth(self, encoder_checkpoint, tmp_path, family, layers):
        copy = shutil.copytree(encoder_checkpoint(family), tmp_path / "m")
        config = json.loads((copy / "config.json").read_text())
        field = "encoder_layers" if family == "bart" else "num_hidden_layers"
        assert config[field] == 2
        (copy / "config.json").write_text(json.dumps({**config, field: layers}))
        assert "for its config.json; give the two that were saved together" in self.refused(copy)

    def test_an_architecture_whose_blocks_cannot_be_told(self, encoder_checkpoint, tmp_path):
        from transformers import XLNetConfig, XLNetModel

        copy = shutil.copytree(encoder_checkpoint("bert"), tmp_path / "m")
        (copy / "model.safetensors").unlink()
        XLNetModel(XLNetConfig(vocab_size=22, d_model=16, n_layer=2, n_head=2, d_inner=32)).save_pretrained(copy)
        with pytest.raises(InputError) as error:
            load_pretrained(copy)
        assert "a XLNetModel cannot be measured: it has no modules that pass its hidden states on; " in str(error.value)
