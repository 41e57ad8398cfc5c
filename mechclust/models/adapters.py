"""Adapters (LoRA and its relatives, as peft saves them): merged into a resident model, and taken out again exactly.

TransformerLens copies some fused weights when it wraps a model. An adapter next to them would never run, and the base
would be measured in its place. Here an adapter's change is always added to the weights themselves, wherever they lie.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from mechclust.models.fused_weights import split_again
from mechclust.models.hugging_face_checkpoint import ADAPTER
from mechclust.models.peft_import import import_peft
from mechclust.models.quiet_transformers import quiet_transformers
from mechclust.models.weights import copy_with_shared_weights, gradient_flags_restored
from probes.engine.hooked_model import HookedModel
from probes.store.digest import digest_of
from tasks import InputError
from tasks.errors import error_line, error_sentence

_RESIDENT = "mechclust_weights"  # the attribute of a model that holds its ``_Resident``
_MAX_NAMES = 3  # in a message
_SIZE_MISMATCH = re.compile(r"size mismatch for (\S+): .*?\[([\d, ]*)\].*?\[([\d, ]*)\]")  # of PyTorch
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_SETTINGS_WITHOUT_EFFECT = ("base_model_name_or_path", "inference_mode", "revision")  # on the merged weights
_PROMPT_TUNING = ("CPT", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "PROMPT_TUNING")
_NOT_IN_WEIGHTS = (*_PROMPT_TUNING, "ADAPTION_PROMPT", "POLY")  # peft's kinds of adapters that cannot be merged
_QUANTISED = "the base is quantised, and an adapter cannot be added exactly to rounded weights"

_WeightsByName = Mapping[str, Shaped[Tensor, "..."]]


class _Resident:
    """The weights of a resident model under Hugging Face's names, and the base's weights that an adapter replaced.

    There is one per Hugging Face model, because every wrapper of the model shares its weights. It is made before
    TransformerLens wraps the model and renames its modules.

    Args:
        plain: the Hugging Face model. Only its modules are kept, and its weights are not copied.

    Attributes:
        adapter: the folder of the adapter that is in, or ``None``.
        wrappers: the hooked models that wrap it.
    """

    def __init__(self, plain: Any) -> None:
        self.plain = plain
        self.weights: dict[str, nn.Parameter] = dict(plain.named_parameters())
        self.adapter: str | None = None
        self.wrappers: WeakSet[Any] = WeakSet()
        self._base_weights: _WeightsByName = {}

    def __deepcopy__(self, memo: Any) -> _Resident:
        return self

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Pickle as ``None``: weights and wrappers are of this process, and a loaded model is one like any other."""
        return type(None), ()

    def merged_weights(self) -> _WeightsByName:
        """Return copies of the weights that the adapter changed."""
        return {name: self.weights[name].detach().clone() for name in self._base_weights}

    def put_in(self, changed: _WeightsByName, adapter: str) -> None:
        """Write the weights that an adapter changes, and keep the base's."""
        self._base_weights = {name: self.weights[name].detach().clone() for name in changed}
        self._write(changed)
        self.adapter = adapter

    def take_out(self) -> None:
        """Restore the base's weights, to the bit."""
        self._write(self._base_weights)
        self._base_weights = {}
        self.adapter = None

    def _write(self, weights: _WeightsByName) -> None:
        with torch.no_grad():
            for name, value in weights.items():
                self.weights[name].copy_(value)


def merged_copy(tuned: Any) -> Any:
    """Return a copy of a peft model in training with its adapter merged into the weights, to be measured.

    The model itself stays as it is. Memory: the weights that the adapter changes, once. All others are shared.

    Args:
        tuned: the model from ``peft.get_peft_model``.

    Raises:
        InputError: for a quantised base.
    """
    if _is_quantised(tuned):
        raise InputError(f"{_QUANTISED}; save checkpoints and run mechclust history on them")
    copied = copy_with_shared_weights(tuned)
    _copy_merged_weights(copied)
    with quiet_transformers(), torch.no_grad():
        return copied.merge_and_unload()


