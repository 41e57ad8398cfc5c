"""Clusters of hidden states by task (Wu & Varshney, arXiv 2402.12151)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from probes.engine.devices import check_float64_device
from probes.engine.labelled_rows import LabelledRows, check_further_labels, check_max_labelled_rows
from probes.engine.preprocess import Preprocess
from probes.engine.readout import Readout, check_row_readout, token_at
from probes.engine.result import ProbeResult
from probes.engine.sites import Sites, residual
from probes.functional.adjusted_rand import (
    adjusted_rand_moments,
    adjusted_rand_score,
    relabelled_adjusted_rand,
    too_few_for_index_moments,
)
from probes.functional.halves import FEWEST_UNITS, check_n_halves, half_interval
from probes.functional.kmeans import check_n_clusters, kmeans, kmeans_of_halves
from probes.functional.permutation_test import permutation_p_value
from probes.functional.projection import project_2d
from probes.functional.relabelling import Relabelling
from probes.functional.strata import check_strata_labels, nothing_left_in_strata, single_class_strata, strata_of
from probes.store.splitmix64 import splitmix64
from tasks import InputError
from tasks.settings import check_choice, check_count

_ALONE = "has one example per class ({} in all), which any clustering into as many clusters agrees with"
_LOPSIDED = "too few classes, or too unequal ones, for moments, so chance and p_value are NaN; give n_permutations=1000"
_MAX_SILHOUETTE_ROWS = 2000
_MEASURES = ("ari", "ami", "silhouette", "null_low", "null_high", "null_mean", "p_value")
_INTERVAL = ("ari_low", "ari_high")


class TaskClusterARI(LabelledRows):
    """Adjusted Rand index between k-means clusters of hidden states and labels, per site.

    Measures (axes site, label, and n_clusters if several are given):
        ``ari``: 1 when the clusters are the classes, 0 expected by chance. Not clamped.
        ``ari_low``, ``ari_high``, with ``n_resamples``: 95% interval of ``ari`` over examples, or over units, from
            halves that are clustered anew (see ``half_interval``). NaN for fewer than 8.
        ``ami``: adjusted mutual information of these clusters (scikit-learn's), also 0 by chance and 1 at most.
        ``silhouette``: of the clusters, -1 to 1: how much nearer an example is to its own cluster than to the next one,
            on average. NaN with fewer than 2 clusters, or one per example.
        ``label_silhouette`` (site, label): silhouette of the label's classes.
        ``null_low``, ``null_high``: the central 95% of ``ari`` under random relabelling.
        ``null_mean``: mean of ``ari`` under random relabelling. Need not be 0 with ``given`` or ``within``.
        ``p_value``: share of relabellings at least as high, counting the observed one. NaN with fewer than 20 different
            relabellings.
        ``cluster`` (also example), with ``keep_clusters``: cluster of each example, or -1 if the index is NaN.
        ``ari_halves`` (also half), with ``keep_halves``: ``ari`` of each half, of ``metadata["n_units"]``.

    Memory: every example's kept row at every site, ``examples x sites x d_model`` floats, or
    ``max_rows`` examples. Cost: k-means with ``n_init + n_resamples`` starts per site and number of clusters.

    Args:
        label: the label the clusters are compared with, one value per example.
        at: where to measure.
        readout: which position, by default the input token.
        also: further labels, each clustered separately with its own number of clusters.
        n_clusters: clusters for every label, or several numbers of them. ``None``: as many as the label has classes.
        given: a label whose class means are subtracted from the states before they are clustered. Relabellings stay
            within its classes. Clusters that remain do not come from it.
        within: a label within whose classes relabellings stay, such as an input that all tasks share. The states are
            unchanged.
        units: a label that says which examples belong together, such as the template of prompts, because they are not
            independent. Units of one class exchange labels as a whole. In the others, examples exchange them within the
            unit. The interval takes units, not examples, as independent.
        preprocess: further preparation of the states before they are clustered.
        reduce: ``None``: cluster the states themselves. ``"tsne"``: cluster a 2-D t-SNE of them. Never mix
            the two in one curve. Silhouettes are computed before the t-SNE.
        n_init: k-means starts, of which the best one counts. Take more if values change with ``seed``.
        n_permutations: number of random relabellings for the null interval. 0: a shifted gamma distribution with the
            exact mean, variance and skewness over all relabellings instead. Not with ``given``, ``within`` or
            ``units``. Exact for two classes against two clusters. Otherwise NaN, with a note, if the label or the
            clusters have fewer than 2.5 effective classes.
        n_resamples: number of half-samples for the interval (0: none). States are prepared once for all of them.
        max_rows: keep at most this many examples, chosen by their index.
        device: device of k-means, such as ``"cuda"``. ``None`` is the CPU.
        keep_clusters: also give each example's cluster.
        keep_halves: also give the index of each half. The halves depend on the examples, not on their states.
        seed: for k-means, t-SNE, the relabellings and the halves.

    Raises:
        InputError: for fewer examples than clusters, a label with one class only, ``label`` with one example per
            class or determined by ``given`` or ``within`` (a further label is NaN then, with a note), a label given
            per token, or a t-SNE of one principal component.

    Example:
        >>> from probes import TaskClusterARI, last_token
        >>> TaskClusterARI(also=("output",)).also
        ('output',)
    """

    def __init__(
        self,
        label: str = "task",
        at: Sites = residual(),
        readout: Readout = token_at("input"),
        also: Sequence[str] = (),
        n_clusters: int | Sequence[int] | None = None,
        given: str | None = None,
        within: str | None = None,
        units: str | None = None,
        preprocess: Preprocess = Preprocess(),
        reduce: Literal["tsne"] | None = None,
        n_init: int = 10,
        n_permutations: int = 1000,
        n_resamples: int = 0,
        max_rows: int | None = None,
        device: str | None = None,
        keep_clusters: bool = False,
        keep_halves: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(at, check_row_readout(readout))
        self.label = label
        self.also = also
        self.n_clusters = n_clusters
        self.given = given
        self.within = within
        self.units = units
        self.preprocess = preprocess
        self.reduce = reduce
        self.n_init = n_init
        self.n_permutations = n_permutations
        self.n_resamples = n_resamples
        self.max_rows = max_rows
        self.device = device
        self.keep_clusters = keep_clusters
        self.keep_halves = keep_halves
        self.seed = seed
        self._check()

    def _check(self) -> None:
        check_choice(reduce=(self.reduce, (None, "tsne")))
        if self.reduce and self.preprocess.pca == 1:
            raise InputError("pca is 1, and a t-SNE needs 2 dimensions; give 2 or more, or leave out the t-SNE")
        check_n_clusters(self.n_clusters)
        check_count(n_init=(self.n_init, 1), n_permutations=(self.n_permutations, 0), seed=(self.seed, 0))
        check_n_halves(self.n_resamples)
        check_max_labelled_rows(self.max_rows, int(np.max(self.n_clusters or 2)), ", as many as clusters")
        check_further_labels(self.also)
        check_strata_labels(self.label, given=self.given, within=self.within, units=self.units)
        if self.n_permutations == 0 and (self.given or self.within or self.units):
            raise InputError(
                "n_permutations is 0, but there is no formula for relabellings within classes of another label or of "
                "whole units; give 1000, or leave out given, within and units"
            )
        if self.device is not None:
            check_float64_device(self.device)

    def _labels_to_keep(self) -> list[str | None]:
        return [self.label, *self.also, self.given, self.within, self.units]

    # ---- the result ----

    def compute(self) -> ProbeResult:
        """Return the agreement of clusters and labels, over all examples kept."""
        index = self.classes.get(self.label)[0]
        labels = [_Label(self, name) for name in (self.label, *self.also)]
        values = self._undefined(labels, len(index))
        dropped = {}
        notes = self._label_notes(labels)
        for i, site in enumerate(self.site_names):
            rows, dropped[site], site_notes = self._prepared(self.hidden.get(site)[1])
            notes += [f"{site}: {note}" for note in site_notes]
            space = _Space(rows, index, self)
            for j, label in enumerate(labels):
                if label.nan:
                    continue
                values["label_silhouette"][i, j] = space.silhouette(label.classes)
                for m, k in enumerate(label.clusters):
                    for measure, value in self._compared(label, k, space).items():
                        values[measure][i, j, m] = value
                    if self.n_permutations == 0 and bool(values["null_low"][i, j, m].isnan()):
                        notes += label.lopsided(space.clusters(k))
                    notes += [f"{site}: {note}" for note in space.fewer_clusters(k, label.name)]
        metadata: dict[str, object] = {
            "n": len(index),
            "n_clusters": {label.name: label.clusters if self._several else label.clusters[0] for label in labels},
            "reduce": self.reduce,
        }
        if self.preprocess.drop_outliers is not None:
            metadata["dropped_dimensions"] = dropped
        return self._labelled_result(values, labels, index, metadata, [*notes, *self._repeats()])

    def _undefined(self, labels: Sequence[_Label], n: int) -> dict[str, Shaped[Tensor, "site label ..."]]:
        """Return every measure of ``n`` examples, undefined until it is measured."""
        shape = (len(self.sites), len(labels), max(len(label.clusters) for label in labels))
        values = {measure: torch.full(shape, torch.nan, dtype=torch.float64) for measure in self._measures}
        values["label_silhouette"] = torch.full(shape[:2], torch.nan, dtype=torch.float64)
        if self.keep_clusters:
            values["cluster"] = torch.full((*shape, n), -1, dtype=torch.int64)
        if self._keeps_halves:
            values["ari_halves"] = torch.full((*shape, self.n_resamples), torch.nan, dtype=torch.float64)
        return values

    def _labelled_result(
        self,
        values: dict[str, Shaped[Tensor, "..."]],
        labels: Sequence[_Label],
        index: Int[Tensor, "row"],
        metadata: Mapping[str, object],
        notes: Sequence[str],
    ) -> ProbeResult:
        """Return the values with their axes, of which ``n_clusters`` is one if several numbers of them were given."""
        axes: tuple[str, ...] = ("site", "label")
        coords = {"label": [label.name for label in labels]}
        if self._several:
            axes = (*axes, "n_clusters")
            coords["n_clusters"] = [str(k) for k in labels[0].clusters]
        else:
            values = {name: x if name == "label_silhouette" else x[:, :, 0] for name, x in values.items()}
        axes_by_name = {
            **dict.fromkeys(self._measures, axes),
            "label_silhouette": ("site", "label"),
            "cluster": (*axes, "example"),
            "ari_halves": (*axes, "half"),
        }
        if self.keep_clusters:
            coords["example"] = [str(i) for i in index.tolist()]
        if self._keeps_halves:
            metadata = {**metadata, "n_units": self._n_units()}
            coords["half"] = [str(half) for half in range(self.n_resamples)]
        axes_of_values = {name: axes_by_name[name] for name in values}
        return self.result(values, axes_of_values, coords, metadata=metadata, notes=list(dict.fromkeys(notes)))

    @property
    def _measures(self) -> tuple[str, ...]:
        return (*_MEASURES, *_INTERVAL) if self.n_resamples else _MEASURES

    def _n_units(self) -> int:
        return len(np.unique(self._codes(self.units))) if self.units else len(self._codes(self.label))

    @property
    def _several(self) -> bool:
        return isinstance(self.n_clusters, Sequence)

    @property
    def _keeps_halves(self) -> bool:
        return self.n_resamples > 0 and self.keep_halves

    def _prepared(self, rows: Float[Tensor, "row d_model"]) -> tuple[Float[Tensor, "row kept"], int, list[str]]:
        """Return the states to cluster, the number of dropped dimensions, and notes for the reader."""
        if self.given is None and self.preprocess == Preprocess():
            return rows.float(), 0, []
        return self.preprocess.apply(rows, self.classes.get(self.given)[1] if self.given else None)

    def _compared(self, label: _Label, k: int, space: _Space) -> dict[str, float | Shaped[Tensor, "_"]]:
        """Return every measure of the clustering into ``k`` against one label."""
        from sklearn.metrics import adjusted_mutual_info_score

        assigned = space.clusters(k)
        score = adjusted_rand_score(label.classes, assigned)
        measured: dict[str, float | Shaped[Tensor, "_"]] = {
            "ari": score,
            "ami": float(adjusted_mutual_info_score(label.classes, assigned)),
            "silhouette": space.silhouette(assigned),
        }
        if self.keep_clusters:
            measured["cluster"] = torch.from_numpy(assigned)
        if self.n_resamples:
            of_halves = [adjusted_rand_score(label.classes[half], clusters) for half, clusters in space.halves(k)]
            measured |= zip(_INTERVAL, half_interval(score, of_halves, space.n_units), strict=True)
            if self.keep_halves:
                measured["ari_halves"] = torch.tensor(of_halves or [math.nan] * self.n_resamples, dtype=torch.float64)
        if label.fixed:
            return measured
        if self.n_permutations == 0:
            moments = adjusted_rand_moments(label.classes, assigned)
            mean = moments.mean
            low, high, p = moments.null(score)
        else:
            null = relabelled_adjusted_rand(label.classes, assigned, label.relabelling, self.n_permutations, self.seed)
            mean = float(null.mean())
            low, high = np.quantile(null, [0.025, 0.975]).tolist()
            p = float(permutation_p_value(score, null))
        if label.few:
            p = math.nan
        return {**measured, "null_low": low, "null_high": high, "null_mean": mean, "p_value": p}

    # ---- notes ----

    def _label_notes(self, labels: Sequence[_Label]) -> list[str]:
        """Note the labels that cannot be measured, and those whose states removing class means makes constant."""
        notes = []
        for label in labels:
            notes += label.notes
        if self.given is not None:
            alone = int((np.bincount(self._codes(self.given)) == 1).sum())
            if alone:
                notes.append(
                    f"{alone} classes of {self.given!r} have one example, whose state is 0 once its class mean is "
                    "removed"
                )
        if self.n_resamples and self._n_units() < FEWEST_UNITS:
            what = f"units ({self.units!r})" if self.units else "examples"
            notes.append(f"{self._n_units()} {what} are too few for an interval of ari ({FEWEST_UNITS} are enough)")
        return notes


class _Label:
    """One label of the examples, and whether it can be measured.

    Attributes:
        name: name of the label.
        classes: class of each example.
        clusters: numbers of clusters to compare it with.
        relabelling: permutations of its classes.
        nan: the label cannot be measured.
        fixed: no relabelling can change it.
        few: there are too few different relabellings for a p-value.
        notes: caveats for the reader.
    """

    classes: Int[np.ndarray, "row"]

    def __init__(self, probe: TaskClusterARI, name: str) -> None:
        others = {other: probe._codes(other) for other in (probe.given, probe.within) if other}
        units = probe._codes(probe.units) if probe.units else None
        self.name = name
        self.classes = probe.classes.get(name)[1].numpy()
        self.clusters = _clusters_for(probe, name, self.classes)
        self.relabelling = Relabelling.from_classes(self.classes, units, strata_of(others))
        self.notes: list[str] = []
        self.few = False
        n = len(self.classes)
        self.nan = len(np.unique(self.classes)) == n
        self.fixed = self.nan
        if self.nan:
            self.notes.append(f"label {name!r} {_ALONE.format(n)}, so its index is NaN")
            return
        if others or units is not None:
            self._stratified(probe, name, others)
        too_few = "" if self.fixed else self.relabelling.too_few(name, named=False, units=probe.units)
        if too_few:
            self.few = True
            self.notes.append(too_few)

    def lopsided(self, assigned: Int[np.ndarray, "row"]) -> list[str]:
        """Note if the label or the clusters compared with it have too few classes for a p-value from moments."""
        labelings = {f"label {self.name!r}": self.classes, f"a clustering compared with label {self.name!r}": assigned}
        few = [name for name, x in labelings.items() if too_few_for_index_moments(x)]
        return [f"{name} has {_LOPSIDED}" for name in few[:1]]

    def _stratified(self, probe: TaskClusterARI, name: str, others: Mapping[str, Int[np.ndarray, "row"]]) -> None:
        """Note the labels that relabellings within classes of other labels and units cannot change.

        Raises:
            InputError: if they cannot change the main label at all.
        """
        main = name == probe.label
        if probe.given and single_class_strata(others[probe.given], self.classes) == 1:
            self.nan = self.fixed = True
            why = nothing_left_in_strata(name, probe.given)
            if main:
                raise InputError(f"{why}; choose one whose classes have examples of several classes of {name!r}")
            self.notes.append(f"{why}; its index is NaN")
            return
        share = self.relabelling.fixed_share
        held = [*others, *([probe.units] if probe.units else [])]
        strata = " and ".join(map(repr, held))
        if share == 1:
            self.fixed = True
            why = f"label {name!r} has one class within each class of {strata}, so no relabelling within it changes it"
            if main:
                raise InputError(f"{why}; {_way_out(probe, name, self.classes, others)}")
            self.notes.append(f"{why}; its chance and p_value are NaN")
            return
        if share > 0 and (others or not self.relabelling.whole_units):
            member = self.relabelling.member  # a unit may have many examples
            share = single_class_strata(self.relabelling.strata[member], self.classes)
            self.notes.append(
                f"relabellings within classes of {strata} leave {share:.0%} of the examples as they are, for lack of "
                f"another class of {name!r}"
            )


def _way_out(
    probe: TaskClusterARI,
    name: str,
    classes: Int[np.ndarray, "row"],
    others: Mapping[str, Int[np.ndarray, "row"]],
) -> str:
    if probe.within and single_class_strata(others[probe.within], classes) == 1:
        return f"if {probe.within!r} lies within classes of {name!r}, give units={probe.within!r} instead"
    return f"choose one whose classes have examples of several classes of {name!r}"


def _clusters_for(probe: TaskClusterARI, name: str, classes: Int[np.ndarray, "row"]) -> list[int]:
    """Return the numbers of clusters to compare a label with."""
    n_classes = len(np.unique(classes))
    if n_classes < 2:
        raise InputError(f"label {name!r} has one class only; clustering needs examples of at least 2 classes")
    given = probe.n_clusters
    numbers = list(given) if isinstance(given, Sequence) else [given or n_classes]
    way_out = "set n_clusters lower" if given else "set n_clusters"
    for k in numbers:
        if len(classes) < k:
            raise InputError(
                f"{len(classes)} examples for {k} clusters of {name!r}; give at least as many examples as clusters, "
                f"or {way_out}"
            )
    if n_classes == len(classes) and name == probe.label:
        raise InputError(
            f"label {name!r} {_ALONE.format(n_classes)}; give at least 2 examples of some classes, preferably 20"
        )
    return numbers


class _Space:
    """The states of one site: their clusters, each number of them once, and their distances.

    Attributes:
        distinct: number of different states.
        n_units: number of units, or of examples.
    """

    def __init__(self, rows: Float[Tensor, "row dim"], index: Int[Tensor, "row"], probe: TaskClusterARI) -> None:
        unique, inverse = torch.unique(rows, dim=0, return_inverse=True)
        self.distinct = len(unique)
        self._state_of_row: Int[np.ndarray, "row"] = inverse.numpy()
        self._rows: Float[np.ndarray, "row dim"] = rows.numpy()
        self._probe = probe
        self._clusters: dict[int, Int[np.ndarray, "row"]] = {}
        self._halves: dict[int, list[tuple[Int[np.ndarray, "half"], Int[np.ndarray, "half"]]]] = {}
        self._units = probe._codes(probe.units) if probe.units else None
        self.n_units = len(rows) if self._units is None else int(self._units.max()) + 1
        chosen = torch.sort(splitmix64(index), stable=True).indices[:_MAX_SILHOUETTE_ROWS].sort().values
        self._silhouette_rows: Int[np.ndarray, "chosen"] = chosen.numpy()

    def clusters(self, k: int) -> Int[np.ndarray, "row"]:
        """Return the cluster of each example.

        With at most ``k`` distinct states, each is a cluster: the optimum of k-means.
        """
        if self.distinct <= k:
            return self._state_of_row
        if k not in self._clusters:
            self._clusters[k] = self._fitted(k)
        return self._clusters[k]

    def fewer_clusters(self, k: int, label: str) -> list[str]:
        """Note if fewer than ``k`` clusters have examples."""
        if self.distinct < k:
            states = f"{self.distinct} distinct states for {k} clusters of {label!r}"
            return [f"{states}, so that each is a cluster of its own"]
        n = len(np.unique(self.clusters(k)))
        return [f"{n} of {k} clusters of {label!r} have examples, as some states hardly differ"] if n < k else []

    def halves(self, k: int) -> list[tuple[Int[np.ndarray, "half"], Int[np.ndarray, "half"]]]:
        """Return random halves of the examples with separate clusters, or no halves for too few examples."""
        if self.n_units < FEWEST_UNITS:
            return []
        if k not in self._halves:
            probe = self._probe
            rows = self._rows if self.distinct <= k else self._reduced  # a t-SNE would tear equal states apart
            self._halves[k] = kmeans_of_halves(
                rows, self.clusters(k), probe.n_resamples, self._units, probe.seed, probe.device
            )
        return self._halves[k]

    @cached_property
    def _reduced(self) -> Float[np.ndarray, "row kept"]:
        return project_2d(self._rows, self._probe.seed) if self._probe.reduce else self._rows

    def _fitted(self, k: int) -> Int[np.ndarray, "row"]:
        probe = self._probe
        return kmeans(self._reduced, k, n_init=probe.n_init, seed=probe.seed, device=probe.device).labels

    @cached_property
    def _distances(self) -> Float[np.ndarray, "chosen chosen"] | None:
        """Return the distances between the rows of a silhouette, or ``None`` if all are one point."""
        from sklearn.metrics.pairwise import euclidean_distances
        from threadpoolctl import threadpool_limits

        rows = self._rows[self._silhouette_rows].astype(np.float64)
        if not (rows != rows[0]).any():
            return None
        with threadpool_limits(1):
            return euclidean_distances(rows - rows[0])  # type: ignore[no-any-return]

    def silhouette(self, labels: Int[np.ndarray, "row"]) -> float:
        """Return scikit-learn's silhouette of at most 2,000 examples chosen by their index, or NaN if undefined."""
        from sklearn.metrics import silhouette_score

        labels = labels[self._silhouette_rows]
        if not 2 <= len(np.unique(labels)) < len(labels) or self._distances is None:
            return math.nan
        return float(silhouette_score(self._distances, labels, metric="precomputed"))
