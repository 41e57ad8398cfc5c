"""Judge curves over layers against chance and random weights: one verdict for every measure of every label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from mechclust.evidence.p_values import CHANCE_LEVEL, corrected_p_values, least_permutations_for_p_values
from mechclust.report.text import layers_text, ranges_text

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class CurveColumns:
    """Columns of a table with a row per layer that make up a curve.

    Attributes:
        measure: name of its value in the probe's result.
        value: its value. ``{value}_low`` and ``{value}_high``, if present, are the ends of its interval.
        untrained: mean of models with random weights. ``{untrained}_high`` has the highest.
        null: prefix of its chance interval, whose ends are ``{null}_low`` and ``{null}_high``. Empty: no interval, no
            chance and no p-value are read.
        p: p-value for each layer alone. Jointly corrected ones are in ``{p}_corrected``, if present.
        further: measures that have a column of their name.
    """

    measure: str
    value: str
    untrained: str
    null: str = ""
    p: str = ""
    further: tuple[str, ...] = ()

    @property
    def of_measures(self) -> dict[str, str]:
        """The column of each measure of the probe's result."""
        columns = {self.measure: self.value}
        if self.null:
            columns |= {f"{self.measure}_{end}": f"{self.value}_{end}" for end in ("low", "high")}
            columns |= {f"null_{end}": f"{self.null}_{end}" for end in ("low", "high")}
            columns["p_value"] = self.p
        return columns | {name: name for name in self.further}


CURVES = {
    "raw": CurveColumns(
        "ari", "ari", "untrained", "null", "p_value", further=("ami", "silhouette", "label_silhouette")
    ),
    "given": CurveColumns("ari", "given_ari", "untrained_given", "given_null", "given_p"),
    "linear": CurveColumns("accuracy", "accuracy", "untrained_accuracy", "linear_null", "linear_p"),
    "nearest": CurveColumns("neighbour_purity", "nearest", "untrained_nearest"),
    "held_out": CurveColumns("neighbour_purity", "held_out", "untrained_held_out", "held_out_null", "held_out_p"),
}


class LabelVerdict(StrEnum):
    """Whether a measure shows a label, given its value, its chance level and its value with random weights."""

    UNDEFINED = "undefined"
    TOO_FEW = "open, too few relabellings to tell"
    NOT_SHOWN = "not shown to be above chance"
    NOT_COMPARED = "above chance, not compared with random weights"
    NO_MORE = "no more than random weights"
    MORE = "more than random weights"


def label_verdict(lower_end: float, random_weights: float | None, *, above_chance: bool, too_few: bool) -> LabelVerdict:
    """Return the verdict on a measure of a label.

    Args:
        lower_end: of the interval of the highest value.
        random_weights: the highest value of any model with random weights at any layer, or ``None`` if there are none.
        above_chance: whether any layer is above chance, corrected for the number of layers.
        too_few: whether there are too few relabellings for any layer to be above chance.

    Example:
        >>> str(label_verdict(0.8, 0.9, above_chance=True, too_few=False))
        'no more than random weights'
    """
    if not above_chance:
        return LabelVerdict.TOO_FEW if too_few else LabelVerdict.NOT_SHOWN
    if random_weights is None:
        return LabelVerdict.NOT_COMPARED
    if np.isnan(lower_end):
        return LabelVerdict.UNDEFINED
    return LabelVerdict.MORE if lower_end > random_weights else LabelVerdict.NO_MORE


@dataclass(frozen=True)
class JudgedCurve:
    """A curve over layers, judged against chance and random weights.

    Attributes:
        value: the highest value, among the layers above chance if there are any.
        layer: its layer.
        interval: 95% interval of this value over prompts or units, or NaN if there is none.
        low: lower end of the 95% chance interval there.
        high: upper end of that interval.
        p: p-value of the highest value, for that layer alone, or NaN if the examples allow too few relabellings.
        lower_end: the lower end of its interval, if it has one. Otherwise, the value minus half the width of chance.
        above: layers above chance, corrected for the number of layers examined.
        below: layers below the chance interval.
        layers: all layers examined.
        least_p: the smallest corrected p.
        n_relabellings: number of relabellings.
        too_few: whether there are too few relabellings for any layer to be above chance.
        untrained: mean value at that layer for models with random weights, or ``None`` if there are none.
        untrained_best: the highest value of any of them at any layer, and that layer.
    """

    value: float
    layer: int
    interval: tuple[float, float]
    low: float
    high: float
    p: float
    lower_end: float
    above: Sequence[int]
    below: Sequence[int]
    layers: Sequence[int]
    least_p: float
    n_relabellings: int
    too_few: bool
    untrained: float | None
    untrained_best: tuple[float, int] | None

    @property
    def verdict(self) -> LabelVerdict:
        """The verdict from value, chance level and random weights."""
        highest = None if self.untrained_best is None else self.untrained_best[0]
        return label_verdict(self.lower_end, highest, above_chance=bool(self.above), too_few=self.too_few)

    @property
    def where(self) -> str:
        """The layers above chance, in words."""
        if len(self.above) == len(self.layers):
            return "every layer" if len(self.layers) > 1 else f"layer {self.layers[0]}"
        return f"{layers_text(ranges_text(self.above))} of {ranges_text(self.layers)}"


