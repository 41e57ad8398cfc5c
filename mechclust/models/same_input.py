"""Give the blocks of a model another model's residual stream, so that a block differs only if its weights do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mechclust.models.patching import can_be_patched
from probes.engine.devices import device_of
from probes.engine.hooked_model import HookedModel, n_hooked_blocks
from probes.engine.record import record
from tasks import InputError

Stream = Float[Tensor, "batch pos d_model"]


@contextmanager
def same_input(base: HookedModel, model: HookedModel) -> Iterator[SameInput]:
    """Hook a model for a block so that each of its transformer blocks reads the base's residual stream.

    Inside, the model's ``blocks.{l}.hook_resid_post`` is the sum that block ``l`` adds to the base's
    ``hook_resid_pre``. A block with the base's weights adds an equal sum, however much the blocks below it differ. Its
    other hook points after the first block, and its logits, are meaningless.

    Cost: a forward pass of the base for each one of the model.
    Memory: the base's residual stream of a batch at every layer.

    Args:
        base: any hooked model.
        model: one with the base's depth and width, whose hooks can write. It may be the base itself.

    Raises:
        InputError: for models of different depth, or hooks that cannot write.

    Example:
        >>> # with same_input(base, tuned) as blocks:
        >>> #     save_rows(blocks, batches, "rows/blocks-tuned", labels=["task"])
    """
    depths = [n_hooked_blocks(each.hook_dict) for each in (base, model)]
    if depths[0] != depths[1]:
        raise InputError(f"the models have {depths[0]} and {depths[1]} blocks; give a model and one tuned from it")
    if not can_be_patched(model):
        raise InputError("the hooks of this model cannot write, so its blocks cannot be given another stream")
    blocks = SameInput(base, model)
    with record(model, [*blocks.pres, *blocks.posts], blocks.receive):
        yield blocks


class SameInput(nn.Module):
    """A hooked model whose blocks read another model's residual stream. ``same_input`` makes one.

    Attributes:
        base: the model that gives the stream.
        model: the model whose blocks read it.
        pres: hook points before the blocks.
        posts: hook points after them.
    """

    def __init__(self, base: HookedModel, model: HookedModel) -> None:
        super().__init__()
        self.base = base
        self.model = model
        layers = range(n_hooked_blocks(model.hook_dict))
        self.pres = [f"blocks.{layer}.hook_resid_pre" for layer in layers]
        self.posts = [f"blocks.{layer}.hook_resid_post" for layer in layers]
        self._streams: dict[str, Stream] = {}  # of the base on this batch, by hook point
        self._read = torch.empty(0)  # the present block's input
        self._left = torch.empty(0)  # the previous block's output, which the next block reads if the model is the base

    @property
    def cfg(self) -> Any:
        """Configuration of the model."""
        return self.model.cfg

    @property
    def hook_dict(self) -> Any:
        """Hook points of the model."""
        return self.model.hook_dict

    def hooks(self, fwd_hooks: Any = ()) -> AbstractContextManager[Any]:
        """Add hooks to the model inside the block."""
        return self.model.hooks(fwd_hooks=fwd_hooks)

    def forward(self, tokens: Int[Tensor, "batch pos"], **kwargs: Any) -> Any:
        """Run the base for its residual stream, if it is another model, and the model on it."""
        if self.base is self.model:
            return self.model(tokens, **kwargs)
        with record(self.base, self.pres) as seen:
            _call(self.base, tokens, kwargs)
        self._streams = {name: stream for name, (stream,) in seen.items()}
        try:
            return _call(self.model, tokens, kwargs)
        finally:
            self._streams = {}

    def receive(self, name: str, activation: Stream) -> Stream:
        """Replace a block's input by the base's stream, and its output by the sum that it adds to that."""
        if name in self.pres:
            self._read = self._stream_before(name, activation)
            return self._read
        self._left = activation
        return activation - self._read

    def _stream_before(self, name: str, activation: Stream) -> Stream:
        if self.base is not self.model:
            return self._streams[name].to(activation)
        return activation if name == self.pres[0] else self._left


def _call(model: HookedModel, tokens: Int[Tensor, "batch pos"], kwargs: Mapping[str, Any]) -> Any:
    """Call a model on its device, which need not be the other model's."""
    device = device_of(model)
    moved = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in kwargs.items()}
    return model(tokens.to(device), **moved)
