"""Exchange probe states between the processes of a ``torch.distributed`` group."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import UInt8
from safetensors.torch import load, save
from torch import Tensor

from tasks import InputError


def gather_states(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every process's ``state_dict``, in the order of the ranks.

    Raises:
        InputError: if there is no process group.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise InputError(
            "all_reduce needs torch.distributed; start with torchrun and call torch.distributed.init_process_group()"
        )
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    payload = torch.frombuffer(bytearray(_packed(state)), dtype=torch.uint8).to(device)
    return [_unpacked(data) for data in _gathered(payload)]


def _packed(state: dict[str, Any]) -> bytes:
    """Return a state as the length of a JSON list of its sites, the list, and safetensors."""
    sites = json.dumps(state["sites"]).encode()
    tensors = {f"tensors/{name}": tensor.contiguous() for name, tensor in state["tensors"].items()}
    return len(sites).to_bytes(8, "big") + sites + save({**tensors, "examples": state["examples"]})


def _unpacked(data: bytes) -> dict[str, Any]:
    start = 8 + int.from_bytes(data[:8], "big")
    tensors = load(data[start:])
    examples = tensors.pop("examples")
    named = {name.removeprefix("tensors/"): tensors[name] for name in sorted(tensors)}
    return {"sites": json.loads(data[8:start]), "examples": examples, "tensors": named}


def _gathered(payload: UInt8[Tensor, "bytes"]) -> list[bytes]:
    """Return the bytes of every process, which may differ in length."""
    size = torch.tensor([len(payload)], device=payload.device)
    sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, size)
    longest = max(int(size) for size in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8, device=payload.device)
    padded[: len(payload)] = payload
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return [bytes(part[: int(size)].cpu().numpy()) for part, size in zip(parts, sizes, strict=True)]
