"""Prompts and answers out of one file, line by line: JSONL or parquet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.errors import InputError
from tasks.text.files import read_text
from tasks.text.instructions.collection import Example
from tasks.text.json_lines import check_field, parse_object
from tasks.text.parquet import parquet_rows
from tasks.text.visible import quoted

_HALF = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Fields:
    """Where an object has the prompt, the answer and the task.

    Attributes:
        prompt: field of the prompt.
        answer: field of the answer.
        task: field of the task's name, where there is one; empty: the files' names tell it.
        unit: field that says which examples belong together, such as their template; empty: none.
    """

    prompt: str = "inputs"
    answer: str = "targets"
    task: str = "task"
    unit: str = ""


def read_examples(path: Path, fields: Fields) -> Iterator[tuple[str | None, Example]]:
    """The examples of a file, each with its task where the file names one.

    Raises:
        InputError: with file and line, for what is not JSON or parquet, a field that is missing, and a prompt, answer
            or task that is not a string or is empty.
    """
    records = (
        parquet_rows(path, (fields.prompt, fields.answer), (fields.task, *filter(None, [fields.unit])), extra="llm")
        if path.suffix.lower() == ".parquet"
        else _json_lines(path, fields)
    )
    first: bool | None = None
    for where, record in records:
        check_field(
            record, fields.prompt, where, "add it, or say which field has the prompt: prompt_field (--prompt-field)"
        )
        check_field(
            record, fields.answer, where, "add it, or say which field has the answer: answer_field (--answer-field)"
        )
        has_task = bool(fields.task) and fields.task in record
        first = has_task if first is None else first
        if has_task is not first:
            raise InputError(
                f'{where} has {"a" if has_task else "no"} "{fields.task}", but the lines before it '
                f"have {'none' if has_task else 'one'}; give it on every line or on none"
            )
        task = checked_text(record[fields.task], "task", where) if has_task else None
        prompt = checked_text(record[fields.prompt], "prompt", where)
        answer = checked_text(record[fields.answer], "answer", where)
        yield task, Example(prompt, answer, where, _unit_of(record, fields.unit, where))
    if first is None:
        raise InputError(f"{str(path)!r} holds no examples; give it some, or remove it")


def _unit_of(record: Mapping[str, Any], name: str, where: str) -> str:
    if not name:
        return ""
    if name not in record:
        raise InputError(f'{where} has no "{name}"; add it, or leave out --units')
    return str(record[name])


def checked_text(value: object, called: str, where: str) -> str:
    """A text that holds something and can be written as UTF-8.

    Raises:
        InputError: for what is none.
    """
    if not isinstance(value, str):
        raise InputError(f"{where}: the {called} is {quoted(value)}; expected a string")
    if not value.strip():
        raise InputError(f"{where}: the {called} is empty; give it a text, or remove the example")
    if not value.isascii() and (half := _HALF.search(value)):
        raise InputError(f"{where}: the {called} has half a character ({half[0]!r}), which no tokenizer reads; fix it")
    return value


def _json_lines(path: Path, fields: Fields) -> Iterator[tuple[str, Mapping[str, Any]]]:
    expected = f'"{fields.prompt}" and "{fields.answer}"'
    for number, line in enumerate(read_text(path, "a JSONL file", called="task file").split("\n"), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, parse_object(line, where, expected)
