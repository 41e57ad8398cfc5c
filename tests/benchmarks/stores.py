"""Rows on disk: memory that does not grow with their number, and what reading one layer of many costs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch

from tests.benchmarks.memory import forget_peak, held, peak, printed
from tests.benchmarks.ratio import alternate

_LAYERS, _WIDTH, _SHARD = 6, 256, 2048


def memory(part: str) -> float:
    """Peak memory of ``"saving"`` or ``"measuring"`` 102,400 rows over that of 10,240."""
    return _peaks(102_400)[part] / _peaks(10_240)[part]


def one_layer() -> float:
    """Measuring all layers against one of them, from disk."""
    from probes import CKA, residual, run_stores, save_rows

    with tempfile.TemporaryDirectory() as folder:
        store = save_rows(_model(), _batches(20_480), folder, shard_rows=_SHARD)
        cka = [CKA(residual(layers), form="moments", pairs="diagonal") for layers in (None, 3)]
        return alternate(lambda: run_stores(store, cka[0]), lambda: run_stores(store, cka[1]), rounds=3)


@lru_cache
def _peaks(n: int) -> dict[str, float]:
    """MiB above what the process held before."""
    code = f"from tests.benchmarks.stores import _print_peaks; _print_peaks({n})"
    return dict(zip(("saving", "measuring"), printed(code), strict=True))


def _print_peaks(n: int) -> None:
    from probes import CKA, run_stores, save_rows

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        save_rows(_model(), [next(_batches(n))], f"{folder}/first")  # what is imported late
        forget_peak()
        before = held()
        store = save_rows(_model(), _batches(n), f"{folder}/rows", shard_rows=_SHARD)
        print(peak() - before)
        forget_peak()
        before = held()
        run_stores(store, CKA(form="moments"))
        print(peak() - before)


def _model() -> Any:
    from tests.probes.conftest import FakeModel

    draw = torch.Generator().manual_seed(0)
    return FakeModel([torch.randn(100, _WIDTH, generator=draw) for _ in range(_LAYERS)]).eval()


def _batches(n: int) -> Iterator[Any]:
    from tasks import Batch

    for index in torch.split(torch.arange(n), 256):
        yield Batch(index[:, None] % 100, index=index)


def table() -> list[tuple[str, Callable[[], float], str]]:
    """What is measured, how, and the goal."""
    return [
        ("growth of memory, save_rows, 102,400 rows / 10,240", lambda: memory("saving"), "<= 2"),
        ("growth of memory, run_stores with CKA, the same", lambda: memory("measuring"), "<= 2"),
        ("CKA of all 6 layers from disk / of one", one_layer, ">= 4"),
    ]
