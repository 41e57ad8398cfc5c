"""Curves over layers, read against chance and random weights: one verdict for every measure of every label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from mechclust.report.chance import CHANCE_LEVEL, corrected, least_permutations
from mechclust.report.text import ranges

if TYPE_CHECKING:
    import pandas as pd


Asked = tuple[int, int]  # relabellings of the indices, and of the classifier


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
        random_weights: the highest value of any model with random weights at any layer; ``None`` if there are none.
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
class LabelReading:
    """A curve over layers, read against chance and random weights.

    Attributes:
        value: the highest value, among the layers above chance if there are any.
        layer: its layer.
        low, high: 95% chance interval there.
        p: p-value of the highest value, for that layer alone; NaN if the examples allow too few relabellings.
        lower_end: the lower end of its own interval, if it has one; otherwise the value minus half the width of chance.
        above: layers above chance, corrected for the number of layers examined.
        layers: all layers examined.
        least_p: the smallest corrected p.
        too_few: whether there are too few relabellings for any layer to be above chance.
        untrained: mean value at that layer for models with random weights; ``None`` if there are none.
        untrained_best: the highest value of any of them at any layer, and that layer.
    """

    value: float
    layer: int
    low: float
    high: float
    p: float
    lower_end: float
    above: Sequence[int]
    layers: Sequence[int]
    least_p: float
    too_few: bool
    untrained: float | None
    untrained_best: tuple[float, int] | None

    @property
    def verdict(self) -> LabelVerdict:
        """What value, chance level and random weights say together."""
        highest = None if self.untrained_best is None else self.untrained_best[0]
        return label_verdict(self.lower_end, highest, above_chance=bool(self.above), too_few=self.too_few)

    @property
    def where(self) -> str:
        """The layers above chance, in words."""
        if len(self.above) == len(self.layers):
            return "every layer" if len(self.layers) > 1 else f"layer {self.layers[0]}"
        return f"layer{'s' * (len(self.above) > 1)} {ranges(self.above)} of {ranges(self.layers)}"


@dataclass(frozen=True)
class LabelReadings:
    """The measures of one label; ``None`` for what was not measured or is undefined at every layer.

    Attributes:
        clusters: the index of the clusters.
        given: the index after another label's means are subtracted.
        linear: the accuracy of the linear classifier.
    """

    clusters: LabelReading | None
    given: LabelReading | None
    linear: LabelReading | None

    @property
    def verdicts(self) -> dict[str, LabelVerdict]:
        """The verdict of each measure that there is, and that of the clusters."""
        verdicts = {name: reading.verdict for name, reading in vars(self).items() if reading is not None}
        return {"clusters": LabelVerdict.UNDEFINED} | verdicts


def read_label(table: pd.DataFrame, asked: Asked) -> LabelReadings:
    """Read all measures of one label.

    Args:
        table: a row per layer, of this label.
        asked: relabellings of the indices, and of the classifier.
    """
    return LabelReadings(
        clusters=read(table, "ari", "null", "p_value", "untrained", asked[0]),
        given=read(table, "given_ari", "given_null", "given_p", "untrained_given", asked[0]),
        linear=read(
            table, "accuracy", "linear_null", "linear_p", "untrained_accuracy", asked[1], lower_end="accuracy_low"
        ),
    )


def read(
    table: pd.DataFrame, value: str, null: str, p: str, untrained: str, asked: int, *, lower_end: str | None = None
) -> LabelReading | None:
    """Read a curve of a table with a row per layer, by the names of its columns; ``None`` if it has no value.

    Args:
        table: of one label.
        value: the column to read.
        null: prefix of its chance columns.
        p: column of its p-value for each layer alone; jointly corrected ones are in ``{p}_corrected``, if present.
        untrained: its column for the mean of models with random weights; ``{untrained}_high`` has the highest.
        asked: relabellings behind ``p``.
        lower_end: the column of the lower end of its interval.
    """
    if value not in table or table[value].isna().all():
        return None
    table = table[table[value].notna()].reset_index(drop=True)
    together = f"{p}_corrected" in table
    p_corrected = table[f"{p}_corrected"].to_numpy() if together else corrected(table[p])
    above = p_corrected <= CHANCE_LEVEL
    best = table.loc[(table[above] if above.any() else table)[value].idxmax()]
    low, high = float(best[f"{null}_low"]), float(best[f"{null}_high"])
    fresh = untrained in table and table[untrained].notna().any()
    highest = f"{untrained}_high"
    top = table.loc[table[highest].idxmax()] if fresh else None
    least = least_permutations(1 if together else len(table))
    untested = bool(table[p].isna().all())
    return LabelReading(
        value=float(best[value]),
        layer=int(best["layer"]),
        low=low,
        high=high,
        p=float(best[p]),
        lower_end=float(best[value] - (high - low) / 2 if lower_end is None else best[lower_end]),
        above=[int(layer) for layer in table["layer"][above]],
        layers=[int(layer) for layer in table["layer"]],
        least_p=float(np.nanmin(p_corrected)) if np.isfinite(p_corrected).any() else np.nan,
        too_few=not above.any() and (untested or (asked < least and table[p].min() <= 1.5 / (1 + asked))),
        untrained=float(best[untrained]) if fresh else None,
        untrained_best=None if top is None else (float(top[highest]), int(top["layer"])),
    )
