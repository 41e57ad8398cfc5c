"""Rows from vLLM's hidden-state files, one of each request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from probes.engine.identity import token_digests
from probes.engine.readout import Readout
from tasks import Batch, InputError


class VllmFiles:
    """One file per example, read when its rows are asked for."""

    def __init__(
        self, paths: Sequence[Path], layers: Sequence[int] | None, positions: Mapping[str, Tensor], readout: Readout
    ) -> None:
        if layers is None:
            raise InputError(
                "layers is missing; give the layers that the files hold, in order, such as [8, 16, 24] "
                "(vLLM's eagle_aux_hidden_state_layer_ids)"
            )
        self._paths, self._positions, self._readout = paths, positions, readout
        self.sites = [site_called(layer) for layer in layers]
        if len(set(self.sites)) < len(self.sites):
            raise InputError(f"layers is {list(layers)}, with a layer twice; expected each once")
        self._width: int | None = None
        digests = []
        for path in paths:
            with _vllm_file(path) as file:
                tokens = _token_ids(file, path)
                self._check_shape(path, file.get_slice("hidden_states"), len(tokens))
            digests.append(token_digests(Batch(tokens[None])))
        self.tokens: Tensor | None = torch.cat(digests)

    def __len__(self) -> int:
        return len(self._paths)

    def _check_shape(self, path: Path, states: Any, tokens: int) -> None:
        shape = list(states.get_shape())
        if not (kind := states.get_dtype()).startswith(("F", "BF")):
            raise InputError(f"hidden_states in {str(path)!r} are {kind}; expected floating-point numbers")
        if len(shape) != 3 or shape[0] != tokens or not tokens:
            raise InputError(
                f"hidden_states in {str(path)!r} have shape {tuple(shape)} for {tokens} token_ids; expected "
                "[tokens layers d]"
            )
        if shape[1] != len(self.sites):
            raise InputError(
                f"{str(path)!r} holds {shape[1]} layers, but layers names {len(self.sites)}; name those it holds, in "
                "order"
            )
        if shape[2] != (self._width or shape[2]):
            raise InputError(
                f"hidden_states in {str(path)!r} have width {shape[2]}, but earlier ones {self._width}; give files of "
                "one model"
            )
        self._width = shape[2]

    def rows(self, places: Tensor, sites: Sequence[str], index: Tensor) -> dict[str, Tensor]:
        columns = [self.sites.index(site) for site in sites]
        first, last = min(columns), max(columns)
        found = []
        for i in places.tolist():
            with _vllm_file(self._paths[i]) as file:
                states = file.get_tensor("hidden_states")[None, :, first : last + 1]  # in the file until it is read out
                positions = {name: values[i : i + 1] for name, values in self._positions.items()}
                batch = Batch(torch.zeros(states.shape[:2], dtype=torch.int64), positions=positions)
                found.append(self._readout(states, batch)[0, [c - first for c in columns]])
        rows = torch.stack(found, dim=1) if found else torch.zeros(len(sites), 0, self._width or 0)
        for site, x in zip(sites, rows, strict=True):
            check_finite_rows(site, x, index)
        return dict(zip(sites, rows, strict=True))

    def check(self, index: Tensor) -> None:
        """Nothing is in memory; rows are looked at when they are read."""


@contextmanager
def _vllm_file(path: Path) -> Iterator[Any]:
    try:
        with safe_open(str(path), framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise InputError(f"no file {str(path)!r}; give the paths of vLLM's files, or their folder") from None
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{str(path)!r} is truncated, still being written or not a safetensors file ({error})"
        ) from None


def _token_ids(file: Any, path: Path) -> Tensor:
    has = list(file.keys())
    for name in ("hidden_states", "token_ids"):
        if name not in has:
            raise InputError(
                f"{str(path)!r} has {', '.join(map(repr, has)) or 'no tensors'} but no {name!r}; expected a file of "
                "vLLM's hidden-state connector"
            )
    tokens: Tensor = file.get_tensor("token_ids")
    return tokens.reshape(-1)


def row_files(
    given: str | Path | Sequence[str | Path], index: Any
) -> tuple[list[Path], Sequence[int] | Tensor | np.ndarray | None]:
    """The files in the order of their examples, and which examples these are."""
    if not isinstance(given, (str, Path)):
        paths = [Path(path) for path in given]
        if not paths:
            raise InputError("no files were given; give vLLM's files, or their folder")
        if isinstance(index, Mapping):
            raise InputError("index is a mapping, which is for a folder of files; give one integer per file")
        return paths, index
    folder = Path(given)
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        packed = any(folder.glob("*.safetensors.zst"))
        raise InputError(f"no *.safetensors in {str(folder)!r}{'; unpack its .zst files first' if packed else ''}")
    if index is None:
        numbers = {path: _number(path) for path in paths}
    elif isinstance(index, Mapping):
        by_name = {path.name.removesuffix(".safetensors"): path for path in paths}
        if lacking := [name for name in index if name not in by_name]:
            raise InputError(f"no file {lacking[0] + '.safetensors'!r} in {str(folder)!r} ({len(lacking)} such)")
        numbers = {by_name[name]: int(i) for name, i in index.items()}
    else:
        raise InputError("index is a list, but a folder has no order; give {file name without .safetensors: index}")
    paths = sorted(numbers, key=lambda path: numbers[path])
    return paths, [numbers[path] for path in paths]


def _number(path: Path) -> int:
    """The example's, of ``0.safetensors``, ``hs_0.safetensors`` or ``0-1f3c.safetensors``."""
    name = path.name.removesuffix(".safetensors")
    numbers = [part for part in re.split(r"[-_.]", name) if part.isdecimal()]
    if len(numbers) != 1:
        raise InputError(
            f"{path.name!r} has {len(numbers) or 'no'} numbers in its name, so its example is not known; give "
            f"index={{{name!r}: 0, ...}}, or the paths in the order of the prompts"
        )
    return int(numbers[0])


def site_called(key: object) -> str:
    """A hook name, or that of the hidden state of this number."""
    if isinstance(key, str):
        return key
    if isinstance(key, bool) or not isinstance(key, (int, np.integer)):
        raise InputError(f"rows are called {key!r}; expected a hook name or the number of a hidden state")
    if key < 0:
        raise InputError(
            f"layer {key} is negative; give the number of the hidden state: 0 for the embedding, l for the output of "
            "the l-th block"
        )
    return "hook_embed" if key == 0 else f"blocks.{key - 1}.hook_resid_post"


def check_finite_rows(site: str, rows: Tensor, index: Tensor) -> None:
    """Refuse NaN and infinity, naming the example."""
    if bool((bad := ~torch.isfinite(rows).flatten(1).all(dim=1)).any()):
        raise InputError(
            f"NaN or infinity in the rows of {site!r} for example index {int(index[bad][0])}; leave the example out"
        )
