"""A randomly initialised copy of a series' model, made once: the job, and the file in which its sketch is kept."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mechclust.commands.history.config import HistoryConfig
from mechclust.commands.history.start import RandomWeights
from mechclust.commands.saved_rows import free_memory
from mechclust.commands.settings import stamps_of
from mechclust.models.resolved import ResolvedModel
from mechclust.models.sketch import WeightSketch, constant_sketch_values, weight_sketch
from probes.store.digest import digest_of
from probes.store.safetensors_files import is_whole_file, read_safetensors, write_safetensors
from probes.store.versions import package_versions
from tasks import InputError


@dataclass(frozen=True)
class RandomCopy:
    """The job that makes the copy and keeps a sketch of its weights.

    Attributes:
        model: a checkpoint, whose configuration is used.
        folder: for the file.
        tokenizer: of the series.
        config: how models are loaded. The copy is made on the CPU.
    """

    model: ResolvedModel
    folder: Path
    tokenizer: Any
    config: HistoryConfig
    name = "random weights"

    @property
    def path(self) -> Path:
        """File with the sketch."""
        return self.folder / "random-weights.safetensors"

    @cached_property
    def key(self) -> str:
        """Digest of everything that the sketch depends on."""
        return digest_of(
            [json.dumps([self.model.source, self.config.dtype, package_versions(), stamps_of(self.model.source)])]
        )

    def run(self) -> None:
        """Make the copy and keep its sketch, or the reason why there is none, unless it is there."""
        if self._header().get("key") == self.key:
            return
        settings = replace(self.config, device="cpu", device_map=None, quantize=None)
        try:
            model = settings.load(self.model, "prompts", tokenizer=self.tokenizer, untrained=True)
        except InputError as error:
            reason = f"no model with random weights could be made: {error}"
            write_safetensors(self.path, {}, {"key": self.key, "reason": reason})
            return
        sketch = weight_sketch(model)
        tensors = {"values": sketch.values, "constant": constant_sketch_values(model)}
        facts = {"key": self.key, "weights": sketch.digest, "shapes": sketch.shapes}
        write_safetensors(self.path, tensors, facts)
        del model
        free_memory("cpu")

    @property
    def weights(self) -> RandomWeights | str:
        """Sketch that ``run`` kept, or why there is none."""
        tensors, facts = read_safetensors(self.path)
        if "reason" in facts:
            return facts["reason"]
        return RandomWeights(WeightSketch(facts["weights"], facts["shapes"], tensors["values"]), tensors["constant"])

    def _header(self) -> dict[str, str]:
        return read_safetensors(self.path)[1] if self.path.exists() and is_whole_file(self.path) else {}
