"""A sketch of a model's weights, which shows whether and how far two models differ without loading either."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xxhash
from jaxtyping import Float, Shaped
from torch import Tensor

from mechclust.models.plain_model import plain_model

PER_WEIGHT = 1024  # numbers of a weight that are kept. Smaller weights are kept whole
_DIGEST_CHUNK = 1 << 24  # numbers that are copied from a device at once


@dataclass(frozen=True, eq=False)
class WeightSketch:
    """A digest and a sample of a model's weights.

    Attributes:
        digest: of all numbers. Models of equal weights have equal digests.
        shapes: of the names and shapes. Only sketches of equal shapes can be compared.
        values: a sample of each weight in float32, scaled so that squared distances between sketches estimate squared
            distances between the weights.
    """

    digest: str
    shapes: str
    values: Float[Tensor, "sampled"]

    def distance(self, other: WeightSketch) -> float:
        """Estimate the Euclidean distance between the weights, NaN if their shapes differ.

        Example:
            >>> a, b = (weight_sketch(torch.nn.Linear(2, 2)) for _ in range(2))
            >>> a.distance(a), a.distance(b) > 0
            (0.0, True)
        """
        if self.shapes != other.shapes:
            return float("nan")
        return float((self.values.double() - other.values.double()).norm())


def weight_sketch(model: Any) -> WeightSketch:
    """Return the sketch of a model in memory.

    Which numbers are sampled depends on a weight's name alone. Cost: one pass over the weights.

    Args:
        model: of Hugging Face, or as ``load_pretrained`` gives it, or any module.

    Example:
        >>> sketch = weight_sketch(torch.nn.Linear(3, 2))
        >>> sketch.values.shape
        torch.Size([8])
    """
    digest = xxhash.xxh3_128()
    shapes = xxhash.xxh3_128()
    samples = []
    for name, weight in sketched_weights(model):
        flat = weight.detach().reshape(-1)
        shapes.update(f"{name} {list(weight.shape)}".encode())
        digest.update(f"{name} {weight.dtype}".encode())
        for part in torch.split(flat, _DIGEST_CHUNK):
            digest.update(part.cpu().contiguous().view(torch.uint8).numpy().data)
        samples.append(_sample(name, flat))
    return WeightSketch(str(digest.hexdigest()), str(shapes.hexdigest()), torch.cat(samples))


def has_random_weights(model: Any) -> bool:
    """Return whether every bias and normalisation weight holds a single number, as before the first step.

    Models without such weights count as trained.

    Example:
        >>> layer = torch.nn.Linear(3, 2)
        >>> drawn = has_random_weights(layer)
        >>> _ = torch.nn.init.zeros_(layer.bias)
        >>> drawn, has_random_weights(layer)
        (False, True)
    """
    vectors = [weight for _, weight in sketched_weights(model) if weight.ndim == 1 and len(weight) > 1]
    return bool(vectors) and all(bool((vector == vector[0]).all()) for vector in vectors)


def sketched_weights(model: Any) -> list[tuple[str, Shaped[Tensor, "..."]]]:
    """Return the weights of a model in the order of their names, which are Hugging Face's if it has them."""
    plain = plain_model(model) if hasattr(model, "hook_dict") else model
    return sorted((name, weight) for name, weight in (plain or model).named_parameters() if weight.numel())


def _sample(name: str, flat: Shaped[Tensor, "number"]) -> Float[Tensor, "sampled"]:
    if len(flat) <= PER_WEIGHT:
        return flat.float().cpu()
    draw = np.random.default_rng(xxhash.xxh32_intdigest(name.encode()))
    places = torch.from_numpy(np.sort(draw.integers(0, len(flat), PER_WEIGHT)))
    return flat[places.to(flat.device)].float().cpu() * (len(flat) / PER_WEIGHT) ** 0.5
