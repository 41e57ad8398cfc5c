"""Measure the false positives of every p-value and interval of the probes, at a nominal 5%, and write the table.

``python -m tests.calibration`` measures what ``tests/calibration/rates.csv`` lacks and writes
``docs/calibration.md``. It takes hours: it can be stopped and started again, and ``--only TEXT`` measures some rows.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from probes.functional import wilson_interval
from tests.calibration import (
    ari_moments,
    halves,
    head_roles,
    logit_lens,
    neighbour_purity,
    topic_attention,
    topic_embedding,
    units,
)

ROOT = Path(__file__).parents[2]
RATES = ROOT / "tests" / "calibration" / "rates.csv"
PAGE = ROOT / "docs" / "calibration.md"
SECONDS_PER_ROW = 240  # fewer than 2,000 draws if they take longer
FIELDS = ("what", "case", "calls", "draws")
SUMMARISED = (  # one row each, since all cases are alike
    "Topic attention",
    "Interval from halves",
    "HeadRoles, a role of a head",
    "TaskClusterARI by moments",
    "NeighbourPurity, interval",
    "TopicEmbedding",
    "LogitLens, interval above chance",
)
SEED = 1000


@dataclass(frozen=True)
class Row:
    """One rate: what is measured, in which case, and how."""

    what: str
    case: str
    rate: Callable[[int, int], tuple[int, int]]


def rows() -> Iterator[Row]:
    """Yield every row of the table."""
    for case in units.CASES:
        yield Row(case, "without units", partial(units.false_positive_rate, case=case, use_units=False))
        if "independent" not in case:
            yield Row(case, "with units", partial(units.false_positive_rate, case=case, use_units=True))
    for name, module in {
        "TaskClusterARI by moments": ari_moments,
        "NeighbourPurity, interval": neighbour_purity,
        "Topic attention": topic_attention,
        "HeadRoles, a role of a head": head_roles,
        "Interval from halves": halves,
        "TopicEmbedding": topic_embedding,
        "LogitLens, interval above chance": logit_lens,
    }.items():
        for case in module.CASES:
            yield Row(name, case, partial(module.false_positive_rate, case=case))


def measure(row: Row, most: int = 2000, step: int = 50) -> tuple[int, int]:
    """Return the calls among up to ``most`` draws, as many as fit in ``SECONDS_PER_ROW``."""
    start, calls, draws = time.monotonic(), 0, 0
    while draws < most and time.monotonic() - start < SECONDS_PER_ROW:
        found, drawn = row.rate(step, SEED + 100_000 * (1 + draws // step))
        calls += found
        draws += drawn
        if not draws:  # none of them has a p-value
            break
    return calls, draws


def read() -> dict[tuple[str, str], tuple[int, int]]:
    """Return the rates that were measured: calls and draws by row."""
    if not RATES.exists():
        return {}
    with RATES.open() as file:
        return {(r["what"], r["case"]): (int(r["calls"]), int(r["draws"])) for r in csv.DictReader(file)}


def write(found: dict[tuple[str, str], tuple[int, int]]) -> None:
    """Write the measured rates, and the page."""
    RATES.parent.mkdir(parents=True, exist_ok=True)
    with RATES.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS)
        in_order = [(row.what, row.case) for row in rows()]
        writer.writerows([*key, *found[key]] for key in in_order if key in found)
    PAGE.write_text(page(read()))


def page(found: dict[tuple[str, str], tuple[int, int]]) -> str:
    """Return the page of the documentation."""
    by_units = []
    for case in units.CASES:
        rates = [_rate(*found.get((case, column), (0, 0))) for column in ("without units", "with units")]
        if any(rates):
            by_units.append(f"| {case} | {rates[0]} | {rates[1]} |")
    others = []
    for (what, case), (calls, draws) in found.items():
        if draws and what not in units.CASES and not _summarised(what, case):  # some cases have no p-value
            others.append(f"| {what} | {case} | {_rate(calls, draws)} |")
    for name in SUMMARISED:
        rates = [rate for (what, case), rate in found.items() if what == name and _summarised(what, case)]
        shares = [calls / draws for calls, draws in rates if draws]
        if shares:
            others.append(f"| {name} | {len(shares)} cases | {min(shares):.1%} to {max(shares):.1%} |")
    return _TEXT.format(by_units="\n".join(by_units), others="\n".join(others))


def _summarised(what: str, case: str) -> bool:
    """Return whether a case is part of its test's single row. The interval at equal distance is another test."""
    return what in SUMMARISED and not case.startswith("matched")


def _rate(calls: int, draws: int) -> str:
    if not draws:
        return ""
    low, high = wilson_interval(calls, draws)
    return f"{calls / draws:.1%} ({low:.1%} to {high:.1%})"


_TEXT = """# False positives

**With `units`, or with independent prompts, no test of a probe finds an effect too often, unless units of one class are
larger than those of others. Without `units`, prompts that share a template or are repeated give false positives in 11%
to 100% of draws.**

Classes, templates and models were drawn without any effect, so every call is false. The 95% interval of the rate
should contain the nominal 5%, or lie below it. Rates below 3% come from Holm's correction, from few distinct
relabellings, or from an interval that is too wide. *Share* is the part of the variance of hidden states that templates
explain.

Whole units exchange labels. If templates of one class have more prompts, this class is smaller in the shuffled labels,
and so is the accuracy of a constant answer (`majority`). A note says so; give each class templates of about equal
sizes.

| test and case: called at a nominal 5% (95% interval) | without units | with units |
|---|---|---|
{by_units}

A case has 2,000 draws, or fewer if they are slow (30 to 400). `tests/calibration/rates.csv` has every case. *Interval
from halves* counts intervals that miss a planted value. `HeadRoles` is judged on all pairs of a head and a role in 200
untrained models. The interval of `DistanceMatchedTopicAttention` (*matched*) is no test, as [its
page](probes/topic-attention.md#at-equal-distance) says.

| test | case | called at a nominal 5% (95% interval) |
|---|---|---|
{others}
"""


def main() -> None:
    """Measure the rows that are missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="measure the rows whose name contains this text")
    only = parser.parse_args().only
    found = read()
    for row in rows():
        key = (row.what, row.case)
        if key in found or only not in " ".join(key):
            continue
        found[key] = measure(row)
        print(*key, *found[key], flush=True)
        write(found)
    write(found)


if __name__ == "__main__":
    main()
