from __future__ import annotations

import re
import warnings

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.functional import integer_weights
from probes.functional.integer_weights import integer_sum
from tasks import InputError


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def planted(
    weights: Float[Tensor, "pos value"], n: int | None = None, noise: float = 0.0, d: int = 3, seed: int = 0
) -> tuple[Float[Tensor, "row dim"], Int[Tensor, "row pos"]]:
    """Return points ``c + u sum_t w_t(x_t)`` of all sequences, or of ``n`` random ones."""
    n_pos = weights.shape[0]
    p = weights.shape[1] + 1
    g = generator(seed)
    if n is None:
        tokens = torch.cartesian_prod(*[torch.arange(p)] * n_pos)
    else:
        tokens = torch.randint(p, (n, n_pos), generator=g)
    along = torch.cat([torch.zeros(n_pos, 1), weights], dim=1).gather(1, tokens.T).sum(dim=0)
    u, c = torch.randn(2, d, generator=g, dtype=torch.float64)
    points = c + along[:, None] * u
    return points + noise * u.norm() * torch.randn(points.shape, generator=g, dtype=torch.float64), tokens


def column(*weights: float) -> Float[Tensor, "pos 1"]:
    return torch.tensor(weights, dtype=torch.float64)[:, None]


BINARY = column(1, -1, 3, 1, 1, 0, -2, 2, 0, 0, 2, 0)  # odd on the first five, even on the rest


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("sign", [0.37, -0.37])
def test_planted_binary_weights_are_found(noise: float, sign: float) -> None:
    points, tokens = planted(sign * BINARY, noise=noise * abs(sign))
    for given in (points, points.float()):
        fit = integer_weights(given, tokens, range(5), 2)
        assert fit.weights.dtype == torch.float64
        assert fit.rounded.tolist() == BINARY.long().tolist()
        assert bool(fit.matches)
        assert float(fit.deviation) < (0.05 if noise else 1e-5)
        assert float(fit.deviation) == float((fit.weights - fit.rounded).abs().max())
        assert float(fit.rank_one) == pytest.approx(1, abs=1e-2 if noise else 1e-9)
        assert fit.classes.tolist() == (tokens @ BINARY[:, 0].long()).tolist()


def test_scale_and_a_lower_median() -> None:
    """The median of an even number of weights is the lower of the middle two; a mean of two signs may be 0."""
    fit = integer_weights(*planted(column(1, -1, 1, -1, 0, 2)), range(4), 2)
    assert bool(fit.matches)
    assert fit.deviation < 1e-12
    assert fit.rounded.flatten().abs().tolist() == [1, 1, 1, 1, 0, 2]
    thirds = integer_weights(*planted(column(3, 3, 3, 1, 1, 0)), range(5), 2)  # the median weight is 3, not 1
    assert thirds.weights[3].item() == pytest.approx(1 / 3)
    assert not bool(thirds.matches)


@pytest.mark.parametrize(
    ("weights", "what"),
    [
        (column(1, 1, 2, 1, 1, 0, 2), "even on the support"),
        (column(1, 1, 1, 1, 1, 1, 0), "odd off the support"),
        (column(1, 1, 1, 0, 1, 0, 0), "a position of the support unread"),
    ],
)
def test_a_wrong_parity_does_not_match(weights: Float[Tensor, "pos value"], what: str) -> None:
    fit = integer_weights(*planted(weights), range(5), 2)
    assert fit.deviation < 1e-12, what
    assert not bool(fit.matches), what
    assert bool(fit.rounded.eq(weights).all())


TERNARY = torch.tensor([[1, 2], [-2, 5], [4, -1], [0, 3], [-3, 0]], dtype=torch.float64)
QUINARY = torch.tensor([[1, 2, 3, 4], [1, -3, 3, -1], [-4, 2, -2, 9], [0, 5, -5, 0]], dtype=torch.float64)


