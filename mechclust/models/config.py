"""Configuration of the transformers that mechclust builds and trains itself."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from tasks import InputError


@dataclass(frozen=True)
class ModelConfig:
    """A GPT-2-like transformer with hooks (pre-norm, GELU, learned positions; unembedding untied, no bias).

    Args:
        d_vocab: number of token ids.
        n_ctx: longest sequence.
        n_layers: transformer blocks.
        d_model: width of the residual stream.
        n_heads: attention heads; ``d_model`` must be a multiple.
        d_mlp: width of the feed-forward layer; ``None``: ``4 * d_model``.
        attention: ``"causal"`` or ``"bidirectional"``.
        init_std: standard deviation of initial weights (GPT-2: 0.02; the two projections that
            write to the residual stream are scaled by ``1 / sqrt(2 n_layers)``).
        seed: of the initial weights.

    Example:
        >>> ModelConfig(d_vocab=50, n_ctx=8, n_layers=1, d_model=16, n_heads=2).d_head
        8
    """

    d_vocab: int
    n_ctx: int
    n_layers: int = 6
    d_model: int = 128
    n_heads: int = 4
    d_mlp: int | None = None
    attention: Literal["causal", "bidirectional"] = "causal"
    init_std: float = 0.02
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("d_vocab", "n_ctx", "n_layers", "d_model", "n_heads"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected at least 1")
        if self.d_feedforward < 1:
            raise InputError(f"d_mlp is {self.d_mlp}; expected at least 1, or None for 4 * d_model")
        if not self.init_std > 0:
            raise InputError(f"init_std is {self.init_std}; expected a positive standard deviation")
        if self.seed < 0:
            raise InputError(f"seed is {self.seed}; expected at least 0")
        if self.d_model % self.n_heads:
            raise InputError(f"d_model is {self.d_model}; expected a multiple of n_heads ({self.n_heads})")
        if self.attention not in ("causal", "bidirectional"):
            raise InputError(f"attention is {self.attention!r}; expected 'causal' or 'bidirectional'")

    @property
    def d_head(self) -> int:
        """Width of one head."""
        return self.d_model // self.n_heads

    @property
    def d_feedforward(self) -> int:
        """Width of the feed-forward layer."""
        return 4 * self.d_model if self.d_mlp is None else self.d_mlp

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> ModelConfig:
        """The configuration of a dictionary such as ``dataclasses.asdict`` gives."""
        known = [f.name for f in fields(cls)]
        if unknown := sorted(set(config) - set(known)):
            raise InputError(f"a model has no field {unknown[0]!r} (it has {', '.join(known)})")
        return cls(**config)
