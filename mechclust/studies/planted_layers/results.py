"""What a run of planted layers measured, seed by seed, and how well each measure found what was planted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from mechclust.evidence.intervals import interval_over_seeds
from mechclust.studies.kept import check_there
from mechclust.studies.planted_layers.config import (
    ALL,
    NOISE_NULL,
    NULLS,
    RATES,
    ROUNDED,
    STEPS,
    TRAINED,
    Made,
    Pair,
    PlantedConfig,
    main_column,
    pairs_of,
    planted_columns,
    result_path,
)
from mechclust.studies.planted_layers.measure import ALL as ALL_PROMPTS
from mechclust.studies.planted_layers.measure import FEW, MEASURES, RESIDUAL, VIEWS
from mechclust.studies.planted_layers.score import (
    Span,
    auc,
    chance_error,
    errors,
    rise,
    shares,
    threshold,
    truth_of,
    upper_call,
)
from probes import ProbeResult, load_result

if TYPE_CHECKING:
    import pandas as pd

RISE = "rise of residual"
PATCHING = "patching"
ROW_VIEWS = (RESIDUAL, RISE, *VIEWS[1:])
PROMPTS = (ALL_PROMPTS, FEW)
SCORES = ("auc", "onset", "end", "hit", "false", "found", "top", "upper")
SHARES = ("hit", "false", "found", "top", "upper")  # of layers or models


class Row(NamedTuple):
    """A row of the table: a view and a measure."""

    view: str
    measure: str

    def __str__(self) -> str:
        return f"{self.measure}, {self.view}" if self.measure else self.view


ROWS = tuple(Row(view, measure) for view in ROW_VIEWS for measure in MEASURES)
PATCHED = Row(PATCHING, "")
_CHANCE = Row("chance", "a random layer")


@dataclass(frozen=True)
class SeedResults:
    """What one seed measured.

    Attributes:
        pairs: every comparison except those of the nulls.
        curves: by name of the pair, ``[prompts view measure layer]``, medians over tasks; the views are ``ROW_VIEWS``.
        thresholds: by null, ``[prompts view measure layer]``, from its pairs.
        restored: by name of the pair, ``[layer]`` share of the loss difference that patching restores.
        losses: by name of the pair, of the base and the other model.
        n: prompts of the task with the fewest.
        notes: why a value is NaN.
    """

    pairs: tuple[Pair, ...]
    curves: Mapping[str, np.ndarray]
    thresholds: Mapping[str, np.ndarray]
    restored: Mapping[str, np.ndarray]
    losses: Mapping[str, tuple[float, float]]
    n: int = 0
    notes: tuple[str, ...] = ()

    @property
    def n_layers(self) -> int:
        return int(next(iter(self.thresholds.values())).shape[-1])

    def of(self, column: str) -> list[Pair]:
        """The pairs of a column."""
        return [pair for pair in self.pairs if pair.column == column]

    def curve(self, pair: Pair, row: Row, prompts: str = ALL_PROMPTS) -> np.ndarray:
        """``[layer]`` of one measure."""
        if row == PATCHED:
            return np.abs(rise(self.restored[pair.name]))
        return self.curves[pair.name][_place(row, prompts)]  # type: ignore[no-any-return]

    def threshold(self, pair: Pair, row: Row, prompts: str = ALL_PROMPTS, least_restored: float = 0.0) -> np.ndarray:
        """``[layer]`` above which a layer is called changed."""
        if row == PATCHED:
            return np.full(self.n_layers, least_restored)
        return self.thresholds[pair.null][_place(row, prompts)]  # type: ignore[no-any-return]


def place_of(row: Row) -> tuple[int, int]:
    """The index of a row in curves ``[prompts view measure layer]``."""
    return ROW_VIEWS.index(row.view), MEASURES.index(row.measure)


def _place(row: Row, prompts: str) -> tuple[int, int, int]:
    return PROMPTS.index(prompts), *place_of(row)


def score(
    curve: Float[np.ndarray, "*curve layer"], bar: Float[np.ndarray, "*curve layer"], truth: Span | None
) -> dict[str, Float[np.ndarray, "*curve"]]:
    """Score how well curves find the layers that were planted; NaN if a score is undefined.

    ``auc``, ``onset`` and ``end`` (errors in layers), ``hit`` (share of the changed layers that are called), ``false``
    (share of the others that are called), ``found`` (whether any layer is called), ``top`` (whether the last of the
    model is), ``upper`` (whether those called are the upper layers and not all), each ``[...]``.
    """
    n = curve.shape[-1]
    called = curve > bar
    planted = truth_of(truth, n)
    onset = end = np.full(curve.shape[:-1], math.nan)
    if truth is not None:
        onset, end = errors(called, truth)
    hit, false = shares(called, planted)
    found = {
        "auc": auc(curve, planted),
        "onset": onset,
        "end": end,
        "hit": hit,
        "false": false,
        "found": called.any(axis=-1).astype(float),
        "top": called[..., -1].astype(float),
        "upper": upper_call(called).astype(float),
    }
    known = np.isfinite(curve).all(axis=-1) & np.isfinite(bar).all(axis=-1)
    return {name: np.where(known, values, math.nan) for name, values in found.items()}


def scores_of(
    config: PlantedConfig,
    found: Sequence[SeedResults],
    column: str,
    row: Row,
    prompts: str = ALL_PROMPTS,
    *,
    measured_on: str | None = None,
) -> dict[str, Float[np.ndarray, " seed"]]:
    """Return by score the means over the pairs of a column.

    Args:
        config: of the run.
        found: its seeds.
        column: with the layers to find.
        row: the view and the measure.
        prompts: all, or few.
        measured_on: a column of one pair, whose curves are scored as if the layers of ``column`` had been planted in
            it: a control. By default ``column`` itself.
    """
    each = []
    for planted in found[0].of(column):
        pair = planted
        if measured_on not in (None, column):
            (pair,) = found[0].of(measured_on)
        if row == PATCHED and pair.name not in found[0].restored:
            continue
        curves = np.stack([run.curve(pair, row, prompts) for run in found])
        bars = np.stack([run.threshold(pair, row, prompts, config.least_restored) for run in found])
        each.append(score(curves, bars, planted.truth))
    return _means(each, (len(found),))


def all_scores_of(found: Sequence[SeedResults], column: str) -> dict[str, np.ndarray]:
    """By score, ``[seed prompts view measure]``: ``scores_of`` for all rows except patching at once."""
    each = [
        score(
            np.stack([run.curves[pair.name] for run in found]),
            np.stack([run.thresholds[pair.null] for run in found]),
            pair.truth,
        )
        for pair in found[0].of(column)
    ]
    return _means(each, (len(found), len(PROMPTS), len(ROW_VIEWS), len(MEASURES)))


def _means(each: Sequence[Mapping[str, np.ndarray]], shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Means over the pairs of a column, which are the same in all seeds; NaN if there are none."""
    none = np.full(shape, math.nan)
    return {name: np.mean([scores[name] for scores in each], axis=0) if each else none for name in SCORES}


