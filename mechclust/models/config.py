"""Configuration of the transformers that mechclust builds and trains itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from mechclust.models.model_kinds import TRANSFORMER, model_class_of_kind
from probes.engine.hooked_model import HookedModel
from tasks import InputError, Task
from tasks.settings import (
    AtLeast,
    AtMost,
    Count,
    Positive,
    Size,
    WideSeed,
    check_multiple,
    check_settings,
    settings_from_json,
    settings_to_json,
)

MAX_LAYERS = 10_000  # of a model that is built here


class AnyConfig:
    """The configuration of a model that ``build_model`` builds: a frozen dataclass, whose ``seed`` draws the weights.

    Attributes:
        kind: the model's name in files.
        d_vocab: number of token ids.
        seed: for the initial weights.
    """

    kind: ClassVar[str]
    d_vocab: int
    seed: int

    def with_seed(self, seed: int) -> Self:
        """Return a copy of the configuration with another seed."""
        return replace(self, seed=seed)  # type: ignore[type-var]  # every subclass is a dataclass


@dataclass(frozen=True)
class ModelConfig(AnyConfig):
    """A transformer with hooks and the blocks of GPT-2 (pre-norm, GELU, learned positions).

    Its unembedding has no bias.

    Args:
        d_vocab: number of token ids.
        n_ctx: longest sequence.
        n_layers: transformer blocks.
        d_model: width of the residual stream.
        n_heads: attention heads. ``d_model`` must be a multiple.
        d_mlp: width of the feed-forward layer. ``None``: ``4 * d_model``.
        attn_only: whether blocks have attention only, without a feed-forward layer.
        attention: ``"causal"`` or ``"bidirectional"``.
        tied: whether the unembedding is the token embedding, as in GPT-2. Needs TransformerLens 4.
        init_std: standard deviation of initial weights (GPT-2: 0.02). The two projections that write to the residual
            stream are scaled by ``1 / sqrt(2 n_layers)``.
        seed: for the initial weights.

    Example:
        >>> ModelConfig(d_vocab=50, n_ctx=8, n_layers=1, d_model=16, n_heads=2).d_head
        8
    """

    kind: ClassVar[str] = TRANSFORMER

    d_vocab: Size
    n_ctx: Size
    n_layers: Annotated[int, AtLeast(1), AtMost(MAX_LAYERS)] = 6
    d_model: Size = 128
    n_heads: Count = 4
    d_mlp: Size | None = None
    attn_only: bool = False
    attention: Literal["causal", "bidirectional"] = "causal"
    tied: bool = False
    init_std: Positive = 0.02
    seed: WideSeed = 0

    def __post_init__(self) -> None:
        check_settings(self)
        check_multiple(d_model=(self.d_model, self.n_heads))

    @property
    def d_head(self) -> int:
        """Width of one head."""
        return self.d_model // self.n_heads

    @property
    def d_feedforward(self) -> int:
        """Width of the feed-forward layer."""
        return 4 * self.d_model if self.d_mlp is None else self.d_mlp


def model_config_to_json(config: AnyConfig) -> dict[str, Any]:
    """Return the fields of any model's configuration, and its kind, as JSON types."""
    return {"kind": config.kind, **settings_to_json(config)}


def model_config_from_json(record: Mapping[str, Any]) -> AnyConfig:
    """Read the configuration that ``model_config_to_json`` wrote.

    Raises:
        InputError: for an unknown kind or field.
    """
    values = dict(record)
    kind = values.pop("kind", None)
    cls = ModelConfig if kind == ModelConfig.kind else model_class_of_kind(kind).config_class
    return settings_from_json(cls, values)  # type: ignore[no-any-return]


def config_of(model: HookedModel) -> AnyConfig:
    """Return the configuration a model was built with.

    Raises:
        InputError: when ``build_model`` did not build it.
    """
    config = model.__dict__.get("mechclust_config")
    if not isinstance(config, AnyConfig):
        raise InputError(
            f"a {type(model).__name__} that build_model did not build can be neither trained nor saved here; "
            "build one, or use Hugging Face's own trainer and save_pretrained"
        )
    return config


def check_model_config_fits_task(task: Task, config: AnyConfig) -> None:
    """Refuse a task with more tokens than a model's vocabulary, or longer examples than its context.

    Raises:
        InputError: with both sizes.
    """
    n_ctx = getattr(config, "n_ctx", None)
    if task.d_vocab > config.d_vocab:
        sizes = f"{task.d_vocab} tokens, but the model's d_vocab is {config.d_vocab}"
    elif n_ctx is not None and task.n_ctx > n_ctx:
        sizes = f"examples of {task.n_ctx} tokens, but the model's n_ctx is {n_ctx}"
    else:
        return
    raise InputError(f"the task {task.name!r} has {sizes}; build the model with model_for(task)")
