"""One network of an ensemble."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor

from mechclust.models.config import AnyConfig, ModelConfig
from tasks import InputError, Task
from tasks.settings import check_count


@dataclass(frozen=True, repr=False)
class Member:
    """One network of an ensemble.

    Args:
        model: its configuration. Members differ in the seed and the width of the feed-forward layers alone.
        task: its data.
        rate: factor on the learning rate.
        rates: further factors, by parameters or parts of the model, such as ``{"blocks.0.mlp": 0.1}``.
        weights: initial weights, under the names of ``get_weights``. ``None``: drawn from ``model.seed``.
        batch_size: examples in each step, a divisor of the ensemble's ``batch_size``. ``None``: all of it.

    Raises:
        InputError: for a factor below 0 or not finite, or a batch size below 1.

    Example:
        >>> from mechclust import model_for
        >>> from tasks import SkillSuite
        >>> suite = SkillSuite(n_eval=4)
        >>> Member(model_for(suite, seed=1), suite, rate=0.5).model.seed
        1
    """

    model: AnyConfig
    task: Task
    rate: float = 1.0
    rates: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, Float[Tensor, "..."]] | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            check_count(batch_size=(self.batch_size, 1))
        for factor in (self.rate, *self.rates.values()):
            if not (math.isfinite(factor) and factor >= 0):
                raise InputError(
                    f"a member has a rate of {factor}; expected a factor of at least 0 on the learning rate"
                )

    def __repr__(self) -> str:
        return f"Member({self.task.name}, seed {self.model.seed}, rate {self.rate:g})"


def member_width(config: AnyConfig) -> int:
    """Return the number of neurons of each feed-forward layer, or 0 if the configuration has no such width."""
    return config.d_feedforward if isinstance(config, ModelConfig) else getattr(config, "d_mlp", 0)
