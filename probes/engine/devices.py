"""Devices: where a model is, where sums are taken, and errors for devices that are missing or too small."""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Shaped
from torch import Tensor

from probes.engine.hooked_model import HookedModel
from tasks import Batch, InputError


def device_of(model: HookedModel) -> torch.device:
    """Return the device for the model's tokens: where its first parameter that is not offloaded is.

    If accelerate offloads all parameters, return the device on which it runs the model.
    """
    for parameter in model.parameters():
        if not parameter.is_meta:
            return parameter.device
    for module in model.modules():
        device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
        if device is not None:
            return torch.device(device)
    return torch.device("cpu")


def check_device(name: str | torch.device) -> None:
    """Refuse a device that this machine does not have.

    Raises:
        InputError: for such a device.
    """
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise InputError(f"no device {name!r}; expected cpu, cuda, cuda:1 or mps") from None
    is_there = True
    if device.type == "cuda":
        is_there = torch.cuda.is_available() and (device.index is None or device.index < torch.cuda.device_count())
    elif device.type == "mps":
        is_there = torch.backends.mps.is_available()
    if not is_there:
        raise InputError(f"device {str(name)!r} is not available on this machine; choose --device cpu")


def check_float64_device(name: str) -> None:
    """Refuse a device that this machine does not have, and one without float64.

    Raises:
        InputError: for such a device.
    """
    check_device(name)
    if torch.device(name).type == "mps":
        raise InputError(f"device {name!r} has no float64; choose cpu or cuda")


def sums_device(rows: Shaped[Tensor, "..."], device: str | torch.device | None) -> torch.device:
    """Return the device for float64 sums: the given or the rows' device, but the CPU for MPS, which lacks float64."""
    home = rows.device if device is None else torch.empty(0, device=device).device
    return torch.device("cpu") if home.type == "mps" else home


def device_memory_error(what: str, batch: Batch) -> InputError:
    """Return the error that a batch does not fit on its device."""
    n, length = batch.tokens.shape
    examples = "1 example" if n == 1 else f"{n} examples"
    way = "shorter texts"
    if n > 1:
        way = f"batches of at most {n // 2} (tokens_per_batch={n // 2 * length} for texts and rows)"
    return InputError(
        f"device {str(batch.tokens.device)!r} has too little memory for {what} of {examples} of {length} tokens; give "
        f"{way}, or a device with more"
    )


_MEMINFO = Path("/proc/meminfo")  # on Linux


def free_device_memory(device: str) -> int | None:
    """Return how many bytes of memory are free on a device of this machine. ``None`` if that is not known."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(torch.device(device))[0]
    if torch.device(device).type != "cpu" or not _MEMINFO.exists():
        return None
    (line,) = [line for line in _MEMINFO.read_text().splitlines() if line.startswith("MemAvailable:")]
    return int(line.split()[1]) * 1024
