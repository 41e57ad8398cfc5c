"""Which bytes of a folder are compared.

All files, whole, but for seven things. Of JSON what tells date and machine (and the checksum over them) is left out; of
pages and figures, today's date; of pages the random names by which maps and views find their place, and the digests of
the scripts that hold these names. Of safetensors files all names, types, shapes, numbers and facts in the header are
compared, not the order in which the header tells them, nor the checksum over that order. Rows are compared by example,
with labels and digests of tokens, since an interruption cuts them into other shards. Of a manifest, it counts which
files it lists and whether their digests are those of the files. Lock files are left out. A temporary file that stayed
behind is a difference.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors.torch import load_file

MANIFEST = "mechclust.json"
_EXEMPT = {"machine", "date", "checksum"}  # keys of JSON
_DATE = re.compile(rb"\d{4}-\d{2}-\d{2}")
_RANDOM = re.compile(rb"(attention|prompt-map)-[0-9a-f]{12}|sha256-[\w+/]+=*")
_LOCK = ".mechclust.lock"

Bits = dict[str, str]


def bits(folder: Path) -> Bits:
    """A digest by path in the folder."""
    found: Bits = {}
    stores = {path.parent for path in folder.rglob("rows.json")}
    for store in stores:
        found[f"{store.relative_to(folder)}/ (rows by example)"] = _rows(store)
    for path in sorted(folder.rglob("*")):
        shard = path.parent if path.parent.name.startswith("shard-") else path.parent.parent
        if not path.is_file() or path.name == _LOCK:
            continue
        if path.parent.name.startswith("shard-") and path.parent.parent in stores and shard:
            continue
        found[str(path.relative_to(folder))] = hashlib.sha256(_compared(path)).hexdigest()[:16]
    return found


def other(now: Bits, before: Bits) -> str:
    """What differs, in words; empty where nothing does."""
    said = [f"lacks {name}" for name in before if name not in now]
    said += [f"has {name} besides" for name in now if name not in before]
    said += [f"{name} has other bits" for name in before if name in now and now[name] != before[name]]
    return "; ".join(said[:6]) + (f"; and {len(said) - 6} more" if len(said) > 6 else "")


def _compared(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".json":
        try:
            if path.name == MANIFEST:
                return _manifest(path.parent, json.loads(data))
            return json.dumps(_without(json.loads(data)), sort_keys=True).encode()
        except ValueError:
            return data
    if path.suffix == ".safetensors":
        try:
            return _tensors(data)
        except (ValueError, KeyError, TypeError, AttributeError):
            return data
    if path.suffix == ".html":
        data = _RANDOM.sub(b"", data)
    return _DATE.sub(b"", data) if path.suffix in (".html", ".svg", ".png", ".pdf") else data


def _manifest(folder: Path, manifest: Any) -> bytes:
    """A manifest with whether each file is the one that it lists, instead of digests of pages with random names."""
    for kind in ("files", "measured"):
        listed = manifest.get(kind, {})
        manifest[kind] = {name: _digest_of(folder / name) in digests for name, digests in listed.items()}
    return json.dumps(_without(manifest), sort_keys=True).encode()


def _digest_of(path: Path) -> str:
    return xxhash.xxh3_128_hexdigest(path.read_bytes()) if path.is_file() else ""


def _tensors(data: bytes) -> bytes:
    """A safetensors file in one order of its names."""
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    facts = _without(header.pop("__metadata__", {}))
    parts = [json.dumps(facts, sort_keys=True).encode()]
    for name in sorted(header):
        start, end = header[name].pop("data_offsets")
        parts += [json.dumps([name, header[name]], sort_keys=True).encode(), body[start:end]]
    return b"\0".join(parts)


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without(item) for key, item in value.items() if key not in _EXEMPT}
    return [_without(item) for item in value] if isinstance(value, list) else value


def _rows(store: Path) -> str:
    """Everything that a store's shards hold, in the order of the examples."""
    parts = []
    for shard in sorted(path for path in store.glob("shard-*") if path.is_dir()):
        try:
            files = {path.name: load_file(path) for path in sorted(shard.glob("*.safetensors"))}
        except Exception as error:
            return f"unreadable: {error}"
        parts.append({f"{file}/{name}": x for file, found in files.items() for name, x in found.items()})
    if not parts:
        return "no rows"
    digest = hashlib.sha256()
    (index_name,) = [name for name in parts[0] if name.endswith("/index")]
    order = torch.argsort(torch.cat([part[index_name] for part in parts]), stable=True)
    for name in sorted(parts[0]):
        if any(name not in part for part in parts):
            return f"a shard lacks {name}"
        joined = torch.cat([part[name] for part in parts])[order].contiguous()
        digest.update(f"{name} {joined.dtype} {tuple(joined.shape)}".encode())
        digest.update(joined.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
