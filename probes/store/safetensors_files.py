"""Safetensors files with a checksum, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import torch
import xxhash
from jaxtyping import Shaped, UInt8
from safetensors import SafetensorError, safe_open
from torch import Tensor

from probes.store.files import RECREATE, RECREATE_OURS, DamagedError, files_are_verified, read_json, replacing_file
from tasks import InputError

_NO_CHECKSUM = "0" * 32  # stands in a header while the checksum is computed
_DTYPES = {  # names in safetensors
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_safetensors(path: str | Path, tensors: Mapping[str, Shaped[Tensor, "..."]], header: Mapping[str, str]) -> str:
    """Write a safetensors file, whole or not at all, from the tensors' own memory, and return its checksum.

    The header gets ``"checksum"``: xxh3_128 over the whole file, with the checksum's own 32 digits as zeros. Equal
    tensors and headers give equal bytes.

    Args:
        path: the file.
        tensors: tensors on any device, of any layout.
        header: names the format, ``"format": "mechclust-..."``.

    Raises:
        InputError: if it cannot be written, and for complex and rare dtypes.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = write_safetensors(f"{folder}/x", {"x": torch.tensor([1, 2])}, {"format": "mechclust-demo-1"})
        ...     read_safetensors(f"{folder}/x")
        ({'x': tensor([1, 2])}, {'format': 'mechclust-demo-1'})
    """
    with replacing_file(Path(path)) as file:
        return dump_tensors(file, tensors, header)


def dump_tensors(file: BinaryIO, tensors: Mapping[str, Shaped[Tensor, "..."]], header: Mapping[str, str]) -> str:
    """Write to an open file as ``write_safetensors`` does, and return the checksum.

    ``safetensors.torch.save_file`` is not used: it writes the header's fields in an order that changes from call to
    call. Some versions copy every tensor, and its errors do not mention a full disk.
    """
    widest_first = sorted(tensors, key=lambda name: tensors[name].element_size(), reverse=True)  # this order aligns all
    dense = {name: tensors[name].detach().cpu().contiguous() for name in widest_first}
    start = _start_of_file(dense, {"checksum": _NO_CHECKSUM, **header})
    contents = [memoryview(_bytes_of(x).numpy()) for x in dense.values()]  # type: ignore[arg-type]
    digest = xxhash.xxh3_128(start)
    for content in contents:
        digest.update(content)
    checksum = str(digest.hexdigest())
    file.write(start.replace(_NO_CHECKSUM.encode(), checksum.encode(), 1))
    for content in contents:
        file.write(content)
    return checksum


def _start_of_file(tensors: Mapping[str, Shaped[Tensor, "..."]], header: Mapping[str, str]) -> bytes:
    """Return the start of a safetensors file, before the tensors: the length of a JSON text, and the text."""
    record: dict[str, Any] = {"__metadata__": header}
    start = 0
    for name, x in tensors.items():
        if x.dtype not in _DTYPES:
            kept = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
            raise InputError(f"{name!r} is {x.dtype}, which files do not keep; give one of {kept}")
        end = start + x.numel() * x.element_size()
        record[name] = {"dtype": _DTYPES[x.dtype], "shape": list(x.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(record, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _bytes_of(dense: Shaped[Tensor, "..."]) -> UInt8[Tensor, "byte"]:
    """Return the memory of a contiguous tensor, also of one row of a column, whose stride ``view`` refuses."""
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)


def read_safetensors(path: str | Path) -> tuple[dict[str, Shaped[Tensor, "..."]], dict[str, str]]:
    """Return the tensors and the header of a safetensors file, without its checksum, which is compared.

    The tensors are mapped into memory, which holds only used parts. Comparing the checksum reads the file once.

    Raises:
        InputError: if it is missing, damaged, or written by mechclust and without a checksum.
    """
    header = check_safetensors(path)
    header.pop("checksum", None)
    with _reading(path), safe_open(str(path), framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118 - it is not a mapping


def check_safetensors(path: str | Path) -> dict[str, str]:
    """Return the header of a safetensors file, with its ``"checksum"``, after comparing that. No tensor is kept.

    Raises:
        InputError: as ``read_safetensors``.
    """
    with _reading(path):
        with safe_open(str(path), framework="pt") as file:
            header: dict[str, str] = dict(file.metadata() or {})
        named = header.get("checksum")
        if not files_are_verified():
            return header
        if named is not None and named != _checksum_of(Path(path), named):
            raise DamagedError(f"{str(path)!r} is damaged (its checksum does not match); {RECREATE}")
    if named is None and header.get("format", "").startswith("mechclust-"):
        raise InputError(f"{str(path)!r} has no checksum (it is damaged, or from another version); {RECREATE}")
    return header


def _checksum_of(path: Path, named: str) -> str:
    """Return the checksum of a safetensors file whose header names this one."""
    with open(path, "rb") as file:
        length = file.read(8)
        start = length + file.read(int.from_bytes(length, "little"))
        start = start.replace(f'"checksum":"{named}"'.encode(), f'"checksum":"{_NO_CHECKSUM}"'.encode(), 1)
        digest = hashlib.file_digest(file, partial(xxhash.xxh3_128, start))
    return str(digest.hexdigest())


@contextmanager
def _reading(path: str | Path) -> Iterator[None]:
    """Turn an error of the disk or the format into a sentence."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"no file {str(path)!r}; give the path of a safetensors file") from None
    except (SafetensorError, OSError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{str(path)!r} is truncated or not a safetensors file ({why}); {RECREATE_OURS}") from None


def is_whole_file(path: str | Path) -> bool:
    """Return whether a safetensors or JSON file that mechclust wrote is there, undamaged. Cost: reading it once."""
    path = Path(path)
    try:
        if path.suffix == ".json":
            read_json(path)
            return True
        return "checksum" in check_safetensors(path)
    except InputError:
        return False


def safetensors_bytes(folder: Path) -> int:
    """Return the bytes of the ``.safetensors`` files at any depth of a folder, 0 if it is missing."""
    return sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
