"""Plain Hugging Face models, without hooks: read from a checkpoint, or built like one with random weights."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from logging import ERROR, getLogger
from typing import Any, Literal, get_args

import torch

from mechclust.models.hugging_face_checkpoint import (
    HuggingFaceCheckpoint,
    find_checkpoint,
    hugging_face_auto_class,
    read_checkpoint_config,
    reading_checkpoint_part,
)
from mechclust.models.installed import check_installed
from mechclust.models.quiet_transformers import quiet_transformers
from mechclust.models.random_state import seeded_generators
from mechclust.models.resolved import ResolvedModel
from mechclust.models.tokenizers import read_checkpoint_tokenizer, tokenizer_source
from probes.engine.devices import check_device, device_of
from tasks import InputError
from tasks.settings import check_choice

_DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
AttentionKind = Literal["eager", "sdpa"]
Quantization = Literal["8bit", "4bit"]


@dataclass(frozen=True)
class PlainLoadOptions:
    """The options with which a model is loaded, see ``load_pretrained``."""

    device: str | torch.device | None = None
    device_map: str | Mapping[str, Any] | None = None
    max_memory: Mapping[Any, Any] | None = None
    quantization: Any = None
    dtype: torch.dtype | None = None
    attention: AttentionKind = "eager"
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        check_choice(attention=(self.attention, get_args(AttentionKind)))
        self._check_places()
        self._check_kinds()
        if self.device_map is not None:
            check_installed("accelerate", "spreading a model over devices (device_map)", "llm")

    def _check_places(self) -> None:
        """Refuse options for devices that contradict each other."""
        if self.device is not None and self.device_map is not None:
            raise InputError(
                f"device is {str(self.device)!r} and device_map {self.device_map!r}; give one of them: a device for "
                "the whole model, or a map that spreads it"
            )
        if self.device is not None:
            check_device(self.device)
        if isinstance(self.device_map, Mapping):
            for place in self.device_map.values():
                if place != "disk":
                    _check_mapped(place)
        elif self.device_map not in (None, *_DEVICE_MAPS):
            try:
                torch.device(self.device_map)
            except (RuntimeError, TypeError):
                raise InputError(
                    f"device_map is {self.device_map!r}; expected 'auto', 'balanced', 'sequential', a device such as "
                    "'cuda:1', or a map from modules to devices"
                ) from None
            _check_mapped(self.device_map)
        if self.max_memory is not None and self.device_map is None:
            raise InputError("max_memory limits what device_map places; give device_map='auto' too")

    def _check_kinds(self) -> None:
        """Refuse a dtype or quantisation that transformers does not know."""
        is_floating = isinstance(self.dtype, torch.dtype) and self.dtype.is_floating_point
        if self.dtype is not None and not is_floating:
            raise InputError(
                f"dtype is {self.dtype!r}; expected a floating-point dtype, such as torch.bfloat16 or 'bfloat16'"
            )
        if isinstance(self.quantization, str):
            check_choice(quantization=(self.quantization, get_args(Quantization)))
            check_installed("bitsandbytes", f"quantising to {self.quantization}", "quantised")
        elif self.quantization is not None and not hasattr(self.quantization, "quant_method"):
            raise InputError(
                f"quantization is {self.quantization!r}; expected '8bit', '4bit' or a quantisation configuration of "
                "transformers"
            )

    @property
    def for_loading(self) -> dict[str, Any]:
        """Return these options as arguments of ``from_pretrained``."""
        options: dict[str, Any] = {"dtype": self.dtype or torch.float32}
        if self.device_map is not None:
            options |= {"device_map": self.device_map, "max_memory": self.max_memory}
        if isinstance(self.quantization, str):
            from transformers import BitsAndBytesConfig

            options["quantization_config"] = BitsAndBytesConfig(**{f"load_in_{self.quantization}": True})
        elif self.quantization is not None:
            options["quantization_config"] = self.quantization
        return options

    def refuse(self, why: str, *names: str) -> None:
        """Refuse options that cannot change the model, saying why."""
        for name in names:
            if getattr(self, name) not in (None, False):
                raise InputError(
                    f"{name} is {getattr(self, name)!r}, but {why}; leave it out, or move the model with model.to(...)"
                )


def _check_mapped(place: Any) -> None:
    """Refuse a device of ``device_map`` that this machine does not have."""
    try:
        check_device(place)
    except InputError:
        raise InputError(
            f"device_map names {str(place)!r}, which this machine does not have; name devices that it has, or give "
            "device_map='auto'"
        ) from None


def load_plain(
    model: ResolvedModel, tokenizer: Any, options: PlainLoadOptions, *, untrained: bool = False, seed: int = 0
) -> tuple[Any, Any]:
    """Return the Hugging Face model, read by name or as it was given, without its adapter, and its tokenizer."""
    if model.in_memory:
        return _from_memory(model.source, options, untrained, seed), tokenizer
    source = _find_base(model, options, weights=not untrained, tokenizer=tokenizer is None)
    if options.quantization is not None:  # before reading, which restores levels at its end
        getLogger("bitsandbytes").setLevel(ERROR)  # it logs every multiplication
    config = read_checkpoint_config(source)
    if tokenizer is None:
        tokenizer = read_checkpoint_tokenizer(tokenizer_source(model.merged_adapter, source))
    with reading_checkpoint_part(source, "config" if untrained else "weights"):
        auto = hugging_face_auto_class(config)
        if untrained:
            build = partial(auto.from_config, config, trust_remote_code=options.trust_remote_code)
            return _build_random(build, options, seed), tokenizer
        on_gpu = options.device_map is not None or str(options.device).startswith("cuda")
        with seeded_generators(seed, gpu=on_gpu):  # of a head that the checkpoint lacks
            plain, info = _read_weights(auto, source, options)
    _warn_of_random_head(plain, info, source)
    return plain, tokenizer


def _from_memory(model: Any, options: PlainLoadOptions, untrained: bool, seed: int) -> Any:
    """Return a Hugging Face model in memory, or an untrained counterpart on its device."""
    if not hasattr(model, "base_model"):
        raise InputError(
            f"expected a model, got {type(model).__name__}; give a hub name, a directory, a Hugging Face model in "
            "memory, or one from load_pretrained"
        )
    _refuse_adapter_beside(model)
    options.refuse("the model is in memory already", "device_map", "quantization")
    if not untrained:
        options.refuse("the model is in memory already", "device", "dtype")
        return model
    like = replace(
        options, device=options.device or device_of(model), dtype=options.dtype or next(model.parameters()).dtype
    )
    with quiet_transformers():
        return _build_random(partial(type(model)._from_config, copy.deepcopy(model.config)), like, seed)


def _find_base(
    model: ResolvedModel, options: PlainLoadOptions, *, weights: bool, tokenizer: bool
) -> HuggingFaceCheckpoint:
    """Find the checkpoint, or the base of an adapter, naming the adapter in errors."""
    base = model.base
    try:
        return find_checkpoint(base, weights=weights, tokenizer=tokenizer, trust_remote_code=options.trust_remote_code)
    except InputError as error:
        if not model.is_adapter:
            raise
        raise InputError(
            f"{model.source!r} is an adapter for {base!r} ({error}); or give the base, and the adapter with --adapter"
        ) from None


def _refuse_adapter_beside(model: Any) -> None:
    if any(hasattr(module, "base_layer") for module in model.modules()):
        raise InputError(
            "the model has a peft adapter beside its weights, which a wrapper may leave out; give the base, and "
            "the adapter's folder as adapter=, or the merged model (merge_and_unload)"
        )


def _read_weights(auto: Any, source: HuggingFaceCheckpoint, options: PlainLoadOptions) -> tuple[Any, dict[str, Any]]:
    """Read a whole checkpoint with its weights. Return the model, and transformers' report on its weights."""
    arguments = {**source.options, **options.for_loading, "ignore_mismatched_sizes": True}  # refused below
    build = partial(auto.from_pretrained, source.name, output_loading_info=True, **arguments)
    plain, info = with_attention(build, options.attention)
    if options.device is not None:
        plain = plain.to(options.device)
    _refuse_adapter_beside(plain)
    _check_complete(plain, info)
    if source.gguf_file is not None:  # its weights are ordinary numbers once they are loaded
        plain.hf_quantizer = None
        plain.config.__dict__.pop("quantization_config", None)
    return plain.eval(), info


