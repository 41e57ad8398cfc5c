"""A model under check, and what it is fed: random token sequences that depend on the seed alone."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechclust.commands.check.result import NotTried
from probes.engine.hooks import device_of, evaluation_mode, forward, modules_of, record
from probes.engine.sites import attention_pattern, embedding, head_output, residual, resolve
from probes.engine.texts import tokenizer_of
from tasks import Batch, InputError

SELECTORS = (embedding(), residual(), attention_pattern(), head_output())
EXAMPLES = 8  # in a batch
LENGTH = 8  # tokens per sequence: the checks need a few positions, not a long text
_LONGEST = 512  # of a model that reads one length only
_FACTS = ("n_layers", "n_heads", "d_model", "d_head", "d_vocab", "n_ctx")


@dataclass
class CheckedModel:
    """A model under check.

    Attributes:
        model: it.
        tokenizer: by default the model's own, if it has one.
        seed: for the inputs.
        sites: hook names that fire as they should, by selector; filled as the checks find them.
        flags: which modules were in training mode at the start.
    """

    model: Any
    tokenizer: Any
    seed: int
    sites: dict[str, list[str]] = field(default_factory=dict)
    flags: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        for name in _FACTS:
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
        """A generator that depends on the seed, the purpose and the index alone."""
        return example_generator(self.seed, purpose, *index)

    @cached_property
    def pad_id(self) -> int:
        """What sequences are padded with."""
        return pad_id(self.model.cfg.d_vocab, self.tokenizer, _config(self.model))

    @cached_property
    def ids(self) -> np.ndarray:
        """The vocabulary without special tokens."""
        return ordinary_ids(self.model.cfg.d_vocab, self.tokenizer, _config(self.model))

    @cached_property
    def length(self) -> int:
        """Tokens a sequence: 8, or the model's context where that is shorter or all that it reads.

        Raises:
            Exception: the model's own, where it reads neither.
        """
        n_ctx = self.model.cfg.n_ctx
        first = min(LENGTH, n_ctx or LENGTH)
        try:
            self.output(self.batch("length", 2, first))
        except Exception:
            if n_ctx is None or not first < n_ctx <= _LONGEST:
                raise
            self.output(self.batch("length", 2, n_ctx))
            return int(n_ctx)
        return first

    def batch(self, purpose: str, n: int, length: int | None = None) -> Batch:
        """``n`` random sequences without padding."""
        drawn = self.random(purpose).choice(self.ids, size=(n, self.length if length is None else length))
        return Batch(torch.from_numpy(drawn).long())

    def output(self, batch: Batch) -> Tensor:
        """What the model gives for a batch, dropout off."""
        with torch.inference_mode(), evaluation_mode(self.model):
            found = forward(self.model, batch.to(device_of(self.model)))
        found = getattr(found, "logits", found)
        return found[0] if isinstance(found, tuple) else found  # type: ignore[no-any-return]

    def record(self, batch: Batch, names: Sequence[str]) -> dict[str, list[Tensor]]:
        """Copies, on the CPU, of what each hook point gave in one forward pass, in the order in which it fired."""
        return self.watched(batch, names)[0]

    def watched(self, batch: Batch, names: Sequence[str]) -> tuple[dict[str, list[Tensor]], Tensor]:
        """The same, and the model's output."""
        seen: dict[str, list[Tensor]] = {name: [] for name in names}

        def keep(name: str, activation: Tensor) -> None:
            seen[name].append(activation.detach().to("cpu", copy=True))

        with record(self.model, names, keep):
            output = self.output(batch)
        return seen, output

    def values(self, batch: Batch, *kinds: str) -> dict[str, Tensor]:
        """What the sites of some selectors gave, all of them by default; those that work alone."""
        names = [name for kind in kinds or self.sites for name in self.sites.get(kind, ())]
        return {name: seen[0] for name, seen in self.record(batch, list(dict.fromkeys(names))).items()}

    @cached_property
    def standard(self) -> Batch:
        """The batch that most checks look at."""
        return self.batch("standard", EXAMPLES)

    def working(self, kind: str) -> list[str]:
        """The hook names of a selector that work.

        Raises:
            NotTried: where there are none.
        """
        if not (names := self.sites.get(kind)):
            raise NotTried(f"{kind}() does not work (its check says why)")
        return names

    @cached_property
    def fired(self) -> dict[str, list[Tensor]]:
        """What the hook points of all selectors, and those between blocks, gave for the standard batch."""
        names = [name for name in self.model.hook_dict if re.fullmatch(r"blocks\.\d+\.hook_resid_pre", name)]
        for selector in SELECTORS:
            with suppress(InputError):  # told by the check of the selector
                names += [site.name for site in resolve(self.model, selector)]
        return self.record(self.standard, list(dict.fromkeys(names)))

    @cached_property
    def seen(self) -> dict[str, Tensor]:
        """What the sites that work gave for the standard batch; read once they are known."""
        names = dict.fromkeys(name for names in self.sites.values() for name in names)
        return {name: self.fired[name][0] for name in names}

    def facts(self) -> str:
        """The model in one line."""
        cfg = self.model.cfg
        inner = getattr(self.model, "original_model", getattr(self.model, "body", None))
        kind = type(self.model).__name__ + (f" ({type(inner).__name__})" if inner is not None else "")
        context = "any length" if cfg.n_ctx is None else f"context {cfg.n_ctx}"
        return (
            f"{kind}: {counted(cfg.n_layers, 'layer')} of {counted(cfg.n_heads, 'head')}, d_model {cfg.d_model}, "
            f"d_head {cfg.d_head}, "
            f"vocabulary {cfg.d_vocab}, {context}, {dtypes_of(self.model)} on {devices_of(self.model)}; "
            + ("hooks read and may not write" if kind.startswith("ReadOnlyModel") else "hooks read and write")
        )


