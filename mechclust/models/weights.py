"""Weights of models: one naming for both TransformerLens majors, HookedTransformer's, and copies that share them.

Files and initial weights are in this form, so that a model does not depend on the TransformerLens that built it. A file
written with one is read with the other.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from mechclust.models.config import ModelConfig
from probes.engine.hooked_model import HookedModel

# HookedTransformer's name -> (the native bridge's name, HookedTransformer's layout, the bridge's)
_NATIVE = {
    "embed.W_E": ("embed.weight", "v d", "v d"),
    "pos_embed.W_pos": ("pos_embed.weight", "p d", "p d"),
    "ln_final.w": ("ln_final.weight", "d", "d"),
    "ln_final.b": ("ln_final.bias", "d", "d"),
    "unembed.W_U": ("unembed.weight", "d v", "v d"),
    "unembed.b_U": ("unembed.bias", "v", "v"),
    "ln1.w": ("ln1.weight", "d", "d"),
    "ln1.b": ("ln1.bias", "d", "d"),
    "ln2.w": ("ln2.weight", "d", "d"),
    "ln2.b": ("ln2.bias", "d", "d"),
    **{f"attn.W_{k}": (f"attn.{k.lower()}.weight", "h d e", "(h e) d") for k in "QKV"},
    **{f"attn.b_{k}": (f"attn.{k.lower()}.bias", "h e", "(h e)") for k in "QKV"},
    "attn.W_O": ("attn.o.weight", "h e d", "d (h e)"),
    "attn.b_O": ("attn.o.bias", "d", "d"),
    "mlp.W_in": ("mlp.in.weight", "d m", "m d"),
    "mlp.b_in": ("mlp.in.bias", "m", "m"),
    "mlp.W_out": ("mlp.out.weight", "m d", "d m"),
    "mlp.b_out": ("mlp.out.bias", "d", "d"),
}


_FROM_NATIVE = {new: (old, new_layout, old_layout) for old, (new, old_layout, new_layout) in _NATIVE.items()}

Weight = Float[Tensor, "..."]


def _split(name: str) -> tuple[str, str]:
    """Return ``"blocks.0."`` or an empty string, and the name inside the block."""
    match = re.fullmatch(r"(blocks\.\d+\.)?(.*)", name)
    assert match is not None
    return match[1] or "", match[2]


def _convert(name: str, tensor: Weight, table: dict[str, tuple[str, str, str]], heads: int = 0) -> tuple[str, Weight]:
    block, inner_name = _split(name)
    new_name, layout, new_layout = table[inner_name]
    sizes = {"h": heads} if "(h e)" in layout else {}
    return block + new_name, rearrange(tensor, f"{layout} -> {new_layout}", **sizes).contiguous()


def _is_bridge(model: HookedModel) -> bool:
    return type(model).__name__ == "TransformerBridge"


def _is_constant(name: str) -> bool:
    """Return whether a name belongs to a constant of HookedTransformer's attention, and not to a weight."""
    return name.endswith((".mask", ".IGNORE"))


def get_weights(model: HookedModel) -> dict[str, Weight]:
    """Return the model's weights under HookedTransformer's names and layouts.

    Copies are made only of weights with another layout.
    """
    weights = {name: weight for name, weight in model.state_dict().items() if not _is_constant(name)}
    if not _is_bridge(model):
        return weights
    n_heads: Any = model.cfg.n_heads
    return dict(_convert(name, weight, _FROM_NATIVE, n_heads) for name, weight in weights.items())


def set_weights(model: HookedModel, weights: dict[str, Weight]) -> None:
    """Load weights that ``get_weights`` gave, from either TransformerLens major."""
    if _is_bridge(model):
        model.load_state_dict(dict(_convert(name, weight, _NATIVE) for name, weight in weights.items()))
        return
    constants = {name: value for name, value in model.state_dict().items() if _is_constant(name)}
    model.load_state_dict({**weights, **constants})


