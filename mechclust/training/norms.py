"""Norms of weights over training."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probes import HookedModel, ProbeResult
from probes.store.versions import package_versions
from tasks import InputError


class WeightNorms:
    """Frobenius norms of weights over training, and of how far they are from where they began. A training callback.

    Memory: two numbers per weight and recorded step, and a copy of the followed weights. Records are kept only here: a
    run that resumes after an interruption is followed from there. A repeated step replaces what was recorded since.

    Args:
        names: parameters of the model to follow. ``None``: all that are trained.

    Example:
        >>> model = torch.nn.Linear(2, 2, bias=False)
        >>> norms = WeightNorms()
        >>> for step in range(3):
        ...     norms(step, model)
        >>> result = norms.compute()
        >>> result.axes["norm"], result.coords["step"], result["change"].flatten().tolist()
        (('step', 'weight'), ['0', '1', '2'], [0.0, 0.0, 0.0])
    """

    def __init__(self, names: Sequence[str] | None = None) -> None:
        self.names = names
        self._steps: list[int] = []
        self._norms: list[Float[Tensor, "weight"]] = []
        self._changes: list[Float[Tensor, "weight"]] = []
        self._began: list[Float[Tensor, "..."]] = []
        self._followed: list[str] = []

    def __call__(self, step: int, model: HookedModel | nn.Module) -> None:
        """Record the norms before ``step``, in place of those recorded there and later."""
        weights = dict(model.named_parameters())
        wanted = [k for k, v in weights.items() if v.requires_grad] if self.names is None else list(self.names)
        for name in wanted:
            if name not in weights:
                raise InputError(f"no weight {name!r} in this model (it has {', '.join(weights)})")
        now = [weights[name].detach() for name in wanted]
        norms = _norms_of(now)
        n_kept = sum(earlier < step for earlier in self._steps)
        repeats = n_kept < len(self._steps)
        differs = repeats and not (
            self._steps[n_kept] == step and torch.allclose(norms, self._norms[n_kept], equal_nan=True)
        )
        if self._steps and (wanted != self._followed or differs):
            raise InputError("these WeightNorms have followed another run; use new ones for each")
        for records in (self._steps, self._norms, self._changes):
            del records[n_kept:]
        self._followed = wanted
        if n_kept == 0:
            self._began = [weight.clone() for weight in now]
        self._steps.append(step)
        self._norms.append(norms)
        self._changes.append(_norms_of([weight - began for weight, began in zip(now, self._began, strict=True)]))

    def compute(self) -> ProbeResult:
        """Return ``norm`` and ``change``, the norm of the difference from the first recorded step. Axes (step, weight).

        Raises:
            InputError: if no step was recorded.
        """
        if not self._steps:
            raise InputError("nothing was recorded; give WeightNorms to train(callbacks=[...]) first")
        return ProbeResult(
            probe="WeightNorms",
            values={"norm": torch.stack(self._norms), "change": torch.stack(self._changes)},
            axes=dict.fromkeys(("norm", "change"), ("step", "weight")),
            coords={"step": [str(step) for step in self._steps], "weight": self._followed},
            metadata={"versions": package_versions()},
        )


def _norms_of(weights: Sequence[Float[Tensor, "..."]]) -> Float[Tensor, "weight"]:
    return torch.stack([torch.linalg.vector_norm(weight, dtype=torch.float64) for weight in weights]).cpu()
