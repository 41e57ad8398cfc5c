"""A probe under test, with recorded activations to feed it in any split and order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from probes.engine.devices import device_of
from probes.engine.hooked_model import HookedModels, evaluation_mode, forward, models_by_name, modules_of
from probes.engine.probe import Probe
from probes.engine.recorder import Kept, _Recorder
from probes.engine.result import ProbeResult
from probes.engine.state import AnyTensor, Rows, Sum
from tasks import Batch


class Broken(Exception):
    """A broken clause: the fault, and the way out."""


@dataclass
class Case:
    """A probe under test, and the examples to feed it.

    Attributes:
        probe: the probe, which is only cloned.
        model: one, or several by name.
        batch: all examples.
        rtol: how far results of float64 sums may differ, relative to the largest value of a measure.
    """

    probe: Probe
    model: HookedModels
    batch: Batch
    rtol: float

    def __post_init__(self) -> None:
        self.rows = torch.arange(len(self.batch))
        self.home = device_of(next(iter(models_by_name(self.model).values())))
        self.batch = self.batch.to(self.home)
        self.outputs()  # TransformerLens 4 itself adds hooks in the first forward pass
        self.modules = modules_of(self.model)  # recorded before the probe is bound

    def outputs(self) -> dict[str, AnyTensor]:
        """Return the output of each model for all examples."""
        outputs = {}
        for name, model in models_by_name(self.model).items():
            with torch.random.fork_rng(devices=[]), evaluation_mode(model), torch.no_grad():
                outputs[name] = forward(model, self.batch.to(device_of(model)))
        return outputs

    @cached_property
    def recorded(self) -> dict[str, Shaped[Tensor, "batch ..."]]:
        """Activations of all examples at each of the probe's sites, recorded once."""
        probe = self.fresh()
        kept: Kept = {}
        for name, model in models_by_name(self.model).items():
            recorder = _Recorder(model, [probe], name or None, self.home)
            with torch.no_grad(), evaluation_mode(model), recorder.recording():
                kept |= recorder.measure(self.batch)
        return {site: kept[site, probe.readout].clone() for site in probe.site_names}

    @cached_property
    def expected(self) -> ProbeResult:
        """The result of all examples at once."""
        return self.fed(self.rows).compute()

    def fresh(self) -> Probe:
        """Return a new probe that has seen the model, but no examples."""
        probe = self.probe.clone()
        probe.bind(self.model)
        return probe

    def part(self, rows: Int[Tensor, "row"]) -> tuple[dict[str, Shaped[Tensor, "row ..."]], Batch]:
        """Return copies of the activations of some examples, and their batch."""
        return {name: x[rows] for name, x in self.recorded.items()}, self.batch.select(rows)

    def fed(self, *parts: Int[Tensor, "_"], to: Probe | None = None) -> Probe:
        """Return ``to``, or a new probe, after an update with each part of the examples."""
        probe = self.fresh() if to is None else to
        for rows in parts:
            probe.observe(*self.part(rows))
        return probe

    def check(self, probe: Probe, clause: str, exact: bool = False) -> None:
        """Raise ``Broken`` with ``clause`` unless the probe's result equals the result of all examples at once."""
        declared = [getattr(type(probe), name) for name in probe.states]
        exact |= all(isinstance(d, Rows) or (isinstance(d, Sum) and d.dtype is torch.int64) for d in declared)
        compare_results(probe.compute(), self.expected, 0.0 if exact else self.rtol, clause)


def compare_results(result: ProbeResult, expected: ProbeResult, rtol: float, clause: str) -> None:
    """Raise ``Broken`` with ``clause`` unless two results agree within ``rtol`` of a measure's largest value."""
    for name in ("axes", "coords", "layers"):
        if getattr(result, name) != getattr(expected, name):
            raise Broken(f"{clause}, but {name} went from {getattr(expected, name)} to {getattr(result, name)}")
    for name, value in expected.values.items():
        new = result.values[name].double()
        old = value.double()
        finite = old[old.isfinite()].abs()
        largest = float(finite.max()) if len(finite) else 0.0
        if not torch.allclose(new, old, rtol=0.0, atol=rtol * largest, equal_nan=True):
            difference = float((new - old).abs().max())
            way = "keep examples by index (Rows), or sums taken in float64 (x.double() first)"
            raise Broken(f"{clause}, but {name!r} differs by up to {difference:.3g}; {way}")
    if rtol == 0.0 and (result.notes, result.metadata) != (expected.notes, expected.metadata):
        raise Broken(f"{clause}, but notes or metadata differ; derive them from the state alone")


def equal_tensors(a: Mapping[str, AnyTensor], b: Mapping[str, AnyTensor]) -> bool:
    """Return whether two dictionaries of tensors are equal to the bit, with NaN equal to NaN."""
    return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)


def _same(x: AnyTensor, y: AnyTensor) -> bool:
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    return bool(((x == y) | ((x != x) & (y != y))).all())
