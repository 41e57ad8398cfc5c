"""Rows on disk: memory that does not grow with their number, and what reading one layer of many costs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

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
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    return {"saving": float(found[0]), "measuring": float(found[1])}


def _print_peaks(n: int) -> None:
    from probes import CKA, run_stores, save_rows

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        save_rows(_model(), [next(_batches(n))], f"{folder}/first")  # what is imported late
        before = _peak()
        store = save_rows(_model(), _batches(n), f"{folder}/rows", shard_rows=_SHARD)
        print(_peak(forget=False) - before)
        before = _peak()
        run_stores(store, CKA(form="moments"))
        print(_peak(forget=False) - before)


def _peak(forget: bool = True) -> float:
    """The process's peak memory in MiB, forgotten first."""
    if forget:
        Path(f"/proc/{os.getpid()}/clear_refs").write_text("5")
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def _model() -> Any:
    from tests.probes.conftest import FakeModel

    draw = torch.Generator().manual_seed(0)
    return FakeModel([torch.randn(100, _WIDTH, generator=draw) for _ in range(_LAYERS)]).eval()


def _batches(n: int) -> Iterator[Any]:
    from tasks import Batch

    for index in torch.split(torch.arange(n), 256):
        yield Batch(index[:, None] % 100, index=index)
