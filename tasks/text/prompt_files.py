"""Prompts with their labels from files: JSON lines, CSV, parquet, and Hugging Face datasets on disk."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.errors import InputError, suggest
from tasks.text.files import read_text
from tasks.text.json_lines import check_field, parse_object
from tasks.text.parquet import parquet_rows
from tasks.text.visible import quoted, short

Records = Iterator[tuple[str, Mapping[str, Any]]]
_DATASET = ("state.json", "dataset_info.json")


@dataclass(frozen=True)
class PromptFields:
    """Which fields or columns of a file are read.

    Attributes:
        prompt: that with the text.
        task: that with the task.
        labels: further labels; all other fields where it is empty.
    """

    prompt: str = "prompt"
    task: str = "task"
    labels: Sequence[str] = ()

    @property
    def expected(self) -> str:
        """In words."""
        return f"{quoted_field(self.prompt)} and {quoted_field(self.task)}"


def quoted_field(name: str) -> str:
    """A field's name for messages."""
    return f'"{short(name)}"'


def read_prompt_file(path: Path, fields: PromptFields) -> tuple[list[str], dict[str, list[str]]]:
    """Prompts, and by name one label each; the task's is called ``"task"``.

    The format follows the name: ``.csv``, ``.tsv``, ``.parquet``, a folder that ``Dataset.save_to_disk`` wrote, and
    JSON lines under any other name.

    Raises:
        InputError: naming the file and the line or row.
    """
    return labelled_records(_records(path, fields), fields)


def labelled_records(records: Records, fields: PromptFields) -> tuple[list[str], dict[str, list[str]]]:
    """The same from records."""
    if fields.prompt == fields.task:
        raise InputError(f"the field {quoted(fields.prompt)} is given for the prompt and for the task; give two fields")
    prompts: list[str] = []
    labels: dict[str, list[str]] = {}
    names: list[str] = []
    for where, record in records:
        _check_both(record, fields, where)
        for field in fields.labels:
            if field not in record:
                raise InputError(f"{where} has no field {quoted(field)} for a label{suggest(field, record)}")
        others = [name for name in fields.labels or record if name not in (fields.prompt, fields.task)]
        if "task" in others:
            raise InputError(
                f'{where}: the task is read from {quoted(fields.task)}, but there is a field "task" too; leave it out '
                "by naming the labels to read: --label-fields"
            )
        if labels and set(others) != set(names):
            odd = sorted(set(names) ^ set(others))[0]
            raise InputError(f"{where}: label {quoted(odd)} is not on every line; give it on every line or on none")
        names = others
        prompts.append(_checked_prompt(record[fields.prompt], where))
        for name, field in {"task": fields.task, **{other: other for other in others}}.items():
            labels.setdefault(name, []).append(_checked_label(record[field], field, where))
    return prompts, labels or {"task": []}


def _check_both(record: Mapping[str, Any], fields: PromptFields, where: str) -> None:
    """Refuse a record without a prompt or a task, naming both if both are missing."""
    options = {fields.prompt: "--prompt-field", fields.task: "--task-field"}
    missing = [field for field in options if field not in record]
    if len(missing) == 2:
        has = ", ".join(map(short, record)) or "nothing"
        raise InputError(
            f"{where} has no {quoted_field(fields.prompt)} and no {quoted_field(fields.task)} (it has {has}); name the "
            f"fields that have them: {' and '.join(options.values())}"
        )
    for field in missing:
        check_field(record, field, where, f"add it, or name the field that has it: {options[field]}")


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


def _records(path: Path, fields: PromptFields) -> Records:
    kind = path.suffix.lower()
    if path.is_dir():
        return _dataset(path)
    if kind == ".parquet":
        wanted = (fields.prompt, fields.task)
        return parquet_rows(path, wanted, fields.labels or None, extra="corpora")
    if kind in (".csv", ".tsv"):
        return _csv(path, "\t" if kind == ".tsv" else ",")
    return json_lines(path, fields)


def json_lines(path: Path, fields: PromptFields) -> Records:
    """One object per line; empty lines are skipped."""
    text = read_text(path, "a JSONL, CSV or parquet file", called="prompts file")
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, parse_object(line, where, expected=fields.expected)


def _csv(path: Path, delimiter: str) -> Records:
    reader = csv.reader(
        io.StringIO(read_text(path, "a JSONL, CSV or parquet file", called="prompts file")),
        delimiter=delimiter,
        strict=True,
    )
    try:
        header = next(reader, [])
        if len(set(header)) < len(header):
            twice = next(name for i, name in enumerate(header) if name in header[:i])
            raise InputError(f"{path} has two columns {quoted(twice)}; rename one")
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
        raise InputError(f"{path}, line {reader.line_num} cannot be read as CSV ({error}); write it again") from None


def _dataset(path: Path) -> Records:
    """Rows of a dataset that Hugging Face's ``save_to_disk`` wrote, classes by name."""
    splits = sorted(found.parent.name for found in path.glob("*/state.json"))
    if not all((path / name).exists() for name in _DATASET):
        if splits:
            raise InputError(f"{str(path)!r} has the splits {', '.join(splits)}; give one of them: {path / splits[0]}")
        raise InputError(
            f"{str(path)!r} is a directory without a dataset (no {_DATASET[0]}); give a file, or a folder that "
            "Hugging Face's save_to_disk wrote"
        )
    try:
        from datasets import ClassLabel, load_from_disk  # type: ignore[import-untyped]
    except ImportError:
        raise InputError(
            f"reading {str(path)!r} needs datasets; install it with: pip install 'mechclust[llm]'"
        ) from None
    try:
        rows: Any = load_from_disk(str(path))
        names = {name: kind for name, kind in rows.features.items() if isinstance(kind, ClassLabel)}
        for number, record in enumerate(rows, start=1):
            classes = {k: kind.int2str(record[k]) for k, kind in names.items() if record[k] is not None}
            yield f"{path}, row {number}", {**record, **classes}
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).split("\n")[0][:200]
        raise InputError(f"{str(path)!r} cannot be read as a dataset ({reason}); save it again") from None
