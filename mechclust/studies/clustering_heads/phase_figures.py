"""How one network reaches its solution: phases, a spike, the ideal head, and attention."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.report.analysis import Panel
from mechclust.report.style import ORANGE, subplots
from mechclust.sandbox import sandbox_figure, sandbox_strip
from mechclust.studies.clustering_heads.config import FULL_BATCH, SECOND_STAGE, ClusteringHeadsConfig
from mechclust.studies.clustering_heads.curves import Spike
from mechclust.studies.clustering_heads.effects import mean_attention
from mechclust.studies.clustering_heads.graph import SHARE, network_graph
from mechclust.studies.clustering_heads.results import HeadsResults, NetworkTraining, TrainedNetwork
from mechclust.studies.clustering_heads.sandbox import sandbox_run
from mechclust.studies.clustering_heads.shown import sandbox_of, shown_networks, snapshots_of

_MOST_FRAMES = 200  # of a heat map over training
_IDEAL = (
    ("position_embeddings", "normalized", "attention", "values"),
    ("xi", "xi_normalized", "class_map", "output"),
)


def phase_panels(config: ClusteringHeadsConfig, results: HeadsResults, out: Path) -> list[Panel]:
    """The figures of the runs that were made."""
    found = [
        Panel("phases", phases(config, results, out), "Four moments of one training: the start, the plateau before the "
              "last fall of the loss, the end of that fall, and the end. Rows: sequence embeddings (equivalent "
              "sequences share a colour), the classifier's answer for any sequence embedding, and what the "
              "feed-forward layer reads."),
        Panel("attention", attention(config, results, out), "Mean attention to every position over training, on one "
              "scale; the line marks the end of the support."),
    ]  # fmt: skip
    (network, *_) = shown_networks(config, results)
    caption = (
        f"One network as a graph over training: the fewest edges of each layer that carry {SHARE:.0%} of its squared "
        "effects. An edge's effect, its width, is the standard deviation over sequences of what it adds to the node "
        "where it ends, compared with the largest of its kind at these epochs; negative ones are red. Grey positions "
        "are off the support, and faint nodes have no edge. What xi adds to the output directly is not drawn."
    )
    found.append(Panel("graph", graph(config, network, out), caption))
    if spike := _largest_spike(results):
        found.append(Panel("spike", spike_strip(config, *spike, out), "Consecutive epochs of the largest loss spike "
                           "after solving: the class map with the sequence embeddings, and what the feed-forward layer "
                           "reads, on the circle of normalised vectors."))  # fmt: skip
    if results.second_stage:
        found.append(Panel("ideal", ideal(config, results, out), "The ideal head, frozen, and the feed-forward layer "
                           "that was trained on it, at the end. In the panels of normalised embeddings and "
                           "values, every digit has a shade of its own, hollow for 0."))  # fmt: skip
    return found


def phases(config: ClusteringHeadsConfig, results: HeadsResults, out: Path) -> Figure:
    """Four moments of the run whose loss falls most often, among those that solve the task if there are any."""
    p = config.task.p
    runs: list[tuple[str, int, NetworkTraining]] = [("base", seed, n) for seed, n in results.networks.items()]
    runs += [(FULL_BATCH, seed, run) for seed, run in results.full_batch.items()]
    arm, seed, run = max(
        runs, key=lambda r: (r[2].solved_at is not None, min(2, len(r[2].drops(p))), r[0] == FULL_BATCH)
    )
    snapshots, member = snapshots_of(config, arm, seed, out)
    drops, last = run.drops(p), len(snapshots) - 1
    plateau = (drops[-2].end if len(drops) > 1 else 0, drops[-1].start) if drops else (0, last)
    moments = {
        0: "start",
        sum(plateau) // 2: "plateau",
        drops[-1].end if drops else max(1, last - 1): "end of the last fall",
        last: "end",
    }
    epochs = [snapshots.epochs[place] for place in moments]
    shown = sandbox_run(snapshots, member, epochs=epochs, title=f"seed {seed}, {arm}")
    unit = "step" if arm == FULL_BATCH else "epoch"
    titles = [f"{unit} {epoch:,}: {name}" for epoch, name in zip(epochs, moments.values(), strict=True)]
    return sandbox_strip(shown, epochs, ("xi", "class_map", "xi_normalized"), titles=titles)


def _largest_spike(results: HeadsResults) -> tuple[TrainedNetwork, Spike] | None:
    """The largest of all spikes after solving that have three epochs behind them."""
    found = [
        (network, spike)
        for network in results.solved
        for spike in network.spikes_after_solving()
        if spike.epoch < len(network.curve("train_loss")) - 3
    ]
    return max(found, key=lambda pair: pair[1].loss, default=None)


def spike_strip(config: ClusteringHeadsConfig, network: TrainedNetwork, spike: Spike, out: Path) -> Figure:
    """Consecutive epochs of one spike."""
    epochs = list(range(spike.epoch - 1, spike.epoch + 3))
    loss = network.curve("train_loss")
    titles = [f"epoch {epoch}, loss {loss[epoch]:.2g}" for epoch in epochs]
    run = sandbox_of(config, network, out, epochs=epochs)
    return sandbox_strip(run, epochs, ("class_map", "xi_normalized"), titles=titles)


def graph(config: ClusteringHeadsConfig, network: TrainedNetwork, out: Path) -> Figure:
    """Draw one network at the start, when it solves the task (otherwise after a third of training), and at the end."""
    snapshots, member = snapshots_of(config, "base", network.seed, out)
    last = len(snapshots) - 1
    places = sorted({0, network.solved_at or last // 3, last})
    return network_graph(snapshots, member, *(snapshots.epochs[place] for place in places))


def ideal(config: ClusteringHeadsConfig, results: HeadsResults, out: Path) -> Figure:
    """The ideal head and a classifier trained on it, drawn."""
    seed = min(results.second_stage, key=lambda s: (results.second_stage[s].solved_at is None, s))
    snapshots, member = snapshots_of(config, SECOND_STAGE, seed, out)
    ends = [snapshots.epochs[0], snapshots.epochs[-1]]
    run = sandbox_run(snapshots, member, epochs=ends, title=f"Ideal head, second stage alone, seed {seed}")
    name = _IDEAL[0][0]
    places = run.values[name][-1]
    bare = {**run.panels, name: replace(run.panels[name], labels=("",) * len(places))}
    figure = sandbox_figure(replace(run, panels=bare), ends[-1], _IDEAL)
    name_positions(figure.axes[0], places)
    return figure


def name_positions(axis: Axes, places: np.ndarray) -> None:
    """Name points ``[pos 2]`` by their positions, those that coincide together: "0-4"."""
    for point in np.unique(places, axis=0):
        there = np.flatnonzero((places == point).all(axis=1)).tolist()
        runs = len(there) > 1 and there == list(range(there[0], there[-1] + 1))
        text = f"{there[0]}-{there[-1]}" if runs else ", ".join(map(str, there))
        axis.annotate(text, point.tolist(), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8)


def attention(config: ClusteringHeadsConfig, results: HeadsResults, out: Path) -> Figure:
    """Attention to every position over training, of some networks."""
    order = [*results.solved[:2], *(n for n in results.networks.values() if not n.solved)]
    shown = (order or list(results.networks.values()))[:3]
    found = []
    for network in shown:
        snapshots, member = snapshots_of(config, "base", network.seed, out)
        places = np.unique(np.linspace(0, len(snapshots) - 1, _MOST_FRAMES).round().astype(int)).tolist()
        found.append((mean_attention(snapshots, member, places).T, snapshots.epochs[-1]))
    most = max(float(values.max()) for values, _ in found)
    figure, axes = subplots(len(shown), size=(4.4, 3.2), grid=None)
    for axis, network, (values, last) in zip(axes, shown, found, strict=True):
        length = len(values)
        image = axis.imshow(
            values,
            aspect="auto",
            origin="upper",
            extent=(0, last, length - 0.5, -0.5),
            cmap="Greys",
            vmin=0,
            vmax=most,
            interpolation="nearest",
        )
        inside = np.isin(np.arange(length), config.task.positions)
        for t in np.flatnonzero(inside[1:] != inside[:-1]):
            axis.axhline(t + 0.5, color=ORANGE, lw=1.2)
        end = "solved" if network.solved else f"accuracy {network.accuracy:.2f}"
        axis.set_title(f"seed {network.seed}: {end}", loc="left", fontsize=10)
        axis.set(xlabel="epoch", yticks=range(length))
    figure.colorbar(image, ax=axes, shrink=0.8, label="attention")
    axes[0].set_ylabel("position")
    return figure
