"""Whether adapters fit the base that they are put on: what they say of it, and the shapes of their weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from mechclust.models.adapters import base_of, import_peft, is_adapter, named_base
from mechclust.models.huggingface import find, quiet, read_config, reading
from mechclust.models.pretrained import auto_class, model_name
from tasks import InputError

_NAMED = 3  # adapters named in a note


def adapter_notes(pairs: Iterable[tuple[str, Any]]) -> list[str]:
    """Adapters that name another base than the one they are put on. Whether their weights fit is seen when they are put
    in; models move and are renamed, so that a name alone refuses nothing.

    Args:
        pairs: adapter and base.
    """
    named: dict[tuple[str, str], list[str]] = {}
    for adapter, model in pairs:
        trained, base = named_base(adapter), model_name(model)
        if trained is not None and Path(trained).name != Path(base).name:
            named.setdefault((trained, base), []).append(adapter)
    return [
        f"{_some(adapters)} {'says that it was' if len(adapters) == 1 else 'say that they were'} trained for "
        f"{trained!r}, and {'is' if len(adapters) == 1 else 'are'} measured on {base!r}: the weights fit, but only "
        "you can know whether the base is the same."
        for (trained, base), adapters in named.items()
    ]


def _some(adapters: Sequence[str]) -> str:
    names = ", ".join(map(repr, adapters[:_NAMED]))
    more = len(adapters) - _NAMED
    what = "The adapter" if len(adapters) == 1 else "The adapters"
    return f"{what} {names}" + (f" and {more} more" if more > 0 else "")


def check_fits_base(adapters: Sequence[str], base: str, *, trust_remote_code: bool = False) -> None:
    """Refuse low-rank adapters with weights for layers that the base does not have, or that have other shapes there,
    without loading the base.

    What else may not fit is refused when an adapter is put in.

    Args:
        adapters: folders.
        base: hub name or directory.
        trust_remote_code: run code that the base brings.

    Raises:
        InputError: naming the first adapter, and the layer, with both shapes if it is there.
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
            if kind not in ("A.weight", "B.weight"):
                continue
            if layer not in shapes:
                if renamed:
                    continue
                raise InputError(
                    f"the adapter {adapter!r} does not fit the base {base!r}: it has weights for {layer!r}, a layer "
                    "that the base does not have; give the base that it was trained for"
                )
            if (found := shapes[layer]) is None:
                continue
            n_out, n_in = found
            fits = shape[1] == n_in if kind == "A.weight" else shape[0] == n_out
            if not fits:
                raise InputError(
                    f"the adapter {adapter!r} does not fit the base {base!r}: its lora_{kind} of {layer!r} has the "
                    f"shape {list(shape)}, and that layer has {n_in} inputs and {n_out} outputs; give the base that it "
                    "was trained for"
                )


def _shapes(base: str, trust_remote_code: bool) -> tuple[dict[str, tuple[int, int] | None], bool]:
    """By name ``outputs, inputs`` of linear layers and ``None`` for other modules, nothing where the model cannot be
    made without its weights; and whether weights may be saved under other names."""
    source = find(base_of(base) if is_adapter(base) else base, trust_remote_code=trust_remote_code)
    with reading(source):
        config = read_config(source)
    found: dict[str, tuple[int, int] | None] = {}
    with suppress(Exception), quiet(), torch.device("meta"):
        model = auto_class(config).from_config(config, trust_remote_code=trust_remote_code)
        for name, module in model.named_modules():
            found[name] = None
            weight = getattr(module, "weight", None)
            if type(module).__name__ == "Linear" and weight is not None:
                found[name] = (int(weight.shape[0]), int(weight.shape[1]))
            elif type(module).__name__ == "Conv1D" and weight is not None:
                found[name] = (int(weight.shape[1]), int(weight.shape[0]))
    return found, _is_renamed(config.model_type)


def _is_renamed(model_type: str) -> bool:
    """Whether transformers, and peft with it, give saved weights of this kind of model other names."""
    try:
        from transformers.conversion_mapping import get_checkpoint_conversion_mapping
    except ImportError:  # before version 5
        return False
    return get_checkpoint_conversion_mapping(model_type) is not None


def _weights_of(adapter: str) -> dict[str, tuple[int, ...]]:
    peft = import_peft("reading an adapter", "adapters")
    try:
        with quiet():
            found = peft.utils.load_peft_weights(adapter, device="cpu")
    except Exception:  # a damaged file, which is told when the adapter is put in
        return {}
    return {name: tuple(weight.shape) for name, weight in found.items()}
