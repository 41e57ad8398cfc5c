"""Does measuring leave anything behind: hooks, flags, random states?"""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from mechclust.commands.check.inputs import CheckedModel, Values
from mechclust.commands.check.result import NotTried
from mechclust.report.text import counted
from probes import Probe, ProbeResult, Readout, Sum, all_tokens, run
from probes.engine.hooked_model import modules_of
from probes.engine.record import record
from probes.engine.sites import Sites
from tasks import Batch


class _Total(Probe):
    """Sums everything it is given; its state does not grow."""

    total = Sum()

    def __init__(self, at: Sites, readout: Readout = all_tokens()) -> None:
        self.at = at
        self.readout = readout

    def update(self, activations: Mapping[str, Values], batch: Batch) -> None:
        """Add the values of a batch."""
        for site, value in activations.items():
            self.total.add(site, value.cpu().sum(dtype=torch.float64))  # some devices lack float64

    def compute(self) -> ProbeResult:
        """Return the sum of each site."""
        return self.result({"total": torch.stack([self.total[site] for site in self.site_names])}, {"total": ("site",)})


class _Stumble(Exception):
    """Raised on purpose."""


class _Stumbles(_Total):
    """Fails in the middle of a measurement."""

    def update(self, activations: Mapping[str, Values], batch: Batch) -> None:
        """Fail."""
        raise _Stumble


def no_trace(checked: CheckedModel) -> tuple[bool, str]:
    """Check that measuring changes neither output, to the bit, nor hooks, training flags or global random states."""
    model = checked.model
    sites = _sites(checked)
    batch = checked.standard.select(slice(2))
    before = {**modules_of(model), **checked.flags, **_random_states()}
    plain = checked.output(batch)
    again = checked.output(batch)
    with record(model, sites, _ignore):
        watched = checked.output(batch)
    run(model, batch, _Total(sites))
    after_run = modules_of(model)
    with suppress(_Stumble):
        run(model, batch, _Stumbles(sites))
    last = checked.output(batch)
    after = {**modules_of(model), **_random_states()}
    changed = next((name for name in before if before[name] != after[name]), None)
    if changed is not None:
        by_failing = after_run["the hooks"] == before["the hooks"]
        return False, _changed(changed, before[changed], after[changed], by_failing)
    if not torch.equal(plain, again):
        return False, (
            f"the model's output differs the second time, by up to {float((again - plain).abs().max()):.2g}: the "
            "forward pass is random or keeps state, so no number can be reproduced"
        )
    for when, output in (("while hooks read it", watched), ("after it was measured", last)):
        if not torch.equal(plain, output):
            return False, (
                f"{when} the model's output differs by up to {float((output - plain).abs().max()):.2g}, so what is "
                "measured is not what runs without hooks; load with attn_implementation='eager'"
            )
    return True, (
        f"with hooks at {counted(len(sites), 'site')} the output is the same to the bit; hooks are removed, also when "
        "a probe fails; training flags and the random states of torch, numpy and Python are unchanged"
    )


def _ignore(name: str, activation: Values) -> None:
    """Read nothing."""


def _changed(name: str, before: Any, after: Any, by_failing: bool) -> str:
    if name == "the hooks":
        n_left = _n_hooks(after) - _n_hooks(before)
        where = next(module for module in before if before[module] != after.get(module)).lstrip("/")
        when = " when a probe fails" if by_failing else ""
        return (
            f"{n_left} hooks stay behind{when}, the first at {where or 'the model itself'!r}: every later pass is "
            "slower and may be changed by them; the model's hooks() must remove what it added; call "
            "model.reset_hooks() or load the model again"
        )
    if name == "the model's training flags":
        return (
            "measuring changed which modules are in training mode; set model.train() or model.eval() again afterwards"
        )
    return (
        f"{name} changed: the forward pass draws random numbers although dropout is off, so measuring in the middle of "
        "a training run would change that run; turn its sampling off for evaluation"
    )


def _n_hooks(hooks: Mapping[str, tuple[int, int]]) -> int:
    """Return how many hooks modules have, given each one's numbers of forward hooks and forward pre-hooks."""
    return sum(map(sum, hooks.values()))


def _random_states() -> dict[str, Any]:
    states = {"torch's random state": torch.get_rng_state().tolist(), "Python's random state": random.getstate()}
    kind, key, *rest = np.random.get_state(legacy=True)
    states["numpy's random state"] = (kind, np.asarray(key).tolist(), *rest)
    if torch.cuda.is_available():
        states["CUDA's random states"] = [state.tolist() for state in torch.cuda.get_rng_state_all()]
    return states


def _sites(checked: CheckedModel) -> list[str]:
    sites = list(checked.seen)
    if not sites:
        raise NotTried("no hook point works (their checks say why)")
    return sites
