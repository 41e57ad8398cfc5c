"""Probes of training itself: norms of weights and gradients step by step, and how sharply a norm acts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probes.files import versions
from probes.functional.norm_jacobian import norm_jacobian
from probes.hooks import HookedModel, device_of, evaluation_mode, forward
from probes.probe import Probe
from probes.readout import Readout, last_token, one_row
from probes.result import ProbeResult
from probes.run import each_batch
from probes.sites import Sites
from probes.state import Rows
from tasks import Batch, InputError


class _ByStep:
    """Numbers recorded at steps of one training run."""

    _axis: str

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._norms: list[Tensor] = []
        self._followed: list[str] = []

    def _record(self, step: int, names: list[str], norms: Callable[[], list[Tensor]]) -> None:
        """Keep what ``norms`` gives, one number a name; asks for it only when the step fits the earlier ones."""
        if self._steps and (names != self._followed or step <= self._steps[-1]):
            raise InputError(f"these {type(self).__name__} have followed another run; use new ones for each")
        row = torch.stack(norms()).cpu()
        self._followed = names
        self._steps.append(step)
        self._norms.append(row)

    def _result(self, metadata: Mapping[str, Any], notes: Sequence[str] = ()) -> ProbeResult:
        if not self._steps:
            raise InputError(f"nothing was recorded; give {type(self).__name__} to train(callbacks=[...]) first")
        return ProbeResult(
            probe=type(self).__name__,
            values={"norm": torch.stack(self._norms)},
            axes={"norm": ("step", self._axis)},
            coords={"step": [str(step) for step in self._steps], self._axis: self._followed},
            metadata={"versions": versions(), **metadata},
            notes=list(notes),
        )


class WeightNorms(_ByStep):
    """Frobenius norms of weights over training. Give it to a training loop as a callback.

    Memory: one number a weight and recorded step. What was recorded is kept here alone: a run that goes on
    after an interruption is followed from there.

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

    _axis = "weight"

    def __init__(self, names: Sequence[str] | None = None) -> None:
        super().__init__()
        self.names = names

    def __call__(self, step: int, model: HookedModel) -> None:
        """Record the norms before ``step``."""
        weights = dict(model.named_parameters())
        wanted = [k for k, v in weights.items() if v.requires_grad] if self.names is None else list(self.names)
        if missing := [name for name in wanted if name not in weights]:
            raise InputError(f"no weight {missing[0]!r} in this model (it has {', '.join(weights)})")
        with torch.no_grad():
            self._record(step, wanted, lambda: [_length([weights[name]]) for name in wanted])

    def compute(self) -> ProbeResult:
        """``norm`` with axes (step, weight).

        Raises:
            InputError: when nothing was recorded.
        """
        return self._result({})


