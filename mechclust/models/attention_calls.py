"""Attention of Hugging Face models, caught when a model calls its attention kernel or its eager attention."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from threading import RLock
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from probes.engine.attention import Attention, EagerAttention
from probes.engine.fused_attention import FusedAttention

KIND = "sdpa"
Listener: TypeAlias = Callable[[nn.Module, Callable[[], Attention]], None]
_LOCK = RLock()  # the table of kernels is one for all models of a process


@contextmanager
def caught_attention_calls(receive: Listener) -> Iterator[None]:
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


@contextmanager
def caught_eager_attention_calls(receive: Listener, *, whole: bool = False) -> Iterator[None]:
    """Call ``receive`` before every call of eager attention, which is then computed in blocks of queries.

    For families without PyTorch's kernel, such as those with soft caps or sinks. In texts of one block the output is
    the model's own to the bit, and in longer ones up to rounding.

    Args:
        receive: gets the module that attends, and a function that returns its attention.
        whole: compute all queries at once, for patterns that the model returns.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as functions

    with _LOCK:
        usual = functions.get("eager")
        functions["eager"] = partial(_attend_in_blocks, receive, whole)
        try:
            yield
        finally:
            del functions["eager"]
            if usual is not None:
                functions["eager"] = usual


def eager_function(module: nn.Module) -> Callable[..., Any] | None:
    """Return the eager attention of a module's family, which its file defines, or ``None``."""
    return getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)


def _attend_in_blocks(
    receive: Listener,
    whole: bool,
    module: nn.Module,
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    value: Float[Tensor, "batch kv_head key d_value"],
    attention_mask: Float[Tensor, "#batch #head #query key"] | None,
    **options: Any,
) -> tuple[Float[Tensor, "batch query head d_value"], Float[Tensor, "batch head query key"] | None]:
    attention = CalledAttention(module, query, key, {"attention_mask": attention_mask, **options})
    receive(module, attention.detach)
    blocks = [*attention.parts()]
    if whole or len(blocks) == 1:
        return attention.call(slice(None), value)
    return torch.cat([attention.call(block, value)[0] for block in blocks], dim=1), None


class CalledAttention(Attention):
    """Attention of a family's own eager function, which is called again for each block of queries.

    Its rows are without dropout and without gradients.

    Args:
        module: attends. Its file has the function.
        query: queries.
        key: keys.
        options: the function's other arguments, such as a mask or a soft cap.
    """

    def __init__(
        self,
        module: nn.Module,
        query: Float[Tensor, "batch head query d_head"],
        key: Float[Tensor, "batch kv_head key d_head"],
        options: Mapping[str, Any],
    ) -> None:
        self.shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        self.device = query.device
        self._module = module
        self._query = query
        self._key = key
        self._options = options

    def call(
        self, queries: slice | Int[Tensor, "some"], value: Float[Tensor, "batch kv_head key d_value"], **changed: Any
    ) -> tuple[Float[Tensor, "batch some head d_value"], Float[Tensor, "batch head some key"]]:
        """Return the output of some queries, and their weights."""
        eager: Any = eager_function(self._module)
        options = {}
        for name, option in {**self._options, **changed}.items():
            has_rows = isinstance(option, Tensor) and option.ndim == 4 and option.shape[2] == self.shape[2]
            options[name] = option[:, :, queries] if has_rows else option
        return eager(self._module, self._query[:, :, queries], self._key, value, **options)  # type: ignore[no-any-return]

    def rows(
        self, queries: Int[Tensor, "query"], keys: Int[Tensor, "key"] | None = None
    ) -> Float[Tensor, "batch head query key"]:
        """Return the attention of some queries to some keys, or to all, in float32 or better."""
        with torch.no_grad():
            weights = self.call(queries, self._key[..., :1], dropout=0.0)[1]
        if weights.dtype in (torch.float16, torch.bfloat16):
            weights = weights.float()
        return weights if keys is None else weights[..., keys]

    def example(self, number: int) -> CalledAttention:
        """Return the attention of one example of the batch, as a batch of one."""
        part = slice(number, number + 1)
        options = {}
        for name, option in self._options.items():
            of_example = isinstance(option, Tensor) and option.ndim == 4 and len(option) > 1
            options[name] = option[part] if of_example else option
        return CalledAttention(self._module, self._query[part], self._key[part], options)

    def detach(self) -> CalledAttention:
        """Return itself, which has no gradients."""
        return self

    def to(self, *args: Any, **kwargs: Any) -> EagerAttention:
        """Return the attention on another device, as a pattern."""
        return EagerAttention(self.pattern()).to(*args, **kwargs)
