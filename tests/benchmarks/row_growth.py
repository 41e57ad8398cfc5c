"""How time and memory of probes grow with rows. Measured once, kept as JSON.

    python -m tests.benchmarks.row_growth

Each run is a separate process on one thread. Runs in ``row_growth.json`` are not measured again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import torch

from probes import CKA, LinearDecodability, NDims, Probe, RowSource, TaskClusterARI, last_token, rows_from, run_stores
from tests.benchmarks.kept import measure_missing
from tests.benchmarks.memory import forget_peak, held, peak, printed

KEPT = Path(__file__).with_name("row_growth.json")
SIZES = (1_000, 10_000, 100_000, 1_000_000)
PROBES: dict[str, Callable[[], Probe]] = {
    "TaskClusterARI": lambda: TaskClusterARI(at="hook_embed", readout=last_token()),
    "LinearDecodability": lambda: LinearDecodability(at="hook_embed"),
    "NDims": lambda: NDims(at="hook_embed"),
    "CKA": lambda: CKA(at="hook_embed"),
}
WIDTH = 64
N_CLASSES = 10


def print_run(probe: str, n_rows: int) -> None:
    """Measure random rows around one centre per class, and print seconds of the processor and MiB beyond the rows."""
    torch.set_num_threads(1)
    run_stores(_stores(probe, 200), PROBES[probe]())  # imports what is needed
    stores = _stores(probe, n_rows)
    before = held()
    forget_peak()
    start = process_time()
    run_stores(stores, PROBES[probe]())
    print(process_time() - start, peak() - before)


def _stores(probe: str, n_rows: int) -> RowSource | dict[str, RowSource]:
    """Return rows around one centre per class, and for CKA beside them a second store with more noise."""
    draw = torch.Generator().manual_seed(0)
    task = torch.arange(n_rows) % N_CLASSES
    rows = torch.randn(N_CLASSES, WIDTH, generator=draw)[task] + torch.randn(n_rows, WIDTH, generator=draw)
    one = rows_from({"hook_embed": rows}, labels={"task": task})
    if probe != "CKA":
        return one
    noisy = rows + torch.randn(n_rows, WIDTH, generator=draw)
    return {"one": one, "noisy": rows_from({"hook_embed": noisy}, labels={"task": task}, model="noisy")}


def measure(probe: str, rows: int) -> dict[str, Any]:
    """Measure a probe once in its own process: seconds of the processor, and MiB beyond the rows."""
    seconds, mib = printed(f"from tests.benchmarks.row_growth import print_run; print_run({probe!r}, {rows})")
    return {"seconds": round(seconds, 3), "mib": round(mib)}


if __name__ == "__main__":
    measure_missing(KEPT, [{"probe": probe, "rows": rows} for probe in PROBES for rows in SIZES], measure)
