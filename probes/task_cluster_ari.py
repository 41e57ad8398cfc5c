"""Do a model's hidden states cluster by task? (Wu & Varshney, arXiv 2402.12151)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from probes.functional.task_cluster_ari import adjusted_rand_null, adjusted_rand_score, n_relabellings
from probes.probe import Probe
from probes.readout import Readout, check_row_readout, token_at
from probes.result import ProbeResult
from probes.sites import Sites, residual
from probes.state import Rows
from tasks import Batch, InputError
from tasks.errors import check_at_least, check_choice

_ALONE = "has one example a class ({} in all), which any clustering into as many clusters agrees with"
_FEW = 20  # relabellings: with fewer, no p-value is below .05


class TaskClusterARI(Probe):
    """Adjusted Rand index between k-means clusters of hidden states and labels, per site.

    Measures (axes site, label):
        ``ari``: 1 when the clusters are the classes, 0 expected by chance; not clamped.
        ``null_low``, ``null_high``: the central 95% of the index under random relabelling.
        ``p_value``: share of relabellings at least as high, counting the observed one.

    Memory: every example's kept row at every site, ``examples x sites x d_model`` floats, or
    ``max_rows`` examples. Cost: k-means with ``n_init`` starts per site and label.

    Args:
        label: the label the clusters are compared with, one value per example.
        at: where to measure.
        readout: which position; the state at the input token by default.
        also: further labels, each clustered anew with its own number of clusters.
        n_clusters: clusters for every label; ``None``: as many as the label has classes.
        reduce: ``None``: cluster the states as they are. ``"tsne"``: after a 2-D t-SNE. Never mix
            the two in one curve.
        n_init: k-means starts; the best one counts.
        n_permutations: random relabellings behind the null interval.
        max_rows: keep at most this many examples, chosen by their index.
        seed: of k-means, t-SNE and the relabellings.

    Raises:
        InputError: for fewer examples than clusters, a label with one class only, ``label`` with one example a
            class (a further label is NaN then, with a note), or a label given per token.

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
        n_clusters: int | None = None,
        reduce: Literal["tsne"] | None = None,
        n_init: int = 10,
        n_permutations: int = 1000,
        max_rows: int | None = None,
        seed: int = 0,
    ) -> None:
        check_choice(reduce=(reduce, (None, "tsne")))
        if n_clusters is not None and n_clusters < 2:
            raise InputError(f"n_clusters is {n_clusters}; expected at least 2, or None for one per class")
        check_at_least(n_init=(n_init, 1), n_permutations=(n_permutations, 1), seed=(seed, 0))
        if max_rows is not None and max_rows < 2:
            raise InputError(f"max_rows is {max_rows}; expected at least 2, or None for no limit")
        if isinstance(also, str):
            raise InputError(f"also is the string {also!r}; expected a sequence of label names such as ({also!r},)")
        super().__init__(at, check_row_readout(readout))
        self.label, self.also, self.n_clusters, self.reduce = label, also, n_clusters, reduce
        self.n_init, self.n_permutations, self.max_rows, self.seed = n_init, n_permutations, max_rows, seed

    def update(self, activations: Mapping[str, Tensor], batch: Batch) -> None:
        for name in (self.label, *self.also):
            self.classes.add(name, batch.index, batch.label(name, per="example"))
        for site, rows in activations.items():
            self.hidden.add(site, batch.index, rows.flatten(1))

    def compute(self) -> ProbeResult:
        names = [self.label, *self.also]
        classes = {name: self.classes.get(name)[1].numpy() for name in names}
        clusters = {name: self._clusters_for(name, values) for name, values in classes.items()}
        alone = [name for name, values in classes.items() if len(np.unique(values)) == len(values)]
        few = {name: n_relabellings(values) for name, values in classes.items() if len(values) < _FEW}
        shape = (len(self.sites), len(names))
        ari, low, high, p = (torch.full(shape, torch.nan, dtype=torch.float64) for _ in range(4))
        notes = [
            f"label {name!r} can be handed out in {n} ways only, so p_value is about {1 / n:.2g} at least"
            for name, n in few.items()
            if n < _FEW and name not in alone
        ]
        notes += [f"label {name!r} {_ALONE.format(len(classes[name]))}, so its index is NaN" for name in alone]
        for i, site in enumerate(self.site_names):
            rows = self.hidden.get(site)[1].float()
            found = _Clusterer(rows, self.reduce, self.n_init, self.seed)
            for j, name in enumerate(names):
                if name in alone:
                    continue
                assigned = found.clusters(clusters[name])
                ari[i, j] = score = adjusted_rand_score(classes[name], assigned)
                null = adjusted_rand_null(classes[name], assigned, self.n_permutations, self.seed)
                low[i, j], high[i, j] = (float(q) for q in np.quantile(null, [0.025, 0.975]))
                p[i, j] = (1 + int((null >= score).sum())) / (1 + self.n_permutations)
                if found.distinct < clusters[name]:
                    notes.append(
                        f"{site} has {found.distinct} distinct states for {clusters[name]} clusters of "
                        f"{name!r}: each state is a cluster of its own"
                    )
        return self.result(
            {"ari": ari, "null_low": low, "null_high": high, "p_value": p},
            dict.fromkeys(("ari", "null_low", "null_high", "p_value"), ("site", "label")),
            {"label": names},
            metadata={"n": len(classes[self.label]), "n_clusters": clusters, "reduce": self.reduce},
            notes=notes,
        )

    def _clusters_for(self, name: str, values: np.ndarray) -> int:
        n_classes = len(np.unique(values))
        if n_classes < 2:
            raise InputError(f"label {name!r} has one class only; clustering needs examples of at least 2 classes")
        k = self.n_clusters or n_classes
        if len(values) < k:
            raise InputError(
                f"{len(values)} examples for {k} clusters of {name!r}; give at least as many examples as clusters, "
                "or set n_clusters"
            )
        if n_classes == len(values) and name == self.label:
            raise InputError(
                f"label {name!r} {_ALONE.format(n_classes)}; give at least 2 examples of some classes, better 20"
            )
        return k


