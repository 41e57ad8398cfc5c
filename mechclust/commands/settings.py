"""Settings that commands share, each with its checks: how a model is run, on which prompts, against what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from mechclust.models import load_pretrained, set_adapter
from mechclust.models.adapters import adapter_of, check_adapter
from mechclust.models.pretrained import Quantization, model_name
from probes import Readout, first_token, last_token, mean
from probes.hooks import check_device
from tasks import InputError
from tasks.errors import check_at_least
from tasks.text.encoding import Bos

Dtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """How a model is loaded, reads texts and is run.

    Args:
        adapter: folder of an adapter (LoRA and its relatives, as peft saves them) to put into the model.
        bos: begin each text with the beginning-of-sequence token: as the ``model``'s tokenizer does, ``yes`` or ``no``.
        tokens_per_batch: most tokens per forward pass, padding included; prompts of like length go together.
        device: such as ``cpu`` or ``cuda``.
        device_map: ``auto`` spreads a model that is too large for one device, in place of ``device``.
        quantize: load the weights in ``8bit`` or ``4bit`` (needs bitsandbytes).
        dtype: of the model's weights.
        trust_remote_code: run code that comes with a checkpoint. It can do whatever you can do; read it first.
        seed: of everything that is drawn at random.
    """

    adapter: Path | None = None
    bos: Bos = "model"
    tokens_per_batch: int = 4096
    device: str = "cpu"
    device_map: str | None = None
    quantize: Quantization | None = None
    dtype: Dtype = "float32"
    trust_remote_code: bool = False
    seed: int = 0

    def check(self) -> None:
        """Refuse what no model can be run with."""
        check_device(self.device)
        check_at_least(tokens_per_batch=(self.tokens_per_batch, 1), seed=(self.seed, 0))
        if self.device_map is not None and self.device != "cpu":
            raise InputError(f"device is {self.device!r} and device_map {self.device_map!r}; give one of them")
        if self.adapter is not None:
            check_adapter(self.adapter)
            if self.quantize is not None:
                raise InputError(
                    f"an adapter cannot be added exactly to {self.quantize} weights; leave out --quantize or --adapter"
                )

    def load(self, model: Any, what: str, **options: Any) -> Any:
        """A model with a tokenizer to read ``what``.

        Args:
            model: a name or directory, loaded as these settings say, or a model in memory, which is taken as it is.
            what: what the tokenizer is needed for, in words.
            **options: further ones, as ``load_pretrained`` takes them.
        """
        if isinstance(model, (str, Path)):
            options = {
                "adapter": self.adapter,
                "device": None if self.device_map else self.device,
                "device_map": self.device_map,
                "quantization": self.quantize,
                "dtype": getattr(torch, self.dtype),
                "trust_remote_code": self.trust_remote_code,
            } | options
        elif self.adapter is not None:
            options = {"adapter": self.adapter} | options
        if options.get("untrained"):
            options.pop("adapter", None)
        hooked: Any = load_pretrained(model, **options)
        if getattr(hooked, "tokenizer", None) is None and options.get("tokenizer") is None:
            raise InputError(
                f"{model_name(model)!r} has no tokenizer to read {what}; give a Hugging Face checkpoint, or tokenizer="
            )
        return hooked

    @contextmanager
    def loaded(self, model: Any, what: str, *, tokenizer: Any = None, **options: Any) -> Iterator[tuple[Any, Any]]:
        """The same for a block, with its tokenizer: the given one, or the model's. An adapter that these settings put
        into a model in memory is taken out again, since the weights are the caller's."""
        before = None if isinstance(model, (str, Path)) else adapter_of(model)
        hooked = self.load(model, what, tokenizer=tokenizer, **options)
        try:
            yield hooked, hooked.tokenizer if tokenizer is None else tokenizer
        finally:
            if not isinstance(model, (str, Path)) and adapter_of(model) != before:
                set_adapter(hooked, before)

    def title(self, model: Any) -> str:
        """What reports call the model that these settings load."""
        adapter = self.adapter or (None if isinstance(model, (str, Path)) else adapter_of(model))
        return model_name(model, adapter)


@dataclass(frozen=True, kw_only=True)
class UntrainedSettings(ModelSettings):
    """With which untrained models a model is compared.

    Args:
        untrained: how many untrained models (same architecture, random weights, seeds 0, 1, ...) to compare with.
    """

    untrained: int = 1

    def check(self) -> None:
        super().check()
        check_at_least(untrained=(self.untrained, 0))


@dataclass(frozen=True, kw_only=True)
class PromptSettings:
    """Which prompts are read, and how.

    Args:
        prompts: JSONL file: one object per line with ``prompt``, ``task`` and any further labels.
        position: which hidden state: that of the ``last`` prompt token, of the ``first`` (in BERT-like encoders
            ``[CLS]``), or the ``mean`` over tokens.
        chat: wrap each prompt as a user message in the tokenizer's chat template.
        too_long: ``refuse`` a prompt over the model's context, or ``truncate`` it from the left.
    """

    prompts: Path = field(kw_only=False)
    position: Literal["last", "first", "mean"] = "last"
    chat: bool = False
    too_long: Literal["refuse", "truncate"] = "refuse"

    @property
    def readout(self) -> Readout:
        """What a probe reads of a prompt's hidden states."""
        return {"last": last_token, "first": first_token, "mean": mean}[self.position]()

    @property
    def states(self) -> str:
        """Which hidden state that is, in words."""
        return "the mean over prompt tokens" if self.position == "mean" else f"the {self.position} prompt token"


def check_map_prompts(most: int) -> None:
    """Refuse a map of a single prompt."""
    if most < 0 or most == 1:
        raise InputError(f"map_prompts is {most}; expected 0 for no map, or at least 2")
