"""Keep one model over its training, ready to be drawn as figures, films and pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int, Shaped

from mechclust.sandbox.curves import Curves
from mechclust.sandbox.drawn_planes import drawn_plane_reach
from mechclust.sandbox.panels import SandboxPanel
from mechclust.sandbox.sequences import FollowedSequences
from tasks import InputError

Lines = list[list[tuple[int, float, Float[np.ndarray, "_ 2"]]]]


@dataclass(frozen=True, eq=False)
class SandboxRun:
    """A model at some checkpoints of its training, with everything that a sandbox draws.

    ``record_sandbox`` creates one from any model with hooks, ``sandbox_run`` from a two-dimensional network of the
    clustering-head study.

    Attributes:
        title: the title.
        epochs: the checkpoint of each frame, counted in ``unit``.
        available: number of checkpoints before selection.
        panels: all panels, by name.
        sequences: the sequences followed.
        answers: the names of the answers that the model can give.
        values: arrays ``[frame ...]`` by name: the points and numbers of the panels, ``probabilities``
            ``[frame sequence answer]``, ``predicted`` ``[frame sequence]`` the answer of the likeliest token (without
            it, the highest of these), ``cloud`` ``[frame point 2]`` of other sequences, ``query`` ``[frame 2]``,
            ``votes`` and ``biases`` of neurons. Over the grid of a map, the likeliest answer (``class_map``) and its
            probability (``confidence``).
        curves: numbers at every checkpoint that was measured.
        unit: of checkpoints, ``"epoch"`` or ``"step"``.
        n_right: how many of the answers, the first ones, are ever right. The others are drawn grey.
        support: positions that determine the answer, or empty if unknown.
        n_digits: number of tokens at each position in panels of token and position pairs.
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
    n_right: int
    values: Mapping[str, Shaped[np.ndarray, "..."]]
    curves: Curves
    unit: str = "epoch"
    support: tuple[int, ...] = ()
    n_digits: int = 0
    cloud_answers: Int[np.ndarray, "_"] | None = None
    map_half_height: float = 1.0
    level_lines: Lines | None = None
    variance: Mapping[str, Float[np.ndarray, "frame"]] = field(default_factory=dict)

    @property
    def kept(self) -> str:
        """The number of checkpoints kept, as text."""
        return f"{len(self.epochs):,} of {self.available:,} {self.unit}s kept"

    @property
    def length(self) -> int:
        """The number of positions of a sequence."""
        return int(self.sequences.tokens.shape[1])

    @property
    def corners(self) -> list[str]:
        """Names of the corners of the triangle that holds ``values["simplex"]``."""
        names = list(self.answers)
        if len(names) <= 3:
            return [*names, *("" for _ in range(3 - len(names)))]
        return [*names[:2], "others"]

    @cached_property
    def sureness(self) -> Float[np.ndarray, "frame row column"]:
        """Certainty in each cell of the class map, from 0 (a guess) to 1."""
        least = 1 / len(self.answers)
        return np.asarray(((self.values["confidence"] - least) / (1 - least)).clip(0, 1))

    def half_width(self, name: str) -> float:
        """Return the largest distance from 0 of a panel's points over the run, without outlier checkpoints."""
        half = drawn_plane_reach(self.values[name])
        if name == "token_embeddings" and 0 < self.n_digits < self.values[name].shape[1]:
            # Rows of no digit drift far away, and would leave the digits one dot.
            half = min(half, 3 * drawn_plane_reach(self.values[name][:, : self.n_digits]))
        return half

    def frame(self, epoch: int) -> int:
        """Return the frame of a checkpoint.

        Raises:
            InputError: if it was not kept. The message names the nearest.
        """
        if epoch not in self.epochs:
            distances = np.abs(np.asarray(self.epochs) - epoch)
            near = self.epochs[int(distances.argmin())]
            raise InputError(f"{self.unit} {epoch} is not among those shown ({self.kept}); the nearest is {near}")
        return self.epochs.index(epoch)

    def __repr__(self) -> str:
        return f"SandboxRun({self.title!r}, {self.unit}s {self.epochs[0]}-{self.epochs[-1]}, {self.kept})"
