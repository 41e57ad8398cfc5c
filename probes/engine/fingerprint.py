"""Fingerprints of models, to recognise them without keeping them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import xxhash
from jaxtyping import Int64, Shaped, UInt8
from torch import Tensor, nn

from probes.engine.hooked_model import HookedModel
from probes.store.splitmix64 import splitmix64
from tasks import InputError

_WORDS_PER_BLOCK = 2**13  # words of 8 bytes: 64 KiB
_BLOCKS_ON_CPU = 16  # 1 MiB, which fits in a core's cache
_BLOCKS_ELSEWHERE = 1024  # 64 MiB

# Settings of Hugging Face's configurations that change no hidden state. The token ids are for generation.
# The padding id is not listed, because it numbers RoBERTa's positions.
_IDLE_SETTINGS = {
    "architectures",
    "auto_map",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "name_or_path",
    "use_cache",
    "return_dict",
    "id2label",
    "label2id",
    "problem_type",
    "tokenizer_class",
    "quantization_config",
    "bos_token_id",
    "eos_token_id",
    "sep_token_id",
}
# Settings of TransformerLens's configurations that the weights do not show.
_LENS_SETTINGS = (
    "n_heads",
    "d_head",
    "n_layers",
    "n_ctx",
    "act_fn",
    "eps",
    "normalization_type",
    "final_rms",
    "rmsnorm_uses_offset",
    "use_normalization_before_and_after",
    "post_embedding_ln",
    "use_qk_norm",
    "qk_norm_after_rope",
    "attention_dir",
    "use_attn_scale",
    "attn_scale",
    "attn_scores_soft_cap",
    "output_logits_soft_cap",
    "scale_attn_by_inverse_layer_idx",
    "parallel_attn_mlp",
    "gated_mlp",
    "experts_per_token",
    "scale_embedding",
    "use_local_attn",
    "window_size",
    "attn_types",
    "positional_embedding_type",
    "rotary_dim",
    "rotary_base",
    "rotary_adjacent_pairs",
    "rope_scaling",
    "use_NTK_by_parts_rope",
    "NTK_by_parts_low_freq_factor",
    "NTK_by_parts_high_freq_factor",
    "NTK_by_parts_factor",
    "NTK_original_ctx_len",
    "relative_attention_max_distance",
)


def fingerprint(model: HookedModel) -> str:
    """Return 32 hexadecimal digits that identify a model by all bytes of its weights and buffers, and by their use.

    Names, dtypes, shapes and the active adapters of peft count. So does the configuration (such as the number of heads
    and the activation function), without settings that change no number, such as names and versions. A tied weight
    counts once. Devices and hooks do not count. Hashes are not cached, so every change of a weight is noticed.

    Cost: weights are read once, on the device on which they are (see ``weight_fingerprint``), and 8 bytes of each come
    to the host. One core hashes about 2 GB/s: a quarter of a second for GPT-2 in float32.

    Raises:
        InputError: for a weight on the meta device that cannot be loaded.
    """
    multipliers: dict[torch.device, Tensor] = {}
    named = []
    for name, weight in _weights(model):
        if weight.device not in multipliers:
            multipliers[weight.device] = fingerprint_multipliers(weight.device)
        header = f"{name} {weight.dtype} {list(weight.shape)}"
        named.append((header, weight_fingerprint(weight, multipliers[weight.device])))
    weights = sorted(f"{header} {int(digest)}".encode() for header, digest in named)
    return str(xxhash.xxh3_128(b"\n".join([*weights, *_adapters(model), _configuration(model)])).hexdigest())


def fingerprint_multipliers(device: torch.device) -> Int64[Tensor, "block"]:
    """Return the fixed odd multipliers of the words of a block, for ``weight_fingerprint``."""
    return splitmix64(torch.arange(_WORDS_PER_BLOCK, device=device)) | 1


def weight_fingerprint(
    weight: Shaped[Tensor, "..."], multipliers: Int64[Tensor, "block"], blocks_at_once: int | None = None
) -> Int64[Tensor, ""]:
    """Return an integer hash of a tensor's bytes, computed on its device and equal on every device.

    The bytes are words of 8, in blocks. A block's hash is the sum of its words, each times a fixed odd number, modulo
    2^64 (multilinear hashing). Before that, a word's upper 31 bits are mixed into its lowest 31, since flips of two
    signs would otherwise cancel. The blocks' hashes are mixed with their places by splitmix64 and summed.

    Memory: 1 MiB on the CPU and 64 MiB elsewhere, or ``blocks_at_once`` blocks of 64 KiB.

    Args:
        weight: any dtype and strides.
        multipliers: result of ``fingerprint_multipliers``, on the weight's device.
        blocks_at_once: how many blocks are hashed together. The hash does not depend on it.
    """
    if blocks_at_once is None:
        blocks_at_once = _BLOCKS_ON_CPU if weight.device.type == "cpu" else _BLOCKS_ELSEWHERE
    sums = [torch.zeros(0, dtype=torch.int64, device=weight.device)]
    for blocks in _blocks(weight, blocks_at_once):
        words = blocks >> 33
        words &= 0x7FFFFFFF  # int64 is shifted with its sign: a word and its complement would have equal hashes
        words ^= blocks
        words *= multipliers
        sums.append(words.sum(dim=1))
    by_block = torch.cat(sums)
    places = torch.arange(len(by_block), device=weight.device)
    return splitmix64(by_block + splitmix64(places)).sum()


def _blocks(weight: Shaped[Tensor, "..."], at_once: int) -> Iterator[Int64[Tensor, "blocks block"]]:
    """Yield a tensor's bytes as blocks of words, at most ``at_once`` at a time. The last block is filled with zeros."""
    size = 8 * _WORDS_PER_BLOCK
    for part in _parts(weight, at_once * size):
        whole = len(part) // size * size
        if whole:
            yield _words(part[:whole])
        if whole < len(part):
            last = torch.zeros(size, dtype=torch.uint8, device=part.device)
            last[: len(part) - whole] = part[whole:]
            yield _words(last)


