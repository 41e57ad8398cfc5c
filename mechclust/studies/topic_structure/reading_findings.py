"""Which reading of the published attention table reproduces it. Findings P5 and P5a."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Control, Finding, Part, Verdict, mean_part
from mechclust.evidence.bounds import verdict_of
from mechclust.evidence.intervals import mean_interval
from mechclust.studies.topic_structure.config import READINGS, TopicStructureConfig
from mechclust.studies.topic_structure.readings import TABLE, Readings, distance_of, readings_of
from mechclust.studies.topic_structure.results import ArmRuns

if TYPE_CHECKING:
    import pandas as pd

NEAR = Bound("<=", 0.15)  # twice what the published spread over seeds accounts for
_CLEAR = Bound(">=", 1.05)
_LEAST_STEPS = 10_000

Logs = Float[np.ndarray, "seed reading row bucket"]


def reading_findings(config: TopicStructureConfig, runs: ArmRuns) -> list[Finding]:
    """Return P5 and P5a. Bounds were written before any run on the seeds that they are judged by."""
    found = readings_of(config, runs)
    whole = found.whole
    logs = np.log(found.means[:, whole])
    ratios = found.ratios[:, whole]
    names = [name for name, kept in zip(found.names, whole, strict=True) if kept]
    nearest = nearest_readings(logs)
    n_seeds = len(config.seeds)
    uniform = distance_of(np.full_like(TABLE, -np.log(config.text[1])))
    enough = config.attention_steps >= _LEAST_STEPS and set(config.readings) == set(READINGS) and n_seeds > 1
    not_tested = "" if enough else "this size of the study cannot test it"
    least = float((TABLE[:, 1] / TABLE[:, 2]).min())
    return [
        Finding(
            id="P5",
            statement="E4: some reading reproduces the published attention table: distance of the one chosen on the "
            "other seeds (root mean square of log(ours / published) over 15 numbers)",
            source="ours",
            parts=_near([float(distance_of(logs[seed, place])) for seed, place in enumerate(nearest)]),
            control=Control("uniform attention", _near([float(uniform)] * n_seeds)),
            shown="headline",
            not_tested=not_tested,
            note="; ".join(filter(None, [_chosen(names, nearest), _diverged(found, names)])),
        ),
        Finding(
            id="P5a",
            statement="E4: that reading attends within topics: same-topic over different-topic attention, lowest of "
            f"its {len(TABLE)} rows",
            source="Li, Li & Risteski",
            parts=_within_topics([float(ratios[seed, place].min()) for seed, place in enumerate(nearest)]),
            control=Control("uniform attention", _within_topics([1.0] * n_seeds)),
            shown="table",
            paper=least,
            not_tested=not_tested,
            note=f"all ratios of the table to which it was chosen are {least:.2f} or more, so that this can hardly "
            "fail where P5 holds",
        ),
    ]


def nearest_readings(logs: Logs) -> list[int]:
    """Return for each seed the reading that is nearest to the table over all other seeds; nothing for one seed."""
    distances = distance_of(logs)
    if len(distances) < 2 or not distances.shape[1]:
        return []
    return [int(np.delete(distances, seed, axis=0).mean(axis=0).argmin()) for seed in range(len(distances))]


def _near(distances: list[float]) -> tuple[Part, ...]:
    return (mean_part("", distances, NEAR),)


def _within_topics(ratios: list[float]) -> tuple[Part, ...]:
    return (mean_part("", ratios, _CLEAR),)


def _chosen(names: list[tuple[str, str]], nearest: list[int]) -> str:
    if not nearest:
        return "choosing a reading on other seeds takes two seeds and a network"
    return f"chosen: {', '.join(sorted({' '.join(names[place]) for place in nearest}))}"


def _diverged(found: Readings, names: list[tuple[str, str]]) -> str:
    lost = len(found.names) - len(names)
    return f"training diverged in {lost} of {len(found.names)} readings, which are left out" if lost else ""


def verdicts_of(found: Readings) -> list[Verdict]:
    """Return for every reading whether its distance over seeds is within the bound."""
    return [verdict_of(NEAR, mean_interval(distances.tolist())) for distances in found.distance.T]


def distance_table(found: Readings) -> pd.DataFrame:
    """Return the distance of every reading from the published table at every stop, with its interval, as text."""
    import pandas as pd

    rows = []
    for name, distances, verdict in zip(found.names, found.distance.T, verdicts_of(found), strict=True):
        if not np.isfinite(distances).all():
            rows.append([*name, "–", "–", "training diverged"])
            continue
        interval = mean_interval(distances.tolist())
        ends = "–" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"
        mean = "–" if interval is None else f"{distances.mean():.3f}"
        rows.append([*name, mean, ends, verdict])
    return pd.DataFrame(rows, columns=["reading", "stopped", "distance", "95% interval", str(NEAR)])
