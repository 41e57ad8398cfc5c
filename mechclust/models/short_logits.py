"""Logits of a few tokens, by which a bridge is compared with the Hugging Face model that it was made of."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from probes.engine.devices import device_of

_LENGTH = 4
_MAX_DIFFERENCE = 0.1  # relative, also in bfloat16

_Logits = Float[Tensor, "... d_vocab"]


def short_logits(model: Any, config: Any) -> list[_Logits]:
    """Return a model's logits for two short rows, without padding and with the second row padded.

    Args:
        model: a bridge, or a Hugging Face model with a head.
        config: Hugging Face's configuration.
    """
    sizes = config.get_text_config()
    length = min(_LENGTH, getattr(sizes, "max_position_embeddings", None) or _LENGTH)
    tokens = (torch.arange(2 * length).view(2, length) + sizes.vocab_size // 2) % sizes.vocab_size
    mask = torch.ones_like(tokens)
    mask[1, length - 1 :] = 0
    padded = tokens.masked_fill(mask == 0, getattr(sizes, "pad_token_id", None) or 0)
    device = device_of(model)
    with torch.no_grad():
        outputs = [model(tokens.to(device)), model(padded.to(device), attention_mask=mask.to(device))]
    first, second = (getattr(output, "logits", output) for output in outputs)
    return [first, torch.cat([second[0], second[1, : length - 1]])]


def are_equal(logits: list[_Logits], expected: list[_Logits]) -> bool:
    """Return whether logits differ by rounding only, or the expected ones overflow."""
    return all(_is_close(*pair) for pair in zip(logits, expected, strict=True))


def _is_close(logits: _Logits, expected: _Logits) -> bool:
    if not bool(expected.isfinite().all()):
        return True
    epsilons = [torch.finfo(each.dtype).eps for each in (logits, expected)]
    if torch.get_float32_matmul_precision() != "highest":  # such as TF32
        epsilons.append(torch.finfo(torch.bfloat16).eps)
    allowed = min(1000 * max(epsilons), _MAX_DIFFERENCE)
    difference = (logits.double() - expected.double()).norm()
    return bool(difference <= allowed * expected.double().norm())
