"""Read layers from three models' curves as MOSSA does, and score how far they are from the planted ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from mechclust.evidence.intervals import mean_with_interval
from mechclust.mossa.crossovers import crossovers
from mechclust.mossa.layer_groups import group_boundaries
from mechclust.mossa.nan_statistics import nan_quantile_over_tasks
from mechclust.studies.kept import load_required
from mechclust.studies.planted_layers.alike import CONTROL_VIEWS
from mechclust.studies.planted_layers.config import PlantedConfig, result_path
from mechclust.studies.planted_layers.measure import ALL, SIMILARITY_MEASURES
from mechclust.studies.planted_layers.results import PROMPTS, notes_of
from mechclust.studies.planted_layers.rows import RESIDUAL
from mechclust.studies.planted_layers.score import Span, chance_error, layer_error, score_curves
from mechclust.studies.planted_layers.trios import CROSSED, SAME, Trio, base_name, control_sets, trios_of

if TYPE_CHECKING:
    import pandas as pd

_KNOWN_ACCURACY = 0.9  # from which on the base knows a skill
CONTROL_MEASURES = tuple(SIMILARITY_MEASURES)
_SHARES = ("hit", "false", "found", "top", "transition off")  # scores that are shares of layers or trios
OF_GROUPS = ("shared", "transition", "by spread", "shared layers", "transition off")  # scores of layer groups
FIRST_LAYER_SCORES = ("onset", "crossing", "shared")
LAST_LAYER_SCORES = ("end", "transition", "by spread")

Similarities = Float[np.ndarray, "prompts view measure layer"]
Accuracies = Mapping[str, float]  # by skill


@dataclass(frozen=True)
class TrioReading:
    """Measurements of a trio.

    Attributes:
        trio: the trio.
        base: similarity of the base to the controls, median over tasks.
        tuned: similarity of E to the controls, median over tasks.
        spread: interquartile range over tasks for E.
        dims: dimensions for 99% of the variance of E's residual stream.
    """

    trio: Trio
    base: Similarities
    tuned: Similarities
    spread: Similarities
    dims: Float[np.ndarray, "prompts layer"]

    @property
    def gain(self) -> Similarities:
        """The similarity of E minus the base's."""
        return self.tuned - self.base

    @property
    def n_layers(self) -> int:
        """The number of layers."""
        return int(self.base.shape[-1])


@dataclass(frozen=True)
class SeedReadings:
    """The readings of a seed.

    Attributes:
        readings: one of each trio.
        accuracy: by model and skill. A set of controls counts as one model.
        chance: by skill, the accuracy without it.
        notes: why a value is NaN.
    """

    readings: tuple[TrioReading, ...]
    accuracy: Mapping[str, Accuracies]
    chance: Accuracies
    notes: tuple[str, ...] = ()

    def of(self, column: str) -> list[TrioReading]:
        """Return the readings of a column."""
        return [reading for reading in self.readings if reading.trio.column == column]


# ---- scores ----


def reading_scores(reading: TrioReading, margin: float) -> dict[str, Float[np.ndarray, "prompts view measure"]]:
    """Score how far the readings of a trio are from the layers in which E was trained, see ``_score_curves``."""
    dims = reading.dims[:, None, None]
    return _score_curves(reading.trio.truth, reading.base, reading.tuned, reading.spread, dims, margin)


