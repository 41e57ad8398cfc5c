"""What is measured between two models' hidden states, in parts that are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechclust.commands.compare.best_pair import BEST_PAIR_PROMPTS, measure_best_pairs
from mechclust.commands.compare.config import CompareConfig
from mechclust.commands.compare.draw import drawn_of_each
from mechclust.commands.compare.opinions import OPINIONS
from mechclust.commands.compare.tables import ALL
from mechclust.commands.layers import layers_that_fit
from mechclust.commands.parts import MeasurementPart, part_path
from probes import CKA, RBFCKA, SVCCA, NDims, NeighbourPurity, ProbeResult, RowStore, residual, resolve, run_stores
from probes.engine.probe import Probe
from probes.engine.sites import Selector

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

    def parts(self) -> dict[str, list[MeasurementPart]]:
        """By measure: ``cka`` and, where asked for, ``n_dims``, ``purity`` and, where layers are the same, the second
        opinions, or, where they are not, ``best_pair``."""
        found: dict[str, list[MeasurementPart]] = {}
        for at in self._layer_groups() if self.alike else [residual()]:
            for name, probe, most in self._probes(at):
                found.setdefault(name, []).append(self._of_both(name, probe, most))
        if not self.alike and self.config.n_permutations:
            found["best_pair"] = [self._best_pair(label, index) for label, index in self._labels().items()]
        return found

    def _labels(self) -> dict[str, Tensor]:
        """The prompts of all tasks together, and of each."""
        return {ALL: torch.cat([*self.of_task.values()]), **self.of_task}

    def _best_pair(self, label: str, index: Tensor) -> MeasurementPart:
        config, stores = self.config, self.pair.values()
        numbers = [config.n_permutations, config.n_resamples, config.seed, BEST_PAIR_PROMPTS, config.unit_label]
        settings = [label, numbers, [[store.model, repr(store.dtype)] for store in stores], config.states]
        path = part_path(self.folder, "best_pair", settings, (index, *(x for s in stores for x in (s.index, s.tokens))))
        return MeasurementPart(
            path, f"best_pair of {label}", partial(measure_best_pairs, label, index, config, self.pair)
        )

    def _of_both(self, name: str, probe: Probe, most: int | None) -> MeasurementPart:
        """A measure of at most so many prompts of each task."""
        of_task = drawn_of_each(self.of_task, most)
        if name in OPINIONS:
            return self._part(name, probe, self.pair, partial(_by_task, of_task), arrays=of_task.values())
        pair = self.pair
        if of_task is not self.of_task:
            some = torch.cat([*of_task.values()])
            pair = {model: store.select(some) for model, store in pair.items()}
        return self._part(name, probe, pair, run_stores)

    def of_control(self, control: RowStore, task: str) -> dict[str, list[MeasurementPart]]:
        """CKA of a control with each model, over the prompts of its task."""
        config, found = self.config, dict[str, list[MeasurementPart]]()
        options: dict[str, Any] = {"n_resamples": config.n_resamples, "seed": config.seed}
        options |= {"max_memory": config.max_memory, "units": config.unit_label}
        for at in self._layer_groups() if self.alike else [residual()]:
            probe = CKA(at, config.readout, **options)
            for name, store in self.pair.items():
                stores = {"control": control, name: store.select(control.index)}
                found.setdefault(name, []).append(self._part(f"control-{name}", probe, stores, run_stores, task))
        return found

    def joined(self, found: Mapping[str, Sequence[ProbeResult]], task: str | None = None) -> dict[str, ProbeResult]:
        """The measures whose parts were found; those of a task's control if one is named."""
        if task is not None:
            return {name: labelled(_joined(parts), [task]) for name, parts in found.items()}
        names = {"cka": [ALL, *self.of_task], "n_dims": [ALL, *self.of_task]}
        return {name: labelled(_joined(parts), names.get(name)) for name, parts in found.items()}

    def _probes(self, at: Selector) -> Iterator[tuple[str, Probe, int | None]]:
        """By measure, and of how many prompts of a task."""
        config, n = self.config, len(self.pair["tuned"])
        options: dict[str, Any] = {"readout": config.readout, "max_memory": config.max_memory}
        kind: dict[str, Any] = {"pairs": "all", "form": "rows"}
        if self.alike:
            kind = {"n_resamples": config.n_resamples, "n_permutations": config.n_permutations, "seed": config.seed}
            kind["units"] = config.unit_label
        yield "cka", CKA(at, label="task", **options, **kind), None
        if config.n_dims:
            yield "n_dims", NDims(at, label="task", **options), config.n_dims_prompts
        if config.purity:
            asked: dict[str, Any] = {"k": min(10, n - self._largest_unit()), "max_rows": config.purity_prompts}
            yield "purity", NeighbourPurity(at, label="task", **options, **asked, units=config.unit_label), None
        if not self.alike:
            return
        if config.rbf:
            yield "rbf", RBFCKA(at, **options), config.rbf_prompts
        if config.top_pc:
            without = CKA(at, **options, form="rows", remove_top=1, units=config.unit_label)
            yield "without_top_pc", without, config.top_pc_prompts
        if config.svcca:
            yield "svcca", SVCCA(at, **options), config.svcca_prompts

    def _largest_unit(self) -> int:
        """Return how many prompts the largest unit has."""
        label, store = self.config.unit_label, self.pair["tuned"]
        if label is None:
            return 1
        (units,) = store.take(store.index, [f"labels/{label}"]).values()
        return int(units.bincount().max())

    def _part(
        self,
        name: str,
        probe: Probe,
        stores: Mapping[str, RowStore],
        measure: Callable[[Mapping[str, RowStore], Probe], ProbeResult],
        of: str = "",
        *,
        arrays: Iterable[Tensor] = (),
    ) -> MeasurementPart:
        """One measurement, which depends on these arrays too."""
        settings = [of, repr(probe), {k: [s.model, repr(s.dtype)] for k, s in stores.items()}, list(self.of_task)]
        of_stores = (x for store in stores.values() for x in (store.index, store.tokens))
        path = part_path(self.folder, name, settings, (*of_stores, *self.of_task.values(), *arrays))
        return MeasurementPart(path, f"{name}{of and f' of {of}'}", partial(measure, dict(stores), probe))

    def _layer_groups(self) -> list[Selector]:
        """Layers that fit in memory together."""
        pair, config, n = self.pair, self.config, len(self.pair["tuned"])
        layers = [site.layer for site in resolve(pair["tuned"], residual())]
        sites = [f"rows/{site}" for site in pair["tuned"].sites]
        tuned, base = (
            max(x.shape[1] for x in store.take(store.index[:1], sites).values())
            for store in (pair["tuned"], pair["base"])
        )
        svcca, most = config.svcca_of(self.of_task), max(1, -(-len(layers) // _GROUPS))
        room = config.max_memory * 2**30 / config.at_once
        return [residual(of) for of in layers_that_fit(layers, tuned, base, n, room, most=most, svcca=svcca)]


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
