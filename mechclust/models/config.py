"""Configuration of the transformers that mechclust builds and trains itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from tasks import InputError


@dataclass(frozen=True)
class ModelShape:
    """What TransformerLens's ``cfg`` says of a model, under the same names.

    Attributes:
        n_layers: number of blocks. ALBERT's count as often as they are applied.
        n_heads: attention heads a block.
        d_model: width of the residual stream.
        d_head: width of a head.
        d_vocab: number of tokens.
        n_ctx: longest input, ``None`` where there is no limit. RoBERTa numbers positions from behind
            its padding index, so this is smaller than its ``max_position_embeddings``.
    """

    n_layers: int
    n_heads: int
    d_model: int
    d_head: int
    d_vocab: int
    n_ctx: int | None


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


@dataclass(frozen=True)
class TopicTransformerConfig:
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


@dataclass(frozen=True)
class PoolingTransformerConfig:
    """The pooling transformer of the clustering-head study, see ``PoolingTransformer``.

    Args:
        d_vocab: rows of the embedding, which are also the answers.
        n_ctx: length of every sequence.
        d_model: width.
        n_heads: attention heads; ``d_model`` must be a multiple.
        d_mlp: width of the feed-forward layer.
        eps: added to the root mean square in both norms.
        eps_mlp: the same in the norm before the feed-forward layer; ``None``: ``eps``.
        seed: of the initial weights.

    Example:
        >>> PoolingTransformerConfig().d_head
        2
    """

    d_vocab: int = 3
    n_ctx: int = 12
    d_model: int = 2
    n_heads: int = 1
    d_mlp: int = 32
    eps: float = 1e-5
    eps_mlp: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("d_vocab", "n_ctx", "d_model", "n_heads", "d_mlp"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected at least 1")
        if self.d_model % self.n_heads:
            raise InputError(f"d_model is {self.d_model}; expected a multiple of n_heads ({self.n_heads})")
        for name in ("eps", "eps_mlp"):
            if (getattr(self, name) or 0) < 0:
                raise InputError(f"{name} is {getattr(self, name)}; expected at least 0")
        if self.seed < 0:
            raise InputError(f"seed is {self.seed}; expected at least 0")

    @property
    def d_head(self) -> int:
        """Width of one head."""
        return self.d_model // self.n_heads


AnyConfig = ModelConfig | TopicTransformerConfig | PoolingTransformerConfig
_KINDS: dict[str, type[AnyConfig]] = {
    "transformer": ModelConfig,
    "topic-transformer": TopicTransformerConfig,
    "pooling-transformer": PoolingTransformerConfig,
}


def config_to_dict(config: AnyConfig) -> dict[str, Any]:
    """The fields of any model's configuration, and its kind, as JSON types."""
    kind = next(k for k, cls in _KINDS.items() if type(config) is cls)
    return {"kind": kind, **asdict(config)}


def config_from_dict(record: dict[str, Any]) -> AnyConfig:
    """The configuration that ``config_to_dict`` wrote.

    Raises:
        InputError: for an unknown kind or field.
    """
    values = dict(record)
    kind = values.pop("kind", None)
    if kind not in _KINDS:
        raise InputError(f"no model of kind {kind!r} (there are {', '.join(_KINDS)})")
    known = [f.name for f in fields(_KINDS[kind])]
    if unknown := sorted(set(values) - set(known)):
        raise InputError(f"a model has no field {unknown[0]!r} (it has {', '.join(known)})")
    return _KINDS[kind](**values)
