"""Prompts from CSV and parquet, with fields of other names: the same as from JSON lines."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tasks import InputError, LabelledPrompts

ROWS = [
    {"question": 'Who said "no, thanks"?', "kind": "person", "level": 2, "checked": True},
    {"question": "Where\nis it, today?", "kind": "place", "level": 1, "checked": False},
    {"question": "Wer war es? Ä", "kind": "person", "level": 2, "checked": True},
]
FIELDS = {"prompt": "question", "task": "kind"}


def write(folder: Path, kind: str, rows: list[dict[str, Any]] = ROWS) -> Path:
    path = folder / f"questions{kind}"
    if kind == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif kind in (".csv", ".tsv"):
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if kind == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    else:
        import pandas as pd

        pd.DataFrame(rows).to_parquet(path)
    return path


@pytest.mark.parametrize("kind", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_every_format_gives_the_same_prompts(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path, kind)
    found = LabelledPrompts.from_file(path, **FIELDS)
    assert found.prompts == [row["question"] for row in ROWS]
    assert found.labels == {
        "task": ["person", "place", "person"],
        "level": ["2", "1", "2"],
        "checked": ["True", "False", "True"],
    }
    assert found.source == str(path)
    assert set(LabelledPrompts.from_file(path, **FIELDS, labels=["level"]).labels) == {"task", "level"}


def test_fields_that_are_no_labels_are_left_out_where_labels_are_named(tmp_path: Path) -> None:
    rows = [{**row, "scores": [0.5], "task": "x"} for row in ROWS]
    for kind in (".jsonl", ".parquet"):
        path = write(tmp_path, kind, rows)
        assert LabelledPrompts.from_file(path, **FIELDS, labels=["level"]).labels["task"][1] == "place"


def refused(text: str) -> Any:
    return pytest.raises(InputError, match=re.escape(text))


def test_fields_that_are_not_there_are_refused_with_the_options(tmp_path: Path) -> None:
    for kind, where in ((".csv", "line 2"), (".parquet", "row 1")):
        path = write(tmp_path, kind)
        with refused(
            f'{path}, {where} has no "prompt" and no "task" (it has question, kind, level, checked); name the fields '
            "that have them: --prompt-field and --task-field"
        ):
            LabelledPrompts.from_file(path)
        with refused(
            f'{path}, {where} has no "task" (it has question, kind, level, checked); add it, or name the field that '
            "has it: --task-field"
        ):
            LabelledPrompts.from_file(path, prompt="question")
        with refused(f"{path}, {where} has no field 'levl' for a label"):
            LabelledPrompts.from_file(path, **FIELDS, labels=["levl"])
    with refused("the field 'kind' is given for the prompt and for the task; give two fields"):
        LabelledPrompts.from_file(path, prompt="kind", task="kind")
    both = write(tmp_path, ".csv", [{**row, "task": "x"} for row in ROWS])
    with refused("the task is read from 'kind', but there is a field \"task\" too; leave it out by naming the labels"):
        LabelledPrompts.from_file(both, **FIELDS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prompt,task\na,b,c\n", "line 2 has 3 fields and the header 2; put a text that has the separator between"),
        ("prompt,task\na\n", "line 2 has 1 fields and the header 2"),
        ("prompt,prompt\na,b\n", "has two columns 'prompt'; rename one"),
        ('prompt,task\n"a,b\n', "line 2 cannot be read as CSV (unexpected end of data); write it again"),
        ("prompt,task\n,b\n", "line 2: the prompt is empty; give it a text or remove the line"),
        ("prompt,task\na,\n", "line 2: label 'task' is empty; give it a name or remove the line"),
        ("", "holds no prompts"),
        ("prompt,task\n", "holds no prompts; give at least one prompt with its task"),
    ],
)
def test_a_bad_csv_file_is_refused_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.csv"
    path.write_text(text, encoding="utf-8")
    with refused(message) as error:
        LabelledPrompts.from_file(path)
    assert str(path) in str(error.value)


def test_missing_values_and_damaged_files_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, ".parquet", [*ROWS, {**ROWS[0], "kind": None}])
    with refused(f"{path}, row 4: label 'kind' is None; expected a string, an integer or a boolean"):
        LabelledPrompts.from_file(path, **FIELDS)
    path.write_bytes(b"PAR1 and no more")
    with refused(f"{str(path)!r} cannot be read as parquet"):
        LabelledPrompts.from_file(path, **FIELDS)
    path.unlink()
    with refused(f"no file {str(path)!r}; give the path of a parquet file"):
        LabelledPrompts.from_file(path, **FIELDS)


def test_tasks_that_differ_by_a_space_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("prompt,task\na,sort\nb,copy\nc,sort \n")
    with refused("line 4: the task is 'sort ', and earlier 'sort'; spell it alike"):
        LabelledPrompts.from_file(path)
