"""Saving and loading the models we train."""

from __future__ import annotations

import itertools
import json
from importlib.metadata import version

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from mechclust.models import (
    ModelConfig,
    build_model,
    load_model,
    load_pretrained,
    read_saved_model_metadata,
    save_model,
)
from mechclust.models.config import model_config_from_json
from mechclust.models.weights import get_weights, initial_weights, set_weights
from probes.store.safetensors_files import write_safetensors
from tasks import InputError

CONFIG = ModelConfig(d_vocab=9, n_ctx=5, n_layers=1, d_model=8, n_heads=2, init_std=0.3, attention="bidirectional")
TOKENS = torch.tensor([[1, 2, 3, 4]])
SHAPES = {name: tuple(tensor.shape) for name, tensor in initial_weights(CONFIG).items()}


@pytest.fixture
def saved(tmp_path):
    """A model with no two weights alike, and its file."""
    model, draw = build_model(CONFIG), torch.Generator().manual_seed(2)
    set_weights(model, {k: torch.randn(shape, generator=draw) for k, shape in SHAPES.items()})
    save_model(model, tmp_path / "deep" / "m.safetensors", step=17, note="ü")
    return model, tmp_path / "deep" / "m.safetensors"


def header_of(path):
    with safe_open(str(path), "pt") as file:
        return file.metadata()


def crafted(path, tensors=None, **header):
    """A copy of a model's file with other tensors or header entries (``None``: left out)."""
    new = {k: v for k, v in {**header_of(path), **header}.items() if v is not None}
    new.pop("checksum")
    write_safetensors(path.with_name("crafted.safetensors"), load_file(path) if tensors is None else tensors, new)
    return path.with_name("crafted.safetensors")


class TestRoundTrip:
    def test_weights_are_bit_exact(self, saved):
        model, path = saved
        loaded = load_model(path)
        first, again = get_weights(model), get_weights(loaded)
        assert first.keys() == again.keys()
        assert all(torch.equal(first[k], again[k]) for k in first)
        assert torch.equal(model(TOKENS), loaded(TOKENS))

    def test_header_says_everything_else(self, saved):
        record = read_saved_model_metadata(saved[1])
        assert model_config_from_json(record["config"]) == CONFIG
        assert record["metadata"] == {"step": 17, "note": "ü"}
        assert record["weight_processing"] == "none"
        assert record["versions"]["transformer-lens"] == version("transformer-lens")
        assert record["versions"]["torch"] == torch.__version__

    def test_the_file_is_in_one_naming_on_both_majors(self, saved):
        """What one TransformerLens major writes the other reads: names and layouts are HookedTransformer's."""
        tensors = load_file(saved[1])
        assert {k: tuple(v.shape) for k, v in tensors.items()} == SHAPES
        assert tensors["blocks.0.attn.W_Q"].shape == (2, 8, 4)
        assert tensors["blocks.0.attn.W_O"].shape == (2, 4, 8)
        assert tensors["unembed.W_U"].shape == (8, 9)

    def test_a_file_from_the_other_major_is_read(self, saved, tmp_path):
        """Written here without any of our code, as the other major's session would have left it."""
        draw = torch.Generator().manual_seed(8)
        tensors = {k: torch.randn(shape, generator=draw) for k, shape in SHAPES.items()}
        other = {"mechclust": "0.1.0", "torch": "2.6.0", "transformer-lens": "0.0.0"}
        path = crafted(saved[1], tensors, versions=json.dumps(other))
        assert read_saved_model_metadata(path)["versions"] == other
        found = get_weights(load_model(path))
        assert all(torch.equal(found[k], v) for k, v in tensors.items())

    def test_nothing_half_written_is_left(self, saved):
        assert [p.name for p in saved[1].parent.iterdir()] == ["m.safetensors"]

    def test_a_loaded_model_can_be_trained_on(self, saved):
        loaded = load_model(saved[1])
        loaded(TOKENS).sum().backward()
        frozen = {name for name, p in loaded.named_parameters() if not p.requires_grad}
        assert frozen <= {"unembed.b_U"}

    def test_random_state_is_left_alone(self, saved):
        before = torch.get_rng_state()
        load_model(saved[1])
        assert torch.equal(before, torch.get_rng_state())

    def test_load_pretrained_reads_it_too(self, saved):
        assert torch.equal(load_pretrained(saved[1])(TOKENS), saved[0](TOKENS))

    def test_load_pretrained_gives_it_untrained(self, saved):
        found = get_weights(load_pretrained(saved[1], untrained=True, seed=4))
        assert not torch.equal(found["embed.W_E"], get_weights(saved[0])["embed.W_E"])

    def test_load_pretrained_gives_the_wanted_type(self, saved):
        loaded = load_pretrained(saved[1], dtype=torch.float64)
        assert {p.dtype for p in loaded.parameters()} == {torch.float64}


