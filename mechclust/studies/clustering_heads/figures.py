"""Figures of the clustering-head study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from mechclust.evidence.intervals import share_interval
from mechclust.report.analysis import Panel
from mechclust.report.html import table_html
from mechclust.report.style import (
    BLUE,
    COLORS,
    GREEN,
    GREY,
    ORANGE,
    RED,
    direct_labels,
    median_curve,
    plain_ticks,
    subplots,
)
from mechclust.sandbox import sandbox_figure
from mechclust.studies.clustering_heads.config import (
    ABLATIONS,
    SOLVED,
    ClusteringHeadsConfig,
    Curriculum,
)
from mechclust.studies.clustering_heads.intervention_figures import intervention_panels
from mechclust.studies.clustering_heads.phase_figures import phase_panels
from mechclust.studies.clustering_heads.results import HeadsResults
from mechclust.studies.clustering_heads.shown import sandbox_of, shown_networks
from mechclust.studies.clustering_heads.start_figures import start_panels
from probes import ProbeResult
from probes.clustering_head import INTEGER_DEVIATION, TEXTBOOK_WITHIN_RATIO

_KINDS = {"textbook": BLUE, "integer-weight": ORANGE, "planar": GREEN, "neither": GREY}
_MARK: dict[str, Any] = {"color": "#555555", "ls": ":", "lw": 1}  # of a threshold, or the level of guessing
_LEAST_LOSS = 1e-10  # nats, as drawn; in float32 a smaller loss is often 0
_LINEAR = 2.0  # nats up to which the scale of the loss on straight lines is linear
_LOSSES = (0, 0.5, 1, 2, 5, 10, 20, 50, 100)  # named on that scale
_SHARE = f"share above {SOLVED}"
_CURRICULUM = (
    f"Accuracy on the harder task from scratch and after p = 2 (points: one per seed; bars: {_SHARE}), and training "
    "loss on straight lines (median and middle half over seeds): between the two solutions, the same with the neurons "
    "of one reordered to match the other's, and from halfway to the end of each arm. The scale of the loss is linear "
    f"up to {_LINEAR:g} nats and logarithmic above."
)
_LABELS = {
    "batch": "batch size",
    "lr": "learning rate",
    "width": "feed-forward width",
    "discount": "factor on the feed-forward learning rate",
    "dropout": "dropout of the feed-forward layer",
    "bias": "biases of the feed-forward layer",
}


def panels(config: ClusteringHeadsConfig, results: HeadsResults, out: Path) -> list[Panel]:
    """The report's figures, for the arms that were run."""
    found = [
        Panel("training", training(config, results), f"Test loss in the base setting, for networks above {SOLVED} "
              "accuracy at the end and for the others: median, middle half and range at each epoch (dotted: guessing); "
              f"a loss below {_LEAST_LOSS:g} is drawn there. Right: accuracy of all networks at the end (dotted: "
              f"{SOLVED})."),
        Panel("heads", heads(results), "Deviation of the head's weights from integers, and within-ratio of the "
              "support's multiset, against accuracy, one point per network. Lines: the detector's thresholds."),
        Panel("spikes", spikes(results), "The network with the most loss spikes, among solved ones if there are any: "
              "training loss, smallest norm of xi, margin of the nearest cluster. Dots mark spikes."),
        Panel("gradients", gradients(config, results), "Norm of the training loss's gradient by group of "
              "parameters, for the network in the first sandbox."),
    ]  # fmt: skip
    found += intervention_panels(config, results)
    found += start_panels(config, results)
    if any(_varied(config, results).values()):
        found.append(Panel("ablations", ablations(config, results), "Test accuracy at the end as one setting varies: "
                           f"every seed and their mean, and the {_SHARE} with its 95% interval. Dotted: guessing "
                           "(horizontal) and the base setting (vertical)."))  # fmt: skip
    if results.curriculum:
        found.append(Panel("curriculum", curriculum(config.curriculum, results.curriculum), _CURRICULUM))
    if config.sandbox:
        found += phase_panels(config, results, out)
        run = sandbox_of(config, shown_networks(config, results)[0], out)
        caption = f"The sandbox at the last epoch: {run.title}."
        found.append(Panel("sandbox", sandbox_figure(run, run.epochs[-1]), caption))
    return found


