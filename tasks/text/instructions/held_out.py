"""A choice of tasks to leave out of the multi-task model."""

from __future__ import annotations

from collections.abc import Collection

from tasks._random import generator
from tasks.errors import InputError
from tasks.settings import check_count
from tasks.text.instructions.collection import TaskCollection
from tasks.text.instructions.flan2021 import MISC
from tasks.text.visible import shortened


def choose_held_out(
    collection: TaskCollection, n: int = 7, *, seed: int = 0, without: Collection[str] = (MISC,)
) -> list[str]:
    """Draw one task of each of ``n`` clusters that have another task left, and return their names, sorted.

    The paper holds out 7 of 60 tasks and does not say which. A task with too few test prompts is never drawn, since it
    cannot be measured. The draw depends on the seed and on the names, not on the examples' order.

    Args:
        collection: the tasks. Which of them are held out already does not count.
        n: number of tasks.
        seed: for the draw.
        without: clusters from which no task is drawn: the tasks of ``"misc"`` are not alike.

    Raises:
        InputError: for fewer such clusters.

    Example:
        >>> from tasks.text.instructions.example import Example
        >>> from tasks.text.instructions.instruction_task import InstructionTask
        >>> examples = [Example(f"Sort: b a {i}", f"a b {i}") for i in range(4)]
        >>> names = ("a1", "a2", "b1", "c1", "c2")
        >>> tasks = TaskCollection([InstructionTask(n, n[0], False, examples, test=examples) for n in names])
        >>> choose_held_out(tasks, n=2)
        ['a2', 'c1']
    """
    check_count(n=(n, 1), seed=(seed, 0))
    candidates: dict[str, list[str]] = {}
    for cluster, names in collection.clusters.items():
        measured = [name for name in names if not collection[name].too_few]
        if cluster not in without and len(names) > 1 and measured:
            candidates[cluster] = measured
    if len(candidates) < n:
        raise InputError(
            f"{collection.source}: {n} tasks to hold out, one per cluster, but {len(candidates)} clusters with at "
            f"least two tasks ({', '.join(map(shortened, candidates)) or 'none'}); ask for at most {len(candidates)}, "
            "or name the tasks"
        )
    draws = {cluster: float(generator(seed, f"held-out cluster {cluster}").random()) for cluster in candidates}
    held_out = []
    for cluster in sorted(candidates, key=draws.__getitem__)[:n]:
        names = candidates[cluster]
        place = generator(seed, f"held-out task of {cluster}").integers(len(names))
        held_out.append(names[int(place)])
    return sorted(held_out)
