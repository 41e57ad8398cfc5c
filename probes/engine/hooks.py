"""The interface of models: hook points, a forward pass, device and mode, and one way to catch activations."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Int, Shaped
from torch import Tensor, nn

from probes.engine.state import AnyTensor
from tasks import Batch, InputError

AnyActivation: TypeAlias = Any  # a tensor, or an ``Attention``, whose module imports this one
Receive: TypeAlias = Callable[[str, AnyActivation], AnyTensor | None]


@runtime_checkable
class HookPoints(Protocol):
    """Anything with hook points by name. Selectors are resolved in it.

    Example:
        >>> from mechclust import ModelConfig, build_model
        >>> model = build_model(ModelConfig(d_vocab=9, n_ctx=4, n_layers=1, d_model=8, n_heads=2))
        >>> isinstance(model, HookPoints)
        True
    """

    @property
    def hook_dict(self) -> Mapping[str, Any]:
        """Hook points by name."""


@runtime_checkable
class HookedModel(HookPoints, Protocol):
    """Anything with TransformerLens's hook protocol.

    A ``HookedTransformer`` of 3.9, a ``TransformerBridge`` of 4.x, the models of ``mechclust``, and your own
    ``HookedRootModule`` have it.

    Example:
        >>> from mechclust import ModelConfig, build_model
        >>> model = build_model(ModelConfig(d_vocab=9, n_ctx=4, n_layers=1, d_model=8, n_heads=2))
        >>> isinstance(model, HookedModel)
        True
    """

    training: bool

    @property
    def cfg(self) -> Any:
        """Configuration: ``n_layers``, ``d_model``, ``d_vocab`` and so on."""

    def hooks(self, fwd_hooks: Any = ...) -> AbstractContextManager[Any]:
        """Add hooks ``(name, function)`` inside the block."""

    def __call__(self, tokens: Int[Tensor, "batch pos"], /, **kwargs: Any) -> Any:
        """Return logits, or another output."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the weights."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the weights with their names."""

    def modules(self) -> Iterator[nn.Module]:
        """Yield the model and its parts."""

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the model and its parts with their names."""

    def state_dict(self) -> Mapping[str, Shaped[Tensor, "..."]]:
        """Return weights and buffers by name."""

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Set weights and buffers."""

    def train(self, mode: bool = True) -> Any:
        """Turn dropout on or off."""

    def eval(self) -> Any:
        """Turn dropout off."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients."""

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Move the model to a device or dtype."""


Models: TypeAlias = HookPoints | Mapping[str, HookPoints]


def forward(model: HookedModel, batch: Batch) -> Any:
    """Call the model on a batch, with the attention mask if there is padding."""
    if batch.attention_mask is None or bool(batch.attention_mask.all()):
        return model(batch.tokens)
    return model(batch.tokens, attention_mask=batch.attention_mask.long())


def device_of(model: HookedModel) -> torch.device:
    """Return the device for the model's tokens: where its first parameter that is not offloaded is.

    If accelerate offloads all parameters, return the device on which it runs the model.
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
    """Turn dropout off inside the block. Afterwards every module's mode is as before."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def by_name(model: HookedModel | Mapping[str, HookedModel]) -> dict[str, HookedModel]:
    """Return several models by name, a single one under the name ``""``."""
    return dict(model) if isinstance(model, Mapping) else {"": model}


def modules_of(model: HookedModel | Mapping[str, HookedModel]) -> dict[str, Any]:
    """Return the training flags and hooks of a model's modules, or of several, which no measurement may change."""
    training_flags = {}
    hooks = {}
    for name, each in by_name(model).items():
        for place, module in each.named_modules():
            training_flags[f"{name}/{place}"] = module.training
            hooks[f"{name}/{place}"] = (len(module._forward_hooks), len(module._forward_pre_hooks))
    return {"the model's training flags": training_flags, "the hooks": hooks}


def check_device(name: str | torch.device) -> None:
    """Refuse a device that this machine does not have.

    Raises:
        InputError: for such a device.
    """
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise InputError(f"no device {name!r}; expected cpu, cuda, cuda:1 or mps") from None
    is_there = True
    if device.type == "cuda":
        is_there = torch.cuda.is_available() and (device.index is None or device.index < torch.cuda.device_count())
    elif device.type == "mps":
        is_there = torch.backends.mps.is_available()
    if not is_there:
        raise InputError(f"device {str(name)!r} is not available on this machine; choose --device cpu")


@contextmanager
def record(
    model: HookedModel, names: Iterable[str], receive: Receive | None = None
) -> Iterator[dict[str, list[AnyTensor]]]:
    """Record activations inside the block. These packages record all activations with this function.

    Args:
        model: anything with TransformerLens's hook protocol.
        names: hook points.
        receive: called with a hook point's name and activation whenever it fires. A tensor that it returns replaces
            the activation, and ``None`` leaves it unchanged. The name is always one of ``names``, while in
            TransformerLens 4 a callback's ``hook.name`` may be another. By default, activations are kept unchanged.

    Yields:
        Every activation kept, by hook point, in the order in which it fired.

    Raises:
        InputError: for a hook point that the model does not have. The bridge of TransformerLens 3.9 would ignore it.

    Example:
        >>> # with record(model, ["hook_embed"]) as seen:
        >>> #     model(tokens)
        >>> # seen["hook_embed"][0]  # [batch pos d_model]
    """
    kept: dict[str, list[AnyTensor]] = {name: [] for name in names}
    known = list(model.hook_dict)
    lacks = getattr(model, "lacks", {})
    hooks = []
    for name in kept:
        existing_hook(name, known, lacks)
        hooks.append((name, partial(_hook, partial(receive, name) if receive else kept[name].append)))
    with model.hooks(fwd_hooks=hooks):
        yield kept


def _hook(
    receive: Callable[[AnyActivation], AnyTensor | None], activation: AnyActivation, hook: Any
) -> AnyTensor | None:
    return receive(activation)


def n_blocks(names: Sequence[str]) -> int:
    """Return the number of blocks that hook points have."""
    matches = [re.match(r"blocks\.(\d+)\.", name) for name in names]
    return 1 + max((int(match[1]) for match in matches if match), default=-1)


def existing_hook(name: str, names: Sequence[str], lacks: Mapping[str, str]) -> str:
    """Return a hook point's name if the model has it.

    Args:
        name: name of the hook point.
        names: names of all hook points of the model.
        lacks: endings of names that a model of this kind lacks, with the reason.

    Raises:
        InputError: for an unknown name, with the nearest names.
    """
    if name not in names:
        for end, reason in lacks.items():
            if name.endswith(end):
                raise InputError(f"no hook point {name!r} in this model: {reason}")
        n = n_blocks(names)
        blocks = f" (it has blocks 0-{n - 1})" if n and name.startswith("blocks.") else ""
        near = _near_names(name, names)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "; see model.hook_dict for the names"
        raise InputError(f"no hook point {name!r} in this model{blocks}{hint}")
    return name


def _near_names(name: str, names: Sequence[str]) -> list[str]:
    """Return up to three near names. For a block beyond the last, the last block's counterpart comes first."""
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    n = n_blocks(names)
    match = re.match(r"blocks\.(\d+)\.(.*)", name)
    if match and int(match[1]) >= n:
        in_last_block = f"blocks.{n - 1}.{match[2]}"
        if in_last_block in names:
            return [in_last_block, *(other for other in near if other != in_last_block)][:3]
    return near