class TestRefusals:
    def test_missing(self, tmp_path):
        path = tmp_path / "none.safetensors"
        with pytest.raises(InputError) as refused:
            load_model(path)
        assert str(refused.value) == f"no file {str(path)!r}; give the path of a safetensors file"

    @pytest.mark.parametrize("share", [0.0, 0.999])
    def test_truncated(self, saved, share):
        path = saved[1]
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * share)])
        for read in (load_model, read_saved_model_metadata):
            with pytest.raises(InputError, match=r"m\.safetensors' is truncated or not a safetensors file \("):
                read(path)

    def test_a_folder(self, tmp_path):
        with pytest.raises(InputError, match="is truncated or not a safetensors file"):
            load_model(tmp_path)

    def test_not_ours(self, tmp_path):
        path = tmp_path / "theirs.safetensors"
        for header, read in itertools.product((None, {"format": "pt"}), (load_model, read_saved_model_metadata)):
            save_file({"weight": torch.zeros(2)}, path, header)
            with pytest.raises(InputError) as refused:
                read(path)
            assert str(refused.value) == (
                f"{str(path)!r} is not a mechclust model; expected a file from save_model "
                "(for a Hugging Face checkpoint use load_pretrained)"
            )

    def test_other_shapes(self, saved):
        tensors = load_file(saved[1])
        tensors["blocks.0.mlp.W_in"] = torch.zeros(8, 31)
        with pytest.raises(InputError) as refused:
            load_model(crafted(saved[1], tensors))
        assert str(refused.value) == (
            f"{str(saved[1].with_name('crafted.safetensors'))!r} has (8, 31) for 'blocks.0.mlp.W_in'; expected (8, 32) "
            "for its configuration: the file is damaged, save the model again"
        )

    def test_a_weight_lacks(self, saved):
        tensors = load_file(saved[1])
        del tensors["ln_final.w"]
        with pytest.raises(InputError, match=r"has nothing for 'ln_final.w'; expected \(8,\) for its configuration"):
            load_model(crafted(saved[1], tensors))

    @pytest.mark.parametrize("name", ["blocks.1.ln1.w", "lm_head.weight"])
    def test_a_weight_too_many(self, saved, name):
        with pytest.raises(InputError, match=name):
            load_model(crafted(saved[1], {**load_file(saved[1]), name: torch.ones(8)}))

    @pytest.mark.parametrize("config", [None, "{", '{"kind": "transformer"}', '{"kind": "transformer", "depth": 3}'])
    def test_a_configuration_that_is_none(self, saved, config):
        with pytest.raises(InputError) as refused:
            load_model(crafted(saved[1], config=config))
        path = str(saved[1].with_name("crafted.safetensors"))
        assert str(refused.value).startswith(f"{path!r} has no readable configuration")
        assert "; save the model again" in str(refused.value)

    def test_a_model_of_a_package_that_is_not_installed(self, saved):
        with pytest.raises(
            InputError, match=r"no model of kind 'cnn' \(there are transformer, .*install the package that"
        ):
            load_model(crafted(saved[1], config='{"kind": "cnn"}'))

    def test_saving_a_model_that_we_did_not_build(self, tmp_path):
        with pytest.raises(InputError) as refused:
            save_model(nn.Linear(2, 2), tmp_path / "x.safetensors")
        assert str(refused.value) == (
            "a Linear that build_model did not build can be neither trained nor saved here; "
            "build one, or use Hugging Face's own trainer and save_pretrained"
        )
        assert not list(tmp_path.iterdir())

    def test_saving_a_pretrained_model(self, gpt2, tmp_path):
        with pytest.raises(InputError, match="a TransformerBridge that build_model did not build"):
            save_model(load_pretrained(gpt2), tmp_path / "x.safetensors")


def test_attention_of_a_saved_model_is_its_own(saved):
    with pytest.raises(InputError, match="whose models keep their attention; leave attention out"):
        load_pretrained(saved[1], attention="sdpa")
