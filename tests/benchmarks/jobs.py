"""What it costs to give work away: jobs and shards, in local processes and under Ray, and the driver's own part."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from statistics import median
from typing import Any, ClassVar

import torch
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of

from mechclust import ModelConfig, Ray, build_model, run_sharded
from mechclust.jobs import imap_jobs
from probes import CKA, NDims, Probe, run
from tasks import Batch
from tests.benchmarks.driver import busy, most_workers
from tests.benchmarks.ratio import alternate

_JOBS, _SHARDS = 1000, 200
_MODEL = ModelConfig(d_vocab=50, n_ctx=16, n_layers=2, d_model=32, n_heads=2)
Table = list[tuple[str, Callable[[], float], str]]


@contextmanager
def cluster() -> Iterator[Ray]:
    """Two cores of this machine under Ray, up already."""
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        yield Ray(ray.get_runtime_context().gcs_address)
    finally:
        ray.shutdown()


def _seconds(what: Callable[[], object], rounds: int = 5) -> float:
    """Median, after one round that warms up."""
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        what()
        times.append(time.perf_counter() - start)
    return median(times[1:])


def _per_step(times: list[float]) -> float:
    """Milliseconds from one time to the next, without the first tenth: workers start."""
    steady = times[len(times) // 10 :]
    return 1e3 * (steady[-1] - steady[0]) / (len(steady) - 1)


@cache
def job_ms(engine: str) -> float:
    """Milliseconds per job that does nothing, of two workers, once these are there."""

    def per_job(engine: Any) -> float:
        return _per_step([time.perf_counter() for _ in imap_jobs(abs, range(_JOBS), 2, engine=engine)])

    return _on(engine, per_job)


class Timed(NDims):
    """Notes when the driver has merged a state."""

    times: ClassVar[list[float]] = []

    def merge(self, other: Probe) -> None:
        super().merge(other)
        self.times.append(time.perf_counter())


@cache
def shard_ms(engine: str) -> float:
    """Milliseconds per shard beside its forward pass, of one worker, once it is there."""
    tokens = torch.randint(50, (64 * _SHARDS, 16), generator=torch.Generator().manual_seed(0))
    model, batches = build_model(_MODEL), list(Batch(tokens).split(64))
    bare = 1e3 * _seconds(lambda: run(model, batches, NDims())) / _SHARDS

    def per_shard(engine: Any) -> float:
        Timed.times.clear()
        run_sharded(partial(build_model, _MODEL), batches, Timed(), engine=engine, workers=1, shard_examples=64)
        return _per_step(Timed.times) - bare

    return _on(engine, per_shard)


def _on(engine: str, measure: Callable[[Any], float], rounds: int = 3) -> float:
    if engine == "local":
        return median(measure("local") for _ in range(rounds))
    with cluster() as ray:
        return median(measure(ray) for _ in range(rounds))


def _state(probe: Probe, layers: int, width: int, n: int) -> Probe:
    """A probe that has seen random rows."""
    from tests.probes.conftest import FakeModel

    draw = torch.Generator().manual_seed(0)
    tables = [torch.randn(64, width, generator=draw) for _ in range(layers)]
    models = {name: FakeModel(tables).eval() for name in ("tuned", "base")}
    run(models, Batch(torch.arange(n)[:, None] % 64), probe)
    return probe


def _sites(layers: int) -> Any:
    return ["hook_embed", *(f"blocks.{i}.hook_resid_post" for i in range(layers - 1))]


def _merger(total: Probe, state: dict[str, Any], tensors: Callable[[], dict[str, torch.Tensor]]) -> Callable[[], None]:
    """Merges one more state of that size, as the driver does; each of examples of its own."""
    count = 0

    def merge() -> None:
        nonlocal count
        count += 1
        part = total.clone()
        part.load_state_dict({**state, "tensors": tensors(), "examples": state["examples"] + (count << 40)})
        total.merge(part)

    return merge


def _cka(layers: int, width: int) -> Probe:
    return _state(CKA(_sites(layers), form="moments", pairs="diagonal"), layers, width, 256)


@cache
def _cka_merge(layers: int, width: int) -> tuple[float, float]:
    """Seconds to merge one state of CKA's moments as the driver does, from a worker's bytes, and its MiB."""
    total = _cka(layers, width)
    state = total.state_dict()
    data = bytes_of(state["tensors"])
    return _seconds(_merger(total, state, lambda: tensors_of(data))), len(data) / 2**20


def merge_ms() -> float:
    """Milliseconds to merge the moments of 12 layers at d 768."""
    return 1e3 * _cka_merge(12, 768)[0]


def merge_over_addition() -> float:
    """Merging that state, from a worker's tensors, against adding tensors of its size."""
    total = _cka(12, 768)
    state = total.state_dict()
    mine = {name: x.clone() for name, x in state["tensors"].items() if x.is_floating_point()}

    def add() -> None:
        for name, x in mine.items():
            x += state["tensors"][name]

    return alternate(_merger(total, state, lambda: state["tensors"]), add, rounds=5)


def table() -> Table:
    """What is measured, how, and the goal."""
    merged = _cka_merge
    return [
        ("ms per empty job, 2 local workers (no ratio)", lambda: job_ms("local"), ""),
        ("ms per empty job, 2 Ray workers (no ratio)", lambda: job_ms("ray"), ""),
        ("ms per shard besides its forward passes, 1 worker in this process (no ratio)", lambda: shard_ms("local"), ""),
        ("ms per shard besides its forward passes, 1 Ray actor (no ratio)", lambda: shard_ms("ray"), ""),
        ("ms to merge CKA's moments, 12 layers, d 768 (no ratio)", merge_ms, ""),
        ("MiB of that state (no ratio)", lambda: merged(12, 768)[1], ""),
        ("the same merge / adding tensors of its size", merge_over_addition, "<= 3"),
    ]


def simulation() -> str:
    """How many workers keep the driver busy for less than half of the time, as a Markdown table."""
    merges = {
        "sums, such as `TopicAttention`": shard_ms("ray") / 1e3,
        "CKA's moments, 12 layers, d 768": shard_ms("ray") / 1e3 + _cka_merge(12, 768)[0],
        "CKA's moments, 33 layers, d 4,096": shard_ms("ray") / 1e3 + 33 * _cka_merge(1, 4096)[0],
    }
    lines = ["| state | driver per shard | shards of 1 s | 10 s | 60 s | 600 s |", "|---|---|---|---|---|---|"]
    for name, merge in merges.items():
        most = [most_workers(seconds, merge) for seconds in (1, 10, 60, 600)]
        told = [f"{n:,}" if n < 1000 else "over 1,000" for n in most]
        lines.append(f"| {name} | {1e3 * merge:.3g} ms | {' | '.join(told)} |")
    merge = list(merges.values())[1]
    half = most_workers(60, merge)
    shares = [(n, *busy(n, 60, merge)) for n in (half, 2 * half, 4 * half)]
    told = [f"with {n} workers the driver {driver:.0%}, they {worker:.0%}" for n, driver, worker in shares]
    return "\n".join([*lines, "", f"Busy, second state, shards of 60 s: {'; '.join(told)}."])


if __name__ == "__main__":
    from tests.benchmarks import jobs  # workers know no __main__

    torch.set_num_threads(1)
    print(jobs.simulation())
