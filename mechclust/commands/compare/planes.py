"""Base and tuned model's prompts in the plane of each layer, for the map in the report of ``mechclust compare``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from jaxtyping import Float
from torch import Tensor

from mechclust.commands.compare.draw import drawn
from mechclust.commands.compare.inputs import Inputs
from mechclust.jobs import progress_bar
from mechclust.report.prompt_map import prompt_map
from probes import RowStore, residual, resolve
from probes.engine.sites import Site
from probes.functional.planes import aligned_planes


@dataclass(frozen=True)
class PromptPlanes:
    """Where prompts lie in the plane of each layer, of the base and of the tuned model.

    Attributes:
        xy: by model ``[layers prompts 2]``; the tuned model's planes are turned to fit the base's.
        variance: by model, the share of each layer's variance that its plane holds.
        layers: by model, the layers' numbers.
        texts: the prompts.
        labels: by label of the prompts' file, a value per prompt; the task first.
        n: how many prompts were measured, from which these are drawn.
    """

    xy: Mapping[str, Float[np.ndarray, "_ prompts 2"]]
    variance: Mapping[str, Sequence[float]]
    layers: Mapping[str, Sequence[int]]
    texts: Sequence[str]
    labels: Mapping[str, Sequence[str]]
    n: int

    def html(self) -> str:
        """The map, base and tuned side by side."""
        alike = self.layers["base"] == self.layers["tuned"]
        fit = "the base's at the same layer" if alike else "the layer before, the first one the base's"
        few = f" {len(self.texts):,} of {self.n:,} prompts, drawn at random." if len(self.texts) < self.n else ""
        caption = (
            "Hidden states in the plane of each layer's two leading principal directions. The base's planes are turned "
            f"to fit the layer before, the tuned model's to fit {fit}; each is scaled to its frame.{few}"
        )
        return f'<p class="small">{escape(caption)}</p>' + prompt_map(
            self.xy, self.layers, self.texts, self.labels, variance=self.variance
        )


def prompt_planes(
    pair: Mapping[str, RowStore], inputs: Inputs, most: int, *, progress: bool = False
) -> PromptPlanes | None:
    """The planes of both models' layers, of at most ``most`` prompts; nothing for 0.

    Where the layers are the same, each plane of the tuned model is turned to fit the base's at that layer, so that the
    two can be compared by eye; otherwise its first one is, and each one after that fits the one before.

    Memory: one layer's rows of one model.
    """
    if most < 2:
        return None
    index = drawn(pair["base"].index, most)
    sites = {name: resolve(pair[name], residual()) for name in ("base", "tuned")}
    base = aligned_planes(_rows(pair["base"], sites["base"], index, "base", progress))
    rows = _rows(pair["tuned"], sites["tuned"], index, "tuned", progress)
    if sites["base"] == sites["tuned"]:
        parts = [aligned_planes([x], start=xy) for x, xy in zip(rows, base.xy, strict=True)]
        xy, variance = np.concatenate([part.xy for part in parts]), np.concatenate([part.variance for part in parts])
    else:
        tuned = aligned_planes(rows, start=base.xy[0])
        xy, variance = tuned.xy, tuned.variance
    prompts, places = inputs.prompts, index.tolist()
    names = sorted(prompts.labels, key=lambda name: name != "task")
    return PromptPlanes(
        xy={"base": base.xy, "tuned": xy},
        variance={"base": base.variance.tolist(), "tuned": variance.tolist()},
        layers={name: [site.layer for site in found] for name, found in sites.items()},
        texts=[prompts.prompts[i] for i in places],
        labels={name: [prompts.labels[name][i] for i in places] for name in names},
        n=len(pair["base"]),
    )


def _rows(store: RowStore, sites: Sequence[Site], index: Tensor, name: str, progress: bool) -> Iterator[Tensor]:
    """Layer by layer."""
    for site in progress_bar(sites, desc=f"map of {name}", unit="layer") if progress else sites:
        yield store.take(index, [f"rows/{site.name}"])[f"rows/{site.name}"]
