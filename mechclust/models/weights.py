"""One naming of weights for both TransformerLens majors: HookedTransformer's.

Files and initial weights are in this form, so that a model is the same whichever TransformerLens
built it, and a file written with one is read with the other.
"""

from __future__ import annotations

import math
import re

import torch
from einops import rearrange
from torch import Tensor

from mechclust.models.config import ModelConfig
from probes.engine.hooks import HookedModel

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


def _split(name: str) -> tuple[str, str]:
    """``"blocks.0."`` or nothing, and the name inside."""
    match = re.fullmatch(r"(blocks\.\d+\.)?(.*)", name)
    assert match is not None
    return match[1] or "", match[2]


def _convert(name: str, tensor: Tensor, table: dict[str, tuple[str, str, str]], heads: int = 0) -> tuple[str, Tensor]:
    block, own = _split(name)
    new, old_layout, new_layout = table[own]
    sizes = {"h": heads} if "(h e)" in old_layout else {}
    return block + new, rearrange(tensor, f"{old_layout} -> {new_layout}", **sizes).contiguous()


def _is_bridge(model: HookedModel) -> bool:
    return type(model).__name__ == "TransformerBridge"


def get_weights(model: HookedModel) -> dict[str, Tensor]:
    """The model's weights under HookedTransformer's names and layouts (copies are made only of
    what is laid out differently)."""
    state = {k: v for k, v in model.state_dict().items() if not k.endswith((".mask", ".IGNORE"))}
    if not _is_bridge(model):
        return state
    table = {new: (old, b, a) for old, (new, a, b) in _NATIVE.items()}
    return dict(_convert(k, v, table, model.cfg.n_heads) for k, v in state.items())  # type: ignore[union-attr,arg-type]


def set_weights(model: HookedModel, weights: dict[str, Tensor]) -> None:
    """Load weights that ``get_weights`` gave, from either TransformerLens major."""
    if _is_bridge(model):
        model.load_state_dict(dict(_convert(k, v, _NATIVE) for k, v in weights.items()))
        return
    buffers = {k: v for k, v in model.state_dict().items() if k.endswith((".mask", ".IGNORE"))}
    model.load_state_dict({**weights, **buffers})


def trainable(model: HookedModel) -> dict[str, Tensor]:
    """Parameters that require gradients, in the model's order, under the names that ``get_weights`` gives them."""
    if not _is_bridge(model):
        return {name: p for name, p in model.named_parameters() if p.requires_grad}
    table = {new: old for old, (new, _, _) in _NATIVE.items()}
    names = {v.data_ptr(): _split(k) for k, v in model.state_dict().items() if not k.endswith((".mask", ".IGNORE"))}
    named = {names[p.data_ptr()]: p for p in model.parameters() if p.requires_grad}
    return {block + table[own]: p for (block, own), p in named.items()}


def initial_weights(config: ModelConfig) -> dict[str, Tensor]:
    """GPT-2's initialisation, drawn from ``config.seed`` alone."""
    draw = torch.Generator().manual_seed(config.seed)
    d, h, e, m = config.d_model, config.n_heads, config.d_head, config.d_feedforward

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.empty(shape).normal_(0.0, config.init_std * scale, generator=draw)

    def norm(name: str) -> dict[str, Tensor]:
        return {f"{name}.w": torch.ones(d), f"{name}.b": torch.zeros(d)}

    weights = {"embed.W_E": normal(config.d_vocab, d), "pos_embed.W_pos": normal(config.n_ctx, d)}
    writes = 1 / math.sqrt(2 * config.n_layers)
    for layer in range(config.n_layers):
        block = {
            **norm("ln1"),
            **{f"attn.W_{k}": normal(h, d, e) for k in "QKV"},
            **{f"attn.b_{k}": torch.zeros(h, e) for k in "QKV"},
            "attn.W_O": normal(h, e, d, scale=writes),
            "attn.b_O": torch.zeros(d),
            **norm("ln2"),
            "mlp.W_in": normal(d, m),
            "mlp.b_in": torch.zeros(m),
            "mlp.W_out": normal(m, d, scale=writes),
            "mlp.b_out": torch.zeros(d),
        }
        weights.update({f"blocks.{layer}.{k}": v for k, v in block.items()})
    weights.update(norm("ln_final"))
    weights.update({"unembed.W_U": normal(d, config.d_vocab), "unembed.b_U": torch.zeros(config.d_vocab)})
    return weights
