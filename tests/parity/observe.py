"""Turn results, tables, folders, options and signatures into plain JSON that can be compared."""

from __future__ import annotations

import csv
import dataclasses
import inspect
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

_NUMBER = re.compile(r"-?\d[\d,]*(\.\d+)?([eE][+-]?\d+)?%?")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_DIGEST = re.compile(r"(?<![a-z0-9])(?=[0-9a-f]*\d)[0-9a-f]{8,64}(?![a-z0-9])")
_LOCKS = (".lock",)


def encode(value: Any) -> Any:
    """Return a value as JSON: tensors with type and shape, results with their axes, other objects by their fields."""
    if isinstance(value, torch.Tensor):
        numbers = value.detach().cpu()
        known = numbers.float() if numbers.dtype is torch.bfloat16 else numbers  # which NumPy does not have
        return _array(known.numpy(), str(value.dtype).removeprefix("torch."))
    if isinstance(value, np.ndarray):
        return _array(value, str(value.dtype))
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (float, np.floating)):
        return number(float(value))
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): encode(each) for key, each in value.items()}
    if hasattr(value, "columns") and hasattr(value, "to_dict"):
        return {"columns": list(map(str, value.columns)), "rows": encode(value.astype(object).to_dict("list"))}
    if hasattr(value, "values") and hasattr(value, "axes") and hasattr(value, "coords"):
        return result(value)
    if hasattr(value, "_asdict"):
        return encode(value._asdict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (Sequence, set, frozenset)):
        return [encode(each) for each in (value if isinstance(value, Sequence) else sorted(value))]
    return text(str(value))


def _array(array: np.ndarray, kind: str) -> dict[str, Any]:
    values = array.astype(np.float64) if array.dtype.kind == "f" else array
    flat = [number(float(x)) if values.dtype.kind == "f" else x for x in values.ravel().tolist()]
    return {"dtype": kind, "shape": list(array.shape), "values": flat}


def number(value: float) -> float | str:
    """Return a number, or the name of one that JSON does not have."""
    return value if math.isfinite(value) else str(value)


def result(found: Any) -> dict[str, Any]:
    """Return a probe's result: measures with their axes, coordinates, layers and kinds of notes."""
    return {
        "probe": found.probe,
        "axes": {name: list(axes) for name, axes in found.axes.items()},
        "coords": {axis: [text(name) for name in names] for axis, names in found.coords.items()},
        "layers": dict(found.layers),
        "notes": sorted({kind(note) for note in found.notes}),
        "measures": {name: encode(tensor) for name, tensor in found.values.items()},
    }


def kind(note: str) -> str:
    """Return a note without its numbers, names and paths, so that notes of one kind are the same text."""
    return " ".join(_NUMBER.sub("#", _QUOTED.sub("'...'", text(note))).split())


def text(words: str) -> str:
    """Return a text without what differs between two runs: folders, digests."""
    words = re.sub(r"\S*/\.parity/(old|new)/work", "WORK", words)
    words = re.sub(r"\S*/\.parity/inputs", "INPUTS", words)
    return _DIGEST.sub("DIGEST", words)


def headings(printed: str) -> list[str]:
    """Return what the lines of a printed list begin with: names, without the texts after them."""
    lines = [line for line in printed.splitlines() if line.strip() and not line.startswith(" " * 8)]
    columns = [" ".join(re.split(r"\s{2,}", line.strip())[:2]) for line in lines]
    return sorted({kind(re.split("[:;]", column)[0]) for column in columns})


# ---- folders ----


def folder(path: Path, load_result: Any) -> dict[str, Any]:
    """Return the names of a folder's files, and what its tables, findings and results hold."""
    found: dict[str, Any] = {"files": [], "tables": {}, "findings": {}, "results": {}}
    results: dict[str, list[Any]] = {}  # by name; several where only digests tell files apart
    for file in sorted(path.rglob("*")):
        name = _DIGEST.sub("DIGEST", str(file.relative_to(path)))
        if not file.is_file() or file.name.endswith(_LOCKS):
            continue
        found["files"].append(name)
        if file.suffix == ".csv":
            found["tables"][name] = table(file)
        elif file.name == "findings.json":
            found["findings"][name] = findings(json.loads(file.read_text()))
        elif file.suffix == ".safetensors":
            loaded = _loaded(file, load_result)
            if loaded is not None:
                results.setdefault(name, []).append(loaded)
    for name, several in results.items():
        for number, result in enumerate(sorted(several, key=_rough)):
            found["results"][f"{name} {number}" if len(several) > 1 else name] = result
    found["files"].sort()
    return found