def trainable_weights(model: HookedModel) -> dict[str, Weight]:
    """Return the parameters that require gradients, in the model's order, under the names of ``get_weights``."""
    parameters: dict[str, Weight] = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if not _is_bridge(model):
        return parameters
    names: dict[int, str] = {}
    for name, weight in model.state_dict().items():
        names.setdefault(weight.data_ptr(), name)  # a tied unembedding is the embedding
    weights: dict[str, Weight] = {}
    for weight in parameters.values():
        block, inner_name = _split(names[weight.data_ptr()])
        weights[block + _FROM_NATIVE[inner_name][0]] = weight
    return weights


def initial_weights(config: ModelConfig) -> dict[str, Weight]:
    """Return GPT-2's initialisation, drawn from ``config.seed`` alone."""
    draw = partial(_normal, torch.Generator().manual_seed(config.seed))
    std = config.init_std
    weights = {
        "embed.W_E": draw(std, config.d_vocab, config.d_model),
        "pos_embed.W_pos": draw(std, config.n_ctx, config.d_model),
    }
    for layer in range(config.n_layers):
        block = _initial_block(config, draw)
        weights |= {f"blocks.{layer}.{name}": weight for name, weight in block.items()}
    weights |= _norm("ln_final", config.d_model)
    weights["unembed.W_U"] = weights["embed.W_E"].T if config.tied else draw(std, config.d_model, config.d_vocab)
    weights["unembed.b_U"] = torch.zeros(config.d_vocab)
    return weights


def _initial_block(config: ModelConfig, draw: Callable[..., Weight]) -> dict[str, Weight]:
    std = config.init_std
    std_to_stream = std * (1 / math.sqrt(2 * config.n_layers))  # of projections that write to the residual stream
    d_model = config.d_model
    heads = (config.n_heads, config.d_head)
    attention = {
        **_norm("ln1", d_model),
        **{f"attn.W_{kind}": draw(std, config.n_heads, d_model, config.d_head) for kind in "QKV"},
        **{f"attn.b_{kind}": torch.zeros(heads) for kind in "QKV"},
        "attn.W_O": draw(std_to_stream, *heads, d_model),
        "attn.b_O": torch.zeros(d_model),
    }
    if config.attn_only:
        return attention
    return {
        **attention,
        **_norm("ln2", d_model),
        "mlp.W_in": draw(std, d_model, config.d_feedforward),
        "mlp.b_in": torch.zeros(config.d_feedforward),
        "mlp.W_out": draw(std_to_stream, config.d_feedforward, d_model),
        "mlp.b_out": torch.zeros(d_model),
    }


def _normal(generator: torch.Generator, std: float, *shape: int) -> Weight:
    return torch.empty(shape).normal_(0.0, std, generator=generator)


def _norm(name: str, d_model: int) -> dict[str, Weight]:
    return {f"{name}.w": torch.ones(d_model), f"{name}.b": torch.zeros(d_model)}


def copy_with_shared_weights(model: Any) -> Any:
    """Copy the modules of a model, but share their weights, also those that accelerate offloads: no tensor is copied.

    The modules of one can then be wrapped or changed without changing the other.
    """
    shared = [*model.parameters(), *model.buffers()]
    for module in model.modules():
        hook = getattr(module, "_hf_hook", None)  # of accelerate, one or several
        shared += [part.weights_map for part in getattr(hook, "hooks", [hook]) if hasattr(part, "weights_map")]
    return copy.deepcopy(model, {id(each): each for each in shared if each is not None})


@contextmanager
def gradient_flags_restored(model: Any) -> Iterator[None]:
    """Restore which weights need gradients: peft freezes the weights that its model shares with this one."""
    before = [(weight, weight.requires_grad) for weight in model.parameters()]
    try:
        yield
    finally:
        for weight, needed in before:
            weight.requires_grad_(needed)
