"""Prompts and answers of one file, line by line: JSONL or parquet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.errors import InputError
from tasks.text.files import read_text
from tasks.text.instructions.example import Example
from tasks.text.json_lines import Records, check_json_field, parse_lines
from tasks.text.parquet import parquet_rows
from tasks.text.utf8 import check_utf8
from tasks.text.visible import quoted


@dataclass(frozen=True)
class InstructionRecordFields:
    """Names of the fields that are read.

    Attributes:
        prompt: field of the prompt.
        answer: field of the answer.
        task: field of the task's name, if there is one. Empty: the task is in the file's name.
        unit: field that says which examples belong together, such as their template. Empty: none.
    """

    prompt: str = "inputs"
    answer: str = "targets"
    task: str = "task"
    unit: str = ""


def read_records(path: Path, fields: InstructionRecordFields) -> Iterator[tuple[str | None, Example]]:
    """Yield the examples of a file, each with its task if the file names it.

    Raises:
        InputError: with file and line, for text that is not JSON or parquet, a missing field, and a prompt, answer or
            task that is not a string or is empty.
    """
    first_has_task: bool | None = None
    for where, record in _records(path, fields):
        check_json_field(
            record, fields.prompt, where, "add it, or say which field has the prompt: prompt_field (--prompt-field)"
        )
        check_json_field(
            record, fields.answer, where, "add it, or say which field has the answer: answer_field (--answer-field)"
        )
        has_task = bool(fields.task) and fields.task in record
        if first_has_task is None:
            first_has_task = has_task
        if has_task and not first_has_task:
            raise InputError(
                f'{where} has a "{fields.task}", but the lines before it have none; give it on every line or on none'
            )
        if first_has_task and not has_task:
            raise InputError(
                f'{where} has no "{fields.task}", but the lines before it have one; give it on every line or on none'
            )
        task = _checked_text(record[fields.task], "task", where) if has_task else None
        prompt = _checked_text(record[fields.prompt], "prompt", where)
        answer = _checked_text(record[fields.answer], "answer", where)
        yield task, Example(prompt, answer, where, _unit_of(record, fields.unit, where))
    if first_has_task is None:
        raise InputError(f"{str(path)!r} holds no examples; give it some, or remove it")


def _records(path: Path, fields: InstructionRecordFields) -> Records:
    if path.suffix.lower() == ".parquet":
        optional = [fields.task, fields.unit] if fields.unit else [fields.task]
        return parquet_rows(path, (fields.prompt, fields.answer), optional, extra="llm")
    lines = read_text(path, "a JSONL file", called="task file").split("\n")
    return parse_lines(lines, path, f'"{fields.prompt}" and "{fields.answer}"')


def _unit_of(record: Mapping[str, Any], name: str, where: str) -> str:
    if not name:
        return ""
    if record.get(name) is None:
        raise InputError(f'{where} has no "{name}"; add it, or leave out --units')
    return str(record[name])


def _checked_text(value: object, called: str, where: str) -> str:
    """Return a text that is not empty and can be written as UTF-8."""
    if not isinstance(value, str):
        raise InputError(f"{where}: the {called} is {quoted(value)}; expected a string")
    if not value.strip():
        raise InputError(f"{where}: the {called} is empty; give it a text, or remove the example")
    check_utf8(value, f"{where}: the {called}")
    return value