def _score_curves(
    span: Span,
    base: Float[np.ndarray, "*curve layer"],
    tuned: Float[np.ndarray, "*curve layer"],
    spread: Float[np.ndarray, "*curve layer"],
    dims: Float[np.ndarray, "... layer"],
    margin: float,
) -> dict[str, Float[np.ndarray, "*curve"]]:
    """Score how far readings are from the layers in which E was trained, or give NaN if the gain is undefined.

    By the gain of the medians over tasks, with a layer called if it is above ``margin``: those of ``score_curves``.
    ``crossing`` is the error of the first layer from which the gain is above 0, with at most one exception. The others
    are by ``group_boundaries``. ``shared`` is the error of the first layer after the shared ones. ``transition`` is the
    error of the transition's last layer, and ``by spread`` its error without dimensions. ``transition off`` is whether
    there is one that ends elsewhere. ``shared layers`` is their number. Anything not found counts as a random layer.
    """
    first, last = span
    n_layers = base.shape[-1]
    gain = tuned - base
    shared, transition = group_boundaries(base, tuned, spread, dims, margin=margin)
    _, by_spread = group_boundaries(base, tuned, spread, margin=margin)
    of_groups = {
        "crossing": layer_error(np.asarray(crossovers(base, tuned)), first, n_layers),
        "shared": layer_error(shared + 1, first, n_layers),
        "transition": layer_error(np.where(transition > shared, transition, 0), last, n_layers),
        "by spread": layer_error(np.where(by_spread > shared, by_spread, 0), last, n_layers),
        "shared layers": shared,
        "transition off": (transition > shared) & (transition != last),
    }
    known = np.isfinite(gain).all(axis=-1)
    scores = score_curves(gain, np.full_like(gain, margin), span)
    return scores | {name: np.where(known, values, math.nan) for name, values in of_groups.items()}


def read_scores(
    runs: Sequence[SeedReadings], column: str, margin: float
) -> dict[str, Float[np.ndarray, "seed prompts view measure"]]:
    """Return every score, mean over the trios of a column. Without trios, it has no seeds."""
    by_trio = []
    for readings in zip(*[run.of(column) for run in runs], strict=True):
        base = np.stack([reading.base for reading in readings])
        tuned = np.stack([reading.tuned for reading in readings])
        spread = np.stack([reading.spread for reading in readings])
        dims = np.stack([reading.dims[:, None, None] for reading in readings])
        by_trio.append(_score_curves(readings[0].trio.truth, base, tuned, spread, dims, margin))
    if by_trio:
        return {name: np.mean([scores[name] for scores in by_trio], axis=0) for name in by_trio[0]}
    example = reading_scores(runs[0].readings[0], margin)
    return {name: np.empty((0, *values.shape)) for name, values in example.items()}


def curve_place(view: str, measure: str, prompts: str = ALL) -> tuple[int, int, int]:
    """Return the indices of a curve's prompts, view and measure."""
    return PROMPTS.index(prompts), CONTROL_VIEWS.index(view), CONTROL_MEASURES.index(measure)


def reading_chance(readings: Sequence[TrioReading], name: str) -> float:
    """Return the expected error of a layer drawn at random, or NaN for scores that are not errors."""
    if name == "auc":
        return 0.5
    if name not in (*FIRST_LAYER_SCORES, *LAST_LAYER_SCORES):
        return math.nan
    end = int(name in LAST_LAYER_SCORES)
    return float(np.mean([chance_error(reading.trio.truth[end], reading.n_layers) for reading in readings]))


def least_learnt(runs: Sequence[SeedReadings]) -> tuple[float, str]:
    """Return by how much the model that learnt least exceeds both the base and chance, mean over seeds, and its name.

    Skills at which the base is nearly perfect are left out. NaN if it is at all of them.
    """
    gains: dict[str, float] = {}
    for skill in runs[0].chance:
        base = np.array([run.accuracy["base"][skill] for run in runs])
        chance = np.array([run.chance[skill] for run in runs])
        if base.mean() >= _KNOWN_ACCURACY:
            continue
        for name in runs[0].accuracy:
            if name != "base":
                accuracy = np.array([run.accuracy[name][skill] for run in runs])
                gains[f"{name} on {skill}"] = float(np.mean(accuracy - np.maximum(base, chance)))
    if not gains:
        return math.nan, ""
    least = min(gains, key=gains.__getitem__)
    return gains[least], least


def no_gain_below(runs: Sequence[SeedReadings]) -> list[float]:
    """Return, for each seed, the largest gain below the first layer by which both E and its controls have changed.

    0 if there are no such layers, NaN if all their gains are undefined.
    """
    largest = []
    for run in runs:
        gains: list[float] = []
        n_below = 0
        for column in (SAME, *CROSSED):
            for reading in run.of(column):
                below = reading.gain[..., : reading.trio.shared - 1]
                gains += below[np.isfinite(below)].tolist()
                n_below += below.size
        largest.append(max(gains, default=math.nan if n_below else 0.0))
    return largest


