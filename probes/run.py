"""One forward pass per batch for all probes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeAlias, overload

import torch
from torch import Tensor

from probes.hooks import HookedModel, device_of, evaluation_mode, forward, record
from probes.identity import Examples, fingerprint
from probes.probe import Probe
from probes.readout import Readout, check_readout
from probes.result import ProbeResult
from tasks import Batch, InputError


class _Stop(BaseException):
    """Ends a forward pass once the deepest site was seen. Not an Exception: nobody may swallow it."""


Batches: TypeAlias = Batch | Iterable[Batch]
HookedModels: TypeAlias = HookedModel | Mapping[str, HookedModel]


class _Recorder:
    """Hooks on one model that keep what its probes need of the current batch.

    ``name`` is the model's where several are measured: what is kept of it is called ``"name/hook"``.
    """

    def __init__(self, model: HookedModel, probes: Sequence[Probe], name: str | None = None) -> None:
        self.prefix, self._whose = ("", "") if name is None else (f"{name}/", f" of model {name!r}")
        if isinstance(model, torch._dynamo.OptimizedModule):
            raise InputError(
                f"this model{self._whose and f', {name!r},'} went through torch.compile, which silently ignores hooks "
                "added later; measure the original module (model._orig_mod)"
            )
        self.model = model
        self.wanted: dict[str, dict[Readout, None]] = {}
        for probe in probes:
            readout = check_readout(probe.readout)
            for full_name in probe.site_names:
                if not full_name.startswith(self.prefix):
                    continue
                hook = full_name.removeprefix(self.prefix)
                if readout.row_per_example and hook.endswith(("hook_pattern", "hook_attn_scores")):
                    raise InputError(
                        f"readout {readout!r} picks positions, but {hook!r} is [batch head query key]; "
                        "give the probe readout=all_tokens()"
                    )
                self.wanted.setdefault(hook, {})[readout] = None
        self.batch: Batch | None = None
        self.stop_early = False
        self.kept: dict[tuple[str, Readout], Tensor] = {}
        self.seen: set[str] = set()

    def recording(self) -> AbstractContextManager[Any]:
        """Hooked to the model inside the block."""
        return record(self.model, self.wanted, self._receive)

    def _receive(self, name: str, activation: Tensor) -> None:
        if self.batch is None:
            return
        if name in self.seen:
            raise InputError(
                f"hook point {name!r}{self._whose} fired twice in one forward pass (a shared layer, or generation); "
                "measure a model whose hook points fire once"
            )
        for readout in self.wanted[name]:
            kept = readout(activation.detach(), self.batch)
            if (example := readout.check(kept, self.batch)) is not None:
                raise InputError(
                    f"NaN or infinity in the activations at {name!r}{self._whose} for example index {example}; "
                    "find its cause in the model or leave the example out"
                )
            self.kept[self.prefix + name, readout] = kept
        self.seen.add(name)
        if self.stop_early and len(self.seen) == len(self.wanted):
            raise _Stop

    def start(self, batch: Batch) -> None:
        self.batch = batch
        self.kept, self.seen = {}, set()

    def measure(self, batch: Batch) -> dict[tuple[str, Readout], Tensor]:
        """What is kept of one forward pass; later ones stop after the deepest site."""
        moved = batch.to(device_of(self.model))
        self.start(moved)
        with suppress(_Stop):
            forward(self.model, moved)
        self.stop_early = True
        return self.finish()

    def finish(self) -> dict[tuple[str, Readout], Tensor]:
        """What was kept of the batch, by site and readout; hooks do nothing until the next ``start``."""
        if silent := [name for name in self.wanted if name not in self.seen]:
            raise InputError(
                f"hook point {silent[0]!r}{self._whose} exists but did not fire in this forward pass; "
                "choose another hook name, or run the part of the model it belongs to"
            )
        kept = self.kept
        self.batch, self.kept = None, {}
        return kept


def _update(probes: Sequence[Probe], kept: Mapping[tuple[str, Readout], Tensor], batch: Batch) -> None:
    for probe in probes:
        probe.update({name: kept[name, probe.readout] for name in probe.site_names}, batch)


class Attached:
    """What ``attach`` gives: tell it the batch whose forward pass comes next."""

    def __init__(self, recorder: _Recorder, probes: Sequence[Probe]) -> None:
        self._recorder, self._probes = recorder, probes

    @contextmanager
    def on(self, batch: Batch) -> Iterator[None]:
        """Measure the one forward pass made inside this block; other passes are not measured."""
        batch = batch.to(device_of(self._recorder.model))
        self._recorder.start(batch)
        try:
            yield
            _update(self._probes, self._recorder.finish(), batch)
        finally:
            self._recorder.batch, self._recorder.kept = None, {}


@contextmanager
def attach(model: HookedModel, probes: Probe | Sequence[Probe]) -> Iterator[Attached]:
    """Hooks ``probes`` to ``model`` for the block, for training loops and notebooks.

    The probes are not reset. The hooks are removed on the way out, also after an exception; other
    people's hooks stay.

    Example:
        >>> # with attach(model, probe) as attached:
        >>> #     with attached.on(batch):
        >>> #         loss = task.loss(model(batch.tokens), batch)
        >>> # probe.compute()
    """
    if isinstance(model, Mapping):
        raise InputError(f"attach measures one model, and was given {len(model)}; use run() for probes that compare")
    several = [probes] if isinstance(probes, Probe) else list(probes)
    for probe in several:
        probe.bind(model)
    recorder = _Recorder(model, several)
    with recorder.recording():
        yield Attached(recorder, several)


@overload
def run(model: HookedModels, batches: Batches, probes: Probe, *, progress: bool = ...) -> ProbeResult: ...
@overload
def run(
    model: HookedModels, batches: Batches, probes: Sequence[Probe], *, progress: bool = ...
) -> list[ProbeResult]: ...
def run(
    model: HookedModels, batches: Batches, probes: Probe | Sequence[Probe], *, progress: bool = False
) -> ProbeResult | list[ProbeResult]:
    """Measure a model on batches: one forward pass per batch, whatever the number of probes.

    In inference mode, with dropout off; the model's train/eval mode, other people's hooks and the
    global random state are left as they were. The forward pass stops after the deepest site needed
    (from the second batch on). Memory does not grow with the number of batches beyond the probes'
    declared state.

    Several models, ``{"tuned": a, "base": b}``, are run on the same batches for probes that compare them: one
    forward pass of each per batch. They may be on different devices, and one model may stand under two names.

    Args:
        model: anything with TransformerLens's hook protocol, or several by name.
        batches: a batch or an iterable of batches; every example with an index of its own.
        probes: one probe or several. They are reset first.
        progress: show a progress bar.

    Returns:
        One result for one probe, a list for a sequence.

    Raises:
        InputError: for a name that is not in the model, a label or position that the batches lack,
            no batches, NaN in the activations, or several models with vocabularies of different sizes.
    """
    several = [probes] if isinstance(probes, Probe) else list(probes)
    models: list[tuple[str | None, HookedModel]]
    if isinstance(model, Mapping):
        _check_compares(several, model)
        check_models(model)
        models = list(model.items())
    else:
        models = [(None, model)]
    for probe in several:
        probe.reset()
        probe.bind(model)
    recorders = [_Recorder(each, several, name) for name, each in models]
    examples = Examples()
    source = each_batch(batches, "probing" if progress else None)
    with ExitStack() as stack:
        for recorder in recorders:
            stack.enter_context(evaluation_mode(recorder.model))
            stack.enter_context(recorder.recording())
        for batch in source:  # outside inference mode: what a generator keeps must stay usable in training
            kept: dict[tuple[str, Readout], Tensor] = {}
            with torch.inference_mode():
                for recorder in recorders:
                    kept |= recorder.measure(batch)
                _update(several, kept, batch.to(device_of(recorders[0].model)))
            examples.add(batch)
    if not examples.count:
        raise InputError("there are no examples to measure; give at least one non-empty batch")
    what = examples.record({name or "": fingerprint(each) for name, each in models})
    results = [replace(found, metadata={**found.metadata, **what}) for found in (p.compute() for p in several)]
    return results[0] if isinstance(probes, Probe) else results


def _check_compares(probes: Sequence[Probe], models: Mapping[str, HookedModel]) -> None:
    for probe in probes:
        if not probe.compares:
            raise InputError(
                f"{type(probe).__name__} measures one model at a time, and was given {len(models)} "
                f"({', '.join(map(str, models))}); run it on each, or give these models to a probe that compares"
            )


def check_models(models: Mapping[str, HookedModel]) -> None:
    """Refuse several models whose names cannot be told apart, or that read tokens of different vocabularies.

    Raises:
        InputError: naming the model, or two.
    """
    if not models:
        raise InputError("no models given; give one, or several by name")
    for name in models:
        if not isinstance(name, str) or not name or "/" in name:
            raise InputError(f"a model is called {name!r}; expected a name without '/', such as 'tuned'")
    sizes = {name: getattr(getattr(model, "cfg", None), "d_vocab", None) for name, model in models.items()}
    if len(known := {name: size for name, size in sizes.items() if size is not None}) > 1:
        (first, size), *others = known.items()
        for name, other in others:
            if other != size:
                raise InputError(
                    f"model {first!r} has a vocabulary of {size} tokens and {name!r} one of {other}, so the same "
                    "tokens are not the same text; compare models with one tokenizer"
                )


def each_batch(batches: Batches, progress: str | None = None) -> Iterable[Batch]:
    """One batch or many, as an iterable; with a progress bar of that name."""
    source: Iterable[Batch] = [batches] if isinstance(batches, Batch) else batches
    if progress is None:
        return source
    from tqdm.auto import tqdm

    return tqdm(source, desc=progress, unit="batch", leave=False)  # type: ignore[no-any-return]
