"""A model under check, and its inputs: random token sequences that depend on the seed alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from mechclust.commands.check.result import NotTried
from mechclust.report.text import counted
from probes.engine.devices import device_of
from probes.engine.hooked_model import evaluation_mode, forward, modules_of
from probes.engine.record import record
from probes.engine.sites import attention_pattern, embedding, head_output, residual, resolve
from probes.engine.text_tokenizer import tokenizer_of
from tasks import Batch, InputError
from tasks._random import generator

SELECTORS = (embedding(), residual(), attention_pattern(), head_output())
EXAMPLES = 8  # in most batches
LENGTH = 8  # tokens per sequence: the checks need a few positions, not a long text
_MAX_LENGTH = 512  # tokens per sequence, for a model that reads one length only
_SIZES = ("n_layers", "n_heads", "d_model", "d_head", "d_vocab", "n_ctx")

Values = Shaped[Tensor, "..."]


@dataclass
class CheckedModel:
    """A model under check.

    Attributes:
        model: the model.
        tokenizer: by default the model's own, if it has one.
        seed: seed of the inputs.
        sites: hook names that fire as they should, by selector; filled as the checks find them.
        flags: which modules were in training mode at the start.
    """

    model: Any
    tokenizer: Any
    seed: int
    sites: dict[str, list[str]] = field(default_factory=dict, init=False)
    flags: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        for name in _SIZES:
            if not hasattr(getattr(self.model, "cfg", None), name):
                raise InputError(
                    f"a {type(self.model).__name__} has no cfg.{name}, so its shapes cannot be checked; build it with "
                    "mechclust.build_model or load it with mechclust.load_pretrained"
                )
        if self.tokenizer is None:
            self.tokenizer = tokenizer_of(self.model)
        flags = "the model's training flags"
        self.flags = {flags: modules_of(self.model)[flags]}

    def random(self, purpose: str, *index: int) -> np.random.Generator:
        """Return a generator that depends on the seed, the purpose and the index alone."""
        return generator(self.seed, purpose, *index)

    @cached_property
    def pad_id(self) -> int:
        """Token that sequences are padded with."""
        return pad_id(self.model.cfg.d_vocab, self.tokenizer, _config(self.model))

    @cached_property
    def ids(self) -> Int[np.ndarray, "token"]:
        """The vocabulary without special tokens."""
        return ordinary_ids(self.model.cfg.d_vocab, self.tokenizer, _config(self.model))

    @cached_property
    def length(self) -> int:
        """Tokens of a sequence: 8, or the model's context if that is shorter or all that it reads.

        Raises:
            Exception: the model's own, if it reads neither.
        """
        n_ctx = self.model.cfg.n_ctx
        first = min(LENGTH, n_ctx or LENGTH)
        try:
            self.output(self.batch("length", 2, first))
        except Exception:
            if n_ctx is None or not first < n_ctx <= _MAX_LENGTH:
                raise
            self.output(self.batch("length", 2, n_ctx))
            return int(n_ctx)
        return first

    def batch(self, purpose: str, n: int, length: int | None = None) -> Batch:
        """Return ``n`` random sequences without padding."""
        drawn = self.random(purpose).choice(self.ids, size=(n, self.length if length is None else length))
        return Batch(torch.from_numpy(drawn).long())

    def output(self, batch: Batch) -> Values:
        """Return the model's output for a batch, dropout off."""
        with torch.inference_mode(), evaluation_mode(self.model):
            output = forward(self.model, batch.to(device_of(self.model)))
        output = getattr(output, "logits", output)
        return output[0] if isinstance(output, tuple) else output  # type: ignore[no-any-return]

    def watched(self, batch: Batch, names: Sequence[str]) -> tuple[dict[str, list[Values]], Values]:
        """Return copies, on the CPU, of each hook point's activation in one forward pass, and the model's output.

        Args:
            batch: the batch.
            names: hook names. A hook point may fire several times, or never.
        """
        activations: dict[str, list[Values]] = {name: [] for name in names}
        with record(self.model, names, partial(_keep, activations)):
            output = self.output(batch)
        return activations, output

    def values(self, batch: Batch, *kinds: str) -> dict[str, Values]:
        """Return the activations at the working sites of some selectors, by default of all."""
        activations, _ = self.watched(batch, self._names(*(kinds or self.sites)))
        return {name: fired[0] for name, fired in activations.items()}

    def _names(self, *kinds: str) -> list[str]:
        """Return the working hook names of some selectors, each once."""
        return list(dict.fromkeys(chain.from_iterable(self.sites.get(kind, ()) for kind in kinds)))

    @cached_property
    def standard(self) -> Batch:
        """The batch that most checks look at."""
        return self.batch("standard", EXAMPLES)

    @cached_property
    def standard_output(self) -> Values:
        """The model's output for the standard batch, when first read."""
        return self.output(self.standard)

    def working(self, kind: str) -> list[str]:
        """Return the hook names of a selector that work.

        Raises:
            NotTried: if there are none.
        """
        names = self.sites.get(kind)
        if not names:
            raise NotTried(f"{kind}() does not work (its check says why)")
        return names

    @cached_property
    def fired(self) -> dict[str, list[Values]]:
        """Activations at the hook points of all selectors, and between blocks, for the standard batch."""
        names = [name for name in self.model.hook_dict if re.fullmatch(r"blocks\.\d+\.hook_resid_pre", name)]
        for selector in SELECTORS:
            with suppress(InputError):  # told by the check of the selector
                names += [site.name for site in resolve(self.model, selector)]
        activations, _ = self.watched(self.standard, list(dict.fromkeys(names)))
        return activations

    @cached_property
    def seen(self) -> dict[str, Values]:
        """Activations at the working sites for the standard batch; read once the sites are known."""
        return {name: self.fired[name][0] for name in self._names(*self.sites)}

    def facts(self) -> str:
        """Return the model in one line."""
        cfg = self.model.cfg
        inner = _wrapped(self.model)
        class_name = type(self.model).__name__
        kind = class_name if inner is None else f"{class_name} ({type(inner).__name__})"
        context = "any length" if cfg.n_ctx is None else f"context {cfg.n_ctx}"
        hooks = "hooks read and may not write" if class_name == "ReadOnlyModel" else "hooks read and write"
        return (
            f"{kind}: {counted(cfg.n_layers, 'layer')} of {counted(cfg.n_heads, 'head')}, d_model {cfg.d_model}, "
            f"d_head {cfg.d_head}, vocabulary {cfg.d_vocab}, {context}, {dtypes_of(self.model)} on "
            f"{devices_of(self.model)}; {hooks}"
        )


