"""A changed model is never taken for the old one."""

from __future__ import annotations

import copy
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from probes import NDims, collect_rows, run, save_rows
from probes.engine.fingerprint import fingerprint, fingerprint_multipliers, fingerprinted_settings, weight_fingerprint
from tasks import Batch, InputError


class Small(nn.Module):
    """A weight of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.unembed = nn.Linear(8, 50)
        self.unembed.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(3, dtype=torch.bfloat16))
        self.register_buffer("mask", torch.ones(4, 4).tril() > 0)
        self.register_buffer("angles", torch.arange(4.0), persistent=False)
        self.register_buffer("nothing", torch.zeros(0, 3))
        self.register_buffer("step", torch.tensor(3))


def small() -> Small:
    torch.manual_seed(0)
    return Small()


def flip(x: torch.Tensor, bit: int = 0) -> None:
    """One bit of one number, through ``.data``, which no version counter sees."""
    raw = x.data.reshape(-1).view(torch.uint8)
    raw[len(raw) // 2] ^= 1 << bit


def test_stale_rows_are_refused_after_a_change_between_any_sampled_places(fake_model: Any, tmp_path: Path) -> None:
    tokens = torch.randint(2000, (30, 4), generator=torch.Generator().manual_seed(0))
    model = fake_model(*(torch.randn(2000, 8, generator=torch.Generator().manual_seed(i)) for i in range(2)))
    save_rows(model, Batch(tokens), tmp_path / "s")
    embedding = model.layers[0].weight.data.flatten()
    changed = torch.ones(len(embedding), dtype=torch.bool)
    changed[:: len(embedding) // 1024] = False
    assert changed.float().mean() > 0.9
    embedding[changed] += 1
    with pytest.raises(InputError, match="holds rows of another model or dtype; give a new folder, or delete this one"):
        save_rows(model, Batch(tokens), tmp_path / "s")
    embedding[changed] -= 1


@pytest.mark.parametrize("name", ["embed.weight", "unembed.bias", "scale", "mask", "angles", "step"])
def test_one_bit_is_seen(name: str) -> None:
    model = small()
    before = fingerprint(model)
    weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    flip(weights[name])
    assert fingerprint(model) != before
    flip(weights[name])
    assert fingerprint(model) == before == fingerprint(small())


def test_names_dtypes_and_shapes_count_and_where_it_lies_does_not() -> None:
    def one(x: torch.Tensor, name: str = "x") -> str:
        module = nn.Module()
        module.register_buffer(name, x)
        return fingerprint(module)  # type: ignore[arg-type]

    x = torch.arange(6, dtype=torch.int32)
    others = [one(x, "y"), one(x.view(torch.float32)), one(x.reshape(2, 3)), one(x.reshape(3, 2))]
    assert len({one(x), *others}) == 5
    rows = torch.randn(40, 30)
    assert one(rows) == one(rows.T.contiguous().T) == one(torch.stack([rows, rows], dim=2)[..., 0])
    assert one(rows[:1].expand(40, 30)) == one(rows[:1].repeat(40, 1))


def digest(weight: torch.Tensor, **options: Any) -> int:
    return int(weight_fingerprint(weight, fingerprint_multipliers(weight.device), **options))


BLOCK_BYTES = 8 * len(fingerprint_multipliers(torch.device("cpu")))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bfloat16, torch.int8])
def test_pieces_and_strides_make_no_difference(dtype: torch.dtype) -> None:
    shape = (5, 7, 2 * BLOCK_BYTES // (16 * dtype.itemsize))
    weight = torch.randint(-100, 100, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    whole = digest(weight)
    assert weight.nbytes > 4 * BLOCK_BYTES
    for blocks_at_once in (1, 3, 100):
        assert digest(weight, blocks_at_once=blocks_at_once) == whole
        for strided in (weight.transpose(0, 2), weight.permute(1, 2, 0), weight[..., 1:], weight.flatten()[::2]):
            assert digest(strided, blocks_at_once=blocks_at_once) == digest(strided.contiguous())
    shifted = torch.cat([weight.flatten()[:1], weight.flatten()])[1:]  # its bytes need not begin at a multiple of 8
    assert digest(shifted) == digest(shifted.clone())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_signs_and_places_count(dtype: torch.dtype) -> None:
    rows = 2 * BLOCK_BYTES // (64 * dtype.itemsize)
    weight = torch.randn(rows, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    seen = {
        digest(weight),
        digest(weight.flip(0)),
        digest(weight.roll(rows // 2, 0)),
        digest(weight[:, torch.randperm(64)]),
    }
    for changed in ([0], [0, 1], [0, rows // 2], slice(None)):
        negated = weight.clone()
        negated[changed] *= -1
        seen.add(digest(negated))
    assert len(seen) == 8


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8])
def test_complements_differ(dtype: torch.dtype) -> None:
    weight = torch.randint(-100, 100, (64,), generator=torch.Generator().manual_seed(0)).to(dtype)
    assert digest(weight) != digest(~weight)
    assert digest(torch.zeros_like(weight)) != digest(torch.full_like(weight, -1))


def test_one_number_of_each_weight_comes_to_the_host() -> None:
    copies = Counter[str]()

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            copies[str(function.overloadpacket)] += 1
            return function(*args, **(kwargs or {}))

    model = small()
    with Recorder():
        fingerprint(model)
    assert copies["aten._local_scalar_dense"] == len(list(model.parameters())) + len(list(model.buffers()))
    assert not copies["aten._to_copy"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_gives_the_same() -> None:
    model = small()
    assert fingerprint(model) == fingerprint(small().to("cuda"))


def test_a_tied_weight_counts_once_and_untying_is_another_model() -> None:
    model = small()
    before = fingerprint(model)
    model.unembed.weight = nn.Parameter(model.embed.weight.detach().clone())
    assert fingerprint(model) != before


def test_what_quantised_layers_keep_beside_their_weight_counts() -> None:
    class Quantised(nn.Linear):
        """As bitsandbytes: codes, and their scale beside them."""

        scale = torch.ones(4)

        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[f"{prefix}weight.absmax"] = self.scale

    model = nn.Sequential(Quantised(4, 4))
    before = fingerprint(model)  # type: ignore[arg-type]
    model[0].scale = torch.full((4,), 2.0)
    assert fingerprint(model) != before  # type: ignore[arg-type]


def test_a_forward_pass_changes_nothing(model: Any, batch: Batch) -> None:
    before = fingerprint(model)
    result = run(model, batch, NDims())
    assert fingerprint(model) == before == result.metadata["model"]


def test_a_weight_without_numbers_is_refused() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2))
    message = (
        "weight '0.weight' is on the meta device, which holds no numbers, so this model cannot be identified; "
        "load its weights before it is measured"
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        fingerprint(model)  # type: ignore[arg-type]


# ---- models that accelerate keeps elsewhere ----


def decoder(kind: str) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    if kind == "gpt2":
        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=20, n_positions=16, n_embd=8, n_layer=2, n_head=2, bos_token_id=None, eos_token_id=None
            )
        )
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=20,
            hidden_size=8,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=16,
        )
    )


PLACES = {
    "gpt2": ["transformer.wte", "transformer.wpe", "transformer.ln_f", "lm_head", "transformer.h.0", "transformer.h.1"],
    "llama": [
        "model.embed_tokens",
        "model.norm",
        "model.rotary_emb",
        "lm_head",
        "model.layers.0",
        "model.layers.1",
    ],
}


@pytest.mark.parametrize(("kind", "on_disk"), [("gpt2", 1), ("llama", 2), ("llama", 6)])
def test_offloaded_weights_are_read_from_where_they_lie(kind: str, on_disk: int, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from transformers import AutoModelForCausalLM

    from mechclust.models.pretrained import load_pretrained

    decoder(kind).save_pretrained(tmp_path / "model")
    where = dict.fromkeys(PLACES[kind][:-on_disk], "cpu") | dict.fromkeys(PLACES[kind][-on_disk:], "disk")

    def load(**options: Any) -> Any:
        return AutoModelForCausalLM.from_pretrained(tmp_path / "model", attn_implementation="eager", **options).eval()

    whole, parts = load(), load(device_map=where, offload_folder=tmp_path / "offloaded")
    assert "meta" in {str(weight.device) for weight in parts.parameters()}
    assert fingerprint(parts) == fingerprint(whole)
    site, batch = "blocks.0.hook_resid_post", Batch(torch.randint(20, (6, 5)))
    placed = load_pretrained(parts)
    found, expected = (collect_rows(model, batch, at=site)[site] for model in (placed, load_pretrained(whole)))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    before = fingerprint(placed)
    assert run(placed, batch, NDims(site)).metadata["model"] == before
    assert fingerprint(parts) == fingerprint(whole)
    flip(next(weight for name, weight in whole.named_parameters() if ".1." in name), bit=3)
    assert fingerprint(parts) != fingerprint(whole)


def test_which_adapter_acts_counts() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["c_attn"], r=2, init_lora_weights=False, fan_in_fan_out=True)
    model = peft.get_peft_model(decoder("gpt2"), config, adapter_name="one")
    model.add_adapter("two", config)
    model.set_adapter("one")
    one = fingerprint(model)
    model.set_adapter("two")
    two = fingerprint(model)
    with model.disable_adapter():
        without = fingerprint(model)
    model.set_adapter("one")
    assert len({one, two, without}) == 3
    assert fingerprint(model) == one


def test_the_same_weights_with_another_number_of_heads() -> None:
    """Weights alone do not tell, and stale rows would be off."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from mechclust.models import load_pretrained

    shape = {"n_layer": 1, "n_embd": 16, "n_positions": 8, "vocab_size": 20}
    two, four = (GPT2LMHeadModel(GPT2Config(n_head=n, **shape)).eval() for n in (2, 4))
    four.load_state_dict(two.state_dict())
    for attention in ("eager", "sdpa"):
        first, again, other = (load_pretrained(m, attention=attention) for m in (two, two, four))  # type: ignore[arg-type]
        assert fingerprint(first) == fingerprint(again) != fingerprint(other)


