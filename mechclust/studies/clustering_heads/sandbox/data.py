"""One network's run in the form that figures, films and pages draw."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from mechclust.models import build_model
from mechclust.sandbox.class_map import class_map_grid
from mechclust.sandbox.curves import Curves
from mechclust.sandbox.drawn_planes import drawn_plane_reach
from mechclust.sandbox.frames import choose_frames
from mechclust.sandbox.run import Lines, SandboxRun
from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
from mechclust.studies.clustering_heads.sandbox.panels import PANELS
from mechclust.studies.clustering_heads.sandbox.record import answers_over, measure_frames, record_frames
from mechclust.studies.clustering_heads.sandbox.sequences import probe_sequences
from mechclust.training.snapshots import Snapshots
from tasks import InputError, SparseModularAddition

_CLOUD_SEQUENCES = 400  # test sequences drawn as small dots behind the followed ones
_GRID = (96, 60)  # cells of a class map, across and up
_LEVELS = (0.5, 0.75, 0.95)


def sandbox_run(
    snapshots: Snapshots,
    member: int,
    *,
    max_frames: int = 300,
    curves: Curves | None = None,
    title: str | None = None,
) -> SandboxRun:
    """Record one network of an ensemble.

    Keeps the first and the last epoch, some around every spike of ``curves``, and others evenly spaced. Takes about
    10 ms per epoch.

    Args:
        snapshots: the snapshots kept during training.
        member: number of the network in the ensemble.
        max_frames: maximum number of epochs to keep.
        curves: numbers measured at every epoch. ``None``: loss and accuracy are measured at the epochs
            kept, and the other curves are not shown.
        title: title of the sandbox, or ``None`` for ``"seed 3"``.

    Returns:
        The run that ``sandbox_figure``, ``sandbox_film`` and ``sandbox_page`` draw.

    Raises:
        InputError: for fewer than two snapshots or frames, or a network that cannot be drawn (``d_model`` other than 2,
            several heads). Also for another task than sparse modular addition.

    Example:
        >>> import tempfile
        >>> from mechclust.training import Member, TrainConfig, train_ensemble
        >>> settings = TrainConfig(steps=6, batch_size=32, schedule="constant", clip=None)
        >>> member = Member(PoolingTransformerConfig(), SparseModularAddition(n_train=64, n_test=64))
        >>> snapshots = train_ensemble([member], settings, tempfile.mkdtemp(), backend="loop")
        >>> sandbox_run(snapshots, 0, max_frames=3)
        SandboxRun('seed 0', epochs 0-3, 3 of 4 epochs kept)
    """
    config, task = _drawable(snapshots, member)
    spikes = [epoch for epoch, _ in curves.spikes] if curves else []
    places = choose_frames(snapshots.epochs, max_frames, around=spikes)
    kept = [snapshots.epochs[place] for place in places]
    weights = snapshots.of(member, [snapshots.steps[place] for place in places])
    model = build_model(config)
    followed = probe_sequences(task)
    cloud = next(task.batches("test", min(_CLOUD_SEQUENCES, task.n_test)))
    values = record_frames(model, weights, torch.from_numpy(followed.tokens), cloud.tokens, task)
    half_height = max(drawn_plane_reach(values["xi"]), drawn_plane_reach(values["cloud"]))
    values["simplex"] = _in_triangle(values["probabilities"])
    values |= _class_map(answers_over(model, weights, class_map_grid(half_height, _GRID)))
    if curves is None:
        curves = Curves(kept, measure_frames(model, weights, task))
    return SandboxRun(
        title=f"seed {config.seed}" if title is None else title,
        epochs=kept,
        available=len(snapshots),
        panels=PANELS,
        sequences=followed,
        answers=task.vocab[: values["probabilities"].shape[-1]],
        n_right=task.p,
        support=task.positions,
        n_digits=task.p,
        cloud_answers=cloud.label("answer").numpy(),
        values=values,
        map_half_height=half_height,
        level_lines=_level_lines(weights["embed.W_E"], drawn_plane_reach(values["output"])),
        curves=curves,
    )


def _drawable(snapshots: Snapshots, member: int) -> tuple[PoolingTransformerConfig, SparseModularAddition]:
    """Return a network's configuration and task.

    Raises:
        InputError: for a network that a sandbox cannot draw.
    """
    if not 0 <= member < len(snapshots.configs):
        snapshots.model(member)  # its error lists the members
    config = snapshots.configs[member]
    task = snapshots.tasks[member]
    if not isinstance(config, PoolingTransformerConfig) or not isinstance(task, SparseModularAddition):
        raise InputError(
            f"this run trained a {type(config).__name__.removesuffix('Config')} on {task.name!r}; a sandbox shows a "
            "PoolingTransformer on 'sparse-modular-addition'"
        )
    if config.d_model != 2 or config.n_heads != 1:
        raise InputError(
            f"the network has d_model {config.d_model} and n_heads {config.n_heads}; a sandbox draws d_model 2 and "
            "n_heads 1, as points in a plane: train one of that size"
        )
    if len(set(snapshots.epochs)) < len(snapshots):
        raise InputError(
            f"{str(snapshots.folder)!r} has several snapshots per epoch; a sandbox shows one: "
            "train with snapshot_every=None"
        )
    return config, task


def is_drawn_whole(snapshots: Snapshots, member: int) -> bool:
    """Return whether ``sandbox_run`` can draw a network of an ensemble."""
    try:
        _drawable(snapshots, member)
    except InputError:
        return False
    return True


def _class_map(answers: Float[np.ndarray, "frame cell answer"]) -> dict[str, Shaped[np.ndarray, "frame up across"]]:
    """Return the likeliest answer in each cell of the grid, and its probability."""
    across, up = _GRID
    by_cell = answers.reshape(len(answers), up, across, -1)
    return {"class_map": by_cell.argmax(axis=-1).astype(np.int16), "confidence": by_cell.max(axis=-1)}


def _in_triangle(p: Float[np.ndarray, "frame sequence answer"]) -> Float[np.ndarray, "frame sequence 2"]:
    """Return probabilities as points of a triangle whose corners are answers."""
    rest = p[..., 2:].sum(axis=-1)
    return np.stack([p[..., 1] + rest / 2, rest * np.sqrt(3) / 2], axis=-1)


def _level_lines(token_embeddings: Float[Tensor, "frame d_vocab 2"], half_height: float) -> Lines:
    """Return the lines on which an answer has one of the probabilities ``_LEVELS``, at each frame."""
    points = class_map_grid(half_height, _GRID)
    logits = torch.from_numpy(points).float() @ token_embeddings.mT
    return [_lines_of_frame(points, answers) for answers in logits.softmax(dim=-1).numpy()]


def _lines_of_frame(
    points: Float[np.ndarray, "point 2"], probabilities: Float[np.ndarray, "point answer"]
) -> list[tuple[int, float, Float[np.ndarray, "vertex 2"]]]:
    from contourpy import contour_generator

    across, up = _GRID
    x = points[:across, 0]
    y = points[::across, 1]
    # In the log-odds, which are nearly linear here: level lines of the probabilities themselves are jagged.
    sure = probabilities.astype(np.float64).clip(1e-30, 1 - 1e-15)
    lines = []
    for answer, log_odds in enumerate(np.log(sure / (1 - sure)).T):
        generator = contour_generator(x, y, log_odds.reshape(up, across))
        for level in _LEVELS:
            drawn = generator.lines(np.log(level / (1 - level)))
            lines += [(answer, level, np.asarray(line)) for line in drawn]
    return lines
