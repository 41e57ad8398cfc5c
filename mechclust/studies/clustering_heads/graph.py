"""A small network drawn as a graph whose edges are its weights, at one epoch or as a film of its training."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from mechclust.report.style import BLUE, GREY, RED
from mechclust.sandbox.film import write_film
from mechclust.studies.clustering_heads.attention import mean_attention
from mechclust.studies.clustering_heads.config import MLP
from mechclust.studies.clustering_heads.dynamics import task_of
from mechclust.training import Snapshots
from tasks import InputError

_INK = "#1d2733"
_COLUMNS = ("positions", "ξ", "neurons", "output", "answers")
_SIZE = (8.0, 4.6)  # of one graph, in inches
_WIDEST = 3.5  # line width in points of the largest weight of a kind over all epochs drawn


class _Graph:
    """The graph of one network at some of its snapshots, to draw on any axis."""

    def __init__(self, snapshots: Snapshots, member: int, epochs: Sequence[int]) -> None:
        if missing := sorted(set(epochs) - set(snapshots.epochs)):
            raise InputError(f"{str(snapshots.folder)!r} has no snapshot of epoch {missing[0]}; expected epochs it has")
        places = [snapshots.epochs.index(epoch) for epoch in epochs]
        weights = snapshots.of(member, [snapshots.steps[place] for place in places])
        attention = mean_attention(snapshots, member, places)[:, :, None]  # the same to every component of xi
        w_in, w_out, embedding = (weights[name] for name in (f"{MLP}.W_in", f"{MLP}.W_out", "embed.W_E"))
        order = np.argsort(np.arctan2(*w_in[-1][:2].flip(0).numpy())) if w_in.shape[1] > 1 else slice(None)
        d = w_in.shape[1]
        self._edges = [
            attention.expand(-1, -1, d).numpy(),
            w_in.numpy()[:, :, order],
            w_out.numpy()[:, order],
            embedding.transpose(1, 2).numpy(),
        ]  # [epoch from to]
        task = task_of(snapshots, member)
        self._title, self._epochs = f"seed {snapshots.configs[member].seed}", list(epochs)
        sizes = [self._edges[0].shape[1], d, w_in.shape[2], d, embedding.shape[1]]
        self._nodes = [np.column_stack([np.full(n, x), _spread(n)]) for x, n in enumerate(sizes)]
        self._inside = np.isin(np.arange(sizes[0]), task.positions)
        self._labels = ([str(t) for t in range(sizes[0])], self._nodes[0], -1), (task.vocab, self._nodes[-1], 1)

    def nodes(self, axis: Axes) -> list[LineCollection]:
        """Draw the nodes and their names; the edges between each pair of columns, which ``edges`` sets."""
        axis.axis("off")
        found = []
        for start, end in pairwise(self._nodes):
            found.append(LineCollection([[a, b] for a in start for b in end], zorder=1))
            axis.add_collection(found[-1])
        for i, (title, column) in enumerate(zip(_COLUMNS, self._nodes, strict=True)):
            inside = self._inside if i == 0 else np.ones(len(column), dtype=bool)
            look: dict[str, Any] = {"s": 26 if len(column) > 16 else 60, "c": np.where(inside, _INK, GREY)}
            axis.scatter(column[:, 0], column[:, 1], zorder=2, **look)
            axis.text(i, 1.12, title, ha="center", fontsize=10)
        for names, column, side in self._labels:
            for name, (x, y) in zip(names, column, strict=False):
                axis.text(x + 0.1 * side, y, name, ha="center", va="center", fontsize=8)
        axis.set(xlim=(-0.3, 4.3), ylim=(-1.1, 1.25))
        return found

    def edges(self, axis: Axes, lines: Sequence[LineCollection], i: int) -> None:
        """Set widths and colours to those of the ``i``-th of the epochs."""
        for between, values in zip(lines, self._edges, strict=True):
            now, most = values[i].ravel(), np.abs(values).max() or 1.0
            between.set_linewidth(_WIDEST * np.abs(now) / most)
            between.set_color([BLUE if value >= 0 else RED for value in now])
        axis.set_title(f"{self._title}: epoch {self._epochs[i]:,}", fontsize=11)


def _spread(n: int) -> np.ndarray:
    return np.linspace(1, -1, n) if n > 2 else np.linspace(0.4, -0.4, n)


def network_graph(snapshots: Snapshots, member: int, *epochs: int) -> Figure:
    """One network as a graph: positions, components of xi, neurons, components of the output, answers.

    An edge is as wide as its weight is large, compared with the largest of its kind at the epochs drawn: mean attention
    from a position to xi, and the weights of the feed-forward layer and the unembedding; red ones are negative. Neurons
    are in the order of the directions they read; positions off the support are grey.

    Args:
        snapshots: of an ensemble of pooling transformers on sparse modular addition.
        member: number of the network in the ensemble.
        epochs: some of ``snapshots.epochs``, drawn two per row.

    Raises:
        InputError: for no epochs, or one without a snapshot.
    """
    if not epochs:
        raise InputError("no epochs are given; expected at least one of the snapshots' epochs")
    graph = _Graph(snapshots, member, epochs)
    columns = min(2, len(epochs))
    rows = -(-len(epochs) // columns)
    figure = Figure(figsize=(_SIZE[0] * columns, _SIZE[1] * rows), layout="constrained")
    for i, axis in enumerate(figure.subplots(rows, columns, squeeze=False).ravel()):
        if i < len(epochs):
            graph.edges(axis, graph.nodes(axis), i)
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
    """The film of ``network_graph`` over training. Widths and the order of neurons are the same in all frames.

    Args:
        snapshots: of an ensemble of pooling transformers on sparse modular addition.
        member: number of the network in the ensemble.
        path: ends in ``.gif``, or in ``.mp4``, which needs ffmpeg.
        epochs: epochs to draw, at least two; ``None``: all.
        fps: frames per second.
        dpi: dots per inch; a frame is 8 by 4.6 inches.

    Raises:
        InputError: for an unknown file ending, a missing ffmpeg, fewer than two epochs, or one without a snapshot.
    """
    chosen = list(snapshots.epochs if epochs is None else epochs)
    if len(chosen) < 2:
        raise InputError(f"epochs has {len(chosen)}; a film needs at least 2, or network_graph shows one")
    graph, figure = _Graph(snapshots, member, chosen), Figure(figsize=_SIZE, layout="constrained")
    axis = figure.subplots()
    lines = graph.nodes(axis)
    return write_film(figure, path, partial(graph.edges, axis, lines), len(chosen), fps=fps, dpi=dpi)
