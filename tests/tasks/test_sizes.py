"""Sizes of tasks have an upper end: a vocabulary or a length of 10**12 is refused at once, by its name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from tasks import InputError, InstructionFollowing, SkillSuite, SparseModularAddition, TopicDocuments

TASKS = (InstructionFollowing, SkillSuite, SparseModularAddition, TopicDocuments)


def _sizes() -> Iterator[Any]:
    for task in TASKS:
        kinds = get_type_hints(task)
        for field in fields(task):
            if kinds[field.name] is int and "seed" not in field.name:
                yield pytest.param(task, field.name, 10**12, id=f"{task.__name__}-{field.name}")
            if kinds[field.name] == tuple[int, int]:
                yield pytest.param(task, field.name, (1, 10**12), id=f"{task.__name__}-{field.name}")


@pytest.mark.parametrize(("task", "name", "value"), list(_sizes()))
def test_a_size_that_no_machine_holds(task: Any, name: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"^{name}(\[1\])? is \(?.*1000000000000.*; expected at most 10000000$"):
        task(**{name: value})
