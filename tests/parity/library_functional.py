"""Every pure function, on arrays in float64 and float32, and on arrays that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.parity.library_rows import outcome
from tests.parity.names import Library


def _inputs(kind: torch.dtype) -> dict[str, Any]:
    """Return rows of three classes, a second view of them, digits and attention."""
    draw = torch.Generator().manual_seed(3)
    labels = torch.arange(48) % 3
    x = torch.randn(48, 6, generator=draw, dtype=torch.float64) + labels[:, None]
    y = torch.randn(48, 6, generator=draw, dtype=torch.float64) + x @ torch.randn(6, 6, generator=draw).double()
    digits = torch.randint(2, (48, 5), generator=draw)
    pattern = torch.rand(4, 2, 5, 5, generator=draw, dtype=torch.float64).softmax(dim=-1)
    return {
        "x": x.to(kind), "y": y.to(kind), "labels": labels, "others": torch.randint(3, (48,), generator=draw),
        "units": torch.arange(48) // 4, "digits": digits, "pattern": pattern.to(kind),
        "logits": torch.randn(48, 7, generator=draw, dtype=torch.float64).to(kind),
        "words": torch.randint(6, (4, 5), generator=draw), "topics": torch.tensor([0, 0, 1, 1, 2, -1]),
        "heads": torch.randn(48, 2, 4, generator=draw, dtype=torch.float64).to(kind),
    }  # fmt: skip


def _labelled(f: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Return what the functions of labels and clusters give."""
    x, labels, others, units = given["x"], given["labels"], given["others"], given["units"]
    folds = f.stratified_folds(labels, 3, seed=1)
    return {
        "accuracy_interval": f.accuracy_interval([10, 12, 11], [16, 16, 16]),
        "adjusted_rand_moments": f.adjusted_rand_moments(labels, others),
        "adjusted_rand_null": f.adjusted_rand_null(labels, others, 20, seed=1),
        "adjusted_rand_null within units": f.adjusted_rand_null(units, others, 20, seed=1, units=units),
        "adjusted_rand_score": f.adjusted_rand_score(labels, others),
        "contingency": f.contingency(labels, others),
        "kmeans": f.kmeans(x, 3, n_init=3, seed=1),
        "nearest_centroid_accuracy": f.nearest_centroid_accuracy(x, labels),
        "neighbour_purity": f.neighbour_purity(x, labels, 4),
        "neighbour_purity_chance": f.neighbour_purity_chance(labels, units),
        "relabelling_p_values": f.relabelling_p_values(given["heads"], labels, 19, seed=1),
        "response_classes": f.response_classes(given["digits"].T, 0.2),
        "ridge_predictions": f.ridge_predictions(x, [labels[None], others[None]], folds),
        "stratified_folds": folds,
        "task_cluster_ari": f.task_cluster_ari(x, labels, n_init=2, n_permutations=20),
        "wilson_interval": f.wilson_interval(7, 20),
        "within_ratio": f.within_ratio(x, labels),
    }


