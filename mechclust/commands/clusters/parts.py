"""Measurements of single layers, kept beside the hidden states, so that an interruption costs one layer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import xxhash
from torch import Tensor

from mechclust.commands.clusters.labelled import Labelled
from probes import ProbeResult, RowStore, load_result, run_stores
from probes.files import versions
from probes.probe import Probe
from tasks import InputError


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

    def measured(self, name: str, probe: Probe) -> ProbeResult:
        """What a probe finds: read where it is kept, measured otherwise.

        Args:
            name: what parts of its kind are called.
            probe: with all its settings.
        """
        path = self.folder / f"{name}-{self._digest(probe)}.safetensors"
        self._used.add(path)
        if path.exists():
            with suppress(InputError):  # a damaged one is measured again
                return load_result(path)
        found = run_stores(Labelled(self.store, self.index, self.codes), probe)
        with suppress(OSError):  # what cannot be kept would only be measured again
            found.save(path)
        return found

    def remove_others(self) -> None:
        """Remove what was measured with other settings or labels."""
        for path in self.folder.glob("*.safetensors"):
            if path not in self._used:
                path.unlink(missing_ok=True)

    def _digest(self, probe: Probe) -> str:
        """Of all that the numbers depend on."""
        store = self.store
        settings = [repr(probe), store.model, repr(store.dtype), sorted(self.codes), versions()]
        digest = xxhash.xxh3_128(json.dumps(settings).encode())
        for values in (store.index, store.tokens, self.index, *(self.codes[name] for name in sorted(self.codes))):
            digest.update(values.contiguous().numpy().tobytes())
        return str(digest.hexdigest())
