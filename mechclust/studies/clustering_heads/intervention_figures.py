"""Figures of interventions: stitched networks, replayed spikes, mitigations, donors; the detector's ROC, full batch."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from mechclust.evidence.intervals import mean_interval
from mechclust.report.analysis import Panel
from mechclust.report.style import BLUE, GREEN, GREY, ORANGE, RED, subplots
from mechclust.studies.clustering_heads.config import MITIGATIONS, SOLVED, ClusteringHeadsConfig, counted_from
from mechclust.studies.clustering_heads.donors import KINDS
from mechclust.studies.clustering_heads.replay import FROZEN
from mechclust.studies.clustering_heads.results import (
    WEAK,
    HeadsResults,
    NetworkTraining,
    TrainedNetwork,
    spikes_in_both,
)

_MARK: dict[str, Any] = {"color": "#555555", "ls": ":", "lw": 1}
_NAME = {"attention": "attention\n(control)", "wedges": "feed-forward\ngates"}  # others have their own
_LEAST_LEFT = 1e-6  # of a spike, as drawn
_CUT = 0.97  # quantile of the gradient norms in view at which their linear scale ends
_IN_VIEW = 1.2  # end of the steps in view, over that of the last fall
_FLAT = 1e-7  # negative curvature below which its scale is linear
_STITCHED = {
    "accuracy": ("both from the epoch", GREY),
    "head_accuracy": ("head from the epoch", BLUE),
    "classifier_accuracy": ("classifier from the epoch", ORANGE),
}


def intervention_panels(config: ClusteringHeadsConfig, results: HeadsResults) -> list[Panel]:
    """The figures of the interventions that were run."""
    found = []

    def add(name: str, figure: Figure, caption: str) -> None:
        found.append(Panel(name, figure, caption))

    add(
        "stitching",
        stitching(results),
        "Networks stitched from two epochs: the head of an epoch with the final classifier, the reverse, and both "
        f"from the epoch. Dotted vertical line: the first epoch whose two parts together pass {SOLVED}. Right: when "
        f"each first passes {SOLVED} in the solved networks; above the dotted diagonal the head is first.",
    )
    if results.solved and results.weak:
        add(
            "roc",
            roc(results),
            f"Share of networks above {SOLVED} detected against share of networks at {WEAK} or below detected, as the "
            "largest deviation that counts as integer varies. Points: the detector's threshold.",
        )
    if _spikes(results):
        add(
            "replay",
            replay(results),
            "Left: share of the loss spikes after solving that disappear when a part is frozen as it was before, mean "
            "over runs with its 95% interval, one point per run. Right: the loss before every spike, and after the "
            "step with a part frozen, as a share of the loss at the spike (1e-6 or less drawn there); bars: medians.",
        )
    if results.mitigated.get(MITIGATIONS[0]):
        add(
            "mitigations",
            mitigations(config, results),
            "Spikes after both networks of a seed have solved the task, in the base setting and with a mitigation; all "
            "seeds. Points are jittered slightly so that equal ones show.",
        )
    if results.solved:
        add(
            "donors",
            donors(results),
            "Solved networks: share of predictions that become those of a donor with a different sum and answer when "
            "the sequence embedding is the mean of the donor's class, or that of a random class of the same size.",
        )
    if results.full_batch:
        add(
            "full_batch",
            full_batch(config, results),
            "Full batch: training loss, and the gradient norm by layer on a linear and a logarithmic scale, up to a "
            "little after the last fall of the loss, for the first two seeds that solve the task with two or more "
            "falls (where there are fewer, those with more falls come first). Grey: where the loss falls. Linear "
            f"scale: up to the {_CUT:.0%} quantile of the norms in view, the first hundredth of training left out; "
            "above each panel, the largest of them.",
        )
    if results.curvature:
        add(
            "saddle",
            saddle(config, results),
            "Full batch: training loss and the smallest eigenvalues of the Hessian over training (the scale is linear "
            "near 0), for the run with the most falls of the loss among those that solve the task. Grey: where the "
            "loss falls. Right: minus the smallest eigenvalue over the largest, median on the plateaus, and at the "
            f"end, one line per run that solves the task (the scale is linear below {_FLAT:g}).",
        )
    return found


def stitching(results: HeadsResults) -> Figure:
    """Accuracies of stitched networks over epochs, and the dates at which both parts are ready."""
    shown = sorted(results.networks.values(), key=lambda n: (not n.solved, n.seed))[:3]
    figure, axes = subplots(len(shown) + 1, size=(4, 3.4), grid=None)
    for axis, network in zip(axes, shown, strict=False):
        _stitched(axis, network)
    axes[0].set_ylabel("test accuracy")
    axes[0].legend(frameon=False, fontsize=8, loc="lower right")
    dates: list[Any] = [(n.ready_at("head"), n.ready_at("classifier")) for n in results.solved]
    axes[-1].axline((0, 0), slope=1, **_MARK)
    if not dates:
        axes[-1].text(0.5, 0.4, "no network solved", ha="center", transform=axes[-1].transAxes, color=GREY)
    axes[-1].scatter([a for a, _ in dates], [b for _, b in dates], color=BLUE, alpha=0.7, s=24)
    axes[-1].set_title("solved networks", loc="left", fontsize=10)
    axes[-1].set(xlabel="head ready (epoch)", ylabel="classifier ready (epoch)", xlim=(0, None), ylim=(0, None))
    return figure


def _stitched(axis: Any, network: TrainedNetwork) -> None:
    for name, (label, color) in _STITCHED.items():
        axis.plot(network.stitching[name].numpy(), color=color, lw=0.9, label=label)
    if network.solved_at is not None:
        axis.axvline(network.solved_at, **_MARK)
    axis.set(xlabel="epoch", ylim=(-0.03, 1.03))
    axis.set_title(f"seed {network.seed}" + ("" if network.solved else ", not solved"), loc="left", fontsize=10)


def roc(results: HeadsResults) -> Figure:
    """ROC curves of the detector on the line alone, and on the line or a plane."""
    from sklearn.metrics import roc_auc_score, roc_curve

    from probes.clustering_head import INTEGER_DEVIATION

    networks = [*results.solved, *results.weak]
    solved = np.array([n.solved for n in networks])
    figure, (axis,) = subplots(1, size=(4.6, 4.2), grid=None)
    axis.axline((0, 0), slope=1, **_MARK)
    for plane, label, color in ((False, "line", BLUE), (True, "line or plane", ORANGE)):
        score = np.array([n.score(plane=plane) for n in networks])
        false, true, _ = roc_curve(solved, score)
        axis.plot(false, true, color=color, label=f"{label}: area {roc_auc_score(solved, score):.3f}")
        at = score > -INTEGER_DEVIATION
        axis.plot(at[~solved].mean(), at[solved].mean(), "o", color=color)
    axis.set(xlabel=f"networks at {WEAK} or below detected", ylabel="solved networks detected", ylim=(-0.02, 1.02))
    axis.legend(frameon=False, loc="lower right")
    return figure


def _spikes(results: HeadsResults) -> list[Any]:
    return [n.replay for n in results.networks.values() if len(n.replay["gone"])]


def replay(results: HeadsResults) -> Figure:
    """Which spikes disappear when a part is frozen, and what is left of each spike's loss."""
    runs = _spikes(results)
    figure, (left, right) = subplots(2, size=(6, 3.6), grid=None)
    means = np.array([r["gone"].numpy().mean(axis=0) for r in runs])
    jitter = np.random.default_rng(0).uniform(-0.15, 0.15, means.shape)
    for place in range(len(FROZEN)):
        color = RED if FROZEN[place] == "attention" else BLUE
        left.bar(place, means[:, place].mean(), color=color, alpha=0.3)
        left.plot(place + jitter[:, place], means[:, place], "o", color=color, ms=3, alpha=0.5)
        if span := mean_interval(means[:, place].tolist()):
            left.vlines(place, *span, color=color, lw=2)
    left.set_xticks(range(len(FROZEN)), [_NAME.get(name, name.replace(" ", "\n")) for name in FROZEN], fontsize=8)
    left.set(ylabel="share of spikes that disappear", ylim=(0, 1.03))
    names = ("before", *FROZEN)
    left_of = np.concatenate([np.column_stack([r["quiet_loss"], r["loss"]]) / r["spike_loss"][:, None] for r in runs])
    right.axhline(1, **_MARK)
    for place, (name, values) in enumerate(zip(names, np.maximum(left_of, _LEAST_LEFT).T, strict=True)):
        color = {"attention": RED, "before": GREY}.get(name, BLUE)
        spread = np.random.default_rng(1).uniform(-0.25, 0.25, len(values))
        right.plot(place + spread, values, "o", color=color, ms=2.5, mew=0, alpha=0.45)
        right.plot([place - 0.35, place + 0.35], [np.median(values)] * 2, color=color, lw=2)
    right.set_xticks(range(len(names)), [_NAME.get(name, name.replace(" ", "\n")) for name in names], fontsize=8)
    right.set(ylabel="loss / loss at the spike", yscale="log")
    return figure


