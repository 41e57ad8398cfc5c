"""What the topic-structure study runs: settings, arms, its model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from mechclust.models.config import AnyConfig
from tasks import InputError


@dataclass(frozen=True)
class TopicTransformerConfig(AnyConfig):
    """The one-layer transformer of the topic-structure study, see ``TopicTransformer``.

    Args:
        d_vocab: number of token ids.
        d_model: width; ``None``: ``d_vocab``, which a one-hot embedding needs.
        embedding: ``"trained"``, or ``"one-hot"`` and frozen.
        attention: ``"trained"``, or ``"uniform"``: W_K = W_Q = 0 and frozen.
        value: W_V ``"trained"``, ``"identity"`` and frozen, or ``"fixed"``: frozen as it is set.
        input_scale: a one-hot embedding's length. A LayerNorm would give its input about
            ``sqrt(d_vocab)``, which plain SGD feels: it multiplies the effective learning rate by its square.
        decoder: ``"tied"`` to the embedding, ``"free"``, or the ``"identity"``.
        bias: train the decoder's bias; it is 0 otherwise.
        init_std: initial weights are normal with this standard deviation; ``None``: uniform within
            ``1 / sqrt(width)``, PyTorch's default for linear layers.
        seed: of the initial weights.

    Example:
        >>> TopicTransformerConfig(d_vocab=104, embedding="one-hot", attention="uniform").width
        104
    """

    kind: ClassVar[str] = "topic-transformer"

    d_vocab: int
    d_model: int | None = None
    embedding: Literal["trained", "one-hot"] = "trained"
    attention: Literal["trained", "uniform"] = "trained"
    value: Literal["trained", "identity", "fixed"] = "trained"
    input_scale: float = 1.0
    decoder: Literal["tied", "free", "identity"] = "tied"
    bias: bool = True
    init_std: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.d_vocab < 1 or self.width < 1:
            raise InputError(f"d_vocab is {self.d_vocab} and d_model {self.d_model}; expected at least 1")
        for name, allowed in (
            ("embedding", ("trained", "one-hot")),
            ("attention", ("trained", "uniform")),
            ("value", ("trained", "identity", "fixed")),
            ("decoder", ("tied", "free", "identity")),
        ):
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(map(repr, allowed))}")
        if self.embedding == "one-hot" and self.width != self.d_vocab:
            raise InputError(
                f"a one-hot embedding of {self.d_vocab} tokens has that many dimensions; d_model is {self.d_model}"
            )
        if self.decoder == "identity" and self.width != self.d_vocab:
            raise InputError(f"an identity decoder needs d_model = d_vocab ({self.d_vocab}); d_model is {self.d_model}")
        if not self.input_scale > 0:
            raise InputError(f"input_scale is {self.input_scale}; expected a positive number")
        if self.embedding != "one-hot" and self.input_scale != 1:
            raise InputError(f"input_scale is {self.input_scale}, but the embedding is trained; leave it at 1")
        if self.init_std is not None and self.init_std < 0:
            raise InputError(f"init_std is {self.init_std}; expected at least 0, or None for the default")
        if self.seed < 0:
            raise InputError(f"seed is {self.seed}; expected at least 0")

    @property
    def width(self) -> int:
        """``d_model``, or the size of the vocabulary."""
        return self.d_vocab if self.d_model is None else self.d_model
