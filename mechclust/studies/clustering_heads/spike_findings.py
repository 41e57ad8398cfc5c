"""What removes loss spikes when it is frozen, and which settings make them rarer: H4."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Finding, Part, mean_part, paired_share_part
from mechclust.studies.clustering_heads.config import MITIGATIONS, ClusteringHeadsConfig, counted_from
from mechclust.studies.clustering_heads.controls import FIRST_PAPER, control_of
from mechclust.studies.clustering_heads.replay import FROZEN
from mechclust.studies.clustering_heads.results import HeadsResults, NetworkTraining, spikes_in_both

_TREATED = {"H4b": MITIGATIONS[0], "H4d": MITIGATIONS[2]}
_WHAT = {
    "norm direction": "the direction of the normalised embedding",
    "norm scale": "the scale of the norm",
    "wedges": "the feed-forward layer's gates",
    "feed-forward": "the feed-forward layer's weights",
}
# The frozen part of each finding, and that of its control.
_REPLAYED = {
    "H4a": ("norm direction", "norm scale"),
    "H4f": ("wedges", "norm scale"),
    "H4g": ("norm scale", "feed-forward"),
}

Pairs = Sequence[tuple[NetworkTraining, NetworkTraining]]


def spike_findings(config: ClusteringHeadsConfig, results: HeadsResults) -> list[Finding]:
    """Return H4a, H4b, H4d, H4f and H4g."""
    replayed = [_replayed(id, results, part, other) for id, (part, other) in _REPLAYED.items()]
    treated = [_mitigated(id, config, results, arm) for id, arm in _TREATED.items()]
    return [*replayed, *treated]


def _replayed(id: str, results: HeadsResults, part: str, other: str) -> Finding:
    every = [network.replay["gone"].numpy() for network in results.networks.values()]
    runs = [gone for gone in every if len(gone)]
    note = ""
    if runs:
        spikes = np.concatenate(runs)
        shares = ", ".join(f"{name} {share:.2f}" for name, share in zip(FROZEN, spikes.mean(axis=0), strict=True))
        note = f"{len(spikes)} spikes of {len(runs)} networks; shares gone: {shares}"
    return Finding(
        id=id,
        statement=f"loss spikes after solving, replayed: with {_WHAT[part]} frozen they disappear more often than "
        "with the attention pattern frozen (difference of shares, one mean per network)",
        source=f"{FIRST_PAPER}; replay ours",
        parts=_gone_more_often(runs, part),
        control=control_of(f"{_WHAT[other]} frozen instead", _gone_more_often(runs, other)),
        not_tested="" if runs else "no loss spike after the task was solved",
        note=note,
    )


def _mitigated(id: str, config: ClusteringHeadsConfig, results: HeadsResults, arm: str) -> Finding:
    start = counted_from(config, arm)
    treated = results.mitigated.get(arm, {})
    base = [network for seed, network in results.networks.items() if seed in treated]
    pairs = [(network, treated[network.seed]) for network in base]
    others = np.random.default_rng(0).permutation(len(base))
    untreated = [(network, base[other]) for network, other in zip(base, others, strict=True)]
    when = f" and epoch {start:,}" if start else ""
    return Finding(
        id=id,
        statement=f"a {arm} makes spikes rarer: spikes per 100 epochs after both networks of a seed have solved the "
        f"task{when}, base minus mitigated, over all seeds (0 if one of them never solves it), while the share of "
        "networks that solve the task and the share of epochs after solving fall by at most .1",
        source=f"{FIRST_PAPER}; mitigations ours",
        parts=_calmer(pairs, config.epochs, start),
        control=control_of("other seeds of the base setting instead", _calmer(untreated, config.epochs, start)),
        not_tested="" if pairs else "this mitigation was not run",
        note=_counts(pairs, start),
    )


# ---- what is measured ----


def _gone_more_often(runs: Sequence[Float[np.ndarray, "spike frozen"]], part: str) -> tuple[Part, ...]:
    """Judge whether more spikes disappear with a part frozen than with the attention pattern frozen."""
    place = FROZEN.index(part)
    compared = FROZEN.index("attention")
    differences = [gone[:, place].mean() - gone[:, compared].mean() for gone in runs]
    return (mean_part("", differences, Bound(">", 0)),)


def _calmer(pairs: Pairs, epochs: int, start: int) -> tuple[Part, ...]:
    """Judge whether the second network of each pair has fewer spikes, and solves the task as often and as soon."""
    counts = _spikes(pairs, start)
    solved = np.array([[network.solved for network in pair] for pair in pairs], dtype=float).reshape(-1, 2)
    after = np.array([[epochs - max(network.solved_or_end, start) for network in pair] for pair in pairs], dtype=float)
    after = after.reshape(-1, 2)
    counted = max(1, epochs - start)
    return (
        mean_part("", (counts[:, 0] - counts[:, 1]) / (counted / 100), Bound(">", 0)),
        paired_share_part("share solved, mitigated - base", solved[:, 1] - solved[:, 0], Bound(">=", -0.1)),
        mean_part(
            "epochs after solving, mitigated - base (share)", (after[:, 1] - after[:, 0]) / counted, Bound(">=", -0.1)
        ),
    )


def _spikes(pairs: Pairs, start: int) -> Float[np.ndarray, "pair network"]:
    return np.array([spikes_in_both(base, treated, start) for base, treated in pairs], dtype=float).reshape(-1, 2)


def _counts(pairs: Pairs, start: int) -> str:
    if not pairs:
        return ""
    base, treated = _spikes(pairs, start).sum(axis=0)
    both = sum(one.solved_at is not None and other.solved_at is not None for one, other in pairs)
    shares = [np.mean([pair[place].solved for pair in pairs]) for place in (0, 1)]
    return (
        f"spikes after both have solved it {base:g} and {treated:g}, in {both} seeds; solved {shares[0]:.2f} and "
        f"{shares[1]:.2f}"
    )
