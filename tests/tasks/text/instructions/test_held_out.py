from __future__ import annotations

import re

import pytest

from tasks import InputError
from tasks.text.instructions import FLAN2021, Example, InstructionTask, TaskCollection, choose_held_out

SOME = [Example(f"Question {i}?", "yes") for i in range(4)]


def collection(clusters: dict[str, tuple[str, ...]], few: tuple[str, ...] = ()) -> TaskCollection:
    return TaskCollection(
        [
            InstructionTask(name, cluster, False, SOME, test=SOME[: 3 if name in few else 4])
            for cluster, names in clusters.items()
            for name in names
        ],
        "mine",
    )


FLAN = collection(dict(FLAN2021))


@pytest.mark.parametrize("seed", range(3))
def test_seven_of_sixty_are_of_seven_clusters_with_a_task_left(seed: int) -> None:
    names = choose_held_out(FLAN, seed=seed)
    out = FLAN.hold_out(names)
    clusters = [str(task.cluster) for task in out.held_out]
    assert len(names) == len(set(clusters)) == 7
    assert "misc" not in clusters
    assert names == sorted(names) == choose_held_out(out, seed=seed)
    assert {task.cluster for task in out.seen} == set(FLAN2021)


def test_seeds_draw_other_tasks_and_other_clusters() -> None:
    draws = [choose_held_out(FLAN, seed=seed) for seed in range(10)]
    assert len({tuple(draw) for draw in draws}) == 10
    assert len({frozenset(str(FLAN[name].cluster) for name in draw) for draw in draws}) > 1


def test_what_leaves_none_or_cannot_be_measured_is_not_drawn() -> None:
    tasks = collection({"a": ("a1",), "b": ("b1", "b2"), "c": ("c1", "c2"), "misc": ("m1", "m2")}, few=("b1", "c2"))
    assert {tuple(choose_held_out(tasks, n=2, seed=seed)) for seed in range(20)} == {("b2", "c1")}
    assert len(choose_held_out(tasks, n=3, without=())) == 3


def test_more_than_there_are_clusters_is_refused() -> None:
    message = (
        "mine: 3 tasks to hold out, one per cluster, but 1 clusters with at least two tasks (b); ask for at most 1, "
        "or name the tasks"
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        choose_held_out(collection({"a": ("a1",), "b": ("b1", "b2")}), n=3)
    with pytest.raises(InputError, match=r"^n is 0; expected at least 1$"):
        choose_held_out(FLAN, n=0)
