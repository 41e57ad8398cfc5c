"""Group layers of two models so that each group can be compared in a given memory."""

from __future__ import annotations

from collections.abc import Sequence

from probes import CKA, NDims


def layers_bytes(tuned: Sequence[int], base: Sequence[int], n: int, svcca: int = 0) -> int:
    """Return the bytes that layers of these dimensions take while they are compared.

    Args:
        tuned: dimension of each layer of one model.
        base: dimension of each layer of the other model.
        n: number of prompts.
        svcca: number of prompts that are compared by SVCCA.
    """
    rows = CKA(form="rows").memory(tuned, base, n=n)
    return max(rows, NDims().memory([*tuned, *base], n), 3 * 4 * svcca * (sum(tuned) + sum(base)))


def layers_that_fit(layers: Sequence[int], d: int, n: int, room: float, *, svcca: int = 0) -> list[list[int]]:
    """Return layers in groups that take at most ``room`` bytes each, or one by one if even two are too many.

    Args:
        layers: numbers of the layers.
        d: dimension of every layer of both models.
        n: number of prompts.
        room: bytes of memory.
        svcca: as in ``layers_bytes``.

    Example:
        >>> layers_that_fit([1, 2, 3, 4, 5], 8, 100, room=layers_bytes([8, 8], [8, 8], 100))
        [[1, 2], [3, 4], [5]]
    """
    sizes = range(len(layers), 0, -1)
    size = next((k for k in sizes if layers_bytes(k * [d], k * [d], n, svcca) <= room), 1)
    return [list(layers[i : i + size]) for i in range(0, len(layers), size)]
