"""Changes of low rank to some weights of a transformer (LoRA), as a function of the trained factors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from tasks import InputError
from tasks.settings import Count, Positive, check_settings

_DOWN = ".down"
_UP = ".up"
_PARTS = ("attn.W_Q", "attn.W_K", "attn.W_V")

_Weights: TypeAlias = Mapping[str, Float[Tensor, "..."]]


@dataclass(frozen=True)
class LowRank:
    """A low-rank change of weights: ``W + alpha / rank * up @ down``.

    The change begins at 0, as in LoRA: ``up`` is 0, ``down`` uniform with bound ``1 / sqrt(inputs)``, which is peft's
    default. All other weights are frozen.

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

    def factors(self, models: Sequence[tuple[int, _Weights]]) -> dict[str, Float[Tensor, "model row column"]]:
        """Return the factors before training, ``up`` with ``rank`` columns and ``down`` with ``rank`` rows.

        Args:
            models: each model's seed and parameters.
        """
        factors: dict[str, Float[Tensor, "model row column"]] = {}
        _, weights = models[0]
        draws = [torch.Generator().manual_seed(seed) for seed, _ in models]
        for name, weight in weights.items():
            if self._changes(name):
                n_out, n_in = _matrix(weight).shape
                down = [(2 * torch.rand(self.rank, n_in, generator=draw) - 1) / math.sqrt(n_in) for draw in draws]
                factors[name + _DOWN] = torch.stack(down).to(weight.dtype)
                factors[name + _UP] = torch.zeros(len(models), n_out, self.rank, dtype=weight.dtype)
        return factors

    def changed(
        self, fixed: _Weights, factors: Mapping[str, Float[Tensor, "row column"]]
    ) -> dict[str, Float[Tensor, "..."]]:
        """Return the weights of one model that have factors, with their changes."""
        changed = {}
        for name in (key.removesuffix(_DOWN) for key in factors if key.endswith(_DOWN)):
            change = self.alpha / self.rank * (factors[name + _UP] @ factors[name + _DOWN])
            changed[name] = fixed[name] + _laid_out(change, fixed[name])
        return changed

    def _changes(self, name: str) -> bool:
        return name.startswith("blocks.") and any(name.endswith(f".{part}") for part in self.parts)


def _matrix(weight: Float[Tensor, "..."]) -> Float[Tensor, "out in"]:
    """Return the weight as one matrix, as TransformerLens 4's bridge has it. HookedTransformer has an axis of heads."""
    return weight if weight.ndim == 2 else rearrange(weight, "head d_model d_head -> (head d_head) d_model")


def _laid_out(matrix: Float[Tensor, "out in"], like: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return the matrix in the layout of another weight: the inverse of ``_matrix``."""
    if like.ndim == 2:
        return matrix
    return rearrange(matrix, "(head d_head) d_model -> head d_model d_head", head=like.shape[0])
