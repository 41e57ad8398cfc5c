"""Pretrained checkpoints as hooked models: TransformerLens's bridge, or read-only if it has none."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch
from torch import nn

from mechclust.models.adapters import enable_adapters, set_adapter, with_adapter
from mechclust.models.build import build_model
from mechclust.models.config import config_of
from mechclust.models.fused_weights import split_when_changed
from mechclust.models.load_plain import AttentionKind, PlainLoadOptions, Quantization, load_plain, with_attention
from mechclust.models.plain_model import plain_model
from mechclust.models.quiet_transformers import quiet_transformers
from mechclust.models.resolved import ResolvedModel, resolve_model
from mechclust.models.saved_model import load_model
from mechclust.models.short_logits import are_equal, left_padded_logits, short_logits
from mechclust.models.weights import copy_with_shared_weights
from probes.engine.hooked_model import HookedModel
from probes.engine.text_tokenizer import KEPT_TOKENIZER, tokenizer_of
from tasks import InputError

AnyModel: TypeAlias = str | Path | HookedModel | nn.Module | ResolvedModel  # by name, with hooks, or plain Hugging Face


class PretrainedModel(HookedModel, Protocol):
    """A hooked model with its tokenizer.

    Attributes:
        tokenizer: Hugging Face's own. ``None`` for a file that ``save_model`` wrote.
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
    dtype: torch.dtype | str | None = None,
    attention: AttentionKind = "eager",
    trust_remote_code: bool = False,
    untrained: bool = False,
    seed: int = 0,
) -> PretrainedModel:
    """Return a hooked model with its tokenizer (``model.tokenizer``), weights and tokenization as in Hugging Face.

    Weights are not folded or centred: activations equal Hugging Face's. A local directory is loaded without any network
    access, and code that comes with a checkpoint is not run.

    Models that TransformerLens reads as Hugging Face does are its ``TransformerBridge``, whose logits of a few tokens
    are compared with Hugging Face's. All others, and every model with ``attention="sdpa"``, are a ``ReadOnlyModel``. It
    has the bridge's hook points, but hooks cannot change anything. With ``"sdpa"`` there are no attention patterns, and
    the forward pass is Hugging Face's at its full speed. The documentation has a table of families.

    Args:
        model: a hub name, a local directory in Hugging Face's format, a ``.gguf`` file, a folder with an adapter (whose
            base is loaded too), or a file that ``save_model`` wrote (which has no tokenizer). Or a Hugging Face model
            in memory, whose weights are shared, not copied. Its modules stay as they are. An adapter changes its
            weights until ``set_adapter(model, None)``.
        tokenizer: used instead of the checkpoint's. A model in memory needs one to read texts.
        adapter: folder that peft saved, merged into the weights. ``set_adapter`` swaps it.
        device: device of the model, or the CPU when ``None``.
        device_map: how to spread it over devices, as ``from_pretrained`` takes it, such as ``"auto"``.
        max_memory: most memory per device, for ``device_map``.
        quantization: ``"8bit"`` or ``"4bit"`` (bitsandbytes), or a quantisation configuration of transformers.
        dtype: dtype of the weights, or its name, such as ``"bfloat16"``. Float32 when ``None``.
        attention: ``"sdpa"`` if no probe reads attention patterns or scores. Families that lack it have ``"eager"``. A
            model in memory may have another kind, and keeps it: only the hooked model has this one. Files of
            ``save_model`` have their own.
        trust_remote_code: run code that comes with the checkpoint. It can do anything that you can do.
        untrained: load this architecture with its random initialisation, to compare with.
        seed: for that initialisation. The global random state is left alone.

    Raises:
        InputError: for a directory without configuration, weights or tokenizer, a checkpoint that is damaged, or an
            architecture that Hugging Face does not know. Also for an adapter that does not fit, and options that
            exclude each other.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> plain = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=2, n_head=2))
        >>> model = load_pretrained(plain)  # or by name: load_pretrained("gpt2")
        >>> model.cfg.n_layers, "blocks.1.hook_resid_post" in model.hook_dict
        (2, True)
    """
    options = PlainLoadOptions(
        device, device_map, max_memory, quantization, _dtype_of(dtype), attention, trust_remote_code
    )
    resolved = resolve_model(model, adapter)
    if resolved.is_own_file:
        return _from_own_file(resolved, options, untrained, seed)
    if hasattr(resolved.source, "hook_dict"):
        return _hooked_already(resolved, tokenizer, options, untrained, seed)
    plain, tokenizer = load_plain(resolved, tokenizer, options, untrained=untrained, seed=seed)
    hooked = _add_hooks(plain, tokenizer, options, None if resolved.in_memory else resolved.source)
    if resolved.merged_adapter is not None and not untrained:
        set_adapter(hooked, resolved.merged_adapter)
    return hooked


