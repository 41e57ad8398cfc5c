"""False positives of probes whose examples share templates or are repeated, with and without ``units``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.cluster import KMeans
from torch import Tensor

from probes.functional import cka_null, cka_resamples, linear_cka
from probes.functional.adjusted_rand import adjusted_rand_null, adjusted_rand_score
from probes.functional.cka import cka_from_hsic
from probes.functional.holm import holm
from probes.functional.hsic import centred_kernel, hsic_between_units
from probes.functional.linear_decodability import ridge_predictions, stratified_folds
from probes.functional.neighbour_purity import (
    nearest_rows,
    nearest_rows_of_other_units,
    purity_by_query,
    relabelled_purity,
)
from probes.functional.relabelling import Relabelling, relabelled_shares

D = 16
SHUFFLES = 39


@dataclass(frozen=True)
class Design:
    """Examples without any effect of their class: ``classes x templates x prompts``, each given ``repeats`` times.

    Attributes:
        share: of the variance that templates explain.
        mixed: how many templates of the first class have half of their prompts in the second.
        sizes: prompts of each template, one size after the other, in place of ``prompts`` for all.
        drawn: whether the class of a template is drawn at random, so that it does not go with the size.
    """

    classes: int
    templates: int
    prompts: int
    share: float = 0.0
    repeats: int = 1
    mixed: int = 0
    sizes: tuple[int, ...] = ()
    drawn: bool = False

    def templates_of_prompts(self) -> Int[np.ndarray, "n"]:
        """Return the template of each prompt."""
        n_templates = self.classes * self.templates
        return np.repeat(np.arange(n_templates), np.resize(self.sizes or self.prompts, n_templates))

    def labels(self, seed: int) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"]]:
        """Return the class and the unit of each example: its template, or its prompt if prompts are repeated."""
        template = self.templates_of_prompts()
        n = len(template)
        unit = np.arange(n) if self.repeats > 1 else template
        place = np.arange(self.classes * self.templates)
        if self.drawn:
            place = np.random.default_rng(seed).permutation(place)
        label = place[template] // self.templates
        label[(template < self.mixed) & (np.arange(n) % 2 == 1)] = 1
        return np.tile(label, self.repeats), np.tile(unit, self.repeats)

    def states(self, draw: torch.Generator, heads: int = 1) -> Float[Tensor, "n head d"]:
        """Return random states of each example."""
        template = torch.from_numpy(self.templates_of_prompts())
        of_template = torch.randn(self.classes * self.templates, heads, D, generator=draw)[template]
        noise = torch.randn(len(template), heads, D, generator=draw)
        rows = math.sqrt(self.share) * of_template + math.sqrt(1 - self.share) * noise
        return rows.repeat(self.repeats, 1, 1)


INDEPENDENT = Design(10, 1, 30)
WEAK_TEMPLATES = Design(10, 3, 10, share=0.05)
STRONG_TEMPLATES = Design(10, 3, 10, share=0.2)
ONE_MIXED = Design(10, 3, 10, share=0.2, mixed=1)
UNEQUAL_TEMPLATES = Design(4, 10, 5, share=0.2, sizes=(1, 2, 3, 4, 6, 8, 20), drawn=True)
LARGE_TEMPLATES_OF_ONE_CLASS = Design(4, 10, 4, share=0.2, sizes=10 * (12,) + 30 * (4,))
TWICE, FOUR_TIMES = Design(5, 1, 12, repeats=2), Design(5, 1, 6, repeats=4)


def clusters_called(design: Design, seed: int, use_units: bool) -> bool:
    """Return whether k-means clusters are said to agree with the classes, as ``TaskClusterARI`` does it."""
    classes, units = design.labels(seed)
    rows = design.states(torch.Generator().manual_seed(seed))[:, 0].numpy()
    clusters = KMeans(design.classes, n_init=1, random_state=seed).fit(rows).labels_
    null = adjusted_rand_null(clusters, classes, SHUFFLES, seed, units=units if use_units else None)
    return _called(null, adjusted_rand_score(clusters, classes))


def any_head_called(design: Design, seed: int, use_units: bool) -> bool:
    """Return whether any of 16 heads is called after Holm's correction, as ``ClusteringHead`` does it."""
    classes, units = (torch.from_numpy(x) for x in design.labels(seed))
    points = design.states(torch.Generator().manual_seed(seed), heads=16)
    observed, null = relabelled_shares(points, classes, 639, units=units if use_units else None, seed=seed)
    p = (1 + (null >= observed - 1e-9).sum(dim=0)) / 640
    return min(holm(p.tolist())) <= 0.05


def classes_read(design: Design, seed: int, use_units: bool) -> bool:
    """Return whether a linear classifier is said to read the classes, as ``LinearDecodability`` does it."""
    classes, units = design.labels(seed)
    rows = design.states(torch.Generator().manual_seed(seed))[:, 0]
    folds = stratified_folds(classes, 5, units if use_units else None, seed)
    relabelling = Relabelling.from_classes(classes, units if use_units else None, folds)
    rng = np.random.default_rng(seed)
    labelings = np.stack([classes, *(relabelling.draw(rng) for _ in range(SHUFFLES))])
    predicted = ridge_predictions(rows, torch.from_numpy(labelings), torch.from_numpy(folds))
    hits = (predicted.numpy() == labelings).sum(axis=1)
    return _called(hits[1:], hits[0])


