"""Sizes of tasks have an upper end: a vocabulary or a length of 10**12 is refused at once, by its name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from tasks import InputError, InstructionFollowing, SkillSuite, SparseModularAddition, TopicDocuments

TASKS = (InstructionFollowing, SkillSuite, SparseModularAddition, TopicDocuments)


@pytest.mark.parametrize("task", TASKS)
def test_a_size_that_no_machine_holds(task: Any) -> None:
    kinds = get_type_hints(task)
    for field in fields(task):
        name, kind = field.name, kinds[field.name]
        if (kind is int and "seed" not in name) or kind == tuple[int, int]:
            value = 10**12 if kind is int else (1, 10**12)
            with pytest.raises(
                InputError, match=rf"^{name}(\[1\])? is \(?.*1000000000000.*; expected at most 10000000$"
            ):
                task(**{name: value})
