"""A good call of every public function of ``probes.functional``, and the role of each of its arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from probes import functional

N = 24  # rows
LABELS = np.arange(N) % 3
UNITS = np.arange(N) // 2
LABELS_OF_UNITS = UNITS % 2
STRATA = np.arange(N) // 6 % 2
FOLDS = np.arange(N) % 4
DIGITS = np.array(np.meshgrid([0, 1], [0, 1], [0, 1], [0, 1])).reshape(4, -1).T
TOPICS = np.array([0, 0, 1, 1, 2, 2])


class Call(NamedTuple):
    """A good call.

    Attributes:
        function: what is called.
        arguments: by name. Those that bad arrays replace are ``Good``.
        name: of the call.
    """

    function: Callable[..., Any]
    arguments: dict[str, Any]
    name: str

    @classmethod
    def of(cls, function: Callable[..., Any], variant: str = "", **arguments: Any) -> Call:
        """Return a call, named after the function and what is special about it."""
        return cls(function, arguments, f"{function.__qualname__} {variant}".strip())

    def values(self) -> dict[str, Any]:
        """Return the arguments as they are given."""
        return {name: value.array if isinstance(value, Good) else value for name, value in self.arguments.items()}

    def good(self) -> dict[str, Good]:
        """Return the arguments that bad arrays replace."""
        return {name: value for name, value in self.arguments.items() if isinstance(value, Good)}


class Good(NamedTuple):
    """A good array, and its role, by which bad ones are made of it."""

    array: Any
    role: str


def good_calls(rng: np.random.Generator) -> list[Call]:
    """Return good calls of every public function, with NumPy arrays."""
    return [*calls_with_rows(rng), *calls_with_labels(rng), *calls_with_tokens(rng), *calls_with_folds(rng)]


def calls_with_rows(rng: np.random.Generator) -> list[Call]:
    """Return calls of functions that compare two sets of rows, or describe one."""
    x = Good(rng.normal(size=(N, 4)), "matrix")
    y = Good(x.array @ rng.normal(size=(4, 3)) + 0.5 * rng.normal(size=(N, 3)), "matrix")
    units = Good(UNITS, "labels")
    alone = Good(x.array, "only matrix")
    return [
        Call.of(functional.linear_cka, x=x, y=y),
        Call.of(functional.rbf_cka, x=x, y=y),
        Call.of(functional.svcca, x=x, y=y),
        Call.of(functional.cka_null, x=x, y=y, n_permutations=3, units=units),
        Call.of(functional.cka_resamples, x=x, y=y, n_resamples=3, units=units),
        Call.of(functional.n_dims, x=alone),
        Call.of(functional.norm_jacobian, x=Good(x.array, "vectors")),
        Call.of(functional.kmeans, rows=alone, k=3, n_init=1, initial=Good(x.array[:3], "centres")),
        Call.of(
            functional.topic_similarity, vectors=Good(rng.normal(size=(6, 3)), "matrix"), topics=Good(TOPICS, "topics")
        ),
    ]


def calls_with_labels(rng: np.random.Generator) -> list[Call]:
    """Return calls of functions that compare labels with other labels, or with rows."""
    x = Good(rng.normal(size=(N, 4)), "matrix")
    labels = Good(LABELS, "labels")
    noisy = Good(np.where(rng.random(N) < 0.8, LABELS, rng.integers(0, 3, N)), "labels")
    units = Good(UNITS, "labels")
    strata = Good(STRATA, "labels")
    of_units = Good(LABELS_OF_UNITS, "labels")
    within = Good(LABELS, "classes")
    heads = Good(rng.normal(size=(N, 2, 3)), "matrix")
    return [
        Call.of(functional.adjusted_rand_score, a=labels, b=noisy),
        Call.of(functional.adjusted_rand_moments, a=labels, b=noisy),
        Call.of(functional.adjusted_rand_null, a=noisy, b=labels, n_permutations=5, within=strata),
        Call.of(functional.adjusted_rand_null, "of units", a=noisy, b=of_units, n_permutations=5, units=units),
        Call.of(functional.within_ratio, points=x, labels=labels),
        Call.of(functional.within_ratio, "with n_classes", points=x, labels=within, n_classes=3),
        Call.of(functional.nearest_centroid_accuracy, points=x, labels=labels),
        Call.of(functional.nearest_centroid_accuracy, "with n_classes", points=x, labels=within, n_classes=3),
        Call.of(functional.neighbour_purity, x=x, labels=labels, k=3),
        Call.of(functional.neighbour_purity_chance, labels=labels, units=units),
        Call.of(functional.relabelling_p_values, points=heads, labels=labels, permutations=9, strata=strata),
        Call.of(
            functional.relabelling_p_values, "of units", points=heads, labels=of_units, permutations=9, units=units
        ),
    ]


def calls_with_tokens(rng: np.random.Generator) -> list[Call]:
    """Return calls of functions of tokens, of attention between them, and of answers."""
    tokens = Good(DIGITS, "integers")
    line = Good(DIGITS @ np.array([[0.3], [0.3], [0.6], [0.0]]) @ np.array([[1.0, 2.0]]), "matrix")
    plane = Good(DIGITS @ np.array([[1.0, 0.1], [0.3, 1.0], [1.3, 1.1], [2.0, 0.2]]), "matrix")
    support = Good((0, 1), "support")
    pattern = rng.dirichlet(np.ones(5), size=(3, 2, 5))
    words = Good(rng.integers(0, 6, (3, 5)), "words")
    answers = Good(rng.integers(0, 2, (3, N)), "answers")
    logits = Good(rng.normal(size=(N, 5)), "logits")
    return [
        Call.of(functional.integer_weights, points=line, tokens=tokens, support=support, modulus=2),
        Call.of(functional.planar_lattice, points=plane, tokens=tokens, support=support, modulus=2),
        Call.of(functional.attention_entropy, pattern=Good(pattern, "rows of weights")),
        Call.of(
            functional.topic_attention, pattern=Good(pattern, "weights"), words=words, topics=Good(TOPICS, "topics")
        ),
        Call.of(functional.answer_scores, logits=logits, answers=Good(rng.integers(0, 5, N), "integers")),
        Call.of(functional.response_classes, answers=answers),
        Call.of(functional.response_classes, "with tolerance", answers=answers, tolerance=0.4),
    ]


def calls_with_folds(rng: np.random.Generator) -> list[Call]:
    """Return calls of functions of cross-validation."""
    rows = Good(rng.normal(size=(N, 4)), "matrix")
    labelings = Good(LABELS[None], "labelings")
    folds = Good(FOLDS, "folds")
    hits = Good(np.array([5, 4, 6, 5]), "counts")
    sizes = Good(np.array([6, 6, 6, 6]), "counts")
    units = Good(UNITS, "labels")
    return [
        Call.of(functional.ridge_predictions, rows=rows, labels=labelings, folds=folds, given=Good(STRATA, "labels")),
        Call.of(functional.stratified_folds, classes=Good(LABELS, "only labels"), folds=3),
        Call.of(functional.stratified_folds, "of units", classes=Good(LABELS_OF_UNITS, "labels"), folds=3, units=units),
        Call.of(functional.accuracy_interval, hits_per_fold=hits, n_per_fold=sizes),
        Call.of(functional.wilson_interval, hits=Good(5, "number"), n=Good(9, "number")),
    ]
