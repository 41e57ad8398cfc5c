"""Hold the measurements of a comparison, and judge where and for which tasks the models differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from mechclust.commands.compare.config import CompareConfig
from mechclust.commands.compare.layer_verdict import LayerVerdict
from mechclust.commands.compare.output_verdict import LEAST_DIVERGENCE, OutputVerdict
from mechclust.commands.compare.planes import PromptPlanes
from mechclust.commands.compare.standing_out import common_layers, standing_out
from mechclust.report.text import ranges_text
from probes import ProbeResult


@dataclass(frozen=True, repr=False)
class Measurements:
    """Measurements of a tuned model and its base, with the attributes of ``CompareResult``."""

    base: str
    tuned: str
    config: CompareConfig
    tasks: Sequence[str]
    cka: ProbeResult
    blocks: ProbeResult | None = None
    patching: ProbeResult | None = None
    without_top_pc: ProbeResult | None = None
    families: tuple[str, ...] = ()
    notes: Sequence[str] = ()
    why_no_blocks: str = ""
    why_no_patching: str = ""
    tokenization: Mapping[str, Any] = field(default_factory=dict)
    planes: PromptPlanes | None = None

    @property
    def layer_numbers(self) -> list[int]:
        """Layers of the tuned model's sites."""
        return [self.cka.layers[site] for site in self.cka.coords["site"]]

    @property
    def judged_by(self) -> str:
        """CKA whose interval decides which layers changed."""
        return "CKA" if self.blocks is None else "block CKA"

    @cached_property
    def residual_verdict(self) -> LayerVerdict:
        """Verdict from the residual stream, in which later layers inherit change. All prompts are the first label."""
        return self._verdict(self.cka.__getitem__)

    @cached_property
    def verdict(self) -> LayerVerdict:
        """Verdict from each block's addition to the base's residual stream, if measured, else from the residual stream.

        The embedding, layer 0, has the same input in both models, so its verdict is the residual stream's.
        """
        if self.blocks is None:
            return self.residual_verdict
        return self._verdict(self.block_values)

    def _verdict(self, values_of: Callable[[str], Float[Tensor, "layer label"]]) -> LayerVerdict:
        change, low, high = (1 - values_of(f"debiased_cka{end}").numpy() for end in ("", "_high", "_low"))
        return LayerVerdict(change, low, high, self.config.tolerance)

    def block_values(self, measure: str) -> Float[Tensor, "layer label"]:
        """Return a measure of CKA between the blocks' additions, and of the embedding at layer 0."""
        values = self.cka[measure].clone()
        if self.blocks is not None:
            places = [self.cka.coords["site"].index(site) for site in self.blocks.coords["site"]]
            values[places] = self.blocks[measure]
        return values

    @cached_property
    def output_verdicts(self) -> dict[str, OutputVerdict]:
        """Return verdicts from patching by label, all prompts first, or none without patching.

        No layer matters to outputs that differ by ``LEAST_DIVERGENCE`` at most, of which a layer's share is rounding.
        """
        verdicts = {}
        if self.patching is not None:
            equal = (self.patching["divergence"] <= LEAST_DIVERGENCE).numpy()
            names = ("rise", "rise_low", "rise_high")
            rise, low, high = (np.where(equal, 0.0, self.patching[name].numpy()) for name in names)
            for k, label in enumerate(self.patching.coords["label"]):
                verdicts[label] = OutputVerdict(rise[:, k], low[:, k], high[:, k], self.config.least_restored)
        return verdicts

    @property
    def change(self) -> Float[np.ndarray, "layer task"]:
        """Return 1 - debiased CKA of the residual stream."""
        return self.residual_verdict.change[:, 1:]

    @property
    def interval(self) -> tuple[Float[np.ndarray, "layer task"], Float[np.ndarray, "layer task"]]:
        """Return the ends of the change's 95% interval over prompts, or NaN if there is none."""
        return self.residual_verdict.low[:, 1:], self.residual_verdict.high[:, 1:]

    @property
    def known(self) -> Bool[np.ndarray, "layer task"]:
        """Return whether it can be judged whether the layer changed."""
        return self.verdict.known[:, 1:]

    @property
    def changed(self) -> np.ma.MaskedArray:
        """Return by layer and task whether the layer changed, masked if there is no interval, see ``verdict``."""
        return self.verdict.changed[:, 1:]

    @property
    def changed_together(self) -> np.ma.MaskedArray:
        """Return by layer whether it changed for all prompts together."""
        return self.verdict.changed[:, 0]

    @property
    def changed_for_a_task(self) -> Bool[np.ndarray, "layer"]:
        """Return by layer whether it is known to have changed for at least one task."""
        return np.asarray(self.changed.filled(False).any(axis=1))

    @property
    def changed_only_together(self) -> Bool[np.ndarray, "layer"]:
        """Return by layer whether it is known to have changed for all prompts together, but for no single task."""
        return np.asarray(self.changed_together.filled(False)) & ~self.changed_for_a_task

    @property
    def maybe_changed(self) -> Bool[np.ndarray, "layer task"]:
        """Return for which layers a change beyond the tolerance cannot be judged, because it has no interval."""
        return self.verdict.maybe_changed[:, 1:]

    @cached_property
    def stands_out(self) -> np.ma.MaskedArray:
        """Return by layer and task whether the task stands out there, see ``standing_out``."""
        return np.ma.stack([self.outstanding(*row) for row in zip(self.change, *self.interval, strict=True)])

    def outstanding(
        self, change: Float[np.ndarray, "task"], low: Float[np.ndarray, "task"], high: Float[np.ndarray, "task"]
    ) -> np.ma.MaskedArray:
        """Return the tasks that stand out, with the settings of this comparison."""
        return standing_out(change, low, high, tolerance=self.config.tolerance, factor=self.config.factor)

    @cached_property
    def common(self) -> tuple[Bool[np.ndarray, "layer"], Bool[np.ndarray, "task"]]:
        """Return the layers over which tasks are compared, and these tasks, see ``common_layers``."""
        return common_layers(self.residual_verdict.known[:, 1:])

    def first_layer(self, mask: Bool[np.ndarray, "layer"]) -> int | None:
        """Return the first layer, by depth, for which the mask is true, or ``None`` if it never is."""
        return next((layer for layer, chosen in zip(self.layer_numbers, mask, strict=True) if chosen), None)

    def ranges_of(self, mask: Bool[np.ndarray, "layer"]) -> str:
        """Return the layers for which the mask is true, such as ``"0-2, 5"``."""
        return ranges_text(layer for layer, chosen in zip(self.layer_numbers, mask, strict=True) if chosen)
