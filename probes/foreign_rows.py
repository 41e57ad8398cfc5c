"""Rows that another engine extracted: plain tensors, nnsight's, Hugging Face's, vLLM's files."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from probes.identity import token_digests
from probes.readout import Readout, check_row_readout, last_token
from probes.row_store import check_names, places_of
from tasks import Batch, InputError

States: TypeAlias = Tensor | np.ndarray | Sequence[Any]
"""``[n d]``, ``[n pos d]``, or a list of ``[tokens d]``."""

Values: TypeAlias = Tensor | np.ndarray | Sequence[Any]
"""One for each example."""

_BLOCK = 4096  # examples


def rows_from(
    rows: Mapping[str, States] | Mapping[int, States] | str | Path | Sequence[str | Path],
    *,
    index: Sequence[int] | Tensor | np.ndarray | Mapping[str, int] | None = None,
    labels: Mapping[str, Values] | None = None,
    tokens: Values | None = None,
    attention_mask: Tensor | np.ndarray | None = None,
    positions: Mapping[str, Values] | None = None,
    readout: Readout = last_token(),
    layers: Sequence[int] | None = None,
    model: str = "unknown",
) -> ForeignRows:
    """Hidden states that another engine extracted, for ``run_stores`` to measure, also beside a ``RowStore``.

    **Tensors or arrays**, by hook name or by the number of the hidden state: 0 is ``hook_embed``, ``l`` is
    ``blocks.{l-1}.hook_resid_post``. Each is ``[n d]``, the rows themselves; ``[n pos d]``, with ``attention_mask``
    where there is padding; or a list of ``[tokens d]``. From the latter two ``readout`` takes the rows. nnsight's saved
    ``layer.output`` and ``dict(enumerate(output.hidden_states))`` of Hugging Face go in as they are; but Hugging Face's
    *last* hidden state comes after the final norm: leave it out, or name it ``"unembed.hook_in"``.

    **vLLM's files** (``ExampleHiddenStatesConnector``), one safetensors a request with ``hidden_states``
    ``[tokens layers d]`` and ``token_ids`` ``[tokens]``: their folder, or a list of paths in the order of the prompts.
    ``layers`` says which layers they hold, in their order: the ``eagle_aux_hidden_state_layer_ids`` given to vLLM,
    which count as above (the last is before the final norm). The files are read one at a time, when rows are asked
    for; every ``run_stores`` reads them again, so give it all probes at once.

    Memory: the tensors given, once more where rows are taken from token states; of files, their index only.

    Args:
        rows: see above.
        index: the examples' identities, as in ``Batch.index``; 0, 1, 2, ... by default. For a folder by file name
            without ``.safetensors``, ``{"cmpl-7": 0}``; by default the number in the name.
        labels: by name, one value per example in the order of ``rows`` (for a folder, of the index). Integers as they
            are, strings as the number of their class in alphabetical order.
        tokens: ``[n pos]``, with ``attention_mask`` where there is padding, or a list of token ids per example. With
            them, stores of other prompts are refused; without, prompts are not compared, and results say so. vLLM's
            files bring their own.
        attention_mask: ``[n pos]``, 1 on real tokens.
        positions: by name, one position per example, for ``token_at``.
        readout: which position the rows are of, or are to be taken from.
        layers: for vLLM's files.
        model: tells the model apart from others, in the metadata of results.

    Raises:
        InputError: for rows, labels or tokens of different numbers of examples, an index given twice, values that are
            not finite or no floating-point numbers, other shapes, a negative layer number, files without the fields.

    Example:
        >>> import torch
        >>> from probes import last_token, rows_from, run_stores, TaskClusterARI
        >>> states = torch.randn(8, 5, 4, generator=torch.Generator().manual_seed(0))  # [n pos d]
        >>> rows = rows_from({1: states}, labels={"task": ["add", "copy"] * 4}, readout=last_token())
        >>> rows.sites, rows.classes
        (['blocks.0.hook_resid_post'], {'task': ['add', 'copy']})
        >>> found = run_stores(rows, TaskClusterARI(at=rows.sites, readout=last_token(), n_permutations=10))
        >>> found["ari"].shape
        torch.Size([1, 1])
    """
    check_row_readout(readout)
    places = {name: torch.as_tensor(values) for name, values in (positions or {}).items()}
    given: _Given
    if isinstance(rows, Mapping):
        if layers is not None:
            raise InputError("layers are for vLLM's files; name the layers of tensors by their keys")
        if isinstance(index, Mapping):
            raise InputError("index is a mapping, which is for a folder of files; give one integer per example")
        given = _Tensors(rows, tokens, attention_mask, places, readout)
    else:
        if tokens is not None or attention_mask is not None:
            raise InputError("vLLM's files bring their own tokens; leave tokens and attention_mask out")
        paths, index = _files(rows, index)
        given = _VllmFiles(paths, layers, places, readout)
    n = len(given)
    numbers = _index(index, n)
    given.check(numbers)
    codes, classes = dict[str, Tensor](), dict[str, list[str]]()
    for name, values in (labels or {}).items():
        codes[name], names = _label(name, values, n)
        classes |= {name: names} if names else {}
    source = str(rows) if isinstance(rows, (str, Path)) else "rows_from(...)"
    return ForeignRows(given, numbers, codes, classes, repr(readout), model, source)


class ForeignRows:
    """What ``rows_from`` gives: measured by ``run_stores`` as a ``RowStore`` is.

    Attributes:
        index: ``[n]`` the examples, ascending.
        tokens: ``[n]`` a digest of each example's tokens, or ``None`` where they are not known.
        sites: hook names, in the order given. Where they are not all the layers, probes need ``at=rows.sites``.
        readout: the readout's ``repr``.
        labels: names of the labels.
        classes: by label that was given as strings, what its numbers stand for.
        model: tells the model apart from others.
        source: what errors call it.
    """

    def __init__(
        self,
        given: _Given,
        index: Tensor,
        labels: Mapping[str, Tensor],
        classes: Mapping[str, list[str]],
        readout: str,
        model: str,
        source: str,
    ) -> None:
        self._given, self.readout, self.model, self.source = given, readout, model, source
        self.sites, self.labels, self.classes = given.sites, sorted(labels), dict(classes)
        self.hook_dict: dict[str, None] = dict.fromkeys(given.sites)
        self.lacks = {"": f"the rows given are of {', '.join(given.sites)}; choose among them with at="}
        self.index, self._places = torch.sort(index)
        self.tokens = None if given.tokens is None else given.tokens[self._places]
        self._labels = {name: values[self._places] for name, values in labels.items()}

    def __len__(self) -> int:
        return len(self.index)

    def blocks(self) -> Iterator[Tensor]:
        """Some thousand examples after the other."""
        yield from torch.split(self.index, _BLOCK)

    def select(self, index: Tensor) -> ForeignRows:
        """The same with these examples only. Nothing is read or copied."""
        keep, some = torch.isin(self.index, index), copy.copy(self)
        some.index, some._places = self.index[keep], self._places[keep]
        some.tokens = None if self.tokens is None else self.tokens[keep]
        some._labels = {name: values[keep] for name, values in self._labels.items()}
        return some

    def take(self, index: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """``"rows/<site>"`` and ``"labels/<name>"`` of these examples, in their order.

        Raises:
            InputError: for a site, a label or an example that is not there, and files that cannot be read.
        """
        places = places_of(index, self.index, self.source)
        check_names(names, self.sites, self.labels, self.source)
        sites = [name.removeprefix("rows/") for name in names if name.startswith("rows/")]
        rows = self._given.rows(self._places[places], sites, index) if sites else {}
        return {
            name: rows[what] if kind == "rows" else self._labels[what][places]
            for name in names
            for kind, _, what in [name.partition("/")]
        }


class _Given(Protocol):
    """Rows in the order in which they were given."""

    sites: list[str]
    tokens: Tensor | None

    def __len__(self) -> int: ...

    def rows(self, places: Tensor, sites: Sequence[str], index: Tensor) -> dict[str, Tensor]:
        """By site ``[places d]``; ``index`` is what these examples are called."""

    def check(self, index: Tensor) -> None:
        """Refuse values that are not finite, as far as they are in memory."""


# ---- tensors ----


class _Tensors:
    """``[n d]`` a site, in memory."""

    def __init__(
        self,
        given: Mapping[Any, States],
        tokens: Values | None,
        attention_mask: Tensor | np.ndarray | None,
        positions: Mapping[str, Tensor],
        readout: Readout,
    ) -> None:
        mask = None if attention_mask is None else torch.as_tensor(attention_mask).bool()
        self._rows: dict[str, Tensor] = {}
        lengths: Tensor | None = None
        for key, states in given.items():
            site = _site(key)
            if site in self._rows:
                raise InputError(f"the rows of {site!r} were given twice, as {key!r} too; give them once")
            self._rows[site], found = _rows_of(site, states, mask, positions, readout)
            lengths = found if lengths is None else lengths
        if not self._rows:
            raise InputError("no rows were given; give {hook name: [n d]}")
        self.sites = list(self._rows)
        first = self.sites[0]
        for site, x in self._rows.items():
            if len(x) != len(self):
                raise InputError(
                    f"there are {len(x)} rows of {site!r} and {len(self)} of {first!r}; give a row of every example at "
                    "each site"
                )
        if not len(self):
            raise InputError(f"there are no rows of {first!r}; give at least one example")
        self.tokens = None if tokens is None else _digests(tokens, mask, len(self), lengths)

    def __len__(self) -> int:
        return len(self._rows[self.sites[0]])

    def rows(self, places: Tensor, sites: Sequence[str], index: Tensor) -> dict[str, Tensor]:
        return {site: self._rows[site][places] for site in sites}

    def check(self, index: Tensor) -> None:
        for site, x in self._rows.items():
            _check_finite(site, x, index)


def _site(key: object) -> str:
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


def _rows_of(
    site: str, states: States, mask: Tensor | None, positions: Mapping[str, Tensor], readout: Readout
) -> tuple[Tensor, Tensor | None]:
    """``[n d]`` and, where they were taken from token states, ``[n]`` tokens of each."""
    if isinstance(states, (Tensor, np.ndarray)):
        x = _floating(site, states)
        if x.ndim == 2:
            return x.cpu(), None
        if x.ndim == 3:
            batch = Batch(torch.zeros(x.shape[:2], dtype=torch.int64), mask, positions=positions)
            return readout(x, batch.to(x.device)).cpu(), batch.lengths()
        raise _wrong_shape(f"the array of the rows of {site!r}", x)
    if mask is not None:
        raise InputError(f"the rows of {site!r} are a list, which has no padding; leave attention_mask out")
    parts = [_floating(site, each) for each in states]
    parts = [x[0] if x.ndim == 3 and len(x) == 1 else x for x in parts]
    for x in parts:
        if x.ndim not in (1, 2) or x.ndim != parts[0].ndim or x.shape[-1] != parts[0].shape[-1]:
            raise _wrong_shape(f"an element of the rows of {site!r}", x)
    if not parts or parts[0].ndim == 1:
        return (torch.stack(parts).cpu() if parts else torch.zeros(0, 0)), None
    found = []
    for i, x in enumerate(parts):
        if not len(x):
            raise InputError(f"element {i} of the rows of {site!r} has no tokens; leave it out")
        mine = {name: values[i : i + 1] for name, values in positions.items()}
        batch = Batch(torch.zeros(1, len(x), dtype=torch.int64), positions=mine)
        found.append(readout(x[None], batch.to(x.device)).cpu())
    return torch.cat(found), torch.tensor(list(map(len, parts)))


def _floating(site: str, states: Any) -> Tensor:
    x = torch.as_tensor(states).detach()
    if not x.is_floating_point():
        raise InputError(f"the rows of {site!r} are {x.dtype}; expected floating-point hidden states")
    return x


def _wrong_shape(what: str, x: Tensor) -> InputError:
    return InputError(
        f"{what} has shape {tuple(x.shape)}; expected [n d], [n pos d] or a list of [tokens d], all of one width d"
    )


def _check_finite(site: str, rows: Tensor, index: Tensor) -> None:
    if bool((bad := ~torch.isfinite(rows).flatten(1).all(dim=1)).any()):
        raise InputError(
            f"NaN or infinity in the rows of {site!r} for example index {int(index[bad][0])}; leave the example out"
        )


def _digests(tokens: Values, mask: Tensor | None, n: int, lengths: Tensor | None) -> Tensor:
    """``[n]``, as ``RowStore.tokens``."""
    if len(tokens) != n:
        raise InputError(f"there are the tokens of {len(tokens)} examples and rows of {n}; give those of every example")
    if isinstance(tokens, (Tensor, np.ndarray)):
        batches = [Batch(torch.as_tensor(tokens).cpu(), None if mask is None else mask.cpu())]
    else:
        batches = [Batch(torch.as_tensor(ids).reshape(1, -1)) for ids in tokens]
    found = torch.cat([batch.lengths() for batch in batches])
    if lengths is not None and len(other := (found != lengths.cpu()).nonzero()):
        i = int(other[0, 0])
        raise InputError(
            f"element {i} of tokens has {int(found[i])} tokens, and its states are of {int(lengths[i])}; give the "
            "tokens that the states are of, with attention_mask where there is padding"
        )
    return torch.cat([token_digests(batch) for batch in batches])


# ---- vLLM's files ----


class _VllmFiles:
    """One file an example, read when its rows are asked for."""

    def __init__(
        self, paths: Sequence[Path], layers: Sequence[int] | None, positions: Mapping[str, Tensor], readout: Readout
    ) -> None:
        if layers is None:
            raise InputError(
                "layers is missing; give the layers that the files hold, in order, such as [8, 16, 24] "
                "(vLLM's eagle_aux_hidden_state_layer_ids)"
            )
        self._paths, self._positions, self._readout = paths, positions, readout
        self.sites = [_site(layer) for layer in layers]
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
                f"{str(path)!r} holds {shape[1]} layers, and layers names {len(self.sites)}; name those it holds, in "
                "order"
            )
        if shape[2] != (self._width or shape[2]):
            raise InputError(
                f"hidden_states in {str(path)!r} have width {shape[2]}, and those before {self._width}; give files of "
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
            _check_finite(site, x, index)
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
                f"{str(path)!r} has {', '.join(map(repr, has)) or 'no tensors'} and no {name!r}; expected a file of "
                "vLLM's hidden-state connector"
            )
    tokens: Tensor = file.get_tensor("token_ids")
    return tokens.reshape(-1)


def _files(
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
        raise InputError("index is a list, and a folder has no order; give {file name without .safetensors: index}")
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


# ---- index and labels ----


def _index(given: Any, n: int) -> Tensor:
    if given is None:
        return torch.arange(n)
    index = torch.as_tensor(given).cpu()
    if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool or index.shape != (n,):
        raise InputError(
            f"index has shape {tuple(index.shape)} and dtype {index.dtype}; expected {n} integers, one per example"
        )
    index = index.long()
    values, counts = torch.unique(index, return_counts=True)
    if bool((counts > 1).any()):
        raise InputError(
            f"example index {int(values[counts > 1][0])} was given twice; give every example an index of its own"
        )
    return index


def _label(name: str, values: Values, n: int) -> tuple[Tensor, list[str]]:
    """``[n]`` integers, and what they stand for where strings were given."""
    listed = values.tolist() if isinstance(values, (Tensor, np.ndarray)) else list(values)
    if len(listed) != n:
        raise InputError(f"label {name!r} has {len(listed)} values for {n} examples; give one per example")
    if all(isinstance(value, str) for value in listed):
        classes = sorted(set(listed))
        number = {each: i for i, each in enumerate(classes)}
        return torch.tensor([number[value] for value in listed]), classes
    if wrong := [value for value in listed if not isinstance(value, (int, np.integer))]:
        raise InputError(f"label {name!r} has {wrong[0]!r}; expected integers, or strings only")
    return torch.tensor([int(value) for value in listed]), []
