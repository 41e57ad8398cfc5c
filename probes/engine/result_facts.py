"""What a result's metadata say, for people."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

_DIGITS = 8  # of a model's digest


def facts(metadata: Mapping[str, Any]) -> str:
    """What stands above tables: short names of models, and numbers and texts that stand for themselves.

    Example:
        >>> facts({"examples": "12-0a1b2c3d4e5f6071", "model": {"tuned": "5" * 64, "base": "7" * 64}, "versions": {}})
        'examples = 12, model = tuned (55555555) and base (77777777)'
    """
    found = {k: v for k, v in metadata.items() if isinstance(v, (int, float, str))}
    model = metadata.get("model")
    if isinstance(model, Mapping):
        found["model"] = " and ".join(f"{name} ({str(digest)[:_DIGITS]})" for name, digest in model.items())
    elif isinstance(model, str):
        found["model"] = model[:_DIGITS]
    if isinstance(examples := found.get("examples"), str):
        found["examples"] = examples.partition("-")[0]
    return ", ".join(f"{k} = {v:.4g}" if isinstance(v, float) else f"{k} = {v}" for k, v in found.items())


def value_of(text: Any) -> Any:
    """The value whose repr this is, where JSON has it.

    Example:
        >>> value_of("('task', 2.0)"), value_of("residual()")
        (['task', 2.0], 'residual()')
    """
    try:
        return json.loads(json.dumps(ast.literal_eval(text)))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text