def chance_of(column: str, name: str, m: SeedResults) -> float:
    """The expected score of layers chosen at random; NaN if it depends on how many are chosen."""
    spans = [pair.truth for pair in m.of(column) if pair.truth is not None]
    if name == "auc":
        return 0.5
    if name in ("onset", "end") and spans:
        return float(np.mean([chance_error(span[name == "end"], m.n_layers) for span in spans]))
    return math.nan


def keys_of(columns: Sequence[str]) -> list[tuple[str, str]]:
    """The columns of a table, each with all prompts and with few."""
    return [(column, prompts) for column in columns for prompts in PROMPTS]


def scores_by_row(
    config: PlantedConfig, found: Sequence[SeedResults], column: str, name: str, prompts: str = ALL_PROMPTS
) -> dict[Row, Float[np.ndarray, " seed"]]:
    """Return a score of a column for every view and measure, and for patching if a loss was patched."""
    scores = all_scores_of(found, column)[name][:, PROMPTS.index(prompts)]
    by_row: dict[Row, np.ndarray] = {row: scores[:, *place_of(row)] for row in ROWS}
    if prompts == ALL_PROMPTS and column in planted_columns(config):
        by_row[PATCHED] = scores_of(config, found, column, PATCHED)[name]
    return by_row


def summary_table(config: PlantedConfig, found: Sequence[SeedResults]) -> pd.DataFrame:
    """One row per measure: how well it finds the planted layers, and how many layers it calls where none stands out.

    The planted layers are those that were trained, or, in a given model, those with the most noise. Cells are means
    over seeds with their 95% interval.
    """
    import pandas as pd

    main = main_column(config)
    asked = {
        "area under the curve": ("auc", main, ALL_PROMPTS),
        "first layer: error": ("onset", main, ALL_PROMPTS),
        "last layer: error": ("end", main, ALL_PROMPTS),
        "changed layers called": ("hit", main, ALL_PROMPTS),
        "changed layers called, few prompts": ("hit", main, FEW),
        "other layers called": ("false", main, ALL_PROMPTS),
        "called: twice the steps": ("false", STEPS, ALL_PROMPTS),
        "called: bfloat16": ("false", ROUNDED, ALL_PROMPTS),
        "called: all layers changed": ("hit", ALL, ALL_PROMPTS),
        "called: rates by layer": ("hit", RATES, ALL_PROMPTS),
    }
    cells = {}
    for head, (name, column, prompts) in asked.items():
        if not found[0].of(column):
            continue
        values = scores_by_row(config, found, column, name, prompts)
        cells[head] = {row: cell_of(seeds, share=name in SHARES) for row, seeds in values.items()}
        chance = chance_of(column, name, found[0]) if column == main else math.nan
        cells[head][_CHANCE] = f"{chance:.2f}" if math.isfinite(chance) else ""
    rows = [
        [row.view, row.measure or "loss restored", *(column.get(row, "") for column in cells.values())]
        for row in (*ROWS, PATCHED, _CHANCE)
    ]
    return pd.DataFrame(rows, columns=["measured on", "measure", *cells])


