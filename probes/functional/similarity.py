"""The similarity of two representations, which CKA, RBF CKA and SVCCA return."""

from __future__ import annotations

from typing import NamedTuple


class Similarity(NamedTuple):
    """Similarity of two representations of shared examples. ``float()`` gives the value.

    Attributes:
        value: the similarity, never clamped. NaN if undefined.
        n: number of examples.
        d: dimensions of the two.
        note: why the value is NaN, or another caveat. Empty otherwise.

    Example:
        >>> float(Similarity(value=0.5, n=10, d=(3, 4)))
        0.5
    """

    value: float
    n: int
    d: tuple[int, int]
    note: str = ""

    def __float__(self) -> float:
        return self.value
