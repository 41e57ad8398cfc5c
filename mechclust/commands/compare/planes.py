"""Place base and tuned model's prompts in the plane of each layer, for the map in the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from mechclust.commands.compare.inputs import Inputs
from mechclust.commands.sampling import draw_prompts, prompts_at
from mechclust.jobs import progress_bar
from mechclust.report.prompt_map import prompt_map
from probes import RowStore, residual, resolve
from probes.functional.planes import aligned_planes


@dataclass(frozen=True)
class PromptPlanes:
    """Coordinates of prompts in the plane of each layer, of the base and of the tuned model.

    Attributes:
        xy: by model. The tuned model's planes are turned to fit the base's.
        variance: by model, the share of each layer's variance that its plane holds.
        layers: by model, the layers' numbers.
        texts: the prompts.
        labels: by label of the prompts' file, a value per prompt, with the task first.
        n: number of measured prompts, from which these are drawn.
    """

    xy: Mapping[str, Float[np.ndarray, "_ prompts 2"]]
    variance: Mapping[str, Sequence[float]]
    layers: Mapping[str, Sequence[int]]
    texts: Sequence[str]
    labels: Mapping[str, Sequence[str]]
    n: int

    def html(self) -> str:
        """Draw the map, base and tuned side by side."""
        caption = (
            "Hidden states in the plane of each layer's two leading principal directions. The base's planes are turned "
            "to fit the layer before, the tuned model's to fit the base's at the same layer; each is scaled to its "
            "frame."
        )
        if len(self.texts) < self.n:
            caption += f" {len(self.texts):,} of {self.n:,} prompts, drawn at random."
        points = prompt_map(self.xy, self.layers, self.texts, self.labels, variance=self.variance)
        return f'<p class="small">{escape(caption)}</p>{points}'


def prompt_planes(
    pair: Mapping[str, RowStore], inputs: Inputs, most: int, *, progress: bool = False
) -> PromptPlanes | None:
    """Find the planes of both models' layers, of at most ``most`` prompts. Return ``None`` for 0.

    Each plane of the tuned model is turned to fit the base's at that layer, so that the two can be compared by eye.

    Memory: one layer's rows of one model.
    """
    if most < 2:
        return None
    index = draw_prompts(pair["base"].index, most)
    layers = {name: [site.layer for site in resolve(pair[name], residual())] for name in ("base", "tuned")}
    base = aligned_planes(_rows(pair["base"], index, "base", progress))
    tuned_rows = _rows(pair["tuned"], index, "tuned", progress)
    tuned = [aligned_planes([rows], start=xy) for rows, xy in zip(tuned_rows, base.xy, strict=True)]
    shown = prompts_at(inputs.prompts, index.tolist())
    return PromptPlanes(
        xy={"base": base.xy, "tuned": np.concatenate([plane.xy for plane in tuned])},
        variance={"base": base.variance.tolist(), "tuned": [float(plane.variance[0]) for plane in tuned]},
        layers=layers,
        texts=shown.prompts,
        labels={"task": shown.labels["task"], **shown.labels},
        n=len(pair["base"]),
    )


def _rows(
    store: RowStore, index: Int[Tensor, "prompts"], name: str, progress: bool
) -> Iterator[Shaped[Tensor, "prompts d"]]:
    """Yield rows layer by layer."""
    sites = resolve(store, residual())
    for site in progress_bar(sites, desc=f"map of {name}", unit="layer", disable=not progress):
        yield store.take(index, [f"rows/{site.name}"])[f"rows/{site.name}"]
