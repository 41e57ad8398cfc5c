"""Which examples were measured, and on which model: told apart without keeping them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import xxhash
from jaxtyping import Int64, Shaped, UInt8
from torch import Tensor, nn

from probes.engine.hooks import HookedModel
from probes.engine.state import hashed
from tasks import Batch, InputError

_BLOCK = 2**13  # words of 8 bytes: 64 KiB
_BLOCKS_ON_CPU = 16  # 1 MiB, which a core's cache holds
_BLOCKS_ELSEWHERE = 1024  # 64 MiB


class ExamplesDigest:
    """A digest of examples that does not depend on their order or their batches."""

    def __init__(self) -> None:
        self._sum = torch.zeros((), dtype=torch.int64)
        self.count = 0

    def add(self, batch: Batch) -> None:
        """Also these."""
        self.add_digests(batch.index.to(batch.tokens.device), token_digests(batch))

    def add_digests(self, index: Tensor, tokens: Tensor) -> None:
        """Also these, by their index and ``token_digests``."""
        self._sum += hashed(hashed(index) + tokens).sum().cpu()  # wraps around
        self.count += len(index)

    def merge(self, other: ExamplesDigest) -> None:
        """Also those of another, which are not among ours."""
        self._sum += other._sum
        self.count += other.count

    def state(self) -> list[int]:
        """All that is known of them, as JSON."""
        return [self.count, int(self._sum)]

    @classmethod
    def of(cls, state: Sequence[int]) -> ExamplesDigest:
        """What ``state`` gave."""
        new = cls()
        new.count, new._sum = state[0], torch.tensor(state[1], dtype=torch.int64)
        return new

    def record(self, models: Mapping[str, str]) -> dict[str, Any]:
        """For a result's metadata: the digest, and the fingerprint of the model, or of several by name."""
        return {"examples": self.digest, "model": models.get("", dict(models))}

    @property
    def digest(self) -> str:
        """Number of examples, and 16 hexadecimal digits."""
        return f"{self.count}-{int(self._sum) % 2**64:016x}"


def token_digests(batch: Batch) -> Tensor:
    """``[batch]`` int64 of each example's real tokens in their order, whatever the padding."""
    batch = batch.to(batch.tokens.device)
    mask = torch.ones_like(batch.tokens) if batch.attention_mask is None else batch.attention_mask.long()
    each = hashed(hashed(batch.tokens) + mask.cumsum(dim=1))
    return (each * mask).sum(dim=1)


def fingerprint(model: HookedModel) -> str:
    """Return 32 hexadecimal digits of a model: of all bytes of its weights and buffers, and of how they are used.

    Names, dtypes and shapes count, which adapters of peft are active, and the configuration (such as the number of
    heads and the activation function) without what changes no number, such as names and versions. A tied weight counts
    once. Devices and hooks do not count. Nothing is kept between calls, so that every change of a weight is noticed.

    Cost: weights are read once, on the device on which they lie (see ``weight_digest``); 8 bytes of each come to the
    host. One core hashes about 2 GB/s: a quarter of a second for GPT-2 in float32.

    Raises:
        InputError: for a weight on the meta device that nothing can load.
    """
    multipliers: dict[torch.device, Tensor] = {}
    named = []
    for name, weight in _weights(model):
        if weight.device not in multipliers:
            multipliers[weight.device] = block_multipliers(weight.device)
        header = f"{name} {weight.dtype} {list(weight.shape)}"
        named.append((header, weight_digest(weight, multipliers[weight.device])))
    weights = sorted(f"{header} {int(digest)}".encode() for header, digest in named)
    return str(xxhash.xxh3_128(b"\n".join([*weights, *_adapters(model), _configuration(model)])).hexdigest())


def block_multipliers(device: torch.device) -> Int64[Tensor, "block"]:
    """Return the fixed odd multipliers of the words of a block, for ``weight_digest``."""
    return hashed(torch.arange(_BLOCK, device=device)) | 1


def weight_digest(
    weight: Shaped[Tensor, "..."], multipliers: Int64[Tensor, "block"], blocks_at_once: int | None = None
) -> Int64[Tensor, ""]:
    """Return an integer hash of a tensor's bytes, computed on its device and the same on every device.

    The bytes are words of 8, in blocks. A block's hash is the sum of its words, each times a fixed odd number, modulo
    2^64 (multilinear hashing); before, a word's upper half is mixed into its lower half, since flips of two signs would
    else cancel. The blocks' hashes are mixed with their places by splitmix64 and summed.

    Memory: 1 MiB on the CPU and 64 MiB elsewhere, or ``blocks_at_once`` blocks of 64 KiB.

    Args:
        weight: any dtype and strides.
        multipliers: of ``block_multipliers``, on the same device.
        blocks_at_once: how many blocks are hashed together; the hash does not depend on it.
    """
    many = blocks_at_once or (_BLOCKS_ON_CPU if weight.device.type == "cpu" else _BLOCKS_ELSEWHERE)
    sums = [torch.zeros(0, dtype=torch.int64, device=weight.device)]
    for blocks in _blocks(weight, many):
        words = blocks >> 32
        words ^= blocks
        words *= multipliers
        sums.append(words.sum(dim=1))
    by_block = torch.cat(sums)
    places = torch.arange(len(by_block), device=weight.device)
    return hashed(by_block + hashed(places)).sum()


