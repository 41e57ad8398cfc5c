"""Changes of low rank to some weights of a transformer (LoRA), as a function of what is trained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor

from tasks import InputError
from tasks.settings import Count, Positive, check_settings

_DOWN, _UP = ".down", ".up"
_PARTS = ("attn.W_Q", "attn.W_K", "attn.W_V")


@dataclass(frozen=True)
class LowRank:
    """A low-rank change of weights: ``W + alpha / rank * up @ down``.

    The change begins at 0, as in LoRA: ``up`` is 0, ``down`` uniform with bound ``1 / sqrt(inputs)``, which is peft's
    default. Nothing else is trained.

    Source: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models (arXiv 2106.09685).

    Args:
        rank: rank of each change.
        alpha: scale of the change, divided by the rank.
        parts: which matrices of every block: some of ``"attn.W_Q"``, ``"attn.W_K"`` and ``"attn.W_V"``.

    Raises:
        InputError: for another part, or a size that is not positive.

    Example:
        >>> LowRank(rank=2).factors([(0, {"blocks.0.attn.W_Q": torch.ones(8, 8)})])["blocks.0.attn.W_Q.up"].shape
        torch.Size([1, 8, 2])
    """

    rank: Count = 8
    alpha: Positive = 16.0
    parts: tuple[str, ...] = ("attn.W_Q", "attn.W_V")

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.parts or set(self.parts) - set(_PARTS):
            raise InputError(f"parts is {self.parts}; expected some of {', '.join(_PARTS)}")

    def factors(self, models: Sequence[tuple[int, Mapping[str, Tensor]]]) -> dict[str, Tensor]:
        """``[model out rank]`` and ``[model rank in]`` before training, of each model's seed and parameters."""
        found: dict[str, Tensor] = {}
        names = models[0][1]
        draws = [torch.Generator().manual_seed(seed) for seed, _ in models]
        for name in names:
            if any(self._is(name, part) for part in self.parts):
                out, into = _matrix(names[name]).shape
                down = [(2 * torch.rand(self.rank, into, generator=draw) - 1) / math.sqrt(into) for draw in draws]
                found[name + _DOWN] = torch.stack(down).to(names[name].dtype)
                found[name + _UP] = torch.zeros(len(models), out, self.rank, dtype=names[name].dtype)
        return found

    def changed(self, fixed: Mapping[str, Tensor], factors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights that the factors are of, with their changes."""
        found = {}
        for name in (key.removesuffix(_DOWN) for key in factors if key.endswith(_DOWN)):
            change = self.alpha / self.rank * (factors[name + _UP] @ factors[name + _DOWN])
            found[name] = fixed[name] + _like(fixed[name], change)
        return found

    def _is(self, name: str, part: str) -> bool:
        return name.startswith("blocks.") and name.endswith(f".{part}")


def _matrix(weight: Tensor) -> Tensor:
    """``[out in]``: as TransformerLens 4's bridge has it; HookedTransformer's is ``[head in head's out]``."""
    return weight if weight.ndim == 2 else rearrange(weight, "h d e -> (h e) d")


def _like(weight: Tensor, matrix: Tensor) -> Tensor:
    return matrix if weight.ndim == 2 else rearrange(matrix, "(h e) d -> h d e", h=weight.shape[0])
