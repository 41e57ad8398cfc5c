"""Whether a model predicts the next token."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from mechclust.models.patching import patched_forward
from probes.engine.hooked_model import HookedModel
from tasks import Batch


def predicts_next_token(model: HookedModel) -> bool:
    """Return whether a model's output is logits for each token that do not depend on later tokens."""
    tokens: Int[Tensor, "batch pos"] = torch.tensor([[0, 0], [0, 1]])
    logits, _ = patched_forward(model, Batch(tokens), [])
    if not isinstance(logits, Tensor) or logits.ndim != 3:
        return False
    first = logits[:, 0].float()
    return torch.allclose(first[0], first[1], rtol=1e-3, atol=1e-3 * float(first.abs().max()))