def with_attention(build: Callable[..., Any], attention: AttentionKind) -> Any:
    """Build or set a model with this kind of attention, or with eager attention if its family lacks that kind."""
    try:
        return build(attn_implementation=attention)
    except ValueError as error:
        if attention == "eager" or "attention" not in str(error):
            raise
    return build(attn_implementation="eager")


def _build_random(build: Callable[..., Any], options: PlainLoadOptions, seed: int) -> Any:
    """Build a model with random weights."""
    seeded = partial(_build_seeded, build, seed, dtype=options.dtype or torch.float32)
    return _placed(with_attention(seeded, options.attention), options).eval()


def _build_seeded(build: Callable[..., Any], seed: int, **options: Any) -> Any:
    with seeded_generators(seed):
        return build(**options)


def _placed(plain: Any, options: PlainLoadOptions) -> Any:
    """Move a model that was built on the CPU to its devices. Parts for the disk stay on the CPU."""
    if options.device_map is None:
        return plain.to(options.device or "cpu")
    from accelerate import dispatch_model, infer_auto_device_map

    places: Any = options.device_map
    if places in _DEVICE_MAPS:
        whole = list(plain._no_split_modules or ())
        places = infer_auto_device_map(plain, options.max_memory, no_split_module_classes=whole)
    if not isinstance(places, Mapping):
        return plain.to(places)
    return dispatch_model(plain, {name: "cpu" if place == "disk" else place for name, place in places.items()})


