"""A small network drawn as a graph of the connections that matter, at one epoch or as a film of its training."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise, product
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from mechclust.report.style import BLUE, GREY, RED, TEXT
from mechclust.sandbox.film import write_film
from mechclust.studies.clustering_heads.config import MLP
from mechclust.studies.clustering_heads.dynamics import places_of, task_of
from mechclust.studies.clustering_heads.effects import edge_effects, fewest_edges, nodes_on_edges
from mechclust.training import Snapshots
from tasks import InputError

SHARE = 0.9  # of each layer's squared effects that the edges drawn carry
_COLUMNS = ("positions", "ξ", "neurons", "output", "answers")
_SIZE = (6.4, 4.6)  # of one graph, in inches
_MAX_LINE_WIDTH = 4.0  # in points, of the largest effect of a kind over all epochs drawn
_OPACITY_WITHOUT_EDGE = 0.15  # of nodes


class _Graph:
    """The graph of one network at some of its snapshots, to draw on any axis."""

    def __init__(self, snapshots: Snapshots, member: int, epochs: Sequence[int]) -> None:
        places = places_of(snapshots, epochs)
        order = _order_of_neurons(snapshots, member)
        effects = [edge_effects(snapshots, member, place) for place in places]
        self._effects = [[into, to[:, order], out[order], answers] for into, to, out, answers in effects]
        self._kept = [fewest_edges(layers, SHARE) for layers in self._effects]
        by_layer = zip(*self._effects, strict=True)
        self._widest = [max(np.abs(effects).max() for effects in layer) or 1.0 for layer in by_layer]
        task = task_of(snapshots, member)
        self._title = f"seed {snapshots.configs[member].seed}"
        self._epochs = list(epochs)
        layers = self._effects[-1]
        sizes = [len(layers[0]), *(layer.shape[1] for layer in layers)]
        self._nodes = [np.column_stack([np.full(n, x), _spread(n)]) for x, n in enumerate(sizes)]
        on_support = np.isin(np.arange(sizes[0]), task.positions)
        self._colors = [np.where(on_support, TEXT, GREY), *(np.full(n, TEXT) for n in sizes[1:])]
        positions = [str(position) for position in range(sizes[0])]
        answers = [str(answer) for answer in range(sizes[-1])]
        self._labels = (positions, self._nodes[0], -1), (answers, self._nodes[-1], 1)

    def nodes(self, axis: Axes) -> tuple[list[LineCollection], list[PathCollection]]:
        """Draw the nodes and their names. Return lines between each pair of columns, and the nodes of each column."""
        axis.axis("off")
        lines = []
        for start, end in pairwise(self._nodes):
            lines.append(LineCollection(list(product(start, end)), zorder=1))
            axis.add_collection(lines[-1])
        points = []
        for x, (title, column) in enumerate(zip(_COLUMNS, self._nodes, strict=True)):
            size = 26 if len(column) > 16 else 60
            points.append(axis.scatter(column[:, 0], column[:, 1], s=size, zorder=2))
            axis.text(x, 1.12, title, ha="center", fontsize=10)
        for names, column, side in self._labels:
            for name, (x, y) in zip(names, column, strict=True):
                axis.text(x + 0.12 * side, y, name, ha="center", va="center", fontsize=9)
        axis.set(xlim=(-0.3, 4.3), ylim=(-1.1, 1.25))
        return lines, points

    def edges(self, axis: Axes, lines: Sequence[LineCollection], points: Sequence[PathCollection], i: int) -> None:
        """Draw the edges of the ``i``-th of the epochs, and make nodes without an edge faint."""
        for place, between in enumerate(lines):
            effects = (self._effects[i][place] * self._kept[i][place]).ravel()
            between.set_linewidth(_MAX_LINE_WIDTH * np.abs(effects) / self._widest[place])
            between.set_color([BLUE if effect >= 0 else RED for effect in effects])
        for column, colors, used in zip(points, self._colors, nodes_on_edges(self._kept[i]), strict=True):
            opacity = np.where(used, 1, _OPACITY_WITHOUT_EDGE)
            column.set_color([to_rgba(*look) for look in zip(colors, opacity, strict=True)])
        count = sum(int(kept.sum()) for kept in self._kept[i])
        every = sum(kept.size for kept in self._kept[i])
        axis.set_title(f"{self._title}: epoch {self._epochs[i]:,}, {count} of {every} edges", fontsize=11)


def _order_of_neurons(snapshots: Snapshots, member: int) -> Int[np.ndarray, "neuron"]:
    """Return the order of the directions that neurons read at the end of training."""
    w_in = snapshots.of(member, [snapshots.steps[-1]])[f"{MLP}.W_in"][0].numpy()
    if len(w_in) < 2:
        return np.arange(w_in.shape[1])
    return np.argsort(np.arctan2(w_in[1], w_in[0]))


def _spread(n: int) -> Float[np.ndarray, "node"]:
    return np.linspace(1, -1, n) if n > 2 else np.linspace(0.4, -0.4, n)


def network_graph(snapshots: Snapshots, member: int, *epochs: int) -> Figure:
    """Draw one network as a graph: positions, components of xi, neurons, components of the output, answers.

    The width of an edge is its effect (``edge_effects``), relative to the largest of its kind at the epochs drawn. Red
    edges are negative. In each layer, only the fewest edges are drawn that carry ``SHARE`` of the squared effects.
    Neurons are in the order of the directions they read. Positions off the support are grey.

    Args:
        snapshots: of an ensemble of pooling transformers on sparse modular addition.
        member: number of the network in the ensemble.
        epochs: some of ``snapshots.epochs``, drawn three per row.

    Raises:
        InputError: for no epochs, or one without a snapshot.
    """
    if not epochs:
        raise InputError("no epochs are given; expected at least one of the snapshots' epochs")
    graph = _Graph(snapshots, member, epochs)
    columns = min(3, len(epochs))
    rows = -(-len(epochs) // columns)
    figure = Figure(figsize=(_SIZE[0] * columns, _SIZE[1] * rows), layout="constrained")
    for i, axis in enumerate(figure.subplots(rows, columns, squeeze=False).ravel()):
        if i < len(epochs):
            graph.edges(axis, *graph.nodes(axis), i)
        else:
            axis.axis("off")
    return figure


def graph_film(
    snapshots: Snapshots,
    member: int,
    path: str | Path,
    *,
    epochs: Sequence[int] | None = None,
    fps: int = 12,
    dpi: int = 80,
) -> Path:
    """Write the film of ``network_graph`` over training, with fixed widths and a fixed order of neurons.

    Args:
        snapshots: of an ensemble of pooling transformers on sparse modular addition.
        member: number of the network in the ensemble.
        path: ends in ``.gif``, or in ``.mp4``, which needs ffmpeg.
        epochs: epochs to draw, at least two, or ``None`` for all.
        fps: frames per second.
        dpi: dots per inch. A frame is 6.4 by 4.6 inches.

    Raises:
        InputError: for an unknown file ending, a missing ffmpeg, fewer than two epochs, or one without a snapshot.
    """
    chosen = list(snapshots.epochs if epochs is None else epochs)
    if len(chosen) < 2:
        raise InputError(f"epochs has {len(chosen)}; a film needs at least 2, or network_graph shows one")
    graph = _Graph(snapshots, member, chosen)
    figure = Figure(figsize=_SIZE, layout="constrained")
    axis = figure.subplots()
    lines, points = graph.nodes(axis)
    return write_film(figure, path, partial(graph.edges, axis, lines, points), range(len(chosen)), fps=fps, dpi=dpi)
