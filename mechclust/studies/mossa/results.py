"""Read the measurements of a MOSSA run, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from mechclust.mossa.layer_groups import LayerGroups, group_boundaries_of, layer_groups_of
from mechclust.mossa.task_curves import MODELS, ByLayer, ByTaskAndLayer, TaskCurves, Which
from mechclust.studies.kept import load_required
from mechclust.studies.mossa.config import MossaConfig, controlled_skills, has_ceiling, result_path, suite_of
from probes import ProbeResult

if TYPE_CHECKING:
    import pandas as pd

TaskMask = Bool[np.ndarray, "task"]
ByTask = Float[np.ndarray, "task"]


@dataclass(frozen=True)
class SeedResults:
    """Measurements of one seed. Layers are blocks 1 to n, and CKA is debiased unless stated otherwise.

    Attributes:
        names: of the skills that have a control.
        cka: of ``"base"`` and ``"tuned"`` with the task's control.
        biased: ``cka`` in the biased form.
        ceiling: of the controls of seen tasks with controls tuned in another order, or ``None``.
        dims: dimensions for 99% of the variance of ``"base"`` and ``"tuned"``, over all seen skills.
        purity: share of nearest neighbours in the cluster, for ``"base"`` and ``"tuned"``.
        purity_chance: chance level of the purity.
        accuracy: of ``"base"``, ``"tuned"`` and ``"control"``.
        chance: accuracy without the skill, see ``SkillSuite.chance``.
        seen: whether the task was tuned on.
        encoded: whether pre-training encoded it.
        cluster: number of the operation.
        identity: largest distance from 1 of a model's CKA with itself, also rotated and scaled.
        notes: why a CKA is NaN.
    """

    names: tuple[str, ...]
    cka: Mapping[str, ByTaskAndLayer]
    biased: Mapping[str, ByTaskAndLayer]
    ceiling: Float[np.ndarray, "seen layer"] | None
    dims: Mapping[str, Shaped[np.ndarray, "layer"]]
    purity: Mapping[str, ByLayer]
    purity_chance: float
    accuracy: Mapping[str, ByTask]
    chance: ByTask
    seen: TaskMask
    encoded: TaskMask
    cluster: Int[np.ndarray, "task"]
    identity: float
    notes: tuple[str, ...] = ()

    @property
    def n_layers(self) -> int:
        """The number of layers."""
        return self.cka["base"].shape[1]

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

    @cached_property
    def groups(self) -> LayerGroups:
        """The layer groups of the seen tasks."""
        return layer_groups_of(self.curves.seen)

    @cached_property
    def unseen_groups(self) -> LayerGroups:
        """The layer groups of the held-out tasks, without dimensions, which are measured on the seen tasks."""
        return layer_groups_of(self.curves.unseen)

    @property
    def zero_shot(self) -> float:
        """Mean accuracy above chance of tuned on held-out skills whose operation pre-training did not encode."""
        tasks = ~self.seen & ~self.encoded
        return float((self.accuracy["tuned"] - self.chance)[tasks].mean()) if tasks.any() else math.nan


def load_results(config: MossaConfig, out: Path, seed: int) -> SeedResults:
    """Read the measurements of a seed.

    Raises:
        InputError: naming the measurement that is missing.
    """
    suite = suite_of(config, seed)
    names = controlled_skills(config, suite)
    similarities = {kind: [_read(out, seed, f"{name}.{kind}") for name in names] for kind in MODELS}
    again = [_read(out, seed, f"{name}.again") for name in names if has_ceiling(config, suite, name)]
    purity = {kind: _read(out, seed, f"{kind}.purity") for kind in MODELS}
    chance = suite.chance()
    identity = _read(out, seed, "identity")
    operations = [name.split("-")[0] for name in names]
    return SeedResults(
        names=tuple(names),
        cka={kind: _by_layer(results, "debiased_cka") for kind, results in similarities.items()},
        biased={kind: _by_layer(results, "cka") for kind, results in similarities.items()},
        ceiling=_by_layer(again, "debiased_cka") if again else None,
        dims={kind: _read(out, seed, f"{kind}.dims").sel("n_dims", label="all").numpy() for kind in MODELS},
        purity={kind: result["neighbour_purity"].numpy() for kind, result in purity.items()},
        purity_chance=float(purity["base"]["chance"]),
        accuracy=_accuracies(out, seed, names),
        chance=np.array([chance[name] for name in names]),
        seen=np.array([name in suite.seen for name in names]),
        encoded=np.array([operation in suite.encoded for operation in operations]),
        cluster=np.array([suite.cluster_names.index(operation) for operation in operations]),
        identity=float(np.max([identity[measure].numpy() for measure in ("itself", "rotated")])),  # NaN if one is
        notes=tuple(_why_undefined(seed, names, similarities)),
    )


def _read(out: Path, seed: int, name: str) -> ProbeResult:
    return load_required(out, result_path(out, seed, name))


def _by_layer(results: Sequence[ProbeResult], measure: str) -> ByTaskAndLayer:
    return np.stack([result.sel(measure, label="all").numpy() for result in results])


def _accuracies(out: Path, seed: int, names: Sequence[str]) -> dict[str, ByTask]:
    result = _read(out, seed, "accuracy")
    places = [result.coords["task"].index(name) for name in names]
    base, tuned = result["accuracy"].numpy()[:, places]
    controls = [float(_read(out, seed, f"{name}.accuracy")["accuracy"].flatten()[0]) for name in names]
    return {"base": base, "tuned": tuned, "control": np.array(controls)}


def _why_undefined(seed: int, names: Sequence[str], similarities: Mapping[Which, Sequence[ProbeResult]]) -> list[str]:
    """Return the notes with the reasons why a similarity is NaN."""
    notes = set()
    for kind, results in similarities.items():
        for name, result in zip(names, results, strict=True):
            undefined = [note for note in result.notes if "NaN" in note]
            notes |= {f"seed {seed}, control of {name} with {kind}: {note}" for note in undefined}
    return sorted(notes)


def boundaries_by_seed(
    curves: Sequence[TaskCurves],
) -> tuple[Float[np.ndarray, "seed boundary"], Bool[np.ndarray, "seed"]]:
    """Return the last shared layer and the last layer of the transition, and whether there is a transition."""
    ends = np.array([group_boundaries_of(one) for one in curves], dtype=float)
    return ends, ends[:, 1] > ends[:, 0]


def ceiling_medians(runs: Sequence[SeedResults]) -> list[ByLayer]:
    """Return the median ceiling over seen tasks by layer, of each seed that has one."""
    return [np.median(run.ceiling, axis=0) for run in runs if run.ceiling is not None]


def groups_table(seeds: Sequence[int], runs: Sequence[SeedResults]) -> pd.DataFrame:
    """Return the layer groups of each seed."""
    import pandas as pd

    rows = []
    for seed, run in zip(seeds, runs, strict=True):
        held_out = "no controls" if run.seen.all() else str(run.unseen_groups)
        rows.append((seed, str(run.groups), held_out))
    return pd.DataFrame(rows, columns=["seed", "seen", "held out (without dimensions)"])


def medians_table(runs: Sequence[SeedResults]) -> pd.DataFrame:
    """Return a row per curve: means over seeds of the median over tasks, by layer."""
    import pandas as pd

    masks = {
        "seen": [run.seen for run in runs],
        "held out": [~run.seen for run in runs],
        "held out, not encoded": [~run.seen & ~run.encoded for run in runs],
    }
    layers = [f"L{i + 1}" for i in range(runs[0].n_layers)]
    models: Mapping[str, Which] = {"pre": "base", "tuned": "tuned"}
    rows = []
    for tasks, by_seed in masks.items():
        for name, model in models.items():
            if by_seed[0].any():
                medians = [run.curves.select(mask).median(model) for run, mask in zip(runs, by_seed, strict=True)]
                rows.append([tasks, name, *np.mean(medians, axis=0)])
    ceilings = ceiling_medians(runs)
    if ceilings:
        rows.append(["seen", "ceiling", *np.mean(ceilings, axis=0)])
    return pd.DataFrame(rows, columns=["tasks", "model", *layers])