def load_pretrained_unhooked(
    model: AnyModel, *, tokenizer: Any = None, adapter: str | Path | None = None, **loading: Any
) -> tuple[Any, Any]:
    """Return the model and tokenizer as plain Hugging Face loads them, without hooks, to check numbers against.

    An adapter runs next to the weights, as peft runs it, and is not merged. Arguments as ``load_pretrained``,
    without ``untrained`` and ``seed``.

    Returns:
        The Hugging Face model (of peft, if there is an adapter) and its tokenizer.
    """
    resolved = resolve_model(model, adapter)
    options = PlainLoadOptions(**{**loading, "dtype": _dtype_of(loading.get("dtype"))})
    plain, tokenizer = load_plain(resolved, tokenizer, options)
    if resolved.merged_adapter is not None:
        plain = with_adapter(copy_with_shared_weights(plain), resolved.merged_adapter)
    return plain, tokenizer


def _from_own_file(model: ResolvedModel, options: PlainLoadOptions, untrained: bool, seed: int) -> Any:
    """Return the model in a file that ``save_model`` wrote, or an untrained one like it."""
    options.refuse("the file is from save_model", "device_map", "quantization")
    if options.attention != "eager":
        raise InputError("the file is from save_model, whose models keep their attention; leave attention out")
    if model.adapter is not None:
        raise InputError(
            f"{model.source!r} is a file from save_model, which has no adapters; give a Hugging Face model"
        )
    with quiet_transformers():
        hooked: Any = load_model(model.source)
        if untrained:
            hooked = build_model(config_of(hooked).with_seed(seed))
        hooked = hooked.to(options.dtype or torch.float32).to(options.device or "cpu")
    hooked.eval()
    return hooked


def _hooked_already(
    model: ResolvedModel, tokenizer: Any, options: PlainLoadOptions, untrained: bool, seed: int
) -> PretrainedModel:
    """Return a model that has hooks as it is, or one like it with random weights."""
    if model.adapter is not None:
        raise InputError("the model has hooks already; put an adapter into it with set_adapter(model, folder)")
    options.refuse("the model has hooks already", "device", "device_map", "quantization", "dtype")
    hooked = model.source
    if not untrained:
        if tokenizer is not None or options.attention != "eager":
            raise InputError(
                "the model has hooks already, and keeps its tokenizer and attention; leave tokenizer and attention "
                "out, or give the Hugging Face model"
            )
        return hooked  # type: ignore[no-any-return]
    plain = plain_model(hooked)
    if plain is not None:
        tokenizer = tokenizer_of(hooked) if tokenizer is None else tokenizer
        return load_pretrained(plain, tokenizer=tokenizer, attention=options.attention, untrained=True, seed=seed)
    first = next(hooked.parameters())
    return build_model(config_of(hooked).with_seed(seed)).to(first.dtype).to(first.device).eval()


def _add_hooks(plain: Any, tokenizer: Any, options: PlainLoadOptions, name: str | None) -> Any:
    """Return a hooked model with the weights of a Hugging Face model, whose own modules stay as they are."""
    from mechclust.models.read_only import ReadOnlyModel, is_read_only

    if any(type(module).__module__.startswith("transformer_lens.") for module in plain.modules()):
        raise InputError(
            "TransformerLens made a bridge of this model and replaced its modules; give the bridge, or make the bridge "
            "of copy.deepcopy(model)"
        )
    with quiet_transformers(), torch.random.fork_rng(devices=[]):  # the bridge makes layers, which draw weights
        inner = _copy_to_hook(plain, options)
        hooked: Any = None
        if options.attention == "eager" and _has_bridge(plain) and not is_read_only(inner.config):
            hooked = _equal_bridge(inner, tokenizer, name or plain.config.name_or_path or type(plain).__name__)
            inner = inner if hooked is not None else _copy_to_hook(plain, options)
        if hooked is None:
            hooked = ReadOnlyModel(inner, tokenizer)
    enable_adapters(hooked, plain)
    if name is None:
        split_when_changed(hooked)
    hooked.eval()
    return hooked


