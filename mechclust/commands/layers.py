"""Which layers of two models can be compared at a time, in the memory that there is."""

from __future__ import annotations

from collections.abc import Sequence

from probes import CKA, NDims


def layers_bytes(tuned: Sequence[int], base: Sequence[int], n: int, svcca: int = 0) -> int:
    """Bytes that layers of these dimensions take while they are compared.

    Args:
        tuned: dimensions of each layer of one model.
        base: of the other.
        n: prompts.
        svcca: prompts that are compared by SVCCA.
    """
    rows = CKA(form="rows").memory(tuned, base, n=n)
    return max(rows, NDims().memory([*tuned, *base], n), 3 * 4 * svcca * (sum(tuned) + sum(base)))


def layers_that_fit(
    layers: Sequence[int], tuned: int, base: int, n: int, room: float, *, most: int | None = None, svcca: int = 0
) -> list[list[int]]:
    """Layers in groups that take at most ``room`` bytes each; one by one where even two are too many.

    Args:
        layers: their numbers.
        tuned: dimensions of one model's layers.
        base: of the other's.
        n: prompts.
        room: bytes.
        most: layers of a group at most.
        svcca: as in ``layers_bytes``.

    Example:
        >>> layers_that_fit([1, 2, 3, 4, 5], 8, 8, 100, room=1e9, most=2)
        [[1, 2], [3, 4], [5]]
    """
    sizes = range(min(len(layers), most or len(layers)), 0, -1)
    size = next((k for k in sizes if layers_bytes(k * [tuned], k * [base], n, svcca) <= room), 1)
    return [list(layers[i : i + size]) for i in range(0, len(layers), size)]