def _check_complete(model: Any, info: dict[str, Any]) -> None:
    """Refuse a body that lacks weights, or differs in size from its config. Heads may be missing or left over."""
    body = "" if model.base_model is model else f"{model.base_model_prefix}."
    missing = [key for key in info["missing_keys"] if key.startswith(body) and "pooler." not in key]
    lists = {_module_list(name) for name in model.state_dict()} - {None}
    surplus = [key for key in info["unexpected_keys"] if _module_list(key) in lists]
    if info["mismatched_keys"]:
        name, saved, configured = sorted(info["mismatched_keys"])[0]
        fault = f"has the weights {name!r} of shape {list(saved)}, not {list(configured)},"
    elif missing:
        fault = f"lacks the weights {sorted(missing)[0]!r}"
    elif surplus:
        fault = f"has weights {sorted(surplus)[0]!r} too many"
    else:
        return
    raise InputError(f"the checkpoint {fault} for its config.json; give the two that were saved together")


def _warn_of_random_head(model: Any, info: dict[str, Any], source: HuggingFaceCheckpoint) -> None:
    """Warn if a checkpoint lacks the head of a causal language model, as one of the body alone does."""
    causal = type(model).__name__.endswith(("ForCausalLM", "LMHeadModel"))
    missing = [key for key in info["missing_keys"] if not key.startswith(f"{model.base_model_prefix}.")]
    if causal and missing:
        warnings.warn(
            f"{source} has no head ({sorted(missing)[0]}), so its logits are those of random weights; activations are "
            "its own",
            stacklevel=4,
        )


def _module_list(weight: str) -> str | None:
    """Return the name of the numbered modules, such as ``layers``, of which one has a weight, or ``None``."""
    match = re.search(r"(\w+)\.\d+\.", weight)
    return None if match is None else match[1]