class GradientNorms(_ByStep):
    """Euclidean norms of the loss's gradient over training, by group of parameters. A callback like ``WeightNorms``.

    The gradient is that of the mean loss over all examples of ``batches``, with dropout off. The model's
    ``.grad``, its train/eval mode and the global random state are left as they were.

    Memory: one number a group and recorded step, and one gradient of the model while recording. Cost: a
    forward and a backward pass over ``batches`` a recorded step.

    Args:
        batches: the examples; the same at every step.
        loss: ``loss(logits, batch)``, the mean over a batch's examples, such as ``task.loss``.
        groups: group name to the parameters in it, each named in full or by the first parts of its
            dotted name; they may overlap. ``None``: one group a parameter.

    Raises:
        InputError: for no examples, a group called ``"all"`` (which is always there: every trained
            parameter), and, when called, a name that fits no trained parameter.

    Example:
        >>> batch = Batch(torch.tensor([[0, 1]]))
        >>> model = torch.nn.Embedding.from_pretrained(torch.tensor([[3.0], [4.0]]), freeze=False)
        >>> norms = GradientNorms(batch, loss=lambda logits, batch: logits.square().sum() / 2)
        >>> norms(0, model)
        >>> norms.compute()["norm"].tolist(), norms.compute().coords["group"]
        ([[5.0, 5.0]], ['weight', 'all'])
    """

    _axis = "group"

    def __init__(
        self,
        batches: Batch | Iterable[Batch],
        loss: Callable[[Tensor, Batch], Tensor],
        groups: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__()
        self.batches = list(each_batch(batches))
        self.loss = loss
        self.groups = groups
        if not sum(map(len, self.batches)):
            raise InputError("there are no examples to take gradients on; give at least one non-empty batch")
        for name, prefixes in (groups or {}).items():
            if name == "all":
                raise InputError("a group is called 'all', which stands for every parameter; give it another name")
            if isinstance(prefixes, str) or not len(prefixes):
                raise InputError(
                    f"group {name!r} is {prefixes!r}; expected a sequence of parameter names or their first parts, "
                    "such as ['blocks.0.mlp']"
                )

    def __call__(self, step: int, model: HookedModel) -> None:
        """Record the norms before ``step``."""
        weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not weights:
            raise InputError(f"this {type(model).__name__} has nothing to train; let some parameters require gradients")
        groups = {name: [name] for name in weights} if self.groups is None else self._members(list(weights))
        groups["all"] = list(weights)

        def norms() -> list[Tensor]:
            gradients = dict(zip(weights, self._gradients(model, list(weights.values())), strict=True))
            return [_length([gradients[name] for name in group]) for group in groups.values()]

        self._record(step, list(groups), norms)

    def _members(self, names: list[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for group, prefixes in (self.groups or {}).items():
            for prefix in prefixes:
                # Whole parts only: "blocks.1" is not to take in "blocks.10".
                if not any(f"{name}.".startswith(f"{prefix}.") for name in names):
                    raise InputError(
                        f"group {group!r}: no trained parameter is called {prefix!r} or starts with '{prefix}.' "
                        f"(there are {', '.join(names)})"
                    )
            found[group] = [n for n in names if any(f"{n}.".startswith(f"{prefix}.") for prefix in prefixes)]
        return found

    def _gradients(self, model: HookedModel, weights: list[Tensor]) -> list[Tensor]:
        total = [torch.zeros_like(w, dtype=torch.float64) for w in weights]
        n, device = sum(map(len, self.batches)), device_of(model)
        drawn = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=drawn), evaluation_mode(model), torch.enable_grad():
            for batch in self.batches:
                moved = batch.to(device)
                loss = self.loss(forward(model, moved), moved)
                for sum_, gradient in zip(total, torch.autograd.grad(loss, weights, allow_unused=True), strict=True):
                    if gradient is not None:
                        sum_.add_(gradient, alpha=len(batch) / n)
        return total

    def compute(self) -> ProbeResult:
        """``norm`` with axes (step, group); the last group is ``"all"``.

        Raises:
            InputError: when nothing was recorded.
        """
        bad = [step for step, norms in zip(self._steps, self._norms, strict=True) if not bool(norms.isfinite().all())]
        notes = [f"a gradient is not finite at {len(bad)} steps, the first of them {bad[0]}"] if bad else []
        return self._result({"n": sum(map(len, self.batches))}, notes)


def _length(tensors: Sequence[Tensor]) -> Tensor:
    """Euclidean norm of all tensors together, in float64."""
    return torch.linalg.vector_norm(
        torch.stack([torch.linalg.vector_norm(t, dtype=torch.float64) for t in tensors]), dtype=torch.float64
    )


class NormJacobian(Probe):
    """How sharply the norm that follows a site acts: small vectors are turned far by small changes.

    Measures (axis site):
        ``smallest_norm``: the least Euclidean norm over examples, ``min |x|``.
        ``median_norm``: the median over examples.
        ``jacobian``: ``sqrt(d) / min |x|``, the largest operator norm over examples of the Jacobian of
            RMS norm without ``eps`` and gain (Odonnat, Bouaziz & Cabannes, arXiv 2410.24050). Infinite
            at 0. For LayerNorm, which subtracts the mean first, a lower bound.

    Memory: two numbers an example and site.

    Args:
        at: sites in front of a norm, by name.
        readout: which position; by default the last token, or the only position of a model that has
            pooled its sequence.

    Example:
        >>> NormJacobian("blocks.1.hook_resid_mid").at
        'blocks.1.hook_resid_mid'
    """

    rows = Rows()

    def __init__(self, at: Sites = "blocks.0.hook_resid_mid", readout: Readout = last_token()) -> None:
        one_row(readout)
        self.at = at
        self.readout = readout

    def update(self, activations: Mapping[str, Tensor], batch: Batch) -> None:
        for site, activation in activations.items():
            x = activation.flatten(1).double()
            norms = torch.linalg.vector_norm(x, dim=-1)
            self.rows.add(site, batch.index, torch.stack([norms, norm_jacobian(x)], dim=1))

    def compute(self) -> ProbeResult:
        kept = [self.rows.get(site)[1].numpy() for site in self.site_names]
        values = {
            "smallest_norm": [x[:, 0].min() for x in kept],
            "median_norm": [np.median(x[:, 0]) for x in kept],
            "jacobian": [x[:, 1].max() for x in kept],
        }
        zeros = [site for site, x in zip(self.site_names, kept, strict=True) if x[:, 0].min() == 0]
        return self.result(
            {name: torch.tensor(numbers, dtype=torch.float64) for name, numbers in values.items()},
            dict.fromkeys(values, ("site",)),
            metadata={"n": len(kept[0])},
            notes=[f"an activation at {site} is 0: the norm has no derivative there" for site in zeros],
        )