class _Clusterer:
    """k-means of one site's states, each number of clusters once."""

    def __init__(self, rows: Float[Tensor, "n d"], reduce: str | None, n_init: int, seed: int) -> None:
        unique, inverse = torch.unique(rows, dim=0, return_inverse=True)
        self.distinct = len(unique)
        self._which, self._rows, self._reduce = inverse.numpy(), rows.numpy(), reduce
        self._n_init, self._seed, self._reduced = n_init, seed, reduce is None
        self._found: dict[int, np.ndarray] = {}

    def clusters(self, k: int) -> np.ndarray:
        """``[n]`` cluster of each example. With at most ``k`` distinct states, each is a cluster:
        that is k-means' own optimum, found without its warnings."""
        if self.distinct <= k:
            return self._which
        if k not in self._found:
            from sklearn.cluster import KMeans
            from threadpoolctl import threadpool_limits

            if not self._reduced:
                self._rows, self._reduced = project_2d(self._rows, self._seed), True
            with threadpool_limits(1):  # the same sums in the same order, and no fight over busy cores
                fitted = KMeans(n_clusters=k, n_init=self._n_init, random_state=self._seed).fit(self._rows)
            self._found[k] = fitted.labels_
        return self._found[k]


def project_2d(rows: Float[np.ndarray, "n d"], seed: int = 0) -> Float[np.ndarray, "n 2"]:
    """``[n 2]`` t-SNE of ``[n d]`` rows (scikit-learn's, from a PCA start)."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(30.0, (len(rows) - 1) / 3)
    tsne = TSNE(n_components=2, perplexity=perplexity, init="pca", random_state=seed)
    with threadpool_limits(1):
        return tsne.fit_transform(rows)  # type: ignore[no-any-return]
