"""Readings: the measurements of a command, one row each, as a table and as sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Reading:
    """One conclusion from a measurement.

    Attributes:
        what: name of the quantity or event.
        value: number with its interval, or the subject of the event, such as tasks.
        where: layers, or another place.
        chance: value by chance.
        random_weights: value of a randomly initialised copy.
        verdict: the conclusion, in one fixed sentence.

    Example:
        >>> print(Reading("Change begins", "sort and copy", "layer 2", verdict="Its 95% interval lies above 0.01."))
        Change begins, layer 2: sort and copy. Its 95% interval lies above 0.01.
    """

    what: str
    value: str
    where: str = ""
    chance: str = ""
    random_weights: str = ""
    verdict: str = ""

    def __str__(self) -> str:
        subject = ", ".join(filter(None, [self.what, self.where]))
        baselines = [f"chance {self.chance}"] if self.chance else []
        baselines += [f"random weights {self.random_weights}"] if self.random_weights else []
        return " ".join(filter(None, [f"{subject}: {', '.join([self.value, *baselines])}.", self.verdict]))


def readings_table(readings: Sequence[Reading]) -> pd.DataFrame:
    """Return one row per reading, without columns that are empty in all of them.

    Example:
        >>> list(readings_table([Reading("Changed layers", "2-3 of 0-3")]))
        ['what', 'value']
    """
    import pandas as pd

    columns = ["what", "where", "value", "chance", "random_weights", "verdict"]
    table = pd.DataFrame([asdict(reading) for reading in readings], columns=columns)
    return table.loc[:, table.ne("").any()].rename(columns={"random_weights": "random weights"})
