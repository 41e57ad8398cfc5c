from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float, Int
from sklearn.cluster import KMeans as Reference

from probes.functional.kmeans import BLOCK_NUMBERS, kmeans
from tasks import InputError


def blobs(
    n: int, d: int, k: int, spread: float = 1.0, seed: int = 0
) -> tuple[Float[torch.Tensor, "row dim"], Int[torch.Tensor, "row"]]:
    """Rows around ``k`` centres far from the origin, and which centre each is of."""
    draw = torch.Generator().manual_seed(seed)
    centres = spread * torch.randn(k, d, generator=draw)
    which = torch.randint(k, (n,), generator=draw)
    return centres[which] + torch.randn(n, d, generator=draw) + 5, which


@pytest.mark.parametrize(("n", "d", "k"), [(300, 5, 4), (1000, 30, 7), (2000, 3, 12), (40, 100, 3)])
def test_from_the_same_centres_clusters_are_scikit_learns(n: int, d: int, k: int) -> None:
    rows, _ = blobs(n, d, k)
    start = rows[:k].clone()
    ours = kmeans(rows, k, initial=start)
    reference = Reference(k, init=start.numpy(), n_init=1).fit(rows.numpy())
    assert torch.equal(ours.labels, torch.from_numpy(reference.labels_).long())
    assert ours.inertia == pytest.approx(reference.inertia_, rel=1e-5)
    assert ours.n_iter == reference.n_iter_
    torch.testing.assert_close(ours.centres.float(), torch.from_numpy(reference.cluster_centers_), rtol=1e-4, atol=1e-4)


def test_stopped_early_as_scikit_learn() -> None:
    rows, _ = blobs(2000, 4, 8, spread=0.5)
    start = rows[:8].clone()
    for options in ({"max_iter": 2}, {"tol": 1e-2}):
        ours = kmeans(rows, 8, initial=start, **options)
        reference = Reference(8, init=start.numpy(), n_init=1, **options).fit(rows.numpy())
        assert (ours.n_iter, torch.from_numpy(reference.labels_).long().tolist()) == (
            reference.n_iter_,
            ours.labels.tolist(),
        )
        assert ours.inertia == pytest.approx(reference.inertia_, rel=1e-5)


def test_empty_clusters_take_the_farthest_rows_as_in_scikit_learn() -> None:
    rows, _ = blobs(200, 3, 4)
    start = torch.cat([rows[:2], torch.full((2, 3), 1e3)])  # two centres that no row is near
    ours = kmeans(rows, 4, initial=start)
    reference = Reference(4, init=start.numpy(), n_init=1).fit(rows.numpy())
    assert ours.labels.tolist() == reference.labels_.tolist()
    assert sorted(set(ours.labels.tolist())) == [0, 1, 2, 3]


@pytest.mark.parametrize("seed", range(4))
def test_as_good_as_scikit_learn_where_clusters_overlap(seed: int) -> None:
    rows, _ = blobs(1500, 8, 10, spread=0.7, seed=seed)
    reference = Reference(10, n_init=10, random_state=seed).fit(rows.numpy()).inertia_
    clusters = kmeans(rows, 10, seed=seed)
    assert clusters.inertia < 1.01 * reference
    exact = (rows.double() - clusters.centres[clusters.labels]).square().sum()
    assert clusters.inertia == pytest.approx(float(exact), rel=1e-6)


def test_seeding_is_better_than_random_rows() -> None:
    rows, _ = blobs(1000, 5, 20, spread=10)
    random = [kmeans(rows, 20, initial=rows[torch.randperm(1000)[:20]]).inertia for _ in range(5)]
    assert kmeans(rows, 20, n_init=1).inertia < 0.9 * float(np.mean(random))


def test_seeding_takes_the_best_of_its_candidates_as_scikit_learn() -> None:
    """After one step, which mends little."""
    rows, _ = blobs(300, 5, 20, spread=10)
    ours = [kmeans(rows, 20, n_init=1, max_iter=1, seed=seed).inertia for seed in range(20)]
    theirs = [Reference(20, n_init=1, max_iter=1, random_state=seed).fit(rows.numpy()).inertia_ for seed in range(20)]
    assert np.mean(ours) < 1.3 * np.mean(theirs)


def test_the_dtype_of_the_rows_does_not_matter() -> None:
    rows = blobs(3000, 6, 5)[0].half()
    expected = kmeans(rows.float(), 5)
    clusters = kmeans(rows, 5)
    assert torch.equal(clusters.labels, expected.labels)
    assert torch.equal(clusters.centres, expected.centres)
    assert (clusters.inertia, clusters.n_iter) == (expected.inertia, expected.n_iter)