def loss_table(found: Sequence[SeedResults]) -> pd.DataFrame:
    """One row per trained pair: the mean loss on the answers of the base and of the model made from it, over seeds."""
    import pandas as pd

    rows = []
    for pair in found[0].pairs:
        if pair.column in (TRAINED, ALL, RATES) and pair.name in found[0].losses:
            base, tuned = (np.array([m.losses[pair.name][side] for m in found]) for side in (0, 1))
            rows.append([pair.name, cell_of(base), cell_of(tuned)])
    return pd.DataFrame(rows, columns=["pair", "base", "trained"])


def cell_of(values: np.ndarray, *, share: bool = False) -> str:
    """Return the mean and its 95% interval over seeds as text.

    Args:
        values: one per seed.
        share: whether they are shares.
    """
    if not len(values) or not np.isfinite(values).all():
        return "–"
    span = interval_over_seeds(values.tolist(), share=share)
    return f"{values.mean():.2f}" + ("" if span is None else f" ({span[0]:z.2f} to {span[1]:z.2f})")


def load_results(config: PlantedConfig, out: Path, seed: int) -> SeedResults:
    """Read what a seed's jobs measured.

    Raises:
        InputError: if a measurement is missing; the text names it.
    """

    def read(name: str) -> ProbeResult:
        path = result_path(out, seed, name)
        check_there(out, [path])
        return load_result(path)

    first = read(f"{Pair(NOISE_NULL, Made(), Made()).name}.change")
    pairs = pairs_of(config, len(first.coords["layer"]))
    results = {pair.name: read(f"{pair.name}.change") for pair in pairs}
    patched = {pair.name: read(f"{pair.name}.patched") for pair in pairs if pair.truth is not None}
    curves = {name: _with_rise(np.median(r["change"].numpy(), axis=3)) for name, r in results.items()}
    nulls = {column: [curves[pair.name] for pair in pairs if pair.column == column] for column in NULLS}
    losses = {name: (float(r["loss"][0]), float(r["loss"][1])) for name, r in patched.items()}
    return SeedResults(
        pairs=tuple(pair for pair in pairs if pair.column not in NULLS),
        curves=curves,
        thresholds={column: threshold(np.stack(own), config.margin) for column, own in nulls.items() if own},
        restored={name: r["restored"].numpy() for name, r in patched.items()},
        losses=losses,
        n=min(int(r["n"][PROMPTS.index(ALL_PROMPTS)].min()) for r in results.values()),
        notes=tuple(
            f"seed {seed}, {name}: {note}" for name, r in [*results.items(), *patched.items()] for note in r.notes
        ),
    )


def _with_rise(curves: np.ndarray) -> np.ndarray:
    """``[prompts view measure layer]`` with the rise of the residual stream's curve appended."""
    residual = curves[:, :1]
    return np.concatenate([residual, rise(residual), curves[:, 1:]], axis=1)
