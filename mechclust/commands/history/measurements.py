"""Measurements of a series of checkpoints, from which tables, readings and figures are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from jaxtyping import UInt8
from torch import Tensor

from mechclust.commands.history.config import HistoryConfig
from mechclust.commands.history.curves import TESTED, TITLES, Curve, crossings
from mechclust.commands.history.integrity import Defect, flagged_checkpoints
from mechclust.commands.history.planes import FixedPlanes
from mechclust.commands.history.series import Checkpoint
from probes import ProbeResult

if TYPE_CHECKING:
    import pandas as pd

PatternBytes = UInt8[Tensor, "layer head query key"]
"""Attention in bytes: 255 is 1."""


@dataclass(frozen=True, eq=False, repr=False)
class Measurements:
    """Measurements of a series of checkpoints, with the attributes of ``HistoryResult``."""

    model: str
    config: HistoryConfig
    series: Sequence[Checkpoint]
    findings: Sequence[Defect]
    results: Mapping[str, ProbeResult]
    curves: Mapping[str, Curve]
    planes: FixedPlanes | None
    attention: Sequence[Mapping[int, PatternBytes]]
    words: Mapping[int, Sequence[str]]
    input_notes: Sequence[str]
    starts_random: bool

    @property
    def names(self) -> list[str]:
        """The names of the checkpoints."""
        return [checkpoint.name for checkpoint in self.series]

    @property
    def flagged(self) -> set[int]:
        """Positions of the checkpoints with findings."""
        return flagged_checkpoints(self.findings)

    @property
    def right(self) -> list[int]:
        """Positions of the checkpoints without findings."""
        return [i for i in range(len(self.series)) if i not in self.flagged]

    @property
    def first(self) -> str:
        """The name of the first checkpoint without findings."""
        return self.names[min(self.right, default=0)]

    @property
    def tested(self) -> dict[str, Curve]:
        """The curves whose crossings of chance are found, by name."""
        return {name: self.curves[name] for name in TESTED if name in self.curves}

    @property
    def summarised(self) -> dict[str, Curve]:
        """The curves that have a column in ``HistoryResult.shown_table``: of other probes, the first."""
        names = [name for name in TITLES if name in self.curves]
        for probe in self.config.others:
            names += [name for name in self.curves if name.startswith(f"{probe}_")][:1]
        return {name: self.curves[name] for name in names}

    @cached_property
    def crossings(self) -> pd.DataFrame:
        """When each layer crosses chance, see ``curves.crossings``."""
        import pandas as pd

        tables = [crossings(curve, self.names, self.right) for curve in self.tested.values()]
        return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()

    def crossings_of(self, curve: Curve) -> pd.DataFrame:
        """Return the rows of ``crossings`` about one measure. Their index is the layer's place in the curve."""
        return self.crossings[self.crossings["measure"] == curve.name].reset_index(drop=True)
