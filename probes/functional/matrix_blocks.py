"""Blocks of a symmetric matrix, to compute it a block at a time."""

from __future__ import annotations

from collections.abc import Iterator


def upper_matrix_blocks(n: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Yield the rows and columns of the blocks on and above the diagonal of an n x n matrix.

    Example:
        >>> [(rows.stop, columns.stop) for rows, columns in upper_matrix_blocks(5, 2)]
        [(2, 2), (2, 4), (2, 5), (4, 4), (4, 5), (5, 5)]
    """
    parts = [slice(start, min(start + size, n)) for start in range(0, n, size)]
    for i, rows in enumerate(parts):
        for columns in parts[i:]:
            yield rows, columns
