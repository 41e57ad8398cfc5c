"""Read the measurements of a run of the method's origin, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import einops
import numpy as np
from jaxtyping import Float

from mechclust.studies.kept import load_there
from mechclust.studies.mossa.config import MossaConfig
from mechclust.studies.mossa.origin.jobs import Cell, OriginJob, cells_of
from probes import ProbeResult

if TYPE_CHECKING:
    import pandas as pd

Sweep = Literal["widths", "sizes"]
ByCell = Float[np.ndarray, "cell domain layer"]


@dataclass(frozen=True)
class OriginResults:
    """Mean canonical correlations of one seed, on the test prompts of each domain. Layers count from 1.

    Attributes:
        cells: shapes and data sizes, first of all widths.
        reference: the cell of the reference.
        svcca: of the model of all domains with the control of each domain.
        chance: with the domain's control, for randomly paired rows.
        ceiling: of two controls of the domain, or NaN if there is only one.
        n_dims: number of directions that hold 99% of the variance, in the model of all domains.
        accuracy: of the model of all domains and of the domain's control.
        notes: why a number is NaN.
    """

    cells: tuple[Cell, ...]
    reference: Cell
    svcca: Float[np.ndarray, "cell domain control layer"]
    chance: ByCell
    ceiling: ByCell
    n_dims: ByCell
    accuracy: Float[np.ndarray, "cell domain model"]
    notes: tuple[str, ...] = ()

    @property
    def own(self) -> ByCell:
        """SVCCA with the domain's control."""
        return einops.rearrange(np.diagonal(self.svcca, axis1=1, axis2=2), "cell layer domain -> cell domain layer")

    @property
    def others(self) -> ByCell:
        """SVCCA with the controls of the other domains, mean over these."""
        n_controls = self.svcca.shape[2]
        total: ByCell = self.svcca.sum(axis=2)
        return (total - self.own) / (n_controls - 1)

    @property
    def at_reference(self) -> int:
        """The index of the reference's cell."""
        return self.cells.index(self.reference)

    def along(self, sweep: Sweep) -> dict[int, float]:
        """Return the cells of a sweep, by index, with their width or data size, from the smallest.

        Args:
            sweep: ``"widths"`` for all widths with the reference's data, ``"sizes"`` for all data sizes at its width.
        """
        values: dict[int, float] = {}
        for i, cell in enumerate(self.cells):
            if sweep == "widths" and cell.size == self.reference.size:
                values[i] = cell.width
            elif sweep == "sizes" and cell.width == self.reference.width:
                values[i] = cell.size
        return {i: values[i] for i in sorted(values, key=values.__getitem__)}

    def per_doubling(self, curve: Float[np.ndarray, "cell"], sweep: Sweep) -> float:
        """Return the slope of a number per cell over log2 of the width or the data size, or NaN for a single value."""
        values = self.along(sweep)
        if len(values) < 2:
            return math.nan
        x = np.log2(list(values.values()))
        x -= x.mean()
        return float((x * curve[list(values)]).sum() / (x**2).sum())

    def next_controls(self) -> OriginResults:
        """Return the results with the next domain's control in place of each domain's control."""
        return replace(self, svcca=np.roll(self.svcca, -1, axis=2))


def load_origin_results(config: MossaConfig, out: Path, seed: int) -> OriginResults:
    """Read the measurements of a seed.

    Raises:
        InputError: naming the measurement that is missing.
    """
    cells = cells_of(config)
    results = [load_there(out, OriginJob("compare", seed, cell).result_path(out)) for cell in cells]
    chance = _all_cells(results, "chance")
    notes = []
    for cell, result in zip(cells, results, strict=True):
        notes += [f"seed {seed}, {cell.name}: {note}" for note in result.notes]
    return OriginResults(
        cells=tuple(cells),
        reference=Cell(config.origin.width, 1.0),
        svcca=_all_cells(results, "svcca"),
        chance=chance,
        ceiling=_all_cells(results, "ceiling") if config.origin.ceiling else np.full_like(chance, np.nan),
        n_dims=_all_cells(results, "n_dims"),
        accuracy=_all_cells(results, "accuracy"),
        notes=tuple(notes),
    )


def _all_cells(results: Sequence[ProbeResult], measure: str) -> Float[np.ndarray, "cell domain ..."]:
    return np.stack([result[measure].numpy() for result in results])


def cells_table(runs: Sequence[OriginResults]) -> pd.DataFrame:
    """Return a row per cell and layer: means over domains and seeds."""
    import pandas as pd

    columns = {
        "own control": _mean([run.own for run in runs]),
        "other controls": _mean([run.others for run in runs]),
        "ceiling": _mean([run.ceiling for run in runs]),
        "chance": _mean([run.chance for run in runs]),
        "directions": _mean([run.n_dims for run in runs]),
    }
    accuracy = _mean([run.accuracy for run in runs])
    rows = []
    for i, cell in enumerate(runs[0].cells):
        for layer in range(runs[0].chance.shape[2]):
            row = {"width": cell.width, "data": cell.size, "layer": layer + 1}
            row |= {name: values[i, layer] for name, values in columns.items()}
            row |= {"accuracy, all domains": accuracy[i, 0], "accuracy, control": accuracy[i, 1]}
            rows.append(row)
    return pd.DataFrame(rows)


def _mean(by_seed: Sequence[Float[np.ndarray, "cell domain column"]]) -> Float[np.ndarray, "cell column"]:
    """Return the mean over domains and seeds."""
    of_domains = [values.mean(axis=1) for values in by_seed]
    return np.asarray(np.mean(of_domains, axis=0))
