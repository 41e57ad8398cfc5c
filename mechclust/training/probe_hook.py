"""Probes in any training loop: every few steps, on a fixed set of batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

from mechclust.models.adapters import merged_copy
from mechclust.models.pretrained import AnyModel, load_pretrained
from mechclust.models.sizes import Sizes
from mechclust.models.tokenized_prompts import tokenize_prompts
from mechclust.training.results_by_step import result_path
from probes import ProbeResult, run
from probes.engine.batches import Batches
from probes.engine.probe import Probe
from probes.engine.run import probes_as_list
from tasks import Batch, InputError, LabelledPrompts
from tasks.settings import check_count
from tasks.text.bos_token import Bos

_LOGGED_AXES = ("site", "label", "equivalence")  # axes of measures that make a handful of numbers


class ProbeHook:
    """Call it after each optimiser step of a training loop: it measures at every step that is a multiple of ``every``.

    The model is measured in evaluation mode, without gradients. Its weights, its training mode and the random state are
    left untouched. A Hugging Face model gets new hooks each time, which is quick and does not copy the weights. A peft
    model (LoRA) is measured as a copy with the adapter merged, which needs memory for the weights that the adapter
    changes.

    Args:
        probes: one probe or several. They are reset before each measurement.
        batches: the inputs to measure each time, in any form that ``run`` accepts (batches, or texts if there is a
            tokenizer), or ``LabelledPrompts``, which are tokenized as by ``mechclust history``. They are read
            repeatedly, so an iterator is refused.
        every: steps between measurements. Step 0 is measured too.
        log: called with the step's numbers by name, such as ``wandb.log``.
        out: folder for the full results, ``step-000100.TaskClusterARI.safetensors``. ``None``: they are kept only in
            ``results``.
        tokenizer: needed if batches are texts or prompts.
        bos: whether these begin with the beginning-of-sequence token, as in ``run``.
        tokens_per_batch: most tokens per forward pass, padding included, of texts and prompts.

    Attributes:
        results: one result per probe, by step.

    Raises:
        InputError: for no probes, a probe class in place of a probe, two probes of one class, batches that can be read
            only once, or ``every`` or ``tokens_per_batch`` below 1.

    Example:
        >>> import torch
        >>> from mechclust import ModelConfig, build_model
        >>> from probes import NDims, last_token
        >>> from tasks import Batch
        >>> model = build_model(ModelConfig(d_vocab=9, n_ctx=4, n_layers=1, d_model=8, n_heads=2))
        >>> hook = ProbeHook(NDims(readout=last_token()), [Batch(torch.arange(12).reshape(4, 3) % 9)], every=10)
        >>> [sorted(hook(model, step)) for step in (0, 5, 10)][1], sorted(hook.results)
        ([], [0, 10])
    """

    def __init__(
        self,
        probes: Probe | Sequence[Probe],
        batches: Batches | LabelledPrompts,
        every: int = 100,
        *,
        log: Callable[[dict[str, float]], Any] | None = None,
        out: str | Path | None = None,
        tokenizer: Any = None,
        bos: Bos = "model",
        tokens_per_batch: int = 4096,
    ) -> None:
        check_count(every=(every, 1), tokens_per_batch=(tokens_per_batch, 1))
        self.probes = probes_as_list(probes, least=1)
        names = [type(probe).__name__ for probe in self.probes]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise InputError(
                f"two probes are called {twice[0]}, and their numbers are logged by name; give one of a class"
            )
        if isinstance(batches, Iterator):
            raise InputError("batches is an iterator, which is empty after the first measurement; give a list")
        self.batches = batches
        self.every = every
        self.log = log
        self.tokenizer = tokenizer
        self.bos: Bos = bos
        self.tokens_per_batch = tokens_per_batch
        self.out = None if out is None else Path(out)
        self.results: dict[int, list[ProbeResult]] = {}
        self._prompts: list[Batch] = []

    def __call__(self, model: AnyModel, step: int) -> dict[str, float]:
        """Measure if this step is due and has not been measured yet.

        Args:
            model: a Hugging Face model, a peft model, or one with hooks.
            step: optimiser steps taken so far.

        Returns:
            The numbers by name, such as ``"TaskClusterARI/ari/blocks.0.hook_resid_post"``. Empty at other steps.
        """
        if step % self.every or step in self.results:
            return {}
        plain: Any = merged_copy(model) if hasattr(model, "merge_and_unload") else model
        hooked = load_pretrained(plain, tokenizer=None if hasattr(plain, "hook_dict") else self.tokenizer)
        with torch.random.fork_rng(devices=[]):  # a DataLoader draws a seed each time
            results = run(
                hooked,
                self._inputs(model),
                self.probes,
                tokenizer=self.tokenizer,
                bos=self.bos,
                tokens_per_batch=self.tokens_per_batch,
            )
        self.results[step] = results
        numbers: dict[str, float] = {}
        for result in results:
            if self.out is not None:
                result.save(result_path(self.out, step, result.probe))
            numbers |= _result_scalars(result)
        if self.log is not None:
            self.log({**numbers, "step": step})
        return numbers

    def _inputs(self, model: AnyModel) -> Batches:
        """Return the batches. Prompts are tokenized once."""
        if not isinstance(self.batches, LabelledPrompts):
            return self.batches
        if self.tokenizer is None:
            raise InputError("prompts need a tokenizer, and there is none; give tokenizer=")
        if not self._prompts:
            sizes = Sizes.from_model(model)
            self._prompts = list(
                tokenize_prompts(
                    self.batches, self.tokenizer, sizes, tokens_per_batch=self.tokens_per_batch, bos=self.bos
                )
            )
        return self._prompts


def _result_scalars(result: ProbeResult) -> dict[str, float]:
    """Return a result's numbers by name, for loggers: measures by site and label, without heads, examples and NaN.

    A label is part of the name if there are several.

    Example:
        >>> import torch
        >>> values, axes = {"d": torch.tensor([1.0, 2.0])}, {"d": ("label",)}
        >>> _result_scalars(ProbeResult("Depth", values, axes, {"label": ["a", "b"]}))
        {'Depth/d/a': 1.0, 'Depth/d/b': 2.0}
    """
    numbers = {}
    for measure, values in result.values.items():
        axes = result.axes[measure]
        if not set(axes) <= set(_LOGGED_AXES):
            continue
        coords = [result.coords[axis] for axis in axes]
        in_name = [i for i, names in enumerate(coords) if i == 0 or len(names) > 1]
        for place, value in zip(product(*coords), values.flatten().tolist(), strict=True):
            if math.isfinite(value):
                numbers["/".join([result.probe, measure, *(place[i] for i in in_name)])] = float(value)
    return numbers
