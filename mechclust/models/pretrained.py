"""Pretrained checkpoints as hooked models: TransformerLens's bridge, or read-only where it has none."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from logging import ERROR, getLogger
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, get_args

import torch
from torch import nn

from mechclust.models.adapters import (
    base_of,
    is_adapter,
    keep_resident,
    plain_model,
    set_adapter,
    shared_copy,
    tokenizer_source,
    with_adapter,
)
from mechclust.models.build import build_model, config_of
from mechclust.models.checkpoint import load_model
from mechclust.models.huggingface import Source, find, quiet, read_config, read_tokenizer, reading
from probes.engine.hooks import HookedModel, device_of
from probes.engine.texts import KEPT_TOKENIZER, tokenizer_of
from tasks import InputError
from tasks.errors import check_choice, first_line

_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
AnyModel: TypeAlias = str | Path | HookedModel | nn.Module  # by name, with hooks, or plain Hugging Face
Attention = Literal["eager", "sdpa"]
Quantization = Literal["8bit", "4bit"]


class PretrainedModel(HookedModel, Protocol):
    """A hooked model with its tokenizer.

    Attributes:
        tokenizer: Hugging Face's own; ``None`` for a file that ``save_model`` wrote.
    """

    tokenizer: Any


def load_pretrained(
    model: AnyModel,
    *,
    tokenizer: Any = None,
    adapter: str | Path | None = None,
    device: str | torch.device | None = None,
    device_map: str | Mapping[str, Any] | None = None,
    max_memory: Mapping[Any, Any] | None = None,
    quantization: Quantization | Any | None = None,
    dtype: torch.dtype | None = None,
    attention: Attention = "eager",
    trust_remote_code: bool = False,
    untrained: bool = False,
    seed: int = 0,
) -> PretrainedModel:
    """A hooked model with its tokenizer (``model.tokenizer``), weights and tokenization as Hugging Face has them.

    Nothing is folded or centred: activations equal Hugging Face's own. A local directory is loaded without any
    network access, and code that comes with a checkpoint is not run.

    Models that TransformerLens reads as Hugging Face does are its ``TransformerBridge``. All others, and every model
    with ``attention="sdpa"``, are a ``ReadOnlyModel``: it has the same hook points, but hooks cannot change anything;
    with ``"sdpa"`` there are no attention patterns, and the forward pass is Hugging Face's at its full speed. The
    documentation has a table of families.

    Args:
        model: a hub name, a local directory in Hugging Face's format, a ``.gguf`` file, a folder with an adapter (whose
            base is loaded too), a file that ``save_model`` wrote (which has no tokenizer), or a Hugging Face model
            in memory, whose weights are shared, not copied. Its modules stay as they are; an adapter changes its
            weights until ``set_adapter(model, None)``.
        tokenizer: used instead of the checkpoint's; needed for a model in memory if it is to read texts.
        adapter: folder that peft saved, merged into the weights; ``set_adapter`` swaps it.
        device: where to put the model; the CPU when ``None``.
        device_map: how to spread it over devices, as ``from_pretrained`` takes it, such as ``"auto"``.
        max_memory: most memory per device, for ``device_map``.
        quantization: ``"8bit"`` or ``"4bit"`` (bitsandbytes), or a quantisation configuration of transformers.
        dtype: dtype of the weights; float32 when ``None``.
        attention: ``"sdpa"`` where no probe reads attention patterns or scores.
        trust_remote_code: run code that comes with the checkpoint. It can do whatever you can do.
        untrained: the same architecture with its random initialisation, to compare with.
        seed: for that initialisation. The global random state is left alone.

    Raises:
        InputError: for a directory without configuration, weights or tokenizer, a checkpoint that is damaged, an
            architecture that Hugging Face does not know, an adapter that does not fit, or options that exclude each
            other.
    """
    check_choice(attention=(attention, get_args(Attention)))
    options = _Options(device, device_map, max_memory, quantization, dtype, attention, trust_remote_code)
    if isinstance(model, (str, Path)) and Path(model).is_file() and Path(model).suffix != ".gguf":
        return _our_own(Path(model), adapter, options, untrained, seed)
    if hasattr(model, "hook_dict"):
        return _hooked_already(model, tokenizer, adapter, options, untrained, seed)
    adapter = _adapter_of(model, adapter)
    plain, tokenizer = _plain(model, tokenizer, adapter, options, untrained, seed)
    hooked = _hooked(plain, tokenizer, options, str(model) if isinstance(model, (str, Path)) else None)
    if adapter is not None and not untrained:
        set_adapter(hooked, adapter)
    return hooked


def load_huggingface(
    model: AnyModel, *, tokenizer: Any = None, adapter: str | Path | None = None, **loading: Any
) -> tuple[Any, Any]:
    """The same model and tokenizer as plain Hugging Face loads them, without hooks: what numbers are checked against.

    An adapter runs beside the weights, as peft runs it, and is not merged. Arguments as ``load_pretrained``,
    without ``untrained`` and ``seed``.

    Returns:
        The Hugging Face model (of peft, where there is an adapter) and its tokenizer.
    """
    adapter = _adapter_of(model, adapter)
    plain, tokenizer = _plain(model, tokenizer, adapter, _Options(**loading), False, 0)
    return (plain if adapter is None else with_adapter(shared_copy(plain), adapter)), tokenizer


def model_name(model: AnyModel, adapter: str | Path | None = None) -> str:
    """What reports call a model: its name or path, or what a model in memory says of itself; and its adapter."""
    name = str(model)
    if not isinstance(model, (str, Path)):
        plain = plain_model(model) if hasattr(model, "hook_dict") else model
        name = str(getattr(getattr(plain, "config", None), "name_or_path", "") or type(plain or model).__name__)
    return name if adapter is None else f"{name} with {adapter}"


@dataclass(frozen=True)
class _Options:
    """How a model is loaded; see ``load_pretrained``."""

    device: str | torch.device | None = None
    device_map: str | Mapping[str, Any] | None = None
    max_memory: Mapping[Any, Any] | None = None
    quantization: Any = None
    dtype: torch.dtype | None = None
    attention: Attention = "eager"
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if self.device is not None and self.device_map is not None:
            raise InputError(
                f"device is {str(self.device)!r} and device_map {self.device_map!r}; give one of them: a device for "
                "the whole model, or a map that spreads it"
            )
        if isinstance(self.device_map, str) and self.device_map not in _MAPS:
            try:
                torch.device(self.device_map)
            except RuntimeError:
                raise InputError(
                    f"device_map is {self.device_map!r}; expected 'auto', 'balanced', 'sequential', a device such as "
                    "'cuda:1', or a map from modules to devices"
                ) from None
        if self.max_memory is not None and self.device_map is None:
            raise InputError("max_memory limits what device_map places; give device_map='auto' too")
        if isinstance(self.quantization, str):
            check_choice(quantization=(self.quantization, get_args(Quantization)))
        for needed, name, extra, what in (
            (self.device_map is not None, "accelerate", "llm", "spreading a model over devices (device_map)"),
            (isinstance(self.quantization, str), "bitsandbytes", "quantised", f"quantising to {self.quantization}"),
        ):
            if needed and find_spec(name) is None:
                raise InputError(f"{what} needs {name}; install it with: pip install 'mechclust[{extra}]'")

    @property
    def for_loading(self) -> dict[str, Any]:
        """For ``from_pretrained``."""
        found: dict[str, Any] = {"dtype": self.dtype or torch.float32}
        if self.device_map is not None:
            found |= {"device_map": self.device_map, "max_memory": self.max_memory}
        if self.quantization is not None:
            from transformers import BitsAndBytesConfig

            kinds = {"8bit": {"load_in_8bit": True}, "4bit": {"load_in_4bit": True}}
            by_name = isinstance(self.quantization, str)
            config = BitsAndBytesConfig(**kinds[self.quantization]) if by_name else self.quantization
            found["quantization_config"] = config
        return found

    def refuse(self, what: str, *names: str) -> None:
        """For what these options cannot change."""
        for name in names:
            if getattr(self, name) not in (None, False):
                raise InputError(
                    f"{name} is {getattr(self, name)!r}, but {what}; leave it out, or move the model with model.to(...)"
                )


def _our_own(path: Path, adapter: Any, options: _Options, untrained: bool, seed: int) -> Any:
    """A model that ``save_model`` wrote."""
    options.refuse("the file is from save_model", "device_map", "quantization")
    if adapter is not None:
        raise InputError(f"{str(path)!r} is a file from save_model, which has no adapters; give a Hugging Face model")
    with quiet():
        model: Any = load_model(path)
        model = build_model(config_of(model).with_seed(seed)) if untrained else model
        model = model.to(options.dtype or torch.float32).to(options.device or "cpu")
    model.eval()
    return model


def _plain(model: Any, tokenizer: Any, adapter: Any, options: _Options, untrained: bool, seed: int) -> tuple[Any, Any]:
    """The Hugging Face model, by name or as given, and its tokenizer."""
    if not isinstance(model, (str, Path)):
        if not hasattr(model, "base_model"):
            raise InputError(
                f"expected a model, got {type(model).__name__}; give a hub name, a directory, a Hugging Face model in "
                "memory, or one from load_pretrained"
            )
        _refuse_adapter_beside(model)
        names = ("device", "device_map", "quantization", "dtype")
        options.refuse("the model is in memory already", *(names if not untrained else names[1:3]))
        return (_like(model, options, seed) if untrained else model), tokenizer
    name = base_of(model) if is_adapter(model) else model
    if is_adapter(name):
        raise InputError(f"the base of the adapter {str(model)!r} is an adapter too, {name!r}; merge that one first")
    try:
        source = find(
            name, weights=not untrained, tokenizer=tokenizer is None, trust_remote_code=options.trust_remote_code
        )
    except InputError as error:
        if name == model:
            raise
        raise InputError(
            f"{str(model)!r} is an adapter for {str(name)!r} ({error}); or give the base, and the adapter with "
            "--adapter"
        ) from None
    if options.quantization is not None:  # before reading, which restores levels at its end
        getLogger("bitsandbytes").setLevel(ERROR)  # it logs every multiplication
    with reading(source), torch.random.fork_rng(devices=[]):
        if tokenizer is None:
            tokenizer = read_tokenizer(tokenizer_source(adapter, source))
        config = read_config(source)
        auto = auto_class(config)
        if untrained:
            return _random(
                auto.from_config, config, options, seed, trust_remote_code=options.trust_remote_code
            ), tokenizer
        torch.manual_seed(seed)  # of a head that the checkpoint lacks
        try:
            plain, found = _load(auto, source, options, options.attention)
        except ValueError as error:  # families without that kernel
            if options.attention == "eager" or "attention" not in str(error):
                raise
            plain, found = _load(auto, source, options, "eager")
        _refuse_adapter_beside(plain)
        _check_complete(plain, found)
        if source.gguf_file is not None:  # its weights are ordinary numbers once they are loaded
            plain.hf_quantizer = None
            plain.config.__dict__.pop("quantization_config", None)
        return plain.eval(), tokenizer


def _refuse_adapter_beside(model: Any) -> None:
    if any(hasattr(module, "base_layer") for module in model.modules()):
        raise InputError(
            "the model has a peft adapter beside its weights, which a wrapper may leave out; give the base, and "
            "the adapter's folder as adapter=, or the merged model (merge_and_unload)"
        )


def _load(auto: Any, source: Source, options: _Options, attention: str) -> Any:
    plain, found = auto.from_pretrained(
        source.name,
        **source.options,
        **options.for_loading,
        attn_implementation=attention,
        output_loading_info=True,
    )
    return (plain if options.device is None else plain.to(options.device)), found


def _random(build: Any, config: Any, options: _Options, seed: int, **further: Any) -> Any:
    """A model with random weights."""
    further["dtype"] = options.dtype or torch.float32
    torch.manual_seed(seed)
    try:
        plain = build(config, attn_implementation=options.attention, **further)
    except ValueError as error:
        if options.attention == "eager" or "attention" not in str(error):
            raise
        torch.manual_seed(seed)
        plain = build(config, attn_implementation="eager", **further)
    return _placed(plain, options).eval()


def _placed(plain: Any, options: _Options) -> Any:
    """A model that was built on the CPU, where it belongs; what would be on disk stays on the CPU."""
    if options.device_map is None:
        return plain.to(options.device or "cpu")
    from accelerate import dispatch_model, infer_auto_device_map

    places: Any = options.device_map
    if places in _MAPS:
        whole = list(plain._no_split_modules or ())
        places = infer_auto_device_map(plain, options.max_memory, no_split_module_classes=whole)
    if not isinstance(places, Mapping):
        return plain.to(places)
    return dispatch_model(plain, {name: "cpu" if place == "disk" else place for name, place in places.items()})


def _like(model: Any, options: _Options, seed: int) -> Any:
    """A model like the one in memory, untrained, where that one is."""
    where = replace(
        options, device=options.device or device_of(model), dtype=options.dtype or next(model.parameters()).dtype
    )
    with quiet(), torch.random.fork_rng(devices=[]):
        return _random(type(model)._from_config, copy.deepcopy(model.config), where, seed)


def _hooked(plain: Any, tokenizer: Any, options: _Options, name: str | None) -> Any:
    """The model with hook points, its own modules being left as they are."""
    from mechclust.models.read_only import ReadOnlyModel, is_read_only

    if any(type(module).__module__.startswith("transformer_lens.") for module in plain.modules()):
        raise InputError(
            "TransformerLens made a bridge of this model and replaced its modules; give the bridge, or make the bridge "
            "of copy.deepcopy(model)"
        )
    with quiet(), torch.random.fork_rng(devices=[]):  # the bridge makes layers, which draw weights
        inner = shared_copy(plain)
        inner.config.architectures = [type(plain).__name__]  # that of a model in memory may be another's
        if options.attention == "eager":  # what was loaded so already, and what is in memory perhaps not
            inner.set_attn_implementation("eager")
        if options.attention == "sdpa" or not _has_bridge(plain) or is_read_only(inner.config):
            hooked: Any = ReadOnlyModel(inner, tokenizer)
        else:
            hooked = _bridge(inner, tokenizer, name or plain.config.name_or_path or type(plain).__name__)
    keep_resident(hooked, plain)
    hooked.eval()
    return hooked


def _has_bridge(plain: Any) -> bool:
    """Whether TransformerLens knows this very class, with its head, and can split its weights."""
    from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES

    readable = getattr(plain, "hf_quantizer", None) is None and not any(w.is_meta for w in plain.parameters())
    return readable and type(plain).__name__ in SUPPORTED_ARCHITECTURES


def _bridge(plain: Any, tokenizer: Any, name: str) -> Any:
    """TransformerLens's bridge. It changes tokenizers (adds a beginning of sequence, loads them anew), so it is given a
    copy, and the model keeps Hugging Face's own."""
    from transformer_lens.model_bridge import TransformerBridge

    theirs = _no_tokenizer() if tokenizer is None else copy.deepcopy(tokenizer)
    theirs.init_kwargs |= {"name_or_path": name, "add_bos_token": True}  # so that it is not loaded anew
    first = next(plain.parameters())
    try:
        bridge = TransformerBridge.boot_transformers(
            name, hf_model=plain, tokenizer=theirs, dtype=first.dtype, device=first.device
        )
    except Exception as error:  # of TransformerLens: anything
        raise InputError(
            f"TransformerLens cannot wrap this {type(plain).__name__} ({first_line(error)}); load it with "
            "attention='sdpa', which works without it"
        ) from error
    wired = isinstance(getattr(type(bridge), "tokenizer", None), property)  # setting it would change it again
    setattr(bridge, "_tokenizer" if wired else "tokenizer", tokenizer)
    setattr(bridge, KEPT_TOKENIZER, tokenizer)
    # to_tokens, generate and the like then give the tokenizer's own ids, too.
    bridge.cfg.default_prepend_bos = bridge.cfg.tokenizer_prepends_bos
    return bridge


