from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.functional import nearest_centroid_accuracy, within_ratio
from probes.functional.within_ratio import within_ratio_chance


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cloud(seed: int, n: int = 40, d: int = 3, classes: int = 5) -> tuple[Float[Tensor, "row dim"], Int[Tensor, "row"]]:
    g = generator(seed)
    return torch.randn(n, d, generator=g, dtype=torch.float64), torch.randint(classes, (n,), generator=g)


# ---- within_ratio and nearest_centroid_accuracy ----


def centres_of(
    points: Float[np.ndarray, "row dim"], labels: Int[np.ndarray, "row"]
) -> dict[int, Float[np.ndarray, "dim"]]:
    return {int(c): np.mean([x for x, y in zip(points, labels, strict=True) if y == c], axis=0) for c in labels}


def ratio_by_loops(points: Float[np.ndarray, "row dim"], labels: Int[np.ndarray, "row"]) -> float:
    centres = centres_of(points, labels)
    middle = points.mean(axis=0)
    within = 0.0
    total = 0.0
    for x, y in zip(points, labels, strict=True):
        within += sum((a - b) ** 2 for a, b in zip(x, centres[int(y)], strict=True))
        total += sum((a - b) ** 2 for a, b in zip(x, middle, strict=True))
    return within / total


def accuracy_by_loops(points: Float[np.ndarray, "row dim"], labels: Int[np.ndarray, "row"]) -> float:
    centres = centres_of(points, labels)
    right = 0
    for x, y in zip(points, labels, strict=True):
        distance = {c: sum((a - b) ** 2 for a, b in zip(x, centre, strict=True)) for c, centre in centres.items()}
        right += min(distance, key=lambda c: distance[c]) == int(y)
    return right / len(points)


@pytest.mark.parametrize("seed", [0, 3, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loops_agree(seed: int, dtype: torch.dtype) -> None:
    points, labels = cloud(seed, classes=2 + seed)
    points = (points + labels[:, None] * seed / 4 + 100).to(dtype)
    labels = labels * 7 - 3  # any integers
    given = points.double().numpy(), labels.numpy()
    ratio = within_ratio(points, labels)
    accuracy = nearest_centroid_accuracy(points, labels)
    assert ratio.dtype == accuracy.dtype == torch.float64
    assert float(ratio) == pytest.approx(ratio_by_loops(*given), rel=1e-12)
    assert float(accuracy) == accuracy_by_loops(*given)


@pytest.mark.parametrize("measure", [within_ratio, nearest_centroid_accuracy])
def test_vmap_over_points_and_labels(measure) -> None:
    points, labels = (torch.stack(x) for x in zip(*[cloud(seed) for seed in range(6)], strict=True))
    labels[2] = torch.where(labels[2] == 3, 0, labels[2])  # a class that nobody is in
    labels[3] = 4
    points[4] = 0.1
    mapped = torch.func.vmap(lambda x, y: measure(x, y, n_classes=5))(points, labels)
    singly = torch.stack([measure(x, y) for x, y in zip(points, labels, strict=True)])
    torch.testing.assert_close(mapped, singly, rtol=1e-14, atol=0, equal_nan=True)
    assert mapped.isnan().tolist() == [False, False, False, True, True, False]
    shared = torch.func.vmap(lambda x: measure(x, labels[0], n_classes=9))(points.float())
    assert shared.shape == (6,)
    torch.testing.assert_close(shared[1], measure(points[1].float(), labels[0]), rtol=1e-14, atol=0)


def test_a_tiny_ratio_far_from_the_origin_is_exact() -> None:
    """Total minus between would lose it: 1e-10 of 1e6 is beyond float64's digits there."""
    labels = torch.arange(6).repeat_interleave(50)
    offsets = 1e-5 * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(150)
    points = (labels + offsets)[:, None] + 1000
    ratio = float(within_ratio(points, labels))
    assert ratio == pytest.approx(1e-10 / (35 / 12 + 1e-10), rel=1e-6)


@pytest.mark.parametrize("measure", [within_ratio, nearest_centroid_accuracy])
def test_undefined_is_nan(measure) -> None:
    labels = torch.arange(7) % 2
    assert measure(torch.full((7, 2), 0.1), labels).isnan()  # 7 x 0.1 / 7 is not 0.1 in floating point
    assert measure(torch.randn(7, 2, generator=generator()), labels * 0 + 5).isnan()
    assert measure(torch.ones(1, 2), labels[:1]).isnan()


def test_extremes() -> None:
    labels = torch.arange(30) % 3
    points = labels[:, None].float()
    assert within_ratio(points, labels) == 0
    assert nearest_centroid_accuracy(points, labels) == 1
    assert nearest_centroid_accuracy(-points, labels) == 1
    assert within_ratio(torch.arange(30.0)[:, None] // 3, labels) == pytest.approx(1)
    # three clusters on two points: the tie goes to the lower label
    assert nearest_centroid_accuracy(torch.tensor([[0.0], [1.0], [0.0]]), torch.arange(3)) == pytest.approx(2 / 3)


def test_a_class_that_nobody_is_in_has_no_centroid() -> None:
    """Else it would stand in the middle, nearest to the two inner points."""
    points = torch.tensor([[-3.0], [-0.1], [0.1], [3.0]])
    labels = torch.tensor([0, 0, 2, 2])
    assert nearest_centroid_accuracy(points, labels, n_classes=4) == 1


def test_many_classes_are_measured_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    points, labels = cloud(3, n=101, classes=20)
    whole = nearest_centroid_accuracy(points, labels)
    monkeypatch.setattr(sys.modules["probes.functional.within_ratio"], "MAX_DISTANCES_AT_ONCE", 60)
    assert nearest_centroid_accuracy(points, labels) == whole
    assert 0 < float(whole) < 1


@pytest.mark.parametrize("classes", [2, 30])
def test_chance_is_the_mean_over_relabellings(classes: int) -> None:
    points, labels = cloud(1, classes=classes)
    chance = within_ratio_chance(labels)
    ratios = [float(within_ratio(points, labels[torch.randperm(40, generator=generator(i))])) for i in range(2000)]
    assert np.mean(ratios) == pytest.approx(chance, abs=4 * np.std(ratios) / 2000**0.5)
    assert within_ratio_chance(torch.arange(5)) == 0
    assert np.isnan(within_ratio_chance(torch.arange(1)))
