from __future__ import annotations

from itertools import combinations_with_replacement
from typing import Any

import pytest
import torch

from probes.functional.cka import cka_from_hsic, linear_cka_terms
from probes.functional.hsic import HSIC, centred_kernel, hsic_of_blocks, hsic_of_kernels, linear_hsic_kernel
from probes.functional.matrix_blocks import upper_matrix_blocks
from tests.probes.functional.test_cka import brute_force, gaussians

N = 40


def sites() -> dict[str, torch.Tensor]:
    """Rows of three sites of different width, of which the last two share a direction and lie far from 0."""
    a, b, c = gaussians(N, 30, 50, 3)
    c[:, 0] += 2 * b[:, 0]
    return {"a": a, "b": 1e-3 * b + 50, "c": c - 1e4}


PAIRS = list(combinations_with_replacement("abc", 2))


def cka(hsic: dict[tuple[str, str], HSIC], x: str, y: str, debiased: bool) -> float:
    return cka_from_hsic(hsic[x, y], hsic[x, x], hsic[y, y], debiased=debiased)[0]


@pytest.fixture(params=[1, 7, 39, 40])
def block_rows(request: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """Rows of a block: one, some that leave a rest, all but one, and all."""
    for name in ("_MIN_BLOCK_ROWS", "_MAX_BLOCK_ROWS"):
        monkeypatch.setattr(f"probes.functional.hsic.{name}", request.param)
    return int(request.param)


@pytest.mark.parametrize(("precision", "near"), [("float64", 1e-11), ("float32", 1e-6)])
def test_blocks_give_the_cka_of_whole_matrices(block_rows: int, precision: Any, near: float) -> None:
    rows = sites()
    hsic = hsic_of_blocks({site: linear_hsic_kernel(x, precision) for site, x in rows.items()}, N, PAIRS, precision)
    for x, y in PAIRS:
        whole = hsic_of_kernels(centred_kernel(rows[x], precision), centred_kernel(rows[y], precision))
        assert hsic[x, y].rounding == whole.rounding
        for debiased in (False, True):
            expected = brute_force(rows[x], rows[y])[debiased]
            assert cka(hsic, x, y, debiased) == pytest.approx(expected, abs=near)


def test_no_block_is_larger_than_it_may_be_and_none_is_computed_twice(block_rows: int) -> None:
    shapes = []

    def ones(rows: slice, columns: slice) -> torch.Tensor:
        block = torch.ones(N, N)[rows, columns]
        shapes.append(block.shape)
        return block

    hsic_of_blocks({"x": ones}, N, [("x", "x")])
    computed = shapes[1:]  # the first one shows the device
    assert max(max(shape) for shape in computed) == block_rows
    assert len(computed) == len(list(upper_matrix_blocks(N, block_rows)))


def test_kernels_and_moments_give_the_same() -> None:
    """All pairs are less work from kernels, a narrow site with itself from moments."""
    rows = sites()
    together = linear_cka_terms(rows, PAIRS)
    for x, y in PAIRS:
        alone = linear_cka_terms({site: rows[site] for site in {x, y}}, [(x, y)])
        torch.testing.assert_close(together[x, y].biased, alone[x, y].biased, rtol=1e-10, atol=0)
        torch.testing.assert_close(together[x, y].debiased, alone[x, y].debiased, rtol=1e-10, atol=1e-12)


def test_rows_that_are_all_the_same_give_exactly_0(block_rows: int) -> None:
    same = torch.full((N, 60), 1e6 / 3, dtype=torch.float64)
    hsic = hsic_of_blocks({"x": linear_hsic_kernel(same)}, N, [("x", "x")])["x", "x"]
    assert float(hsic.biased) == 0
    assert hsic.undefined(debiased=False) == "all examples are the same"
