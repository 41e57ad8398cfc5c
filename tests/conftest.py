"""What all tests share: one thread, tiny random models, a tiny task."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports huggingface_hub
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import gc
import importlib.metadata
import multiprocessing
import random
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache
from importlib.metadata import EntryPoints, version
from multiprocessing.context import ForkServerContext
from typing import Any

import numpy as np
import pytest
import torch

from mechclust.command_table import COMMANDS
from tasks import Batch, InstructionFollowing, Task
from tests.mechclust.ray_cluster import nodes, ray_cluster  # noqa: F401 - fixtures
from tests.probes.two_devices import simulated_cuda

torch.set_num_threads(1)
# A shell lets what it starts in the background ignore Ctrl-C, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What uses the cluster is run by ``make cluster``, one test after another."""
    for item in items:
        if {"nodes", "ray_cluster"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("cluster")


_frozen = ("", 0)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What a module's tests or an import left is not looked at again: a ``gc.collect`` takes half a second else."""
    global _frozen
    state = (item.nodeid.split("::")[0], len(sys.modules))
    if state != _frozen:
        _frozen = state
        gc.collect()
        gc.freeze()


@cache
def _entry_points_of(path: tuple[str, ...], group: str) -> EntryPoints:
    return importlib.metadata.entry_points(group=group)


@pytest.fixture(scope="session", autouse=True)
def _entry_points_are_read_once() -> Iterator[None]:
    """A ``sys.path``: commands and a paper's models read them anew each time, which takes 40 ms."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("mechclust.models.model_kinds", "mechclust.studies.registry", "probes.engine.registry"):
            patch.setattr(f"{module}.entry_points", lambda group: _entry_points_of(tuple(sys.path), group))
        yield


@pytest.fixture(scope="session")
def fork_server() -> ForkServerContext:
    """Processes that are forked from one that has imported everything, since each would take seconds for it."""
    context = multiprocessing.get_context("forkserver")
    commands = [f"mechclust.cli_commands.{name}" for name in COMMANDS]
    context.set_forkserver_preload(["mechclust.cli", *commands, "peft", "transformers.models.gpt2.modeling_gpt2"])
    return context


@pytest.fixture
def forked(fork_server: ForkServerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of ``map_jobs`` and ``check_probe`` are forked, for tests that are not about how a worker starts."""
    monkeypatch.setattr("mechclust.jobs.local._CONTEXT", fork_server)
    monkeypatch.setattr("probes.checks.check_probe.get_context", lambda method: fork_server)


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> None:
    """Seed the global generators from the test's name: what a test draws does not depend on chance or on its order."""
    seed = zlib.crc32(request.node.nodeid.encode())
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@pytest.fixture(params=["cpu", "simulated cuda", "cuda"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """A device by its name: the CPU, a GPU that is simulated (see ``simulated_cuda``), and a GPU if there is one."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    with simulated_cuda() if request.param.startswith("simulated") else nullcontext():
        yield request.param.split()[-1]


@pytest.fixture(scope="session")
def tl_major() -> int:
    """TransformerLens's major version: 3 or 4."""
    return int(version("transformer-lens").split(".")[0])


@pytest.fixture(scope="session")
def task() -> InstructionFollowing:
    """Four tasks with a few instructions each; read only."""
    return InstructionFollowing(
        n_tasks=4, variants=6, n_inputs=4, n_mappings=3, n_symbols=8, n_eval_tasks=3, n_eval=40, validation_share=0.25
    )


@pytest.fixture(scope="session")
def tiny_model(task: Task) -> Callable[..., Any]:
    """Builds a new two-layer model whose vocabulary fits ``task``."""

    def build(**fields: Any) -> Any:
        from mechclust.models.build import build_model
        from mechclust.models.config import ModelConfig

        shape = {"d_vocab": task.d_vocab, "n_ctx": task.n_ctx, "n_layers": 2, "d_model": 8, "n_heads": 2}
        return build_model(ModelConfig(**{**shape, "init_std": 0.3, **fields}))

    return build


@pytest.fixture(scope="session")
def model(tiny_model: Callable[..., Any]) -> Any:
    """One model for tests that leave it as it is."""
    return tiny_model()


@pytest.fixture(scope="session")
def batch(task: InstructionFollowing) -> Batch:
    """Twelve examples of different lengths, padded on the right."""
    return next(task.batches("validation_subset", 12))