def mitigations(config: ClusteringHeadsConfig, results: HeadsResults) -> Figure:
    """Spikes in the base setting against those with a mitigation, one point per seed."""
    arms = [arm for arm in MITIGATIONS if results.mitigated.get(arm)]
    figure, axes = subplots(len(arms), size=(3.8, 3.6), grid=None)
    draw = np.random.default_rng(0)
    for axis, arm in zip(axes, arms, strict=True):
        start = counted_from(config, arm)
        there = results.mitigated[arm]
        pairs = [spikes_in_both(n, there[s], start) for s, n in results.networks.items() if s in there]
        x, y = np.array(pairs, dtype=float).T + draw.uniform(-0.2, 0.2, (2, len(pairs)))
        axis.axline((0, 0), slope=1, **_MARK)
        axis.plot(x, y, "o", color=BLUE, alpha=0.5, ms=4, mew=0)
        most = max(3.0, float(np.max(pairs)))
        axis.set(xlabel="spikes, base", title=arm, xlim=(-0.5, most + 0.5), ylim=(-0.5, most + 0.5))
        axis.locator_params(integer=True)
    axes[0].set_ylabel("spikes, mitigated")
    return figure


def donors(results: HeadsResults) -> Figure:
    """Share of predictions that follow a donor, by what replaces the sequence embedding."""
    found = [n.donors for n in results.solved]
    figure, axes = subplots(2, size=(4.4, 3.4), grid=None, sharey=True)
    draw = np.random.default_rng(0)
    for axis, partition, title in zip(
        axes, ("head", "sum"), ("the head's clusters", "the support's sums"), strict=True
    ):
        for place, (kind, color) in enumerate(zip(KINDS, (BLUE, RED), strict=True)):
            values = np.array([float(d.sel("follows", partition=partition, kind=kind)) for d in found])
            axis.plot(place + draw.uniform(-0.15, 0.15, len(values)), values, "o", color=color, ms=4, alpha=0.6)
            axis.plot([place - 0.25, place + 0.25], [values.mean()] * 2, color=color, lw=2)
        axis.set_xticks(range(len(KINDS)), ["mean of the donor's class", "of a random class"], fontsize=8)
        axis.set(title=title, ylim=(-0.03, 1.03))
    axes[0].set_ylabel("predictions that follow")
    return figure