@pytest.mark.parametrize("weights", [TERNARY, QUINARY], ids=["3", "5"])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_planted_weights_of_larger_moduli_are_found(weights: Float[Tensor, "pos value"], noise: float) -> None:
    p = weights.shape[1] + 1
    for scale in (0.2, -1.7):
        points, tokens = planted(scale * weights, noise=noise * abs(scale))
        fit = integer_weights(points, tokens, (0, 1, 2), p)
        assert bool(fit.matches)
        assert fit.rounded.tolist() == weights.long().tolist()
        assert float(fit.deviation) < (0.1 if noise else 1e-10)
        assert torch.equal(fit.classes, integer_sum(weights.long(), tokens))
    assert not bool(integer_weights(points, tokens, (0, 1), p).matches)  # the third is no spurious position
    assert not bool(integer_weights(points, tokens, (0, 1, 2, 3), p).matches)
    wrong = weights.clone()
    wrong[1, -1] += 1
    assert not bool(integer_weights(*planted(wrong), (0, 1, 2), p).matches)


@pytest.mark.parametrize("a", [1, 2, 3, 4])
def test_the_weight_of_digit_one_may_be_any_unit(a: int) -> None:
    """The median weight of digit 1 is ``a`` for p = 5. The weights are congruent to ``a v``, and integers only then."""
    digits = torch.arange(1, 5)
    wrapped = a * digits % 5
    shifted = torch.stack([wrapped, wrapped + torch.tensor([0, 0, 5, -5]), wrapped + torch.tensor([0, -5, 0, 5])])
    weights = torch.cat([shifted, torch.tensor([[5, 0, -5, 0]])]).double()
    fit = integer_weights(*planted(weights), (0, 1, 2), 5)
    assert bool(fit.matches)
    assert float(fit.deviation) < 1e-10
    # the scale may differ where the same weights are integers in another unit as well
    assert torch.allclose(fit.weights / fit.weights[0, 0], weights / weights[0, 0])


@pytest.mark.parametrize(("p", "a"), [(4, 2), (6, 2), (6, 3), (9, 3)])
def test_weights_that_join_different_sums_do_not_match(p: int, a: int) -> None:
    """``a v`` has equal residues for different ``v`` if ``a`` and ``p`` share a divisor, such as parity for p = 4."""
    row = a * torch.arange(1, p) % p
    points, tokens = planted(torch.stack([row, row, torch.zeros(p - 1)]).double())
    at_one_point = tokens[(points - points[0]).norm(dim=1) < 1e-9]
    assert len(torch.unique(at_one_point[:, :2].sum(dim=1) % p)) > 1
    assert not bool(integer_weights(points, tokens, (0, 1), p).matches)


@pytest.mark.parametrize(("p", "a"), [(4, 3), (6, 5), (9, 2)])
def test_units_of_a_composite_modulus_match(p: int, a: int) -> None:
    row = a * torch.arange(1, p) % p
    points, tokens = planted(torch.stack([row, row, torch.zeros(p - 1)]).double())
    assert bool(integer_weights(points, tokens, (0, 1), p).matches)


def test_a_ramp_is_its_own_smallest_unit() -> None:
    """1 and 2 of p = 3 match as they are and doubled; noise-free both are exact, and the smaller counts."""
    ramp = torch.tensor([[1.0, 2.0], [1.0, 2.0], [0.0, 0.0]], dtype=torch.float64)
    assert integer_weights(*planted(0.3 * ramp), (0, 1), 3).rounded.tolist() == ramp.long().tolist()


def test_a_scale_that_matches_comes_before_a_nearer_one() -> None:
    """2 and 1.4 of p = 3 match in their own unit (0.4 off); as 1 and 0.7 they are nearer to 1 and 1, which do not."""
    weights = torch.tensor([[2.0, 1.4], [2.0, 1.4], [0.0, 0.0]], dtype=torch.float64)
    fit = integer_weights(*planted(weights), (0, 1), 3)
    assert bool(fit.matches)
    assert fit.rounded.tolist() == [[2, 1], [2, 1], [0, 0]]
    assert float(fit.deviation) == pytest.approx(0.4)


def test_the_residual_does_not_turn_the_direction() -> None:
    """Large variance that is no sum of tokens (a product of two) leaves fit and share alone: the design is balanced."""
    points, tokens = planted(column(1, 1, 1, 0, 0, 0), d=2)
    product = (2 * tokens[:, 0] - 1) * (2 * tokens[:, 5] - 1)
    fit = integer_weights(points + 50 * product[:, None] * torch.tensor([[1.0, -2.0]]), tokens, range(3), 2)
    assert fit.rounded.flatten().tolist() == [1, 1, 1, 0, 0, 0]
    assert fit.deviation < 1e-9
    assert float(fit.rank_one) == pytest.approx(1)


