"""What is measured between two models' hidden states, in parts that are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any

from torch import Tensor

from mechclust.commands.compare.inputs import CompareConfig, layers_bytes
from mechclust.commands.compare.tables import ALL
from mechclust.commands.parts import Part, part_path
from probes import CKA, RBFCKA, NDims, NeighbourPurity, ProbeResult, RowStore, residual, resolve, run_stores
from probes.probe import Probe
from probes.sites import Selector

_ASKED = 10_000  # prompts, at most, whose neighbours are looked for
_GROUPS = 8  # parts of each measure, at least, where there are as many layers


@dataclass(frozen=True)
class Comparison:
    """Of a tuned and a base model.

    Attributes:
        pair: their hidden states, as ``"tuned"`` and ``"base"``.
        of_task: ``[n]`` the prompts of each task.
        config: what was asked for.
        folder: where parts are kept.
    """

    pair: Mapping[str, RowStore]
    of_task: Mapping[str, Tensor]
    config: CompareConfig
    folder: Path

    @property
    def alike(self) -> bool:
        """Whether the models have the same layers."""
        return self.pair["tuned"].sites == self.pair["base"].sites

    def parts(self) -> dict[str, list[Part]]:
        """By measure: ``cka``, ``n_dims`` and, where asked for, ``purity`` and, where layers are the same, ``rbf``."""
        found: dict[str, list[Part]] = {}
        for at in self._layer_groups() if self.alike else [residual()]:
            for name, probe in self._probes(at):
                measure = partial(_by_task, self.of_task) if name == "rbf" else run_stores
                found.setdefault(name, []).append(self._part(name, probe, self.pair, measure))
        return found

    def of_control(self, control: RowStore, task: str) -> dict[str, Part]:
        """CKA of a control with each model, over the prompts of its task."""
        probe = CKA(
            residual(), self.config.readout, n_resamples=self.config.n_resamples, max_memory=self.config.max_memory
        )
        return {
            name: self._part(
                f"control-{name}", probe, {"control": control, name: store.select(control.index)}, run_stores, task
            )
            for name, store in self.pair.items()
        }

    def joined(self, found: Mapping[str, Sequence[ProbeResult]]) -> dict[str, ProbeResult]:
        """The measures whose parts were found."""
        names = {"cka": [ALL, *self.of_task], "n_dims": [ALL, *self.of_task]}
        return {name: labelled(_joined(parts), names.get(name)) for name, parts in found.items()}

    def _probes(self, at: Selector) -> Iterator[tuple[str, Probe]]:
        """By measure."""
        config, n = self.config, len(self.pair["tuned"])
        options: dict[str, Any] = {"readout": config.readout, "label": "task", "max_memory": config.max_memory}
        kind: dict[str, Any] = {"pairs": "all", "form": "rows"}
        if self.alike:
            kind = {"n_resamples": config.n_resamples, "n_permutations": config.n_permutations, "seed": config.seed}
        yield "cka", CKA(at, **options, **kind)
        yield "n_dims", NDims(at, **options)
        if config.purity:
            yield "purity", NeighbourPurity(at, **options, k=min(10, n - 1), max_rows=_ASKED)
        if self.alike and config.rbf:
            yield "rbf", RBFCKA(at, config.readout, max_memory=config.max_memory)

    def _part(
        self,
        name: str,
        probe: Probe,
        stores: Mapping[str, RowStore],
        measure: Callable[[Mapping[str, RowStore], Probe], ProbeResult],
        of: str = "",
    ) -> Part:
        """One measurement."""
        settings = [of, repr(probe), {k: [s.model, repr(s.dtype)] for k, s in stores.items()}, list(self.of_task)]
        arrays = (*(x for store in stores.values() for x in (store.index, store.tokens)), *self.of_task.values())
        path = part_path(self.folder, name, settings, arrays)
        return Part(path, f"{name}{of and f' of {of}'}", partial(measure, dict(stores), probe))

    def _layer_groups(self) -> list[Selector]:
        """Layers that fit in memory together."""
        pair, config, n = self.pair, self.config, len(self.pair["tuned"])
        layers = [site.layer for site in resolve(pair["tuned"], residual())]
        sites = [f"rows/{site}" for site in pair["tuned"].sites]
        tuned, base = (
            max(x.shape[1] for x in store.take(store.index[:1], sites).values())
            for store in (pair["tuned"], pair["base"])
        )
        most = max(1, -(-len(layers) // _GROUPS))
        fits = (
            size
            for size in range(most, 0, -1)
            if layers_bytes(size * [tuned], size * [base], n) * config.at_once <= config.max_memory * 2**30
        )
        size = next(fits, 1)
        return [residual(layers[i : i + size]) for i in range(0, len(layers), size)]


def labelled(result: ProbeResult, labels: Sequence[str] | None) -> ProbeResult:
    """With names for the labels, which a probe knows by number."""
    return result if labels is None else replace(result, coords={**result.coords, "label": list(labels)}, notes=[])


def _by_task(of_task: Mapping[str, Tensor], pair: Mapping[str, RowStore], probe: Probe) -> ProbeResult:
    """One task after another: of all prompts together it would cost as much as the square of their number."""
    parts = {task: {name: store.select(index) for name, store in pair.items()} for task, index in of_task.items()}
    return _joined([labelled(run_stores(part, probe), [task]) for task, part in parts.items()])


def _joined(parts: Sequence[ProbeResult]) -> ProbeResult:
    """Parts of one measurement; their notes on small n would be as many as the parts."""
    return replace(reduce(ProbeResult.merge, parts), notes=[])
