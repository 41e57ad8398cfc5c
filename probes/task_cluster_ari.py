"""Do a model's hidden states cluster by task? (Wu & Varshney, arXiv 2402.12151)"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.engine.hooks import check_device
from probes.engine.preprocess import Preprocess
from probes.engine.probe import Probe
from probes.engine.readout import Readout, check_row_readout, token_at
from probes.engine.repeats import repeats_note
from probes.engine.result import ProbeResult
from probes.engine.sites import Sites, residual
from probes.engine.state import Rows, hashed
from probes.functional.adjusted_rand import (
    FEWEST_EFFECTIVE_CLASSES,
    adjusted_rand_moments,
    adjusted_rand_score,
    effective_classes,
)
from probes.functional.kmeans import kmeans
from probes.functional.projection import project_2d
from probes.functional.strata import check_given, nothing_left, single_class, strata_of
from probes.functional.task_cluster_ari import fitted_clusters, permuted_index
from probes.functional.units import Relabelling, check_units
from tasks import Batch, InputError
from tasks.errors import check_at_least, check_choice

_ALONE = "has one example per class ({} in all), which any clustering into as many clusters agrees with"
_LOPSIDED = "too few classes, or too unequal ones, for moments, so chance and p_value are NaN; give n_permutations=1000"
_SEEN = 2000  # examples behind a silhouette
_MEASURES = ("ari", "ami", "silhouette", "null_low", "null_high", "null_mean", "p_value")


class TaskClusterARI(Probe):
    """Adjusted Rand index between k-means clusters of hidden states and labels, per site.

    Measures (axes site, label; and n_clusters, where several are given):
        ``ari``: 1 when the clusters are the classes, 0 expected by chance; not clamped.
        ``ami``: adjusted mutual information of the same clusters (scikit-learn's), on the same scale.
        ``silhouette``: of the clusters, -1 to 1: how much nearer an example is to its own cluster than to the next
            one, on average. NaN with fewer than 2 clusters, or one per example.
        ``label_silhouette`` (site, label): the same of the label's classes.
        ``null_low``, ``null_high``: the central 95% of ``ari`` under random relabelling.
        ``null_mean``: its mean; it need not be 0 with ``given`` or ``within``.
        ``p_value``: share of relabellings at least as high, counting the observed one. NaN with fewer than 20 different
            relabellings.
        ``cluster`` (also example), with ``keep_clusters``: cluster of each example; -1 where the index is NaN.

    Memory: every example's kept row at every site, ``examples x sites x d_model`` floats, or
    ``max_rows`` examples. Cost: k-means with ``n_init`` starts per site and number of clusters.

    Args:
        label: the label the clusters are compared with, one value per example.
        at: where to measure.
        readout: which position; the state at the input token by default.
        also: further labels, each clustered separately with its own number of clusters.
        n_clusters: clusters for every label, or several numbers of them; ``None``: as many as the label has classes.
        given: a label whose class means are subtracted from the states before they are clustered. Relabellings stay
            within its classes: what is left clusters independently of it.
        within: a label within whose classes relabellings stay, such as the input that is the same in every task. The
            states are unchanged.
        units: a label that says which examples belong together, such as the template of prompts, because they are not
            independent. Whole units exchange labels; if classes vary within units, examples exchange them within their
            unit.
        preprocess: what else is done to the states before they are clustered.
        reduce: ``None``: cluster the states themselves. ``"tsne"``: cluster a 2-D t-SNE of them. Never mix
            the two in one curve. Silhouettes are computed before the t-SNE.
        n_init: k-means starts; the best one counts.
        n_permutations: number of random relabellings for the null interval. 0: a shifted gamma distribution with the
            exact mean, variance and skewness over all relabellings instead; not with ``given``, ``within`` or
            ``units``. Exact for two classes against two clusters; NaN, with a note, where the label or the clusters
            have fewer than 2.5 effective classes otherwise.
        max_rows: keep at most this many examples, chosen by their index.
        device: ``None``: scikit-learn's k-means. ``"cpu"``, ``"cuda"``: our own, also exact, on that device.
        keep_clusters: also give each example's cluster.
        seed: for k-means, t-SNE and the relabellings.

    Raises:
        InputError: for fewer examples than clusters, a label with one class only, ``label`` with one example per
            class or determined by ``given`` or ``within`` (a further label is NaN then, with a note), or a label
            given per token.

    Example:
        >>> from probes import TaskClusterARI, last_token
        >>> TaskClusterARI(also=("output",)).also
        ('output',)
    """

    hidden = Rows(cap="max_rows")
    classes = Rows(cap="max_rows")

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
        max_rows: int | None = None,
        device: str | None = None,
        keep_clusters: bool = False,
        seed: int = 0,
    ) -> None:
        check_choice(reduce=(reduce, (None, "tsne")))
        _check_clusters(n_clusters)
        check_at_least(n_init=(n_init, 1), n_permutations=(n_permutations, 0), seed=(seed, 0))
        if max_rows is not None and max_rows < 2:
            raise InputError(f"max_rows is {max_rows}; expected at least 2, or None for no limit")
        if isinstance(also, str):
            raise InputError(f"also is the string {also!r}; expected a sequence of label names such as ({also!r},)")
        check_given(label, given=given, within=within, units=units)
        check_units(units, {"n_permutations": n_permutations})
        if n_permutations == 0 and (given or within):
            raise InputError(
                "n_permutations is 0, but there is no formula for relabellings within classes of another label; give "
                "1000, or leave out given and within"
            )
        if device is not None:
            check_device(device)
        super().__init__(at, check_row_readout(readout))
        self.label, self.also, self.n_clusters, self.reduce = label, also, n_clusters, reduce
        self.given, self.within, self.units, self.preprocess = given, within, units, preprocess
        self.n_init, self.n_permutations, self.max_rows, self.seed = n_init, n_permutations, max_rows, seed
        self.device, self.keep_clusters = device, keep_clusters

    def update(self, activations: Mapping[str, Tensor], batch: Batch) -> None:
        wanted = (self.label, *self.also, self.given, self.within, self.units)
        for name in dict.fromkeys(name for name in wanted if name is not None):
            self.classes.add(name, batch.index, batch.label(name, per="example"))
        for site, rows in activations.items():
            self.hidden.add(site, batch.index, rows.flatten(1))

    def compute(self) -> ProbeResult:
        names = [self.label, *self.also]
        index = self.classes.get(self.label)[0]
        labels = {name: _Label(self, name) for name in names}
        several = isinstance(self.n_clusters, Sequence)
        shape = (len(self.sites), len(names), max(len(label.clusters) for label in labels.values()))
        values = {measure: torch.full(shape, torch.nan, dtype=torch.float64) for measure in _MEASURES}
        of_label = torch.full(shape[:2], torch.nan, dtype=torch.float64)
        found = torch.full((*shape, len(index)), -1, dtype=torch.int64)
        notes, dropped = [note for label in labels.values() for note in label.notes], {}
        given = self.classes.get(self.given)[1] if self.given else None
        if given is not None and (single := int((torch.unique(given, return_counts=True)[1] == 1).sum())):
            notes.append(
                f"{single} classes of {self.given!r} have one example, whose state is 0 once its class mean is removed"
            )
        for i, site in enumerate(self.site_names):
            rows, dropped[site], about = self._prepared(self.hidden.get(site)[1], given)
            notes += [f"{site}: {note}" for note in about]
            space = _Space(rows, index, self)
            for j, name in enumerate(names):
                label = labels[name]
                if label.nan:
                    continue
                of_label[i, j] = space.silhouette(label.classes)
                for m, k in enumerate(label.clusters):
                    assigned = space.clusters(k)
                    found[i, j, m] = torch.from_numpy(assigned)
                    if self.n_permutations == 0 and (lopsided := label.lopsided(assigned)):
                        notes.append(lopsided)
                    for measure, value in self._compared(label, assigned, space).items():
                        values[measure][i, j, m] = value
                    if space.distinct < k:
                        notes.append(
                            f"{site} has {space.distinct} distinct states for {k} clusters of "
                            f"{name!r}: each state is a cluster of its own"
                        )
        if not several:
            values, found = {measure: value[..., 0] for measure, value in values.items()}, found[:, :, 0]
        axes = ("site", "label", "n_clusters") if several else ("site", "label")
        coords = {"label": names, "n_clusters": [str(k) for k in labels[self.label].clusters]} if several else {}
        measures: dict[str, tuple[str, ...]] = dict.fromkeys(_MEASURES, axes)
        measures["label_silhouette"], values["label_silhouette"] = ("site", "label"), of_label
        coords = {"label": names, **coords}
        if self.keep_clusters:
            measures["cluster"], values["cluster"] = (*axes, "example"), found
            coords["example"] = [str(i) for i in index.tolist()]
        clusters = {name: label.clusters if several else label.clusters[0] for name, label in labels.items()}
        metadata = {"n": len(index), "n_clusters": clusters, "reduce": self.reduce}
        if self.preprocess.drop_outliers is not None:
            metadata["dropped_dimensions"] = dropped
        if self.units is None and (repeats := self._repeats()):
            notes.append(repeats)
        return self.result(values, measures, coords, metadata=metadata, notes=list(dict.fromkeys(notes)))

    def _repeats(self) -> str:
        rows = {site: self.hidden.get(site)[1] for site in self.site_names}
        return repeats_note(rows, {site.name: site.layer for site in self.sites})

    def _prepared(self, rows: Tensor, given: Tensor | None) -> tuple[Float[Tensor, "n d"], int, list[str]]:
        if given is None and self.preprocess == Preprocess():
            return rows.float(), 0, []
        return self.preprocess.apply(rows, given)

    def _compared(self, label: _Label, assigned: Int[np.ndarray, "n"], space: _Space) -> dict[str, float]:
        """Every measure of one clustering against one label."""
        from sklearn.metrics import adjusted_mutual_info_score

        score = adjusted_rand_score(label.classes, assigned)
        found = {
            "ari": score,
            "ami": float(adjusted_mutual_info_score(label.classes, assigned)),
            "silhouette": space.silhouette(assigned),
        }
        if label.fixed:
            return found
        if self.n_permutations == 0:
            moments = adjusted_rand_moments(label.classes, assigned)
            low, high, p = moments.null(score)
            return {**found, "null_low": low, "null_high": high, "null_mean": moments.mean, "p_value": p}
        null = label.null(assigned, self.n_permutations, self.seed)
        low, high = (float(q) for q in np.quantile(null, [0.025, 0.975]))
        p = math.nan if label.few else (1 + int((null >= score).sum())) / (1 + self.n_permutations)
        return {**found, "null_low": low, "null_high": high, "null_mean": float(null.mean()), "p_value": p}


def _check_clusters(n_clusters: int | Sequence[int] | None) -> None:
    each = list(n_clusters) if isinstance(n_clusters, Sequence) else [] if n_clusters is None else [n_clusters]
    if isinstance(n_clusters, Sequence) and not each:
        raise InputError("n_clusters is empty; expected numbers such as (5, 10, 20), or None for one per class")
    for k in each:
        if k < 2:
            raise InputError(f"n_clusters is {k}; expected at least 2, or None for one per class")
    if len(set(each)) < len(each):
        raise InputError(f"n_clusters is {tuple(each)}; give each number once")


class _Label:
    """One label of the examples, and what of it can be measured.

    Attributes:
        name: of the label.
        classes: ``[n]`` class of each example.
        clusters: numbers of clusters to compare it with.
        relabelling: how its classes are permuted.
        nan: nothing can be measured.
        fixed: no relabelling can change it.
        few: there are too few different relabellings for a p-value.
        notes: what a reader must know.
    """

    def __init__(self, probe: TaskClusterARI, name: str) -> None:
        others = {other: _codes(probe, other) for other in (probe.given, probe.within) if other}
        self.name = name
        self.classes: Int[np.ndarray, "n"] = probe.classes.get(name)[1].numpy()
        self.clusters = _clusters_for(probe, name, self.classes)
        units = _codes(probe, probe.units) if probe.units else None
        self.relabelling = Relabelling.from_classes(self.classes, units, strata_of(others))
        self.notes: list[str] = []
        self.few = False
        n = len(self.classes)
        self.nan = self.fixed = len(np.unique(self.classes)) == n
        if self.nan:
            self.notes.append(f"label {name!r} {_ALONE.format(n)}, so its index is NaN")
            return
        if others or units is not None:
            self._stratified(probe, name, others)
        if not self.fixed and (few := self.relabelling.too_few(name, named=False, units=probe.units)):
            self.few = True
            self.notes.append(few)

    def null(self, assigned: Int[np.ndarray, "n"], n_permutations: int, seed: int) -> Float[np.ndarray, "draws"]:
        """Return the index of clusters and this label, relabelled at random."""
        return permuted_index(self.classes, assigned, self.relabelling, n_permutations, seed)

    def lopsided(self, assigned: Int[np.ndarray, "n"]) -> str:
        """Say where the label or the clusters compared with it have too few classes for a p-value from moments."""
        labelings = {f"label {self.name!r}": self.classes, f"a clustering compared with label {self.name!r}": assigned}
        if self.fixed or all(len(np.unique(labeling)) == 2 for labeling in labelings.values()):
            return ""
        few = [name for name, x in labelings.items() if effective_classes(x) < FEWEST_EFFECTIVE_CLASSES]
        return f"{few[0]} has {_LOPSIDED}" if few else ""

    def _stratified(self, probe: TaskClusterARI, name: str, others: Mapping[str, np.ndarray]) -> None:
        main = name == probe.label
        if probe.given and single_class(others[probe.given], self.classes) == 1:
            self.nan = self.fixed = True
            why = nothing_left(name, probe.given)
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
            self.notes.append(
                f"{share:.0%} of the examples are in classes of {strata} with one class of {name!r} only, which "
                "relabellings leave as they are"
            )


def _codes(probe: TaskClusterARI, name: str) -> Int[np.ndarray, "n"]:
    return np.unique(probe.classes.get(name)[1].numpy(), return_inverse=True)[1]


def _way_out(probe: TaskClusterARI, name: str, classes: Int[np.ndarray, "n"], others: Mapping[str, np.ndarray]) -> str:
    if probe.within and single_class(others[probe.within], classes) == 1:
        return f"if {probe.within!r} lies within classes of {name!r}, give units={probe.within!r} instead"
    return f"choose one whose classes have examples of several classes of {name!r}"


def _clusters_for(probe: TaskClusterARI, name: str, values: np.ndarray) -> list[int]:
    n_classes = len(np.unique(values))
    if n_classes < 2:
        raise InputError(f"label {name!r} has one class only; clustering needs examples of at least 2 classes")
    several = isinstance(probe.n_clusters, Sequence)
    ks = list(probe.n_clusters) if isinstance(probe.n_clusters, Sequence) else [probe.n_clusters or n_classes]
    for k in ks:
        if len(values) < k:
            raise InputError(
                f"{len(values)} examples for {k} clusters of {name!r}; give at least as many examples as clusters, "
                f"or set n_clusters{' lower' if several else ''}"
            )
    if n_classes == len(values) and name == probe.label:
        raise InputError(
            f"label {name!r} {_ALONE.format(n_classes)}; give at least 2 examples of some classes, preferably 20"
        )
    return ks


class _Space:
    """The states of one site: their clusters, each number of them once, and their distances."""

    def __init__(self, rows: Float[Tensor, "n d"], index: Int[Tensor, "n"], probe: TaskClusterARI) -> None:
        unique, inverse = torch.unique(rows, dim=0, return_inverse=True)
        self.distinct = len(unique)
        self._which, self._rows, self._probe = inverse.numpy(), rows.numpy(), probe
        self._reduced: np.ndarray | None = None if probe.reduce else self._rows
        self._found: dict[int, np.ndarray] = {}
        self._seen = torch.sort(hashed(index), stable=True).indices[:_SEEN].sort().values.numpy()
        self._distances: np.ndarray | None = None

    def clusters(self, k: int) -> Int[np.ndarray, "n"]:
        """Cluster of each example. With at most ``k`` distinct states, each is a cluster:
        that is k-means' own optimum, found without its warnings."""
        if self.distinct <= k:
            return self._which
        if k not in self._found:
            if self._reduced is None:
                self._reduced = project_2d(self._rows, self._probe.seed)
            self._found[k] = self._clustered(self._reduced, k)
        return self._found[k]

    def _clustered(self, rows: np.ndarray, k: int) -> np.ndarray:
        starts, seed = self._probe.n_init, self._probe.seed
        if self._probe.device is not None:
            found = kmeans(torch.from_numpy(rows), k, n_init=starts, seed=seed, device=self._probe.device)
            return found.labels.numpy()
        return fitted_clusters(rows, k, n_init=starts, seed=seed)

    def silhouette(self, labels: Int[np.ndarray, "n"]) -> float:
        """scikit-learn's, of at most ``_SEEN`` examples chosen by their index; NaN where it is not defined."""
        from sklearn.metrics import silhouette_score
        from sklearn.metrics.pairwise import euclidean_distances
        from threadpoolctl import threadpool_limits

        labels = labels[self._seen]
        if not 2 <= len(np.unique(labels)) < len(labels):
            return math.nan
        if self._distances is None:
            rows = self._rows[self._seen].astype(np.float64)
            with threadpool_limits(1):
                self._distances = euclidean_distances(rows - rows[0]) if (rows != rows[0]).any() else np.zeros((0, 0))
        if not len(self._distances):  # one point, many times
            return math.nan
        return float(silhouette_score(self._distances, labels, metric="precomputed"))