def in_order(runs: Sequence[SeedReadings], order: Int[np.ndarray, "layer"]) -> list[SeedReadings]:
    """Return the readings with their layers in another order, common to all of them."""
    return [replace(run, readings=tuple(_in_order(reading, order) for reading in run.readings)) for run in runs]


def _in_order(reading: TrioReading, order: Int[np.ndarray, "layer"]) -> TrioReading:
    arrays = {name: getattr(reading, name)[..., order] for name in ("base", "tuned", "spread", "dims")}
    return replace(reading, **arrays)


# ---- tables ----


def reading_table(
    config: PlantedConfig, runs: Sequence[SeedReadings], name: str, columns: Sequence[str]
) -> pd.DataFrame:
    """Return a row per measure and a column per condition: the mean of a score over seeds, with its 95% interval."""
    import pandas as pd

    views = (RESIDUAL,) if name in OF_GROUPS else CONTROL_VIEWS
    rows = [(view, measure) for view in views for measure in CONTROL_MEASURES]
    table = pd.DataFrame([*rows, ("chance", "a random layer")], columns=["measured on", "measure"])
    has_chance = False
    for column in columns:
        readings = runs[0].of(column)
        if not readings:
            continue
        scores = read_scores(runs, column, config.gain_margin)[name]
        chance = reading_chance(readings, name)
        has_chance = has_chance or math.isfinite(chance)
        for prompts in PROMPTS:
            cells = [mean_with_interval(scores[:, *curve_place(*row, prompts)], share=name in _SHARES) for row in rows]
            table[column if prompts == ALL else f"{column}, few prompts"] = [*cells, f"{chance:.2f}"]
    return table if has_chance else table[:-1]


def accuracy_table(runs: Sequence[SeedReadings]) -> pd.DataFrame:
    """Return a row per model: its share of correct answers for each measured skill, mean over seeds. Chance is last."""
    import pandas as pd

    skills = list(runs[0].chance)
    rows = []
    for name in runs[0].accuracy:
        cells = [
            mean_with_interval(np.array([run.accuracy[name][skill] for run in runs]), share=True) for skill in skills
        ]
        rows.append([name, *cells])
    chances = [mean_with_interval(np.array([run.chance[skill] for run in runs])) for skill in skills]
    rows.append(["chance: without the skill", *chances])
    return pd.DataFrame(rows, columns=["model", *skills])


# ---- files ----


def load_readings(config: PlantedConfig, out: Path, seed: int) -> SeedReadings:
    """Read the measurements of a seed's comparison with controls.

    Raises:
        InputError: naming the measurement that is missing.
    """
    trios = trios_of(config)
    controls = control_sets(config)
    names = dict.fromkeys([*map(base_name, controls), *(trio.name for trio in trios)])
    results = {name: load_required(out, result_path(out, seed, name)) for name in names}
    readings = []
    for trio in trios:
        base = results[base_name(trio.controls)]["similarity"].numpy()
        tuned = results[trio.name]["similarity"].numpy()
        spread = nan_quantile_over_tasks(tuned, 0.75) - nan_quantile_over_tasks(tuned, 0.25)
        dims = results[trio.name]["n_dims"].numpy()
        readings.append(
            TrioReading(trio, nan_quantile_over_tasks(base, 0.5), nan_quantile_over_tasks(tuned, 0.5), spread, dims)
        )
    accuracy: dict[str, Accuracies] = {}
    chance: dict[str, float] = {}
    for model in dict.fromkeys(["base", *(trio.tuned for trio in trios), *controls]):
        answers = load_required(out, result_path(out, seed, f"learnt-{model}"))
        skills = [answer.partition(".")[2] for answer in answers.coords["answer"]]
        title = f"controls {model}" if model in controls else model
        accuracy[title] = dict(zip(skills, answers["accuracy"].tolist(), strict=True))
        chance |= dict(zip(skills, answers["chance"].tolist(), strict=True))
    return SeedReadings(tuple(readings), accuracy, chance, tuple(notes_of(seed, results)))