def neighbours_called(design: Design, seed: int, use_units: bool) -> bool:
    """Return whether nearest neighbours are said to be of one class, as ``NeighbourPurity`` does it with ``k=1``."""
    classes, units = design.labels(seed)
    rows = design.states(torch.Generator().manual_seed(seed))[:, 0]
    near = nearest_rows_of_other_units(rows, 1, torch.from_numpy(units)) if use_units else nearest_rows(rows, 1)
    relabelling = Relabelling.from_classes(classes, units if use_units else None)
    null = relabelled_purity(near, relabelling, SHUFFLES, seed)
    return _called(null, purity_by_query(near, classes).mean() - 1e-12)


def similarity_called(design: Design, seed: int, use_units: bool) -> bool:
    """Return whether unrelated representations are said to be similar, as ``CKA`` does it."""
    draw = torch.Generator().manual_seed(seed)
    x, y = (design.states(draw)[:, 0] for _ in range(2))
    units = torch.from_numpy(design.labels(seed)[1]) if use_units else None
    null = cka_null(x, y, SHUFFLES, debiased=True, units=units, seed=seed)
    return _called(null.numpy(), _cka(x, y, units))


def interval_misses(design: Design, seed: int, use_units: bool) -> bool:
    """Return whether the interval of CKA misses 0, the value of unrelated representations of many examples."""
    draw = torch.Generator().manual_seed(seed)
    x, y = (design.states(draw)[:, 0] for _ in range(2))
    units = torch.from_numpy(design.labels(seed)[1]) if use_units else None
    deviations = cka_resamples(x, y, 40, debiased=True, units=units, seed=seed)
    low, high = (_cka(x, y, units) + np.quantile(deviations.numpy(), [0.025, 0.975])).tolist()
    return not low <= 0 <= high


def _cka(x: Tensor, y: Tensor, units: Tensor | None) -> float:
    return float(linear_cka(x, y, debiased=True)) if units is None else cka_between_units(x, y, units)


def cka_between_units(x: Float[Tensor, "n dx"], y: Float[Tensor, "n dy"], units: Int[Tensor, "n"]) -> float:
    """Return debiased CKA of pairs of examples of different units, as ``CKA`` does it."""
    k = centred_kernel(x)
    l = centred_kernel(y)  # noqa: E741
    terms = (hsic_between_units(a, b, units) for a, b in ((k, l), (k, k), (l, l)))
    return cka_from_hsic(*terms, debiased=True)[0]


def _called(null: np.ndarray, value: float) -> bool:
    return (1 + int((null >= value).sum())) / (1 + len(null)) <= 0.05


CASES: dict[str, tuple[Callable[[Design, int, bool], bool], Design]] = {
    "TaskClusterARI, 300 independent prompts": (clusters_called, INDEPENDENT),
    "TaskClusterARI, 10 tasks x 3 templates x 10, share .05": (clusters_called, WEAK_TEMPLATES),
    "TaskClusterARI, 10 tasks x 3 templates x 10, share .2": (clusters_called, STRONG_TEMPLATES),
    "TaskClusterARI, the same, one template in two tasks": (clusters_called, ONE_MIXED),
    "TaskClusterARI, 60 prompts given twice": (clusters_called, TWICE),
    "TaskClusterARI, 30 prompts given four times": (clusters_called, FOUR_TIMES),
    "ClusteringHead, any of 16, 100 independent prompts": (any_head_called, Design(5, 1, 20)),
    "ClusteringHead, any of 16, 5 x 4 templates x 5, share .2": (any_head_called, Design(5, 4, 5, share=0.2)),
    "LinearDecodability, 200 independent prompts": (classes_read, Design(4, 1, 50)),
    "LinearDecodability, 4 x 10 templates x 5, share .2": (classes_read, Design(4, 10, 5, share=0.2)),
    "LinearDecodability, 4 x 10 templates of 1 to 20, share .2": (classes_read, UNEQUAL_TEMPLATES),
    "LinearDecodability, 10 templates of 12 in one class, 30 of 4 in three": (
        classes_read,
        LARGE_TEMPLATES_OF_ONE_CLASS,
    ),
    "NeighbourPurity, p-value, 300 independent prompts": (neighbours_called, INDEPENDENT),
    "NeighbourPurity, p-value, 10 tasks x 3 templates x 10, share .2": (neighbours_called, STRONG_TEMPLATES),
    "NeighbourPurity, p-value, the same, one template in two tasks": (neighbours_called, ONE_MIXED),
    "NeighbourPurity, p-value, 10 templates of 12 in one class, 30 of 4 in three": (
        neighbours_called,
        LARGE_TEMPLATES_OF_ONE_CLASS,
    ),
    "NeighbourPurity, p-value, 60 prompts given twice": (neighbours_called, TWICE),
    "CKA, p-value, 50 independent prompts": (similarity_called, Design(5, 1, 10)),
    "CKA, p-value, 30 prompts given four times": (similarity_called, FOUR_TIMES),
    "CKA, interval, 50 independent prompts": (interval_misses, Design(5, 1, 10)),
    "CKA, interval, 5 x 4 templates x 5, share .2": (interval_misses, Design(5, 4, 5, share=0.2)),
    "CKA, interval, 30 prompts given four times": (interval_misses, FOUR_TIMES),
}


def false_positive_rate(draws: int, seed: int, case: str, *, use_units: bool = False) -> tuple[int, int]:
    """Return how many draws are called, and how many there are."""
    called, design = CASES[case]
    calls = sum(called(design, seed + i, use_units) for i in range(draws))
    return calls, draws
