"""Measure forward passes that your own loop makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from probes.engine.batches import TokenIds, one_batch
from probes.engine.hooked_model import HookedModel
from probes.engine.probe import Probe
from probes.engine.record import _Recorder
from probes.engine.run import probes_as_list, update_probes
from tasks import Batch, InputError


class Attached:
    """Hooked probes, as ``attach`` yields them. Call ``on`` with the batch of each forward pass to measure.

    Example:
        >>> from mechclust import ModelConfig, build_model
        >>> model = build_model(ModelConfig(d_vocab=9, n_ctx=4, n_layers=1, d_model=8, n_heads=2))
        >>> import torch
        >>> from probes import AttentionEntropy, attach
        >>> tokens = torch.tensor([[3, 1, 4]])
        >>> probe = AttentionEntropy()
        >>> with attach(model, probe) as attached, attached.on(tokens):
        ...     _ = model(tokens)
        >>> len(probe.examples)
        1
    """

    def __init__(self, recorder: _Recorder, probes: Sequence[Probe]) -> None:
        self._recorder = recorder
        self._probes = probes

    @contextmanager
    def on(self, batch: Batch | TokenIds | Mapping[str, Any]) -> Iterator[None]:
        """Measure the one forward pass made inside this block, and no other.

        Args:
            batch: the batch, token ids, or the output of a Hugging Face tokenizer. Examples without an index are
                numbered after the probes' examples.

        Raises:
            InputError: for an example that a probe holds already (call ``probe.reset()`` first), and as ``run``.
        """
        if self._recorder.batch is not None:
            raise InputError("a forward pass is being measured already; leave its block on(...) first")
        moved = one_batch(batch, self._recorder.model).to(self._recorder.home)
        if not isinstance(batch, Batch):
            first = max((probe.examples.end for probe in self._probes), default=0)
            moved = replace(moved, index=moved.index + first)
        self._recorder.start(moved)
        try:
            yield
            update_probes(self._probes, self._recorder.finish(), moved)
        finally:
            self._recorder.forget()


@contextmanager
def attach(model: HookedModel, probes: Probe | Sequence[Probe]) -> Iterator[Attached]:
    """Hook ``probes`` to ``model`` inside the block, for training loops and notebooks.

    The probes are not reset. Their hooks are removed on the way out, also after an exception. Other hooks stay.

    Raises:
        InputError: for several models, and for a site that the model does not have.

    Example:
        >>> # with attach(model, probe) as attached:
        >>> #     with attached.on(batch):
        >>> #         loss = task.loss(model(batch.tokens), batch)
        >>> # probe.compute()
    """
    if isinstance(model, Mapping):
        raise InputError(f"attach measures one model, and was given {len(model)}; use run() for probes that compare")
    several = probes_as_list(probes)
    for probe in several:
        probe.bind(model)
    recorder = _Recorder(model, several, stops=False)
    with recorder.recording():
        yield Attached(recorder, several)
