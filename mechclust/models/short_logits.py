"""Logits of a few tokens, by which a bridge is compared with the Hugging Face model that it was made of."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.engine.devices import device_of

_LENGTH = 4
_MAX_DIFFERENCE = 0.1  # relative, also in bfloat16

_Logits = Float[Tensor, "... d_vocab"]


def short_logits(model: Any, config: Any) -> list[_Logits]:
    """Return a model's logits for two short rows, without padding and with the second row padded on the right.

    Args:
        model: a bridge, or a Hugging Face model with a head.
        config: Hugging Face's configuration.
    """
    tokens, pad = _rows(config)
    mask = torch.ones_like(tokens)
    mask[1, -1:] = 0
    first = _logits(model, tokens, None)
    second = _logits(model, tokens.masked_fill(mask == 0, pad), mask)
    return [first, torch.cat([second[0], second[1, :-1]])]


def left_padded_logits(model: Any, config: Any) -> _Logits:
    """Return a model's logits for the padded row of ``short_logits``, now padded on the left, without the padding's."""
    tokens, pad = _rows(config)
    mask = torch.ones_like(tokens[1:])
    mask[:, 0] = 0
    return _logits(model, tokens[1:].roll(1, dims=1).masked_fill(mask == 0, pad), mask)[0, 1:]


def _rows(config: Any) -> tuple[Int[Tensor, "2 pos"], int]:
    """Return two short rows of tokens, and the padding token."""
    sizes = config.get_text_config()
    length = min(_LENGTH, getattr(sizes, "max_position_embeddings", None) or _LENGTH)
    tokens = (torch.arange(2 * length).view(2, length) + sizes.vocab_size // 2) % sizes.vocab_size
    return tokens, getattr(sizes, "pad_token_id", None) or 0


def _logits(
    model: Any, tokens: Int[Tensor, "batch pos"], mask: Int[Tensor, "batch pos"] | None
) -> Float[Tensor, "batch pos d_vocab"]:
    device = device_of(model)
    options = {} if mask is None else {"attention_mask": mask.to(device)}
    with torch.no_grad():
        output = model(tokens.to(device), **options)
    return getattr(output, "logits", output)  # type: ignore[no-any-return]


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
