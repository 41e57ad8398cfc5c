"""Hidden states in two dimensions, to look at."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from jaxtyping import Float

from probes.engine.labelled_rows import LabelledRows, check_max_labelled_rows
from probes.engine.readout import Readout, check_row_readout, token_at
from probes.engine.result import ProbeResult
from probes.engine.sites import Sites, residual
from probes.functional.projection import check_open_tsne, open_tsne_2d, project_2d
from tasks import InputError
from tasks.settings import check_choice


class Projection(LabelledRows):
    """A 2-D projection of the hidden states at each site.

    Measures:
        ``xy`` (site, example, dimension): coordinates, in arbitrary units.
        ``label`` (example): the examples' labels.

    Memory: up to ``max_rows`` rows per site.

    Args:
        label: the label to carry along, for colours.
        at: where to measure.
        readout: which position.
        method: ``"tsne"`` (scikit-learn's, from a PCA start), ``"opentsne"`` (openTSNE's, faster above about 5,000
            examples, on the first 50 principal components, ``pip install "mechclust[tsne]"``) or ``"pca"``.
        max_rows: most examples, chosen by their index.
        seed: for t-SNE.

    Raises:
        InputError: for fewer than 4 examples, a label given per token, or ``"opentsne"`` if it is not installed.

    Example:
        >>> Projection(method="pca")
        Projection(label='task', at=residual(), readout=token_at('input'), method='pca', max_rows=500, seed=0)
    """

    def __init__(
        self,
        label: str = "task",
        at: Sites = residual(),
        readout: Readout = token_at("input"),
        method: Literal["tsne", "opentsne", "pca"] = "tsne",
        max_rows: int | None = 500,
        seed: int = 0,
    ) -> None:
        check_choice(method=(method, ("tsne", "opentsne", "pca")))
        if method == "opentsne":
            check_open_tsne()
        check_max_labelled_rows(max_rows, 4)
        super().__init__(at, check_row_readout(readout))
        self.label = label
        self.method = method
        self.max_rows = max_rows
        self.seed = seed

    def _labels_to_keep(self) -> list[str | None]:
        return [self.label]

    def compute(self) -> ProbeResult:
        """Return the coordinates of all examples kept."""
        index, classes = self.classes.get(self.label)
        if len(index) < 4:
            raise InputError(f"{len(index)} examples cannot be projected; give at least 4")
        projected = {site: self._project(self.hidden.get(site)[1].float().numpy()) for site in self.site_names}
        xy = [torch.from_numpy(points) for points, _ in projected.values()]
        return self.result(
            {"xy": torch.stack(xy), "label": classes},
            {"xy": ("site", "example", "dimension"), "label": ("example",)},
            {"example": [str(int(i)) for i in index], "dimension": ["1", "2"]},
            metadata={"n": len(index), "method": self.method},
            notes=[
                f"{site}: PCA instead of {self.method}, as the states are a few points many times over"
                for site, (_, method) in projected.items()
                if method != self.method
            ],
        )

    def _project(self, rows: Float[np.ndarray, "row dim"]) -> tuple[Float[np.ndarray, "row 2"], str]:
        """Return coordinates and the method that gave them."""
        rows = rows - rows.mean(axis=0)
        # If the states repeat a few points (layer 0), PCA shows these points, and t-SNE does not. One point crashes it.
        if self.method != "pca" and len(np.unique(rows, axis=0)) > max(1, len(rows) // 10):
            project = project_2d if self.method == "tsne" else open_tsne_2d
            return project(rows, self.seed).astype(np.float32), self.method
        _, _, directions = np.linalg.svd(rows, full_matrices=False)
        return (rows @ directions[:2].T).astype(np.float32), "pca"
