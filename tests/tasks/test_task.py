"""Tasks by name, as saved runs find them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from tasks import InputError, RepeatedTokens, Task


def test_a_task_that_inherits_a_name_does_not_replace_the_other() -> None:
    message = "has the name 'repeated-tokens' of RepeatedTokens, so saved runs of either would be opened as the other"
    with pytest.raises(InputError, match=re.escape(message)):

        @dataclass(frozen=True)
        class Variant(RepeatedTokens):
            """A task of one's own."""

    task = RepeatedTokens()
    assert type(Task.from_config(task.to_config())) is RepeatedTokens
