"""Exchange of probe states between the processes of a ``torch.distributed`` group."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load, save

from tasks import InputError


def gather(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Every process's ``state_dict``, in the order of the ranks. Travels as safetensors bytes."""
    if not dist.is_available() or not dist.is_initialized():
        raise InputError(
            "all_reduce needs torch.distributed; start with torchrun and call torch.distributed.init_process_group()"
        )
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    names = sorted(state["tensors"])
    meta = {"sites": state["sites"], "names": names}
    tensors = {str(i): state["tensors"][name].contiguous() for i, name in enumerate(names)}
    head, body = json.dumps(meta).encode(), save({**tensors, "examples": state["examples"]})
    payload = torch.frombuffer(bytearray(len(head).to_bytes(8, "big") + head + body), dtype=torch.uint8).to(device)
    size = torch.tensor([len(payload)], device=device)
    sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, size)
    longest = max(int(s) for s in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8, device=device)
    padded[: len(payload)] = payload
    gathered = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(gathered, padded)
    states = []
    for data, length in zip(gathered, sizes, strict=True):
        raw = bytes(data[: int(length)].cpu().numpy())
        n = int.from_bytes(raw[:8], "big")
        got = json.loads(raw[8 : 8 + n])
        values = load(raw[8 + n :])
        named = {name: values[str(i)] for i, name in enumerate(got["names"])}
        states.append({"sites": got["sites"], "examples": values["examples"], "tensors": named})
    return states
