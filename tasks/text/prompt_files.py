"""Prompts with their labels from files: JSON lines, CSV and parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.errors import InputError, error_suggestion
from tasks.repeated_values import repeated_values
from tasks.text.files import read_text
from tasks.text.json_lines import Records, check_json_field, parse_lines
from tasks.text.parquet import parquet_rows
from tasks.text.visible import quoted, shortened


@dataclass(frozen=True)
class PromptFileFields:
    """Names of the fields or columns of a file that are read.

    Attributes:
        prompt: the field with the text.
        task: the field with the task.
        labels: fields with further labels. Empty: all other fields.
    """

    prompt: str = "prompt"
    task: str = "task"
    labels: Sequence[str] = ()

    @property
    def expected(self) -> str:
        """Words for the fields that every record needs."""
        return f"{_quoted_field(self.prompt)} and {_quoted_field(self.task)}"


def _quoted_field(name: str) -> str:
    """Return a field's name for messages."""
    return f'"{shortened(name)}"'


def read_prompt_file(path: Path, fields: PromptFileFields) -> tuple[list[str], dict[str, list[str]]]:
    """Return prompts, and by name one label each. The task's label is called ``"task"``.

    The format follows the name: ``.csv``, ``.tsv``, ``.parquet``, and JSON lines under any other name.

    Raises:
        InputError: naming the file and the line or row.
    """
    if fields.prompt == fields.task:
        raise InputError(f"the field {quoted(fields.prompt)} is given for the prompt and for the task; give two fields")
    return _labelled_prompts(_records(path, fields), fields)


def _labelled_prompts(records: Records, fields: PromptFileFields) -> tuple[list[str], dict[str, list[str]]]:
    prompts: list[str] = []
    labels: dict[str, list[str]] = {"task": []}
    names: list[str] | None = None
    spelled: dict[str, str] = {}
    for where, record in records:
        _check_both(record, fields, where)
        previous_names = names
        names = _label_names(record, fields, where)
        if previous_names is not None and set(names) != set(previous_names):
            odd = sorted(set(previous_names) ^ set(names))[0]
            raise InputError(f"{where}: label {quoted(odd)} is not on every line; give it on every line or on none")
        prompts.append(_checked_prompt(record[fields.prompt], where))
        task = _checked_label(record[fields.task], fields.task, where)
        earlier = spelled.setdefault(task.strip(), task)
        if task != earlier:
            raise InputError(f"{where}: the task is {quoted(task)}, and earlier {quoted(earlier)}; spell it alike")
        labels["task"].append(task)
        for name in names:
            labels.setdefault(name, []).append(_checked_label(record[name], name, where))
    return prompts, labels


def _label_names(record: Mapping[str, Any], fields: PromptFileFields, where: str) -> list[str]:
    """Return the names of a record's labels, apart from the task."""
    for field in fields.labels:
        if field not in record:
            raise InputError(f"{where} has no field {quoted(field)} for a label{error_suggestion(field, record)}")
    names = [name for name in dict.fromkeys(fields.labels or record) if name not in (fields.prompt, fields.task)]
    if "task" in names:
        raise InputError(
            f'{where}: the task is read from {quoted(fields.task)}, but there is a field "task" too; leave it out '
            "by naming the labels to read: --label-fields"
        )
    return names


def _check_both(record: Mapping[str, Any], fields: PromptFileFields, where: str) -> None:
    """Refuse a record without a prompt or a task, naming both if both are missing."""
    options = {fields.prompt: "--prompt-field", fields.task: "--task-field"}
    missing = [field for field in options if field not in record]
    if len(missing) == 2:
        has = ", ".join(map(shortened, record)) or "nothing"
        raise InputError(
            f"{where} has no {_quoted_field(fields.prompt)} and no {_quoted_field(fields.task)} (it has {has}); name "
            f"the fields that have them: {' and '.join(options.values())}"
        )
    for field in missing:
        check_json_field(record, field, where, f"add it, or name the field that has it: {options[field]}")


def _checked_prompt(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where}: the prompt is {quoted(value)}; expected a string")
    if not value.strip():
        raise InputError(f"{where}: the prompt is empty; give it a text or remove the line")
    return value


def _checked_label(value: Any, name: str, where: str) -> str:
    if not isinstance(value, (str, int, bool)):
        raise InputError(
            f"{where}: label {quoted(name)} is {quoted(value)}; expected a string, an integer or a boolean"
        )
    if isinstance(value, str) and not value.strip():
        raise InputError(f"{where}: label {quoted(name)} is empty; give it a name or remove the line")
    return str(value)


# ---- formats ----


def _records(path: Path, fields: PromptFileFields) -> Records:
    kind = path.suffix.lower()
    if kind == ".parquet":
        wanted = (fields.prompt, fields.task)
        return parquet_rows(path, wanted, fields.labels or None, extra="corpora")
    if kind in (".csv", ".tsv"):
        return _csv(path, "\t" if kind == ".tsv" else ",")
    return _json_lines(path, fields)


def _read_prompts_text(path: Path) -> str:
    return read_text(path, "a JSONL, CSV or parquet file", called="prompts file")


def _json_lines(path: Path, fields: PromptFileFields) -> Records:
    return parse_lines(_read_prompts_text(path).split("\n"), path, fields.expected)


def _csv(path: Path, delimiter: str) -> Records:
    reader = csv.reader(io.StringIO(_read_prompts_text(path)), delimiter=delimiter, strict=True)
    try:
        header = next(reader, [])
        twice = repeated_values(header)
        if twice:
            raise InputError(f"{path} has two columns {quoted(twice[0])}; rename one")
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if row and len(row) != len(header):
                raise InputError(
                    f"{where} has {len(row)} fields and the header {len(header)}; put a text that has the separator "
                    'between quotation marks, "like, this"'
                )
            if row:
                yield where, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise InputError(
            f"{path}, line {reader.line_num} cannot be read as CSV ({error}); write it again, or as JSON lines"
        ) from None
