"""Transformers trained at once by ``train_ensemble`` against one after the other by ``train``: what a step costs."""

from __future__ import annotations

from collections.abc import Callable

from tests.benchmarks.ratio import alternate

Table = list[tuple[str, Callable[[], float], str]]
_STEPS = 4  # of a single run in each round


def table() -> Table:
    """The shape of the MOSSA study, and smaller ones, where the arithmetic is not most of a step."""
    return [
        ("200 pooling transformers, widths 10 to 127 mixed, batch 32: train / train_ensemble", mixed, ""),
        ("40 models, 2 blocks of 16, batch 8", lambda: speedup(40, 2, 16, 8), ""),
        ("12 models, 8 blocks of 64, batch 32", lambda: speedup(12, 8, 64, 32), ""),
    ]


def mixed() -> float:
    """The same of pooling transformers: 25 seeds of each of eight widths."""
    from mechclust import TrainConfig, build_model, train
    from mechclust.studies.clustering_heads import PoolingTransformerConfig
    from mechclust.training import Member
    from mechclust.training.stack import Stack
    from mechclust.training.stack_data import StackData
    from tasks import SparseModularAddition

    given = [
        Member(PoolingTransformerConfig(d_mlp=width, seed=seed), SparseModularAddition(seed=seed))
        for width in (10, 14, 21, 30, 43, 62, 89, 127)
        for seed in range(25)
    ]
    config = TrainConfig(steps=_STEPS, batch_size=32, optimizer="adam", schedule="constant", clip=None)
    alone = given[::25]  # one of every width
    models = [(build_model(member.model), member.task) for member in alone]
    stack, data = Stack(given, config, "cpu"), StackData(given, 32, "cpu")

    def singly() -> None:
        for model, task in models:
            train(model, task, config)

    def stacked() -> None:
        for step, each in enumerate(data(range(_STEPS))):
            stack.step(step, each, 1e-3)

    return alternate(singly, stacked, rounds=5) * len(given) / len(alone)


def speedup(members: int, layers: int, width: int, batch: int) -> float:
    """Seconds of a step of all members, one by one over stacked, on one thread."""
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
    stack.use("vmap", data, forgiving=False)

    def stacked() -> None:
        stack.step(StackData(given, batch, "cpu")(range(1))[0], 1e-3)

    return alternate(lambda: train(model, suites[0], config), stacked, rounds=5) * members / _STEPS
