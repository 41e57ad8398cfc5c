from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from tasks import InputError
from tasks.text.instructions import Example, InstructionTask, TaskCollection


def examples(n: int, of: str = "") -> list[Example]:
    return [Example(f"{of} {i}?", str(i), f"file, line {i}") for i in range(n)]


def task(name: str, cluster: str | None = None, held_out: bool = False, n_test: int = 4) -> InstructionTask:
    return InstructionTask(name, cluster, held_out, examples(2), test=examples(n_test))


def test_tasks_stand_by_name_whatever_the_order() -> None:
    made = [task("rte", "nli"), task("copa", "commonsense"), task("cb", "nli", held_out=True), task("lone")]
    for order in (made, made[::-1]):
        collection = TaskCollection(order)
        assert collection.names == ["cb", "copa", "lone", "rte"]
        assert [t.name for t in collection] == collection.names
        assert [t.name for t in collection.seen] == ["copa", "lone", "rte"]
        assert [t.name for t in collection.held_out] == ["cb"]
        assert collection.clusters == {"commonsense": ["copa"], "nli": ["cb", "rte"]}
        assert len(collection) == 4
        assert collection["rte"] is made[0]


def test_fewer_than_four_test_prompts_are_too_few() -> None:
    collection = TaskCollection([task(f"t{n}", n_test=n) for n in (0, 3, 4, 5)])
    assert collection.too_few == ["t0", "t3"]
    assert [t.too_few for t in collection] == [True, True, False, False]


def test_holding_out_replaces_what_was_held_out() -> None:
    collection = TaskCollection([task(n, n[0], held_out=n == "a1") for n in ("a1", "a2", "b1", "b2")], "mine", ["note"])
    changed = collection.hold_out(["b2"])
    assert [t.name for t in changed.held_out] == ["b2"]
    assert [t.name for t in collection.held_out] == ["a1"]
    assert (changed.source, changed.notes) == ("mine", ["note"])
    assert changed.hold_out([]).held_out == []


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([], "mine: no tasks; give at least one"),
        ([task("a"), task("b"), task("a")], "mine: two tasks are called 'a'; rename one of them"),
        (
            [task("a"), InstructionTask("b", None, False, ())],
            "mine: the task 'b' has no training examples; add some, or leave it out",
        ),
        (
            [task("a", "x", held_out=True), task("b", "y")],
            "mine: the held-out task 'a' is the last of its cluster 'x' (it has no other); leave one task of the "
            "cluster to the multi-task model, or do not hold this one out",
        ),
        (
            [task("a", "x", held_out=True), task("b", "y"), task("c", "x", held_out=True)],
            "mine: the held-out task 'a' is the last of its cluster 'x' (held out too: c); leave one task of the "
            "cluster to the multi-task model, or do not hold this one out",
        ),
        (
            [task("a", held_out=True), task("b", held_out=True)],
            "mine: all tasks are held out; leave at least one to the multi-task model",
        ),
    ],
)
def test_collections_that_cannot_be_trained_on_are_refused(tasks: Sequence[InstructionTask], message: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        TaskCollection(tasks, "mine")


def test_a_held_out_task_of_no_cluster_is_no_last_one() -> None:
    assert [t.name for t in TaskCollection([task("a", held_out=True), task("b")]).held_out] == ["a"]


def test_unknown_names_are_refused_with_the_nearest() -> None:
    collection = TaskCollection([task("copa"), task("piqa")], "mine")
    message = "mine: no task is called 'copa2' (there are copa, piqa); did you mean 'copa'?"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        collection["copa2"]
    with pytest.raises(InputError, match=r"^mine: no task to hold out is called 'x' \(there are copa, piqa\)$"):
        collection.hold_out(["x"])
    message = "mine: no task to hold out is called ...: the string 'copa' was given; expected a list of names"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        collection.hold_out("copa")


def test_a_long_list_of_names_is_cut() -> None:
    collection = TaskCollection([task(f"t{i:02}") for i in range(60)])
    with pytest.raises(InputError, match=r"t10, t11 and 48 more\)$"):
        collection["xyz"]


def test_examples_are_equal_wherever_they_stood() -> None:
    assert Example("a", "b", "here") == Example("a", "b", "there")
    assert Example("a", "b") != Example("a", "c")
