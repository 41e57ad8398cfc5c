"""What a run of the method's origin measured, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mechclust.studies.kept import check_there
from mechclust.studies.mossa.config import MossaConfig
from mechclust.studies.mossa.origin.jobs import Cell, OriginJob, cells_of
from probes import load_result

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class OriginResults:
    """What one seed measured: mean canonical correlations on the test prompts of each domain. Layers count from 1.

    Attributes:
        cells: shapes and data sizes, those of all widths first.
        reference: index of the reference among them.
        svcca: ``[cell domain control layer]`` of the model of all domains with the control of each domain.
        chance: ``[cell domain layer]`` with the domain's own control, for randomly paired rows.
        ceiling: of two controls of the domain; NaN if there is only one.
        n_dims: number of directions that hold 99% of the variance, in the model of all domains.
        accuracy: ``[cell domain model]`` of the model of all domains and of the domain's own control.
        notes: why a number is NaN.
    """

    cells: tuple[Cell, ...]
    reference: Cell
    svcca: np.ndarray
    chance: np.ndarray
    ceiling: np.ndarray
    n_dims: np.ndarray
    accuracy: np.ndarray
    notes: tuple[str, ...] = ()

    @property
    def own(self) -> np.ndarray:
        """``[cell domain layer]`` with the domain's own control."""
        return np.moveaxis(np.diagonal(self.svcca, axis1=1, axis2=2), -1, 1)

    @property
    def others(self) -> np.ndarray:
        """``[cell domain layer]`` mean over the controls of the other domains."""
        n = self.svcca.shape[2]
        return (self.svcca.sum(axis=2) - self.own) / (n - 1)  # type: ignore[no-any-return]

    @property
    def widths(self) -> list[int]:
        """The cells of all widths, with the reference's data."""
        return [i for i, cell in enumerate(self.cells) if cell.size == self.reference.size]

    @property
    def sizes(self) -> list[int]:
        """The cells of all data sizes, at the reference's width, smallest first."""
        own = [i for i, cell in enumerate(self.cells) if cell.width == self.reference.width]
        return sorted(own, key=lambda i: self.cells[i].size)

    @property
    def at_reference(self) -> int:
        return self.cells.index(self.reference)

    def per_doubling(self, curve: np.ndarray, along: str) -> float:
        """Slope of ``curve`` ``[cell]`` over log2 of the width or the data size.

        Args:
            curve: one number for each cell.
            along: ``"widths"`` or ``"sizes"``. With a single value the slope is NaN.
        """
        chosen = self.widths if along == "widths" else self.sizes
        if len(chosen) < 2:
            return math.nan
        x = np.log2([self.cells[i].width if along == "widths" else self.cells[i].size for i in chosen])
        return float(((x - x.mean()) * curve[chosen]).sum() / ((x - x.mean()) ** 2).sum())

    def next_controls(self) -> OriginResults:
        """Return the results with each domain compared with the next domain's control as if it were its own."""
        return replace(self, svcca=np.roll(self.svcca, -1, axis=2))


def load_origin_results(config: MossaConfig, out: Path, seed: int) -> OriginResults:
    """Read what a seed's jobs measured.

    Raises:
        InputError: if a measurement is missing; the text names it.
    """
    cells = cells_of(config)
    paths = [OriginJob("compare", seed, cell).result_path(out) for cell in cells]
    check_there(out, paths)
    found = [load_result(path) for path in paths]

    def all_cells(name: str) -> np.ndarray:
        return np.stack([result[name].numpy() for result in found])

    chance = all_cells("chance")
    return OriginResults(
        cells=tuple(cells),
        reference=Cell(config.origin.width, 1.0),
        svcca=all_cells("svcca"),
        chance=chance,
        ceiling=all_cells("ceiling") if config.origin.ceiling else np.full_like(chance, np.nan),
        n_dims=all_cells("n_dims"),
        accuracy=all_cells("accuracy"),
        notes=tuple(
            f"seed {seed}, {cell.name}: {note}"
            for cell, result in zip(cells, found, strict=True)
            for note in result.notes
        ),
    )


def cells_table(found: Sequence[OriginResults]) -> pd.DataFrame:
    """One row per cell and layer: means over domains and seeds."""
    import pandas as pd

    def mean(values: Sequence[np.ndarray]) -> np.ndarray:
        return np.mean([each.mean(axis=1) for each in values], axis=0)  # type: ignore[no-any-return]

    columns = {
        "own control": mean([m.own for m in found]),
        "other controls": mean([m.others for m in found]),
        "ceiling": mean([m.ceiling for m in found]),
        "chance": mean([m.chance for m in found]),
        "directions": mean([m.n_dims for m in found]),
    }
    right = mean([m.accuracy for m in found])
    rows = [
        {
            "width": cell.width,
            "data": cell.size,
            "layer": layer + 1,
            **{name: values[i, layer] for name, values in columns.items()},
            "accuracy, all domains": right[i, 0],
            "accuracy, control": right[i, 1],
        }
        for i, cell in enumerate(found[0].cells)
        for layer in range(found[0].chance.shape[2])
    ]
    return pd.DataFrame(rows)
