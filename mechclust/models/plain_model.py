"""The plain Hugging Face model under a hooked one."""

from __future__ import annotations

from typing import Any

from mechclust.models.adapters import adapter_resident


def plain_model(model: Any) -> Any:
    """Return the Hugging Face model whose weights a model from ``load_pretrained`` shares, or ``None``."""
    resident = adapter_resident(model)
    return None if resident is None else resident.plain
