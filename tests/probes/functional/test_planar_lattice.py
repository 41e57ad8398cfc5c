"""Lattices of two directions are found, for several moduli; chance, lines and wrong residues are not."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float, Int

from probes.functional.planar_lattice import PlanarLattice, planar_lattice
from tasks import SparseModularAddition
from tests.calibration.planar import false_positive_rate
from tests.probes.test_moments import LargestInFloat64

BASIS = torch.tensor([[0.7, 0.2, 0.1], [-0.3, 0.9, 0.4]], dtype=torch.float64)


def planted(
    p: int, length: int, support: int, seed: int, noise: float = 0.0
) -> tuple[Float[torch.Tensor, "row dim"], Int[torch.Tensor, "row pos"]]:
    """Lattice coordinates ``(m, k)`` with ``m + k`` congruent to v on the support and to 0 off it, and the points."""
    draw = torch.Generator().manual_seed(seed)
    m = torch.randint(-2, 3, (length, p), generator=draw)
    k = torch.randint(-1, 2, (length, p), generator=draw) * p - m
    k[:support] += torch.arange(p)
    m[:, 0] = k[:, 0] = 0
    m[0, 1] = 1
    k[0, 1] = 0
    m[1, 1] = 0
    k[1, 1] = 1  # the basis itself is among the weights
    tokens = torch.randint(p, (1500, length), generator=draw)
    sites = torch.stack([torch.stack([m[t, x], k[t, x]], -1) for t, x in enumerate(tokens.T)]).sum(dim=0)
    points = sites.double() @ BASIS
    return tokens, points + noise * torch.randn(points.shape, generator=draw, dtype=torch.float64)


@pytest.mark.parametrize(("p", "length"), [(2, 12), (3, 8), (4, 6)])
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_a_planted_lattice_is_found(p: int, length: int, noise: float) -> None:
    tokens, points = planted(p, length, 4, seed=p, noise=noise)
    fit = planar_lattice(points, tokens, range(4), p)
    assert bool(fit.matches)
    assert float(fit.deviation) < (0.05 if noise else 1e-6)
    assert float(fit.rank_two) == pytest.approx(1, abs=0.01)
    answer = tokens[:, :4].sum(dim=1) % p
    pairs = torch.unique(torch.stack([fit.classes, answer]), dim=1)
    assert pairs.shape[1] == int(fit.classes.max()) + 1  # each site of the lattice has one answer
    assert len(torch.unique(fit.classes)) > 2 * p


def test_random_weights_match_by_chance_if_they_are_small_off_the_support() -> None:
    """So that no test of one head alone can say that a match is no chance: there is no p-value."""
    spread, small = (false_positive_rate(100, 0, f"8 digits, p = 2, {off}")[0] for off in ("spread", "small"))
    assert spread <= 2
    assert small >= 10
    assert not any("p_value" in field for field in PlanarLattice._fields)


def test_an_odd_weight_off_the_support_does_not_match() -> None:
    """(1, 0) on and off the support: no residues tell them apart."""
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(2, (300, 6), generator=draw)
    weights = torch.tensor([[1, 0], [0, 1], [1, 2], [1, 0], [0, 2], [0, 1.0]]).double()
    fit = planar_lattice(tokens.double() @ weights @ BASIS, tokens, (0, 1, 2), 2)
    assert not bool(fit.matches)


def test_the_longest_weights_may_be_multiples_of_each_other() -> None:
    tokens = torch.randint(2, (400, 86), generator=torch.Generator().manual_seed(0))
    points = torch.stack([tokens[:, :26].sum(1), 0.3 * tokens[:, 26:].sum(1)], dim=1).double()
    fit = planar_lattice(points, tokens, range(26), 2)
    assert bool(fit.matches)
    assert float(fit.deviation) < 1e-6


def test_of_a_large_modulus_no_map_to_residues_is_stored() -> None:
    """All 23^2 maps of 300 pairs would be 100 times the largest tensor here."""
    tokens, points = planted(23, 3, 2, seed=0)
    with LargestInFloat64() as largest:
        fit = planar_lattice(points, tokens, range(2), 23)
    assert bool(fit.matches)
    assert largest.numel <= (len(tokens) + 600) * 3 * 22


def test_a_line_and_a_point_are_undefined() -> None:
    task = SparseModularAddition(length=5, n_support=2)
    tokens = next(task.batches("all", 32)).tokens
    line = tokens.double() @ torch.tensor([1.0, -1, 2, 0, 0]).double()[:, None] @ BASIS[:1]
    for points, share in ((line, 1.0), (torch.full((32, 3), 0.3), torch.nan)):
        fit = planar_lattice(points, tokens, (0, 1), 2)
        assert fit.weights.isnan().all()
        assert fit.deviation.isnan()
        assert not bool(fit.matches)
        assert fit.rank_two.nan_to_num(-1).item() == pytest.approx(-1 if share != share else share)
    few = planar_lattice(torch.randn(4, 2), tokens[:4], (0, 1), 2)
    assert few.rank_two.isnan()
