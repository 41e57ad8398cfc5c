"""What is needed of a model: hooks, a forward pass, its device and mode, and one way to catch activations."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn

from tasks import Batch, InputError


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


def forward(model: HookedModel, batch: Batch) -> Any:
    """Call the model on a batch, with its attention mask where it has padding."""
    if batch.attention_mask is None or bool(batch.attention_mask.all()):
        return model(batch.tokens)
    return model(batch.tokens, attention_mask=batch.attention_mask.long())


def device_of(model: HookedModel) -> torch.device:
    """Where the model takes its tokens: the device of its first parameter that is not offloaded.

    Where accelerate keeps all of them elsewhere, the device on which it runs the model.
    """
    for parameter in model.parameters():
        if not parameter.is_meta:
            return parameter.device
    for module in model.modules():
        device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
        if device is not None:
            return torch.device(device)
    return torch.device("cpu")


@contextmanager
def evaluation_mode(model: HookedModel) -> Iterator[None]:
    """Dropout off inside; afterwards every module's own mode is as it was."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def modules_of(model: HookedModel | Mapping[str, HookedModel]) -> dict[str, Any]:
    """What a measurement may not change in the modules of a model, or of several: training flags and hooks."""
    models = model if isinstance(model, Mapping) else {"": model}
    modules = {f"{name}/{k}": m for name, each in models.items() for k, m in each.named_modules()}
    return {
        "the model's training flags": {k: m.training for k, m in modules.items()},
        "the hooks": {k: (len(m._forward_hooks), len(m._forward_pre_hooks)) for k, m in modules.items()},
    }


def check_device(name: str) -> None:
    """Refuse a device that this machine does not have.

    Raises:
        InputError: naming the device, and the way out.
    """
    try:
        kind = torch.device(name).type
    except RuntimeError:
        raise InputError(f"no device {name!r}; expected cpu, cuda, cuda:1 or mps") from None
    if (kind == "cuda" and not torch.cuda.is_available()) or (kind == "mps" and not torch.backends.mps.is_available()):
        raise InputError(f"device {name!r} is not available on this machine; choose --device cpu")


@contextmanager
def record(
    model: HookedModel, names: Iterable[str], receive: Callable[[str, Tensor], Tensor | None] | None = None
) -> Iterator[dict[str, list[Tensor]]]:
    """Catch activations inside the block; everything in these packages does it with this function.

    Args:
        model: anything with TransformerLens's hook protocol.
        names: hook points. In TransformerLens 4 a callback's ``hook.name`` is not the name asked for; here it is.
        receive: called with name and activation whenever a hook point fires; what it returns replaces the activation,
            ``None`` leaves it unchanged. Without ``receive``, activations are kept unchanged.

    Yields:
        Every activation kept, by hook point, in the order in which it fired.

    Raises:
        InputError: for a hook point that the model does not have. The bridge of TransformerLens 3.9 would ignore it.

    Example:
        >>> # with record(model, ["hook_embed"]) as seen:
        >>> #     model(tokens)
        >>> # seen["hook_embed"][0]  # [batch pos d_model]
    """
    kept: dict[str, list[Tensor]] = {name: [] for name in names}
    known, lacks = list(model.hook_dict), getattr(model, "lacks", {})
    for name in kept:
        existing_hook(name, known, lacks)

    def keep(name: str, activation: Tensor) -> None:
        kept[name].append(activation)

    def hook_at(name: str) -> Callable[[Tensor, Any], Tensor | None]:
        return lambda activation, hook: (receive or keep)(name, activation)

    with model.hooks(fwd_hooks=[(name, hook_at(name)) for name in kept]):
        yield kept


def n_blocks(names: Sequence[str]) -> int:
    """Return the number of blocks that hook points have."""
    return 1 + max((int(m[1]) for name in names if (m := re.match(r"blocks\.(\d+)\.", name))), default=-1)


def existing_hook(name: str, names: Sequence[str], lacks: Mapping[str, str]) -> str:
    """Return a hook point's name, or say which names are near it.

    Args:
        name: of the hook point.
        names: of all hook points of the model.
        lacks: ends of names that a model of this kind has not, with the reason.

    Raises:
        InputError: for a name that is not there.
    """
    if name not in names:
        raise InputError(_no_such(name, names, lacks))
    return name


def _no_such(name: str, names: Sequence[str], lacks: Mapping[str, str]) -> str:
    if (why := next((why for end, why in lacks.items() if name.endswith(end)), None)) is not None:
        return f"no hook point {name!r} in this model: {why}"
    n = n_blocks(names)
    has = f" (it has blocks 0-{n - 1})" if n and name.startswith("blocks.") else ""
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if match := re.match(r"blocks\.(\d+)\.(.*)", name):  # the same place in the last block comes first
        same = f"blocks.{n - 1}.{match[2]}"
        near = [same, *(k for k in near if k != same)][:3] if int(match[1]) >= n and same in names else near
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "; see model.hook_dict for the names"
    return f"no hook point {name!r} in this model{has}{hint}"
