"""Transformers trained at once by ``train_ensemble`` against one after the other by ``train``: what a step costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from tests.benchmarks.ratio import alternate

Table = list[tuple[str, Callable[[], float], str]]
_STEPS = 4  # of a single run in each round


def table() -> Table:
    """The shape of the MOSSA study, and smaller ones, where the arithmetic is not most of a step."""
    return [
        ("12 models, 8 blocks of 64, batch 32: train / train_ensemble", lambda: speedup(12, 8, 64, 32), ""),
        ("24 such models", lambda: speedup(24, 8, 64, 32), ""),
        ("12 such models, compiled", lambda: speedup(12, 8, 64, 32, backend="compiled"), ""),
        ("two processes of train / train_ensemble with two threads, 12 such", lambda: speedup(12, 8, 64, 32, 2), ""),
        ("12 models, 4 blocks of 32, batch 32", lambda: speedup(12, 4, 32, 32), ""),
        ("12 models, 2 blocks of 16, batch 8", lambda: speedup(12, 2, 16, 8), ""),
        ("40 models, 2 blocks of 16, batch 8", lambda: speedup(40, 2, 16, 8), ""),
        ("200 pooling transformers, widths 10 to 127 mixed, batch 32", lambda: mixed(25), ""),
        ("50 pooling transformers, width 32, batches 1 to 32 mixed", lambda: mixed(50, batches=True), ""),
        ("25 pooling transformers, full batch of 2,048", lambda: mixed(25, batch=2048), ""),
        ("25 pooling transformers of width 785, batch 32", lambda: mixed(25, widths=(785,)), ""),
    ]


def mixed(seeds: int, *, batches: bool = False, batch: int = 32, widths: tuple[int, ...] = ()) -> float:
    """The same of pooling transformers: of so many seeds with each width; by default eight, or the study's alone."""
    from mechclust import TrainConfig, build_model, train
    from mechclust.studies.clustering_heads import PoolingTransformerConfig
    from mechclust.training import Member
    from mechclust.training.stack import Stack
    from mechclust.training.stack_data import StackData
    from tasks import SparseModularAddition

    if not widths:
        widths = (10, 14, 21, 30, 43, 62, 89, 127) if not batches and batch == 32 else (32,)
    sizes = [2 ** (seed % 6) if batches else batch for seed in range(seeds)]
    given = [
        Member(PoolingTransformerConfig(d_mlp=width, seed=s), SparseModularAddition(seed=s), batch_size=size)
        for width in widths
        for s, size in enumerate(sizes)
    ]
    config = TrainConfig(steps=_STEPS, batch_size=batch, optimizer="adam", schedule="constant", clip=None)
    alone = given[:: max(1, len(given) // 8)][:8]  # of every width or size
    models = [(build_model(m.model), m) for m in alone]
    stack, data = Stack(given, config, "cpu"), StackData(given, batch, "cpu")

    def singly() -> None:
        for model, m in models:
            train(model, m.task, replace(config, batch_size=m.batch_size or batch))

    def stacked() -> None:
        for step, each in enumerate(data(range(_STEPS))):
            stack.step(step, each, 1e-3)

    return alternate(singly, stacked, rounds=5) * len(given) / len(alone)


def speedup(members: int, layers: int, width: int, batch: int, threads: int = 1, backend: Any = "vmap") -> float:
    """Seconds of a step of all members, one by one over stacked; so many processes share the single runs."""
    from mechclust import TrainConfig, build_model, model_for, train
    from mechclust.training import Member
    from mechclust.training.stack import Stack
    from mechclust.training.stack_data import StackData
    from tasks import SkillSuite

    suites = [SkillSuite(seed=seed) for seed in range(members)]
    shape = {"n_layers": layers, "d_model": width, "n_heads": 4, "init_std": width**-0.5}
    given = [Member(model_for(suite, seed=seed, **shape), suite) for seed, suite in enumerate(suites)]
    config = TrainConfig(steps=_STEPS, batch_size=batch)
    model, stack = build_model(given[0].model), Stack(given, config, "cpu")
    (data,) = StackData(given, batch, "cpu")(range(1))
    stack.use(backend, data, forgiving=False)

    def singly() -> None:
        torch.set_num_threads(1)
        train(model, suites[0], config)

    def stacked() -> None:
        torch.set_num_threads(threads)
        stack.step(StackData(given, batch, "cpu")(range(1))[0], 1e-3)

    try:
        return alternate(singly, stacked, rounds=5) * members / _STEPS / threads
    finally:
        torch.set_num_threads(1)