def training(config: ClusteringHeadsConfig, results: HeadsResults) -> Figure:
    """Test loss over epochs of all networks, and the distribution of accuracy."""
    figure, (*losses, right) = subplots(3, size=(4.2, 3.4), grid=None)
    everyone = list(results.networks.values())
    for axis, solved, color in zip(losses, (True, False), (BLUE, RED), strict=True):
        curves = [network.curve("test_loss") for network in everyone if network.solved == solved]
        if curves:
            median_curve(axis, range(len(curves[0])), np.maximum(curves, _LEAST_LOSS), (0, 0.25), color=color)
        else:
            axis.text(0.5, 0.5, "none", ha="center", transform=axis.transAxes, color=GREY)
        axis.axhline(np.log(config.task.p), **_MARK)
        axis.set(
            yscale="log",
            xlabel="epoch",
            title=f"{'above' if solved else 'not above'} {SOLVED} ({len(curves)} networks)",
        )
    ends = [limit for axis in losses if len(axis.lines) > 1 for limit in axis.get_ylim()]
    for axis in losses:
        axis.set(xlim=(0, config.epochs), ylim=(min(ends), max(ends)))
        plain_ticks(axis)
    losses[0].set_ylabel("test loss (nats)")
    accuracies = [network.accuracy for network in everyone]
    right.hist(accuracies, bins=list(np.linspace(min(0.4, *accuracies), 1, 31)), color=BLUE)
    right.locator_params(axis="y", integer=True)
    right.axvline(SOLVED, **_MARK)
    right.set(xlabel="test accuracy at the end", ylabel="networks", title=f"all networks ({len(everyone)})")
    return figure


def heads(results: HeadsResults) -> Figure:
    """What the detector sees, against accuracy."""
    figure, (left, right) = subplots(2, size=(5.5, 4), grid=None, sharex=True)
    for kind, color in _KINDS.items():
        mine = [n for n in results.networks.values() if n.kind == kind]
        accuracy = [n.accuracy for n in mine]
        style: dict[str, Any] = {"color": color, "alpha": 0.75, "label": f"{kind} ({len(mine)})", "s": 26}
        left.scatter(accuracy, [float(n.head["integer_deviation"]) for n in mine], **style)
        right.scatter(accuracy, [float(n.head["within_ratio"][0, 0, 0]) for n in mine], **style)
    left.axhline(INTEGER_DEVIATION, **_MARK)
    right.axhline(TEXTBOOK_WITHIN_RATIO, **_MARK)
    left.set(xlabel="test accuracy at the end", ylabel="deviation from integer weights")
    right.set(xlabel="test accuracy at the end", ylabel="within-ratio of the multiset", yscale="log")
    left.annotate("the detector's threshold", (1, INTEGER_DEVIATION), xycoords=("axes fraction", "data"), ha="right",
                  xytext=(0, 2), textcoords="offset points", color="#555555", fontsize=8)  # fmt: skip
    plain_ticks(right)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def spikes(results: HeadsResults) -> Figure:
    """Loss, smallest norm and margin of one network over training, with its spikes marked."""
    network = max(results.solved or results.networks.values(), key=lambda n: len(n.spikes))
    figure, axes = subplots(3, 1, size=(11, 5 / 3), sharex=True)
    names = {"train_loss": "training loss", "smallest_norm": "least |xi|", "margin": "least margin"}
    at = [spike.epoch for spike in network.spikes]
    for axis, (name, label) in zip(axes, names.items(), strict=True):
        values = network.curve(name)
        axis.plot(values, color=BLUE, lw=0.9)
        axis.plot(at, values[at], "o", color=RED, ms=4)
        axis.set(ylabel=label, yscale="log")
        plain_ticks(axis)
    axes[0].set_title(f"seed {network.seed}: {len(at)} spikes", loc="left", fontsize=10)
    axes[-1].set_xlabel("epoch")
    return figure


