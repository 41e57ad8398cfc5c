"""The models that the method's origin trains and measures, and the paths of their artefacts."""

from __future__ import annotations

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
        """What progress bars and reports call it."""
        return f"{self._file}-{self.cell.name}-seed{self.seed}"

    @property
    def stage(self) -> int:
        """Comparisons wait for all models."""
        return {"experimental": 0, "control": 0, "compare": 1}[self.kind]

    def model_path(self, out: Path) -> Path:
        """The path of its model."""
        return out / "models" / f"seed{self.seed}" / self.cell.name / f"{self._file}.safetensors"

    def result_path(self, out: Path) -> Path:
        """The path of its measurement."""
        return out / "results" / f"seed{self.seed}" / f"{self.cell.name}.safetensors"

    @property
    def _file(self) -> str:
        return "-".join(filter(None, [self.kind, self.domain, "again" if self.again else ""]))


def cells_of(config: MossaConfig) -> list[Cell]:
    """Every width with the reference's data, then every other data size at the reference's width."""
    origin = config.origin
    widths = [Cell(width, 1.0) for width in sorted(origin.widths)]
    return widths + [Cell(origin.width, float(size)) for size in sorted(origin.sizes) if size != 1]


def models_of(config: MossaConfig, seed: int, cell: Cell) -> list[OriginJob]:
    """The models of a cell: that of all domains, each domain's control, and its second control if there is one."""
    times = (False, True) if config.origin.ceiling else (False,)
    controls = [OriginJob("control", seed, cell, domain, again) for again in times for domain in config.origin.domains]
    return [OriginJob("experimental", seed, cell), *controls]


def origin_jobs(config: MossaConfig) -> list[OriginJob]:
    """Every model and comparison; the longest first."""
    cells = sorted(cells_of(config), key=lambda cell: -cell.width)
    models = [job for cell in cells for seed in config.seeds for job in models_of(config, seed, cell)]
    models.sort(key=lambda job: job.kind != "experimental")
    return models + [OriginJob("compare", seed, cell) for cell in cells for seed in config.seeds]
