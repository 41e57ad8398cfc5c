"""Hugging Face checkpoints with hooks: what the hooks see is what Hugging Face computes."""

from __future__ import annotations

import json
import random
import shutil

import numpy as np
import pytest
import torch

from mechclust.models import load_pretrained
from tasks import InputError
from tests.mechclust.models.hooked import MASK, TOKENS, activations, check_untrained

FAMILIES = [("gpt2", False), ("llama", False), ("bert", False), ("gpt2", True), ("bert", True)]


@pytest.fixture(scope="module")
def checkpoint(write_checkpoint, tmp_path_factory):
    """Writes each checkpoint once; read only."""
    written = {}

    def get(family, base=False):
        if (family, base) not in written:
            written[family, base] = write_checkpoint(tmp_path_factory.mktemp(family), family, base=base)
        return written[family, base]

    return get


def reference(path, family, tokens=TOKENS, mask=None):
    """Hugging Face's own layers and attentions; block outputs by forward hooks, since a decoder's
    last hidden state comes after the final norm."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(path, attn_implementation="eager").eval()
    layers = {"gpt2": lambda: model.h, "llama": lambda: model.layers}.get(family, lambda: model.encoder.layer)()
    outputs = []

    def keep(module, inputs, output):
        outputs.append(output[0] if isinstance(output, tuple) else output)

    for layer in layers:
        layer.register_forward_hook(keep)
    with torch.no_grad():
        result = model(tokens, attention_mask=mask, output_hidden_states=True, output_attentions=True)
    return model, result, outputs


def check_against_hugging_face(path, family):
    model = load_pretrained(path)
    names = ["unembed.hook_in"]
    names += [f"blocks.{i}.{k}" for i in range(2) for k in ("hook_resid_pre", "hook_resid_post", "attn.hook_pattern")]
    _, kept = activations(model, names)
    _, result, outputs = reference(path, family)
    for i in range(2):
        torch.testing.assert_close(kept[f"blocks.{i}.hook_resid_post"], outputs[i], atol=1e-6, rtol=0)
        torch.testing.assert_close(kept[f"blocks.{i}.hook_resid_pre"], result.hidden_states[i], atol=1e-6, rtol=0)
        torch.testing.assert_close(kept[f"blocks.{i}.attn.hook_pattern"], result.attentions[i], atol=1e-6, rtol=0)
    if family in ("gpt2", "llama"):
        torch.testing.assert_close(kept["unembed.hook_in"], result.hidden_states[-1], atol=1e-6, rtol=0)


class TestAgainstHuggingFace:
    @pytest.mark.parametrize(("family", "base"), FAMILIES)
    def test_hidden_states_and_attentions(self, checkpoint, family, base):
        check_against_hugging_face(checkpoint(family, base), family)

    def test_roberta_on_4(self, checkpoint, tl_major):
        """On 3.9 it is read-only, see test_encoders.py."""
        if tl_major < 4:
            pytest.skip("TransformerLens 3.9 has no bridge for RoBERTa")
        check_against_hugging_face(checkpoint("roberta"), "roberta")

    @pytest.mark.parametrize("family", ["gpt2", "llama"])
    def test_layer_0_is_the_token_embedding_without_position(self, checkpoint, family):
        """What ``residual()`` promises of decoders; BERT's is its whole embedding, hidden_states[0]."""
        same_word = torch.tensor([[3, 4, 3]])
        _, kept = activations(load_pretrained(checkpoint(family)), ["hook_embed"], same_word)
        theirs = reference(checkpoint(family), family, same_word)[0].get_input_embeddings()
        torch.testing.assert_close(kept["hook_embed"], theirs(same_word), atol=1e-6, rtol=0)

    @pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
    def test_with_padding(self, checkpoint, family):
        names = ["blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]
        _, kept = activations(load_pretrained(checkpoint(family)), names, mask=MASK)
        _, _, outputs = reference(checkpoint(family), family, mask=MASK)
        for name, expected in zip(names, outputs, strict=True):
            real = MASK.bool()
            torch.testing.assert_close(kept[name][real], expected[real], atol=1e-6, rtol=0)

    @pytest.mark.parametrize(("family", "auto"), [("gpt2", "AutoModelForCausalLM"), ("bert", "AutoModelForMaskedLM")])
    def test_logits(self, checkpoint, family, auto):
        import transformers

        theirs = getattr(transformers, auto).from_pretrained(checkpoint(family), attn_implementation="eager").eval()
        with torch.no_grad():
            expected = theirs(TOKENS).logits
        torch.testing.assert_close(activations(load_pretrained(checkpoint(family)), [])[0], expected, atol=1e-6, rtol=0)


class TestWhatComesBack:
    def test_has_its_tokenizer_and_context(self, checkpoint):
        for family in ("gpt2", "llama", "bert"):
            model = load_pretrained(checkpoint(family))
            assert model.tokenizer("w0 w3 nonsense")["input_ids"] == [2, 5, 1]
            assert model.cfg.n_ctx == 16

    def test_is_in_evaluation_mode(self, checkpoint):
        model = load_pretrained(checkpoint("bert"))
        assert not any(module.training for module in model.modules())
        assert torch.equal(activations(model, [])[0], activations(model, [])[0])

    def test_types(self, checkpoint):
        model = load_pretrained(checkpoint("gpt2"), dtype=torch.bfloat16)
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
        untrained = load_pretrained(checkpoint("gpt2"), dtype=torch.bfloat16, untrained=True)
        assert {p.dtype for p in untrained.parameters()} == {torch.bfloat16}

    def test_speaks_on_neither_stream(self, checkpoint, capfd):
        load_pretrained(checkpoint("bert"))
        assert capfd.readouterr() == ("", "")


class TestRandomWeights:
    @pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
    def test_are_seeded_and_not_the_trained_ones(self, checkpoint, family):
        check_untrained(checkpoint(family))

    def test_need_no_weights_on_disk(self, checkpoint, tmp_path):
        shutil.copytree(checkpoint("gpt2"), tmp_path / "m")
        (tmp_path / "m" / "model.safetensors").unlink()
        assert load_pretrained(tmp_path / "m", untrained=True).cfg.n_layers == 2

    @pytest.mark.parametrize("untrained", [False, True])
    @pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
    def test_global_random_state_is_left_alone(self, checkpoint, family, untrained):
        load_pretrained(checkpoint(family))  # imports done
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
        load_pretrained(checkpoint(family), untrained=untrained, seed=3)
        assert torch.equal(before[0], torch.get_rng_state())
        assert before[1:] == (random.getstate(), np.random.get_state()[1].tolist())


class TestRefusals:
    @pytest.fixture
    def copy(self, checkpoint, tmp_path):
        return shutil.copytree(checkpoint("gpt2"), tmp_path / "m")

    def refused(self, path):
        with pytest.raises(InputError) as error:
            load_pretrained(path)
        assert "\n" not in str(error.value)
        return str(error.value)

    def test_no_such_directory(self, tmp_path):
        path = tmp_path / "none"
        assert self.refused(path) == (
            f"no model directory {str(path)!r}; give a local directory or a hub name such as 'gpt2'"
        )
        assert self.refused("./none").startswith("no model directory 'none';")

    def test_no_configuration(self, copy):
        (copy / "config.json").unlink()
        assert self.refused(copy) == (
            f"{str(copy)!r} has no config.json; give a directory written by save_pretrained, with model and tokenizer"
        )

    def test_no_weights(self, copy):
        (copy / "model.safetensors").unlink()
        assert self.refused(copy) == (
            f"{str(copy)!r} has a config.json but no weights (model.safetensors); "
            "save the model there with save_pretrained"
        )

    def test_no_tokenizer(self, copy):
        for file in copy.glob("tokenizer*"):
            file.unlink()
        assert self.refused(copy) == (
            f"{str(copy)!r} has no tokenizer (tokenizer.json); save it there with tokenizer.save_pretrained"
        )

    @pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
    def test_truncated_weights(self, copy, share):
        data = (copy / "model.safetensors").read_bytes()
        (copy / "model.safetensors").write_bytes(data[: int(share * len(data))])
        message = self.refused(copy)
        assert message.startswith(f"cannot load a model from the directory {str(copy)!r}: ")
        assert message.endswith("that TransformerLens supports, with its tokenizer")

    def test_configuration_that_is_not_json(self, copy):
        (copy / "config.json").write_text("{")
        assert "is not a valid JSON file" in self.refused(copy)

    def test_unknown_architecture(self, copy):
        (copy / "config.json").write_text('{"model_type": "zork"}')
        assert "zork" in self.refused(copy)

    def test_weights_of_another_width(self, copy):
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps({**config, "n_embd": 32}))
        assert self.refused(copy).startswith(f"cannot load a model from the directory {str(copy)!r}: ")

    @pytest.mark.parametrize("layers", [1, 3])
    def test_weights_of_another_depth(self, copy, layers):
        """Hugging Face fills a layer that the file lacks with random numbers, and drops one too many."""
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps({**config, "n_layer": layers}))
        assert self.refused(copy).startswith(f"cannot load a model from the directory {str(copy)!r}: ")

    def test_hub_name_without_a_network(self):
        message = self.refused("nobody/no-such-model")
        assert message.startswith("cannot load a model from 'nobody/no-such-model' from the Hugging Face hub: ")
