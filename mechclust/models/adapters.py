"""Adapters (LoRA and its relatives, as peft saves them): merged into a resident model, and taken out again exactly.

TransformerLens copies some fused weights when it wraps a model, so that an adapter beside them never runs and the base
is measured in its place. Here an adapter's change is always added to the weights themselves, wherever they lie.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from mechclust.models.huggingface import ADAPTER, Source, quiet
from probes.engine.hooks import HookedModel
from probes.store.digest import digest_of
from tasks import InputError
from tasks.errors import first_line

_STATE = "mechclust_weights"  # of a resident model: see ``Resident``
_SHOWN = 3  # names in a message
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_SAYS_NOTHING = ("base_model_name_or_path", "inference_mode", "revision")  # of the weights that an adapter changes


class Resident:
    """The weights of a resident model under Hugging Face's names, and what an adapter put aside.

    There is one per Hugging Face model, whatever wraps it, since all that wraps it shares its weights. It is made
    before TransformerLens wraps the model and renames what it wraps.

    Args:
        plain: the Hugging Face model. Only its modules are kept, and its weights are not copied.

    Attributes:
        adapter: the folder of the adapter that is in, or ``None``.
        wrappers: the hooked models round it.
    """

    def __init__(self, plain: Any) -> None:
        self.plain = plain
        self.weights: dict[str, nn.Parameter] = dict(plain.named_parameters())
        self.adapter: str | None = None
        self.wrappers: WeakSet[Any] = WeakSet()
        self._aside: dict[str, Tensor] = {}

    def __deepcopy__(self, memo: Any) -> Resident:
        return self

    @classmethod
    def of(cls, plain: Any) -> Resident:
        """That of a Hugging Face model."""
        if not isinstance(plain.__dict__.get(_STATE), cls):
            object.__setattr__(plain, _STATE, cls(plain))
        return plain.__dict__[_STATE]  # type: ignore[no-any-return]

    def put(self, changed: Mapping[str, Tensor], adapter: str) -> None:
        """These weights in place of the base's, which are kept."""
        self._aside = {name: self.weights[name].detach().clone() for name in changed}
        self._write(changed)
        self.adapter = adapter

    def take_out(self) -> None:
        """The base's weights again, to the bit."""
        self._write(self._aside)
        self._aside, self.adapter = {}, None

    def _write(self, weights: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in weights.items():
                self.weights[name].copy_(value)


def shared_copy(model: Any) -> Any:
    """The same modules once more, with the same weights: no tensor is copied.

    What wraps or changes the modules of one then leaves the other as it is.
    """
    tensors = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


def merged_copy(tuned: Any) -> Any:
    """A peft model in training with its adapter in the weights, to be measured; the model itself stays as it is.

    Memory: the weights that the adapter changes, once; all others are shared.

    Args:
        tuned: what ``peft.get_peft_model`` gave.

    Raises:
        InputError: for a quantised base.
    """
    if getattr(tuned, "hf_quantizer", None) is not None or getattr(tuned, "is_quantized", False):
        raise InputError(
            "the base is quantised, and an adapter cannot be added exactly to rounded weights; save checkpoints and "
            "run mechclust history on them"
        )
    twin = shared_copy(tuned)
    _own_base_weights(twin)
    with quiet(), torch.no_grad():
        return twin.merge_and_unload()


def _own_base_weights(wrapped: Any) -> None:
    """Copies of what merging writes to."""
    every = wrapped.named_parameters(remove_duplicate=False)  # a tied weight stands there twice
    for name, weight in [(name, weight) for name, weight in every if ".base_layer." in name]:
        module = wrapped.get_submodule(name.rpartition(".")[0])
        setattr(module, name.rpartition(".")[2], nn.Parameter(weight.detach().clone(), requires_grad=False))


def is_adapter(path: str | Path) -> bool:
    """Whether it is a folder in which peft saved an adapter, and no model."""
    path = Path(path)
    return (path / ADAPTER).is_file() and not (path / "config.json").exists()


def base_of(adapter: str | Path) -> str:
    """The model for which an adapter was trained, as its ``adapter_config.json`` says.

    Raises:
        InputError: where it says nothing that can be found.
    """
    name = _read_config(adapter).get("base_model_name_or_path")
    if not name or (Path(name).is_absolute() and not Path(name).is_dir()):
        said = f"its base, {name!r}, is not there" if name else f"its {ADAPTER} names no base"
        raise InputError(f"{str(adapter)!r} is an adapter, and {said}; give the base, and the adapter with --adapter")
    return str(name)


def named_base(adapter: str | Path) -> str | None:
    """The model for which an adapter says that it was trained, there or not."""
    try:
        name = _read_config(adapter).get("base_model_name_or_path")
    except InputError:
        return None
    return name if isinstance(name, str) and name else None


def tokenizer_source(adapter: str | Path | None, base: Source) -> Source:
    """Where the tokenizer of a model with this adapter is: tuning often saves one, with its chat template."""
    if adapter is None or not (Path(adapter) / "tokenizer_config.json").exists():
        return base
    return Source(str(adapter), True, trusted=base.trusted)


def set_adapter(model: HookedModel, adapter: str | Path | None) -> None:
    """Put an adapter into a loaded model, replacing the one it has; ``None`` removes it.

    The adapter's change is computed by peft in the weights' own dtype, as ``merge_and_unload`` does, and what was there
    is kept, so that taking it out gives the base back to the bit, however often adapters are swapped. Of a Hugging Face
    model in memory the weights are the caller's own: they change too, and in every model with hooks round it.
    Memory: the weights that an adapter touches, once.

    Args:
        model: what ``load_pretrained`` gave.
        adapter: folder that peft's ``save_pretrained`` wrote.

    Raises:
        InputError: for a folder without adapter, an adapter for another base (naming weight and shapes), one that
            cannot be merged (prompt tuning), a quantised model or one partly on disk, and where peft is not installed.
    """
    resident = getattr(model, _STATE, None)
    if not isinstance(resident, Resident):
        raise InputError(
            f"a {type(model).__name__} that load_pretrained did not load cannot take an adapter; load the base with "
            "load_pretrained, or merge the adapter yourself (peft: merge_and_unload)"
        )
    path = None if adapter is None else str(adapter)
    if path is not None:
        _check(path, resident.plain)
    before = resident.adapter
    if before is not None:
        resident.take_out()
    try:
        if path is not None:
            resident.put(_merged(resident.plain, path), path)
    except InputError:
        if before is not None:  # nothing has changed then
            resident.put(_merged(resident.plain, before), before)
        raise
    for wrapper in resident.wrappers:
        _split_again(wrapper)


def keep_resident(model: Any, plain: Any) -> None:
    """Note on a hooked model which weights it has, for ``set_adapter``."""
    resident = Resident.of(plain)
    resident.wrappers.add(model)
    object.__setattr__(model, _STATE, resident)


def plain_model(model: Any) -> Any:
    """The Hugging Face model whose weights a model from ``load_pretrained`` shares, or ``None``."""
    resident = getattr(model, _STATE, None)
    return resident.plain if isinstance(resident, Resident) else None


def adapter_of(model: Any) -> str | None:
    """Folder of the adapter that is in a model, or ``None``."""
    resident = getattr(model, _STATE, None)
    return resident.adapter if isinstance(resident, Resident) else None


def with_adapter(plain: Any, adapter: str | Path) -> Any:
    """The model with the adapter beside its weights, not in them, as peft runs it: an independent reference."""
    _check(str(adapter), plain)
    return _attach(plain, str(adapter))


def _read_config(adapter: str | Path) -> dict[str, Any]:
    path = Path(adapter) / ADAPTER
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise InputError(
            f"no adapter in {str(adapter)!r} (no {ADAPTER}); give a local folder that peft saved"
        ) from None
    except ValueError:
        raise InputError(f"{str(path)!r} is not JSON; save the adapter again") from None
    return found if isinstance(found, dict) else {}


def import_peft(work: str, extra: str) -> Any:
    """The library, imported without the advice that it and bitsandbytes print.

    Args:
        work: what needs it, in errors.
        extra: of ours, which installs it.

    Raises:
        InputError: where it is not installed, or cannot be imported, with the reason.
    """
    try:
        with quiet():
            import peft
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "peft"
        why = f"{work} needs peft" if missing else f"{work} needs peft, which cannot be imported ({first_line(error)})"
        raise InputError(f"{why}; install it with: pip install 'mechclust[{extra}]'") from None
    return peft


def digest_of_adapter(adapter: str | Path) -> str:
    """What tells an adapter from others on the same base: its weights, and how its configuration scales and places
    them."""
    config = {key: value for key, value in _read_config(adapter).items() if key not in _SAYS_NOTHING}
    found = next(path for name in _WEIGHTS if (path := Path(adapter) / name).exists())
    return digest_of([json.dumps(config, sort_keys=True), found.read_bytes()])


def check_adapter(adapter: str | Path) -> None:
    """Refuse a folder that holds no adapter that can be merged, without loading anything.

    Raises:
        InputError: naming what is missing, or the kind of adapter.
    """
    config = _read_config(adapter)
    import_peft("reading an adapter", "adapters")
    if not any((Path(adapter) / name).exists() for name in _WEIGHTS):
        raise InputError(f"the adapter {str(adapter)!r} has no weights (adapter_model.safetensors); save it again")
    kind = config.get("peft_type")
    if kind in ("PREFIX_TUNING", "PROMPT_TUNING", "P_TUNING", "MULTITASK_PROMPT_TUNING", "ADAPTION_PROMPT"):
        raise InputError(
            f"{str(adapter)!r} is an adapter of kind {kind}, which adds positions or layers and changes no weights, "
            "so it cannot be merged; give one that can, such as LoRA"
        )


def _check(adapter: str, plain: Any) -> None:
    """Refuse what cannot be merged, before anything is changed."""
    check_adapter(adapter)
    if getattr(plain, "hf_quantizer", None) is not None or getattr(plain, "is_quantized", False):
        raise InputError(
            "the base is quantised, and an adapter cannot be added exactly to rounded weights; load the base in "
            "bfloat16 or float32"
        )
    if any(weight.is_meta for weight in plain.parameters()):
        raise InputError("part of the base is on disk, where no adapter can be added; place all of it in memory")


def _merged(plain: Any, adapter: str) -> dict[str, Tensor]:
    """The weights that an adapter changes, as they are with it."""
    twin = shared_copy(plain)
    base = dict(twin.named_parameters())
    wrapped = _attach(twin, adapter)
    _own_base_weights(wrapped)
    try:
        with quiet():
            merged = wrapped.merge_and_unload(safe_merge=True)
    except ValueError as error:
        raise InputError(f"the adapter {adapter!r} cannot be merged: {first_line(error)}; save it again") from error
    found = dict(merged.named_parameters())
    if extra := sorted(found.keys() - base.keys()):
        raise InputError(
            f"the adapter {adapter!r} adds the weight {extra[0]!r}, which the base does not have, or has tied to "
            "another (embeddings and head, of which an adapter changes one); merge it with tie_word_embeddings=False, "
            "and give the model that you saved"
        )
    for name, weight in found.items():
        if weight.shape != base[name].shape:
            raise InputError(
                f"the adapter {adapter!r} has {name!r} of shape {list(weight.shape)}, but the base one of "
                f"{list(base[name].shape)} (were tokens added?); merge it and save it as a separate model"
            )
    return {name: w.detach() for name, w in found.items() if w is not base[name] and not torch.equal(w, base[name])}


def _attach(plain: Any, adapter: str) -> Any:
    """Peft's model; biases are copies, since peft writes an adapter's biases into the base's."""
    peft = import_peft("reading an adapter", "adapters")

    own: dict[int, nn.Parameter] = {}  # what is tied stays tied
    for module in plain.modules():
        for name, weight in list(module._parameters.items()):
            if weight is not None and weight.ndim == 1:
                own.setdefault(id(weight), nn.Parameter(weight.detach().clone(), requires_grad=False))
                module._parameters[name] = own[id(weight)]
    try:
        with quiet():
            config = peft.PeftConfig.from_pretrained(adapter)
            config.inference_mode = True
            wrapped = peft.PeftModel(plain, config)
            found = wrapped.load_adapter(adapter, "default", is_trainable=False)
    except Exception as error:  # whatever peft makes of an adapter for other modules
        raise InputError(_other_base(adapter, plain, error)) from error
    if missing := [key for key in found.missing_keys if "lora" in key or "default" in key]:
        raise InputError(f"the adapter {adapter!r} lacks the weights {_some(missing)}; save it again")
    if found.unexpected_keys:
        raise InputError(
            f"the adapter {adapter!r} has the weights {_some(found.unexpected_keys)}, for which the base "
            f"({type(plain).__name__}) has no place; give the base that it was trained for"
        )
    wrapped.eval()
    return wrapped


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in sorted(names)[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def _other_base(adapter: str, plain: Any, error: Exception) -> str:
    text = " ".join(str(error).split())
    if type(error).__name__ == "SafetensorError":
        return f"the weights of the adapter {adapter!r} are damaged or cut off ({text}); download or save them again"
    trained = _read_config(adapter).get("base_model_name_or_path") or "another base"
    return (
        f"the adapter {adapter!r}, trained for {trained!r}, does not fit this base ({type(plain).__name__}): "
        f"{text[:300]}; give the base that it was trained for"
    )


def _split_again(model: Any) -> None:
    """Where TransformerLens keeps copies of parts of a fused weight, make them anew."""
    for module in model.modules():
        split = getattr(module, "split_qkv_matrix", None)
        if split is None or getattr(module, "original_component", None) is None:
            continue
        parts = zip((module.q, module.k, module.v), split(module.original_component), strict=True)
        with torch.no_grad():
            for kept, anew in parts:
                theirs = kept.original_component
                theirs.weight.copy_(anew.weight)
                if anew.bias is not None:
                    theirs.bias.copy_(anew.bias)