def _rough(result: Any) -> str:
    """Return a result as text with two digits of each number: an order of results that rounding does not change."""
    words = json.dumps(result, sort_keys=True)
    return re.sub(r"-?\d+\.\d+(e-?\d+)?", lambda match: f"{float(match[0]):.1e}", words)


def _loaded(file: Path, load_result: Any) -> Any:
    """Return what a file holds if it is a result."""
    try:
        return result(load_result(file))
    except ValueError:  # a model, rows, a training state
        return None


def table(file: Path) -> dict[str, Any]:
    """Return a table's columns, and its cells column by column."""
    with file.open(newline="") as lines:
        rows = list(csv.reader(lines))
    header, body = (rows[0], rows[1:]) if rows else ([], [])
    columns = {name: [_cell(row[i]) for row in body] for i, name in enumerate(header)}
    return {"columns": header, "cells": columns}


def _cell(cell: str) -> float | str:
    try:
        return number(float(cell))
    except ValueError:
        return text(cell)


def findings(records: Any) -> dict[str, Any]:
    """Return each finding's verdict, and the measured value and verdict of each of its parts, by its id."""
    entries = records if isinstance(records, list) else records.get("findings", [])
    found: dict[str, Any] = {}
    for entry in entries:
        parts = {part["name"]: [encode(part["measured"]), part["verdict"]] for part in entry.get("parts", ())}
        found[entry["id"]] = {"verdict": entry.get("verdict"), "parts": parts}
    return found


# ---- options and signatures ----


def options(help_text: str) -> dict[str, str]:
    """Return the options in a command's help, by their names, each with its values and default."""
    found: dict[str, str] = {}
    for entry in _entries(help_text):
        head, _, about = entry.partition("  ")
        names = re.findall(r"--[\w.-]+", head)
        values = re.sub(r"--?[\w.-]+,?", "", head).strip()
        default = re.search(r"\((default: [^()]*|required)\)\s*$", about)
        if names and "-h" not in head.split(","):
            found[" ".join(names)] = f"{values} {default[0]}".strip() if default else values
    if "--no-verify:" in help_text:
        found["--no-verify"] = ""
    return found


def _entries(help_text: str) -> list[str]:
    """Return each option's lines in a help text as one line: names, two spaces, help."""
    entries: list[str] = []
    for line in help_text.splitlines():
        inside = line.removeprefix("│ ").removesuffix("│").rstrip()
        if not line.startswith("│"):
            continue
        if inside.startswith("-"):
            entries.append(inside)
        elif inside.startswith(" ") and entries:
            entries[-1] += f"{'' if '  ' in entries[-1] else '  '} {inside.strip()}"
    return entries


def signature(value: Any) -> dict[str, Any] | str:
    """Return the parameters of a function or class with their defaults, and a class's public methods and fields."""
    if not callable(value):
        return type(value).__name__
    found: dict[str, Any] = {"parameters": _parameters(value)}
    if isinstance(value, type):
        members = {name: member for name, member in inspect.getmembers(value) if not name.startswith("_")}
        own = {name: member for name, member in members.items() if _is_ours(value, name)}
        found["members"] = {name: _parameters(member) if callable(member) else "value" for name, member in own.items()}
    return found


def _is_ours(cls: type, name: str) -> bool:
    """Return whether a class's member is defined by these packages, and not by a library's base class."""
    owner = next((base for base in cls.__mro__ if name in vars(base)), cls)
    return owner.__module__.split(".")[0] in ("mechclust", "probes", "tasks")


def _parameters(value: Any) -> list[str]:
    """Return parameters as ``kind name = default``; annotations are left out, since every tensor gets a shape."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return []
    return [_parameter(each) for each in parameters]


def _parameter(parameter: inspect.Parameter) -> str:
    star: dict[Any, str] = {
        parameter.VAR_POSITIONAL: "*",
        parameter.VAR_KEYWORD: "**",
        parameter.KEYWORD_ONLY: "keyword ",
    }
    words = f"{star.get(parameter.kind, '')}{parameter.name}"
    if parameter.default is parameter.empty:
        return words
    return f"{words} = {re.sub(r' at 0x[0-9a-f]+', '', repr(parameter.default))}"