@dataclass(frozen=True)
class JudgedLabel:
    """The measures of one label, with ``None`` for any not taken or undefined at every layer.

    Attributes:
        clusters: the index of the clusters.
        given: the index after another label's means are subtracted.
        linear: the accuracy of the linear classifier.
        held_out: the share of prompts whose nearest neighbour of another template has their class.
    """

    clusters: JudgedCurve | None
    given: JudgedCurve | None
    linear: JudgedCurve | None
    held_out: JudgedCurve | None

    @property
    def verdicts(self) -> dict[str, LabelVerdict]:
        """The verdict on each measure that was taken, and on the clusters."""
        verdicts = {name: curve.verdict for name, curve in vars(self).items() if curve is not None}
        return {"clusters": LabelVerdict.UNDEFINED} | verdicts


def judge_label(table: pd.DataFrame, counts: tuple[int, int]) -> JudgedLabel:
    """Judge all measures of one label.

    Args:
        table: a row per layer, of this label.
        counts: number of relabellings of the indices, and of the classifier.
    """
    n_permutations, n_shuffles = counts
    return JudgedLabel(
        clusters=_judge_curve(table, CURVES["raw"], n_permutations),
        given=_judge_curve(table, CURVES["given"], n_permutations),
        linear=_judge_curve(table, CURVES["linear"], n_shuffles),
        held_out=_judge_curve(table, CURVES["held_out"], n_permutations),
    )


def _judge_curve(table: pd.DataFrame, columns: CurveColumns, n_relabellings: int) -> JudgedCurve | None:
    """Judge a curve, or return ``None`` if it has no value.

    Args:
        table: a row per layer, of one label.
        columns: columns of the curve.
        n_relabellings: number of relabellings behind its p-values.
    """
    value = columns.value
    if value not in table or table[value].isna().all():
        return None
    table = table[table[value].notna()].reset_index(drop=True)
    jointly = f"{columns.p}_corrected" in table
    p = table[columns.p]
    p_corrected = table[f"{columns.p}_corrected"].to_numpy() if jointly else corrected_p_values(p)
    above = p_corrected <= CHANCE_LEVEL
    best = table.loc[(table[above] if above.any() else table)[value].idxmax()]
    low = float(best[f"{columns.null}_low"])
    high = float(best[f"{columns.null}_high"])
    interval = (float(best.get(f"{value}_low", np.nan)), float(best.get(f"{value}_high", np.nan)))
    lower_end = best[value] - (high - low) / 2 if np.isnan(interval[0]) else interval[0]
    needed = least_permutations_for_p_values(1 if jointly else len(table))
    at_least_possible_p = n_relabellings < needed and p.min() <= 1.5 / (1 + n_relabellings)
    layer = table["layer"]
    untrained, untrained_best = _random_weights(table, best, columns.untrained)
    return JudgedCurve(
        value=float(best[value]),
        layer=int(best["layer"]),
        interval=interval,
        low=low,
        high=high,
        p=float(best[columns.p]),
        lower_end=float(lower_end),
        above=layer[above].tolist(),
        below=layer[table[value] < table[f"{columns.null}_low"]].tolist(),
        layers=layer.tolist(),
        least_p=float(np.nanmin(p_corrected)) if np.isfinite(p_corrected).any() else np.nan,
        n_relabellings=n_relabellings,
        too_few=bool(not above.any() and (p.isna().all() or at_least_possible_p)),
        untrained=untrained,
        untrained_best=untrained_best,
    )


def _random_weights(table: pd.DataFrame, best: pd.Series, column: str) -> tuple[float | None, tuple[float, int] | None]:
    """Return the mean of random weights at the best layer, and their highest value with its layer."""
    if column not in table or table[column].isna().all():
        return None, None
    highest = table.loc[table[f"{column}_high"].idxmax()]
    return float(best[column]), (float(highest[f"{column}_high"]), int(highest["layer"]))
