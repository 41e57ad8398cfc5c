"""Everything that a MOSSA run measured, as arrays by task and layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float

from mechclust.commands.mossa.config import MossaConfig
from mechclust.commands.mossa.findings import findings_of
from mechclust.commands.mossa.learnt import LearningState, Score, scores_of
from mechclust.commands.mossa.models import Model
from mechclust.commands.mossa.pooled import POOLED
from mechclust.evidence import Findings
from mechclust.mossa.gaps_and_spreads import upper_half_gap
from mechclust.mossa.layer_groups import LEAST_FOR_GROUPS, LayerGroupsInterval, layer_groups_interval
from mechclust.mossa.nan_statistics import nan_mean
from mechclust.mossa.published import COLEMAN_LIAU, DATA_SIZE, FLESCH_KINCAID
from mechclust.mossa.task_bootstrap import task_bootstrap_interval
from mechclust.mossa.task_curves import MODELS, TaskCurves
from mechclust.training.tuning import TunedAdapter
from probes import ProbeResult
from probes.functional.halves import interval_from_halves
from probes.store.file_names import file_name

_HALVES = "debiased_cka_halves"
MEASURES = {
    "debiased CKA": ("cka", "debiased_cka"),
    "biased CKA": ("cka", "cka"),
    "debiased CKA without the top component": ("without-top", "debiased_cka"),
    "debiased RBF CKA": ("rbf", "debiased_rbf_cka"),
    "SVCCA": ("svcca", "svcca"),
}
"""Measures of similarity: the part of a result's name after the role, and the value in it."""


