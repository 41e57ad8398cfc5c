"""Measurements of single layers, kept beside the hidden states, so that an interruption costs one layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from torch import Tensor

from mechclust.commands.clusters.labelled import Labelled
from mechclust.commands.parts import MeasurementPart, part_path, remove_others
from probes import ProbeResult, RowStore, run_stores
from probes.engine.probe import Probe


@dataclass
class Parts:
    """Of one model's hidden states.

    Attributes:
        store: the hidden states.
        index: ``[n]`` the prompts' places in the file.
        codes: by label, the class of each.
    """

    store: RowStore
    index: Tensor
    codes: Mapping[str, Tensor]
    _used: set[Path] = field(default_factory=set)

    @property
    def folder(self) -> Path:
        """Where they are."""
        return self.store.folder / "measured"

    def part(self, name: str, probe: Probe, layer: int) -> MeasurementPart:
        """What a probe finds.

        Args:
            name: what parts of its kind are called.
            probe: with all its settings.
            layer: where it looks, for messages.
        """
        store, codes = self.store, dict(sorted(self.codes.items()))
        settings = [repr(probe), store.model, repr(store.dtype), list(codes)]
        path = part_path(self.folder, name, settings, [store.index, store.tokens, self.index, *codes.values()])
        self._used.add(path)
        title = f"{self.store.folder.name}: {name}, layer {layer}"
        return MeasurementPart(path, title, partial(_measure, self.store, self.index, self.codes, probe))

    def remove_others(self) -> None:
        """Remove what was measured with other settings or labels."""
        remove_others(self.folder, self._used)


def _measure(store: RowStore, index: Tensor, codes: Mapping[str, Tensor], probe: Probe) -> ProbeResult:
    return run_stores(Labelled(store, index, codes), probe)
