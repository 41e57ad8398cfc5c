"""How large weights are, step by step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from probes import HookedModel, ProbeResult
from probes.files import versions
from tasks import InputError


class WeightNorms:
    """Frobenius norms of weights over training. Give it to a training loop as a callback.

    Memory: one number per weight and recorded step. Records are kept only here: a run that resumes after an
    interruption is followed from there.

    Args:
        names: parameters of the model to follow; ``None``: all that are trained.

    Example:
        >>> model = torch.nn.Linear(2, 2, bias=False)
        >>> norms = WeightNorms()
        >>> for step in range(3):
        ...     norms(step, model)
        >>> result = norms.compute()
        >>> result.axes["norm"], result.coords["step"]
        (('step', 'weight'), ['0', '1', '2'])
    """

    def __init__(self, names: Sequence[str] | None = None) -> None:
        self.names = names
        self._steps: list[int] = []
        self._norms: list[Tensor] = []
        self._followed: list[str] = []

    def __call__(self, step: int, model: HookedModel) -> None:
        """Record the norms before ``step``."""
        weights = dict(model.named_parameters())
        wanted = [k for k, v in weights.items() if v.requires_grad] if self.names is None else list(self.names)
        if missing := [name for name in wanted if name not in weights]:
            raise InputError(f"no weight {missing[0]!r} in this model (it has {', '.join(weights)})")
        if self._steps and (wanted != self._followed or step <= self._steps[-1]):
            raise InputError("these WeightNorms have followed another run; use new ones for each")
        self._followed = wanted
        self._steps.append(step)
        norms = [torch.linalg.vector_norm(weights[name].detach(), dtype=torch.float64) for name in wanted]
        self._norms.append(torch.stack(norms).cpu())

    def compute(self) -> ProbeResult:
        """``norm`` with axes (step, weight).

        Raises:
            InputError: when nothing was recorded.
        """
        if not self._steps:
            raise InputError("nothing was recorded; give WeightNorms to train(callbacks=[...]) first")
        return ProbeResult(
            probe="WeightNorms",
            values={"norm": torch.stack(self._norms)},
            axes={"norm": ("step", "weight")},
            coords={"step": [str(step) for step in self._steps], "weight": self._followed},
            metadata={"versions": versions()},
        )
