"""Read the measurements of a run of planted layers, and score how well each measure found the planted ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from mechclust.evidence.intervals import mean_with_interval
from mechclust.mossa.task_curves import ByLayer
from mechclust.studies.kept import load_required
from mechclust.studies.planted_layers.config import (
    ALL,
    NOISE_NULL,
    NULLS,
    RATES,
    ROUNDED,
    TWICE_STEPS,
    Made,
    Pair,
    PlantedConfig,
    main_column,
    pairs_of,
    planted_columns,
    result_path,
)
from mechclust.studies.planted_layers.measure import ALL as ALL_PROMPTS
from mechclust.studies.planted_layers.measure import FEW, MEASURES
from mechclust.studies.planted_layers.rows import RESIDUAL, VIEWS
from mechclust.studies.planted_layers.score import chance_error, change_threshold, rise_by_layer, score_curves
from probes import ProbeResult

if TYPE_CHECKING:
    import pandas as pd

RISE = "rise of residual"
PATCHING = "patching"
ROW_VIEWS = (RESIDUAL, RISE, *VIEWS[1:])
PROMPTS = (ALL_PROMPTS, FEW)
SHARES = ("hit", "false", "found", "top", "upper")  # scores that are shares of layers or models

ByRow = Float[np.ndarray, "prompts view measure layer"]  # the views are ROW_VIEWS
BySeed = Float[np.ndarray, "seed"]
_Scores = dict[str, Float[np.ndarray, "*curve"]]


class Row(NamedTuple):
    """A row of the table: a view and a measure."""

    view: str
    measure: str


ROWS = tuple(Row(view, measure) for view in ROW_VIEWS for measure in MEASURES)
PATCHED = Row(PATCHING, "")
_CHANCE_ROW = Row("chance", "a random layer")


@dataclass(frozen=True)
class SeedResults:
    """Measurements of one seed.

    Attributes:
        pairs: every comparison except between nulls.
        curves: medians over tasks, by name of the pair.
        thresholds: values above which a layer is called changed, by null, from its pairs.
        restored: share of the loss difference that patching restores, by name of the pair.
        n: prompts of the task with the fewest.
        notes: why a value is NaN.
    """

    pairs: tuple[Pair, ...]
    curves: Mapping[str, ByRow]
    thresholds: Mapping[str, ByRow]
    restored: Mapping[str, ByLayer]
    n: int = 0
    notes: tuple[str, ...] = ()

    @property
    def n_layers(self) -> int:
        """The number of layers."""
        return int(next(iter(self.thresholds.values())).shape[-1])

    def of(self, column: str) -> list[Pair]:
        """Return the pairs of a column."""
        return [pair for pair in self.pairs if pair.column == column]

    def curve(self, pair: Pair, row: Row) -> ByLayer:
        """Return one measure by layer, on all prompts."""
        return self.curves[pair.name][PROMPTS.index(ALL_PROMPTS), *_place_of(row)]

    def threshold(self, pair: Pair, row: Row) -> ByLayer:
        """Return the value above which a layer is called changed, by layer, on all prompts."""
        return self.thresholds[pair.null][PROMPTS.index(ALL_PROMPTS), *_place_of(row)]


def _place_of(row: Row) -> tuple[int, int]:
    """Return the indices of a row's view and measure."""
    return ROW_VIEWS.index(row.view), MEASURES.index(row.measure)


# ---- scores ----


def _all_scores_of(
    runs: Sequence[SeedResults], column: str, measured_on: str | None = None
) -> dict[str, Float[np.ndarray, "seed prompts view measure"]]:
    """Return every score, mean over the pairs of a column.

    Args:
        runs: the seeds.
        column: with the layers to find.
        measured_on: a column of one pair, whose curves are scored as if the layers of ``column`` had been planted in
            it: a control. By default ``column`` itself.
    """
    by_pair = []
    for planted in runs[0].of(column):
        pair = planted
        if measured_on not in (None, column):
            (pair,) = runs[0].of(measured_on)
        curves = np.stack([run.curves[pair.name] for run in runs])
        bars = np.stack([run.thresholds[pair.null] for run in runs])
        by_pair.append(score_curves(curves, bars, planted.truth))
    return _means(by_pair)


def scores_of(
    runs: Sequence[SeedResults],
    column: str,
    row: Row,
    prompts: str = ALL_PROMPTS,
    *,
    measured_on: str | None = None,
) -> dict[str, BySeed]:
    """Return the scores of one view and measure. Other arguments as ``_all_scores_of``."""
    view, measure = _place_of(row)
    scores = _all_scores_of(runs, column, measured_on)
    return {name: values[:, PROMPTS.index(prompts), view, measure] for name, values in scores.items()}


def _patching_scores(config: PlantedConfig, runs: Sequence[SeedResults], column: str) -> dict[str, BySeed]:
    """Return the scores of the causal reference: how much more loss is restored at a layer than at the one below."""
    by_pair = []
    for pair in runs[0].of(column):
        curves = np.stack([np.abs(rise_by_layer(run.restored[pair.name])) for run in runs])
        by_pair.append(score_curves(curves, np.full_like(curves, config.least_restored), pair.truth))
    return _means(by_pair)


