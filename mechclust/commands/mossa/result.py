"""What ``mechclust mossa`` found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mechclust.commands.mossa.config import MossaConfig
from mechclust.commands.mossa.findings import findings_of
from mechclust.commands.mossa.learnt import LearningState, Score, scores_of, states_of
from mechclust.commands.mossa.models import Model
from mechclust.commands.mossa.pooled import POOLED
from mechclust.evidence import Findings
from mechclust.mossa.layer_groups import LEAST_FOR_GROUPS, LayerGroupsInterval, layer_groups_interval
from mechclust.mossa.published import COLEMAN_LIAU, DATA_SIZE, FLESCH_KINCAID
from mechclust.mossa.task_curves import TaskCurves, defined_mean
from mechclust.report.text import short_name
from mechclust.training.tuning import Tuned
from probes import ProbeResult
from probes.store.files import file_name

MEASURES = {
    "debiased CKA": ("cka", "debiased_cka"),
    "biased CKA": ("cka", "cka"),
    "debiased CKA without the top component": ("without-top", "debiased_cka"),
    "debiased RBF CKA": ("rbf", "debiased_rbf_cka"),
    "SVCCA": ("svcca", "svcca"),
}
"""What curves there are: the probe's results and the value in them."""


@dataclass(frozen=True, repr=False)
class MossaResult:
    """What ``run_mossa`` found.

    Attributes:
        base: name of the base model.
        config: what was asked.
        tasks: measured ones, cluster by cluster.
        clusters: of each of them, or ``None``.
        held_out: of each, whether it was left out of the multi-task model.
        n_train: of each, training examples that its control saw; NaN: not known, as it was trained elsewhere.
        readability: of each, grades by index; empty where not known.
        of_task: by task and ``"ROLE.PROBE"``, such as ``"tuned.cka"``, see ``measure.TaskJob``.
        of_model: by ``"base"`` and ``"tuned"``: ``dims``, ``projection`` and ``purity`` over all seen tasks.
        trained: the adapters that were trained here, by model.
        failed: why a model's training was given up, by model.
        n_layers: blocks.
        d: width.
        notes: what a reader must know.
        clusters_there: names of all clusters of the collection, in the order of the numbers that pictures carry; by
            default those of the measured tasks.
        unmeasured: held-out tasks of which nothing was measured; the notes say why.

    Example:
        >>> result = run_mossa("google/gemma-3-270m", MossaConfig(tasks=Path("flan")), "runs/mossa")  # doctest: +SKIP
        >>> result.curves().seen.gap  # doctest: +SKIP
    """

    base: str
    config: MossaConfig
    tasks: Sequence[str]
    clusters: Sequence[str | None]
    held_out: Sequence[bool]
    n_train: Sequence[float]
    readability: Mapping[str, Mapping[str, float]]
    of_task: Mapping[str, Mapping[str, ProbeResult]]
    of_model: Mapping[str, Mapping[str, ProbeResult]]
    trained: Mapping[Model, Tuned]
    failed: Mapping[Model, str]
    n_layers: int
    d: int
    notes: Sequence[str]
    clusters_there: Sequence[str] = ()
    unmeasured: Sequence[str] = ()

    def __repr__(self) -> str:
        return f"MossaResult({short_name(self.base)}, {self.n_layers} layers, {len(self.tasks)} tasks)"

    @property
    def cluster_names(self) -> list[str]:
        """By the number that pictures carry; the number after the last is of tasks in no cluster."""
        return list(self.clusters_there) or sorted({name for name in self.clusters if name is not None})

    @property
    def results(self) -> dict[str, ProbeResult]:
        """All that was measured, by the name of its file."""
        of_tasks = {f"{file_name(task)}/{name}": r for task, of in self.of_task.items() for name, r in of.items()}
        return of_tasks | {f"{POOLED}/{kind}.{name}": r for kind, of in self.of_model.items() for name, r in of.items()}

    @property
    def layers(self) -> tuple[str, ...]:
        """Labels of the blocks, from 1."""
        return tuple(str(layer) for layer in range(1, self.n_layers + 1))

    @property
    def measures(self) -> list[str]:
        """Those of ``MEASURES`` that were made."""
        one = self.of_task[self.tasks[0]]
        return [name for name, (probe, _) in MEASURES.items() if f"base.{probe}" in one]

    def values(self, role: str, measure: str = "debiased CKA", *, final_norm: bool = False) -> np.ndarray:
        """``[task layer]`` similarity of a role's model with the tasks' controls, and of ``other-1`` and so on with the
        tuned model; NaN where there is no such model.

        Args:
            role: ``base``, ``tuned``, ``again``, ``all-tasks``, ``other-1`` and so on.
            measure: of ``measures``.
            final_norm: ``[task]`` after the final norm instead.
        """
        probe, value = MEASURES[measure]
        empty = np.full(self.n_layers + 1, np.nan)
        rows = []
        for task in self.tasks:
            found = self.of_task[task].get(f"{role}.{probe}")
            rows.append(empty if found is None else np.asarray(found.sel(value, label="all"), dtype=float))
        table = np.array(rows)
        return table[:, -1] if final_norm else table[:, :-1]

    def curves(self, measure: str = "debiased CKA") -> TaskCurves:
        """The similarity with controls by task and layer, with ceiling and null where they were measured."""
        again = self.values("again", measure)
        others = [self.values(f"other-{k}", measure) for k in range(1, self.config.nulls + 1)]
        null = None
        if others and MEASURES[measure][0] == "cka":
            null = defined_mean(np.moveaxis(np.array(others), 0, -1))
        return TaskCurves(
            tasks=tuple(self.tasks),
            layers=self.layers,
            base=self.values("base", measure),
            tuned=self.values("tuned", measure),
            ceiling=again if np.isfinite(again).any() else None,
            null=null,
            held_out=np.array(self.held_out, dtype=bool),
            clusters=tuple(self.clusters),
            dims=self.dims,
            covariates=self.covariates,
        )

    @property
    def dims(self) -> dict[str, np.ndarray]:
        """``base`` and ``tuned`` to ``[layer]``: dimensions for 99% of the variance over all seen tasks' prompts."""
        return {
            kind: np.asarray(found["dims"].sel("n_dims", label="all"), dtype=float)[:-1]
            for kind, found in self.of_model.items()
            if "dims" in found
        }

    @property
    def task_dims(self) -> dict[str, np.ndarray]:
        """``base`` and ``tuned`` to ``[task layer]``: the same by task."""
        return {
            role: np.array(
                [np.asarray(self.of_task[t][f"{role}.dims"].sel("n_dims", label="all"), float)[:-1] for t in self.tasks]
            )
            for role in ("base", "tuned")
        }

    @property
    def task_purity(self) -> dict[str, np.ndarray] | None:
        """``base`` and ``tuned`` to ``[task layer]``: the share of a task's prompts' nearest neighbours, among those of
        all seen tasks, that are of its cluster; NaN for held-out tasks. None where tasks have no clusters."""
        if not all("task-purity" in self.of_model[kind] for kind in ("base", "tuned")):
            return None
        found = {}
        for kind in ("base", "tuned"):
            result = self.of_model[kind]["task-purity"]
            of_task = dict(zip(result.coords["task"], result["purity"].T.tolist(), strict=True))
            found[kind] = np.array([of_task.get(task, [np.nan] * (self.n_layers + 1)) for task in self.tasks])[:, :-1]
        return found

    @property
    def covariates(self) -> dict[str, np.ndarray]:
        """``[task]`` readability of the prompts, and the size of the training data."""
        found = {DATA_SIZE: np.array(self.n_train, dtype=float)}
        for name, index in ((FLESCH_KINCAID, "Flesch-Kincaid"), (COLEMAN_LIAU, "Coleman-Liau")):
            if self.readability:
                found[name] = np.array([self.readability[task].get(index, np.nan) for task in self.tasks])
        return found

    @property
    def named_groups(self) -> bool:
        """Whether there are enough tasks for layer groups, and similarities at every layer."""
        seen = self.curves().seen
        return len(seen.tasks) >= LEAST_FOR_GROUPS and not seen.undefined_layers

    @cached_property
    def scores(self) -> dict[str, dict[str, Score]]:
        """What is known of answers, by task and role."""
        return scores_of({task: self.of_task[task] for task in self.tasks})

    def states(self, role: str = "control") -> dict[str, LearningState]:
        """By task, whether a role's model learnt it."""
        return states_of(self.scores, role)

    def told_apart(self, role: str) -> np.ndarray:
        """``[task]`` share of pairs of prompts whose right answers are preferred to the same two exchanged, chance .5;
        NaN where not measured."""
        return np.array([self.scores[task][role].apart if role in self.scores[task] else np.nan for task in self.tasks])

    @property
    def n(self) -> int:
        """Prompts of the task that has the fewest."""
        return int(min(float(self.of_task[task]["base.cka"].sel("n", label="all")) for task in self.tasks))

    @cached_property
    def groups(self) -> LayerGroupsInterval:
        """Shared, transition and refinement layers with intervals, of the seen tasks."""
        return layer_groups_interval(self.curves().seen, seed=self.config.seed)

    @cached_property
    def findings(self) -> Findings:
        """Tested statements."""
        biased = {role: self.values(role, "biased CKA") for role in ("base", "tuned")}
        gains = self.told_apart("tuned") - self.told_apart("base")
        states = self.states("tuned")
        measured = any(state != "not measured" for state in states.values())
        return Findings(
            findings_of(
                self.curves(),
                n=self.n,
                d=self.d,
                biased=biased,
                gains=gains if np.isfinite(gains).any() else None,
                learnt=np.array([states[task] == "learnt" for task in self.tasks]) if measured else None,
                task_dims=self.task_dims,
                purity=self.task_purity,
                purity_chance=None
                if self.task_purity is None
                else float(self.of_model["base"]["task-purity"]["chance"]),
                seed=self.config.seed,
            )
        )