def gradients(config: ClusteringHeadsConfig, results: HeadsResults) -> Figure:
    """Gradient norms by group of parameters over training, on a logarithmic and a linear scale."""
    network = shown_networks(config, results)[0]
    figure, axes = subplots(2, size=(5.5, 3.6))
    groups = network.dynamics.coords["group"][:-1]
    for axis, scale in zip(axes, ("log", "linear"), strict=True):
        labels = []
        for group, values, color in zip(groups, network.curve("gradient_norm").T, COLORS, strict=False):
            axis.plot(values, lw=0.9, color=color)
            labels.append((float(values[-1]), group, color))
        axis.set(xlabel="epoch", yscale=scale, title=f"seed {network.seed}, {scale} scale")
        if scale == "log":
            plain_ticks(axis)
        direct_labels(axis, labels)
    axes[0].set_ylabel("gradient norm")
    return figure


def _varied(config: ClusteringHeadsConfig, results: HeadsResults) -> dict[str, dict[float, list[float]]]:
    """Kind of ablation to value to the final test accuracies, for those that were run."""
    grid = config.ablations
    found: dict[str, dict[float, list[float]]] = {kind: {} for kind in ABLATIONS}
    values_of = (grid.batch_sizes, grid.lrs, grid.widths, grid.discounts, grid.dropouts, (0,) if grid.bias else ())
    for kind, values in zip(ABLATIONS, values_of, strict=True):
        for value in values:
            if ended := results.final.get(f"{kind} {value:g}"):
                found[kind][value] = [test for _, test in ended.values()]
    return found


def _share_of(tests: Sequence[float]) -> tuple[float, float, float]:
    """The share of networks that solve the task, from their test accuracies, and the ends of its 95% interval."""
    solved = [float(test > SOLVED) for test in tests]
    low, high = share_interval(solved) or (np.nan, np.nan)
    return float(np.mean(solved)), low, high