def _is_quantised(model: Any) -> bool:
    return getattr(model, "hf_quantizer", None) is not None or getattr(model, "is_quantized", False)


def _copy_merged_weights(wrapped: Any) -> None:
    """Replace the weights that merging writes to by copies."""
    weights = list(wrapped.named_parameters(remove_duplicate=False))  # a tied weight is there twice
    for name, weight in weights:
        if ".base_layer." in name:
            module, _, attribute = name.rpartition(".")
            copied = nn.Parameter(weight.detach().clone(), requires_grad=False)
            setattr(wrapped.get_submodule(module), attribute, copied)


def is_adapter(path: str | Path) -> bool:
    """Return whether a path is a folder in which peft saved an adapter, and no model."""
    return (Path(path) / ADAPTER).is_file() and not (Path(path) / "config.json").exists()


def base_of_adapter(adapter: str | Path) -> str:
    """Return the model for which an adapter was trained, by its ``adapter_config.json``.

    Raises:
        InputError: if it names no base, or a missing folder.
    """
    name = _read_config(adapter).get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        fault = f"its {ADAPTER} names no base"
    elif Path(name).is_absolute() and not Path(name).is_dir():
        fault = f"its base, {name!r}, is not there"
    else:
        return name
    raise InputError(f"{str(adapter)!r} is an adapter, and {fault}; give the base, and the adapter with --adapter")


def named_base_of_adapter(adapter: str | Path) -> str | None:
    """Return the model for which an adapter was trained, by its configuration. It may be missing."""
    try:
        name = _read_config(adapter).get("base_model_name_or_path")
    except InputError:
        return None
    return name if isinstance(name, str) and name else None


def set_adapter(model: HookedModel, adapter: str | Path | None) -> None:
    """Put an adapter into a loaded model, replacing the one it has. ``None`` removes it.

    Peft computes the adapter's change in the weights' dtype, as ``merge_and_unload`` does. The base's weights are kept,
    so that removing the adapter restores them to the bit, however often adapters are swapped. The weights of a Hugging
    Face model in memory belong to the caller. They change too, and in every model that wraps it. If it fails, the model
    is as before. Memory: the weights that an adapter touches, once, and twice while it is replaced.

    Args:
        model: a model from ``load_pretrained``.
        adapter: folder that peft's ``save_pretrained`` wrote.

    Raises:
        InputError: for a folder without adapter, an adapter for another base (naming weight and shapes), or one that
            cannot be merged (prompt tuning). Also for a quantised model or one partly on disk, and if peft is not
            installed.

    Example:
        >>> set_adapter(model, "my-lora")  # doctest: +SKIP
        >>> set_adapter(model, None)  # doctest: +SKIP
    """
    resident = adapter_resident(model)
    if resident is None:
        raise InputError(
            f"a {type(model).__name__} that load_pretrained did not load cannot take an adapter; load the base with "
            "load_pretrained, or merge the adapter yourself (peft: merge_and_unload)"
        )
    path = None if adapter is None else str(adapter)
    if path is not None:
        _check(path, resident.plain)
    before = resident.adapter
    kept = resident.merged_weights()
    try:
        resident.take_out()
        if path is not None:
            resident.put_in(_merged(resident.plain, path), path)
    except BaseException:
        resident.take_out()
        if before is not None:
            resident.put_in(kept, before)
        raise
    finally:
        for wrapper in resident.wrappers:
            split_again(wrapper)


def enable_adapters(model: Any, plain: Any) -> None:
    """Note on a hooked model which weights it has, for ``set_adapter``."""
    resident = adapter_resident(plain)
    if resident is None:
        resident = _Resident(plain)
        object.__setattr__(plain, _RESIDENT, resident)
    resident.wrappers.add(model)
    object.__setattr__(model, _RESIDENT, resident)


