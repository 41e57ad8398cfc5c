"""Which reading of the published attention table reproduces it: E4's runs at three stops, beside the 15 numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mechclust.studies.topic_structure.arms import reading_arm
from mechclust.studies.topic_structure.config import ROWS, TopicStructureConfig
from mechclust.studies.topic_structure.results import PUBLISHED, ArmRuns, TrainedRun

if TYPE_CHECKING:
    import pandas as pd

BEST, HALF, END = "best dev loss", "half", "end"
STOPS = (BEST, HALF, END)
TABLE = np.array([PUBLISHED[row] for row in ROWS])  # [row bucket]


class Readings(NamedTuple):
    """E4's attention by reading and stop.

    Attributes:
        names: ``(reading, stop)``.
        means: ``[seed arm row bucket]`` mean attention, arms in the order of ``names``; NaN where training diverged.
            Plain averages over all pairs, as in the published table.
        ratios: ``[seed arm row]`` same-topic over different-topic attention within documents.
    """

    names: list[tuple[str, str]]
    means: np.ndarray
    ratios: np.ndarray

    @property
    def distance(self) -> np.ndarray:
        """``[seed arm]`` root mean square of log(ours / published) over the table's 15 numbers.

        Infinite where no attention is left in a bucket, NaN where training diverged.
        """
        with np.errstate(divide="ignore"):
            return distance_of(np.log(self.means))

    @property
    def whole(self) -> np.ndarray:
        """``[arm]`` whether all of its runs have a distance: none diverged."""
        return np.isfinite(self.distance).all(axis=0)  # type: ignore[no-any-return]


def distance_of(logs: np.ndarray) -> np.ndarray:
    """``[...]`` distance from the table of ``[... row bucket]`` logarithms of mean attention."""
    return np.sqrt(np.square(logs - np.log(TABLE)).mean(axis=(-2, -1)))  # type: ignore[no-any-return]


def stops_of(config: TopicStructureConfig, run: TrainedRun) -> dict[str, int]:
    """The step of each stop.

    The first is the best evaluation before the first one that does not improve, within half the steps.
    """
    steps = [step for step in run.dev if 0 < step <= config.attention_steps // 2]
    best = steps[0]
    for step in steps[1:]:
        if not run.dev[step] < run.dev[best]:
            break
        best = step
    return {BEST: best, HALF: steps[-1], END: config.attention_steps}


def readings_of(config: TopicStructureConfig, runs: ArmRuns) -> Readings:
    """E4 by reading and stop."""
    names = [(reading, stop) for reading in config.readings for stop in STOPS]
    measured = [
        [[_measured(config, run, stop) for run in runs[reading_arm(reading, row)]] for row in ROWS]
        for reading, stop in names
    ]
    means, ratios = np.split(np.array(measured).transpose(2, 0, 1, 3), [3], axis=-1)
    return Readings(names, means, ratios[..., 0])


def _measured(config: TopicStructureConfig, run: TrainedRun, stop: str) -> np.ndarray:
    """``[4]`` mean attention by bucket, and the ratio within documents."""
    result = run.attention[stops_of(config, run)[stop]]
    return np.append(result["overall_mean"].numpy(), float(result["overall_ratio"]))


def factors(name: tuple[str, str]) -> Mapping[str, str]:
    """The level of each factor in a reading.

    Example:
        >>> factors(("one-hot visible frozen squared", "end"))["W_V"]
        'frozen'
    """
    reading, stop = name
    return dict(zip(("input", "masked keys", "W_V", "loss", "stop"), (*reading.split(), stop), strict=True))


def attention_table(found: Readings) -> pd.DataFrame:
    """Mean attention at the best development loss (mean and standard deviation over seeds) by reading and row, as text.

    The first rows are the published ones. ``ratio`` is that of the published means, and ours within documents.
    """
    import pandas as pd

    kinds = ("same word", "same topic", "different topic")
    table = [
        ["published", row, *(f"{x:.5f}" for x in means), f"{means[1] / means[2]:.2f}"]
        for row, means in zip(ROWS, TABLE, strict=True)
    ]
    for i, (reading, stop) in enumerate(found.names):
        for j, row in enumerate(ROWS) if stop == BEST else ():
            of = found.means[:, i, j]
            means = [f"{x:.5f}" for x in of.mean(axis=0)]
            if len(of) > 1:
                means = [f"{x} ± {sd:.5f}" for x, sd in zip(means, of.std(axis=0, ddof=1), strict=True)]
            table.append([reading, row, *means, f"{found.ratios[:, i, j].mean():.2f}"])
    return pd.DataFrame(table, columns=["reading", "optimiser", *kinds, "ratio"])
