"""Settings that commands share, each with its checks: how a model is run, on which prompts, against what."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from mechclust.models import load_pretrained
from probes import Readout, last_token, mean
from probes.hooks import check_device
from tasks import InputError
from tasks.errors import check_at_least

Dtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """How a model is loaded and run.

    Args:
        batch_size: examples per forward pass.
        device: such as ``cpu`` or ``cuda``.
        dtype: of the model's weights.
        seed: of everything that is drawn at random.
    """

    batch_size: int = 16
    device: str = "cpu"
    dtype: Dtype = "float32"
    seed: int = 0

    def check(self) -> None:
        """Refuse what no model can be run with."""
        check_device(self.device)
        check_at_least(batch_size=(self.batch_size, 1), seed=(self.seed, 0))

    def load(self, model: str, what: str, **options: Any) -> Any:
        """A model with a tokenizer to read ``what``; further options as ``load_pretrained`` takes them."""
        hooked = load_pretrained(model, device=self.device, dtype=getattr(torch, self.dtype), **options)
        if hooked.tokenizer is None:
            raise InputError(f"{str(model)!r} has no tokenizer to read {what}; give a Hugging Face checkpoint")
        return hooked


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
        position: which hidden state: that of the ``last`` prompt token, or the ``mean`` over tokens.
        chat: wrap each prompt as a user message in the tokenizer's chat template.
        too_long: ``refuse`` a prompt over the model's context, or ``truncate`` it from the left.
    """

    prompts: Path = field(kw_only=False)
    position: Literal["last", "mean"] = "last"
    chat: bool = False
    too_long: Literal["refuse", "truncate"] = "refuse"

    @property
    def readout(self) -> Readout:
        """What a probe reads of a prompt's hidden states."""
        return last_token() if self.position == "last" else mean()

    @property
    def states(self) -> str:
        """Which hidden state that is, in words."""
        return "the last prompt token" if self.position == "last" else "the mean over prompt tokens"