def ablations(config: ClusteringHeadsConfig, results: HeadsResults) -> Figure:
    """Accuracy, and the share that solves the task (with its 95% interval), against each setting that was varied."""
    base = dict(zip(ABLATIONS, (config.batch_size, config.lr, config.d_mlp, 1.0, 0.0, 1.0), strict=True))
    figure, axes = subplots(len(base), 2, size=(5.5, 3), sharey=True)
    for axis, (kind, found) in zip(axes, _varied(config, results).items(), strict=True):
        if kind == "bias" and found:
            same = results.final.get("dropout 0") or results.final.get(f"batch {config.batch_size:g}")  # the same seeds
            base_of = [test for _, test in same.values()] if same else [n.accuracy for n in results.networks.values()]
            found = {**found, 1: base_of}
        values = list(found)
        for value, tests in found.items():
            axis.plot([value] * len(tests), tests, "o", color=BLUE, alpha=0.25, ms=4, mew=0)
        means = [np.mean(tests) for tests in found.values()]
        shares, low, high = np.array([_share_of(tests) for tests in found.values()]).reshape(-1, 3).T
        if kind == "bias":  # two settings, with nothing between them
            axis.plot(values, means, "_", color=BLUE, ms=22, mew=2)
            axis.errorbar(values, shares, np.abs([low - shares, high - shares]), fmt="s", color=ORANGE, ms=5, capsize=4)
        else:
            axis.plot(values, means, color=BLUE, label="mean accuracy")
            axis.plot(values, shares, color=ORANGE, ls="--", label=f"{_SHARE}, 95% interval")
            axis.fill_between(values, low, high, color=ORANGE, alpha=0.2, lw=0)
        counts = sorted({len(tests) for tests in found.values()})
        axis.set_title(f"{' or '.join(map(str, counts))} seeds per value", loc="right", fontsize=8, color="#555555")
        axis.axhline(1 / config.task.p, **_MARK)
        axis.axvline(base[kind], **_MARK)
        axis.set(xlabel=_LABELS[kind], ylim=(-0.03, 1.03))
        if kind == "bias":
            axis.set_xticks((0, 1), ("none", "base"))
            axis.set_xlim(-0.5, 1.5)
        elif kind != "dropout":
            axis.set_xscale("log")
            plain_ticks(axis, "x")
    for axis in axes[::2]:
        axis.set_ylabel("test accuracy")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def ablation_table(config: ClusteringHeadsConfig, results: HeadsResults) -> str:
    """HTML: accuracy (mean, standard deviation over seeds) and share solved by value; empty without ablations."""
    import pandas as pd

    rows = []
    for kind, found in _varied(config, results).items():
        for value, tests in found.items():
            share, low, high = _share_of(tests)
            spread = f" ± {np.std(tests, ddof=1):.3f}" if len(tests) > 1 else ""
            rows.append(
                {
                    "setting": _LABELS[kind],
                    "value": "none" if kind == "bias" else f"{value:g}",
                    "test accuracy": f"{np.mean(tests):.3f}{spread}",
                    _SHARE: f"{share:.2f}",
                    "95% interval": f"{low:.2f} to {high:.2f}",
                    "seeds": len(tests),
                }
            )
    return table_html(pd.DataFrame(rows)) if rows else ""


def curriculum(c: Curriculum, results: Mapping[int, ProbeResult]) -> Figure:
    """Accuracy by arm and split, and the loss between the two solutions and along the way to each."""
    figure, (left, right) = subplots(2, size=(5, 3.9), grid=None)
    found = list(results.values())
    labels, colors = [], {"train": ORANGE, "test": BLUE}
    jitter = np.random.default_rng(0).uniform(-0.25, 0.25, len(found))
    for place, (arm, split) in enumerate((a, s) for a in ("scratch", "curriculum") for s in colors):
        values = [float(r.sel("accuracy", arm=arm, split=split)) for r in found]
        left.bar(place, _share_of(values)[0], color=colors[split], alpha=0.35)
        left.plot(place + jitter, values, "o", color=colors[split], ms=3, alpha=0.6, mew=0)
        labels.append(f"{arm},\n{split}")
    left.axhline(1 / c.p, **_MARK)
    left.annotate("chance", (1, 1 / c.p), xycoords=("axes fraction", "data"), ha="right",
                  xytext=(0, 2), textcoords="offset points", color="#555555", fontsize=8)  # fmt: skip
    left.set_xticks(range(len(labels)), labels)
    left.set(ylabel=f"accuracy, p = {c.p} (bars: {_SHARE})", ylim=(0, 1.03))
    lines = {
        "from scratch to curriculum": ([r["line"].numpy() for r in found], BLUE),
        "the same, neurons matched": ([r["matched_line"].numpy() for r in found], GREEN),
        "from halfway to the end": ([line for r in found for line in r["own_line"].numpy()], GREY),
    }
    for name, (between, color) in lines.items():
        median_curve(right, _places(found[0]), np.array(between), (0.25,), color=color, label=name)
    right.set(xlabel="position on the straight line", ylabel="training loss (nats)")
    right.set_yscale("symlog", linthresh=_LINEAR)
    shown = [loss for loss in _LOSSES if loss <= right.get_ylim()[1]]
    right.set_yticks(shown, [f"{loss:g}" for loss in shown])
    right.minorticks_off()
    right.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    return figure


def _places(result: ProbeResult) -> list[float]:
    return [float(x) for x in result.coords["place"]]
