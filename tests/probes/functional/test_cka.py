from __future__ import annotations

import math
import re
from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.functional import cka_null, cka_resamples, linear_cka
from probes.functional.cka import cka_from_hsic
from probes.functional.cross_moments import CrossMoments
from probes.functional.halves import half_samples
from tasks import InputError


def gaussians(n: int, *dims: int, seed: int = 0) -> list[torch.Tensor]:
    """Independent rows."""
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(n, d, generator=draw, dtype=torch.float64) for d in dims]


def related(n: int, dx: int, dy: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of which the second share their first dimension with the first."""
    x, y = gaussians(n, dx, dy, seed=seed)
    y[:, 0] += 2 * x[:, 0]
    return x, y


def from_kernels(k: np.ndarray, l: np.ndarray, debiased: bool) -> float:  # noqa: E741
    """CKA by the definitions, on whole n x n matrices."""

    def hsic(k: np.ndarray, l: np.ndarray) -> np.longdouble:  # noqa: E741
        n = len(k)
        one = np.ones(n, np.longdouble)
        if not debiased:
            h = np.eye(n, dtype=np.longdouble) - np.longdouble(1) / n
            return np.trace(k @ h @ l @ h)
        k, l = k - np.diag(np.diag(k)), l - np.diag(np.diag(l))  # noqa: E741
        sums = (one @ k @ one) * (one @ l @ one) / np.longdouble((n - 1) * (n - 2))
        return np.trace(k @ l) + sums - 2 * (one @ k @ l @ one) / np.longdouble(n - 2)

    return float(hsic(k, l) / np.sqrt(hsic(k, k)) / np.sqrt(hsic(l, l)))


def brute_force(x: torch.Tensor, y: torch.Tensor) -> list[float]:
    """The biased and the debiased form in 80-bit numbers, about the mean: far from it even these run out of digits."""
    a, b = (np.asarray(side, np.longdouble) for side in (x, y))
    a, b = a - a.mean(0), b - b.mean(0)
    return [from_kernels(a @ a.T, b @ b.T, debiased) for debiased in (False, True)]


def moments(x: torch.Tensor, y: torch.Tensor, sizes: list[int]) -> list[CrossMoments]:
    """Of (x, y), (x, x), (y, y), gathered in batches of the given sizes."""
    found = []
    for a, b in ((x, y), (x, x), (y, y)):
        parts = [CrossMoments.of_rows(p, q) for p, q in zip(a.split(sizes), b.split(sizes), strict=True)]
        found.append(reduce(CrossMoments.merge, parts))
    return found


def cka_from_moments(xy: CrossMoments, xx: CrossMoments, yy: CrossMoments, *, debiased: bool = False) -> float:
    return cka_from_hsic(xy.hsic(), xx.hsic(), yy.hsic(), debiased=debiased)[0]


# ---- the value ----


def both_from_moments(x: torch.Tensor, y: torch.Tensor, sizes: list[int]) -> list[float]:
    """The biased and the debiased form of the same moments."""
    found = moments(x, y, sizes)
    return [cka_from_moments(*found, debiased=debiased) for debiased in (False, True)]


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (1e6, 1e3), (1e-12, 1e7)])
@pytest.mark.parametrize(("n", "dx", "dy"), [(40, 5, 7), (20, 30, 40), (4, 3, 50), (30, 60, 2), (12, 60, 70)])
def test_equals_the_kernel_matrices(n: int, dx: int, dy: int, scale: float, offset: float) -> None:
    """Both forms, at any scale, and with a mean far larger than the spread."""
    x, y = related(n, dx, dy)
    x, y = (x + offset) * scale, (y - offset) * scale
    expected = brute_force(x, y)
    assert [float(linear_cka(x, y, debiased=d)) for d in (False, True)] == pytest.approx(expected, abs=1e-11)
    for sizes in ([n], [1] * n, [1, n - 2, 1], [n - 1, 1]):
        assert both_from_moments(x, y, sizes) == pytest.approx(expected, abs=1e-11)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 10**6), st.booleans())
def test_moments_do_not_depend_on_batches_or_merges(sizes: list[int], seed: int, debiased: bool) -> None:
    """Parts gathered alone, each about a point of its own, merged in any order, or one after the other."""
    n = sum(sizes)
    x, y = related(n, 3, 4, seed)
    x, y = x + 100 * torch.arange(n)[:, None] ** 0.5, y * 1e-6 + 5
    whole = cka_from_moments(*moments(x, y, [n]), debiased=debiased)
    order = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(seed)).tolist()
    merged = []
    for a, b in ((x, y), (x, x), (y, y)):
        parts = [CrossMoments.of_rows(p, q) for p, q in zip(a.split(sizes), b.split(sizes), strict=True)]
        total = parts[order[0]]
        for i in order[1:]:
            total = total.merge(parts[i])
        merged.append(total)
    in_order = moments(x, y, sizes)
    for parts in (merged, in_order):
        assert [part.n for part in parts] == [n] * 3
        assert cka_from_moments(*parts, debiased=debiased) == pytest.approx(whole, abs=1e-10, nan_ok=True)


def test_a_row_far_from_all_others() -> None:
    """First, the fixed point of the sums is far from the mean; last, the mean moves away from it."""
    x, y = related(80, 5, 3)
    x[0], y[0] = 100 * x[0], -100 * y[0]
    expected = brute_force(x, y)
    for a, b in ((x, y), (x.flip(0), y.flip(0))):
        for sizes in ([1] * 80, [1, 79], [79, 1], [3, 70, 7]):
            assert both_from_moments(a, b, sizes) == pytest.approx(expected, abs=1e-10), sizes


def test_a_mean_that_drifts() -> None:
    """Batches in the order of a trend, about a first one that is near none of the later ones."""
    x, y = related(120, 4, 4)
    x, y = x + 1e4 * torch.arange(120)[:, None], y + 1e7
    assert both_from_moments(x, y, [2] * 60) == pytest.approx(brute_force(x, y), abs=1e-10)


def test_many_rows_are_added_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = related(90, 4, 3)
    x = x + torch.arange(90)[:, None]
    expected = brute_force(x, y)
    monkeypatch.setattr("probes.functional.cross_moments._ROWS_AT_ONCE", 16)
    assert both_from_moments(x, y, [90]) == pytest.approx(expected, abs=1e-10)
    assert both_from_moments(x.float(), y.float(), [90]) == pytest.approx(expected, abs=1e-5)


def test_a_first_batch_far_from_all_others_costs_no_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fixed points follow the mean. About those of the first batch, the error is 100 times as large."""
    monkeypatch.setattr("probes.functional.cross_moments._ROWS_AT_ONCE", 4000)
    x, y = related(4000, 3, 2)
    x[4:] += 1e4
    y[4:] -= 1e4
    gathered = CrossMoments.of_rows(x[:4], y[:4])
    for start in range(4, 4000, 66):
        rows = slice(start, start + 66)
        gathered = gathered.merge(CrossMoments.of_rows(x[rows], y[rows], like=gathered))
    expected = CrossMoments.of_rows(x, y).hsic()
    assert float(gathered.hsic().biased / expected.biased) == pytest.approx(1, abs=3e-14)
    assert float(gathered.hsic().debiased / expected.debiased) == pytest.approx(1, abs=3e-14)


def test_both_ways_give_the_same_around_the_switch() -> None:
    for d in (27, 28, 29, 35):  # 40 rows: n x n matrices from d = 29 on
        x, y = related(40, d, d)
        for debiased in (False, True):
            streamed = cka_from_moments(*moments(x, y, [40]), debiased=debiased)
            assert float(linear_cka(x, y, debiased=debiased)) == pytest.approx(streamed, abs=1e-12)


def test_the_published_bias_on_independent_gaussians() -> None:
    """Spec 2: biased .977 and .061, debiased about 0."""
    for n, d, biased, near in ((100, 4096, 0.977, 0.02), (1000, 64, 0.061, 0.005)):
        x, y = gaussians(n, d, d)
        assert float(linear_cka(x, y)) == pytest.approx(biased, abs=0.003)
        assert abs(float(linear_cka(x, y, debiased=True))) < near


@settings(max_examples=20, deadline=None)
@given(st.integers(5, 30), st.integers(1, 12), st.integers(1, 12), st.integers(0, 10**6), st.booleans())
def test_invariances(n: int, dx: int, dy: int, seed: int, debiased: bool) -> None:
    x, y = related(n, dx, dy, seed)
    value = float(linear_cka(x, y, debiased=debiased))
    rotation = torch.linalg.qr(gaussians(dx, dx, seed=seed + 1)[0])[0]
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    for other in ((x @ rotation, y), (-1e-9 * x, 1e5 * y), (x + 7, y - 3), (x[order], y[order])):
        assert float(linear_cka(*other, debiased=debiased)) == pytest.approx(value, abs=1e-9)
    assert float(linear_cka(y, x, debiased=debiased)) == pytest.approx(value, abs=1e-12)
    assert float(linear_cka(x, x @ rotation, debiased=debiased)) == pytest.approx(1, abs=1e-9)


def test_input_types() -> None:
    x, y = related(40, 3, 4)
    expected = float(linear_cka(x, y))
    assert float(linear_cka(x.numpy(), y.requires_grad_())) == expected
    for dtype, near in ((torch.float32, 1e-6), (torch.bfloat16, 1e-2)):
        assert float(linear_cka(x.to(dtype), y.to(dtype))) == pytest.approx(expected, abs=near)
    found = linear_cka(x, y)
    assert (found.n, found.d, type(found.value)) == (40, (3, 4), float)


# ---- undefined, and flagged ----


@pytest.mark.parametrize("d", [2, 19])  # through moments, and through n x n matrices
def test_why_a_value_is_nan(d: int) -> None:
    x, _ = related(6, d, d)
    same = torch.full((6, d), 1e6 / 3)
    equidistant = torch.eye(6, d + 6, dtype=torch.float64) * 3 + 1
    cases: list[tuple[Any, Any, str]] = [
        ((same, x), {}, "x: all examples are the same"),
        ((x, same), {"debiased": True}, "y: all examples are the same"),
        ((x[:3], x[:3]), {"debiased": True}, "x: there are 3 examples, and the debiased form needs at least 4"),
        ((x[:1], x[:1]), {}, "x: there is one example only"),
        ((x, equidistant), {"debiased": True}, "y: every two examples are equally far apart, which leaves nothing"),
    ]
    for rows, options, reason in cases:
        found = linear_cka(*rows, **options)
        assert math.isnan(found.value), reason
        assert found.note.startswith(reason)
        terms = (part.hsic() for part in moments(*rows, [1] * len(rows[0])))
        value, note = cka_from_hsic(*terms, **options)
        assert math.isnan(value)
        assert note.startswith(reason)
    assert 0 < float(linear_cka(x, equidistant)) < 1
    assert float(linear_cka(x[:2], x[:2])) == pytest.approx(1)
    assert math.isfinite(float(linear_cka(x[:4], x[1:5], debiased=True)))


def test_a_small_sample_is_flagged_in_the_biased_form() -> None:
    x, y = related(59, 6, 2)
    assert linear_cka(x, y).note == "n = 59 is below 10 d (d = 6): the biased form is too high; see the debiased one"
    assert linear_cka(x, y, debiased=True).note == ""
    assert linear_cka(*related(60, 6, 2)).note == ""


def test_what_is_refused() -> None:
    x, y = related(6, 2, 3)
    bad = x.clone()
    bad[4, 1] = torch.nan
    infinite = y.clone()
    infinite[2] = -torch.inf
    for call, message in (
        (lambda: linear_cka(x, y[:5]), "x has 6 rows and y 5; give both for the same rows"),
        (lambda: linear_cka(x[0], y), "x has shape (2,); expected real numbers [row dx], at least one of each"),
        (lambda: linear_cka(x[:0], y[:0]), "x has shape (0, 2); expected"),
        (lambda: linear_cka(bad, y), "x has NaN or infinity in row 4; leave the example out"),
        (lambda: linear_cka(x, infinite), "y has NaN or infinity in row 2"),
        (lambda: cka_null(x, y, 0), "n_permutations is 0; expected at least 1"),
        (lambda: cka_resamples(x, y, 1), "n_resamples is 1; expected at least 2"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            call()


# ---- chance and intervals ----


@pytest.mark.parametrize("d", [3, 90])
def test_the_null_is_cka_of_shuffled_rows(d: int) -> None:
    x, y = related(30, d, 4)
    draw = torch.Generator().manual_seed(5)
    for debiased in (False, True):
        orders = [torch.randperm(30, generator=draw.manual_seed(5)) for _ in range(1)]
        expected = [float(linear_cka(x, y[o], debiased=debiased)) for o in orders]
        found = cka_null(x, y, 40, debiased=debiased, seed=5)
        assert found[:1].tolist() == pytest.approx(expected, abs=1e-10)
        assert float(linear_cka(x, y, debiased=debiased)) > float(found.quantile(0.95)) or d == 90
    assert abs(float(cka_null(x, y, 200, debiased=True).mean())) < 0.03


def test_the_interval_over_examples_is_as_wide_as_fresh_samples_spread() -> None:
    """What the usual bootstrap is not: its copies of rows pull the debiased form to 1."""
    fresh = torch.tensor([float(linear_cka(*related(60, 20, 20, seed=s), debiased=True)) for s in range(60)])
    found = [cka_resamples(*related(60, 20, 20, seed=s), 40, debiased=True, seed=s) for s in range(8)]
    assert torch.stack(found).std(dim=1).mean() / fresh.std() == pytest.approx(1, abs=0.35)
    assert float(found[0].mean()) == pytest.approx(0, abs=1e-12)
    assert torch.equal(found[0], cka_resamples(*related(60, 20, 20), 40, debiased=True))


@pytest.mark.parametrize(("n", "dx", "dy"), [(2, 1, 3), (9, 4, 20), (60, 20, 20), (1100, 6, 1), (3000, 3, 2)])
@pytest.mark.parametrize("debiased", [False, True])
def test_resamples_are_cka_of_the_halves(n: int, dx: int, dy: int, debiased: bool) -> None:
    x, y = related(n, dx, dy)
    halves = [linear_cka(x[half], y[half], debiased=debiased).value for half in half_samples(n, 6, 3)]
    deviations = torch.tensor(halves) - torch.tensor(halves).mean()
    found = cka_resamples(x, y, 6, debiased=debiased, seed=3)
    torch.testing.assert_close(found, deviations.double(), rtol=0, atol=1e-7, equal_nan=True)


def test_without_enough_examples_there_is_no_interval() -> None:
    assert cka_resamples(*related(7, 2, 2), 5, debiased=True).isnan().all()
    assert cka_resamples(*related(1, 2, 2), 5).isnan().all()
    assert cka_null(torch.ones(5, 2), related(5, 2, 2)[1], 3).isnan().all()


# ---- without the largest principal components ----


def without_top(x: np.ndarray, k: int) -> np.ndarray:
    """By numpy's singular value decomposition."""
    u, s, vh = np.linalg.svd(x - x.mean(0), full_matrices=False)
    return (u[:, k:] * s[k:]) @ vh[k:]  # type: ignore[no-any-return]


@pytest.mark.parametrize("debiased", [False, True])
@pytest.mark.parametrize(("n", "dx", "dy"), [(40, 5, 7), (12, 30, 20), (15, 4, 40)])
@pytest.mark.parametrize("k", [1, 2])
def test_without_the_largest_components_as_numpy_has_it(n: int, dx: int, dy: int, k: int, debiased: bool) -> None:
    x, y = related(n, dx, dy)
    a, b = without_top(x.numpy(), k), without_top(y.numpy(), k)
    found = linear_cka(x, y, debiased=debiased, remove_top=k)
    assert float(found) == pytest.approx(from_kernels(a @ a.T, b @ b.T, debiased), abs=1e-9)
    assert (found.n, found.d) == (n, (dx, dy))


def test_a_massive_dimension_hides_what_is_below_it() -> None:
    """It is shared and the rest is not: CKA sees the dimension alone, and what is left is near chance."""
    x, y = gaussians(300, 20, 20)
    y[:, 0] = x[:, 0] = 1000 * x[:, 0]
    assert float(linear_cka(x, y, debiased=True)) == pytest.approx(1, abs=1e-3)
    assert abs(float(linear_cka(x, y, debiased=True, remove_top=1))) < 0.05
    x[:, 1:] = y[:, 1:]
    assert float(linear_cka(x, y, debiased=True, remove_top=1)) == pytest.approx(1, abs=1e-9)


def test_largest_components_that_cannot_be_told() -> None:
    (x,) = gaussians(10, 2)
    ends = torch.tensor([[1.0, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 0.5], [0, 0, -0.5]])
    nothing = "nothing is left without its 2 largest principal components"
    cases = [
        (x, 2, nothing),
        (torch.cat([x, torch.ones(10, 5)], dim=1), 2, nothing),
        (ends, 1, "its largest principal component cannot be told from the next one, which holds as much variance"),
        (torch.ones(10, 3), 1, "all examples are the same"),
    ]
    for rows, k, why in cases:
        (other,) = gaussians(len(rows), 4)
        found = linear_cka(rows, other, remove_top=k)
        assert math.isnan(float(found))
        assert found.note == f"x: {why}"
        assert linear_cka(other, rows, remove_top=k).note == f"y: {why}"
    assert float(linear_cka(ends, ends, remove_top=2)) == pytest.approx(1)
    with pytest.raises(InputError, match="remove_top is -1; expected at least 0"):
        linear_cka(x, x, remove_top=-1)
