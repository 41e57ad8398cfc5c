"""Settings, models and pairs of models of the study of planted layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Annotated

from mechclust.studies.planted_layers.score import Span
from mechclust.studies.study import check_left_out, check_past_warmup, check_seeds
from mechclust.training import TrainConfig
from tasks import InputError, SkillSuite
from tasks.settings import (
    MAX_COUNT,
    AtLeast,
    AtMost,
    Count,
    CountOrZero,
    Positive,
    Seed,
    Several,
    ShareBetween,
    check_settings,
)

FROZEN = ("embed", "pos_embed", "unembed", "ln_final")  # only blocks change
FRESH = 1  # tunings besides the null's, so that one pair has a model that no threshold has seen


@dataclass(frozen=True)
class PlantedConfig:
    """Settings of the study of planted layers.

    Args:
        seeds: one base model, and the models tuned from it, per seed. For a given model, one draw of the planted noise.
        model: a Hugging Face checkpoint, by name or folder, to plant in instead of the miniature, with noise only.
        prompts: prompts for ``model``, a file (JSONL, CSV, parquet) with ``prompt`` and ``task``. The first
            ``suite.n_eval`` of each task are used.
        suite: the skills of the miniature. Its ``seed``, ``stream``, ``skills`` and ``stream_seed`` are set by the run.
        n_measured: number of its seen skills whose prompts are used for measuring. From 4 on, layer groups are tested.
        n_layers: transformer blocks of the miniature.
        d_model: width of the miniature.
        n_heads: attention heads of the miniature.
        init_std: standard deviation of its initial weights, or None for 1 / sqrt(d_model).
        pretraining: pre-training of the base model, on the generic stream.
        tuning: tuning of the models from the base, on all seen skills. Its ``freeze`` and ``layer_decay`` stay as they
            are: each model has its layers and rates.
        layer_decay: factor on the learning rate from each block to the one below, for the model with rates by layer.
        spans: the first and last layer of each plant, from 1. By default, three spans spread over the depth.
        noise: relative norms of the noise in planted weights, the smallest first.
        null_noise: relative norm of noise that does not count as a change, about as much as rounding to bfloat16.
        n_null: number of models tuned identically except for data order, and of models with such noise in all layers.
            Their pairs are the nulls: the former for trained changes, the latter for planted noise.
        margin: a layer is called changed if a measure exceeds this times its largest value among the null's pairs.
        least_restored: a layer is called changed by patching if patching it restores this share of the loss difference.
        n_few: prompts per task for the condition with few prompts.
        n_patched: prompts per task for patching.
        n_control_spans: number of spans in which a model of several tasks and its single-task controls are trained.
            With 0, MOSSA's readings are not tested.
        control_steps: steps of these controls, otherwise tuned like the others. The model of several tasks takes this
            many for each of its ``n_measured`` tasks.
        gain_margin: margin by which it must be more similar to its controls than the base is, as in
            ``group_boundaries``.
        device: where to train and measure, such as ``cpu`` or ``cuda``.
        test_findings: whether this size can test the findings.
    """

    seeds: tuple[Seed, ...] = tuple(range(30, 40))
    model: str | None = None
    prompts: str | None = None
    suite: SkillSuite = SkillSuite(n_eval=640)
    n_measured: Several = 4
    n_layers: Several = 8
    d_model: Count = 64
    n_heads: Count = 4
    init_std: Positive | None = None
    pretraining: TrainConfig = TrainConfig(steps=1000, batch_size=64, lr=2e-3, warmup=50)
    tuning: TrainConfig = TrainConfig(steps=240, batch_size=32, lr=2e-3, warmup=20, freeze=FROZEN)
    layer_decay: ShareBetween = 0.5
    spans: tuple[Span, ...] = ()
    noise: tuple[Positive, ...] = (0.03, 0.3)
    null_noise: Positive = 0.002
    n_null: Several = 3
    margin: Annotated[float, AtLeast(1)] = 2.0
    least_restored: Positive = 0.01
    n_few: Annotated[int, AtLeast(4), AtMost(MAX_COUNT)] = 32
    n_patched: Count = 32
    n_control_spans: CountOrZero = 2
    control_steps: Count = 480
    gain_margin: Positive = 0.02
    device: str = "cpu"
    test_findings: bool = True

    def __post_init__(self) -> None:
        check_settings(self)
        check_seeds(self.seeds)
        check_left_out("suite", self.suite, ("seed", "stream", "skills", "stream_seed"), "each run")
        if self.model is None and self.prompts is not None:
            raise InputError("prompts is given and model is not; give both, or neither for the miniature")
        if self.model is not None and self.prompts is None:
            raise InputError("model is given and prompts is not; give both, or neither for the miniature")
        if self.suite.n_eval <= self.n_few:
            raise InputError(f"n_few is {self.n_few}, and suite.n_eval {self.suite.n_eval}; expected fewer than these")
        if self.n_measured > len(self.suite.seen):
            raise InputError(
                f"n_measured is {self.n_measured}, of {len(self.suite.seen)} seen skills; expected no more than these"
            )
        if not self.noise or list(self.noise) != sorted(set(self.noise)):
            norms = ", ".join(f"{norm:g}" for norm in self.noise) or "empty"
            raise InputError(f"noise is {norms}; expected relative norms above 0, the smallest first")
        if len(set(map(noisy_column, self.noise))) < len(self.noise):
            raise InputError("two of noise have the same first six digits; expected norms that differ in these")
        spans = [tuple(span) for span in self.spans]
        if spans != sorted(set(spans)):
            shown = ", ".join(f"{first} to {last}" for first, last in spans)
            raise InputError(f"spans has {shown}; expected different spans, the lowest first")
        _check_tuning(self)
        if self.model is None:
            spans_of(self, self.n_layers)


def _check_tuning(config: PlantedConfig) -> None:
    """Refuse settings of the tuning that the study sets for each model, and trainings within the warm-up."""
    if set(config.tuning.freeze) != set(FROZEN):
        frozen = ", ".join(config.tuning.freeze) or "empty"
        raise InputError(
            f"tuning.freeze is {frozen}; expected {', '.join(FROZEN)}, since the study sets which blocks are trained"
        )
    if config.tuning.layer_decay != 1:
        raise InputError(
            f"tuning.layer_decay is {config.tuning.layer_decay:g}; expected 1, since only models with rates by layer "
            "have others, by layer_decay"
        )
    check_past_warmup("pretraining", config.pretraining.warmup, **{"pretraining.steps": config.pretraining.steps})
    warmup = config.tuning.warmup
    check_past_warmup("tuning", warmup, **{"tuning.steps": config.tuning.steps})
    if config.n_control_spans:
        check_past_warmup("tuning", warmup, control_steps=config.control_steps)


def spans_of(config: PlantedConfig, n_layers: int) -> list[Span]:
    """Return the spans of plants in a model with this many layers.

    Raises:
        InputError: for a span that is not in the model, or that covers all of it.
    """
    spans = list(config.spans)
    if not spans:
        width = max(1, n_layers // 4)
        starts = [max(1, (n_layers * quarter + 2) // 4) for quarter in (1, 2, 3)]
        spans = list(dict.fromkeys((start, min(start + width - 1, n_layers)) for start in starts))
    for first, last in spans:
        if not 1 <= first <= last <= n_layers or (first, last) == (1, n_layers):
            raise InputError(
                f"spans has {first} to {last}, and the model layers 1 to {n_layers}; expected a first and a last layer "
                "among these, and not all of them"
            )
    return spans


@dataclass(frozen=True)
class Made:
    """A model: a trained one, either unchanged, with noise in some of its layers, or with its weights rounded.

    Attributes:
        source: name of the trained model.
        noise: relative norm of the noise.
        layers: layers with noise, from 1. Empty means all layers.
        draw: number of the noise draw.
        rounded: whether weights are rounded to bfloat16.
    """

    source: str = "base"
    noise: float = 0.0
    layers: tuple[int, ...] = ()
    draw: int = 0
    rounded: bool = False


@dataclass(frozen=True)
class Pair:
    """Two models that are compared, and the truth about them.

    Attributes:
        column: the kind of comparison, a column in tables.
        base: one model.
        tuned: the other.
        truth: first and last changed layer, or ``None`` if there is none.
        split: split of the prompts.
        number: distinguishes pairs within a column.
        null: the column of pairs that gives its thresholds.
    """

    column: str
    base: Made
    tuned: Made
    truth: Span | None = None
    split: str = "test"
    number: int = 0
    null: str = ""

    @property
    def name(self) -> str:
        """Its name in file names."""
        parts: list[str | int] = [self.column.replace(" ", "-")]
        if self.truth is not None:
            parts += self.truth
        if self.column in NULLS:
            parts.append(self.number)
        return "-".join(map(str, parts))


ORDER_NULL = "null"
NOISE_NULL = "null of noise"
NULLS = (ORDER_NULL, NOISE_NULL)
TRAINED = "trained"
ALL = "all layers"
NONE = "no change"
ORDER = "other order"
TWICE_STEPS = "twice the steps"
RATES = "rates by layer"
ROUNDED = "bfloat16"
FALSE = (NONE, ORDER, TWICE_STEPS, ROUNDED)  # columns in which every call is false


def noisy_column(noise: float) -> str:
    """Return the column of plants with noise of this norm."""
    return f"noise {noise:g}"


def planted_columns(config: PlantedConfig) -> list[str]:
    """Return the columns with a first and a last layer to find."""
    trained = [TRAINED] if config.model is None else []
    return [*trained, *map(noisy_column, config.noise)]


def main_column(config: PlantedConfig) -> str:
    """Return the column that the findings are about: trained changes, or, in a given model, the largest noise."""
    return TRAINED if config.model is None else noisy_column(config.noise[-1])


def false_columns(config: PlantedConfig) -> list[str]:
    """Return the columns in which no layer was singled out."""
    return [column for column in FALSE if config.model is None or column != TWICE_STEPS]


def whole_columns(config: PlantedConfig) -> list[str]:
    """Return the columns in which all layers were changed."""
    return [ALL, RATES] if config.model is None else [ALL]


def pairs_of(config: PlantedConfig, n_layers: int) -> list[Pair]:
    """Return every comparison of a seed."""
    is_miniature = config.model is None
    orders = [Made(f"order-{k}") for k in range(config.n_null + FRESH)]
    noises = [Made(noise=config.null_noise, draw=k) for k in range(config.n_null + FRESH)]
    pairs = _null_pairs(config, ORDER_NULL, orders) if is_miniature else []
    pairs += _null_pairs(config, NOISE_NULL, noises)
    for span in spans_of(config, n_layers):
        pairs += _planted_pairs(config, span)
    return pairs + (_miniature_pairs(orders, n_layers) if is_miniature else _given_pairs(config, noises, n_layers))


def _null_pairs(config: PlantedConfig, column: str, models: Sequence[Made]) -> list[Pair]:
    pairs = combinations(models[: config.n_null], 2)
    return [Pair(column, base, tuned, number=i) for i, (base, tuned) in enumerate(pairs)]


def _planted_pairs(config: PlantedConfig, span: Span) -> list[Pair]:
    """Return the pairs in which these layers were changed, each against the base."""
    pairs = []
    if config.model is None:
        pairs.append(Pair(TRAINED, Made(), Made(trained_name(span)), span, null=ORDER_NULL))
    first, last = span
    for k, noise in enumerate(config.noise):
        draw = config.n_null + FRESH + 100 * first + k
        planted = Made(noise=noise, layers=tuple(range(first, last + 1)), draw=draw)
        pairs.append(Pair(noisy_column(noise), Made(), planted, span, null=NOISE_NULL))
    return pairs


def _miniature_pairs(orders: Sequence[Made], n_layers: int) -> list[Pair]:
    """Return the pairs of trained models in which no layer was singled out."""
    base = Made()
    tuned = orders[0]
    everywhere = (1, n_layers)
    return [
        Pair(ALL, base, tuned, everywhere, null=ORDER_NULL),
        Pair(NONE, base, base, split="validation", null=ORDER_NULL),
        Pair(ORDER, tuned, orders[-1], null=ORDER_NULL),
        Pair(TWICE_STEPS, tuned, Made("steps"), null=ORDER_NULL),
        Pair(RATES, base, Made("rates"), everywhere, null=ORDER_NULL),
        Pair(ROUNDED, tuned, replace(tuned, rounded=True), null=NOISE_NULL),
    ]


def _given_pairs(config: PlantedConfig, noises: Sequence[Made], n_layers: int) -> list[Pair]:
    """Return the pairs of a given model in which no layer was singled out."""
    base = Made()
    everywhere = Made(noise=config.noise[-1], draw=config.n_null + FRESH)
    return [
        Pair(ALL, base, everywhere, (1, n_layers), null=NOISE_NULL),
        Pair(NONE, base, base, null=NOISE_NULL),
        Pair(ORDER, noises[0], noises[-1], null=NOISE_NULL),
        Pair(ROUNDED, base, replace(base, rounded=True), null=NOISE_NULL),
    ]


def trained_name(span: Span) -> str:
    """Return the name of the model in which only these layers were trained."""
    return f"trained-{span[0]}-{span[1]}"


def suite_of(config: PlantedConfig, seed: int) -> SkillSuite:
    """Return the skills of one seed."""
    return replace(config.suite, seed=seed)


def measured_skills(config: PlantedConfig) -> tuple[str, ...]:
    """Return the seen skills that are measured, spread over operations: E is trained on all, each control on one."""
    seen = config.suite.seen
    return tuple(seen[i * len(seen) // config.n_measured] for i in range(config.n_measured))


def model_path(out: Path, seed: int, name: str) -> Path:
    """Return the path of a trained model."""
    return out / "models" / f"seed{seed}" / f"{name}.safetensors"


def result_path(out: Path, seed: int, name: str) -> Path:
    """Return the path of a measurement."""
    return out / "results" / f"seed{seed}" / f"{name}.safetensors"
