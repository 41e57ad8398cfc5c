"""Names of attention heads, such as L0H3, and heads with a value."""

from __future__ import annotations

from typing import NamedTuple


def head_name(block: int, head: int) -> str:
    """Return a head's name as TransformerLens and papers write it, both numbers from 0.

    Example:
        >>> head_name(0, 3)
        'L0H3'
    """
    return f"L{block}H{head}"


class Head(NamedTuple):
    """An attention head with the value of a measure, as ``ProbeResult.top_heads`` returns it.

    Attributes:
        layer: the block's number, 0 for ``blocks.0``.
        head: head number, from 0.
        value: value of the measure.

    Example:
        >>> Head(layer=0, head=3, value=0.5).name
        'L0H3'
    """

    layer: int
    head: int
    value: float

    @property
    def name(self) -> str:
        """The head's name, such as ``"L0H3"``."""
        return head_name(self.layer, self.head)
