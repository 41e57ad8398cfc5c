"""What is needed of a model. Nothing asks for these classes at run time but who wants to know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias, runtime_checkable

from torch import Tensor, nn


@runtime_checkable
class HookPoints(Protocol):
    """Anything with hook points by name: what selectors resolve against."""

    @property
    def hook_dict(self) -> Mapping[str, Any]:
        """Hook points by name."""


@runtime_checkable
class HookedModel(HookPoints, Protocol):
    """Anything with TransformerLens's hook protocol: a ``HookedTransformer`` of 3.9, a ``TransformerBridge`` of 4.x,
    the models of ``mechclust``, and your own ``HookedRootModule``.
    """

    training: bool

    @property
    def cfg(self) -> Any:
        """Its configuration: ``n_layers``, ``d_model``, ``d_vocab`` and so on."""

    def hooks(self, fwd_hooks: Any = ...) -> AbstractContextManager[Any]:
        """Adds hooks ``(name, function)`` for the block."""

    def __call__(self, tokens: Tensor, /, **kwargs: Any) -> Any:
        """Logits, or whatever the model gives."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Its weights; the first one's device is the model's."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Its weights by name."""

    def modules(self) -> Iterator[nn.Module]:
        """It and its parts."""

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """It and its parts by name."""

    def state_dict(self) -> Mapping[str, Tensor]:
        """Its weights and buffers by name."""

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Sets its weights and buffers."""

    def train(self, mode: bool = True) -> Any:
        """Dropout on, or off."""

    def eval(self) -> Any:
        """Dropout off."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets gradients."""

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Moves it to a device or dtype."""


Models: TypeAlias = HookPoints | Mapping[str, HookPoints]
