"""Several tests at once: Holm's correction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values, in the order given: all of at most .05 are significant together at that level.

    Source: Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6, 1979.

    Example:
        >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    ranked = np.argsort(p_values, kind="stable")
    factors = np.arange(len(ranked), 0, -1)
    adjusted = np.empty(len(ranked))
    adjusted[ranked] = np.maximum.accumulate(np.minimum(1.0, factors * np.asarray(p_values)[ranked]))
    return adjusted.tolist()


def holm_over_heads(p_values: Float[Tensor, "site head *label"]) -> Float[Tensor, "site head *label"]:
    """Return Holm's p-values over all heads, for each label. A NaN counts as a test with p = 1 and stays NaN.

    Example:
        >>> holm_over_heads(torch.tensor([[0.001, torch.nan], [0.5, 0.02]], dtype=torch.float64))
        tensor([[0.0040,    nan],
                [1.0000, 0.0600]], dtype=torch.float64)
    """
    heads = torch.nan_to_num(p_values, nan=1.0).reshape(p_values.shape[0] * p_values.shape[1], -1)
    adjusted = torch.tensor([holm(p) for p in heads.T.tolist()], dtype=torch.float64).reshape(heads.T.shape).T
    return torch.where(p_values.isnan(), torch.nan, adjusted.reshape(p_values.shape))
