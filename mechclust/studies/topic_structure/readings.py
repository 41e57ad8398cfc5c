"""Which reading of the published attention table reproduces it: E4's runs at three stops, beside the 15 numbers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import einops
import numpy as np
from jaxtyping import Bool, Float

from mechclust.studies.topic_structure.arms import reading_arm
from mechclust.studies.topic_structure.config import ROWS, TopicStructureConfig
from mechclust.studies.topic_structure.results import PUBLISHED, ArmRuns, TrainedRun

if TYPE_CHECKING:
    import pandas as pd

BEST = "best dev loss"
HALF = "half"
END = "end"
STOPS = (BEST, HALF, END)
TABLE = np.array([PUBLISHED[row] for row in ROWS])  # by row and bucket
_BUCKETS = ("same word", "same topic", "different topic")


class Readings(NamedTuple):
    """E4's attention by reading and stop.

    Attributes:
        names: ``(reading, stop)``.
        means: mean attention, plain averages over all pairs, as in the published table; NaN where training diverged.
        ratios: same-topic over different-topic attention within documents.
    """

    names: list[tuple[str, str]]
    means: Float[np.ndarray, "seed reading row bucket"]
    ratios: Float[np.ndarray, "seed reading row"]

    @property
    def distance(self) -> Float[np.ndarray, "seed reading"]:
        """Root mean square of log(ours / published) over the table's 15 numbers.

        Infinite where no attention is left in a bucket, NaN where training diverged.
        """
        with np.errstate(divide="ignore"):
            return distance_of(np.log(self.means))

    @property
    def whole(self) -> Bool[np.ndarray, "reading"]:
        """Whether all runs of a reading have a distance: none diverged."""
        return np.isfinite(self.distance).all(axis=0)


def distance_of(logs: Float[np.ndarray, "*more row bucket"]) -> Float[np.ndarray, "*more"]:
    """Return the distance from the published table, given the logarithms of mean attention."""
    return np.sqrt(np.square(logs - np.log(TABLE)).mean(axis=(-2, -1)))


def uniform_distance(config: TopicStructureConfig) -> float:
    """Return the distance of uniform attention from the published table."""
    _, length = config.text
    logs = np.full((1, *TABLE.shape), -np.log(length))
    return distance_of(logs).item()


def stops_of(config: TopicStructureConfig, run: TrainedRun) -> dict[str, int]:
    """Return the step of each stop.

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
    """Return E4 by reading and stop."""
    names = [(reading, stop) for reading in config.readings for stop in STOPS]
    means = []
    ratios = []
    for (reading, stop), row in product(names, ROWS):
        arm = runs[reading_arm(reading, row)]
        attention = [run.attention[stops_of(config, run)[stop]] for run in arm]
        means.append([result["overall_mean"].numpy() for result in attention])
        ratios.append([float(result["overall_ratio"]) for result in attention])
    n = len(names)
    return Readings(
        names,
        einops.rearrange(np.array(means), "(reading row) seed bucket -> seed reading row bucket", reading=n),
        einops.rearrange(np.array(ratios), "(reading row) seed -> seed reading row", reading=n),
    )


def attention_table(readings: Readings) -> pd.DataFrame:
    """Return mean attention at the best development loss by reading and row, as text, after the published rows.

    Each number is the mean and standard deviation over seeds. ``ratio`` is that of the published means, and ours within
    documents.
    """
    import pandas as pd

    rows = []
    for optimiser, means in zip(ROWS, TABLE, strict=True):
        rows.append(["published", optimiser, *(f"{mean:.5f}" for mean in means), f"{means[1] / means[2]:.2f}"])
    for place, (reading, stop) in enumerate(readings.names):
        if stop == BEST:
            rows += _rows_of(reading, readings.means[:, place], readings.ratios[:, place])
    return pd.DataFrame(rows, columns=["reading", "optimiser", *_BUCKETS, "ratio"])


def _rows_of(
    reading: str, means: Float[np.ndarray, "seed row bucket"], ratios: Float[np.ndarray, "seed row"]
) -> Iterator[list[str]]:
    for row, optimiser in enumerate(ROWS):
        cells = [f"{mean:.5f}" for mean in means[:, row].mean(axis=0)]
        if len(means) > 1:
            deviations = means[:, row].std(axis=0, ddof=1)
            cells = [f"{cell} ± {deviation:.5f}" for cell, deviation in zip(cells, deviations, strict=True)]
        yield [reading, optimiser, *cells, f"{ratios[:, row].mean():.2f}"]
