"""Measure the forward passes of somebody else's loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor

from probes.engine.batches import one_batch
from probes.engine.hooks import HookedModel
from probes.engine.probe import Probe, each_probe
from probes.engine.recorder import _Recorder, observe
from tasks import Batch, InputError


class Attached:
    """What ``attach`` returns: give it the batch whose forward pass comes next."""

    def __init__(self, recorder: _Recorder, probes: Sequence[Probe]) -> None:
        self._recorder = recorder
        self._probes = probes

    @contextmanager
    def on(self, batch: Batch | Tensor | Mapping[str, Any]) -> Iterator[None]:
        """Measure the one forward pass made inside this block; other passes are not measured.

        Args:
            batch: the batch, token ids ``[batch pos]``, or what a Hugging Face tokenizer gives. Where it brings no
                index, examples are numbered on from those that the probes hold.

        Raises:
            InputError: for an example that a probe holds already (``probe.reset()`` lets it go), and where ``run``
                raises it.
        """
        moved = one_batch(batch, self._recorder.model).to(self._recorder.home)
        if not isinstance(batch, Batch):
            held = max((probe.examples.end for probe in self._probes), default=0)
            moved = replace(moved, index=moved.index + held)
        self._recorder.start(moved)
        try:
            yield
            observe(self._probes, self._recorder.finish(), moved)
        finally:
            self._recorder.forget()


@contextmanager
def attach(model: HookedModel, probes: Probe | Sequence[Probe]) -> Iterator[Attached]:
    """Hook ``probes`` to ``model`` for the block, for training loops and notebooks.

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
    several = each_probe(probes)
    for probe in several:
        probe.bind(model)
    recorder = _Recorder(model, several, stops=False)
    with recorder.recording():
        yield Attached(recorder, several)
