"""Settings of ``mechclust clusters``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch

from mechclust.commands.settings import PromptSettings, UntrainedSettings, check_map_prompts
from probes import LinearDecodability, NeighbourPurity, Preprocess, TaskClusterARI
from probes.engine.sites import Sites
from tasks import InputError
from tasks.settings import (
    MAX_DRAWS,
    Above,
    AtLeast,
    AtMost,
    Count,
    CountOrZero,
    Draws,
    Positive,
    Repeats,
    RepeatsOrZero,
    Several,
    check_different_settings,
)

MAX_FOLDS = 5  # of the linear classifier
MAX_QUERIES = 5000  # prompts whose nearest neighbour is found


@dataclass(frozen=True, kw_only=True)
class ClustersConfig(UntrainedSettings, PromptSettings):
    """Settings of ``mechclust clusters``; ``mechclust clusters --help`` also shows those that commands share.

    Args:
        also: further labels in the file to compare the clusters with.
        given: a label in the file, or a surface feature (such as ``"last word"``), whose class means are subtracted
            from the states for a second index; ``auto``: whatever the clusters follow, if not the task; or ``none``.
        within: a label in the file within whose classes the task is permuted for the chance levels, such as the inputs
            that all tasks share. Prompts with one value also share a fold of the linear classifier, so it is tested on
            inputs that it has not seen.
        n_clusters: number of clusters; by default the number of the label's classes.
        drop_outliers: leave out dimensions whose standard deviation is above this many times the median one, such as
            10.
        standardise: give every dimension equal variance before clustering.
        pca: cluster this many principal components.
        cosine: cluster directions: states of length 1.
        tsne: cluster a 2-D t-SNE of the states instead of the states themselves.
        n_init: number of k-means starts.
        n_permutations: number of random relabellings for the null interval.
        n_resamples: number of half-samples for the 95% intervals of the indices over prompts or units.
        n_shuffles: number of random relabellings for the linear classifier's null interval.
        max_rows: use at most this many prompts, chosen by their position in the file.
        max_memory: most memory, in GiB, for one layer's hidden states.
        map_prompts: most prompts on the report's map, chosen by their position in the file; 0 for no map.
        seed: seed for k-means, t-SNE, the relabellings and the half-samples.

    Example:
        >>> from pathlib import Path
        >>> ClustersConfig(Path("prompts.jsonl"), n_permutations=200).n_permutations
        200
    """

    untrained: RepeatsOrZero = 3  # one alone may be far from the next
    also: tuple[str, ...] = ()
    given: str = "auto"
    within: str | None = None
    n_clusters: Several | None = None
    drop_outliers: Annotated[float, Above(1)] | None = None
    standardise: bool = False
    pca: Count | None = None
    cosine: bool = False
    tsne: bool = False
    n_init: Repeats = 10
    n_permutations: Draws = 1000
    n_resamples: Annotated[int, AtLeast(20), AtMost(MAX_DRAWS)] = 50
    n_shuffles: Draws = 100
    max_rows: Several | None = None
    max_memory: Positive = 8.0
    map_prompts: CountOrZero = 5000

    def check(self) -> None:
        """Refuse settings that cannot be measured with."""
        super().check()
        check_map_prompts(self.map_prompts)
        if "task" in self.also:
            raise InputError("task is measured anyway; leave it out of --also")
        check_different_settings(also=self.also)
        if self.within in self.labels:
            raise InputError(
                f"within is {self.within!r}, which is itself compared with the clusters; choose another label, or "
                "leave out --within"
            )
        self.clustering("hook_embed", self.labels)  # probes check their own settings
        self.classifier("hook_embed", self.labels)

    @property
    def labels(self) -> list[str]:
        """Labels that are compared with the clusters: the task, then the further ones."""
        return ["task", *self.also]

    def clustering(
        self, at: Sites, labels: Sequence[str], given: str | None = None, *, keep: bool = False
    ) -> TaskClusterARI:
        """Return the probe that clusters hidden states.

        Args:
            at: hooks.
            labels: to compare the clusters with.
            given: the label whose class means are subtracted first.
            keep: whether to keep the cluster of every prompt.
        """
        first, *also = labels
        return TaskClusterARI(
            first,
            at,
            self.readout,
            also,
            n_clusters=self.n_clusters,
            given=given,
            within=self.within,
            units=self.unit_label,
            preprocess=Preprocess(
                drop_outliers=self.drop_outliers, standardise=self.standardise, pca=self.pca, cosine=self.cosine
            ),
            reduce="tsne" if self.tsne else None,
            n_init=self.n_init,
            n_permutations=self.n_permutations,
            n_resamples=self.n_resamples,
            device=self.statistics,
            keep_clusters=keep,
            seed=self.seed,
        )

    def folds(self, labels: Mapping[str, Sequence[str]]) -> int:
        """Return the number of folds of the linear classifier.

        There are fewer than ``MAX_FOLDS`` if no task has as many prompts, or ``within`` or the units as many values.

        Args:
            labels: labels of the prompts, by name.
        """
        folds = min(MAX_FOLDS, max(Counter(labels["task"]).values()))
        kept_together = self.within or self.unit_label
        return folds if kept_together is None else min(folds, len(set(labels[kept_together])))

    def classifier(self, at: Sites, labels: Sequence[str], folds: int = MAX_FOLDS) -> LinearDecodability:
        """Return the probe that reads labels from hidden states, with nothing subtracted.

        Args:
            at: hooks.
            labels: to read.
            folds: parts of the prompts, each read by a classifier that was fitted to the others.
        """
        first, *also = labels
        return LinearDecodability(
            first,
            at,
            self.readout,
            also,
            units=self.within or self.unit_label,
            folds=folds,
            n_shuffles=self.n_shuffles,
            device=self.statistics,
            seed=self.seed,
        )

    def nearest(self, at: Sites, held_out: str | None = None) -> NeighbourPurity:
        """Return the probe that asks whether a prompt's nearest neighbour is of its task.

        Args:
            at: hooks.
            held_out: a label whose classes are left out of the neighbours of their prompts, such as the template. It is
                then tested by relabelling.
        """
        return NeighbourPurity(
            at,
            self.readout,
            "task",
            k=1,  # with more, a task of two small templates could not have them all
            max_memory=self.max_memory,
            max_rows=MAX_QUERIES,
            device=self.statistics,
            units=held_out,
            within=self.within if held_out else None,
            n_permutations=self.n_permutations if held_out else 0,
            seed=self.seed,
        )

    @property
    def statistics(self) -> str | None:
        """Device on which clusters and classifiers are fitted: the model's GPU, or ``None`` for the CPU.

        On a Ray cluster it is the CPU unless the machine of the command has a GPU too.
        """
        usable = self.engine == "local" or torch.cuda.is_available()
        return self.device if self.device.startswith("cuda") and usable else None