def _means(by_pair: Sequence[_Scores]) -> _Scores:
    """Return means over the pairs of a column, which all seeds have in common."""
    return {name: np.mean([scores[name] for scores in by_pair], axis=0) for name in by_pair[0]}


def scores_by_row(
    config: PlantedConfig, runs: Sequence[SeedResults], column: str, name: str, prompts: str = ALL_PROMPTS
) -> dict[Row, BySeed]:
    """Return a score of a column for every view and measure, and for patching if a loss was patched."""
    scores = _all_scores_of(runs, column)[name][:, PROMPTS.index(prompts)]
    by_row: dict[Row, BySeed] = {row: scores[:, *_place_of(row)] for row in ROWS}
    if prompts == ALL_PROMPTS and column in planted_columns(config):
        by_row[PATCHED] = _patching_scores(config, runs, column)[name]
    return by_row


def chance_of(column: str, name: str, run: SeedResults) -> float:
    """Return the expected score of layers chosen at random, or NaN if it depends on how many are chosen."""
    if name == "auc":
        return 0.5
    spans = [pair.truth for pair in run.of(column) if pair.truth is not None]
    if name not in ("onset", "end") or not spans:
        return math.nan
    return float(np.mean([chance_error(span[name == "end"], run.n_layers) for span in spans]))


# ---- tables ----


def summary_table(config: PlantedConfig, runs: Sequence[SeedResults]) -> pd.DataFrame:
    """Return a row per measure: how well it finds the planted layers, and how many it calls if none stands out.

    The planted layers are the trained ones or, in a given model, the ones with the most noise. Cells are means over
    seeds with their 95% interval.
    """
    import pandas as pd

    main = main_column(config)
    scores = {
        "area under the curve": ("auc", main, ALL_PROMPTS),
        "first layer: error": ("onset", main, ALL_PROMPTS),
        "last layer: error": ("end", main, ALL_PROMPTS),
        "changed layers called": ("hit", main, ALL_PROMPTS),
        "changed layers called, few prompts": ("hit", main, FEW),
        "other layers called": ("false", main, ALL_PROMPTS),
        "called: twice the steps": ("false", TWICE_STEPS, ALL_PROMPTS),
        "called: bfloat16": ("false", ROUNDED, ALL_PROMPTS),
        "called: all layers changed": ("hit", ALL, ALL_PROMPTS),
        "called: rates by layer": ("hit", RATES, ALL_PROMPTS),
    }
    cells: dict[str, dict[Row, str]] = {}
    for head, (name, column, prompts) in scores.items():
        if not runs[0].of(column):
            continue
        values = scores_by_row(config, runs, column, name, prompts)
        cells[head] = {row: mean_with_interval(seeds, share=name in SHARES) for row, seeds in values.items()}
        chance = chance_of(column, name, runs[0])
        if column == main and math.isfinite(chance):
            cells[head][_CHANCE_ROW] = f"{chance:.2f}"
    rows = []
    for row in (*ROWS, PATCHED, _CHANCE_ROW):
        rows.append([row.view, row.measure or "loss restored", *(column.get(row, "") for column in cells.values())])
    return pd.DataFrame(rows, columns=["measured on", "measure", *cells])


# ---- files ----


def load_results(config: PlantedConfig, out: Path, seed: int) -> SeedResults:
    """Read the measurements of a seed.

    Raises:
        InputError: naming the measurement that is missing.
    """
    first = _change(out, seed, Pair(NOISE_NULL, Made(), Made()))
    pairs = pairs_of(config, len(first.coords["layer"]))
    changes = {pair.name: _change(out, seed, pair) for pair in pairs}
    patched = {
        pair.name: load_required(out, result_path(out, seed, f"{pair.name}.patched"))
        for pair in pairs
        if pair.truth is not None
    }
    curves = {name: _with_rise(np.median(result["change"].numpy(), axis=3)) for name, result in changes.items()}
    thresholds = {}
    for null in NULLS:
        of_null = [curves[pair.name] for pair in pairs if pair.column == null]
        if of_null:
            thresholds[null] = change_threshold(np.stack(of_null), config.margin)
    return SeedResults(
        pairs=tuple(pair for pair in pairs if pair.column not in NULLS),
        curves=curves,
        thresholds=thresholds,
        restored={name: result["restored"].numpy() for name, result in patched.items()},
        n=min(int(result["n"][PROMPTS.index(ALL_PROMPTS)].min()) for result in changes.values()),
        notes=(*notes_of(seed, changes), *notes_of(seed, patched)),
    )


def _change(out: Path, seed: int, pair: Pair) -> ProbeResult:
    return load_required(out, result_path(out, seed, f"{pair.name}.change"))


def notes_of(seed: int, results: Mapping[str, ProbeResult]) -> list[str]:
    """Return the notes of results by name, each with its seed and name."""
    return [f"seed {seed}, {name}: {note}" for name, result in results.items() for note in result.notes]


def _with_rise(curves: Float[np.ndarray, "prompts _ measure layer"]) -> ByRow:
    """Return the curves with the rise of the residual stream's curve after that curve."""
    residual = curves[:, :1]
    return np.concatenate([residual, rise_by_layer(residual), curves[:, 1:]], axis=1)
