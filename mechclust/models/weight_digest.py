"""A digest of a model's weights, and whether they are those of a model before its first step."""

from __future__ import annotations

from typing import Any

import torch
import xxhash
from jaxtyping import Shaped
from torch import Tensor

from mechclust.models.plain_model import plain_model

_DIGEST_CHUNK = 1 << 24  # numbers that are copied from a device at once


def weights_digest(model: Any) -> str:
    """Return a digest of all weights. Models of equal weights have equal digests.

    Cost: one pass over the weights.

    Args:
        model: of Hugging Face, or as ``load_pretrained`` gives it, or any module.

    Example:
        >>> a, b = (torch.nn.Linear(2, 2) for _ in range(2))
        >>> weights_digest(a) == weights_digest(a), weights_digest(a) == weights_digest(b)
        (True, False)
    """
    digest = xxhash.xxh3_128()
    for name, weight in named_weights(model):
        digest.update(f"{name} {weight.dtype}".encode())
        for part in torch.split(weight.detach().reshape(-1), _DIGEST_CHUNK):
            digest.update(part.cpu().contiguous().view(torch.uint8).numpy().data)
    return str(digest.hexdigest())


def has_random_weights(model: Any) -> bool:
    """Return whether every bias and normalisation weight holds a single number, as before the first step.

    ``False`` also if it cannot be known: without such weights, if they are drawn at random, or if training may have
    left them as they were. In half precision, a small step does not move a normalisation weight of 1, only a bias of 0.

    Example:
        >>> layer = torch.nn.Linear(3, 2)
        >>> drawn = has_random_weights(layer)
        >>> _ = torch.nn.init.zeros_(layer.bias)
        >>> drawn, has_random_weights(layer)
        (False, True)
    """
    weights = [weight for _, weight in named_weights(model)]
    vectors = [weight for weight in weights if weight.ndim == 1 and len(weight) > 1]
    if not all(bool((vector == vector[0]).all()) for vector in vectors):
        return False
    if any(not bool(vector.any()) for vector in vectors):
        return True
    return bool(vectors) and not all(_in_half_precision(weight) for weight in weights if weight.ndim > 1)


def _in_half_precision(matrix: Shaped[Tensor, "..."]) -> bool:
    """Return whether a matrix was rounded to half precision, also if it was read as float32 since."""
    return any(bool((matrix == matrix.to(dtype)).all()) for dtype in (torch.bfloat16, torch.float16))


def named_weights(model: Any) -> list[tuple[str, Shaped[Tensor, "..."]]]:
    """Return the weights of a model in the order of their names, which are Hugging Face's if it has them."""
    plain = plain_model(model) if hasattr(model, "hook_dict") else model
    return sorted((name, weight) for name, weight in (plain or model).named_parameters() if weight.numel())