def _copy_to_hook(plain: Any, options: PlainLoadOptions) -> Any:
    """Return a copy of a Hugging Face model that shares its weights, to be hooked."""
    inner = copy_with_shared_weights(plain)
    inner.config.architectures = [type(plain).__name__]  # a model in memory may name another class
    with_attention(inner.set_attn_implementation, options.attention)  # a model in memory may have another kind
    return inner


def _has_bridge(plain: Any) -> bool:
    """Return whether TransformerLens knows this very class, with its head, and can split its weights."""
    import transformer_lens.model_bridge  # noqa: F401  # first: 4.0 cannot import the factory without it
    from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES

    readable = getattr(plain, "hf_quantizer", None) is None and not any(w.is_meta for w in plain.parameters())
    return readable and type(plain).__name__ in SUPPORTED_ARCHITECTURES


def _equal_bridge(plain: Any, tokenizer: Any, name: str) -> Any:
    """Return TransformerLens's bridge of a model, or ``None`` if there is none that computes the model's logits.

    If masked padding on the left changes them, as in RecurrentGemma, the bridge refuses it.
    """
    plain.eval()
    try:
        expected = short_logits(plain, plain.config)
        bridge = _bridge(plain, tokenizer, name).eval()
        logits = short_logits(bridge, plain.config)
        left = left_padded_logits(bridge, plain.config)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # of TransformerLens: anything
        return None
    if not are_equal(logits, expected):
        return None
    if not are_equal([left], [expected[1][-len(left) :]]):
        bridge.register_forward_pre_hook(_refuse_left_padding, with_kwargs=True)
    return bridge


def _refuse_left_padding(bridge: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Refuse a batch with padding on the left, before the bridge is called with it."""
    mask = options.get("attention_mask")
    if mask is not None and not bool(mask[:, 0].all()):
        raise InputError(
            f"the batch has padding, which changes what a {type(bridge.original_model).__name__} computes, although it "
            "is masked; pad on the right"
        )


def _bridge(plain: Any, tokenizer: Any, name: str) -> Any:
    """Return TransformerLens's bridge of a model, with Hugging Face's own tokenizer.

    The bridge changes tokenizers (it adds a beginning of sequence and loads them again), so it is given a copy.
    """
    from transformer_lens.model_bridge import TransformerBridge

    changed_tokenizer = _no_tokenizer() if tokenizer is None else copy.deepcopy(tokenizer)
    changed_tokenizer.init_kwargs |= {"name_or_path": name, "add_bos_token": True}  # so that it is not loaded again
    first = next(plain.parameters())
    with _without_processors():
        bridge = TransformerBridge.boot_transformers(
            name, hf_model=plain, tokenizer=changed_tokenizer, dtype=first.dtype, device=first.device
        )
    for module in bridge.modules():
        if hasattr(module, "_pattern"):
            module.register_forward_hook(_forget_pattern)
    wired = isinstance(getattr(type(bridge), "tokenizer", None), property)  # setting it would change it again
    setattr(bridge, "_tokenizer" if wired else "tokenizer", tokenizer)
    setattr(bridge, KEPT_TOKENIZER, tokenizer)
    # to_tokens, generate and the like then give the tokenizer's own ids, too.
    bridge.cfg.default_prepend_bos = bridge.cfg.tokenizer_prepends_bos
    return bridge


@contextmanager
def _without_processors() -> Iterator[None]:
    """Give TransformerLens ``None`` for the processors of pictures and sound that it loads inside the block.

    It would ask the hub for those of a model in memory too, and install torchvision with pip if it gets none.
    """
    import transformers

    names = ("AutoProcessor", "AutoFeatureExtractor", "AutoImageProcessor")
    loaders = {name: getattr(transformers, name) for name in names}
    for name in names:
        setattr(transformers, name, _NoProcessor)
    try:
        yield
    finally:
        for name, loader in loaders.items():
            setattr(transformers, name, loader)


class _NoProcessor:
    """The processor of models that read tokens alone."""

    @staticmethod
    def from_pretrained(*_: Any, **__: Any) -> None:
        """Load nothing."""


def _forget_pattern(module: Any, inputs: Any, output: Any) -> None:
    """Forget the pattern that TransformerLens keeps on a module and never reads, so that no more than one is alive."""
    module._pattern = None


def _no_tokenizer() -> Any:
    """Return a tokenizer to give the bridge, which asks the hub if it is given none."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")),
        bos_token="a",
        eos_token="a",
        pad_token="a",
    )


def _dtype_of(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Return the dtype with a name such as ``"bfloat16"``. ``PlainLoadOptions`` refuses other names."""
    named = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    return named if isinstance(named, torch.dtype) else dtype  # type: ignore[return-value]
