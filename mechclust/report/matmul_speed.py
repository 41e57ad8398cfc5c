"""The measured speed of matrix products on a device."""

from __future__ import annotations

import time
from functools import cache

import torch

_TIMED_S = 0.05  # for which the matrix product is repeated


@cache  # every model of a comparison asks, and each timing takes a twentieth of a second
def matmul_speed(device: str, dtype: torch.dtype, width: int, rows: int, *, one_thread: bool) -> float:
    """Return multiplications and additions per second of a short matrix product.

    Args:
        device: where.
        dtype: of its numbers.
        width: of the square matrix.
        rows: of what it is multiplied with.
        one_thread: compute on a CPU with one thread, as a worker does.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if one_thread else threads)
    try:
        return _timed(device, dtype, width, rows)
    finally:
        torch.set_num_threads(threads)


def _timed(device: str, dtype: torch.dtype, width: int, rows: int) -> float:
    x = torch.ones(rows, width, device=device, dtype=dtype)
    weights = torch.ones(width, width, device=device, dtype=dtype)
    float((x @ weights)[0, 0])  # the first is slow, and reading a number waits for the device
    start = time.perf_counter()
    products = 0
    elapsed = 0.0
    while elapsed < _TIMED_S:
        float((x @ weights)[0, 0])
        products += 1
        elapsed = time.perf_counter() - start
    return 2.0 * products * rows * width * width / elapsed
