"""Networks that start with the ideal head or its positions: H8 and H9."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mechclust.evidence import Bound, Finding, paired_share_part
from mechclust.evidence.compared import compared
from mechclust.studies.clustering_heads.claims import FIRST_PAPER
from mechclust.studies.clustering_heads.config import IDEAL_POSITIONS, MITIGATIONS
from mechclust.studies.clustering_heads.detector import is_textbook
from mechclust.studies.clustering_heads.results import HeadsResults, NetworkTraining, TrainedNetwork

_OTHER_START = "start positions x3"


def start_findings(results: HeadsResults) -> list[Finding]:
    """Return H8, H8b, H9 and H9b."""
    return [*_second_stage(results), *_ideal_positions(results)]


def _second_stage(results: HeadsResults) -> list[Finding]:
    alone = results.second_stage
    base = [network for seed, network in results.networks.items() if seed in alone]
    base_solved = [network.solved for network in base]
    larger_eps = results.mitigated.get(MITIGATIONS[0], {})
    dates = [(network.solved_or_end, alone[network.seed].solved_or_end) for network in base]
    not_run = "" if alone else "the second stage was not run"
    return [
        compared(
            "H8",
            "the feed-forward layer alone, on the frozen ideal head: share of networks that solve the task",
            {"": Bound(">=", 0.85)},
            [[run.solved for run in alone.values()]],
            "the base setting",
            [base_solved],
            shares=[""],
            source=f"{FIRST_PAPER}; second stage alone",
            not_tested=not_run,
            note=f"the base setting with these seeds: {np.mean(base_solved):.2f}" if base else "",
        ),
        compared(
            "H8b",
            "the second stage alone is solved sooner (epoch at which the base setting solves the task minus that of "
            "the second stage, same seeds; the last epoch if it never does)",
            {"": Bound(">", 0)},
            [_sooner(base, alone)],
            "a larger eps instead",
            [_sooner(base, larger_eps)],
            source="ours",
            not_tested=not_run,
            note="medians {:g} and {:g}".format(*np.median(dates, axis=0)) if base else "",
        ),
    ]


def _sooner(base: Sequence[TrainedNetwork], runs: Mapping[int, NetworkTraining]) -> list[int]:
    """Return by how many epochs runs solve the task before the base setting with the same seeds."""
    return [network.solved_or_end - runs[network.seed].solved_or_end for network in base if network.seed in runs]


def _ideal_positions(results: HeadsResults) -> list[Finding]:
    return [
        _more_often("H9", "solve the task", _solved(results, IDEAL_POSITIONS), _solved(results, _OTHER_START)),
        _more_often(
            "H9b", "have a textbook head", _textbook(results, IDEAL_POSITIONS), _textbook(results, _OTHER_START)
        ),
    ]


_Outcomes = Sequence[tuple[float, float]]  # of networks with a start, and in the base setting


def _more_often(id: str, outcome: str, outcomes: _Outcomes, control: _Outcomes) -> Finding:
    started, base = np.array(outcomes, dtype=float).reshape(-1, 2).T
    other_started, other_base = np.array(control, dtype=float).reshape(-1, 2).T
    return compared(
        id,
        f"networks that start with the ideal position embeddings {outcome} more often than the same seeds in the base "
        "setting (difference of shares)",
        {"": Bound(">", 0)},
        [started - base],
        "position embeddings three times as large instead",
        [other_started - other_base],
        make_part={"": paired_share_part},
        source=f"{FIRST_PAPER}; ours",
        not_tested="" if outcomes else "no network started with ideal positions",
        note=f"{started.mean():.2f} and {base.mean():.2f}" if outcomes else "",
    )


def _solved(results: HeadsResults, start: str) -> _Outcomes:
    """Return whether networks solve the task."""
    solved = results.solved_by_seed(start)
    return [(solved[network.seed], network.solved) for network in _base(results, start)]


def _textbook(results: HeadsResults, start: str) -> _Outcomes:
    """Return whether networks have a textbook head."""
    heads = results.started.get(start, {})
    return [(is_textbook(heads[network.seed]), network.textbook) for network in _base(results, start)]


def _base(results: HeadsResults, start: str) -> list[TrainedNetwork]:
    """Return the networks of the base setting whose seeds were also run with a start."""
    seeds = results.started.get(start, {}).keys() & results.solved_by_seed(start).keys()
    return [network for seed, network in results.networks.items() if seed in seeds]
