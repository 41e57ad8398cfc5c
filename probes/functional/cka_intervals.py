"""What linear CKA is by chance, and how much it varies with the examples."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from probes.functional.cka import CrossMoments, centred, cka_from_hsic, hsic_of_rows, linear_cka, paired
from tasks import InputError


def cka_null(
    x: Float[Tensor, "n dx"], y: Float[Tensor, "n dy"], n_permutations: int, *, debiased: bool = False, seed: int = 0
) -> Float[Tensor, "n_permutations"]:
    """Linear CKA when the rows are paired at random: what it is by chance at this n and d.

    Example:
        >>> x = torch.randn(40, 200, generator=torch.Generator().manual_seed(0))
        >>> null = cka_null(x, x, 20)
        >>> bool(null.min() > 0.7), bool(cka_null(x, x, 20, debiased=True).abs().max() < 0.2)
        (True, True)
    """
    _at_least_one("n_permutations", n_permutations)
    x, y = (_compact(side) for side in paired(x, y))
    xx, yy = hsic_of_rows(x, x), hsic_of_rows(y, y)
    draw, like = torch.Generator().manual_seed(seed), CrossMoments.of(x, y)
    orders = (torch.randperm(len(x), generator=draw).to(y.device) for _ in range(n_permutations))
    found = [cka_from_hsic(CrossMoments.of(x, y[o], like).hsic(), xx, yy, debiased=debiased)[0] for o in orders]
    return torch.tensor(found, dtype=torch.float64)


def cka_resamples(
    x: Float[Tensor, "n dx"], y: Float[Tensor, "n dy"], n_resamples: int, *, debiased: bool = False, seed: int = 0
) -> Float[Tensor, "n_resamples"]:
    """How far linear CKA would be off with other examples: deviations of random half-samples from their mean.

    Halves are drawn without replacement: a draw of m = n/2 of n rows varies as much about the whole sample as n rows
    vary about the population, ``(1 - m/n) / m = 1/n`` (Shao & Wu 1989, delete-half jackknife). The usual bootstrap
    draws rows twice; a row and its copy agree in both representations, which puts back the diagonal that the
    debiased form leaves out. Only the spread is used, since the bias of the biased form differs at half the size.

    Returns:
        ``[n_resamples]``; the value plus their 2.5% and 97.5% quantiles is a 95% interval over examples. NaN
        where a half-sample has no CKA, and so for fewer than 8 examples in the debiased form.

    Example:
        >>> x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
        >>> cka_resamples(x, 2 * x, 10).abs().max() < 1e-12  # always 1
        tensor(True)
    """
    _at_least_one("n_resamples", n_resamples)
    x, y = (_compact(side) for side in paired(x, y))
    draw = torch.Generator().manual_seed(seed)
    halves = (torch.randperm(len(x), generator=draw)[: len(x) // 2].to(x.device) for _ in range(n_resamples))
    found = [float(linear_cka(x[h], y[h], debiased=debiased)) if len(h) else math.nan for h in halves]
    values = torch.tensor(found, dtype=torch.float64)
    return values - values.mean()


def _compact(x: Tensor) -> Tensor:
    """Centred rows in at most n dimensions with the same inner products."""
    x = centred(x)
    return x if x.shape[1] <= len(x) else torch.linalg.qr(x.T, mode="r")[1].T


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise InputError(f"{name} is {value}; expected at least 1")
