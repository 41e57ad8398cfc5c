"""Does measuring leave anything behind: hooks, flags, random states, memory?"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechclust.commands.check.inputs import CheckedModel, counted
from mechclust.commands.check.result import NotTried
from probes import Probe, ProbeResult, Readout, Sum, all_tokens, run
from probes.engine.hooks import modules_of, record
from probes.engine.sites import Sites
from tasks import Batch

_FEW, _MANY = 4, 16  # batches


class _Total(Probe):
    """Sums everything it is given; its state does not grow."""

    total = Sum()

    def __init__(self, at: Sites, readout: Readout = all_tokens()) -> None:
        self.at, self.readout = at, readout

    def update(self, activations: Mapping[str, Tensor], batch: Batch) -> None:
        for site, x in activations.items():
            self.total.add(site, x.cpu().sum(dtype=torch.float64))  # some devices lack float64

    def compute(self) -> ProbeResult:
        return self.result({"total": torch.stack([self.total[s] for s in self.site_names])}, {"total": ("site",)})


class _Stumble(Exception):
    """Raised on purpose."""


class _Stumbles(_Total):
    """Fails in the middle of a measurement."""

    def update(self, activations: Mapping[str, Tensor], batch: Batch) -> None:
        raise _Stumble


def no_trace(checked: CheckedModel) -> tuple[bool, str]:
    """Measuring changes neither the output, to the bit, nor hooks, training flags or global random states."""
    model, sites, batch = checked.model, _sites(checked), checked.standard.select(slice(2))
    before = {**modules_of(model), **checked.flags, **_random_states()}
    plain = checked.output(batch)
    again = checked.output(batch)
    with record(model, sites, lambda name, activation: None):
        watched = checked.output(batch)
    run(model, batch, _Total(sites))
    after_run = modules_of(model)
    with suppress(_Stumble):
        run(model, batch, _Stumbles(sites))
    last = checked.output(batch)
    after = {**modules_of(model), **_random_states()}
    if (changed := next((k for k in before if before[k] != after[k]), None)) is not None:
        return False, _changed(changed, before[changed], after[changed], after_run["the hooks"] == before["the hooks"])
    if not torch.equal(plain, again):
        raise NotTried("the model gives different values every time (same values twice says which)")
    for name, output in (("while hooks read it", watched), ("after it was measured", last)):
        if not torch.equal(plain, output):
            return False, (
                f"{name} the model's output differs by up to {float((output - plain).abs().max()):.2g}, so what is "
                "measured is not what runs without hooks; load with attn_implementation='eager'"
            )
    return True, (
        f"with hooks at {counted(len(sites), 'site')} the output is the same to the bit; hooks are removed, also when "
        "a probe fails; training flags and the random states of torch, numpy and Python are unchanged"
    )


def _changed(what: str, before: Any, after: Any, by_failing: bool) -> str:
    if what == "the hooks":
        left = sum(after[k][0] + after[k][1] for k in after) - sum(before[k][0] + before[k][1] for k in before)
        where = next(k for k in before if before[k] != after.get(k)).lstrip("/") or "the model itself"
        when = " when a probe fails" if by_failing else ""
        return (
            f"{left} hooks stay behind{when}, the first at {where!r}: every later pass is slower and may be changed by "
            "them; the model's hooks() must remove what it added; call model.reset_hooks() or load the model again"
        )
    if what == "the model's training flags":
        return (
            "measuring changed which modules are in training mode; set model.train() or model.eval() again afterwards"
        )
    return (
        f"{what} changed: the forward pass draws random numbers although dropout is off, so measuring in the middle of "
        "a training run would change that run; turn its sampling off for evaluation"
    )


def _random_states() -> dict[str, Any]:
    states = {"torch's random state": torch.get_rng_state().tolist(), "Python's random state": random.getstate()}
    kind, key, *rest = np.random.get_state(legacy=True)
    states["numpy's random state"] = (kind, np.asarray(key).tolist(), *rest)
    if torch.cuda.is_available():
        states["CUDA's random states"] = [state.tolist() for state in torch.cuda.get_rng_state_all()]
    return states


def _sites(checked: CheckedModel) -> list[str]:
    sites = list(dict.fromkeys(name for names in checked.sites.values() for name in names))
    if not sites:
        raise NotTried("no hook point works (their checks say why)")
    return sites


def flat_memory(checked: CheckedModel) -> tuple[bool, str]:
    """No more bytes stay in tensors after 16 batches than after 4.

    Counted exactly: the storages of all tensors that Python can reach, and on CUDA what the allocator
    has given out. The peak of the process says less: it never falls, and a small leak hides below the
    peak of loading. Someone else's thread can make tensors meanwhile, so growth counts when it is
    there twice. What is kept outside of tensors (numpy arrays, other processes) is not seen.
    """
    sites = _sites(checked)
    drawn = [checked.batch(f"memory {i}", 2) for i in range(_MANY)]
    sequences = [replace(batch, index=batch.index + 2 * i) for i, batch in enumerate(drawn)]
    devices = sorted({p.device.index or 0 for p in checked.model.parameters() if p.is_cuda})
    grown: list[int] = []
    for _ in range(2):
        taken: list[int] = []
        with _held(devices) as held:
            run(checked.model, _watched(sequences, taken, held), _Total(sites))
        grown.append(taken[1] - taken[0])
        if grown[-1] <= 0:
            return True, (
                f"no more bytes are held in tensors after {_MANY} batches than after {_FEW} (all tensors that Python "
                f"reaches{', and what CUDA gave out' if devices else ''})"
            )
    each = min(grown) / (_MANY - _FEW)
    return False, (
        f"{min(grown) / 1024:,.1f} KiB more stay in tensors after {_MANY} batches than after {_FEW}, {each / 1024:.1f} "
        "KiB per batch: a forward pass keeps something, and a long measurement runs out of memory; look for a list or "
        "cache in the model, or in a hook left on it, that grows with every call"
    )


def _watched(batches: list[Batch], taken: list[int], held: Callable[[], int]) -> Iterator[Batch]:
    for i, batch in enumerate(batches, start=1):
        if i in (_FEW, _MANY):
            taken.append(held())
        yield batch


@contextmanager
def _held(devices: list[int]) -> Iterator[Callable[[], int]]:
    """Gives a function that counts bytes in the storages of all live tensors.

    What lives already is frozen, so that looking at a million older objects takes no time; the tensors
    among it are counted through a list, since they can still grow. Devices are those of CUDA, by number.
    """
    gc.collect()
    older = _tensors()
    frozen = gc.get_freeze_count() == 0  # else somebody wants to keep it so
    if frozen:
        gc.freeze()

    def count() -> int:
        gc.collect()
        storages: dict[tuple[str, int], int] = {}
        for tensor in [*older, *_tensors()]:
            try:
                storage = tensor.untyped_storage()
                storages[str(tensor.device), storage.data_ptr()] = storage.nbytes()
            except (RuntimeError, NotImplementedError):  # tensors without storage of their own: fake, meta, sparse
                continue
        given = sum(map(torch.cuda.memory_allocated, devices))
        return sum(storages.values()) + given

    try:
        yield count
    finally:
        if frozen:
            gc.unfreeze()


def _tensors() -> list[Tensor]:
    return [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]  # isinstance would ask proxies
