"""The models that the method's origin trains and measures, and the paths of their artefacts."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from mechclust.studies.mossa.config import MossaConfig


class Cell(NamedTuple):
    """A model of all domains and its controls, with one shape and one data size."""

    width: int
    size: float

    @property
    def name(self) -> str:
        """Its name in file names.

        Example:
            >>> Cell(64, 0.5).name
            'width64-data0.5'
        """
        return f"width{self.width}-data{self.size:g}"


class OriginJob(NamedTuple):
    """One model to train, or the models of a cell to measure."""

    kind: str  # experimental, control, compare
    seed: int
    cell: Cell
    domain: str = ""
    again: bool = False

    @property
    def name(self) -> str:
        """Its name in progress bars and reports."""
        return f"{self._file}-{self.cell.name}-seed{self.seed}"

    @property
    def stage(self) -> int:
        """The number of its stage: comparisons wait for all models."""
        return {"experimental": 0, "control": 0, "compare": 1}[self.kind]

    def model_path(self, out: Path) -> Path:
        """Return the path of its model."""
        return out / "models" / f"seed{self.seed}" / self.cell.name / f"{self._file}.safetensors"

    def result_path(self, out: Path) -> Path:
        """Return the path of its measurement."""
        return out / "results" / f"seed{self.seed}" / f"{self.cell.name}.safetensors"

    @property
    def _file(self) -> str:
        parts = (self.kind, self.domain, "again" if self.again else "")
        return "-".join(part for part in parts if part)


def cells_of(config: MossaConfig) -> list[Cell]:
    """Return every width with the reference's data, then every other data size at the reference's width."""
    origin = config.origin
    widths = [Cell(width, 1.0) for width in sorted(origin.widths)]
    return widths + [Cell(origin.width, float(size)) for size in sorted(origin.sizes) if size != 1]


def models_of(config: MossaConfig, seed: int, cell: Cell) -> list[OriginJob]:
    """Return the models of a cell: of all domains, each domain's control, and its second control if there is one."""
    domains = config.origin.domains
    models = [OriginJob("experimental", seed, cell)]
    models += [OriginJob("control", seed, cell, domain) for domain in domains]
    if config.origin.ceiling:
        models += [OriginJob("control", seed, cell, domain, again=True) for domain in domains]
    return models


def origin_jobs(config: MossaConfig) -> list[OriginJob]:
    """Return every model and comparison, the longest first."""
    experimental = []
    controls = []
    comparisons = []
    for cell in sorted(cells_of(config), key=attrgetter("width"), reverse=True):
        for seed in config.seeds:
            of_domains, *single = models_of(config, seed, cell)
            experimental.append(of_domains)
            controls += single
            comparisons.append(OriginJob("compare", seed, cell))
    return experimental + controls + comparisons
