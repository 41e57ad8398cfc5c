"""Parameters of probes as text and as JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

_MAX_ELEMENTS_SHOWN = 64  # an array of more elements is shown by its digest


def parameter_json(value: object) -> Any:
    """Return a parameter for JSON: numbers, texts, lists and tables of them unchanged, all else as ``parameter_text``.

    Example:
        >>> parameter_json(2.0), parameter_json(("task", None)), parameter_json(range(3))
        (2.0, ['task', None], 'range(0, 3)')
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping) and all(type(name) is str for name in value):
        return {name: parameter_json(part) for name, part in value.items()}
    if type(value) in (list, tuple):
        return [parameter_json(part) for part in value]  # type: ignore[attr-defined]
    return parameter_text(value)


def parameter_text(value: object) -> str:
    """Return the ``repr`` of a parameter: of a small tensor the code that builds it, of other arrays their digest."""
    if not isinstance(value, (Tensor, np.ndarray)):
        return repr(value)
    array = np.ascontiguousarray(value.detach().cpu().numpy() if isinstance(value, Tensor) else value)
    if array.size <= _MAX_ELEMENTS_SHOWN and isinstance(value, Tensor):
        return f"torch.tensor({array.tolist()}, dtype={value.dtype})"
    return f"<{array.dtype} {list(array.shape)} {hashlib.sha256(array.tobytes()).hexdigest()[:12]}>"
