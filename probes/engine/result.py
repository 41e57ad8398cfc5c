"""What a probe found: named tensors with named axes."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from probes.engine.merged_metadata import MERGE_STATES, merged_metadata
from probes.engine.plots import first_to_draw, plot
from probes.engine.result_facts import facts, value_of
from probes.engine.result_tables import dataframe_of, dataset_of
from probes.engine.sites import head_name, renumbered
from probes.store.files import dump_tensors, read_safetensors, write_safetensors
from tasks import InputError
from tasks.errors import check_at_least, suggest

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.axes import Axes

_FORMAT = "mechclust-result-3"
_BEFORE = "mechclust-result-2"  # numbered the layers of heads from 1, and kept parameters as their repr
_MOST_ROWS = 24  # of a table in a notebook
_MEASURES_IN_REPR = 4


class Head(NamedTuple):
    """An attention head with a measure's value, as ``ProbeResult.top_heads`` gives it.

    Attributes:
        layer: the block's number, 0 for ``blocks.0``.
        head: from 0.
        value: of the measure.
    """

    layer: int
    head: int
    value: float

    @property
    def name(self) -> str:
        """Such as ``"L0H3"``."""
        return head_name(self.layer, self.head)


@dataclass(frozen=True, repr=False)
class ProbeResult:
    """Named measures with named axes, coordinates and notes.

    Attributes:
        probe: name of the probe's class.
        values: measure name to tensor.
        axes: measure name to the names of its tensor's axes.
        coords: axis name to the names along it. The axis ``"site"`` holds hook names.
        layers: hook name to layer number, see ``Site``: in the residual stream 0 the embedding, of heads their block.
        metadata: what the numbers depend on: parameters, number of examples, versions.
        notes: why a value is NaN, and what else a reader must know.

    Example:
        >>> import torch
        >>> result = ProbeResult("Demo", {"score": torch.tensor([0.5])}, {"score": ("site",)},
        ...                      {"site": ["hook_embed"]}, {"hook_embed": 0})
        >>> result["score"].tolist(), list(result), "score" in result
        ([0.5], ['score'], True)
        >>> print(result)
        Demo
         layer       site  score
             0 hook_embed    0.5
    """

    probe: str
    values: Mapping[str, Tensor]
    axes: Mapping[str, tuple[str, ...]]
    coords: Mapping[str, list[str]]
    layers: Mapping[str, int] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.values.keys() != self.axes.keys():
            raise InputError(
                f"values has {', '.join(self.values) or 'nothing'} and axes {', '.join(self.axes) or 'nothing'}; "
                "expected the axes of each measure, () for a single number"
            )
        for name, tensor in self.values.items():
            if unknown := [axis for axis in self.axes[name] if axis not in self.coords]:
                raise InputError(
                    f"{name!r} has the axis {unknown[0]!r}, but coords has {', '.join(self.coords) or 'none'}; "
                    "give names along every axis"
                )
            expected = tuple(len(self.coords[axis]) for axis in self.axes[name])
            if tuple(tensor.shape) != expected:
                raise InputError(
                    f"{name!r} has shape {tuple(tensor.shape)}; expected {expected} for axes {self.axes[name]}"
                )
        if unknown := [site for site in self.coords.get("site", ()) if site not in self.layers]:
            raise InputError(f"site {unknown[0]!r} has no layer (layers has {', '.join(self.layers) or 'none'})")

    def __getitem__(self, measure: str) -> Tensor:
        if measure not in self.values:
            raise KeyError(f"no measure {measure!r} in this {self.probe} result{suggest(measure, self.values)}")
        return self.values[measure]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def __contains__(self, measure: object) -> bool:
        return measure in self.values

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.values)

    def sel(self, measure: str, **at: str | int) -> Tensor:
        """The part of a measure at the named coordinates: ``sel("ari", label="task")``, ``sel("ari", layer=2)``.

        Args:
            measure: which.
            at: the name along each axis to fix, such as ``site="hook_embed"`` or ``head=3``; or ``layer``, the number
                of a site's layer (see ``layers``), if only one site has it.

        Raises:
            InputError: for an axis or name that is not there, and a layer of no site or of several.
        """
        return self._sel(measure, self._places(measure, at))

    def _places(self, measure: str, at: Mapping[str, str | int]) -> dict[str, str]:
        """Names along axes, the layer as the site that has it."""
        axes = self.axes.get(measure, ())
        names = {axis: str(name) for axis, name in at.items()}
        if "layer" not in at or "layer" in axes or "site" not in axes:
            return names
        layer = names.pop("layer")
        sites = [site for site in self.coords["site"] if str(self.layers[site]) == layer]
        if len(sites) == 1 and "site" not in names:
            return {"site": sites[0], **names}
        if "site" in names:
            raise InputError(f"layer {layer} and site {names['site']!r} are both given; give one of them")
        if sites:
            raise InputError(f"layer {layer} of {measure!r} is {', '.join(map(repr, sites))}; give site= instead")
        known = dict.fromkeys(self.layers[site] for site in self.coords["site"])
        raise InputError(f"no layer {layer} in {measure!r} (it has {', '.join(map(str, known))})")

    def _sel(self, measure: str, at: Mapping[str, str]) -> Tensor:
        tensor = self[measure]
        for axis, name in at.items():
            if axis not in (axes := self.axes[measure]):
                known = [*axes, *["layer"] * ("site" in axes)] or ["none"]
                raise InputError(f"no axis {axis!r} in {measure!r}{suggest(axis, known)}")
            if name not in self.coords[axis]:
                raise InputError(f"no {axis} {name!r} in {measure!r}{suggest(name, self.coords[axis])}")
        return tensor[tuple(self.coords[a].index(at[a]) if a in at else slice(None) for a in self.axes[measure])]

    def plot(self, measure: str | None = None, *, ax: Axes | None = None, **at: str | int) -> Any:
        """Draw a measure with matplotlib, in a way that its axes ask for.

        By layer: a curve for each label, bucket or model, with its interval and, hatched, what chance gives. By head:
        a map, with a dot where the value is within the chance band. Every site with every other: a matrix, as of CKA.
        Axes beyond these make panels.

        Args:
            measure: by default the first that has a chance band, or else the first that can be drawn.
            ax: where to draw a single panel; a new figure by default.
            at: coordinates to fix, as in ``sel``.

        Returns:
            The axes, for further drawing: one, or an array of them where there are several panels.

        Raises:
            InputError: for a measure that has nothing to draw along, and for too many curves or panels.

        Example:
            >>> import torch
            >>> result = ProbeResult("Demo", {"score": torch.tensor([0.5, 0.7])}, {"score": ("site",)},
            ...                      {"site": ["hook_embed", "blocks.0.hook_resid_post"]},
            ...                      {"hook_embed": 0, "blocks.0.hook_resid_post": 1})
            >>> axes = result.plot()  # doctest: +SKIP
            >>> axes.figure.savefig("score.pdf")  # doctest: +SKIP
        """
        any_of_sites = next((name for name, axes in self.axes.items() if "site" in axes), "")
        places = self._places(measure or any_of_sites, at)
        name = measure or first_to_draw(self, places)
        self._sel(name, places)
        return plot(self, name, places, ax)

    def top_heads(self, measure: str, k: int = 4, *, smallest: bool = False, **at: str | int) -> list[Head]:
        """The ``k`` heads with the largest values of a measure, best first; heads whose value is NaN are left out.

        Args:
            measure: one with the axes site and head.
            k: how many, or all there are if fewer.
            smallest: those with the smallest values instead.
            at: coordinates of its other axes, as in ``sel``.

        Raises:
            InputError: for a measure without heads, or with an axis that ``at`` does not fix.

        Example:
            >>> import torch
            >>> result = ProbeResult("Demo", {"ratio": torch.tensor([[1.0, 3.0]])}, {"ratio": ("site", "head")},
            ...                      {"site": ["blocks.0.attn.hook_pattern"], "head": ["0", "1"]},
            ...                      {"blocks.0.attn.hook_pattern": 0})
            >>> result.top_heads("ratio", 1)
            [Head(layer=0, head=1, value=3.0)]
        """
        check_at_least(k=(k, 1))
        places = self._places(measure, at)
        tensor = self._sel(measure, places)
        left = [axis for axis in self.axes[measure] if axis not in places]
        if set(left) != {"site", "head"}:
            way = "choose a measure of heads" if "head" not in left else "fix the others, as in sel()"
            raise InputError(f"{measure!r} leaves the axes ({', '.join(left)}); expected (site, head): {way}")
        values = tensor if left[0] == "site" else tensor.T
        heads = [
            Head(self.layers[site], int(head), float(values[i, j]))
            for (i, site), (j, head) in product(enumerate(self.coords["site"]), enumerate(self.coords["head"]))
            if not bool(values[i, j].isnan())
        ]
        return sorted(heads, key=lambda head: head.value if smallest else -head.value)[:k]

    def merge(self, other: ProbeResult) -> ProbeResult:
        """Both as one: results of the same probe on the same examples at different coordinates of one axis, such as
        two jobs that measured different layers.

        Numbers from different *examples* cannot be joined afterwards; what can is the probes' state: ``save_state``
        in each job, then ``load_state``, ``merge`` and ``compute``.

        Raises:
            InputError: saying why they do not merge.

        Example:
            >>> import torch
            >>> def at(site, layer):
            ...     return ProbeResult("Demo", {"ari": torch.tensor([0.1 * layer])}, {"ari": ("site",)},
            ...                        {"site": [site]}, {site: layer})
            >>> at("blocks.0.hook_resid_post", 1).merge(at("hook_embed", 0)).coords["site"]
            ['hook_embed', 'blocks.0.hook_resid_post']
        """
        return _merged(self, other)

    def to_dataframe(self) -> pd.DataFrame:
        """Return a row for each number, with the same columns for every probe, so that frames of probes stack.

        ``probe, measure, site, layer, other_site, head, label, step, coords, value``: what a measure has no axis
        for is missing (``NA``); axes without a column of their own stand in ``coords``, as
        ``"similarity=cosine, bucket=same"``. Layer, head and step are integers.
        """
        return dataframe_of(self.probe, self.values, self.axes, self.coords, self.layers)

    def to_xarray(self) -> xr.Dataset:
        """Return the measures as variables of a data set, with the result's axes and coordinates.

        Along ``site`` there is a second coordinate, ``layer``. Layer, head and step are integers. The attributes are
        ``probe``, ``notes``, and ``metadata`` as JSON. A measure with the name of an axis gets an underscore behind it.
        Needs ``pip install "mechclust[xarray]"``.

        Raises:
            InputError: if xarray is not installed.

        Example:
            >>> result = ProbeResult("Demo", {"score": torch.tensor([0.5])}, {"score": ("site",)},
            ...                      {"site": ["hook_embed"]}, {"hook_embed": 0})
            >>> float(result.to_xarray()["score"].sel(site="hook_embed"))  # doctest: +SKIP
            0.5
        """
        about = {"probe": self.probe, "notes": list(self.notes), "metadata": json.dumps(self.metadata)}
        return dataset_of(self.values, self.axes, self.coords, self.layers, about)

    def __repr__(self) -> str:
        axes = {axis: len(self.coords[axis]) for axes in self.axes.values() for axis in axes}
        along = f" by {', '.join(f'{n} {axis}' for axis, n in axes.items())}" if axes else ""
        names = ", ".join(islice(self.values, _MEASURES_IN_REPR)) or "no measure"
        more = len(self.values) - _MEASURES_IN_REPR
        others = f" and {more} more" if more > 0 else ""
        return f"ProbeResult({self.probe}: {names}{others}{along}; print() shows them)"

    def _repr_html_(self) -> str:
        tables = [self._html_table(axes, names) for axes, names in self._by_axes().items() if not self._is_long(axes)]
        tables += [f"<p>{html.escape(line)}</p>" for line in self._long_tables()]
        notes = [f"<p>Note: {html.escape(note)}</p>" for note in self.notes]
        head = f"<p><b>{html.escape(self.probe)}</b> {html.escape(facts(self.metadata))}</p>"
        return "".join(["<div>", head, *tables, *notes, "</div>"])

    def __str__(self) -> str:
        """The numbers, for a terminal: as in a notebook."""
        parts = [f"{self.probe} {facts(self.metadata)}".rstrip()]
        for axes, names in self._by_axes().items():
            if not axes:
                parts.append(self._single(names))
            elif (n := self._rows(axes)) and not self._is_long(axes):
                table = self._table(axes, names)
                parts.append(table.to_string(index=False, float_format="{:.4g}".format))
                left = n - len(table)
                parts += [f"and {left:,} more rows: to_dataframe() has them all"] if left else []
        return "\n".join([*parts, *self._long_tables(), *(f"Note: {note}" for note in self.notes)])

    def _by_axes(self) -> dict[tuple[str, ...], list[str]]:
        by_axes: dict[tuple[str, ...], list[str]] = {}
        for name, axes in self.axes.items():
            by_axes.setdefault(tuple(axes), []).append(name)
        return by_axes

    def _rows(self, axes: tuple[str, ...]) -> int:
        return prod(len(self.coords[axis]) for axis in axes)

    def _is_long(self, axes: tuple[str, ...]) -> bool:
        """Whether a table is only named, such as that of all shuffles: it is long, and not the first."""
        return self._rows(axes) > _MOST_ROWS and axes != next(axes for axes in self._by_axes() if axes)

    def _long_tables(self) -> list[str]:
        return [
            f"{', '.join(names)}: {self._rows(axes):,} rows by {', '.join(axes)}; to_dataframe() has them"
            for axes, names in self._by_axes().items()
            if self._is_long(axes)
        ]

    def _single(self, names: list[str]) -> str:
        return ", ".join(f"{name} {self.values[name].item():.4g}" for name in names)

    def _html_table(self, axes: tuple[str, ...], names: list[str]) -> str:
        """One row per place, one column per measure; text for numbers without axes."""
        if not axes:
            return f"<p>{html.escape(self._single(names))}</p>"
        n = self._rows(axes)
        if not n:
            return ""
        frame = self._table(axes, names)
        shown: str = frame.to_html(index=False, border=0, float_format="{:.4g}".format)
        left = n - len(frame)
        return shown + (f"<p>and {left:,} more rows: to_dataframe() has them all</p>" if left else "")

    def _table(self, axes: tuple[str, ...], names: list[str]) -> pd.DataFrame:
        """The first rows, with the layer beside the site."""
        import pandas as pd

        frame = pd.DataFrame(islice(product(*(self.coords[axis] for axis in axes)), _MOST_ROWS), columns=list(axes))
        if axes[0] == "site":
            frame.insert(0, "layer", [self.layers[site] for site in frame["site"]])
        for name in names:  # a measure may be called like an axis
            column = self.values[name].flatten()[:_MOST_ROWS].tolist()
            frame.insert(frame.shape[1], name, column, allow_duplicates=True)
        return frame

    def save(self, path: str | Path) -> None:
        """Write one safetensors file with the rest as JSON in its header, atomically."""
        write_safetensors(path, self.values, self._header())

    def to_bytes(self) -> bytes:
        """Return what ``save`` writes."""
        file = BytesIO()
        dump_tensors(file, self.values, self._header())
        return file.getvalue()

    def _header(self) -> dict[str, str]:
        meta = {
            "probe": self.probe,
            "axes": {k: list(v) for k, v in self.axes.items()},
            "coords": dict(self.coords),
            "layers": dict(self.layers),
            "metadata": dict(self.metadata),
            "notes": list(self.notes),
        }
        return {"format": _FORMAT, "result": json.dumps(meta)}


def load_result(path: str | Path) -> ProbeResult:
    """Load a saved result of any probe, study or command.

    Raises:
        InputError: for a file that is missing, damaged, or not a probe result.

    Example:
        >>> import tempfile, torch
        >>> accuracy = ProbeResult("Accuracy", {"accuracy": torch.tensor(0.5)}, {"accuracy": ()}, {})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     accuracy.save(f"{folder}/accuracy.safetensors")
        ...     load_result(f"{folder}/accuracy.safetensors")["accuracy"]
        tensor(0.5000)
    """
    tensors, header = read_safetensors(path)
    if header.get("format") not in (_FORMAT, _BEFORE):
        state = header.get("format", "").startswith("mechclust-probe-state")
        way = (
            f"; it holds the state of {header.get('probe', 'a probe')}: build that, load_state it and compute()"
            if state
            else ""
        )
        raise InputError(f"{str(path)!r} is not a probe result; expected a file from ProbeResult.save{way}")
    try:
        meta = json.loads(header["result"])
        if header["format"] == _BEFORE:
            meta["layers"] = {site: renumbered(site, layer) for site, layer in meta["layers"].items()}
            if "parameters" in meta["metadata"]:
                meta["metadata"]["parameters"] = {k: value_of(v) for k, v in meta["metadata"]["parameters"].items()}
        return ProbeResult(
            probe=meta["probe"],
            values=tensors,
            axes={k: tuple(v) for k, v in meta["axes"].items()},
            coords=meta["coords"],
            layers=meta["layers"],
            metadata=meta["metadata"],
            notes=meta["notes"],
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:  # InputError is a ValueError
        raise InputError(f"{str(path)!r} is a damaged probe result ({error}); measure it again") from None


# ---- two results as one ----


def _merged(a: ProbeResult, b: ProbeResult) -> ProbeResult:
    """See ``ProbeResult.merge``."""
    if a.probe != b.probe:
        raise InputError(
            f"cannot merge results of {a.probe} and {b.probe}; put them side by side with "
            "pandas.concat([a.to_dataframe(), b.to_dataframe()])"
        )
    if (one := _axes(a)) != (two := _axes(b)):
        raise InputError(
            f"cannot merge {a.probe} results of different measures or axes: {one} and {two}; "
            "measure both with the same settings"
        )
    axis = _differing_axis(a, b)
    values = {name: _joined(name, axis, a, b) for name in a.values}
    coords = {**a.coords, axis: [*a.coords[axis], *b.coords[axis]]}
    layers = {**a.layers, **b.layers}
    if other := [site for site, layer in a.layers.items() if layers[site] != layer]:
        raise InputError(f"cannot merge {a.probe} results that have {other[0]!r} at different layers; use one model")
    if axis == "site" or all(name.isdigit() for name in coords[axis]):  # the same result whichever comes first
        place = layers.__getitem__ if axis == "site" else int
        order = sorted(range(len(coords[axis])), key=lambda i: place(coords[axis][i]))
        coords[axis] = [coords[axis][i] for i in order]
        for name, axes in a.axes.items():
            if axis in axes:
                values[name] = values[name].index_select(axes.index(axis), torch.tensor(order))
    notes = list(dict.fromkeys([*a.notes, *b.notes]))
    metadata, differing = merged_metadata(a.probe, axis, a.metadata, b.metadata)
    return replace(a, values=values, coords=coords, layers=layers, metadata=metadata, notes=[*notes, *differing])


def _axes(result: ProbeResult) -> str:
    return ", ".join(f"{name} ({', '.join(axes)})" for name, axes in result.axes.items())


def _differing_axis(a: ProbeResult, b: ProbeResult) -> str:
    """The one axis along which they differ."""
    used = dict.fromkeys(axis for axes in a.axes.values() for axis in axes)
    different = [axis for axis in used if a.coords[axis] != b.coords[axis]]
    if not different:
        raise InputError(
            f"cannot merge two {a.probe} results that measured the same things ({', '.join(used) or 'no axes'}); "
            f"if they saw different examples, {MERGE_STATES}"
        )
    if len(different) > 1:
        raise InputError(
            f"cannot merge {a.probe} results that differ along {' and '.join(different)}; "
            "they may differ along one axis only"
        )
    axis = different[0]
    if both := [name for name in a.coords[axis] if name in b.coords[axis]]:
        raise InputError(
            f"cannot merge {a.probe} results along {axis}: both have {both[0]!r}; give results of different {axis}s, "
            f"or, if they saw different examples, {MERGE_STATES}"
        )
    return axis


def _joined(name: str, axis: str, a: ProbeResult, b: ProbeResult) -> Tensor:
    x, y = a.values[name], b.values[name]
    if axis in a.axes[name]:
        return torch.cat([x, y], dim=a.axes[name].index(axis))
    if not torch.allclose(x.double(), y.double(), rtol=0, atol=0, equal_nan=True):
        raise InputError(
            f"cannot merge {a.probe} results along {axis}: {name!r} has one value for all of it, which differs; "
            f"measure both parts in one run, or, if they saw different examples, {MERGE_STATES}"
        )
    return x
