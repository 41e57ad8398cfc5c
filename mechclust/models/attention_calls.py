"""Queries and keys of Hugging Face models, read when a model calls its attention kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from threading import RLock
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from probes.engine.fused_attention import FusedAttention

KIND = "sdpa"
Listener: TypeAlias = Callable[[nn.Module, Callable[[], FusedAttention]], None]
_LOCK = RLock()  # the table of kernels is one for all models of a process


@contextmanager
def caught_attention(receive: Listener) -> Iterator[None]:
    """Call ``receive`` before every call of PyTorch's kernel by a Hugging Face model, which stays as it is.

    The configuration, the masks and the output of the model are as with ``sdpa``, to the bit.

    Args:
        receive: gets the module that attends, and a function that returns its attention.
    """
    from transformers import AttentionInterface

    with _LOCK:
        usual = AttentionInterface()[KIND]
        AttentionInterface.register(KIND, partial(_attend, usual, receive))
        try:
            yield
        finally:
            AttentionInterface.register(KIND, usual)


def _attend(
    usual: Callable[..., Any],
    receive: Listener,
    module: nn.Module,
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    value: Float[Tensor, "batch kv_head key d_value"],
    attention_mask: Shaped[Tensor, "..."] | None,
    **options: Any,
) -> Any:
    receive(module, partial(_attention, module, query, key, attention_mask, options))
    return usual(module, query, key, value, attention_mask, **options)


def _attention(
    module: nn.Module,
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    mask: Shaped[Tensor, "..."] | None,
    options: Mapping[str, Any],
) -> FusedAttention:
    """Return the attention of a call, as transformers' own ``sdpa_attention_forward`` reads its arguments."""
    is_causal = options.get("is_causal")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    is_causal = bool(is_causal) and mask is None and query.shape[2] > 1
    scale = options.get("scaling")
    if mask is not None:
        mask = mask[..., : key.shape[2]]
    bias = options.get("position_bias")
    if bias is not None:
        mask = _biased(bias, mask, is_causal)
        is_causal = False
    return FusedAttention(
        query, key, mask, is_causal=is_causal, scale=query.shape[3] ** -0.5 if scale is None else scale
    )


def _biased(
    bias: Float[Tensor, "#batch head query key"], mask: Shaped[Tensor, "#batch #head query key"] | None, is_causal: bool
) -> Float[Tensor, "_ head query key"]:
    """Return the term added to the scores: a bias, and minus infinity for each key that a query does not see."""
    if mask is None and not is_causal:
        return bias
    if mask is None:
        mask = torch.ones(bias.shape[2:], dtype=torch.bool, device=bias.device).tril()
    return torch.where(mask, bias, -torch.inf) if mask.dtype is torch.bool else bias + mask
