"""One model over its training, ready to be shown: what figures, films and pages draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from mechclust.sandbox.curves import Curves
from mechclust.sandbox.panels import SandboxPanel
from tasks import InputError

Lines = list[list[tuple[int, float, np.ndarray]]]


@dataclass(frozen=True, eq=False)
class FollowedSequences:
    """Sequences followed through training by name, with what is known about them.

    Attributes:
        tokens: ``[sequence pos]`` indices into ``token_names``; -1 at padding.
        token_names: readable names of the tokens.
        answers: ``[sequence]`` the right answer, as an index into ``SandboxRun.answers``; ``None``: unknown.
        clusters: ``[sequence]`` the cluster of equivalent sequences, as an index into ``cluster_names``.
        cluster_names: readable names of the clusters.
        cluster_answers: the answer of each cluster, whose colour its sequences share in shades; ``None`` if clusters
            have colours of their own.
        notes: a readable note on each sequence; empty for none.
    """

    tokens: np.ndarray
    token_names: Sequence[str]
    answers: np.ndarray | None
    clusters: np.ndarray
    cluster_names: Sequence[str]
    cluster_answers: Sequence[int] | None
    notes: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class SandboxRun:
    """A model at some checkpoints of its training, with everything a sandbox draws.

    ``record_sandbox`` creates one from any model with hooks, ``sandbox_run`` from a two-dimensional network of the
    clustering-head study.

    Attributes:
        title: the title.
        epochs: ``[frame]`` the checkpoints kept, counted in ``unit``.
        available: number of checkpoints before selection.
        panels: what can be drawn, by name.
        sequences: the sequences followed.
        answers: the names of the answers that the model can give.
        values: ``[frame ...]`` by name: what the panels draw, ``probabilities`` ``[frame sequence answer]`` of the
            sequences followed, ``cloud`` ``[frame point 2]`` of others, ``query`` ``[frame 2]``, ``votes`` and
            ``biases`` of neurons, and over a grid of ``panel.background == "map"`` the likeliest answer
            (``class_map``) and its probability (``confidence``).
        curves: numbers at every checkpoint that was measured.
        unit: what a checkpoint is counted in, ``"epoch"`` or ``"step"``.
        n_used: how many of the answers, the first ones, are ever right; the others are drawn grey. ``None``: all.
        support: positions that determine the answer; empty if unknown.
        n_digits: how many tokens the panels of token and position pairs hold at each position.
        cloud_answers: the answers of the sequences in ``values["cloud"]``.
        map_half_height: the grid spans this far up and down, and 1.6 times as far to the sides.
        level_lines: per frame, lines of equal p(y | output): answer, level and ``[point 2]``.
        variance: by panel, ``[frame]`` the share of the variance of that frame's points that lies in the plane.
    """

    title: str
    epochs: list[int]
    available: int
    panels: Mapping[str, SandboxPanel]
    sequences: FollowedSequences
    answers: Sequence[str]
    values: Mapping[str, np.ndarray]
    curves: Curves
    unit: str = "epoch"
    n_used: int | None = None
    support: tuple[int, ...] = ()
    n_digits: int = 0
    cloud_answers: np.ndarray | None = None
    map_half_height: float = 1.0
    level_lines: Lines | None = None
    variance: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def kept(self) -> str:
        """How many checkpoints were kept, for people."""
        return f"{len(self.epochs):,} of {self.available:,} {self.unit}s kept"

    @property
    def length(self) -> int:
        """Positions of a sequence."""
        return int(self.sequences.tokens.shape[1])

    @property
    def n_right(self) -> int:
        """How many answers are ever right."""
        return len(self.answers) if self.n_used is None else self.n_used

    @property
    def corners(self) -> list[str]:
        """What stands at the corners of the triangle that ``values["simplex"]`` lies in."""
        names = list(self.answers)
        return [*names[:2], names[2] if len(names) == 3 else "others" if len(names) > 3 else ""]

    @cached_property
    def sureness(self) -> np.ndarray:
        """``[frame row column]`` of the class map: from 0, a guess, to 1, a sure answer."""
        least = 1 / len(self.answers)
        return np.asarray(((self.values["confidence"] - least) / (1 - least)).clip(0, 1))

    def half_width(self, name: str) -> float:
        """How far from 0 the points of a panel lie over the run, without the wildest checkpoints."""
        half = reach(self.values[name])
        if name == "token_embeddings" and 0 < self.n_digits < self.values[name].shape[1]:
            # A row that stands for no digit is only ever pushed away, and would leave the digits one dot.
            half = min(half, 3 * reach(self.values[name][:, : self.n_digits]))
        return half

    def frame(self, epoch: int) -> int:
        """The place of a checkpoint among those kept.

        Raises:
            InputError: when it was not kept; the message names the nearest.
        """
        if epoch not in self.epochs:
            near = min(self.epochs, key=lambda known: abs(known - epoch))
            raise InputError(f"{self.unit} {epoch} is not among those shown ({self.kept}); the nearest is {near}")
        return self.epochs.index(epoch)

    def __repr__(self) -> str:
        return f"SandboxRun({self.title!r}, {self.unit}s {self.epochs[0]}-{self.epochs[-1]}, {self.kept})"


def reach(points: np.ndarray) -> float:
    """The largest coordinate of ``[frame ...]``, but for the wildest frames, and a little more."""
    furthest = np.abs(points.reshape(len(points), -1)).max(axis=1)
    return 1.08 * float(np.nanpercentile(furthest, 98)) or 1.0
