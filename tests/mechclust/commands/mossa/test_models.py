"""Which models a run has, on which examples they are trained, and which of them each task compares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mechclust.commands.mossa.config import MossaConfig
from mechclust.commands.mossa.inputs import Inputs, rows_bytes
from mechclust.commands.mossa.jobs import model_jobs, task_jobs
from mechclust.commands.mossa.models import (
    AGAIN,
    BASE,
    CONTROL,
    TUNED,
    UNSEEN,
    Model,
    ceiling_tasks,
    models_of,
    trained_on,
    training_examples,
    tuning_of,
)
from mechclust.models.sizes import Sizes
from mechclust.training.tuning import TuneConfig
from tasks.text.instructions import MISC, Example, InstructionTask, TaskCollection


def task(name: str, cluster: str | None, n_train: int, n_test: int = 9, *, held_out: bool = False) -> InstructionTask:
    train = [Example(f"{name} {i}", str(i)) for i in range(n_train)]
    test = [Example(f"{name} test {i}", str(i)) for i in range(n_test)]
    return InstructionTask(name, cluster, held_out, train, test=test)


COLLECTION = TaskCollection(
    [
        task("add", "sums", 10),
        task("copy", "moves", 20),
        task("few", "moves", 5, n_test=3),
        task("odd", MISC, 7),
        task("sort", "moves", 30, held_out=True),
        task("sub", "sums", 15, n_test=12),
        task("word", None, 4),
    ]
)


def config(**fields: Any) -> MossaConfig:
    return MossaConfig(tasks=Path("tasks"), **fields)


def inputs(settings: MossaConfig) -> Inputs:
    sizes = Sizes(n_layers=5, d_model=12, d_vocab=100, n_ctx=64)
    unread: Any = None
    return Inputs("base", COLLECTION, models_of(COLLECTION, settings, {}), sizes, [], unread)


def test_models_are_of_tasks_with_enough_prompts():
    names = [(model.kind, model.task) for model in models_of(COLLECTION, config(ceilings=2), {})]
    assert names == [
        *((BASE, ""), (TUNED, ""), (UNSEEN, "")),
        *((CONTROL, name) for name in ("add", "copy", "odd", "sort", "sub", "word")),
        *((AGAIN, name) for name in ("add", "copy")),
    ]


def test_nothing_is_trained_without_held_out_tasks_if_there_are_none():
    seen = TaskCollection([each for each in COLLECTION if not each.held_out])
    assert UNSEEN not in {model.kind for model in models_of(seen, config(), {})}


@pytest.mark.parametrize(
    ("n", "names"),
    [(0, []), (3, ["add", "copy", "odd"]), (9, ["add", "copy", "odd", "word", "sub"])],
)
def test_controls_that_are_trained_twice_are_of_every_cluster_in_turn(n, names):
    assert ceiling_tasks(COLLECTION, n) == names


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (Model(TUNED), ["add", "copy", "few", "odd", "sort", "sub", "word"]),
        (Model(UNSEEN), ["add", "copy", "few", "odd", "sub", "word"]),
        (Model(CONTROL, "sort"), ["sort"]),
        (Model(AGAIN, "add"), ["add"]),
    ],
)
def test_steps_are_in_proportion_to_the_tasks(model, names):
    assert [each.name for each in trained_on(model, COLLECTION)] == names
    tuning = TuneConfig(steps=1000, seed=3)
    assert tuning_of(model, COLLECTION, config(tuning=tuning)).steps == 1000
    assert tuning_of(model, COLLECTION, config(tuning=tuning, steps_per_task=40)).steps == 40 * len(names)


def test_adapters_differ_in_their_seed_and_have_the_same_again():
    models = models_of(COLLECTION, config(), {})
    seeds = [tuning_of(model, COLLECTION, config(tuning=TuneConfig(seed=3))).seed for model in models]
    assert len(set(seeds)) == len(models)
    assert seeds == [tuning_of(model, COLLECTION, config(tuning=TuneConfig(seed=3))).seed for model in models]
    assert seeds[1] != tuning_of(models[1], COLLECTION, config(tuning=TuneConfig(seed=4))).seed


def by_task(examples: list[Example]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for example in examples:
        name, number = example.prompt.split()
        found.setdefault(name, []).append(int(number))
    return found


def test_a_cluster_is_cut_to_its_largest_size():
    found = by_task(training_examples(Model(TUNED), COLLECTION, config(max_per_cluster=25)))
    assert {name: len(found[name]) for name in ("add", "sub", "odd", "word")} == {
        "add": 10, "sub": 15, "odd": 7, "word": 4,
    }  # fmt: skip
    cut = [found[name] for name in ("copy", "few", "sort")]
    assert sum(map(len, cut)) == 25
    assert all(numbers == sorted(numbers) for numbers in cut)
    assert [len(numbers) for numbers in cut] != [20, 5, 0]  # drawn from all of them
    again = by_task(training_examples(Model(TUNED), COLLECTION, config(max_per_cluster=25, seed=1)))
    assert again != found
    whole = by_task(training_examples(Model(CONTROL, "sort"), COLLECTION, config(max_per_cluster=25)))
    assert whole == {"sort": list(range(30))}


def test_a_task_without_cluster_is_not_in_the_cluster_of_its_name():
    named = TaskCollection([task("a", "sums", 10), task("b", "sums", 10), task("sums", None, 9)])
    found = by_task(training_examples(Model(TUNED), named, config(max_per_cluster=20)))
    assert {name: len(numbers) for name, numbers in found.items()} == {"a": 10, "b": 10, "sums": 9}
    assert ceiling_tasks(named, 2) == ["a", "sums"]


def test_each_task_compares_the_model_that_was_not_tuned_on_it():
    jobs = {job.task: job for job in task_jobs(inputs(config(ceilings=1)), [], 1)}
    assert list(jobs) == ["add", "copy", "odd", "sort", "sub", "word"]
    roles = {name: {role: (model.kind, model.task) for role, model in job.models.items()} for name, job in jobs.items()}
    assert roles["add"] == {
        "base": (BASE, ""),
        "tuned": (TUNED, ""),
        "control": (CONTROL, "add"),
        "again": (AGAIN, "add"),
        "other-1": (CONTROL, "copy"),
    }
    assert roles["sort"] == {
        "base": (BASE, ""),
        "tuned": (UNSEEN, ""),
        "control": (CONTROL, "sort"),
        "all-tasks": (TUNED, ""),
        "other-1": (CONTROL, "word"),
    }
    assert jobs["add"].numbers == {each.name: number for number, each in enumerate(COLLECTION)}


def test_a_task_whose_model_was_given_up_is_left_out():
    found = inputs(config())
    assert [job.task for job in task_jobs(found, [Model(CONTROL, "odd")], 0)] == ["add", "copy", "sort", "sub", "word"]
    assert [job.task for job in task_jobs(found, [Model(UNSEEN)], 0)] == ["add", "copy", "odd", "sub", "word"]


def test_tasks_of_no_cluster_have_the_number_after_the_last():
    base, tuned = model_jobs(inputs(config()))
    assert (base.model.kind, tuned.model.kind) == (BASE, TUNED)
    assert base.n_clusters == 2
    names = ["moves", "sums"] if base.clusters[1] == 0 else ["sums", "moves"]
    assert [(*names, None)[number] for number in base.clusters] == [
        "sums", "moves", "moves", None, "moves", "sums", None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "rows_at_once"),
    [({}, 1), ({"workers": 3}, 3), ({"keep_rows": True}, 6), ({"keep_rows": True, "workers": 3}, 6)],
)
def test_rows_on_disk_are_those_of_the_tasks_at_once_and_of_pictures(fields, rows_at_once):
    settings = config(n_prompts=10, n_shown=4, nulls=3, dtype="bfloat16", **fields)
    per_row = (5 + 2) * 12 * 2
    assert rows_bytes(inputs(settings), settings) == (10 * (4 + 3) * rows_at_once + 2 * 4 * 6) * per_row
    many = config(n_prompts=100, n_shown=50, nulls=0)
    assert rows_bytes(inputs(many), many) == (12 * 4 + 2 * 12 * 6) * 7 * 12 * 4
