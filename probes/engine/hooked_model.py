"""The interface of models: hook points, a forward pass, and evaluation mode."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeAlias, runtime_checkable

from jaxtyping import Int, Shaped
from torch import Tensor, nn

from tasks import Batch, InputError


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
HookedModels: TypeAlias = HookedModel | Mapping[str, HookedModel]


def forward(model: HookedModel, batch: Batch) -> Any:
    """Call the model on a batch, with the attention mask if there is padding."""
    if batch.attention_mask is None or bool(batch.attention_mask.all()):
        return model(batch.tokens)
    return model(batch.tokens, attention_mask=batch.attention_mask.long())


def all_modules(model: HookedModel) -> Iterator[tuple[str, nn.Module]]:
    """Yield a model's modules by name, with those of a bridge's Hugging Face model, not all of which it lists."""
    for name, module in model.named_modules():
        yield name, module
        original = getattr(module, "original_model", None)
        if isinstance(original, nn.Module):
            yield from original.named_modules(prefix=f"{name}.original_model")


@contextmanager
def evaluation_mode(model: HookedModel) -> Iterator[None]:
    """Turn dropout off inside the block. Afterwards every module's mode is as before."""
    training = [module for _, module in all_modules(model) if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def hooked_models_by_name(model: HookedModels) -> dict[str, HookedModel]:
    """Return several models by name, a single one under the name ``""``."""
    return dict(model) if isinstance(model, Mapping) else {"": model}


def check_hooked_models(models: Mapping[str, HookedModel]) -> None:
    """Refuse several models without proper names, or with vocabularies of different sizes.

    Raises:
        InputError: for such models, with their names.
    """
    if not models:
        raise InputError("no models given; give one, or several by name")
    check_model_names(models)
    sizes = {name: getattr(getattr(model, "cfg", None), "d_vocab", None) for name, model in models.items()}
    known = [(name, size) for name, size in sizes.items() if size is not None]
    for name, size in known[1:]:
        first, first_size = known[0]
        if size != first_size:
            raise InputError(
                f"model {first!r} has a vocabulary of {first_size} tokens and {name!r} one of {size}, so the same "
                "tokens are not the same text; compare models with one tokenizer"
            )


def check_model_names(names: Iterable[object]) -> None:
    """Refuse names of several models, or of their rows, that are no texts or empty."""
    for name in names:
        if not isinstance(name, str) or not name:
            raise InputError(f"a model is called {name!r}; expected a name, such as 'tuned'")


def modules_of(model: HookedModels) -> dict[str, Any]:
    """Return the training flags and hooks of a model's modules, or of several, which no measurement may change."""
    training_flags = {}
    hooks = {}
    for name, each in hooked_models_by_name(model).items():
        for place, module in all_modules(each):
            training_flags[f"{name}/{place}"] = module.training
            hooks[f"{name}/{place}"] = (len(module._forward_hooks), len(module._forward_pre_hooks))
    return {"the model's training flags": training_flags, "the hooks": hooks}


def inner_module(module: Any) -> nn.Module | None:
    """Return the module that computes. In TransformerLens's bridge, it is between two hook points."""
    component = getattr(module, "original_component", None)
    if not isinstance(component, nn.Module):
        component = module
    return component if isinstance(component, nn.Module) and type(component) is not nn.Module else None


def n_hooked_blocks(names: Iterable[str]) -> int:
    """Return the number of blocks that hook points have."""
    matches = [re.match(r"blocks\.(\d+)\.", name) for name in names]
    return 1 + max((int(match[1]) for match in matches if match), default=-1)
