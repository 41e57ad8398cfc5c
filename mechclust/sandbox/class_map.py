"""What a model answers wherever its last residual stream might stand."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float

from mechclust.sandbox.examples import Examples
from probes.engine.hooks import HookedModel, device_of, evaluation_mode, record

GRID = (64, 40)  # cells across and up
_ROWS = 256  # sequences of a forward pass


def grid(half_height: float, cells: tuple[int, int] = GRID) -> Float[np.ndarray, "point 2"]:
    """The centres of a map's cells, row by row from below; the map is 1.6 times as wide as high.

    Example:
        >>> grid(1.0)[[0, -1]].round(3).tolist()
        [[-1.575, -0.975], [1.575, 0.975]]
    """
    across, up = cells
    x = ((np.arange(across) + 0.5) / across * 2 - 1) * half_height * across / up
    y = ((np.arange(up) + 0.5) / up * 2 - 1) * half_height
    return np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)


@torch.no_grad()
def answers_at(
    model: HookedModel, site: str, points: Float[np.ndarray, "point d"], examples: Examples, *, pooled: bool
) -> Float[np.ndarray, "point answer"]:
    """The probabilities of the answers where these points take the place of a site that no attention follows.

    Args:
        model: takes what a hook returns.
        site: the hook point ``[batch pos d]``.
        points: to put there.
        examples: know the answers.
        pooled: the model gives one answer for each sequence; otherwise one at each position.
    """
    device, width = device_of(model), 1 if pooled else examples.batch.tokens.shape[1]
    rows = math.ceil(len(points) / width)
    filled = np.concatenate([points, np.repeat(points[-1:], rows * width - len(points), axis=0)])
    at = torch.from_numpy(filled).reshape(rows, width, -1)
    found = []
    for start in range(0, rows, _ROWS):
        now = at[start : start + _ROWS].to(device)
        tokens = examples.batch.tokens[:1].expand(len(now), -1).to(device)
        with evaluation_mode(model), record(model, [site], lambda _, x, now=now: now.to(x).expand_as(x)):  # type: ignore[misc]
            logits = model(tokens).float().cpu()
        found.append(examples.probabilities(logits.reshape(-1, logits.shape[-1])))
    return np.concatenate(found)[: len(points)]
