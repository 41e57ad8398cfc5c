"""Compute a model's answers at any point of its last residual stream."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from mechclust.sandbox.examples import Examples
from probes.engine.devices import device_of
from probes.engine.hooked_model import HookedModel, evaluation_mode
from probes.engine.record import record

GRID = (64, 40)  # cells across and up
_ROWS = 256  # sequences of a forward pass


def class_map_grid(half_height: float, cells: tuple[int, int] = GRID) -> Float[np.ndarray, "point 2"]:
    """Return the centres of a map's cells, row by row from below. The map is 1.6 times as wide as high.

    Example:
        >>> class_map_grid(1.0)[[0, -1]].round(3).tolist()
        [[-1.575, -0.975], [1.575, 0.975]]
    """
    across, up = cells
    x = ((np.arange(across) + 0.5) / across * 2 - 1) * half_height * across / up
    y = ((np.arange(up) + 0.5) / up * 2 - 1) * half_height
    return np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)


@torch.no_grad()
def class_map_answers(
    model: HookedModel, site: str, points: Float[np.ndarray, "point d"], examples: Examples, *, pooled: bool
) -> Float[np.ndarray, "point answer"]:
    """Return the probabilities of the answers if these points replace a site that no attention follows.

    Args:
        model: one whose activations hooks can replace.
        site: the hook point, of shape ``[batch pos d]``.
        points: the replacements.
        examples: with the answers.
        pooled: whether the model gives one answer for each sequence, not one at each position.
    """
    device = device_of(model)
    width = 1 if pooled else examples.batch.tokens.shape[1]
    rows = math.ceil(len(points) / width)
    filled = np.concatenate([points, np.repeat(points[-1:], rows * width - len(points), axis=0)])
    streams = rearrange(torch.from_numpy(filled), "(row pos) d -> row pos d", pos=width)
    probabilities = []
    for start in range(0, rows, _ROWS):
        replacement = streams[start : start + _ROWS].to(device)
        tokens = examples.batch.tokens[:1].expand(len(replacement), -1).to(device)
        with evaluation_mode(model), record(model, [site], partial(_replaced, replacement)):
            logits = model(tokens).float().cpu()
        probabilities.append(examples.probabilities(logits.reshape(-1, logits.shape[-1])))
    return np.concatenate(probabilities)[: len(points)]


def _replaced(
    replacement: Float[Tensor, "row pos d"], _: str, activation: Float[Tensor, "..."]
) -> Float[Tensor, "..."]:
    return replacement.to(activation).expand_as(activation)
