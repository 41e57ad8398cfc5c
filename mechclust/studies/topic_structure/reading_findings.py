"""Which reading of the published attention table reproduces it. Findings P5 and P5a."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Control, Finding, Part, Verdict, mean_part
from mechclust.evidence.bounds import verdict_of
from mechclust.evidence.intervals import mean_interval
from mechclust.studies.topic_structure.config import READINGS, TopicStructureConfig, not_tested_unless
from mechclust.studies.topic_structure.readings import TABLE, Readings, distance_of, readings_of
from mechclust.studies.topic_structure.results import ArmRuns

if TYPE_CHECKING:
    import pandas as pd

NEAR = Bound("<=", 0.15)  # twice what the published spread over seeds accounts for
_CLEAR = Bound(">=", 1.05)
_UNIFORM = "uniform attention"
_LEAST_STEPS = 10_000

Logs = Float[np.ndarray, "seed reading row bucket"]


def reading_findings(config: TopicStructureConfig, runs: ArmRuns) -> list[Finding]:
    """Return P5 and P5a. Bounds were written before any run on the seeds that they are judged by."""
    found = readings_of(config, runs)
    names = [" ".join(name) for name, whole in zip(found.names, found.whole, strict=True) if whole]
    logs = np.log(found.means[:, found.whole])
    ratios = found.ratios[:, found.whole]
    uniform = np.full_like(logs, -np.log(config.text[1]))
    long = config.test_findings and config.attention_steps >= _LEAST_STEPS
    not_tested = not_tested_unless(long and set(config.readings) == set(READINGS) and len(config.seeds) > 1)
    diverged = _diverged(found)
    nearest = ", ".join(sorted({names[reading] for reading in chosen(logs)})) or "none"
    least = (TABLE[:, 1] / TABLE[:, 2]).min()
    return [
        Finding(
            id="P5",
            statement="E4: some reading reproduces the published attention table: distance of the one chosen on the "
            "other seeds (root mean square of log(ours / published) over 15 numbers)",
            source="ours",
            parts=_distance_of_chosen(logs),
            control=Control(_UNIFORM, _distance_of_chosen(uniform)),
            shown="headline",
            not_tested=not_tested,
            note=f"chosen: {nearest}{diverged}",
        ),
        Finding(
            id="P5a",
            statement="E4: that reading attends within topics: same-topic over different-topic attention, lowest of "
            f"its {len(TABLE)} rows",
            source="Li, Li & Risteski",
            parts=_ratio_of_chosen(logs, ratios),
            control=Control(_UNIFORM, _ratio_of_chosen(uniform, np.ones_like(ratios))),
            shown="table",
            paper=float(least),
            not_tested=not_tested,
            note=f"all ratios of the table to which it was chosen are {least:.2f} or more, so that this can hardly "
            f"fail where P5 holds{diverged}",
        ),
    ]


def _diverged(found: Readings) -> str:
    """Return the end of a note that counts the readings without a distance."""
    lost = int((~found.whole).sum())
    return f"; training diverged in {lost} of {len(found.names)} readings, which are left out" if lost else ""


def chosen(logs: Logs) -> list[int]:
    """Return for each seed the reading that is nearest to the table over all other seeds."""
    far = distance_of(logs)
    if len(far) < 2 or not far.shape[1]:
        return []
    return [int(np.delete(far, seed, axis=0).mean(axis=0).argmin()) for seed in range(len(far))]


def _distance_of_chosen(logs: Logs) -> tuple[Part, ...]:
    far = distance_of(logs)
    return (mean_part("", [far[seed, reading] for seed, reading in enumerate(chosen(logs))], NEAR),)


def _ratio_of_chosen(logs: Logs, ratios: Float[np.ndarray, "seed reading row"]) -> tuple[Part, ...]:
    lowest = ratios.min(axis=2)
    return (mean_part("", [lowest[seed, reading] for seed, reading in enumerate(chosen(logs))], _CLEAR),)


def verdicts_of(found: Readings) -> list[Verdict]:
    """Return for every reading whether its interval over seeds is within the bound."""
    return [verdict_of(NEAR, mean_interval(of_reading.tolist())) for of_reading in found.distance.T]


def distance_table(found: Readings) -> pd.DataFrame:
    """Return the distance of every reading from the published table at every stop, with its interval, as text."""
    import pandas as pd

    table = []
    for name, distances, verdict in zip(found.names, found.distance.T, verdicts_of(found), strict=True):
        finite = np.isfinite(distances).all()
        ends = mean_interval(distances.tolist())
        if ends is None:
            table.append([*name, "–", "–", verdict if finite else "training diverged"])
        else:
            table.append([*name, f"{distances.mean():.3f}", f"{ends[0]:.3f} to {ends[1]:.3f}", verdict])
    return pd.DataFrame(table, columns=["reading", "stopped", "distance", "95% interval", str(NEAR)])
