"""What a MOSSA run measured, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from mechclust.mossa.layer_groups import LayerGroups, boundaries_of, crossover, groups_of
from mechclust.mossa.task_curves import TaskCurves, Which
from mechclust.studies.kept import check_there
from mechclust.studies.mossa.config import MODELS, MossaConfig, controlled, has_ceiling, result_path, suite_of
from probes import ProbeResult, load_result

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class SeedResults:
    """What one seed measured. Layers are blocks 1 to n; CKA is debiased unless stated otherwise.

    Attributes:
        names: ``[task]`` the skills that have a control.
        cka: ``"base"`` and ``"tuned"`` to ``[task layer]``: with the task's control.
        biased: the same in the biased form.
        ceiling: ``[seen task layer]`` of the control with one tuned in another order, or ``None``.
        dims: ``"base"`` and ``"tuned"`` to ``[layer]`` dimensions for 99% of the variance, over all seen skills.
        purity: the same for the share of nearest neighbours in the cluster.
        purity_chance: chance level of the purity.
        accuracy: ``"base"``, ``"tuned"`` and ``"control"`` to ``[task]``.
        chance: ``[task]`` accuracy without the skill, see ``SkillSuite.chance``.
        seen: ``[task]`` whether the task was tuned on.
        encoded: ``[task]`` whether pre-training encoded it.
        cluster: ``[task]`` number of the operation.
        identity: largest distance from 1 of a model's CKA with itself, also rotated and scaled.
        notes: why a CKA is NaN.
    """

    names: tuple[str, ...]
    cka: dict[str, np.ndarray]
    biased: dict[str, np.ndarray]
    ceiling: np.ndarray | None
    dims: dict[str, np.ndarray]
    purity: dict[str, np.ndarray]
    purity_chance: float
    accuracy: dict[str, np.ndarray]
    chance: np.ndarray
    seen: np.ndarray
    encoded: np.ndarray
    cluster: np.ndarray
    identity: float
    notes: tuple[str, ...] = ()

    @property
    def n_layers(self) -> int:
        return self.cka["base"].shape[1]

    @property
    def upper(self) -> slice:
        """The upper half of the layers."""
        return slice(self.n_layers // 2, None)

    @cached_property
    def curves(self) -> TaskCurves:
        """Curves of all tasks, including held-out ones, which have no ceiling."""
        ceiling = None
        if self.ceiling is not None:
            ceiling = np.full_like(self.cka["base"], np.nan)
            ceiling[self.seen] = self.ceiling
        return TaskCurves(
            tasks=self.names,
            layers=tuple(str(i + 1) for i in range(self.n_layers)),
            base=self.cka["base"],
            tuned=self.cka["tuned"],
            ceiling=ceiling,
            null=None,
            held_out=~self.seen,
            clusters=tuple(name.split("-")[0] for name in self.names),
            dims=self.dims,
        )

    def _of(self, tasks: np.ndarray | None) -> TaskCurves:
        return self.curves.seen if tasks is None else self.curves.select(tasks)

    def median(self, model: str, tasks: np.ndarray | None = None) -> np.ndarray:
        """``[layer]`` over tasks, the seen ones by default."""
        return self._of(tasks).median(cast(Which, model))

    def spread(self, model: str, tasks: np.ndarray | None = None) -> np.ndarray:
        """``[layer]`` interquartile range over tasks."""
        return self._of(tasks).spread(cast(Which, model))

    @cached_property
    def groups(self) -> LayerGroups:
        """Curves of the seen tasks."""
        return groups_of(self.curves.seen)

    @cached_property
    def unseen_groups(self) -> LayerGroups:
        """Curves of the held-out tasks, without dimensions, which are measured on the seen tasks."""
        return groups_of(self.curves.unseen)

    def crossing(self, tasks: np.ndarray) -> int:
        """The layer from which tuned stays above base; one more than the number of layers if it never does."""
        return crossover(self.median("base", tasks), self.median("tuned", tasks))

    @property
    def gap(self) -> np.ndarray:
        """``[layer]`` tuned - base, difference of the medians over the seen tasks."""
        return self.curves.seen.gap

    @property
    def zero_shot(self) -> float:
        """Mean accuracy above chance of tuned on held-out skills whose operation pre-training did not encode."""
        cells = ~self.seen & ~self.encoded
        return float((self.accuracy["tuned"] - self.chance)[cells].mean()) if cells.any() else math.nan

    @property
    def gain(self) -> np.ndarray:
        """``[task]`` tuned - base, mean over the upper half."""
        return self.curves.gain


def load_results(config: MossaConfig, out: Path, seed: int) -> SeedResults:
    """Read what a seed's jobs measured.

    Raises:
        InputError: if a measurement is missing; the text names it.
    """
    suite = suite_of(config, seed)
    names = controlled(config, suite)

    def read(name: str) -> ProbeResult:
        path = result_path(out, seed, name)
        check_there(out, [path])
        return load_result(path)

    found = {kind: [read(f"{name}.{kind}") for name in names] for kind in MODELS}
    again = [read(f"{name}.again") for name in names if has_ceiling(config, suite, name)]

    def layers(results: list[ProbeResult], measure: str = "debiased_cka") -> np.ndarray:
        return np.stack([result.sel(measure, label="all").numpy() for result in results])

    accuracies = read("accuracy")
    places = [accuracies.coords["task"].index(name) for name in names]
    both = accuracies["accuracy"].numpy()[:, places]
    own = np.array([float(read(f"{name}.accuracy")["accuracy"].flatten()[0]) for name in names])
    chance, identity = suite.chance(), read("identity")
    why = {
        f"seed {seed}, control of {name} with {kind}: {note}"
        for kind, results in found.items()
        for name, result in zip(names, results, strict=True)
        for note in result.notes
        if "NaN" in note
    }
    return SeedResults(
        names=tuple(names),
        cka={kind: layers(results) for kind, results in found.items()},
        biased={kind: layers(results, "cka") for kind, results in found.items()},
        ceiling=layers(again) if again else None,
        dims={kind: read(f"{kind}.dims").sel("n_dims", label="all").numpy() for kind in MODELS},
        purity={kind: read(f"{kind}.purity")["neighbour_purity"].numpy() for kind in MODELS},
        purity_chance=float(read("base.purity")["chance"]),
        accuracy={**dict(zip(MODELS, both, strict=True)), "control": own},
        chance=np.array([chance[name] for name in names]),
        seen=np.array([name in suite.seen for name in names]),
        encoded=np.array([name.split("-")[0] in suite.encoded for name in names]),
        cluster=np.array([suite.cluster_names.index(name.split("-")[0]) for name in names]),
        identity=max(float(identity[m].max()) for m in ("itself", "rotated")),
        notes=tuple(sorted(why)),
    )


def boundaries_by_seed(curves: Sequence[TaskCurves]) -> tuple[np.ndarray, np.ndarray]:
    """``[seed 2]`` last shared layer and last layer of the transition; ``[seed]`` whether there is a transition."""
    ends = np.array([boundaries_of(one) for one in curves], dtype=float)
    return ends, ends[:, 1] > ends[:, 0]


def groups_table(seeds: Sequence[int], found: Sequence[SeedResults]) -> pd.DataFrame:
    """The layer groups of each seed."""
    import pandas as pd

    rows = [(seed, str(m.groups), str(m.unseen_groups)) for seed, m in zip(seeds, found, strict=True)]
    return pd.DataFrame(rows, columns=["seed", "seen", "held out (without dimensions)"])


def medians_table(found: Sequence[SeedResults]) -> pd.DataFrame:
    """One row per curve: means over seeds of the median over tasks, by layer."""
    import pandas as pd

    masks = {
        "seen": [m.seen for m in found],
        "held out": [~m.seen for m in found],
        "held out, not encoded": [~m.seen & ~m.encoded for m in found],
    }
    curves = {
        (which, name): [m.median(kind, mask) for m, mask in zip(found, tasks, strict=True)]
        for which, tasks in masks.items()
        for kind, name in (("base", "pre"), ("tuned", "tuned"))
        if tasks[0].any()
    }
    if ceiling := [np.median(m.ceiling, axis=0) for m in found if m.ceiling is not None]:
        curves["seen", "ceiling"] = ceiling
    table = pd.DataFrame([np.mean(each, axis=0) for each in curves.values()])
    table.columns = [f"L{i + 1}" for i in table.columns]
    table.index = pd.MultiIndex.from_tuples(curves, names=("tasks", "model"))
    return table.reset_index()