def _compared(f: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Return what the functions of two views give."""
    x, y, units = given["x"], given["y"], given["units"]
    moments = [f.CrossMoments.of(a, b) for a, b in ((x, y), (x, x), (y, y))]
    return {
        "linear_cka": [f.linear_cka(x, y), f.linear_cka(x, y, debiased=True), f.linear_cka(x, y, remove_top=1)],
        "cka_from_moments": [f.cka_from_moments(*moments), f.cka_from_moments(*moments, debiased=True)],
        "cka_null": f.cka_null(x, y, 9, seed=1),
        "cka_null of units": f.cka_null(x, y, 9, units=units, seed=1),
        "cka_resamples": f.cka_resamples(x, y, 9, debiased=True, seed=1),
        "rbf_cka": [f.rbf_cka(x, y), f.rbf_cka(x, y, fraction=0.8, debiased=True)],
        "svcca": f.svcca(x, y, variance=0.9),
        "n_dims": f.n_dims(x, variance=0.9),
        "norm_jacobian": f.norm_jacobian(x),
    }


def _others(f: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Return what the functions of attention, topics, logits and digits give."""
    points = given["digits"][:, :3].sum(dim=1, keepdim=True).to(given["x"].dtype) * given["x"][:1]
    return {
        "answer_scores": f.answer_scores(given["logits"], given["labels"]),
        "attention_entropy": f.attention_entropy(given["pattern"]),
        "integer_weights": f.integer_weights(points, given["digits"], [0, 1, 2], 2),
        "planar_lattice": f.planar_lattice(given["x"][:, :2], given["digits"], [0, 1, 2], 2),
        "topic_attention": f.topic_attention(given["pattern"], given["words"], given["topics"]),
        "topic_similarity": f.topic_similarity(given["x"][:6], given["topics"]),
    }


def _classes(f: Any) -> list[str]:
    """Return the names of the classes that functions return."""
    return [
        cls.__name__
        for cls in (
            f.AnswerScores, f.HSIC, f.IndexMoments, f.IntegerWeights, f.KMeans, f.PairSums, f.PlanarLattice,
            f.Similarity, f.TaskClusters, f.TopicSimilarity,
        )
    ]  # fmt: skip


def _all(lib: Library, kind: torch.dtype) -> dict[str, Any]:
    f, given = lib.functional, _inputs(kind)
    return {**_labelled(f, given), **_compared(f, given), **_others(f, given), "classes": _classes(f)}


def functional_float64(lib: Library, inputs: Path) -> Any:
    """Call every function in float64."""
    return {"precision": "float64", **_all(lib, torch.float64)}


def functional_float32(lib: Library, inputs: Path) -> Any:
    """Call every function in float32."""
    return _all(lib, torch.float32)


def functional_numpy(lib: Library, inputs: Path) -> Any:
    """Call functions with NumPy arrays."""
    f, given = lib.functional, {name: value.numpy() for name, value in _inputs(torch.float64).items()}
    found = {**_labelled(f, given), "linear_cka": f.linear_cka(given["x"], given["y"])}
    return {"precision": "float64", **found}


def refused_arrays(lib: Library, inputs: Path) -> Any:
    """Call functions with arrays that cannot be used, and return what each gives or the class of its error."""
    f, given = lib.functional, _inputs(torch.float64)
    x, labels = given["x"], given["labels"]
    wrong: dict[str, Any] = {
        "nan": torch.full_like(x, float("nan")), "infinite": torch.full_like(x, float("inf")), "empty": x[:0],
        "list": x.tolist(), "vector": x[:, 0], "one row": x[:1], "constant": torch.ones_like(x),
        "gradient": x.clone().requires_grad_(), "integers": x.long(), "none": None, "text": "rows",
    }  # fmt: skip
    functions: dict[str, Callable[[Any], Any]] = {
        "linear_cka": lambda rows: f.linear_cka(rows, rows),
        "rbf_cka": lambda rows: f.rbf_cka(rows, rows),
        "svcca": lambda rows: f.svcca(rows, rows),
        "n_dims": lambda rows: f.n_dims(rows),
        "kmeans": lambda rows: f.kmeans(rows, 3, n_init=1),
        "neighbour_purity": lambda rows: f.neighbour_purity(rows, labels),
        "within_ratio": lambda rows: f.within_ratio(rows, labels),
        "task_cluster_ari": lambda rows: f.task_cluster_ari(rows, labels, n_permutations=5),
        "attention_entropy": lambda rows: f.attention_entropy(rows),
        "norm_jacobian": lambda rows: f.norm_jacobian(rows),
        "adjusted_rand_score": lambda rows: f.adjusted_rand_score(rows, labels),
    }
    found = {
        f"{name} of {kind}": outcome(partial(function, rows))
        for name, function in functions.items()
        for kind, rows in wrong.items()
    }
    folds = f.stratified_folds(labels, 3)
    found["ridge_predictions of negative labels"] = outcome(lambda: f.ridge_predictions(x, [labels[None] - 2], folds))
    found["ridge_predictions of short folds"] = outcome(lambda: f.ridge_predictions(x, [labels[None]], folds[:5]))
    found["neighbour_purity of nan labels"] = outcome(lambda: f.neighbour_purity(x, np.full(48, np.nan)))
    return found


CALLS: dict[str, Callable[[Library, Path], Any]] = {
    "functional-float64": functional_float64,
    "functional-float32": functional_float32,
    "functional-numpy": functional_numpy,
    "refused-arrays": refused_arrays,
}
