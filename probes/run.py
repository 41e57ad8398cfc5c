"""One forward pass per batch for all probes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, overload

import torch
from torch import Tensor, nn

from probes.probe import Probe
from probes.readout import Readout, as_readout
from probes.result import ProbeResult
from tasks import Batch, InputError


class _Stop(BaseException):
    """Ends a forward pass once the deepest site was seen. Not an Exception: nobody may swallow it."""


class _Recorder:
    """Hooks on one model that keep what its probes need of the current batch."""

    def __init__(self, model: Any, probes: Sequence[Probe]) -> None:
        if isinstance(model, torch._dynamo.OptimizedModule):
            raise InputError(
                "this model went through torch.compile, which silently ignores hooks added later; "
                "measure the original module (model._orig_mod)"
            )
        self.model, self.probes = model, probes
        self.wanted: dict[str, dict[Readout, None]] = {}
        for probe in probes:
            readout = as_readout(probe.readout)
            for site in probe.bind(model):
                if readout.row_per_example and site.name.endswith(("hook_pattern", "hook_attn_scores")):
                    raise InputError(
                        f"readout {readout!r} picks positions, but {site.name!r} is [batch head query key]; "
                        "give the probe readout=all_tokens()"
                    )
                self.wanted.setdefault(site.name, {})[readout] = None
        self.batch: Batch | None = None
        self.stop_early = False
        self.kept: dict[tuple[str, Readout], Tensor] = {}
        self.seen: set[str] = set()

    def hooks(self) -> list[tuple[str, Any]]:
        # The name is bound here: in TransformerLens 4 a callback's hook.name is not the name asked for.
        return [(name, lambda activation, hook, name=name: self._receive(name, activation)) for name in self.wanted]

    def _receive(self, name: str, activation: Tensor) -> None:
        if self.batch is None:
            return
        if name in self.seen:
            raise InputError(
                f"hook point {name!r} fired twice in one forward pass (a shared layer, or generation); "
                "measure a model whose hook points fire once"
            )
        for readout in self.wanted[name]:
            kept = readout(activation.detach(), self.batch)
            if (example := readout.check(kept, self.batch)) is not None:
                raise InputError(
                    f"NaN or infinity in the activations at {name!r} for example index {example}; "
                    "find its cause in the model or leave the example out"
                )
            self.kept[name, readout] = kept
        self.seen.add(name)
        if self.stop_early and len(self.seen) == len(self.wanted):
            raise _Stop

    def start(self, batch: Batch) -> None:
        self.batch = batch
        self.kept, self.seen = {}, set()

    def finish(self) -> None:
        """Give each probe its activations of the batch."""
        assert self.batch is not None
        if silent := [name for name in self.wanted if name not in self.seen]:
            raise InputError(
                f"hook point {silent[0]!r} exists but did not fire in this forward pass; "
                "choose another hook name, or run the part of the model it belongs to"
            )
        for probe in self.probes:
            probe.update({name: self.kept[name, probe.readout] for name in probe.site_names}, self.batch)
        self.batch, self.kept = None, {}


class Attached:
    """What ``attach`` gives: tell it the batch whose forward pass comes next."""

    def __init__(self, recorder: _Recorder) -> None:
        self._recorder = recorder

    @contextmanager
    def on(self, batch: Batch) -> Iterator[None]:
        """Measure the one forward pass made inside this block; other passes are not measured."""
        self._recorder.start(batch.to(device_of(self._recorder.model)))
        try:
            yield
            self._recorder.finish()
        finally:
            self._recorder.batch, self._recorder.kept = None, {}


@contextmanager
def attach(model: Any, probes: Probe | Sequence[Probe]) -> Iterator[Attached]:
    """Hooks ``probes`` to ``model`` for the block, for training loops and notebooks.

    The probes are not reset. The hooks are removed on the way out, also after an exception; other
    people's hooks stay.

    Example:
        >>> # with attach(model, probe) as attached:
        >>> #     with attached.on(batch):
        >>> #         loss = task.loss(model(batch.tokens), batch)
        >>> # probe.compute()
    """
    recorder = _Recorder(model, [probes] if isinstance(probes, Probe) else list(probes))
    with model.hooks(fwd_hooks=recorder.hooks()):
        yield Attached(recorder)


@overload
def run(model: Any, batches: Batch | Iterable[Batch], probes: Probe, *, progress: bool = False) -> ProbeResult: ...
@overload
def run(
    model: Any, batches: Batch | Iterable[Batch], probes: Sequence[Probe], *, progress: bool = False
) -> list[ProbeResult]: ...
def run(
    model: Any, batches: Batch | Iterable[Batch], probes: Probe | Sequence[Probe], *, progress: bool = False
) -> ProbeResult | list[ProbeResult]:
    """Measure a model on batches: one forward pass per batch, whatever the number of probes.

    In inference mode, with dropout off; the model's train/eval mode, other people's hooks and the
    global random state are left as they were. The forward pass stops after the deepest site needed
    (from the second batch on). Memory does not grow with the number of batches beyond the probes'
    declared state.

    Args:
        model: anything with TransformerLens's hook protocol.
        batches: a batch or an iterable of batches; every example with an index of its own.
        probes: one probe or several. They are reset first.
        progress: show a progress bar.

    Returns:
        One result for one probe, a list for a sequence.

    Raises:
        InputError: for a name that is not in the model, a label or position that the batches lack,
            no batches, or NaN in the activations.
    """
    several = [probes] if isinstance(probes, Probe) else list(probes)
    for probe in several:
        probe.reset()
    recorder = _Recorder(model, several)
    device, count = device_of(model), 0
    source: Iterable[Batch] = [batches] if isinstance(batches, Batch) else batches
    if progress:
        from tqdm.auto import tqdm

        source = tqdm(source, desc="probing", unit="batch", leave=False)
    with evaluation_mode(model), model.hooks(fwd_hooks=recorder.hooks()):
        for batch in source:  # outside inference mode: what a generator keeps must stay usable in training
            moved = batch.to(device)
            recorder.start(moved)
            with torch.inference_mode():
                with suppress(_Stop):
                    forward(model, moved)
                recorder.finish()
            recorder.stop_early = True
            count += len(batch)
    if not count:
        raise InputError("there are no examples to measure; give at least one non-empty batch")
    results = [probe.compute() for probe in several]
    return results[0] if isinstance(probes, Probe) else results


def forward(model: Any, batch: Batch) -> Any:
    """Call the model on a batch, with its attention mask where it has padding."""
    if batch.attention_mask is None or bool(batch.attention_mask.all()):
        return model(batch.tokens)
    return model(batch.tokens, attention_mask=batch.attention_mask.long())


def device_of(model: Any) -> torch.device:
    """The device of the model's first parameter."""
    parameter = next(iter(model.parameters()), None)
    return torch.device("cpu") if parameter is None else parameter.device


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Dropout off inside; afterwards every module's own mode is as it was."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
