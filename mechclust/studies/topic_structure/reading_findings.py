"""Which reading of the published attention table reproduces it. Findings P5 and P5a."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Finding, Verdict
from mechclust.evidence.bounds import verdict_of
from mechclust.evidence.compared import compared
from mechclust.evidence.findings import untested_findings
from mechclust.evidence.intervals import mean_interval
from mechclust.studies.topic_structure.config import READINGS, TopicStructureConfig
from mechclust.studies.topic_structure.readings import TABLE, Readings, distance_of, readings_of, uniform_distance
from mechclust.studies.topic_structure.results import ArmRuns

if TYPE_CHECKING:
    import pandas as pd

NEAR = Bound("<=", 0.15)  # twice what the published spread over seeds accounts for
_LEAST_STEPS = 10_000
_UNKNOWN = "–"
_NONE_CHOSEN = "choosing a reading on other seeds takes two seeds and a network"


def reading_findings(config: TopicStructureConfig, runs: ArmRuns) -> list[Finding]:
    """Return P5 and P5a. Bounds were written before any run on the seeds that they are judged by."""
    readings = readings_of(config, runs)
    whole = np.flatnonzero(readings.whole)
    logs = np.log(readings.means[:, whole])
    nearest = nearest_readings(logs)
    seeds = range(len(nearest))
    chosen = {" ".join(readings.names[whole[place]]) for place in nearest}
    uniform = np.full(len(config.seeds), uniform_distance(config))
    reproduces = compared(
        "P5",
        "E4: some reading reproduces the published attention table: distance of the one chosen on the other seeds "
        "(root mean square of log(ours / published) over 15 numbers)",
        {"": NEAR},
        [distance_of(logs[seeds, nearest])],
        "uniform attention",
        [uniform],
        source="ours",
        shown="headline",
        note=_chosen(chosen) + _diverged(len(readings.names) - len(whole), len(readings.names)),
    )
    ratios = readings.ratios[:, whole].min(axis=-1)
    findings = [reproduces, _within_topics(ratios[seeds, nearest], np.ones_like(uniform))]
    if config.attention_steps < _LEAST_STEPS or set(config.readings) != set(READINGS) or len(config.seeds) < 2:
        return untested_findings(findings)
    return findings


def _within_topics(ratios: Float[np.ndarray, "seed"], uniform: Float[np.ndarray, "_"]) -> Finding:
    least = float((TABLE[:, 1] / TABLE[:, 2]).min())
    return compared(
        "P5a",
        "E4: that reading attends within topics: same-topic over different-topic attention, lowest of its "
        f"{len(TABLE)} rows",
        {"": Bound(">=", 1.05)},
        [ratios],
        "uniform attention",
        [uniform],
        source="Li, Li & Risteski",
        shown="table",
        paper=least,
        note=f"all ratios of the table to which it was chosen are {least:.2f} or more, so that this can hardly fail "
        "where P5 holds",
    )


def nearest_readings(logs: Float[np.ndarray, "seed reading row bucket"]) -> list[int]:
    """Return for each seed the reading that is nearest to the table over all other seeds; nothing for one seed."""
    distances = distance_of(logs)
    n_seeds, n_readings = distances.shape
    if n_seeds < 2 or not n_readings:
        return []
    return [int(np.delete(distances, seed, axis=0).mean(axis=0).argmin()) for seed in range(n_seeds)]


def _chosen(readings: set[str]) -> str:
    return f"chosen: {', '.join(sorted(readings))}" if readings else _NONE_CHOSEN


def _diverged(n_lost: int, n: int) -> str:
    return f"; training diverged in {n_lost} of {n} readings, which are left out" if n_lost else ""


def verdicts_of(readings: Readings) -> list[Verdict]:
    """Return for every reading whether its distance over seeds is within the bound."""
    return [verdict_of(NEAR, mean_interval(distances.tolist())) for distances in readings.distance.T]


def distance_table(readings: Readings) -> pd.DataFrame:
    """Return the distance of every reading from the published table at every stop, with its interval, as text."""
    import pandas as pd

    rows = []
    for name, distances, verdict in zip(readings.names, readings.distance.T, verdicts_of(readings), strict=True):
        if not np.isfinite(distances).all():
            rows.append([*name, _UNKNOWN, _UNKNOWN, "training diverged"])
            continue
        interval = mean_interval(distances.tolist())
        if interval is None:
            rows.append([*name, _UNKNOWN, _UNKNOWN, verdict])
            continue
        low, high = interval
        rows.append([*name, f"{distances.mean():.3f}", f"{low:.3f} to {high:.3f}", verdict])
    return pd.DataFrame(rows, columns=["reading", "stopped", "distance", "95% interval", str(NEAR)])
