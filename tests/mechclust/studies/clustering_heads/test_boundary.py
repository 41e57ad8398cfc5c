"""Closed forms and automatic differentiation as oracles for distances from a decision boundary."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mechclust.studies.clustering_heads.boundary import boundary_distance
from tasks import InputError


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("classes", [2, 7])
def test_it_is_exact_for_linear_classifiers(classes: int) -> None:
    weight, bias, x = normal(classes, 4, seed=1), normal(classes, seed=2), normal(50, 4)
    logits = x @ weight.T + bias
    expected = []
    for row in logits:
        top = int(row.argmax())
        others = [j for j in range(classes) if j != top]
        expected.append(min(float((row[top] - row[j]) / (weight[top] - weight[j]).norm()) for j in others))
    found = boundary_distance(lambda points: points @ weight.T + bias, x)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)


def test_the_boundary_is_found_near_it_for_a_curved_classifier() -> None:
    """Inside a circle of radius 2: first order, so off by the square of the distance."""
    x = torch.tensor([[1.999, 0.0], [0.0, -2.01], [1.0, 0.0]], dtype=torch.float64)
    found = boundary_distance(lambda p: torch.stack([p.square().sum(1), torch.full_like(p[:, 0], 4.0)], 1), x)
    assert found[:2].tolist() == pytest.approx([0.001, 0.01], rel=0.01)
    assert float(found[2]) == pytest.approx(1.5)  # 3 / 2: the true distance is 1


def test_a_point_on_the_boundary_has_distance_zero() -> None:
    found = boundary_distance(lambda p: torch.stack([p[:, 0], -p[:, 0]], 1), torch.tensor([[0.0, 5.0]]))
    assert found.tolist() == [0.0]


def test_no_way_to_another_class_is_infinite_and_two_classes_alike_are_nan() -> None:
    x = torch.ones(1, 2)
    shift = torch.tensor([3.0, 0.0])
    assert boundary_distance(lambda p: p[:, :1] + shift, x).tolist() == [math.inf]
    assert boundary_distance(lambda p: p[:, [0, 0]], x).isnan().tolist() == [True]


def test_it_maps_over_networks() -> None:
    first, second, x = normal(4, 8, 2, seed=1), normal(4, 3, 8, seed=2), normal(4, 6, 2)

    def distances(first: Tensor, second: Tensor, x: Tensor) -> Tensor:
        return boundary_distance(lambda points: F.gelu(points @ first.T) @ second.T, x)

    singly = torch.stack([distances(*network) for network in zip(first, second, x, strict=True)])
    torch.testing.assert_close(torch.func.vmap(distances)(first, second, x), singly, rtol=1e-12, atol=0)


def test_it_leaves_no_graph_and_no_gradients() -> None:
    weight = normal(3, 2).requires_grad_()
    x = normal(5, 2, seed=1).requires_grad_()
    with torch.no_grad():
        found = boundary_distance(lambda p: p @ weight.T, x)
    assert not found.requires_grad
    assert weight.grad is None
    assert x.grad is None


@pytest.mark.parametrize(
    ("logits_of", "x", "message"),
    [
        (lambda p: p, torch.ones(2), "x has shape (2,); expected points [n d]"),
        (
            lambda p: p[:, 0],
            torch.ones(4, 2),
            "logits_of gives shape (4,) for 4 points; expected [4 classes], at least",
        ),
        (lambda p: p[:, :1], torch.ones(4, 2), "logits_of gives shape (4, 1) for 4 points; expected [4 classes]"),
        (lambda p: p[:1], torch.ones(4, 2), "logits_of gives shape (1, 2) for 4 points; expected [4 classes]"),
    ],
)
def test_what_is_refused(logits_of: Any, x: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        boundary_distance(logits_of, x)
