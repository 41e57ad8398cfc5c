"""The result of a probe: named tensors with named axes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import islice
from math import isnan
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from probes.engine.head_names import Head
from probes.engine.plots import first_measure_to_plot, plot
from probes.engine.result_fields import ResultFields, result_field_axes
from probes.engine.result_merge import merge_results
from probes.engine.result_place import result_place
from probes.engine.result_tables import result_dataframe, result_dataset
from probes.engine.result_text import result_html, result_text
from probes.engine.state import AnyTensor
from probes.store.safetensors_files import dump_tensors, read_safetensors, write_safetensors
from tasks import InputError
from tasks.errors import error_suggestion
from tasks.settings import check_count

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.axes import Axes

_FORMAT = "mechclust-result-3"
_MEASURES_IN_REPR = 4
_NUMBERED_AXES = ("head", "step")


def _check_names(axis: str, names: Sequence[str]) -> None:
    """Refuse names along an axis that are no texts, and heads and steps that are not numbered."""
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"coords[{axis!r}] has {name!r}; expected texts: give str({name!r})")
        if axis in _NUMBERED_AXES and not re.fullmatch(r"-?\d+", name):
            raise InputError(f"coords[{axis!r}] has {name!r}; expected numbers as texts, such as '0'")


@dataclass(frozen=True, repr=False)
class ProbeResult(ResultFields):
    """Named measures with named axes, coordinates and notes.

    Attributes:
        probe: name of the probe's class.
        values: measure name to tensor, without gradient and on the CPU.
        axes: measure name to the names of its tensor's axes.
        coords: axis name to the names along it. The axis ``"site"`` holds hook names.
        layers: hook name to layer number, see ``Site``: 0 for the embedding, and for heads the number of their block.
        metadata: conditions of the numbers: parameters, number of examples, versions.
        notes: why a value is NaN, and other caveats.

    Raises:
        InputError: for a measure whose shape does not fit its axes, an axis without coordinates, a site without a
            layer, a value that is no tensor, a name that is no text, and a head or step that is no number.

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

    def __post_init__(self) -> None:
        if self.values.keys() != self.axes.keys():
            raise InputError(
                f"values has {', '.join(self.values) or 'nothing'} and axes {', '.join(self.axes) or 'nothing'}; "
                "expected the axes of each measure, () for a single number"
            )
        if isinstance(self.notes, str):
            raise InputError(f"notes is the text {self.notes!r}; expected a list of texts")
        for axis, names in self.coords.items():
            _check_names(axis, names)
        for name, tensor in self.values.items():
            if not isinstance(tensor, Tensor):
                raise InputError(f"{name!r} is a {type(tensor).__name__}; expected a tensor: give torch.tensor(...)")
            for axis in self.axes[name]:
                if axis not in self.coords:
                    raise InputError(
                        f"{name!r} has the axis {axis!r}, but coords has {', '.join(self.coords) or 'none'}; "
                        "give names along every axis"
                    )
                if self.axes[name].count(axis) > 1:
                    raise InputError(f"{name!r} has the axis {axis!r} twice; call one of them other_{axis}, say")
            expected = tuple(len(self.coords[axis]) for axis in self.axes[name])
            if tuple(tensor.shape) != expected:
                raise InputError(
                    f"{name!r} has shape {tuple(tensor.shape)}; expected {expected} for axes {self.axes[name]}"
                )
        for site in self.coords.get("site", ()):
            if site not in self.layers:
                raise InputError(f"site {site!r} has no layer (layers has {', '.join(self.layers) or 'none'})")
        on_cpu = {name: tensor.detach().cpu() for name, tensor in self.values.items()}
        object.__setattr__(self, "values", on_cpu)

    def __getitem__(self, measure: str) -> AnyTensor:
        if measure not in self.values:
            raise KeyError(
                f"no measure {measure!r} in this {self.probe} result{error_suggestion(measure, self.values)}"
            )
        return self.values[measure]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def __contains__(self, measure: object) -> bool:
        return measure in self.values

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.values)

    def sel(self, measure: str, **at: str | int) -> AnyTensor:
        """Return the part of a measure at the named coordinates.

        Args:
            measure: name of the measure.
            at: the name along each axis to fix, such as ``site="hook_embed"`` or ``head=3``. Or ``layer``, the number
                of a site's layer (see ``layers``), if only one site has it.

        Raises:
            InputError: for an axis or name that the measure does not have, and a layer of no site or of several.

        Example:
            >>> import torch
            >>> result = ProbeResult("Demo", {"score": torch.tensor([0.5, 0.7])}, {"score": ("site",)},
            ...                      {"site": ["hook_embed", "blocks.0.hook_resid_post"]},
            ...                      {"hook_embed": 0, "blocks.0.hook_resid_post": 1})
            >>> result.sel("score", layer=1)
            tensor(0.7000)
        """
        return self._sel(measure, self._places(measure, at))

    def _places(self, measure: str, at: Mapping[str, str | int]) -> dict[str, str]:
        """Return names along axes, with a layer replaced by the site that has it."""
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

    def _sel(self, measure: str, at: Mapping[str, str]) -> AnyTensor:
        tensor = self[measure]
        axes = self.axes[measure]
        for axis, name in at.items():
            if axis not in axes:
                known = [*axes, "layer"] if "site" in axes else [*axes] or ["none"]
                raise InputError(f"no axis {axis!r} in {measure!r}{error_suggestion(axis, known)}")
            if name not in self.coords[axis]:
                raise InputError(f"no {axis} {name!r} in {measure!r}{error_suggestion(name, self.coords[axis])}")
        return tensor[tuple(self.coords[axis].index(at[axis]) if axis in at else slice(None) for axis in axes)]

    def plot(self, measure: str | None = None, *, ax: Axes | None = None, **at: str | int) -> Any:
        """Draw a measure with matplotlib, as curves, a map of heads or a matrix of sites, depending on its axes.

        By layer: a curve for each label, bucket or model, with its interval and a hatched chance band. By head: a map,
        with a dot if the value is within the chance band, or with a legend if values have names. Site by site: a
        matrix, as for CKA. Axes beyond these make panels.

        Args:
            measure: by default the first whose values have names, or else that has a chance band, or else that can be
                drawn.
            ax: where to draw a single panel, by default a new figure.
            at: coordinates to fix, as in ``sel``.

        Returns:
            The axes, for further drawing: one, or an array of them for several panels.

        Raises:
            InputError: for a measure without an axis to draw along, and for too many curves or panels.

        Example:
            >>> import torch
            >>> result = ProbeResult("Demo", {"score": torch.tensor([0.5, 0.7])}, {"score": ("site",)},
            ...                      {"site": ["hook_embed", "blocks.0.hook_resid_post"]},
            ...                      {"hook_embed": 0, "blocks.0.hook_resid_post": 1})
            >>> axes = result.plot()  # doctest: +SKIP
            >>> axes.figure.savefig("score.pdf")  # doctest: +SKIP
        """
        first_of_sites = next((name for name, axes in self.axes.items() if "site" in axes), "")
        places = self._places(measure or first_of_sites, at)
        name = measure or first_measure_to_plot(self, places)
        self._sel(name, places)
        return plot(self, name, places, ax)

    def top_heads(self, measure: str, k: int = 4, *, smallest: bool = False, **at: str | int) -> list[Head]:
        """Return the ``k`` heads with the largest values of a measure, best first, without heads whose value is NaN.

        Args:
            measure: one with the axes site and head.
            k: number of heads, if there are so many.
            smallest: return the heads with the smallest values instead.
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
        check_count(k=(k, 1))
        places = self._places(measure, at)
        tensor = self._sel(measure, places)
        left = [axis for axis in self.axes[measure] if axis not in places]
        if set(left) != {"site", "head"}:
            if not {"site", "head"} <= set(self.axes[measure]):
                way = "choose a measure of heads"
            elif {"site", "head"} <= set(left):
                way = "fix the others, as in sel()"
            else:
                way = "do not fix site, layer or head"
            raise InputError(f"{measure!r} leaves the axes ({', '.join(left)}); expected (site, head): {way}")
        by_site = tensor if left[0] == "site" else tensor.T
        heads = []
        for site, values in zip(self.coords["site"], by_site.tolist(), strict=True):
            for head, value in zip(self.coords["head"], values, strict=True):
                if not isnan(value):
                    heads.append(Head(self.layers[site], int(head), float(value)))
        return sorted(heads, key=attrgetter("value"), reverse=not smallest)[:k]

    def merge(self, other: ProbeResult) -> ProbeResult:
        """Return one result of two that measured equal examples at different coordinates of one axis.

        Two jobs that measured different layers are an example. Results of different *examples* cannot be merged. Merge
        the probes' states instead: ``save_state`` in each job, then ``load_state``, ``merge`` and ``compute``.

        Raises:
            InputError: for results that do not merge, with the reason.

        Example:
            >>> import torch
            >>> def at(site, layer):
            ...     return ProbeResult("Demo", {"ari": torch.tensor([0.1 * layer])}, {"ari": ("site",)},
            ...                        {"site": [site]}, {site: layer})
            >>> at("blocks.0.hook_resid_post", 1).merge(at("hook_embed", 0)).coords["site"]
            ['hook_embed', 'blocks.0.hook_resid_post']
        """
        return replace(self, **merge_results(self, other))

    def to_dataframe(self) -> pd.DataFrame:
        """Return a row for each number, with equal columns for every probe, so that frames of probes stack.

        The columns are ``probe, measure, site, layer, other_site, head, label, step, coords, value``. A column whose
        axis a measure lacks is missing (``NA``). Axes without a column are in ``coords``, as
        ``"similarity=cosine, bucket=same"``. Layer, head and step are integers.
        """
        return result_dataframe(self)

    def to_xarray(self) -> xr.Dataset:
        """Return the measures as variables of a data set, with the result's axes and coordinates.

        Along ``site`` there is a second coordinate, ``layer``. Layer, head and step are integers. The attributes are
        ``probe``, ``notes``, and ``metadata`` as JSON. A measure with the name of an axis gets an underscore behind it.
        Needs ``pip install "mechclust[xarray]"``.

        Raises:
            InputError: if xarray is not installed.

        Example:
            >>> import torch
            >>> result = ProbeResult("Demo", {"score": torch.tensor([0.5])}, {"score": ("site",)},
            ...                      {"site": ["hook_embed"]}, {"hook_embed": 0})
            >>> float(result.to_xarray()["score"].sel(site="hook_embed"))  # doctest: +SKIP
            0.5
        """
        return result_dataset(self)

    def __repr__(self) -> str:
        used = result_field_axes(self)
        along = f" by {', '.join(f'{len(self.coords[axis])} {axis}' for axis in used)}" if used else ""
        names = ", ".join(islice(self.values, _MEASURES_IN_REPR)) or "no measure"
        more = len(self.values) - _MEASURES_IN_REPR
        others = f" and {more} more" if more > 0 else ""
        return f"ProbeResult({self.probe}: {names}{others}{along}; print() shows them)"

    def _repr_html_(self) -> str:
        return result_html(self)

    def __str__(self) -> str:
        return result_text(self)

    def save(self, path: str | Path) -> None:
        """Write the result as one safetensors file, atomically, with all but the tensors as JSON in its header.

        Below a folder ``results`` the header also records the file's place, see ``result_place``.
        """
        place = result_place(path)
        write_safetensors(path, self.values, {**self._header(), **({"place": place} if place else {})})

    def to_bytes(self) -> bytes:
        """Return the bytes of the file that ``save`` writes."""
        file = BytesIO()
        dump_tensors(file, self.values, self._header())
        return file.getvalue()

    def _header(self) -> dict[str, str]:
        meta = {
            "probe": self.probe,
            "axes": {name: list(self.axes[name]) for name in self.values},  # in order, since tensors lose theirs
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
    if header.get("format") != _FORMAT:
        way = ""
        if header.get("format", "").startswith("mechclust-probe-state"):
            way = f"; it holds the state of {header.get('probe', 'a probe')}: build that, load_state it and compute()"
        raise InputError(f"{str(path)!r} is not a probe result; expected a file from ProbeResult.save{way}")
    try:
        meta = json.loads(header["result"])
        return ProbeResult(
            probe=meta["probe"],
            values={name: tensors[name] for name in sorted(tensors, key=list(meta["axes"]).index)},
            axes={name: tuple(axes) for name, axes in meta["axes"].items()},
            coords=meta["coords"],
            layers=meta["layers"],
            metadata=meta["metadata"],
            notes=meta["notes"],
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:  # InputError is a ValueError
        raise InputError(f"{str(path)!r} is a damaged probe result ({error}); measure it again") from None