def test_rows_far_from_0() -> None:
    far = kmeans(torch.tensor([[0.0], [1.0], [10.0], [11.0]], dtype=torch.float64) + 1e9, 2)
    assert far.labels[0] == far.labels[1] != far.labels[2] == far.labels[3]
    assert far.inertia == 1
    assert sorted(far.centres.flatten().tolist()) == [1e9 + 0.5, 1e9 + 10.5]
    rows = 1000 + torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(kmeans(rows, 1).centres[0], rows.double().mean(0), rtol=1e-9, atol=0)


def test_large_integers_keep_their_digits() -> None:
    rows = torch.tensor([0, 1, 100, 101])[:, None] + 1_600_000_000
    found = kmeans(rows, 2)
    assert found.labels[:2].unique().tolist() != found.labels[2:].unique().tolist()
    assert found.inertia == 1.0
    assert sorted((found.centres - 1_600_000_000).flatten().tolist()) == [0.5, 100.5]


def test_blocks_do_not_matter_beyond_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _ = blobs(900, 6, 5)
    whole = kmeans(rows, 5)
    monkeypatch.setitem(BLOCK_NUMBERS, "cpu", 700)
    clusters = kmeans(rows, 5)
    assert torch.equal(clusters.labels, whole.labels)
    assert clusters.inertia == pytest.approx(whole.inertia, rel=1e-12)


def test_the_sums_of_a_graphics_card_are_those_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _ = blobs(900, 6, 5)
    expected = kmeans(rows, 5)
    monkeypatch.setattr(sys.modules["probes.functional.kmeans"], "DEVICES_ADDING_BY_INDEX", ())
    clusters = kmeans(rows, 5)
    assert torch.equal(clusters.labels, expected.labels)
    torch.testing.assert_close(clusters.centres, expected.centres, rtol=1e-12, atol=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_graphics_card_finds_the_same_clusters() -> None:
    rows, which = blobs(4000, 10, 6, spread=20)
    clusters = kmeans(rows, 6, device="cuda")
    assert len(set(zip(clusters.labels.tolist(), which.tolist(), strict=True))) == 6
    assert torch.equal(clusters.labels, kmeans(rows, 6, device="cuda").labels)


def test_cuda_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("cuda", "cuda:1", torch.device("cuda")):
        with pytest.raises(InputError, match=f"'{device}'"):
            kmeans(blobs(20, 2, 2)[0], 2, device=device)


def test_the_same_seed_gives_the_same_and_the_global_state_stays() -> None:
    rows, _ = blobs(500, 4, 6, spread=0.3)
    before = torch.get_rng_state()
    first, second, other = (kmeans(rows, 6, n_init=1, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first.labels, second.labels)
    assert not torch.equal(first.labels, other.labels)
    assert torch.equal(torch.get_rng_state(), before)


def test_fewer_distinct_rows_than_clusters() -> None:
    rows = torch.eye(3)[torch.arange(30) % 3]
    clusters = kmeans(rows, 5)
    assert clusters.inertia == pytest.approx(0, abs=1e-9)
    assert bool(torch.isfinite(clusters.centres).all())
    assert len(set(zip(clusters.labels.tolist(), (torch.arange(30) % 3).tolist(), strict=True))) == 3


@pytest.mark.parametrize(
    ("rows", "k", "options", "message"),
    [
        (torch.zeros(3, 2), 4, {}, "3 rows for 4 clusters; give at least as many rows as clusters, or a smaller k"),
        (torch.zeros(3), 2, {}, "rows has shape (3,); expected real numbers [row dim], at least one of each"),
        (
            [torch.zeros(3, 2), torch.zeros(3, 2)],
            2,
            {},
            "rows has shape (2, 3, 2); expected real numbers [row dim]",
        ),
        ([], 2, {}, "rows has shape (0,); expected real numbers [row dim]"),
        (torch.full((3, 2), torch.nan), 2, {}, "rows has NaN or infinity in row 0; leave the example out"),
        (torch.zeros(3, 2), 2, {"device": "gpu"}, "no device 'gpu'; expected cpu or cuda"),
        (torch.zeros(3, 2), 2, {"device": "meta"}, "k-means cannot run on 'meta' here; expected cpu, or cuda"),
        (torch.zeros(3, 2), 2, {"initial": torch.zeros(2, 3)}, "rows has 2 dims and initial 3; give both for the same"),
        (
            torch.zeros(3, 2),
            2,
            {"initial": torch.zeros(3, 2)},
            "initial has 3 centres; expected 2",
        ),
        (torch.zeros(3, 2), 2, {"n_init": 0}, "n_init is 0; expected at least 1"),
    ],
)
def test_what_is_refused(rows: Any, k: int, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        kmeans(rows, k, **options)
