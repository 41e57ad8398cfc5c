"""Rows from vLLM's hidden-state files, one for each request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64, Integer, Shaped
from safetensors import SafetensorError, safe_open
from torch import Tensor

from probes.engine.examples_digest import token_digests
from probes.engine.readout import Readout
from probes.engine.sites import site_called
from tasks import Batch, InputError
from tasks.settings import check_different_settings


class VllmFiles:
    """One file per example, read when its rows are needed.

    Attributes:
        sites: hook names, in the order of the layers in the files.
        index: the example of each file.
        tokens: a digest of each example's tokens.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        layers: Sequence[int] | None,
        positions: Mapping[str, Integer[Tensor, "example"]],
        readout: Readout,
        index: Int64[Tensor, "example"],
    ) -> None:
        if layers is None:
            raise InputError(
                "layers is missing; give the layers that the files hold, in order, such as [8, 16, 24] "
                "(vLLM's eagle_aux_hidden_state_layer_ids)"
            )
        self.sites = [site_called(layer) for layer in layers]
        check_different_settings(layers=list(layers))
        self.index = index
        self._paths = paths
        self._positions = positions
        self._readout = readout
        self._width: int | None = None
        digests = []
        for path in paths:
            with _vllm_file(path) as file:
                tokens = _token_ids(file, path)
                self._check_states(path, file.get_slice("hidden_states"), len(tokens))
            digests.append(token_digests(Batch(tokens[None])))
        self.tokens = torch.cat(digests)

    def _check_states(self, path: Path, states: Any, tokens: int) -> None:
        shape = list(states.get_shape())
        dtype = states.get_dtype()
        if not dtype.startswith(("F", "BF")):
            raise InputError(f"hidden_states in {str(path)!r} are {dtype}; expected floating-point numbers")
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
        if self._width not in (None, shape[2]):
            raise InputError(
                f"hidden_states in {str(path)!r} have width {shape[2]}, but earlier ones {self._width}; give files of "
                "one model"
            )
        self._width = shape[2]

    def read(self, sites: Sequence[str], places: Int64[Tensor, "some"]) -> dict[str, Float[Tensor, "some d"]]:
        """Return the rows of the examples in these files, by site. Each file is opened once.

        Args:
            sites: at least one.
            places: the files, by their number.

        Raises:
            InputError: for a file that cannot be read, NaN and infinity.
        """
        columns = [self.sites.index(site) for site in sites]
        by_example = [self._read_file(i, columns) for i in places.tolist()]
        by_site = torch.stack(by_example, dim=1) if by_example else torch.zeros(len(sites), 0, self._width or 0)
        rows = dict(zip(sites, by_site, strict=True))
        for site, x in rows.items():
            check_rows_finite(site, x, self.index[places])
        return rows

    def _read_file(self, i: int, columns: Sequence[int]) -> Float[Tensor, "site d"]:
        first = min(columns)
        with _vllm_file(self._paths[i]) as file:
            states = file.get_tensor("hidden_states")[None, :, first : max(columns) + 1]  # read by the readout only
            positions = {name: values[i : i + 1] for name, values in self._positions.items()}
            tokens = torch.zeros(states.shape[:2], dtype=torch.int64)
            batch = Batch(tokens, positions=positions, index=self.index[i : i + 1])
            return self._readout(states, batch)[0, [column - first for column in columns]]


def check_rows_finite(site: str, rows: Float[Tensor, "example d"], index: Integer[Tensor, "example"]) -> None:
    """Refuse NaN and infinity, naming the example."""
    broken = index[~torch.isfinite(rows).all(dim=1)]
    if len(broken):
        raise InputError(
            f"NaN or infinity in the rows of {site!r} for example index {int(broken[0])}; leave the example out"
        )


@contextmanager
def _vllm_file(path: Path) -> Iterator[Any]:
    """Open one of vLLM's files.

    Raises:
        InputError: if it cannot be read.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise InputError(f"no file {str(path)!r}; give the paths of vLLM's files, or their folder") from None
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{str(path)!r} is truncated, still being written or not a safetensors file ({error})"
        ) from None


def _token_ids(file: Any, path: Path) -> Integer[Tensor, "pos"]:
    names = list(file.keys())
    for name in ("hidden_states", "token_ids"):
        if name not in names:
            raise InputError(
                f"{str(path)!r} has {', '.join(map(repr, names)) or 'no tensors'} but no {name!r}; expected a file of "
                "vLLM's hidden-state connector"
            )
    tokens: Integer[Tensor, "..."] = file.get_tensor("token_ids")
    return tokens.reshape(-1)


def vllm_paths(
    given: str | Path | Sequence[str | Path], index: Any
) -> tuple[list[Path], Sequence[int] | Shaped[Tensor, "..."] | Shaped[np.ndarray, "..."] | None]:
    """Return the files in the order of their examples, and which examples these are.

    Args:
        given: a folder, or paths.
        index: as ``rows_from`` takes it.
    """
    if isinstance(given, (str, Path)):
        numbers = _numbers_in(Path(given), index)
        in_order = sorted((number, path) for path, number in numbers.items())
        return [path for _, path in in_order], [number for number, _ in in_order]
    if not given:
        raise InputError("no files were given; give vLLM's files, or their folder")
    if isinstance(index, Mapping):
        raise InputError("index is a mapping, which is for a folder of files; give one integer per file")
    return [Path(path) for path in given], index


def _numbers_in(folder: Path, index: Any) -> dict[Path, int]:
    """Return the example of each file in a folder: from the index by name, or the number in the file's name."""
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        unpack = "; unpack its .zst files first" if any(folder.glob("*.safetensors.zst")) else ""
        raise InputError(f"no *.safetensors in {str(folder)!r}{unpack}")
    if index is None:
        return {path: _number(path) for path in paths}
    if not isinstance(index, Mapping):
        raise InputError("index is a list, but a folder has no order; give {file name without .safetensors: index}")
    by_name = {path.name.removesuffix(".safetensors"): path for path in paths}
    missing = [name for name in index if name not in by_name]
    if missing:
        raise InputError(f"no file {missing[0] + '.safetensors'!r} in {str(folder)!r} ({len(missing)} such)")
    return {by_name[name]: int(number) for name, number in index.items()}


def _number(path: Path) -> int:
    """Return the example's number, from a name like ``0.safetensors``, ``hs_0.safetensors`` or ``0-1f.safetensors``."""
    name = path.name.removesuffix(".safetensors")
    numbers = [part for part in re.split(r"[-_.]", name) if part.isdecimal()]
    if len(numbers) != 1:
        raise InputError(
            f"{path.name!r} has {len(numbers) or 'no'} numbers in its name, so its example is not known; give "
            f"index={{{name!r}: 0, ...}}, or the paths in the order of the prompts"
        )
    return int(numbers[0])