def test_the_direction_is_that_of_the_fitted_points_not_of_the_coefficients() -> None:
    """The first digit's coefficient is twice as long, but it is seldom 1: 2 of 64 rows."""
    row = torch.arange(64)
    tokens = torch.stack([(row == 0) | (row == 35), row % 2 == 1], dim=1).long()
    fit = integer_weights(tokens * torch.tensor([2.0, 1.0]), tokens, (1,), 2)
    first = 4 * 2 / 64 * 62 / 64
    second = 1 / 4
    assert fit.rounded.flatten().tolist() == [0, 1]
    assert float(fit.rank_one) == pytest.approx(second / (first + second))


def test_rank_one_is_the_share_of_the_first_direction() -> None:
    tokens = torch.cartesian_prod(*[torch.arange(2)] * 4)
    points = torch.stack([3.0 * tokens[:, 0], tokens[:, 1] + tokens[:, 2], torch.zeros(16)], dim=1)
    fit = integer_weights(points, tokens, (0,), 2)
    assert float(fit.rank_one) == pytest.approx(9 / 11)
    assert fit.rounded.flatten().tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("points", "tokens"),
    [
        (torch.full((16, 2), 0.1), torch.cartesian_prod(*[torch.arange(2)] * 4)),  # constant
        (torch.randn(4, 2, generator=generator()), torch.eye(4, dtype=torch.int64)),  # too few rows
        (
            torch.randn(20, 2, generator=generator()),
            torch.arange(80).reshape(20, 4) // 7 % 2 * torch.tensor([1, 1, 1, 0]),
        ),
        (torch.cartesian_prod(*[torch.arange(2)] * 4)[:, 3:].float(), torch.cartesian_prod(*[torch.arange(2)] * 4)),
        (torch.randn(1, 2, generator=generator()), torch.tensor([[0, 1, 0, 1]])),
    ],
    ids=["constant", "few", "unseen", "off the support only", "one row"],
)
def test_undefined_weights_are_nan_without_a_warning(
    points: Float[Tensor, "row dim"], tokens: Int[Tensor, "row pos"]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = integer_weights(points, tokens, (0, 1), 2)
    assert fit.deviation.isnan()
    assert bool(fit.weights.isnan().all())
    assert not bool(fit.matches)
    assert fit.rounded.unique().tolist() == fit.classes.unique().tolist() == [0]


def test_rounding_is_no_unit() -> None:
    """A support that is not read has weights of 1e-8 of the others': not a scale in which those are integers."""
    weights = column(1e-8, 1e-8, 1e-8, 1, 0.7, 0.3)
    assert integer_weights(*planted(weights), range(3), 2).deviation.isnan()
    assert integer_weights(*planted(weights * torch.tensor([[1e4]] * 3 + [[1]] * 3)), range(3), 2).deviation.isfinite()


def test_random_points_do_not_match() -> None:
    tokens = torch.cartesian_prod(*[torch.arange(2)] * 8)
    fits = [integer_weights(torch.randn(256, 2, generator=generator(seed)), tokens, range(4), 2) for seed in range(100)]
    assert not any(bool(fit.matches) and fit.deviation < 0.25 for fit in fits)


@pytest.mark.parametrize(
    ("tokens", "support", "modulus", "message"),
    [
        ([[0, 1]], (0,), 1, "modulus is 1; expected at least 2"),
        (
            [[0, 3]],
            (0,),
            2,
            "the batch has a token 3, but modulus is 2; expected digits 0 to 1: give the number",
        ),
        ([[-1, 0]], (0,), 3, "the batch has a token -1, but modulus is 3; expected digits 0 to 2"),
        ([[0, 1]], (1, 1), 2, "support has a position twice; expected different positions such as (0, 1, 2)"),
        ([[0, 1]], (0, 2), 2, "support has position 2; expected positions from 0 to 1, the sequence's last"),
        ([[0, 1]], (-1,), 2, "support has position -1; expected positions from 0 to 1, the sequence's last"),
    ],
)
def test_what_is_refused(tokens: list, support: tuple[int, ...], modulus: int, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        integer_weights(torch.zeros(1, 2), torch.tensor(tokens), support, modulus)