def _keep(activations: Mapping[str, list[Values]], name: str, activation: Values) -> None:
    activations[name].append(on_cpu(activation))


def on_cpu(value: Values) -> Values:
    """Return a copy on the CPU, without gradients."""
    return value.detach().to("cpu", copy=True)


def _wrapped(model: Any) -> Any:
    """Return the Hugging Face model that a model wraps, or ``None``."""
    return getattr(model, "original_model", getattr(model, "body", None))


def _config(model: Any) -> Any:
    """Return Hugging Face's configuration of what a model wraps, if it wraps something."""
    return getattr(_wrapped(model), "config", None)


def pad_id(d_vocab: int, tokenizer: Any, config: Any) -> int:
    """Return the token that sequences are padded with: the tokenizer's, else the model's, if it has an embedding."""
    for owner in (tokenizer, config):
        token = getattr(owner, "pad_token_id", None)
        if token is not None and 0 <= token < d_vocab:
            return int(token)
    return 0


def ordinary_ids(d_vocab: int, tokenizer: Any, config: Any) -> Int[np.ndarray, "token"]:
    """Return the vocabulary without special tokens, which some models read differently (RoBERTa its padding)."""
    vocabulary = np.arange(d_vocab)
    if tokenizer is None and config is None:  # nothing says which are special
        return vocabulary
    special = {pad_id(d_vocab, tokenizer, config), getattr(config, "pad_token_id", None)}
    special.update(getattr(tokenizer, "all_special_ids", ()))
    ordinary = np.setdiff1d(vocabulary, [token for token in special if token is not None])
    return ordinary if len(ordinary) else vocabulary


def dtypes_of(model: Any) -> str:
    """Return the dtypes of a model's weights, such as ``float32``.

    Quantised weights are whole numbers, so the method is named too.
    """
    dtypes = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in model.parameters()})
    config = getattr(_config(model) or getattr(model, "config", None), "quantization_config", None)
    method = config.get("quant_method") if isinstance(config, dict) else getattr(config, "quant_method", None)
    quantised = f" (quantised, {getattr(method, 'value', method)})" if method else ""
    return (" and ".join(dtypes) or "no weights") + quantised


def devices_of(model: Any) -> str:
    """Return where a model's weights are, such as ``cuda:0 and cuda:1``.

    accelerate keeps weights elsewhere until they are needed, as ``meta``.
    """
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    return " and ".join(devices).replace("meta", "disk or CPU until needed") or "cpu"


def first_trouble(troubles: Mapping[str, str]) -> str:
    """Return the first of several troubles, and how many more there are."""
    first, *others = troubles.values()
    return f"{first} (and {len(others)} more)" if others else first
