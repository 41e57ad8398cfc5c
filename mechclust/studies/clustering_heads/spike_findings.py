"""Findings on parts whose freezing removes loss spikes, and on settings that make spikes rarer: H4."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Finding, paired_share_part
from mechclust.evidence.compared import compared
from mechclust.studies.clustering_heads.claims import FIRST_PAPER
from mechclust.studies.clustering_heads.config import MITIGATIONS, ClusteringHeadsConfig
from mechclust.studies.clustering_heads.replay import FROZEN
from mechclust.studies.clustering_heads.results import HeadsResults, NetworkTraining

_FROZEN_NAMES = {
    "norm direction": "the direction of the normalised embedding",
    "norm scale": "the scale of the norm",
    "wedges": "the feed-forward layer's gates",
}
_OTHER = "norm scale"  # frozen in the control
_SOLVED = "share solved, mitigated - base"
_AFTER = "epochs after solving, mitigated - base (share)"

_Pairs = Sequence[tuple[NetworkTraining, NetworkTraining]]  # of the base setting, and mitigated
_Gone = Float[np.ndarray, "spike frozen"]


def spike_findings(config: ClusteringHeadsConfig, results: HeadsResults) -> list[Finding]:
    """Return H4a, H4b, H4d and H4f."""
    return [
        _replayed("H4a", results, "norm direction"),
        _replayed("H4f", results, "wedges"),
        _mitigated("H4b", config, results, MITIGATIONS[0], 0),
        _mitigated("H4d", config, results, MITIGATIONS[2], config.epochs // 2),  # from where the rate drops
    ]


def _replayed(id: str, results: HeadsResults, part: str) -> Finding:
    networks = [network.replay["gone"].numpy() for network in results.networks.values()]
    runs = [gone for gone in networks if len(gone)]
    return compared(
        id,
        f"loss spikes after solving, replayed: with {_FROZEN_NAMES[part]} frozen they disappear more often than with "
        "the attention pattern frozen (difference of shares, one mean per network)",
        {"": Bound(">", 0)},
        [_gone_more_often(runs, part)],
        f"{_FROZEN_NAMES[_OTHER]} frozen instead",
        [_gone_more_often(runs, _OTHER)],
        source=f"{FIRST_PAPER}; replay ours",
        not_tested="" if runs else "no loss spike after the task was solved",
        note=_gone_note(runs),
    )


def _gone_more_often(runs: Sequence[_Gone], part: str) -> list[float]:
    """Return how much more often spikes of a run disappear with a part frozen than with attention frozen."""
    place = FROZEN.index(part)
    attention = FROZEN.index("attention")
    return [gone[:, place].mean() - gone[:, attention].mean() for gone in runs]


def _gone_note(runs: Sequence[_Gone]) -> str:
    if not runs:
        return ""
    spikes = np.concatenate(runs)
    shares = ", ".join(f"{name} {share:.2f}" for name, share in zip(FROZEN, spikes.mean(axis=0), strict=True))
    return f"{len(spikes)} spikes of {len(runs)} networks; shares gone: {shares}"


def _mitigated(id: str, config: ClusteringHeadsConfig, results: HeadsResults, arm: str, start: int) -> Finding:
    """Judge whether a mitigation makes spikes rarer from the epoch ``start`` on."""
    treated = results.mitigated.get(arm, {})
    base = [network for seed, network in results.networks.items() if seed in treated]
    pairs = [(network, treated[network.seed]) for network in base]
    untreated = [(network, base[i - 1]) for i, network in enumerate(base)] if len(base) > 1 else []
    when = f" and epoch {start:,}" if start else ""
    counted = " from then on" if start else ""
    return compared(
        id,
        f"a {arm} makes spikes rarer: spikes after both networks of a seed have solved the task{when}, per 100 of all "
        f"epochs{counted}, base minus mitigated, over all seeds (0 if one of them never solves it), while the share of "
        "networks that solve the task and the share of epochs after solving fall by at most .1",
        {"": Bound(">", 0), _SOLVED: Bound(">=", -0.1), _AFTER: Bound(">=", -0.1)},
        _calmer(pairs, config.epochs, start),
        "other seeds of the base setting instead",
        _calmer(untreated, config.epochs, start),
        make_part={_SOLVED: paired_share_part},
        source=f"{FIRST_PAPER}; mitigations ours",
        not_tested="" if pairs else "this mitigation was not run",
        note=_counts_note(pairs, start),
    )


def _calmer(pairs: _Pairs, epochs: int, start: int) -> list[Float[np.ndarray, "pair"]]:
    """Return how many fewer spikes the second of each pair has, and whether it solves the task as often and as soon."""
    spikes, mitigated_spikes = _columns(_spikes(pairs, start))
    solved, mitigated_solved = _columns([[network.solved for network in pair] for pair in pairs])
    solved_at, mitigated_solved_at = _columns([[max(run.solved_or_end, start) for run in pair] for pair in pairs])
    counted = max(1, epochs - start)
    return [
        (spikes - mitigated_spikes) / (counted / 100),
        mitigated_solved - solved,
        (solved_at - mitigated_solved_at) / counted,
    ]


def _columns(pairs: Sequence[Sequence[float]]) -> Float[np.ndarray, "2 pair"]:
    return np.array(pairs, dtype=float).reshape(-1, 2).T


def _spikes(pairs: _Pairs, start: int) -> list[list[int]]:
    """Return the numbers of loss spikes of each pair after ``start`` and after both have solved the task.

    They are 0 if one of them never solves it.
    """
    counts = []
    for pair in pairs:
        first = max(start, *(run.solved_or_end for run in pair))
        counts.append([sum(spike.epoch > first for spike in run.spikes) for run in pair])
    return counts


def _counts_note(pairs: _Pairs, start: int) -> str:
    if not pairs:
        return ""
    base, mitigated = np.sum(_spikes(pairs, start), axis=0)
    both = sum(one.solved_at is not None and other.solved_at is not None for one, other in pairs)
    base_solved = np.mean([network.solved for network, _ in pairs])
    mitigated_solved = np.mean([network.solved for _, network in pairs])
    return (
        f"spikes after both have solved it {base:g} and {mitigated:g}, in {both} seeds; solved {base_solved:.2f} and "
        f"{mitigated_solved:.2f}"
    )