def adapter_resident(model: Any) -> _Resident | None:
    """Return the resident weights of a model, hooked or plain, or ``None`` if ``load_pretrained`` did not see it."""
    resident = getattr(model, _RESIDENT, None)
    if not isinstance(resident, _Resident):
        return None
    return resident if model is resident.plain or model in resident.wrappers else None  # not a deep copy of these


def adapter_of(model: Any) -> str | None:
    """Return the folder of the adapter that is in a model, or ``None``."""
    resident = adapter_resident(model)
    return None if resident is None else resident.adapter


def with_adapter(plain: Any, adapter: str | Path) -> Any:
    """Return the model with the adapter next to its weights, as peft runs it: an independent reference."""
    _check(str(adapter), plain)
    with gradient_flags_restored(plain):
        return attach_adapter(plain, str(adapter))


def _read_config(adapter: str | Path) -> dict[str, Any]:
    path = Path(adapter) / ADAPTER
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise InputError(
            f"no adapter in {str(adapter)!r} (no {ADAPTER}); give a local folder that peft saved"
        ) from None
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise InputError(f"{str(path)!r} is not a JSON object; download it, or save the adapter, again")
    return config


def digest_of_adapter(adapter: str | Path) -> str:
    """Return a digest of an adapter's weights, and of how its configuration scales and places them."""
    config = {key: value for key, value in _read_config(adapter).items() if key not in _SETTINGS_WITHOUT_EFFECT}
    weights = next(Path(adapter) / name for name in _WEIGHTS if (Path(adapter) / name).exists())
    return digest_of([json.dumps(config, sort_keys=True), weights.read_bytes()])


def check_adapter(adapter: str | Path) -> None:
    """Refuse a folder that holds no adapter that can be merged, without loading anything.

    Raises:
        InputError: naming the missing file, or the kind of adapter.
    """
    config = _read_config(adapter)
    import_peft("reading an adapter", "adapters")
    if not any((Path(adapter) / name).exists() for name in _WEIGHTS):
        raise InputError(f"the adapter {str(adapter)!r} has no weights (adapter_model.safetensors); save it again")
    kind = config.get("peft_type")
    if kind in _NOT_IN_WEIGHTS:
        raise InputError(
            f"{str(adapter)!r} is an adapter of kind {kind}, which adds positions or layers, or changes weights by the "
            "task, so it cannot be merged; give one that can, such as LoRA"
        )


def _check(adapter: str, plain: Any) -> None:
    """Refuse an adapter or a base that cannot be merged, before anything is changed."""
    check_adapter(adapter)
    if _is_quantised(plain):
        raise InputError(f"{_QUANTISED}; load the base in bfloat16 or float32")
    if any(weight.is_meta for weight in plain.parameters()):
        raise InputError(
            "part of the base is offloaded, where no adapter can be added; load all of it on one device (device=), "
            "without device_map"
        )


def _merged(plain: Any, adapter: str) -> _WeightsByName:
    """Return the weights that an adapter changes, merged with it."""
    copied = copy_with_shared_weights(plain)
    base = dict(copied.named_parameters())
    with gradient_flags_restored(plain):
        wrapped = attach_adapter(copied, adapter)
    _copy_merged_weights(wrapped)
    try:
        with quiet_transformers():
            merged = wrapped.merge_and_unload(safe_merge=True)
    except (ValueError, AttributeError, NotImplementedError) as error:
        way = "save it again" if isinstance(error, ValueError) else "give one that can, such as LoRA"
        raise InputError(f"the adapter {adapter!r} cannot be merged: {error_line(error)}; {way}") from error
    weights = dict(merged.named_parameters())
    extra = sorted(weights.keys() - base.keys())
    if extra:
        raise InputError(
            f"the adapter {adapter!r} adds the weight {extra[0]!r}, which the base does not have, or has tied to "
            "another (embeddings and head, of which an adapter changes one); merge it with tie_word_embeddings=False, "
            "and give the model that you saved"
        )
    for name, weight in weights.items():
        if weight.shape != base[name].shape:
            raise InputError(
                f"the adapter {adapter!r} has {name!r} of shape {list(weight.shape)}, but the base one of "
                f"{list(base[name].shape)} (were tokens added?); merge it and save it as a separate model"
            )
    return {name: w.detach() for name, w in weights.items() if w is not base[name] and not torch.equal(w, base[name])}