@pytest.mark.parametrize(
    "setting",
    [
        {"attn_scores_soft_cap": 0.5},
        {"attn_scale": 3.0},  # not the root of d_head
        {"parallel_attn_mlp": True},
        {"window_size": 2, "use_local_attn": True, "attn_types": ["local"]},
        {"act_fn": torch.float16},  # that JSON cannot hold
    ],
    ids=["soft cap", "scale", "parallel", "window", "no JSON"],
)
def test_settings_of_transformer_lens_that_weights_do_not_show_count(model: Any, setting: dict[str, Any]) -> None:
    other = copy.deepcopy(model)
    for name, value in setting.items():
        setattr(other.cfg, name, value)
    assert fingerprint(copy.deepcopy(model)) == fingerprint(model) != fingerprint(other)


def test_settings_that_change_no_hidden_state_are_left_out() -> None:
    """Fine-tuned models often number other tokens in their configuration than the model that they come from."""
    from transformers import RobertaConfig

    plain = fingerprinted_settings(RobertaConfig())
    assert fingerprinted_settings(RobertaConfig(bos_token_id=7, eos_token_id=8, sep_token_id=9)) == plain
    assert fingerprinted_settings(RobertaConfig(pad_token_id=5)) != plain  # from which positions are counted
    assert fingerprinted_settings(RobertaConfig(num_attention_heads=6)) != plain
