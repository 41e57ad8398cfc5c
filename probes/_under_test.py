"""A probe under test, fed by hand from activations recorded once. Behind ``probes.testing``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from probes.hooks import HookedModel, device_of, evaluation_mode, forward
from probes.probe import Probe
from probes.result import ProbeResult
from probes.run import run
from probes.state import Rows, Sum
from tasks import Batch


class Broken(Exception):
    """What is wrong, and the way out."""


class _Capture(Probe):
    """Keeps the one batch it is given, as the readout left it."""

    compares = True

    def update(self, activations: Any, batch: Batch) -> None:
        self.activations = dict(activations)

    def compute(self) -> ProbeResult:
        return self.result({}, {})


@dataclass
class Case:
    """A probe under test, and the examples to feed it."""

    probe: Probe
    model: HookedModel | Mapping[str, HookedModel]
    batch: Batch
    rtol: float

    def __post_init__(self) -> None:
        self.rows = torch.arange(len(self.batch))
        self.batch = self.batch.to(device_of(next(iter(by_name(self.model).values()))))
        self.output()  # TransformerLens 4 adds hooks of its own in the first forward pass
        self.modules = modules_of(self.model)  # before the probe was bound

    def output(self) -> Any:
        found = []
        for model in by_name(self.model).values():
            with torch.random.fork_rng(devices=[]), evaluation_mode(model), torch.no_grad():
                found.append(forward(model, self.batch.to(device_of(model))))
        return found[0] if len(found) == 1 else torch.cat([x.flatten().cpu() for x in found])

    @cached_property
    def recorded(self) -> dict[str, Tensor]:
        several = isinstance(self.model, Mapping)
        at = self.probe.at if several else self.fresh().site_names  # a probe may add sites in bind
        capture = _Capture(at, self.probe.readout)
        run(self.model, self.batch, capture)
        return {name: x.clone() for name, x in capture.activations.items()}  # clone: no inference tensors

    @cached_property
    def expected(self) -> ProbeResult:
        """The result of all examples at once."""
        return self.fed(self.rows).compute()

    def fresh(self) -> Probe:
        probe = self.probe.clone()
        probe.bind(self.model)
        return probe

    def part(self, rows: Tensor) -> tuple[dict[str, Tensor], Batch]:
        """Copies of the given examples' activations, and the batch they belong to."""
        return {name: x[rows] for name, x in self.recorded.items()}, self.batch.select(rows)

    def fed(self, *parts: Tensor, to: Probe | None = None) -> Probe:
        """``to``, or a new probe, after an update with each part."""
        probe = self.fresh() if to is None else to
        for rows in parts:
            probe.update(*self.part(rows))
        return probe

    def check(self, probe: Probe, what: str, exact: bool = False) -> None:
        """``probe`` gives the same result as all examples at once."""
        declared = [getattr(type(probe), name) for name in probe.states]
        exact |= all(isinstance(d, Rows) or (isinstance(d, Sum) and d.dtype is torch.int64) for d in declared)
        compare(probe.compute(), self.expected, 0.0 if exact else self.rtol, what)


def by_name(model: HookedModel | Mapping[str, HookedModel]) -> Mapping[str, HookedModel]:
    """Several models as they are, one under the name ``""``."""
    return model if isinstance(model, Mapping) else {"": model}


def modules_of(model: HookedModel | Mapping[str, HookedModel]) -> dict[str, Any]:
    """What a measurement may not change in a model's modules."""
    modules = {f"{name}/{k}": m for name, each in by_name(model).items() for k, m in each.named_modules()}
    return {
        "the model's training flags": {k: m.training for k, m in modules.items()},
        "the hooks": {k: (len(m._forward_hooks), len(m._forward_pre_hooks)) for k, m in modules.items()},
    }


def compare(got: ProbeResult, expected: ProbeResult, rtol: float, what: str) -> None:
    for name in ("axes", "coords", "layers"):
        if getattr(got, name) != getattr(expected, name):
            raise Broken(f"{what}, but {name} went from {getattr(expected, name)} to {getattr(got, name)}")
    for name, value in expected.values.items():
        new, old = got.values[name].double(), value.double()
        finite = old[old.isfinite()].abs()
        largest = float(finite.max()) if len(finite) else 0.0
        if not torch.allclose(new, old, rtol=0.0, atol=rtol * largest, equal_nan=True):
            far = float((new - old).abs().max())
            way = "keep examples by index (Rows), or sums taken in float64 (x.double() first)"
            raise Broken(f"{what}, but {name!r} differs by up to {far:.3g}; {way}")
    if rtol == 0.0 and (got.notes, got.metadata) != (expected.notes, expected.metadata):
        raise Broken(f"{what}, but notes or metadata differ; derive them from the state alone")


def copies(tensors: Any) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in tensors.items()}


def equal(a: Any, b: Any) -> bool:
    """Two dictionaries of tensors are the same to the bit; NaN equals NaN."""

    def same(x: Tensor, y: Tensor) -> bool:
        return x.dtype == y.dtype and x.shape == y.shape and bool(((x == y) | ((x != x) & (y != y))).all())

    return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