def full_batch(config: ClusteringHeadsConfig, results: HeadsResults) -> Figure:
    """Loss and gradient norms by layer, linear and logarithmic, with the phases in which the loss falls."""
    p = config.task.p
    shown = shown_full_batch(results, p)
    figure, axes = subplots(3 * len(shown), len(shown), size=(5.2, 2.3), sharex="col")
    for column, (seed, run) in enumerate(shown.items()):
        loss, gradients, logarithmic = axes[column :: len(shown)]
        steps = steps_of(run)
        loss.plot(steps, run.curve("train_loss"), color=BLUE, lw=0.9)
        groups = run.dynamics.coords["group"][:-1]
        curves = run.curve("gradient_norm")
        for group, values, color in zip(groups, curves.T, (BLUE, ORANGE, GREEN), strict=False):
            for axis in (gradients, logarithmic):
                axis.plot(steps, values, color=color, lw=0.9, label=group)
        drops = run.drops(p)
        for drop in drops:
            for axis in (loss, gradients, logarithmic):
                axis.axvspan(steps[drop.start], steps[drop.end], color="#000000", alpha=0.08, lw=0)
        end = min(steps[-1], _IN_VIEW * steps[drops[-1].end]) if drops else steps[-1]
        norms = curves[len(curves) // 100 : 1 + int(np.searchsorted(steps, end)), :-1]
        gradients.set(ylim=(0, float(np.nanquantile(norms, _CUT)) or 1.0))
        largest = f"cut off; largest {np.nanmax(norms):.2g}"
        gradients.set_title(largest, loc="right", fontsize=8, color="#555555")
        logarithmic.set(xlabel="step", yscale="log", xlim=(0, end))
        if (norms > 0).any():
            logarithmic.set(ylim=(0.7 * float(np.nanmin(norms[norms > 0])), 1.5 * float(np.nanmax(norms))))
        loss.set_title(f"seed {seed}", loc="left", fontsize=10)
    axes[0].set_ylabel("training loss (nats)")
    axes[len(shown)].set_ylabel("gradient norm")
    axes[2 * len(shown)].set_ylabel("gradient norm")
    figure.legend(*axes[-1].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def shown_full_batch(results: HeadsResults, p: int) -> dict[int, NetworkTraining]:
    """Two full-batch runs by seed: the first that solve the task with two or more falls, or those nearest to that."""

    def rank(pair: tuple[int, NetworkTraining]) -> tuple[bool, int, int]:
        seed, run = pair
        falls = min(2, len(run.drops(p)))
        return not (falls == 2 and run.curve("test_accuracy")[-1] > SOLVED), -falls, seed

    return dict(sorted(results.full_batch.items(), key=rank)[:2])


def steps_of(run: NetworkTraining) -> np.ndarray:
    """``[snapshot]`` steps of a full-batch run, of which an epoch has one."""
    return np.array([int(epoch) for epoch in run.dynamics.coords["epoch"]])


def saddle(config: ClusteringHeadsConfig, results: HeadsResults) -> Figure:
    """Loss and smallest eigenvalues of the Hessian along one run, and negative curvature of all runs."""
    p = config.task.p
    seeds = [seed for seed in results.curvature if seed in results.full_batch]
    pairs = results.saddles(p)
    seed = max(pairs or seeds, key=lambda s: len(results.full_batch[s].drops(p)))
    run, measured = results.full_batch[seed], results.curvature[seed]
    figure, (loss, values, right) = subplots(3, size=(4.6, 3.4), grid=None)
    steps = steps_of(run)
    at = steps[[int(place) for place in measured.coords["snapshot"]]]
    loss.plot(steps, run.curve("train_loss"), color=BLUE, lw=0.9)
    smallest = measured["smallest"].numpy()
    values.plot(at, smallest, color=ORANGE, lw=0.9, marker=".", ms=4)
    values.axhline(0, **_MARK)
    for drop in run.drops(p):
        for axis in (loss, values):
            axis.axvspan(steps[drop.start], steps[drop.end], color="#000000", alpha=0.08, lw=0)
    shown = at[-2] * 1.1 if len(at) > 2 else steps[-1]  # the last is the end of training
    loss.set(xlabel="step", ylabel="training loss (nats)", xlim=(0, shown))
    loss.set_title(f"seed {seed}", loc="left", fontsize=10)
    small = float(np.nanmedian(np.abs(smallest))) if np.isfinite(smallest).any() else 1.0
    linear = max(small / 10, 1e-6)
    values.set_yscale("symlog", linthresh=linear)
    low, high = np.nanmin(smallest, initial=0.0), np.nanmax(smallest, initial=0.0)
    values.set(xlabel="step", ylabel="smallest eigenvalues", xlim=(0, shown))
    values.set_ylim(min(2 * low, -linear / 2), max(2 * high, linear / 2))
    for pair in pairs.values():
        right.plot((0, 1), pair, color=BLUE, lw=0.7, alpha=0.6, marker="o", ms=3)
    right.set_xticks((0, 1), ("plateaus", "end"))
    right.axhline(0, **_MARK)
    right.set_yscale("symlog", linthresh=_FLAT)
    every = np.array([0.0, *(value for pair in pairs.values() for value in pair)])
    right.set_ylim(min(2 * np.nanmin(every), -_FLAT / 2), max(2 * np.nanmax(every), _FLAT))
    right.set(ylabel="- smallest / largest eigenvalue", xlim=(-0.4, 1.4))
    return figure
