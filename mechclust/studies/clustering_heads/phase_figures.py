"""Figures of how one network reaches its solution: phases, a spike, the ideal head, and attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Float, Shaped
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.report.style import ORANGE, subplots
from mechclust.sandbox import sandbox_figure, sandbox_strip
from mechclust.studies.clustering_heads.config import FULL_BATCH, SECOND_STAGE, ClusteringHeadsConfig
from mechclust.studies.clustering_heads.curves import Drop, Spike
from mechclust.studies.clustering_heads.drawing import title_left
from mechclust.studies.clustering_heads.effects import mean_attention
from mechclust.studies.clustering_heads.graph import network_graph
from mechclust.studies.clustering_heads.results import HeadsResults, NetworkTraining, TrainedNetwork
from mechclust.studies.clustering_heads.sandbox import sandbox_run
from mechclust.studies.clustering_heads.shown import sandbox_of, shown_networks, snapshots_of

_MAX_FRAMES = 200  # of a heat map over training
_EPOCHS_AFTER_SPIKE = 3
_IDEAL_PANELS = (
    ("position_embeddings", "normalized", "attention", "values"),
    ("xi", "xi_normalized", "class_map", "output"),
)


def draw_phase_figures(config: ClusteringHeadsConfig, results: HeadsResults) -> dict[str, Figure]:
    """Draw the figures of the runs that were made."""
    drawn = {
        "phases": phases_figure(config, results),
        "attention": attention_figure(config, results),
        "graph": _graph(config, results),
    }
    largest = _largest_spike(results)
    if largest is not None:
        drawn["spike"] = _spike_strip(config, results, *largest)
    if results.second_stage:
        drawn["ideal"] = ideal_head_figure(config, results)
    return drawn


# ---- phases ----


def phases_figure(config: ClusteringHeadsConfig, results: HeadsResults) -> Figure:
    """Draw four moments of the run whose loss falls most often, preferring runs that solve the task."""
    arm, seed, run = _most_falls(config, results)
    snapshots, member = snapshots_of(config, arm, seed, results.folder)
    moments = _moments(run.drops(config.task.p), last=len(snapshots) - 1)
    epochs = [snapshots.epochs[place] for place in moments]
    shown = sandbox_run(snapshots, member, epochs=epochs, title=f"seed {seed}, {arm}")
    unit = "step" if arm == FULL_BATCH else "epoch"
    titles = [f"{unit} {epoch:,}: {name}" for epoch, name in zip(epochs, moments.values(), strict=True)]
    return sandbox_strip(shown, epochs, ("xi", "class_map", "xi_normalized"), titles=titles)


def _most_falls(config: ClusteringHeadsConfig, results: HeadsResults) -> tuple[str, int, NetworkTraining]:
    """Return arm, seed and training of the run to show. If it has two falls or more, a full-batch run comes first."""
    runs: dict[tuple[str, int], NetworkTraining] = {("base", seed): run for seed, run in results.networks.items()}
    runs |= {(FULL_BATCH, seed): run for seed, run in results.full_batch.items()}
    ranks = {}
    for (arm, seed), run in runs.items():
        falls = min(2, len(run.drops(config.task.p)))
        ranks[arm, seed] = (run.solved_at is not None, falls, arm == FULL_BATCH)
    arm, seed = max(ranks, key=ranks.__getitem__)
    return arm, seed, runs[arm, seed]


def _moments(drops: list[Drop], last: int) -> dict[int, str]:
    """Name four snapshots: the start, the plateau before the last fall, the end of this fall, and the end."""
    if not drops:
        return {0: "start", last // 2: "plateau", max(1, last - 1): "end of the last fall", last: "end"}
    plateau_start = drops[-2].end if len(drops) > 1 else 0
    plateau = (plateau_start + drops[-1].start) // 2
    return {0: "start", plateau: "plateau", drops[-1].end: "end of the last fall", last: "end"}


# ---- a spike, and a network as a graph ----


def _largest_spike(results: HeadsResults) -> tuple[TrainedNetwork, Spike] | None:
    """Return the largest spike after solving that has three epochs behind it."""
    largest = None
    for network in results.solved:
        last_start = len(network.curve("train_loss")) - _EPOCHS_AFTER_SPIKE
        for spike in network.spikes_after_solving():
            if spike.epoch < last_start and (largest is None or spike.loss > largest[1].loss):
                largest = (network, spike)
    return largest


def _spike_strip(config: ClusteringHeadsConfig, results: HeadsResults, network: TrainedNetwork, spike: Spike) -> Figure:
    """Draw consecutive epochs of one spike."""
    epochs = list(range(spike.epoch - 1, spike.epoch + _EPOCHS_AFTER_SPIKE))
    loss = network.curve("train_loss")
    titles = [f"epoch {epoch}, loss {loss[epoch]:.2g}" for epoch in epochs]
    run = sandbox_of(config, network, results.folder, epochs=epochs)
    return sandbox_strip(run, epochs, ("class_map", "xi_normalized"), titles=titles)


def _graph(config: ClusteringHeadsConfig, results: HeadsResults) -> Figure:
    """Draw one network at the start, when it solves the task (otherwise after a third of training), and at the end."""
    network = shown_networks(config, results)[0]
    snapshots, member = snapshots_of(config, "base", network.seed, results.folder)
    last = len(snapshots) - 1
    places = sorted({0, network.solved_at or last // 3, last})
    return network_graph(snapshots, member, *(snapshots.epochs[place] for place in places))


# ---- the ideal head ----


def ideal_head_figure(config: ClusteringHeadsConfig, results: HeadsResults) -> Figure:
    """Draw the ideal head and a classifier trained on it, preferably one that solves the task."""
    solved = [seed for seed, run in results.second_stage.items() if run.solved_at is not None]
    seed = min(solved or results.second_stage)
    snapshots, member = snapshots_of(config, SECOND_STAGE, seed, results.folder)
    ends = [snapshots.epochs[0], snapshots.epochs[-1]]
    run = sandbox_run(snapshots, member, epochs=ends, title=f"Ideal head, second stage alone, seed {seed}")
    panel = _IDEAL_PANELS[0][0]
    positions = run.values[panel][-1]
    unlabelled = replace(run.panels[panel], labels=("",) * len(positions))
    run = replace(run, panels={**run.panels, panel: unlabelled})
    figure = sandbox_figure(run, ends[-1], _IDEAL_PANELS)
    name_positions(figure.axes[0], positions)
    return figure


def name_positions(axis: Axes, places: Shaped[np.ndarray, "pos 2"]) -> None:
    """Name points by their positions, coinciding ones together, such as "0-4"."""
    for point in np.unique(places, axis=0):
        positions = np.flatnonzero((places == point).all(axis=1)).tolist()
        first = positions[0]
        last = positions[-1]
        consecutive = len(positions) > 1 and positions == list(range(first, last + 1))
        text = f"{first}-{last}" if consecutive else ", ".join(map(str, positions))
        axis.annotate(text, point.tolist(), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8)


# ---- attention ----


def attention_figure(config: ClusteringHeadsConfig, results: HeadsResults) -> Figure:
    """Draw attention to every position over training, of some networks."""
    unsolved = [network for network in results.networks.values() if not network.solved]
    shown = [*results.solved[:2], *unsolved][:3]
    maps = [_attention_over_training(config, results, network) for network in shown]
    largest = max(float(weights.max()) for weights, _ in maps)
    figure, axes = subplots(len(shown), size=(4.4, 3.2), grid=None)
    for axis, network, (weights, last) in zip(axes, shown, maps, strict=True):
        n_positions = len(weights)
        image = axis.imshow(
            weights,
            aspect="auto",
            origin="upper",
            extent=(0, last, n_positions - 0.5, -0.5),
            cmap="Greys",
            vmin=0,
            vmax=largest,
            interpolation="nearest",
        )
        _end_of_support(axis, config, n_positions)
        end = "solved" if network.solved else f"accuracy {network.accuracy:.2f}"
        title_left(axis, f"seed {network.seed}: {end}")
        axis.set(xlabel="epoch", yticks=range(n_positions))
    figure.colorbar(image, ax=axes, shrink=0.8, label="attention")
    axes[0].set_ylabel("position")
    return figure


def _attention_over_training(
    config: ClusteringHeadsConfig, results: HeadsResults, network: TrainedNetwork
) -> tuple[Float[np.ndarray, "pos place"], int]:
    """Return mean attention at some snapshots, and the last epoch."""
    snapshots, member = snapshots_of(config, "base", network.seed, results.folder)
    places = np.unique(np.linspace(0, len(snapshots) - 1, _MAX_FRAMES).round().astype(int)).tolist()
    return mean_attention(snapshots, member, places).T, snapshots.epochs[-1]


def _end_of_support(axis: Axes, config: ClusteringHeadsConfig, n_positions: int) -> None:
    inside = np.isin(np.arange(n_positions), config.task.positions)
    for position in np.flatnonzero(inside[1:] != inside[:-1]):
        axis.axhline(position + 0.5, color=ORANGE, lw=1.2)