def _config(model: Any) -> Any:
    """Hugging Face's configuration of what a model wraps, if it wraps something."""
    inner = getattr(model, "original_model", getattr(model, "body", None))
    return getattr(inner, "config", None)


def example_generator(seed: int, purpose: str, *index: int) -> np.random.Generator:
    """A generator that depends on the seed, the purpose and the index alone."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *index])


def pad_id(d_vocab: int, tokenizer: Any, config: Any) -> int:
    """What sequences are padded with: the tokenizer's token, else the model's, if it has an embedding."""
    theirs = (getattr(whose, "pad_token_id", None) for whose in (tokenizer, config))
    return next((int(i) for i in theirs if i is not None and 0 <= i < d_vocab), 0)


def ordinary_ids(d_vocab: int, tokenizer: Any, config: Any) -> np.ndarray:
    """The vocabulary without special tokens, which some models read differently (RoBERTa its padding)."""
    everything = np.arange(d_vocab)
    if tokenizer is None and config is None:  # nothing says which are special
        return everything
    special = {pad_id(d_vocab, tokenizer, config), getattr(config, "pad_token_id", None)}
    special.update(getattr(tokenizer, "all_special_ids", ()))
    ordinary = np.setdiff1d(everything, [i for i in special if i is not None])
    return ordinary if len(ordinary) else everything


def dtypes_of(model: Any) -> str:
    """Of its weights, such as ``float32``; quantised ones are whole numbers, so that it is said what they stand for."""
    found = sorted({str(p.dtype).removeprefix("torch.") for p in model.parameters()})
    config = getattr(_config(model) or getattr(model, "config", None), "quantization_config", None)
    how = config.get("quant_method") if isinstance(config, dict) else getattr(config, "quant_method", None)
    quantised = f" (quantised, {getattr(how, 'value', how)})" if how else ""
    return (" and ".join(found) or "no weights") + quantised


def devices_of(model: Any) -> str:
    """Where its weights are, such as ``cuda:0 and cuda:1``; accelerate keeps ``meta`` elsewhere until it runs."""
    found = sorted({str(p.device) for p in model.parameters()})
    return " and ".join(found).replace("meta", "disk or CPU until needed") or "cpu"


def counted(n: int, what: str) -> str:
    """``1 layer``, ``2 layers``."""
    return f"{n} {what}{'' if n == 1 else 's'}"


def wrong(found: Mapping[str, str]) -> str:
    """The first of several troubles, and how many more there are."""
    first = next(iter(found.values()))
    return first if len(found) == 1 else f"{first} (and {len(found) - 1} more)"
