"""Which reading of the published attention table reproduces it. Findings P5 to P5f."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mechclust.evidence import Finding
from mechclust.report.draws import Data, exchanged_by_column, spread_like
from mechclust.report.findings import Finding, Parts
from mechclust.evidence.bounds import Bound
from mechclust.evidence.intervals import mean_interval
from mechclust.studies.topic_structure.config import READINGS, TopicStructureConfig
from mechclust.studies.topic_structure.readings import BEST, END, TABLE, Readings, distance_of, factors, readings_of
from mechclust.studies.topic_structure.results import ArmRuns

if TYPE_CHECKING:
    import pandas as pd

NEAR = Bound("<=", 0.15)  # twice what the published spread over seeds accounts for
_CLEAR = Bound(">=", 1.05)
_SPREAD = 0.08  # root mean square of the published standard deviations, relative to the means
_FAR = 0.3  # of the other readings, where one is planted
_PAPER = "Li, Li & Risteski"
_LEAST_STEPS = 10_000


def reading_findings(config: TopicStructureConfig, runs: ArmRuns) -> list[Finding]:
    """P5 to P5f. Bounds and directions were written before any run on the seeds that they are judged by."""
    found = readings_of(config, runs)
    long = config.test_findings and config.attention_steps >= _LEAST_STEPS
    tested = long and set(config.readings) == set(READINGS) and len(config.seeds) > 1
    logs = np.log(found.means[:, found.whole])
    log_ratios = np.log(found.ratios[:, found.whole])
    names = [name for name, whole in zip(found.names, found.whole, strict=True) if whole]
    lost = len(found.names) - len(names)
    note = f"training diverged in {lost} of {len(found.names)} readings, which are left out" if lost else ""
    uniform = float(distance_of(np.full_like(TABLE, -np.log(config.text[1]))))
    if not names or len(config.seeds) < 2:
        note = "; ".join(filter(None, [note, "choosing a reading on other seeds takes two seeds and a network"]))
    nearest = ", ".join(sorted({" ".join(names[i]) for i in chosen(logs)})) if names else "none"
    least = (TABLE[:, 1] / TABLE[:, 2]).min()
    findings = [
        Finding(
            "P5", "E4: some reading reproduces the published attention table: distance of the one chosen on the other "
            "seeds (root mean square of log(ours / published) over 15 numbers)", "ours", _nearest_distance,
            _just_off, "one reading lies just outside the bound, with the measured spread, and all others farther away",
            _reproduced, "one reading is the published table with its published spread over seeds",
            chance=f"{uniform:.2f} for uniform attention", note="; ".join(filter(None, [f"chosen: {nearest}", note])),
        ).judged({"logs": logs}, tested=tested),
        Finding(
            "P5a", "E4: that reading attends within topics: same-topic over different-topic attention, lowest of its "
            f"{len(TABLE)} rows", _PAPER, _nearest_ratio, _one_row_off,
            "one reading is the published table, but for one row, drawn at random, whose ratio is just below the "
            "bound, with the measured spread", _reproduced,
            "one reading is the published table with its published spread over seeds",
            paper=float(least), chance="1", note="; ".join(filter(None, [
                f"all ratios of the table to which it was chosen are {least:.2f} or more, so that this can hardly fail "
                "where P5 holds", note])),
        ).judged({"logs": logs, "log_ratios": log_ratios}, tested=tested),
    ]  # fmt: skip
    for id, factor, nearer, other, what in (
        ("P5b", "input", "normalised", "one-hot", "an input that passes a LayerNorm"),
        ("P5c", "stop", BEST, END, "stopping at the best development loss instead of the end"),
        ("P5d", "W_V", "trained", "frozen", "a trained W_V"),
        ("P5e", "loss", "cross-entropy", "squared", "cross-entropy"),
        ("P5f", "masked keys", "visible", "hidden", "MASK visible as a key"),
    ):
        data = _pairs(names, distance_of(logs), factor, nearer, other)
        finding = Finding(
            id, f"E4: {what} brings the network closer to the published table (fall of the distance in each pair of "
            "readings that differ in nothing else; interval over pairs)", "ours; direction predicted", _fall,
            exchanged_by_column("with", "without"), "in each pair of readings, the two exchanged at random",
            lambda data, rng: {"with": (x := rng.uniform(0.1, 1, data["with"].shape)), "without": x + 0.1},
            "distances that all fall by .1", chance="0", note=f"{data['with'].shape[1]} pairs of readings",
        )  # fmt: skip
        any_pair = data["with"].shape[1] > 0
        findings.append(finding.judged(data, tested=tested and any_pair))
    return findings


def chosen(logs: np.ndarray) -> list[int]:
    """For each seed, the reading that is nearest to the table over all other seeds."""
    far = distance_of(logs)
    return [int(np.delete(far, seed, axis=0).mean(axis=0).argmin()) for seed in range(len(far))] if len(far) > 1 else []


def _nearest(data: Data) -> np.ndarray:
    return np.array([data["logs"][seed, i] for seed, i in enumerate(chosen(data["logs"]))])


def _nearest_distance(data: Data) -> Parts:
    near = _nearest(data)
    return [("", distance_of(near).tolist() if len(near) else [], NEAR)]


def _nearest_ratio(data: Data) -> Parts:
    ratios = _nearest_log_ratios(data)
    return [("", np.exp(ratios).min(axis=1).tolist() if len(ratios) else [], _CLEAR)]


def _nearest_log_ratios(data: Data) -> np.ndarray:
    return np.array([data["log_ratios"][seed, i] for seed, i in enumerate(chosen(data["logs"]))])


def _reproduced(data: Data, rng: np.random.Generator) -> Data:
    """One reading is the published table with its published spread over seeds, and no other is near it."""
    table = np.log(TABLE)
    off = data["logs"] - table
    logs = table + off * np.maximum(1, _FAR / distance_of(data["logs"]))[:, :, None, None]
    logs[:, 0] = table + rng.normal(0, _SPREAD, logs[:, 0].shape)
    return {"logs": logs, "log_ratios": logs[..., 1] - logs[..., 2]}


def _just_off(data: Data, rng: np.random.Generator) -> Data:
    """That reading is just outside the bound, with the measured spread over seeds of the nearest one."""
    logs, table = _reproduced(data, rng)["logs"], np.log(TABLE)
    size = NEAR.value + 1e-9 + spread_like(distance_of(_nearest(data)), rng)
    off = rng.normal(size=logs[:, 0].shape)
    logs[:, 0] = table + off * (size / np.sqrt((off**2).mean(axis=(1, 2))))[:, None, None]
    return {"logs": logs}


def _one_row_off(data: Data, rng: np.random.Generator) -> Data:
    """That reading attends within topics, but for one row."""
    logs, row = _reproduced(data, rng)["logs"], int(rng.integers(len(TABLE)))
    ratio = spread_like(_nearest_log_ratios(data).min(axis=1), rng)
    logs[:, 0, row, 1] = logs[:, 0, row, 2] + np.log(_CLEAR.value - 1e-9) + ratio
    return {"logs": logs, "log_ratios": logs[..., 1] - logs[..., 2]}


def _pairs(names: list[tuple[str, str]], far: np.ndarray, factor: str, one: str, other: str) -> Data:
    """``[seed pair]`` distances of readings that differ in one factor, their means over the stops of one training."""
    known = [factors(name) for name in names]

    def rest(i: int, *without: str) -> tuple[str, ...]:
        return tuple(value for key, value in known[i].items() if key not in without)

    partner = {rest(i, factor): i for i, of in enumerate(known) if of[factor] == other}
    pairs: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for i, of in enumerate(known):
        if of[factor] == one and rest(i, factor) in partner:
            pairs.setdefault(rest(i, factor, "stop"), []).append((i, partner[rest(i, factor)]))
    sides = ([[pair[k] for pair in of] for of in pairs.values()] for k in (0, 1))
    return {
        name: np.stack([far[:, at].mean(axis=1) for at in side], axis=1) if side else far[:, :0]
        for name, side in zip(("with", "without"), sides, strict=True)
    }


def _fall(data: Data) -> Parts:
    fall = data["without"] - data["with"]
    return [("", fall.mean(axis=0).tolist() if fall.size else [], Bound(">", 0))]


def verdicts_of(found: Readings) -> list[str]:
    """For every reading, whether its distance over seeds is within the bound: ``"holds"``, ..."""
    return [NEAR.judge(mean_interval(of.tolist())) for of in found.distance.T]


def distance_table(found: Readings) -> pd.DataFrame:
    """Distance of every reading from the published table at every stop, with its interval over seeds, as text."""
    import pandas as pd

    table = []
    for name, of, verdict in zip(found.names, found.distance.T, verdicts_of(found), strict=True):
        ends = mean_interval(of.tolist()) if np.isfinite(of).all() else None
        if ends is None:
            table.append([*name, "–", "–", verdict if np.isfinite(of).all() else "training diverged"])
        else:
            table.append([*name, f"{of.mean():.3f}", f"{ends[0]:.3f} to {ends[1]:.3f}", verdict])
    return pd.DataFrame(table, columns=["reading", "stopped", "distance", "95% interval", str(NEAR)])
