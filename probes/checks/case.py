"""A probe under test, with recorded activations to feed it in any split and order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from probes.engine.devices import device_of
from probes.engine.hooked_model import HookedModels, evaluation_mode, forward, hooked_models_by_name, modules_of
from probes.engine.probe import Probe
from probes.engine.record import Kept, _Recorder
from probes.engine.result import ProbeResult
from probes.engine.state import AnyTensor
from tasks import Batch


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
        self.home = device_of(next(iter(hooked_models_by_name(self.model).values())))
        self.batch = self.batch.to(self.home)
        self.outputs()  # TransformerLens 4 itself adds hooks in the first forward pass
        self.modules = modules_of(self.model)  # recorded before the probe is bound

    def outputs(self) -> dict[str, AnyTensor]:
        """Return the output of each model for all examples."""
        outputs = {}
        for name, model in hooked_models_by_name(self.model).items():
            with torch.random.fork_rng(devices=[]), evaluation_mode(model), torch.no_grad():
                outputs[name] = forward(model, self.batch.to(device_of(model)))
        return outputs

    @cached_property
    def recorded(self) -> dict[str, Shaped[Tensor, "batch ..."]]:
        """Activations of all examples at each of the probe's sites, recorded once."""
        probe = self.fresh()
        kept: Kept = {}
        for name, model in hooked_models_by_name(self.model).items():
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
