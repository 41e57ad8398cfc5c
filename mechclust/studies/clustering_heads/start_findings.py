"""Networks that start with the ideal head or its positions: H8 and H9."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mechclust.evidence import Bound, Finding, Part, mean_part, share_part
from mechclust.studies.clustering_heads.config import IDEAL_POSITIONS, MITIGATIONS
from mechclust.studies.clustering_heads.controls import FIRST_PAPER, control_of
from mechclust.studies.clustering_heads.detector import is_textbook
from mechclust.studies.clustering_heads.results import HeadsResults, NetworkTraining, TrainedNetwork
from mechclust.studies.clustering_heads.solved_findings import more_often

_OTHER_START = "start positions x3"


def start_findings(results: HeadsResults) -> list[Finding]:
    """Return H8, H8b, H9 and H9b."""
    return [*_second_stage(results), *_ideal_positions(results)]


def _second_stage(results: HeadsResults) -> list[Finding]:
    runs = results.second_stage
    base = [network for seed, network in results.networks.items() if seed in runs]
    share = np.mean([network.solved for network in base]) if base else np.nan
    dates = np.array([[network.solved_or_end, runs[network.seed].solved_or_end] for network in base]).reshape(-1, 2)
    not_run = "" if runs else "the second stage was not run"
    return [
        Finding(
            id="H8",
            statement="the feed-forward layer alone, on the frozen ideal head: share of networks that solve the task",
            source=f"{FIRST_PAPER}; second stage alone",
            parts=_solve(list(runs.values())),
            control=control_of("the base setting", _solve(base)),
            not_tested=not_run,
            note=f"the base setting with these seeds: {share:.2f}" if base else "",
        ),
        Finding(
            id="H8b",
            statement="the second stage alone is solved sooner (epoch at which the base setting solves the task minus "
            "that of the second stage, same seeds; the last epoch if it never does)",
            source="ours",
            parts=_sooner(base, runs),
            control=control_of("a larger eps instead", _sooner(base, results.mitigated.get(MITIGATIONS[0], {}))),
            not_tested=not_run,
            note="medians {:g} and {:g}".format(*np.median(dates, axis=0)) if base else "",
        ),
    ]


def _ideal_positions(results: HeadsResults) -> list[Finding]:
    solved, textbook = _by_start(results, IDEAL_POSITIONS)
    other_solved, other_textbook = _by_start(results, _OTHER_START)
    return [
        _more("H9", "solve the task", solved, other_solved),
        _more("H9b", "have a textbook head", textbook, other_textbook),
    ]


Outcomes = tuple[Sequence[float], Sequence[float]]


def _more(id: str, what: str, outcomes: Outcomes, control: Outcomes) -> Finding:
    after, before = outcomes
    return Finding(
        id=id,
        statement=f"networks that start with the ideal position embeddings {what} more often than the same seeds in "
        "the base setting (difference of shares)",
        source=f"{FIRST_PAPER}; ours",
        parts=more_often(after, before),
        control=control_of("position embeddings three times as large instead", more_often(*control)),
        not_tested="" if len(after) else "no network started with ideal positions",
        note=f"{np.mean(after):.2f} and {np.mean(before):.2f}" if len(after) else "",
    )


# ---- what is measured ----


def _solve(runs: Sequence[NetworkTraining]) -> tuple[Part, ...]:
    return (share_part("", [run.solved for run in runs], Bound(">=", 0.85)),)


def _sooner(base: Sequence[TrainedNetwork], runs: Mapping[int, NetworkTraining]) -> tuple[Part, ...]:
    """Judge whether runs solve the task at an earlier epoch than the base setting with the same seeds."""
    differences = [network.solved_or_end - runs[network.seed].solved_or_end for network in base if network.seed in runs]
    return (mean_part("", differences, Bound(">", 0)),)


def _by_start(results: HeadsResults, arm: str) -> tuple[Outcomes, Outcomes]:
    """Return which networks solve the task, and which have a textbook head: with a start, and in the base setting."""
    heads = results.started.get(arm, {})
    solved = results.solved_by_seed(arm)
    base = [network for seed, network in results.networks.items() if seed in heads and seed in solved]
    return (
        ([solved[network.seed] for network in base], [network.solved for network in base]),
        ([is_textbook(heads[network.seed]) for network in base], [network.textbook for network in base]),
    )