def attach_adapter(plain: Any, adapter: str, **options: Any) -> Any:
    """Return peft's model, with copies of the biases, since peft writes an adapter's biases into the base's.

    Args:
        plain: the Hugging Face model, whose modules are changed.
        adapter: folder of the adapter.
        **options: further ones of peft, for making an adapter and for reading its weights.

    Raises:
        InputError: for an adapter of another base (naming a weight and both shapes), and a damaged one.
    """
    peft = import_peft("reading an adapter", "adapters")
    _copy_biases(plain)
    try:
        with quiet_transformers():
            config = peft.PeftConfig.from_pretrained(adapter)
            config.inference_mode = True
            wrapped = peft.PeftModel(plain, config, **options)
    except Exception as error:  # of peft: anything
        raise InputError(_config_fault(adapter, plain, error)) from error
    try:
        with quiet_transformers():
            keys = wrapped.load_adapter(adapter, "default", is_trainable=False, torch_device="cpu", **options)
    except Exception as error:
        raise InputError(_weights_fault(adapter, plain, error)) from error
    if keys.unexpected_keys:
        raise InputError(
            f"the adapter {adapter!r} has the weights {quoted_names(sorted(keys.unexpected_keys))}, for which the "
            f"base ({type(plain).__name__}) has no place; give the base that it was trained for"
        )
    missing = [key for key in keys.missing_keys if "lora" in key or "default" in key]
    if missing:
        raise InputError(
            f"the adapter {adapter!r} lacks the weights {quoted_names(sorted(missing))} for this base; give the base "
            "that it was trained for, or save it again"
        )
    return wrapped


def _copy_biases(model: Any) -> None:
    """Replace the weights with one axis by copies, which are tied as before."""
    copies: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, weight in list(module._parameters.items()):
            if weight is not None and weight.ndim == 1:
                copies.setdefault(id(weight), nn.Parameter(weight.detach().clone(), requires_grad=False))
                module._parameters[name] = copies[id(weight)]


def quoted_names(names: Sequence[str]) -> str:
    """Return the first three names in quotes, and how many more there are."""
    shown = ", ".join(map(repr, names[:_MAX_NAMES]))
    hidden = len(names) - _MAX_NAMES
    return shown if hidden <= 0 else f"{shown} and {hidden} more"


def _config_fault(adapter: str, plain: Any, error: Exception) -> str:
    """Return why an adapter's configuration cannot be used on a base, and the way out."""
    line = error_line(error)
    if str(error).startswith("Target module"):  # not found, or of another kind
        trained = named_base_of_adapter(adapter) or "another base"
        return (
            f"the adapter {adapter!r}, trained for {trained!r}, does not fit this base ({type(plain).__name__}): "
            f"{line}; give the base that it was trained for"
        )
    return f"the {ADAPTER} of the adapter {adapter!r} cannot be used ({line}); save the adapter again"


def _weights_fault(adapter: str, plain: Any, error: Exception) -> str:
    """Return why an adapter's weights cannot be put beside the base's weights, and the way out."""
    mismatch = _SIZE_MISMATCH.search(" ".join(str(error).split()))
    if mismatch is None:
        return (
            f"the weights of the adapter {adapter!r} are damaged or cut off ({error_sentence(error)}); download or "
            "save them again"
        )
    name, saved, expected = mismatch.groups()
    return (
        f"the adapter {adapter!r} does not fit this base ({type(plain).__name__}) or its own {ADAPTER}: its {name!r} "
        f"has the shape [{saved}], not [{expected}]; give the base that it was trained for, or save the adapter again"
    )
