"""The p-value of a permutation test, shared by all measures, and the permutations that it needs."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

FEWEST_RELABELLINGS = 999
_RELABELLINGS_PER_TEST = 40  # Holm's smallest adjusted p-value is then 1 / 40
ROUNDING_TIE = 1e-9  # a draw this much lower than the measure equals it but for rounding


def permutation_p_value(
    observed: Float[Tensor, "*place"] | float,
    null: Float[Tensor, "draw *place"] | Float[np.ndarray, "draw *place"],
    tie: Float[Tensor, "*place"] | float = ROUNDING_TIE,
) -> Float[Tensor, "*place"]:
    """Return the share of draws at least as high as the observed value, which counts as a draw itself.

    Source: Phipson and Smyth, Permutation P-values Should Never Be Zero, Statistical Applications in Genetics and
    Molecular Biology 9, 2010.

    Args:
        observed: the measure at each place.
        null: the measure in each draw. Draws in which it is undefined (NaN) do not count.
        tie: rounding by which a draw may be lower. Without it, the order of a sum would decide whether a permutation
            without effect counts, and small sets would seem significant. The default is for measures of order 1.

    Returns:
        The p-value at each place. NaN if the measure is undefined, or undefined in every draw.

    Example:
        >>> permutation_p_value(0.9, np.array([0.2, 0.9 - 1e-15, 0.4])).item()
        0.5
    """
    measured = torch.as_tensor(observed, dtype=torch.float64)
    draws = torch.as_tensor(null).to(measured.device)
    n_defined = (~draws.isnan()).sum(dim=0)
    n_as_high = (draws >= measured - tie).sum(dim=0)
    p_value = (1.0 + n_as_high.double()) / (1 + n_defined)
    return torch.where(measured.isnan() | (n_defined == 0), torch.nan, p_value)


def enough_permutations(tests: int) -> int:
    """Return the relabellings with which Holm's correction over so many tests can still find one: at least 999.

    The smallest p-value is ``1 / (permutations + 1)``. Times ``tests`` it is at most 1/40.

    Example:
        >>> enough_permutations(4), enough_permutations(270)
        (999, 10799)
    """
    return max(FEWEST_RELABELLINGS, _RELABELLINGS_PER_TEST * tests - 1)
