"""Values that a list has more than once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def repeated_values(values: Sequence[Any]) -> list[Any]:
    """Return the values that occur earlier in the list, in order.

    Example:
        >>> repeated_values(["a", "b", "a"])
        ['a']
    """
    return [value for i, value in enumerate(values) if value in values[:i]]