def _words(part: UInt8[Tensor, "bytes"]) -> Int64[Tensor, "blocks block"]:
    aligned = part if part.storage_offset() % 8 == 0 else part.clone()
    return aligned.view(torch.int64).view(-1, _WORDS_PER_BLOCK)


def _weights(model: HookedModel) -> Iterator[tuple[str, Shaped[Tensor, "..."]]]:
    """Yield all weights and buffers by name, each once, offloaded ones too."""
    modules: dict[str, nn.Module] = {}
    seen: dict[int, Tensor] = {}  # keeps the tensors, because the id of a deleted one is used again
    for place, module in model.named_modules():
        modules[place] = module
        for name, tensor in _weights_of_module(module).items():
            if id(tensor) not in seen:
                seen[id(tensor)] = tensor
                full_name = f"{place}.{name}" if place else name
                yield from _plain_tensors(full_name, _loaded(full_name, modules) if tensor.is_meta else tensor)
    for name, tensor in model.named_parameters():
        if id(tensor) not in seen:
            yield from _plain_tensors(name, _loaded(name, modules) if tensor.is_meta else tensor)


def _weights_of_module(module: nn.Module) -> dict[str, Shaped[Tensor, "..."]]:
    """Return a module's weights and buffers, without its parts' weights and buffers."""
    values: dict[str, Any] = {}
    module._save_to_state_dict(values, "", True)  # includes further tensors of quantised layers
    values |= {name: module._buffers[name] for name in module._non_persistent_buffers_set}
    if getattr(module, "rope_type", "") in ("dynamic", "longrope"):  # depends on the length of the last sequence
        values.pop("inv_freq", None)
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def _loaded(name: str, modules: Mapping[str, nn.Module]) -> Shaped[Tensor, "..."]:
    """Return a weight that accelerate took from its module, from memory or from disk."""
    parts = name.split(".")
    for i in range(len(parts) - 1, -1, -1):
        place = ".".join(parts[:i])
        rest = ".".join(parts[i:])
        hook = getattr(modules.get(place), "_hf_hook", None)
        for part in getattr(hook, "hooks", [hook]):
            weights = getattr(part, "weights_map", None)
            if weights is not None and rest in weights:
                return weights[rest]  # type: ignore[no-any-return]
    raise InputError(
        f"weight {name!r} is on the meta device, which holds no numbers, so this model cannot be identified; "
        "load its weights before it is measured"
    )


def _plain_tensors(name: str, tensor: Shaped[Tensor, "..."]) -> Iterator[tuple[str, Shaped[Tensor, "..."]]]:
    """Yield a tensor, or the parts of a quantised one."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield name, tensor.detach()
        return
    for part in tensor.__tensor_flatten__()[0]:
        yield from _plain_tensors(f"{name}.{part}", getattr(tensor, part))


def _parts(weight: Shaped[Tensor, "..."], size: int) -> Iterator[UInt8[Tensor, "bytes"]]:
    """Yield a tensor's bytes in its order, ``size`` at a time, the last piece maybe shorter.

    A tensor that is not contiguous is copied piece by piece.
    """
    if weight.is_contiguous():
        yield from torch.split(weight.reshape(-1).view(torch.uint8), size)
        return
    n_elements = size // weight.element_size()
    for start in range(0, weight.numel(), n_elements):
        stop = min(start + n_elements, weight.numel())
        yield _elements(weight, start, stop).contiguous().view(torch.uint8)


def _elements(weight: Shaped[Tensor, "..."], start: int, stop: int) -> Shaped[Tensor, "elements"]:
    """Return some of a tensor's elements in its order. Only the rows with these elements are copied."""
    if weight.ndim == 1:
        return weight[start:stop]
    row = weight[0].numel()
    first = start // row
    last = (stop - 1) // row
    if first == last:
        return _elements(weight[first], start - first * row, stop - first * row)
    rows = weight[first : last + 1].reshape(-1)
    return rows[start - first * row : stop - first * row]


def _configuration(model: HookedModel) -> bytes:
    """Return the settings that the weights do not show, such as the number of heads."""
    for name in ("original_model", "body"):
        config = getattr(getattr(model, name, None), "config", None)
        if hasattr(config, "to_dict"):
            settings = fingerprinted_settings(config)
            break
    else:
        cfg = getattr(model, "cfg", None)
        settings = {name: getattr(cfg, name, None) for name in _LENS_SETTINGS}
    return json.dumps(settings, sort_keys=True, default=str).encode()


def fingerprinted_settings(config: Any) -> dict[str, Any]:
    """Return the settings of a Hugging Face configuration that may change a hidden state."""
    settings = {}
    for name, value in config.to_dict().items():
        if name not in _IDLE_SETTINGS and not name.startswith(("_", "output_")):
            settings[name] = value
    return settings


def _adapters(model: HookedModel) -> Iterator[bytes]:
    """Yield a line on each module with adapters of peft: which are active cannot be seen from the weights."""
    for place, module in model.named_modules():
        if hasattr(module, "merged_adapters"):
            state = [getattr(module, name, None) for name in ("active_adapters", "disable_adapters", "scaling")]
            yield f"{place} {[*state, module.merged_adapters]}".encode()
