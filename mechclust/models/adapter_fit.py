"""Check whether adapters fit the base that they are put on, by its recorded name and by the shapes of their weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from mechclust.models.adapters import named_base_of_adapter, quoted_names
from mechclust.models.hugging_face_checkpoint import find_checkpoint, hugging_face_auto_class, read_checkpoint_config
from mechclust.models.peft_import import import_peft
from mechclust.models.quiet_transformers import quiet_transformers
from mechclust.models.resolved import ResolvedModel
from tasks import InputError


def adapter_fit_notes(models: Iterable[ResolvedModel]) -> list[str]:
    """Note adapters that name another base than the one they are put on.

    Whether their weights fit is checked when they are put in. Models move and are renamed, so a name alone is not
    refused.

    Args:
        models: those without an adapter next to them are left out.
    """
    adapters_by_bases: dict[tuple[str, str], list[str]] = {}
    for model in models:
        trained = None if model.adapter is None else named_base_of_adapter(model.adapter)
        if trained is not None and Path(trained).name != Path(model.name).name:
            adapters_by_bases.setdefault((trained, model.name), []).append(str(model.adapter))
    return [_note(adapters, trained, base) for (trained, base), adapters in adapters_by_bases.items()]


def _note(adapters: Sequence[str], trained: str, base: str) -> str:
    names = quoted_names(adapters)
    if len(adapters) == 1:
        note = f"The adapter {names} says that it was trained for {trained!r}, and is measured on"
    else:
        note = f"The adapters {names} say that they were trained for {trained!r}, and are measured on"
    return f"{note} {base!r}: the weights fit, but only you can know whether the base is the same."


def check_fits_base(adapters: Sequence[str], base: ResolvedModel, *, trust_remote_code: bool = False) -> None:
    """Refuse low-rank adapters with weights for layers that the base does not have, or that have other shapes there.

    The base is not loaded. Other mismatches are refused when an adapter is put in.

    Args:
        adapters: folders.
        base: a model that was given by name.
        trust_remote_code: run code that the base brings.

    Raises:
        InputError: naming the first adapter, and the layer, with both shapes if the base has it.
    """
    if not adapters:
        return
    shapes, renamed = _shapes(base, trust_remote_code)
    if not shapes:
        return
    for adapter in adapters:
        for name, shape in _weights_of(adapter).items():
            layer, _, kind = name.removeprefix("base_model.model.").partition(".lora_")
            layer = layer.replace(".base_layer", "")  # where peft adapts several weights of one module
            if kind not in ("A.weight", "B.weight") or (renamed and layer not in shapes):
                continue
            fault = _fault(layer, kind, shape, shapes)
            if fault is not None:
                raise InputError(
                    f"the adapter {adapter!r} does not fit the base {base.source!r}: {fault}; give the base that it "
                    "was trained for"
                )


def _fault(layer: str, kind: str, shape: tuple[int, ...], shapes: Mapping[str, tuple[int, int] | None]) -> str | None:
    """Return why a low-rank weight does not fit the base's layers, or ``None`` if it may fit."""
    if layer not in shapes:
        return f"it has weights for {layer!r}, a layer that the base does not have"
    layer_shape = shapes[layer]
    if layer_shape is None:
        return None
    n_out, n_in = layer_shape
    fits = shape[1] == n_in if kind == "A.weight" else shape[0] == n_out
    if fits:
        return None
    sizes = f"that layer has {n_in} inputs and {n_out} outputs"
    return f"its lora_{kind} of {layer!r} has the shape {list(shape)}, and {sizes}"


def _shapes(base: ResolvedModel, trust_remote_code: bool) -> tuple[dict[str, tuple[int, int] | None], bool]:
    """Return the shapes of the base's modules by name, and whether its weights may be saved under other names.

    A shape is outputs and inputs of a linear layer, and ``None`` for other modules. There are no shapes if the model
    cannot be made without its weights.
    """
    model = model_without_weights(base, trust_remote_code=trust_remote_code)
    if model is None:
        return {}, False
    shapes = {name: _linear_shape(module) for name, module in model.named_modules()}
    return shapes, _is_renamed(model.config.model_type)


def model_without_weights(base: ResolvedModel, *, trust_remote_code: bool = False) -> Any | None:
    """Return Hugging Face's model of a checkpoint on the meta device, or ``None`` if it cannot be made so."""
    config = read_checkpoint_config(find_checkpoint(base.base, trust_remote_code=trust_remote_code))
    with suppress(Exception), quiet_transformers(), torch.device("meta"):
        return hugging_face_auto_class(config).from_config(config, trust_remote_code=trust_remote_code)
    return None


def _linear_shape(module: Any) -> tuple[int, int] | None:
    """Return the outputs and inputs of a linear layer, or ``None`` for other modules."""
    kind = type(module).__name__
    weight = getattr(module, "weight", None)
    if weight is None or kind not in ("Linear", "Conv1D"):
        return None
    first, second = weight.shape
    return (int(first), int(second)) if kind == "Linear" else (int(second), int(first))


def _is_renamed(model_type: str) -> bool:
    """Return whether transformers, and peft with it, give saved weights of this kind of model other names."""
    try:
        from transformers.conversion_mapping import get_checkpoint_conversion_mapping
    except ImportError:  # before version 5
        return False
    return get_checkpoint_conversion_mapping(model_type) is not None


def _weights_of(adapter: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of an adapter's weights by name. Empty for a damaged file, which is refused later."""
    peft = import_peft("reading an adapter", "adapters")
    try:
        with quiet_transformers():
            weights = peft.utils.load_peft_weights(adapter, device="cpu")
    except Exception:
        return {}
    return {name: tuple(weight.shape) for name, weight in weights.items()}
