"""Which examples were measured, and on which model: told apart without keeping them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import xxhash
from torch import Tensor, nn

from probes.engine.hooks import HookedModel
from probes.engine.state import hashed
from tasks import Batch, InputError

_CHUNK = 2**26  # bytes


class Examples:
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

    def merge(self, other: Examples) -> None:
        """Also those of another, which are not among ours."""
        self._sum += other._sum
        self.count += other.count

    def state(self) -> list[int]:
        """All that is known of them, as JSON."""
        return [self.count, int(self._sum)]

    @classmethod
    def of(cls, state: Sequence[int]) -> Examples:
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
    """32 hexadecimal digits that tell a model from every other: of all bytes of its weights and buffers.

    Names, dtypes and shapes count too, which adapters of peft act, and the configuration (of how many heads, with which
    activation function), but for what changes no number, such as names and versions; a tied weight counts once. The
    device does not count, nor do hooks. Nothing is kept between calls, so that no change of a weight in memory
    can pass unseen.

    Cost: xxh3 at the speed of memory, 5 to 27 GB/s on one core by how busy the machine is: .02 to .1 s for GPT-2 in
    float32, 1 to 6 s for 7 billion weights in float32 and half of it in bfloat16. Weights on the CPU are not copied
    (but those that are not contiguous, 64 MiB at a time at .3 GB/s); from elsewhere they come in pieces of that size,
    as fast as the device or the disk gives them.

    Raises:
        InputError: for a weight on the meta device that nothing can load.
    """
    digests = []
    for name, weight in _weights(model):
        digest = xxhash.xxh3_128(f"{name} {weight.dtype} {list(weight.shape)}".encode())
        for part in _parts(weight):
            digest.update(memoryview(part.numpy()))  # type: ignore[arg-type]
        digests.append(digest.digest())
    return str(xxhash.xxh3_128(b"".join([*sorted(digests), *_adapters(model), _configuration(model)])).hexdigest())


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


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """``[bytes]`` of a tensor in its order, piece by piece on the CPU."""
    if tensor.is_contiguous():
        flat = tensor.reshape(-1).view(torch.uint8)
        yield from (flat,) if flat.device.type == "cpu" else (part.cpu() for part in torch.split(flat, _CHUNK))
    elif tensor[0].numel() * tensor.element_size() > _CHUNK:
        for row in tensor:
            yield from _parts(row)
    else:
        rows = max(1, _CHUNK // max(1, tensor[0].numel() * tensor.element_size()))
        for some in torch.split(tensor, rows):
            yield some.contiguous().reshape(-1).view(torch.uint8).cpu()


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
