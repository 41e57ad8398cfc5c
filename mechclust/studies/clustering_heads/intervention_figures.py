"""Figures of interventions: stitched networks, replayed spikes, mitigations and donors, and of ROC and full batch."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.evidence.intervals import mean_interval
from mechclust.report.style import BLUE, GREEN, GREY, ORANGE, RED, subplots
from mechclust.studies.clustering_heads.config import MITIGATIONS, ClusteringHeadsConfig, counted_from
from mechclust.studies.clustering_heads.donors import KINDS
from mechclust.studies.clustering_heads.drawing import (
    GUIDE,
    REMARK,
    draw_cloud,
    draw_level,
    say_none,
    shade_falls,
    steps_of,
    title_left,
)
from mechclust.studies.clustering_heads.replay import FROZEN
from mechclust.studies.clustering_heads.results import (
    WEAK,
    HeadsResults,
    NetworkTraining,
    TrainedNetwork,
    spikes_in_both,
)
from probes import ProbeResult
from probes.clustering_head import INTEGER_DEVIATION

CUT = 0.97  # quantile of the gradient norms in view at which their linear scale ends
FLAT = 1e-7  # negative curvature below which its scale is linear
_STEPS_IN_VIEW = 1.2  # over the step at which the last fall ends
_LEAST_LEFT = 1e-6  # of a spike, as drawn
_CONTROL = "attention"
_BEFORE = "before"
_FROZEN_NAMES = {_CONTROL: "attention\n(control)", "wedges": "feed-forward\ngates"}  # others have their own
_STITCHED = {
    "accuracy": ("both from the epoch", GREY),
    "head_accuracy": ("head from the epoch", BLUE),
    "classifier_accuracy": ("classifier from the epoch", ORANGE),
}


def draw_intervention_figures(config: ClusteringHeadsConfig, results: HeadsResults) -> dict[str, Figure]:
    """Draw the figures of the interventions that were run."""
    drawn = {"stitching": stitching_figure(results)}
    if results.solved and results.weak:
        drawn["roc"] = roc_figure(results)
    if _replays(results):
        drawn["replay"] = replay_figure(results)
    if results.mitigated.get(MITIGATIONS[0]):
        drawn["mitigations"] = mitigations_figure(config, results)
    if results.solved:
        drawn["donors"] = donors_figure(results)
    if results.full_batch:
        drawn["full_batch"] = full_batch_figure(config, results)
    if results.curvature:
        drawn["saddle"] = saddle_figure(config, results)
    return drawn


def stitching_figure(results: HeadsResults) -> Figure:
    """Draw accuracies of stitched networks over epochs, and the dates at which both parts are ready."""
    shown = sorted(results.networks.values(), key=lambda network: (not network.solved, network.seed))[:3]
    figure, (*axes, dates) = subplots(len(shown) + 1, size=(4, 3.4), grid=None)
    for axis, network in zip(axes, shown, strict=True):
        _stitched(axis, network)
    axes[0].set_ylabel("test accuracy")
    axes[0].legend(frameon=False, fontsize=8, loc="lower right")
    dates.axline((0, 0), slope=1, **GUIDE)
    if not results.solved:
        say_none(dates, "no network solved", y=0.4)
    ready = np.array([(network.ready_at("head"), network.ready_at("classifier")) for network in results.solved])
    head, classifier = ready.reshape(-1, 2).T
    dates.scatter(head, classifier, color=BLUE, alpha=0.7, s=24)
    title_left(dates, "solved networks")
    dates.set(xlabel="head ready (epoch)", ylabel="classifier ready (epoch)", xlim=(0, None), ylim=(0, None))
    return figure


def _stitched(axis: Axes, network: TrainedNetwork) -> None:
    for name, (label, color) in _STITCHED.items():
        axis.plot(network.stitching[name].numpy(), color=color, lw=0.9, label=label)
    if network.solved_at is not None:
        axis.axvline(network.solved_at, **GUIDE)
    axis.set(xlabel="epoch", ylim=(-0.03, 1.03))
    title_left(axis, f"seed {network.seed}" if network.solved else f"seed {network.seed}, not solved")


def roc_figure(results: HeadsResults) -> Figure:
    """Draw ROC curves of the detector on the line alone, and on the line or a plane."""
    from sklearn.metrics import roc_auc_score, roc_curve

    networks = [*results.solved, *results.weak]
    solved = np.array([network.solved for network in networks])
    figure, (axis,) = subplots(1, size=(4.6, 4.2), grid=None)
    axis.axline((0, 0), slope=1, **GUIDE)
    for plane, label, color in ((False, "line", BLUE), (True, "line or plane", ORANGE)):
        score = np.array([network.score(plane=plane) for network in networks])
        false, true, _ = roc_curve(solved, score)
        axis.plot(false, true, color=color, label=f"{label}: area {roc_auc_score(solved, score):.3f}")
        detected = score > -INTEGER_DEVIATION
        axis.plot(detected[~solved].mean(), detected[solved].mean(), "o", color=color)
    axis.set(xlabel=f"networks at {WEAK} or below detected", ylabel="solved networks detected", ylim=(-0.02, 1.02))
    axis.legend(frameon=False, loc="lower right")
    return figure


# ---- replayed spikes, mitigations, donors ----


def _replays(results: HeadsResults) -> list[ProbeResult]:
    return [network.replay for network in results.networks.values() if len(network.replay["gone"])]


def replay_figure(results: HeadsResults) -> Figure:
    """Draw which spikes disappear when a part is frozen, and the remaining loss of each spike."""
    figure, (left, right) = subplots(2, size=(6, 3.6), grid=None)
    runs = _replays(results)
    means = np.array([run["gone"].numpy().mean(axis=0) for run in runs])
    spread = np.random.default_rng(0).uniform(-0.15, 0.15, means.shape)
    for x, name in enumerate(FROZEN):
        color = _color_of(name)
        left.bar(x, means[:, x].mean(), color=color, alpha=0.3)
        draw_cloud(left, x, means[:, x], spread[:, x], color)
        interval = mean_interval(means[:, x].tolist())
        if interval is not None:
            left.vlines(x, *interval, color=color, lw=2)
    _name_frozen(left, FROZEN)
    left.set(ylabel="share of spikes that disappear", ylim=(0, 1.03))
    losses = [np.column_stack([run["quiet_loss"], run["loss"]]) / run["spike_loss"].numpy()[:, None] for run in runs]
    remaining = np.maximum(np.concatenate(losses), _LEAST_LEFT)
    right.axhline(1, **GUIDE)
    spread = np.random.default_rng(1).uniform(-0.25, 0.25, len(remaining))
    for x, name in enumerate((_BEFORE, *FROZEN)):
        draw_cloud(right, x, remaining[:, x], spread, _color_of(name))
        draw_level(right, x, np.median(remaining[:, x]), _color_of(name))
    _name_frozen(right, (_BEFORE, *FROZEN))
    right.set(ylabel="loss / loss at the spike", yscale="log")
    return figure


def _color_of(frozen: str) -> str:
    return {_CONTROL: RED, _BEFORE: GREY}.get(frozen, BLUE)


def _name_frozen(axis: Axes, names: tuple[str, ...]) -> None:
    """Name the frozen parts along the x axis."""
    axis.set_xticks(range(len(names)), [_FROZEN_NAMES.get(name, name.replace(" ", "\n")) for name in names], fontsize=8)


def mitigations_figure(config: ClusteringHeadsConfig, results: HeadsResults) -> Figure:
    """Draw spikes in the base setting against spikes with a mitigation, one point per seed."""
    arms = [arm for arm in MITIGATIONS if results.mitigated.get(arm)]
    figure, axes = subplots(len(arms), size=(3.8, 3.6), grid=None)
    draw = np.random.default_rng(0)
    for axis, arm in zip(axes, arms, strict=True):
        start = counted_from(config, arm)
        mitigated = results.mitigated[arm]
        base = {seed: network for seed, network in results.networks.items() if seed in mitigated}
        counts = np.array([spikes_in_both(network, mitigated[seed], start) for seed, network in base.items()])
        x, y = counts.T + draw.uniform(-0.2, 0.2, (2, len(counts)))
        axis.axline((0, 0), slope=1, **GUIDE)
        axis.plot(x, y, "o", color=BLUE, alpha=0.5, ms=4, mew=0)
        limits = (-0.5, max(3, counts.max()) + 0.5)
        axis.set(xlabel="spikes, base", title=arm, xlim=limits, ylim=limits)
        axis.locator_params(integer=True)
    axes[0].set_ylabel("spikes, mitigated")
    return figure


def donors_figure(results: HeadsResults) -> Figure:
    """Draw the share of predictions that follow a donor, by the replacement of the sequence embedding."""
    figure, axes = subplots(2, size=(4.4, 3.4), grid=None, sharey=True)
    draw = np.random.default_rng(0)
    titles = {"head": "the head's clusters", "sum": "the support's sums"}
    for axis, (partition, title) in zip(axes, titles.items(), strict=True):
        for x, (kind, color) in enumerate(zip(KINDS, (BLUE, RED), strict=True)):
            follows = [network.donors.sel("follows", partition=partition, kind=kind) for network in results.solved]
            values = np.array(follows, dtype=float)
            draw_cloud(axis, x, values, draw.uniform(-0.15, 0.15, len(values)), color)
            draw_level(axis, x, values.mean(), color)
        axis.set_xticks(range(len(KINDS)), ["mean of the donor's class", "of a random class"], fontsize=8)
        axis.set(title=title, ylim=(-0.03, 1.03))
    axes[0].set_ylabel("predictions that follow")
    return figure


# ---- full batch ----


def full_batch_figure(config: ClusteringHeadsConfig, results: HeadsResults) -> Figure:
    """Draw loss and gradient norms by layer, linear and logarithmic, with the phases in which the loss falls."""
    p = config.task.p
    shown = shown_full_batch(results, p)
    figure, axes = subplots(3 * len(shown), len(shown), size=(5.2, 2.3), sharex="col")
    for column, (seed, run) in enumerate(shown.items()):
        loss, *gradients = axes[column :: len(shown)]
        _training_loss(loss, seed, run, p)
        _gradient_norms(gradients, run, p)
    axes[0].set_ylabel("training loss (nats)")
    axes[len(shown)].set_ylabel("gradient norm")
    axes[2 * len(shown)].set_ylabel("gradient norm")
    figure.legend(*axes[-1].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def shown_full_batch(results: HeadsResults, p: int) -> dict[int, NetworkTraining]:
    """Return two full-batch runs: the first that solve the task with two or more falls, or the nearest to that."""
    ranks = []
    for seed, run in results.full_batch.items():
        falls = min(2, len(run.drops(p)))
        ranks.append((not (falls == 2 and run.solved), -falls, seed))
    return {seed: results.full_batch[seed] for _, _, seed in sorted(ranks)[:2]}


def _training_loss(axis: Axes, seed: int, run: NetworkTraining, p: int) -> None:
    axis.plot(steps_of(run), run.curve("train_loss"), color=BLUE, lw=0.9)
    shade_falls(axis, run, p)
    title_left(axis, f"seed {seed}")


def _gradient_norms(axes: list[Axes], run: NetworkTraining, p: int) -> None:
    """Draw gradient norms by layer on a linear scale that cuts off peaks, and on a logarithmic scale."""
    linear, logarithmic = axes
    steps = steps_of(run)
    groups = run.dynamics.coords["group"][:-1]
    curves = run.curve("gradient_norm")
    for axis in axes:
        for group, values, color in zip(groups, curves.T, (BLUE, ORANGE, GREEN), strict=False):
            axis.plot(steps, values, color=color, lw=0.9, label=group)
        shade_falls(axis, run, p)
    drops = run.drops(p)
    end = min(steps[-1], _STEPS_IN_VIEW * steps[drops[-1].end]) if drops else steps[-1]
    norms = curves[len(curves) // 100 : 1 + int(np.searchsorted(steps, end)), :-1]
    linear.set(ylim=(0, float(np.nanquantile(norms, CUT)) or 1.0))
    linear.set_title(f"cut off; largest {np.nanmax(norms):.2g}", loc="right", **REMARK)
    logarithmic.set(xlabel="step", yscale="log", xlim=(0, end))
    if (norms > 0).any():
        logarithmic.set(ylim=(0.7 * np.nanmin(norms[norms > 0]), 1.5 * np.nanmax(norms)))


def saddle_figure(config: ClusteringHeadsConfig, results: HeadsResults) -> Figure:
    """Draw loss and smallest eigenvalues of the Hessian along one run, and negative curvature of all runs."""
    p = config.task.p
    saddles = results.saddles(p)
    seeds = list(saddles) or [seed for seed in results.curvature if seed in results.full_batch]
    seed = max(seeds, key=lambda seed: len(results.full_batch[seed].drops(p)))
    run = results.full_batch[seed]
    steps = steps_of(run)
    figure, (loss, eigenvalues, right) = subplots(3, size=(4.6, 3.4), grid=None)
    _training_loss(loss, seed, run, p)
    measured = [steps[int(place)] for place in results.curvature[seed].coords["snapshot"]]
    _smallest_eigenvalues(eigenvalues, measured, results.curvature[seed]["smallest"].numpy())
    shade_falls(eigenvalues, run, p)
    in_view = (0, measured[-2] * 1.1 if len(measured) > 2 else steps[-1])  # the last is the end of training
    loss.set(xlabel="step", ylabel="training loss (nats)", xlim=in_view)
    eigenvalues.set(xlabel="step", ylabel="smallest eigenvalues", xlim=in_view)
    _negative_curvature(right, list(saddles.values()))
    return figure


def _smallest_eigenvalues(axis: Axes, steps: list[int], smallest: Float[np.ndarray, "snapshot rank"]) -> None:
    axis.plot(steps, smallest, color=ORANGE, lw=0.9, marker=".", ms=4)
    axis.axhline(0, **GUIDE)
    typical = float(np.nanmedian(np.abs(smallest))) if np.isfinite(smallest).any() else 1.0
    linear = max(typical / 10, 1e-6)
    axis.set_yscale("symlog", linthresh=linear)
    low = np.nanmin(smallest, initial=0.0)
    high = np.nanmax(smallest, initial=0.0)
    axis.set_ylim(min(2 * low, -linear / 2), max(2 * high, linear / 2))


def _negative_curvature(axis: Axes, pairs: list[tuple[float, float]]) -> None:
    """Draw a line for each run, from its plateaus to its end."""
    for pair in pairs:
        axis.plot((0, 1), pair, color=BLUE, lw=0.7, alpha=0.6, marker="o", ms=3)
    axis.set_xticks((0, 1), ("plateaus", "end"))
    axis.axhline(0, **GUIDE)
    axis.set_yscale("symlog", linthresh=FLAT)
    drawn = np.append(pairs, 0.0)
    axis.set_ylim(min(2 * np.nanmin(drawn), -FLAT / 2), max(2 * np.nanmax(drawn), FLAT))
    axis.set(ylabel="- smallest / largest eigenvalue", xlim=(-0.4, 1.4))