@dataclass(frozen=True, repr=False)
class Measurements:
    """Measurements of a run, with the attributes of ``MossaResult``."""

    base: str
    config: MossaConfig
    tasks: Sequence[str]
    clusters: Sequence[str | None]
    held_out: Sequence[bool]
    n_train: Sequence[float]
    readability: Mapping[str, Mapping[str, float]]
    of_task: Mapping[str, Mapping[str, ProbeResult]]
    of_model: Mapping[str, Mapping[str, ProbeResult]]
    trained: Mapping[Model, TunedAdapter]
    failed: Mapping[Model, str]
    n_layers: int
    d: int
    notes: Sequence[str]
    clusters_there: Sequence[str] = ()
    unmeasured: Sequence[str] = ()

    @property
    def cluster_names(self) -> list[str]:
        """Clusters by the number that pictures carry. The number after the last is for tasks in no cluster."""
        return list(self.clusters_there) or sorted({name for name in self.clusters if name is not None})

    @property
    def results(self) -> dict[str, ProbeResult]:
        """All measurements, by the name of their file."""
        results: dict[str, ProbeResult] = {}
        for task, by_name in self.of_task.items():
            results |= {f"{file_name(task)}/{name}": result for name, result in by_name.items()}
        for kind, by_name in self.of_model.items():
            results |= {f"{POOLED}/{kind}.{name}": result for name, result in by_name.items()}
        return results

    @property
    def layers(self) -> tuple[str, ...]:
        """Labels of the blocks, from 1."""
        return tuple(str(layer) for layer in range(1, self.n_layers + 1))

    @property
    def measures(self) -> list[str]:
        """Names of the ``MEASURES`` that were measured."""
        measured = self.of_task[self.tasks[0]]
        return [name for name, (probe, _) in MEASURES.items() if f"base.{probe}" in measured]

    @property
    def is_held_out(self) -> Bool[np.ndarray, "task"]:
        """Mask of the held-out tasks."""
        return np.array(self.held_out, dtype=bool)

    def by_site(self, task: str, name: str, value: str) -> Float[np.ndarray, "site"]:
        """Return a value of one of a task's results at every block and after the final norm, or NaN.

        Args:
            task: the task.
            name: name of the result, such as ``"tuned.cka"``.
            value: name of the value, such as ``"debiased_cka"``.
        """
        result = self.of_task[task].get(name)
        if result is None or value not in result.values:
            return np.full(self.n_layers + 1, np.nan)
        return _all_prompts(result, value)

    def values(
        self, role: str, measure: str = "debiased CKA", *, final_norm: bool = False
    ) -> Float[np.ndarray, "task layer"] | Float[np.ndarray, "task"]:
        """Return the similarity of a role's model with the tasks' controls, or NaN if a task has no such model.

        For ``other-1`` and so on, it is the similarity with the tuned model.

        Args:
            role: ``base``, ``tuned``, ``again``, ``all-tasks``, ``other-1`` and so on.
            measure: one of ``measures``.
            final_norm: after the final norm instead of at every layer.
        """
        probe, value = MEASURES[measure]
        table = np.array([self.by_site(task, f"{role}.{probe}", value) for task in self.tasks])
        return table[:, -1] if final_norm else table[:, :-1]

    def curves(self, measure: str = "debiased CKA") -> TaskCurves:
        """Return the similarity with controls by task and layer, with ceiling and null if they were measured."""
        again = self.values("again", measure)
        null = None
        if self.config.nulls:
            others = [self.values(f"other-{number}", measure) for number in range(1, self.config.nulls + 1)]
            null = nan_mean(np.stack(others, axis=-1))
        return TaskCurves(
            tasks=tuple(self.tasks),
            layers=self.layers,
            base=self.values("base", measure),
            tuned=self.values("tuned", measure),
            ceiling=again if np.isfinite(again).any() else None,
            null=null,
            held_out=self.is_held_out,
            clusters=tuple(self.clusters),
            dims=self.dims,
            covariates=self.covariates,
        )

    def gain_ends(self, n_compared: int = 1) -> Float[np.ndarray, "task 2"]:
        """Return the 95% interval over prompts, or their units, of each task's gain, or NaN if there is none.

        Args:
            n_compared: number of tasks from which one was chosen for its gain.
        """
        return np.array([self._gain_ends(task, n_compared) for task in self.tasks])

    def _gain_ends(self, task: str, n_compared: int) -> tuple[float, float]:
        base = self.of_task[task]["base.cka"]
        tuned = self.of_task[task]["tuned.cka"]
        if _HALVES not in base or _HALVES not in tuned:
            return np.nan, np.nan
        upper = slice(self.n_layers // 2, self.n_layers)
        change = (_all_prompts(tuned, "debiased_cka") - _all_prompts(base, "debiased_cka"))[upper]
        known = np.isfinite(change)
        if not known.any():
            return np.nan, np.nan
        halves = (_all_prompts(tuned, _HALVES) - _all_prompts(base, _HALVES))[upper][known]
        n_units = tuned.metadata["n_units"]["all"]
        ends = interval_from_halves(change[known].mean(), halves.mean(axis=0), n_units, n_compared=n_compared)
        return float(ends[0]), float(ends[1])

    @property
    def dims(self) -> dict[str, Float[np.ndarray, "layer"]]:
        """Dimensions for 99% of the variance over all seen tasks' prompts, of ``base`` and ``tuned``."""
        return {
            kind: _all_prompts(results["dims"], "n_dims")[:-1]
            for kind, results in self.of_model.items()
            if "dims" in results
        }

    @property
    def task_dims(self) -> dict[str, Float[np.ndarray, "task layer"]]:
        """Dimensions for 99% of the variance over each task's prompts, of ``base`` and ``tuned``."""
        return {
            role: np.array([self.by_site(task, f"{role}.dims", "n_dims")[:-1] for task in self.tasks])
            for role in MODELS
        }

    @property
    def task_purity(self) -> dict[str, Float[np.ndarray, "task layer"]] | None:
        """Share of nearest neighbours, among all seen tasks' prompts, that are in the task's cluster.

        It is for ``base`` and ``tuned``, NaN for held-out tasks, and None if tasks have no clusters.
        """
        if not all("task-purity" in self.of_model[kind] for kind in MODELS):
            return None
        purity: dict[str, Float[np.ndarray, "task layer"]] = {}
        for kind in MODELS:
            result = self.of_model[kind]["task-purity"]
            measured = dict(zip(result.coords["task"], result["purity"].T.tolist(), strict=True))
            missing = [np.nan] * (self.n_layers + 1)
            purity[kind] = np.array([measured.get(task, missing) for task in self.tasks])[:, :-1]
        return purity

    @property
    def covariates(self) -> dict[str, Float[np.ndarray, "task"]]:
        """Readability of the prompts, and the size of the training data."""
        covariates = {DATA_SIZE: np.array(self.n_train, dtype=float)}
        if self.readability:
            for name, index in ((FLESCH_KINCAID, "Flesch-Kincaid"), (COLEMAN_LIAU, "Coleman-Liau")):
                covariates[name] = np.array([self.readability[task].get(index, np.nan) for task in self.tasks])
        return covariates

    @property
    def named_groups(self) -> bool:
        """Whether there are enough tasks for layer groups, and similarities at every layer."""
        seen = self.curves().seen
        return len(seen.tasks) >= LEAST_FOR_GROUPS and not seen.undefined_layers

    @cached_property
    def scores(self) -> dict[str, dict[str, Score]]:
        """Scores of answers, by task and role."""
        return {task: scores_of(self.of_task[task]) for task in self.tasks}

    def states(self, role: str = "control") -> dict[str, LearningState]:
        """Return by task whether a role's model learnt it."""
        states: dict[str, LearningState] = {}
        for task, scores in self.scores.items():
            states[task] = scores[role].state if role in scores and "base" in scores else "not measured"
        return states

    def told_apart(self, role: str) -> Float[np.ndarray, "task"]:
        """Return the share of pairs of prompts whose right answers are preferred to the exchanged ones.

        It is .5 by chance, and NaN if not measured.
        """
        shares = [self.scores[task][role].apart if role in self.scores[task] else np.nan for task in self.tasks]
        return np.array(shares, dtype=float)

    @property
    def n(self) -> int:
        """Prompts of the task that has the fewest."""
        return min(self.n_prompts(task) for task in self.tasks)

    def n_prompts(self, task: str) -> int:
        """Return the number of prompts of a task."""
        return int(self.of_task[task]["base.cka"].sel("n", label="all"))

    @cached_property
    def upper_half_gap(self) -> tuple[float, tuple[float, float]]:
        """Tuned - base of the seen tasks, see ``gaps_and_spreads``, with its 95% interval over tasks."""
        return task_bootstrap_interval(self.curves().seen, upper_half_gap, seed=self.config.seed)

    @cached_property
    def groups(self) -> LayerGroupsInterval:
        """Shared, transition and refinement layers with intervals, of the seen tasks."""
        return layer_groups_interval(self.curves().seen, seed=self.config.seed)

    @cached_property
    def findings(self) -> Findings:
        """Tested statements."""
        gains = self.told_apart("tuned") - self.told_apart("base")
        states = self.states("tuned")
        measured = any(state != "not measured" for state in states.values())
        purity = self.task_purity
        chance = None if purity is None else float(self.of_model["base"]["task-purity"]["chance"])
        return Findings(
            findings_of(
                self.curves(),
                n=self.n,
                d=self.d,
                biased={role: self.values(role, "biased CKA") for role in MODELS},
                gains=gains if np.isfinite(gains).any() else None,
                learnt=np.array([states[task] == "learnt" for task in self.tasks]) if measured else None,
                task_dims=self.task_dims,
                purity=purity,
                purity_chance=chance,
                seed=self.config.seed,
            )
        )


def _all_prompts(result: ProbeResult, value: str) -> Float[np.ndarray, "site *half"]:
    """Return a value over all prompts, by site."""
    return np.asarray(result.sel(value, label="all"), dtype=float)