def _no_tokenizer() -> Any:
    """Something to give the bridge, which asks the hub where it is given nothing."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")),
        bos_token="a",
        eos_token="a",
        pad_token="a",
    )


def _adapter_of(model: Any, adapter: str | Path | None) -> str | Path | None:
    """The adapter that was given, in one of two ways."""
    if not isinstance(model, (str, Path)) or not is_adapter(model):
        return adapter
    if adapter is not None:
        raise InputError(
            f"{str(model)!r} is an adapter itself, but {str(adapter)!r} was given as adapter too; give the base and "
            "one adapter"
        )
    return model


def _hooked_already(
    model: Any, tokenizer: Any, adapter: Any, options: _Options, untrained: bool, seed: int
) -> PretrainedModel:
    """A model that has hooks is taken as it is, or built anew with random weights."""
    if adapter is not None:
        raise InputError("the model has hooks already; put an adapter into it with set_adapter(model, folder)")
    options.refuse("the model has hooks already", "device", "device_map", "quantization", "dtype")
    if not untrained:
        return model  # type: ignore[no-any-return]
    tokenizer = tokenizer_of(model) if tokenizer is None else tokenizer
    if (plain := plain_model(model)) is not None:
        return load_pretrained(plain, tokenizer=tokenizer, attention=options.attention, untrained=True, seed=seed)
    first = next(model.parameters())
    return build_model(config_of(model).with_seed(seed)).to(first.dtype).to(first.device).eval()


def _check_complete(model: Any, found: dict[str, Any]) -> None:
    """Heads may be missing or left over; the body must be there, and of the size its config says."""
    body = "" if model.base_model is model else f"{model.base_model_prefix}."
    missing = [key for key in found["missing_keys"] if key.startswith(body) and "pooler." not in key]
    surplus = [key for key in found["unexpected_keys"] if re.search(r"\.\d+\.", key)]
    if missing or surplus:
        lacks = (
            f"lacks the weights {sorted(missing)[0]!r}" if missing else f"has weights {sorted(surplus)[0]!r} too many"
        )
        raise InputError(f"the checkpoint {lacks} for its config.json")


def auto_class(config: Any) -> Any:
    """The Auto class for a checkpoint: with its head, also where only the body was saved. Encoder families have a
    masked-LM class, decoder families a causal one; what has neither comes without a head."""
    from transformers import (
        AutoModel,
        AutoModelForCausalLM,
        AutoModelForMaskedLM,
        AutoModelForSeq2SeqLM,
        AutoModelForTextEncoding,
    )
    from transformers.models.auto import modeling_auto

    if (config.architectures or [""])[0].endswith("EncoderModel"):
        return AutoModelForTextEncoding
    if config.is_encoder_decoder:
        return AutoModelForSeq2SeqLM
    causal = (config.architectures or [""])[0].endswith(("ForCausalLM", "LMHeadModel"))
    if type(config) in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING and not causal:
        return AutoModelForMaskedLM
    if type(config) in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING or hasattr(config, "auto_map"):
        return AutoModelForCausalLM
    return AutoModel
