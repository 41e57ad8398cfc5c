"""Interchange between inputs with different sums: do predictions follow the donor?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechclust.studies.clustering_heads.cut import logits_of_embeddings, sequence_embeddings
from probes import HookedModel, ProbeResult
from tasks import Batch, InputError
from tasks.settings import check_at_least

CENTROID = "centroid"

_Classes = Int[Tensor, "example"]


def follow_the_donor(
    model: HookedModel, batch: Batch, classes: _Classes | None = None, *, draws: int = 20, seed: int = 0
) -> ProbeResult:
    """Give each example the sequence embedding of a donor with a different sum and a different answer.

    Works for every network, whether or not its head is detected, since the classes are properties of the inputs.

    Measures:
        ``follows`` (kind): share of examples whose prediction becomes the donor's. Examples whose donor has the same
            prediction are left out.
        ``accuracy`` (no axes): the model's.
        ``random_draws`` (draw): ``follows`` for the kind *random classes*, one per draw.

    Kinds:
        *centroid*: the mean embedding of the donor's class. High if the network reads the classes.
        *random classes*: the mean embedding of a random class. Classes of equal sizes are drawn among inputs with one
            answer. This shows the effect of the answer alone, the chance level of *centroid*.

    Args:
        model: a pooling transformer.
        batch: with labels ``sum`` and ``answer``.
        classes: the partition, or ``None`` for the sums.
        draws: number of draws of random classes, each with separate donors.
        seed: draws the donors and the random classes.

    Raises:
        InputError: if no two examples differ in both sum and answer.
    """
    check_at_least(draws=(draws, 1), seed=(seed, 0))
    sums = batch.label("sum", per="example")
    answers = batch.label("answer", per="example")
    classes = torch.unique(sums if classes is None else classes, return_inverse=True)[1]
    draw = np.random.default_rng(seed)
    with torch.no_grad():
        xi = sequence_embeddings(model, batch.tokens)
        before = logits_of_embeddings(model, xi).argmax(dim=-1)
        donors = _donors(sums, answers, draw)
        follows = _follow(model, before, _centroids(xi, classes), donors)
        random = []
        for _ in range(draws):
            centroids = _centroids(xi, _shuffled(classes, answers, draw))
            random.append(_follow(model, before, centroids, _donors(sums, answers, draw)))
    same = bool((before[donors] == before).all())
    return ProbeResult(
        "FollowTheDonor",
        {
            "follows": torch.tensor([follows, float(np.mean(random))], dtype=torch.float64),
            "random_draws": torch.tensor(random, dtype=torch.float64),
            "accuracy": (before == answers).double().mean(),
        },
        {"follows": ("kind",), "random_draws": ("draw",), "accuracy": ()},
        {"kind": [CENTROID, "random classes"], "draw": [str(i) for i in range(draws)]},
        metadata={"n": len(sums), "seed": seed, "classes": int(classes.max()) + 1},
        notes=["every donor has the recipient's prediction, so nothing can follow"] if same else [],
    )


def donors_by(
    model: HookedModel, batch: Batch, partitions: Mapping[str, _Classes], *, draws: int = 20, seed: int = 0
) -> ProbeResult:
    """Return ``follow_the_donor`` for several partitions, along an axis ``partition``.

    Args:
        model: a pooling transformer.
        batch: with labels ``sum`` and ``answer``.
        partitions: by name.
        draws: number of draws of random classes for each.
        seed: as for ``follow_the_donor``.
    """
    results = [follow_the_donor(model, batch, classes, draws=draws, seed=seed) for classes in partitions.values()]
    first = results[0]
    notes: dict[str, None] = {}
    for result in results:
        notes |= dict.fromkeys(result.notes)
    return ProbeResult(
        first.probe,
        {name: torch.stack([result[name] for result in results]) for name in first},
        {name: ("partition", *axes) for name, axes in first.axes.items()},
        {"partition": list(partitions), **first.coords},
        metadata={**first.metadata, "classes": [result.metadata["classes"] for result in results]},
        notes=list(notes),
    )


def _follow(
    model: HookedModel,
    before: Int[Tensor, "example"],
    points: Float[Tensor, "example d"],
    donors: Int[Tensor, "example"],
) -> float:
    """Return the share of predictions that become the donor's if each donor's point is read."""
    after = logits_of_embeddings(model, points[donors]).argmax(dim=-1)
    differ = before[donors] != before
    return float((after == before[donors])[differ].double().mean())


def _donors(sums: _Classes, answers: _Classes, draw: np.random.Generator) -> _Classes:
    """Return for each example a random one with a different sum and a different answer."""
    donors = torch.empty_like(sums)
    for total, answer in torch.unique(torch.stack([sums, answers]), dim=1).T.tolist():
        rows = ((sums == total) & (answers == answer)).nonzero()[:, 0]
        others = ((sums != total) & (answers != answer)).nonzero()[:, 0]
        if not len(others):
            raise InputError(
                f"no example differs from those of sum {total} in sum and answer; give examples of several answers"
            )
        donors[rows] = others[torch.from_numpy(draw.integers(len(others), size=len(rows)))]
    return donors


def _centroids(xi: Float[Tensor, "example d"], classes: _Classes) -> Float[Tensor, "example d"]:
    """Return the mean of each example's class."""
    count = classes.bincount().to(xi.dtype)
    means = xi.new_zeros(len(count), xi.shape[1]).index_add_(0, classes, xi) / count[:, None]
    return means[classes]


def _shuffled(classes: _Classes, answers: _Classes, draw: np.random.Generator) -> _Classes:
    """Return the classes, handed out at random among the examples of one answer."""
    shuffled = classes.clone()
    for answer in torch.unique(answers).tolist():
        rows = (answers == answer).nonzero()[:, 0]
        shuffled[rows] = classes[rows[torch.from_numpy(draw.permutation(len(rows)))]]
    return shuffled