def _blocks(weight: Shaped[Tensor, "..."], many: int) -> Iterator[Int64[Tensor, "blocks block"]]:
    """Yield a tensor's bytes as blocks of words, at most ``many`` at once; the last block is filled up with zeros."""
    size = 8 * _BLOCK
    for part in _parts(weight, many * size):
        whole = len(part) // size * size
        if whole:
            yield _words(part[:whole])
        if whole < len(part):
            last = torch.zeros(size, dtype=torch.uint8, device=part.device)
            last[: len(part) - whole] = part[whole:]
            yield _words(last)


def _words(part: UInt8[Tensor, "bytes"]) -> Int64[Tensor, "blocks block"]:
    aligned = part if part.storage_offset() % 8 == 0 else part.clone()
    return aligned.view(torch.int64).view(-1, _BLOCK)


def _weights(model: HookedModel) -> Iterator[tuple[str, Tensor]]:
    """All weights and buffers by name, each once, wherever they lie."""
    modules: dict[str, nn.Module] = {}
    seen: dict[int, Tensor] = {}  # holding them, for an id is used again once its tensor is gone
    for place, module in model.named_modules():
        modules[place] = module
        held: dict[str, Any] = {}
        module._save_to_state_dict(held, "", True)  # with what quantised layers keep beside their parameters
        held |= {name: module._buffers[name] for name in module._non_persistent_buffers_set}
        if getattr(module, "rope_type", "") in ("dynamic", "longrope"):  # follows the length of the last sequence
            held.pop("inv_freq", None)
        for name, tensor in held.items():
            if isinstance(tensor, Tensor) and id(tensor) not in seen:
                seen[id(tensor)] = tensor
                full = f"{place}.{name}" if place else name
                yield from _flat(full, _loaded(full, modules) if tensor.is_meta else tensor)
    for name, tensor in model.named_parameters():
        if id(tensor) not in seen:
            yield from _flat(name, _loaded(name, modules) if tensor.is_meta else tensor)


def _loaded(name: str, modules: Mapping[str, nn.Module]) -> Tensor:
    """A weight that accelerate took from its module, from where it lies now: in memory or on disk."""
    parts = name.split(".")
    for i in range(len(parts) - 1, -1, -1):
        place, rest = ".".join(parts[:i]), ".".join(parts[i:])
        hook = getattr(modules.get(place), "_hf_hook", None)
        for each in getattr(hook, "hooks", [hook]):
            weights = getattr(each, "weights_map", None)
            if weights is not None and rest in weights:
                return weights[rest]  # type: ignore[no-any-return]
    raise InputError(
        f"weight {name!r} is on the meta device, which holds no numbers, so this model cannot be told from another; "
        "load its weights before it is measured"
    )


def _flat(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A tensor, or those that a quantised one is made of."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield name, tensor.detach()
        return
    for part in tensor.__tensor_flatten__()[0]:
        yield from _flat(f"{name}.{part}", getattr(tensor, part))


def _parts(weight: Shaped[Tensor, "..."], size: int) -> Iterator[UInt8[Tensor, "bytes"]]:
    """Yield a tensor's bytes in its order, ``size`` at a time and in the end what is left.

    A tensor that is not contiguous is copied piece by piece.
    """
    if weight.is_contiguous():
        yield from torch.split(weight.reshape(-1).view(torch.uint8), size)
        return
    many = size // weight.element_size()
    for start in range(0, weight.numel(), many):
        yield _elements(weight, start, min(start + many, weight.numel())).contiguous().view(torch.uint8)


def _elements(weight: Shaped[Tensor, "..."], start: int, stop: int) -> Shaped[Tensor, "elements"]:
    """Return some of a tensor's elements in its order; the rows in which they lie are copied, no others."""
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
    """What weights alone do not tell, such as the number of heads."""
    inner = (getattr(model, name, None) for name in ("original_model", "body"))
    config = next((c for c in (getattr(each, "config", None) for each in inner) if hasattr(c, "to_dict")), None)
    if config is not None:
        known = settings_of(config)
    else:
        cfg = getattr(model, "cfg", None)
        known = {name: getattr(cfg, name, None) for name in _SHAPES}
    return json.dumps(known, sort_keys=True, default=str).encode()


def settings_of(config: Any) -> dict[str, Any]:
    """Of a configuration of Hugging Face's, what may change a hidden state."""
    return {k: v for k, v in config.to_dict().items() if not k.startswith(("_", "output_")) and k not in _IDLE}


# Of Hugging Face's configurations, what changes no hidden state.
_IDLE = {"architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "name_or_path", "use_cache"}
_IDLE |= {"return_dict", "id2label", "label2id", "problem_type", "tokenizer_class", "quantization_config"}
_IDLE |= {"bos_token_id", "eos_token_id", "sep_token_id"}  # of generation; that of padding numbers RoBERTa's positions
# Of TransformerLens's, what it may be told by beside its weights.
_SHAPES = ("n_heads", "d_head", "n_layers", "n_ctx", "act_fn", "eps", "normalization_type", "attention_dir")


def _adapters(model: HookedModel) -> Iterator[bytes]:
    """Which adapters of peft act where: not told by the weights that are there."""
    for place, module in model.named_modules():
        if hasattr(module, "merged_adapters"):
            what = [getattr(module, name, None) for name in ("active_adapters", "disable_adapters", "scaling")]
            yield f"{place} {[*what, module.merged_adapters]}".encode()
