"""What a probe found: named tensors with named axes."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from tasks import InputError

if TYPE_CHECKING:
    import pandas as pd

_FORMAT = "mechclust-result-1"


@dataclass(frozen=True)
class ProbeResult:
    """Numbers with their meaning.

    Attributes:
        probe: name of the probe's class.
        values: measure name to tensor.
        axes: measure name to the names of its tensor's axes.
        coords: axis name to the names along it. The axis ``"site"`` holds hook names.
        layers: hook name to layer number (0 the embedding).
        metadata: what the numbers depend on: parameters, number of examples, versions.
        notes: why a value is NaN, and what else a reader must know.

    Example:
        >>> import torch
        >>> result = ProbeResult("Demo", {"score": torch.tensor([0.5])}, {"score": ("site",)},
        ...                      {"site": ["hook_embed"]}, {"hook_embed": 0})
        >>> result["score"].tolist()
        [0.5]
    """

    probe: str
    values: Mapping[str, Tensor]
    axes: Mapping[str, tuple[str, ...]]
    coords: Mapping[str, list[str]]
    layers: Mapping[str, int] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, tensor in self.values.items():
            expected = tuple(len(self.coords[axis]) for axis in self.axes[name])
            if tuple(tensor.shape) != expected:
                raise InputError(
                    f"{name!r} has shape {tuple(tensor.shape)}; expected {expected} for axes {self.axes[name]}"
                )

    def __getitem__(self, measure: str) -> Tensor:
        if measure not in self.values:
            raise KeyError(f"no measure {measure!r} in this {self.probe} result (it has {', '.join(self.values)})")
        return self.values[measure]

    def sel(self, measure: str, **at: str) -> Tensor:
        """The part of a measure at the named coordinates, e.g. ``sel("ari", label="task")``."""
        tensor = self[measure]
        for axis, name in at.items():
            if axis not in self.axes[measure] or name not in self.coords[axis]:
                known = axis in self.axes[measure]
                have = ", ".join(self.coords[axis]) if known else f"axes {', '.join(self.axes[measure])}"
                raise InputError(f"no {axis} {name!r} in {measure!r} (it has {have})")
        place = tuple(self.coords[axis].index(at[axis]) if axis in at else slice(None) for axis in self.axes[measure])
        return tensor[place]

    def to_dataframe(self) -> pd.DataFrame:
        """One row a number: ``probe, measure, site, layer``, then the other axes, then ``value``."""
        import pandas as pd

        others = [a for axes in self.axes.values() for a in axes if a != "site"]
        columns = ["probe", "measure", "site", "layer", *dict.fromkeys(others), "value"]
        rows = []
        for measure, tensor in self.values.items():
            names = [self.coords[axis] for axis in self.axes[measure]]
            for place, value in zip(product(*names), tensor.flatten().tolist(), strict=True):
                row = {"probe": self.probe, "measure": measure, "value": value}
                row.update(zip(self.axes[measure], place, strict=True))
                if "site" in row:
                    row["layer"] = self.layers[str(row["site"])]
                rows.append(row)
        return pd.DataFrame(rows, columns=columns)

    def _repr_html_(self) -> str:
        table: str = self.to_dataframe().to_html(index=False)
        return table + "".join(f"<p>Note: {html.escape(note)}</p>" for note in self.notes)

    def save(self, path: str | Path) -> None:
        """Write one safetensors file with the rest as JSON in its header, atomically."""
        meta = {
            "probe": self.probe,
            "axes": {k: list(v) for k, v in self.axes.items()},
            "coords": dict(self.coords),
            "layers": dict(self.layers),
            "metadata": dict(self.metadata),
            "notes": list(self.notes),
        }
        tensors = {k: v.contiguous() for k, v in self.values.items()}
        write_atomic(path, save(tensors, {"format": _FORMAT, "result": json.dumps(meta)}))

    @classmethod
    def load(cls, path: str | Path) -> ProbeResult:
        """Read what ``save`` wrote.

        Raises:
            InputError: for a file that is missing, damaged, or not a probe result.
        """
        tensors, header = read_safetensors(path)
        if header.get("format") != _FORMAT:
            raise InputError(f"{str(path)!r} is not a probe result; expected a file from ProbeResult.save")
        meta = json.loads(header["result"])
        return cls(
            probe=meta["probe"],
            values=tensors,
            axes={k: tuple(v) for k, v in meta["axes"].items()},
            coords=meta["coords"],
            layers=meta["layers"],
            metadata=meta["metadata"],
            notes=meta["notes"],
        )


def write_atomic(path: str | Path, data: bytes) -> None:
    """Write ``data`` so that ``path`` holds the old bytes or the new ones, never half of them."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_safetensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and header of a safetensors file.

    Raises:
        InputError: when it is missing or damaged.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            names: Iterable[str] = file.keys()
            return {k: file.get_tensor(k) for k in names}, file.metadata() or {}
    except FileNotFoundError:
        raise InputError(f"no file {str(path)!r}; give the path of a safetensors file") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{str(path)!r} is truncated or not a safetensors file ({error})") from None


def versions() -> dict[str, str]:
    """Versions of what numbers depend on, for metadata."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in ("mechclust", "torch", "transformer-lens", "scikit-learn", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
