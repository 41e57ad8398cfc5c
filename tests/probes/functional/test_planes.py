"""Planes of layers that follow each other."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from jaxtyping import Float
from sklearn.decomposition import PCA

from probes.functional.planes import aligned_planes
from tasks import InputError
from tests.probes.functional.test_cka import gaussians

SIZES = [(80, 5), (300, 400), (600, 300)]  # the last two are too large for all of their directions


def cloud(n: int, d: int, seed: int = 0) -> Float[torch.Tensor, "row dim"]:
    """Rows with four directions that stand out."""
    x, strong = gaussians(n, d, 4, seed=seed)
    strong = strong * torch.tensor([9.0, 6.0, 4.0, 2.0])
    strong[:, 0] += strong[:, 0] ** 2 / 9
    return x + strong @ torch.linalg.qr(gaussians(d, 4, seed=seed + 1)[0])[0].T * 3


def rotation(d: int, seed: int = 0) -> Float[torch.Tensor, "dim dim"]:
    return torch.linalg.qr(gaussians(d, d, seed=seed)[0])[0]


@pytest.mark.parametrize(("n", "d"), SIZES)
def test_a_plane_is_that_of_scikit_learn(n: int, d: int) -> None:
    x = cloud(n, d)
    xy, variance = aligned_planes([x])
    pca = PCA(2, svd_solver="full").fit(x.numpy())
    expected = pca.transform(x.numpy())
    expected /= np.sqrt((expected**2).sum(1).mean())
    assert np.allclose(np.abs(xy[0]), np.abs(expected), atol=1e-5)
    assert variance[0] == pytest.approx(pca.explained_variance_ratio_.sum(), abs=1e-9)
    assert (xy[0].max(0) == np.abs(xy[0]).max(0)).all()  # the farthest point is at the positive end
    assert (xy[0] ** 2).sum(1).mean() == pytest.approx(1)


@pytest.mark.parametrize(("n", "d"), SIZES)
def test_rotating_mirroring_scaling_or_shifting_moves_no_point(n: int, d: int) -> None:
    x = cloud(n, d)
    turn = rotation(d)
    mirrored = turn * torch.where(torch.arange(d) == 0, -1.0, 1.0)
    expected = aligned_planes([x])
    for other in (x @ turn, x @ mirrored, 1e-9 * x, x + 1e3):
        for planes in (aligned_planes([other]), aligned_planes([x, other])):
            assert np.allclose(planes.xy[-1], expected.xy[0], atol=1e-5)
            assert planes.variance[-1] == pytest.approx(expected.variance[0])


def test_a_layer_is_turned_to_fit_the_one_before() -> None:
    """Its own directions come in the other order, and mirrored."""
    x = torch.from_numpy(aligned_planes([cloud(80, 5)]).xy[0])
    narrow = torch.stack([0.5 * x[:, 0], -x[:, 1]], dim=1) @ rotation(2)
    alone = aligned_planes([narrow]).xy[0]
    (first, second) = aligned_planes([x, narrow]).xy
    assert np.linalg.norm(second - first) < np.linalg.norm(alone - first)
    turns = [np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]]) for a in np.linspace(0, 2 * np.pi, 400)]
    best = min(np.linalg.norm(alone @ turn @ flip - first) for turn in turns for flip in (np.eye(2), np.diag([1, -1])))
    assert np.linalg.norm(second - first) == pytest.approx(best, rel=1e-3)


def test_a_point_that_moves_is_seen_to_move() -> None:
    x = cloud(200, 6)
    moved = x.clone()
    moved[17] += 40 * torch.linalg.svd(x - x.mean(0))[2][1]  # along the second direction
    one, other = aligned_planes([x, moved @ rotation(6)]).xy
    step = np.linalg.norm(other - one, axis=1)
    assert step.argmax() == 17
    assert step[17] > 10 * np.delete(step, 17).max()


def test_layers_are_read_one_at_a_time() -> None:
    given: list[int] = []

    def rows() -> Iterator[Float[torch.Tensor, "row dim"]]:
        for layer in range(3):
            given.append(layer)
            yield cloud(30, 4, seed=layer)

    layers = rows()
    assert aligned_planes(layers).xy.shape == (3, 30, 2)
    assert given == [0, 1, 2]


def test_rows_that_are_all_the_same() -> None:
    """Zeros, and the layer after them fits the last that had a plane."""
    same = torch.full((50, 4), 1 / 3)
    x = cloud(50, 4)
    xy, variance = aligned_planes([same, x, same, x @ rotation(4)])
    assert not xy[[0, 2]].any()
    assert np.isnan(variance).tolist() == [True, False, True, False]
    assert np.allclose(xy[1], xy[3], atol=1e-6)
    line = aligned_planes([torch.outer(torch.arange(20), torch.ones(3))])
    assert np.allclose(line.xy[0, :, 1], 0, atol=1e-6)
    assert line.variance[0] == pytest.approx(1)
    narrow = aligned_planes([torch.arange(9.0)[:, None]])
    assert narrow.xy.shape == (1, 9, 2)
    assert not narrow.xy[0, :, 1].any()
    assert narrow.variance[0] == pytest.approx(1)


def test_another_model_s_plane_to_start_from() -> None:
    x = cloud(80, 5)
    start = aligned_planes([x]).xy[0] @ np.array([[0.6, -0.8], [0.8, 0.6]])
    assert np.allclose(aligned_planes([3 * x @ rotation(5)], start=start).xy[0], start, atol=1e-6)


def test_chance_is_left_alone_and_any_dtype_is_read() -> None:
    x = cloud(300, 400)
    before = torch.get_rng_state()
    expected = aligned_planes([x])
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(aligned_planes([x]).xy, expected.xy)
    assert np.allclose(aligned_planes([x.bfloat16()]).xy, expected.xy, atol=0.05)


def test_rows_without_a_plane_that_stands_out() -> None:
    """Noise has directions too, and the two strongest hold the most."""
    (x,) = gaussians(600, 300)
    share = PCA(2, svd_solver="full").fit(x.numpy()).explained_variance_ratio_.sum()
    assert aligned_planes([x]).variance[0] == pytest.approx(share, rel=1e-6)


def test_what_is_refused() -> None:
    x = cloud(30, 4)
    for call, message in (
        (lambda: aligned_planes([]), "no layers given; give the rows of at least one"),
        (lambda: aligned_planes([x[:1]]), "layer 0 has one row; a plane needs at least 2"),
        (
            lambda: aligned_planes([x, x[:20]]),
            "layer 1 has 20 rows and the layer before 30; give the rows of the same examples",
        ),
        (
            lambda: aligned_planes([x], start=np.zeros((4, 2))),
            "layer 0 has 30 rows and the plane to fit 4; give the rows of the same examples",
        ),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            call()
