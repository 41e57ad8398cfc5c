from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks import InputError
from tasks.text.instructions import TaskCollection, read_task_folder, split_of_instruction

Put = Callable[..., Path]
Lines = Callable[..., list[dict[str, str]]]


def sizes(collection: TaskCollection) -> dict[str, tuple[int, int, int]]:
    return {task.name: (len(task.train), len(task.validation), len(task.test)) for task in collection}


def refused(folder: Path, message: str, **given: object) -> None:
    with pytest.raises(InputError) as error:
        read_task_folder(folder, **given)  # type: ignore[arg-type]
    assert str(error.value).replace(f"{folder}", "tasks") == message


# ---- where tasks and splits stand ----


@pytest.mark.parametrize(
    "names",
    [
        ("copa_train.jsonl", "copa_validation.jsonl", "copa_test.jsonl"),
        ("copa-train.jsonl", "copa-valid.jsonl", "copa-test.jsonl"),
        ("copa.train.jsonl", "copa.dev.jsonl", "copa.test.jsonl"),
        ("copa_Train.jsonl", "copa_VAL.jsonl", "copa_TEST.JSONL"),
        ("train/copa.jsonl", "validation/copa.jsonl", "test/copa.jsonl"),
        ("train/copa_train.jsonl", "valid/copa_validation.jsonl", "test/copa.jsonl"),
    ],
)
def test_splits_by_the_names_of_files_and_folders(put: Put, lines: Lines, names: tuple[str, ...]) -> None:
    for n, name in enumerate(names, start=5):
        folder = put(name, lines(n, of=name))
    found = read_task_folder(folder)
    assert sizes(found) == {"copa": (5, 6, 7)}
    assert found["copa"].test[2].prompt == f"Question 2 of {names[2]}?"
    assert found["copa"].test[2].answer == "answer 2"
    assert found["copa"].test[2].where == f"{folder}/{names[2]}, line 3"
    assert found.notes == ("clusters are those of FLAN 2021, by the tasks' names",)


def test_one_file_for_all_tasks(put: Put, lines: Lines) -> None:
    mixed = [line for pair in zip(lines(9, task="b"), lines(9, task="a"), strict=True) for line in pair]
    put("train.jsonl", mixed)
    folder = put("test.jsonl", mixed[:10])
    assert sizes(read_task_folder(folder)) == {"a": (9, 0, 5), "b": (9, 0, 5)}


def test_the_task_field_counts_more_than_the_name_of_the_file(put: Put, lines: Lines) -> None:
    put("x_train.jsonl", lines(5, task="copa_10templates"))
    folder = put("x_test.jsonl", lines(5, of="test", task="copa_10templates"))
    assert read_task_folder(folder).clusters == {"commonsense": ["copa_10templates"]}
    assert read_task_folder(folder, task_field="").names == ["x"]


def test_fields_of_other_names(put: Put) -> None:
    folder = put("all.jsonl", [{"q": f"Why {i}?", "a": "so", "kind": "why", "inputs": 3} for i in range(40)])
    found = read_task_folder(folder, prompt_field="q", answer_field="a", task_field="kind")
    assert found.names == ["why"]
    assert found["why"].train[0].answer == "so"


def test_shards_are_one_file(put: Put, lines: Lines) -> None:
    for k in range(3):
        put(f"copa_train-0000{k}-of-00003.jsonl", lines(4, of=f"part {k}"))
    folder = put("copa_test.jsonl", lines(4, of="test"))
    found = read_task_folder(folder)
    assert sizes(found) == {"copa": (12, 0, 4)}
    assert [e.prompt for e in found["copa"].train[3:6]] == [
        "Question 3 of part 0?",
        "Question 0 of part 1?",
        "Question 1 of part 1?",
    ]


def test_parquet_reads_as_jsonl_does(put: Put, lines: Lines, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = lines(50, task="copa")
    by_line = read_task_folder(put("copa.jsonl", rows))
    (tmp_path / "other").mkdir()
    table = arrow.Table.from_pylist([row | {"n": 1} for row in rows])
    parquet.write_table(table, tmp_path / "other" / "copa.parquet", row_group_size=7)
    by_row = read_task_folder(tmp_path / "other")
    assert list(by_row) == list(by_line)
    assert by_row["copa"].train[-1].where.startswith(f"{tmp_path}/other/copa.parquet, row ")

    path = tmp_path / "other" / "copa.parquet"
    parquet.write_table(table.drop_columns(["targets"]), path)
    refused(
        path.parent,
        'tasks/copa.parquet, row 1 has no "targets" (it has inputs, task, n); add it, or say which field has the '
        "answer: answer_field (--answer-field)",
    )
    parquet.write_table(arrow.table({"inputs": ["a", "b"], "targets": ["c", None]}), path)
    refused(path.parent, "tasks/copa.parquet, row 2: the answer is None; expected a string")
    path.write_text("no parquet at all")
    with pytest.raises(InputError, match=r"copa\.parquet' cannot be read as parquet \(.+\); write it again$"):
        read_task_folder(path.parent)


def test_without_pyarrow_its_installation_is_named(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    folder = put("copa.parquet", [])
    refused(folder, "reading 'tasks/copa.parquet' needs pyarrow; install it with: pip install 'mechclust[llm]'")


def test_the_order_is_that_of_names_whatever_the_file_system_says(
    put: Put, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("b.jsonl", "a.jsonl", "c-00001-of-00002.jsonl", "c-00000-of-00002.jsonl"):
        folder = put(name, lines(30, of=name))
    before = read_task_folder(folder)
    listed = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: iter(sorted(listed(path), reverse=True)))
    assert read_task_folder(folder) == before
    assert before.names == ["a", "b", "c"]


# ---- splits by rule ----


def test_where_no_split_is_given_the_hash_of_the_prompt_says_it(put: Put, lines: Lines) -> None:
    put("rte.jsonl", lines(200, of="both"))
    put("cb_train.jsonl", lines(200, of="both"))
    put("wnli_train.jsonl", lines(100))
    folder = put("wnli_dev.jsonl", lines(7, of="dev"))
    found = read_task_folder(folder)
    for name in ("rte", "cb"):
        for split in ("train", "validation", "test"):
            assert {split_of_instruction(e.prompt) for e in getattr(found[name], split)} == {split}
    assert found["rte"].test == found["cb"].test
    assert {split_of_instruction(e.prompt) for e in found["wnli"].train} == {"train", "validation"}
    assert len(found["wnli"].validation) == 7
    assert found.notes[1:] == (
        "no test split is given: test split cut from the other examples by a hash of the prompt's text, about 10% of "
        "the prompts: wnli",
        "no test split is given: validation and test split cut from the other examples by a hash of the prompt's text, "
        "about 10% of the prompts each: cb, rte",
    )


def test_more_examples_move_none(put: Put, lines: Lines) -> None:
    few = read_task_folder(put("copa.jsonl", lines(50)))["copa"]
    many = read_task_folder(put("copa.jsonl", lines(80)[::-1]))["copa"]
    for split in ("train", "validation", "test"):
        assert set(getattr(few, split)) <= set(getattr(many, split))


# ---- clusters and held-out tasks ----


@pytest.fixture
def four(put: Put, lines: Lines) -> Path:
    for name in ("copa", "piqa", "rte", "mine"):
        put(f"{name}_train.jsonl", lines(5, of=name))
        folder = put(f"{name}_test.jsonl", lines(4, of=f"{name} test"))
    return folder


CLUSTERS = '[clusters]\nreasons = ["copa", "mine"]\nothers = ["piqa", "rte"]\n[held_out]\ntasks = ["mine", "rte"]\n'


def test_clusters_are_those_of_flan_where_no_file_says_otherwise(four: Path) -> None:
    found = read_task_folder(four)
    assert found.clusters == {"commonsense": ["copa", "piqa"], "nli": ["rte"]}
    assert found.held_out == []
    assert found.notes == ("clusters are those of FLAN 2021, by the tasks' names; in none: mine",)


def test_a_file_of_clusters_is_found_or_given(four: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(CLUSTERS)
    given = read_task_folder(four, clusters=tmp_path / "mine.toml")
    assert given.clusters == {"others": ["piqa", "rte"], "reasons": ["copa", "mine"]}
    assert [task.name for task in given.held_out] == ["mine", "rte"]
    assert given.notes == (f"clusters are those of '{tmp_path}/mine.toml'",)
    (four / "clusters.toml").write_text(CLUSTERS)
    assert read_task_folder(four).tasks == given.tasks


def test_held_out_tasks_that_are_given_count_instead_of_the_files(four: Path) -> None:
    (four / "clusters.toml").write_text(CLUSTERS)
    assert [task.name for task in read_task_folder(four, held_out=["copa"]).held_out] == ["copa"]
    assert read_task_folder(four, held_out=[]).held_out == []


def test_a_choice_of_tasks_keeps_what_the_file_says_of_them(four: Path) -> None:
    (four / "clusters.toml").write_text(CLUSTERS)
    found = read_task_folder(four, tasks=["piqa", "copa", "mine"])
    assert found.names == ["copa", "mine", "piqa"]
    assert [task.name for task in found.held_out] == ["mine"]
    assert found.clusters == {"others": ["piqa"], "reasons": ["copa", "mine"]}
    message = (
        "tasks: the held-out task 'rte' is the last of its cluster 'others' (it has no other); leave one task of the "
        "cluster to the multi-task model, or do not hold this one out"
    )
    refused(four, message, tasks=["rte", "copa"])


def test_a_file_with_held_out_tasks_only_leaves_the_clusters_of_flan(four: Path) -> None:
    (four / "clusters.toml").write_text('[held_out]\ntasks = ["copa"]\n')
    found = read_task_folder(four)
    assert [task.name for task in found.held_out] == ["copa"]
    assert found["copa"].cluster == "commonsense"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[clusters]\na = ["copa"]\nb = ["piqa", "rta"]\n',
            "'tasks/clusters.toml': the cluster 'b' has a task that is not in the data: 'rta' (there are copa, "
            "mine, piqa, rte); did you mean 'rte'?",
        ),
        (
            '[clusters]\na = ["copa", "piqa"]\n[held_out]\ntasks = ["xyz"]\n',
            "'tasks/clusters.toml': [held_out] has a task that is not in the data: 'xyz' (there are copa, mine, "
            "piqa, rte)",
        ),
    ],
)
def test_clusters_that_do_not_fit_the_data_are_refused(four: Path, text: str, message: str) -> None:
    (four / "clusters.toml").write_text(text)
    refused(four, message)


def test_names_that_are_not_there_are_refused(four: Path) -> None:
    known = "(there are copa, mine, piqa, rte)"
    refused(four, f"'tasks': no task is called 'coba' {known}; did you mean 'copa'?", tasks=["copa", "coba"])
    refused(four, f"tasks: no task to hold out is called 'x' {known}", held_out=["x"])
    refused(
        four,
        "tasks: no task to hold out is called 'rte' (there are copa, piqa)",
        tasks=["copa", "piqa"],
        held_out=["rte"],
    )
    refused(four, "tasks: ...: the string 'copa' was given; expected a list of names", tasks="copa")


# ---- what is said, and what is refused ----


def test_repeats_are_counted_and_small_tasks_named(put: Put, lines: Lines) -> None:
    put("rte_train.jsonl", lines(6) + lines(2))
    put("rte_validation.jsonl", lines(3) + lines(1))
    put("rte_test.jsonl", lines(4, of="test") + lines(2) + lines(2) + lines(1))
    put("cb_train.jsonl", lines(5))
    folder = put("cb_test.jsonl", lines(3, of="test"))
    found = read_task_folder(folder)
    assert found.too_few == ["cb"]
    assert found.notes[1:] == (
        "prompts that repeat another of the train split: rte 2",
        "prompts that repeat another of the validation split: rte 1",
        "prompts of the validation split that are in the train split too: rte 3",
        "prompts that repeat another of the test split: rte 3",
        "prompts of the test split that are in the train split too: rte 2",
        "fewer than 4 test prompts, on which debiased CKA is not defined, so that the task is left out of the "
        "measurement: cb 3",
    )


def test_what_is_not_read_is_said(put: Put, lines: Lines) -> None:
    put("mine.jsonl", lines(80))
    put("other.csv", [])
    put("README.md", [])
    put(".hidden.jsonl", [])
    folder = put("more/rte.jsonl", lines(40))
    found = read_task_folder(folder)
    assert found.names == ["mine"]
    assert found.notes[:3] == (
        "sub-folders that are called as no split are left out: more",
        "files that are neither .jsonl nor .parquet are left out: other.csv",
        "the tasks are in no clusters",
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "{'inputs': 1}",
            " is not JSON (Expecting property name enclosed in double quotes at column 2): \"{'inputs': 1}\"",
        ),
        ([1], ' is a JSON list; expected an object with "inputs" and "targets"'),
        (
            {"targets": "a", "task": "copa"},
            ' has no "inputs" (it has targets, task); add it, or say which field has the prompt: prompt_field '
            "(--prompt-field)",
        ),
        (
            {"inputs": "a", "answer": "a", "task": "copa"},
            ' has no "targets" (it has inputs, answer, task); add it, or say which field has the answer: answer_field '
            "(--answer-field)",
        ),
        ({"inputs": 3, "targets": "a", "task": "copa"}, ": the prompt is 3; expected a string"),
        ({"inputs": "a", "targets": ["a"], "task": "copa"}, ": the answer is ['a']; expected a string"),
        ({"inputs": "a", "targets": "a", "task": None}, ": the task is None; expected a string"),
        (
            {"inputs": "\n ", "targets": "a", "task": "copa"},
            ": the prompt is empty; give it a text, or remove the example",
        ),
        ({"inputs": "a", "targets": "b", "task": " "}, ": the task is empty; give it a text, or remove the example"),
        (
            {"inputs": "a\ud800", "targets": "b", "task": "copa"},
            ": the prompt has half a character ('\\ud800'), which no tokenizer reads; fix it",
        ),
        (
            {"inputs": "a", "targets": "b"},
            ' has no "task", but the lines before it have one; give it on every line or on none',
        ),
    ],
)
def test_lines_that_hold_no_example_are_refused_with_their_number(
    put: Put, lines: Lines, line: object, message: str
) -> None:
    folder = put("copa.jsonl", [*lines(2, task="copa"), "", line])
    refused(folder, f"tasks/copa.jsonl, line 4{message}")


def test_a_line_without_its_unit_is_refused(put: Put, lines: Lines) -> None:
    folder = put("a_test.jsonl", [*lines(4, unit="x"), {"inputs": "q", "targets": "a", "unit": None}])
    refused(folder, 'tasks/a_test.jsonl, line 5 has no "unit"; add it, or leave out --units', unit_field="unit")


def test_a_line_is_refused_also_of_a_task_that_is_not_chosen(put: Put, lines: Lines) -> None:
    put("copa.jsonl", lines(40))
    folder = put("rte.jsonl", [{"inputs": "a", "targets": ""}])
    refused(
        folder, "tasks/rte.jsonl, line 1: the answer is empty; give it a text, or remove the example", tasks=["copa"]
    )


def test_a_task_named_on_later_lines_only_is_refused(put: Put, lines: Lines) -> None:
    folder = put("copa.jsonl", [*lines(2), *lines(1, task="copa")])
    refused(
        folder,
        'tasks/copa.jsonl, line 3 has a "task", but the lines before it have none; give it on every line or on none',
    )


def test_two_tasks_of_one_name_are_refused(put: Put, lines: Lines) -> None:
    put("copa.jsonl", lines(5, task="copa"))
    folder = put("copa2.jsonl", lines(5, task="copa"))
    refused(
        folder,
        "two tasks are called 'copa': 'tasks/copa.jsonl' and 'tasks/copa2.jsonl, line 1'; rename one of them, or put "
        'both into one file; if "task" says something else, give task_field="" (--task-field "")',
    )
    put("copa2.jsonl", ["{}"]).joinpath("copa2.jsonl").unlink()
    put("copa_train.jsonl", lines(5))
    folder = put("train/copa.jsonl", lines(5))
    (folder / "copa.jsonl").unlink()
    refused(
        folder,
        "two tasks are called 'copa': 'tasks/copa_train.jsonl' and 'tasks/train/copa.jsonl, line 1'; rename one of "
        "them, or put both into one file",
    )


def test_a_file_of_no_split_beside_one_of_a_split_is_refused(put: Put, lines: Lines) -> None:
    put("copa.jsonl", lines(5))
    folder = put("copa_test.jsonl", lines(5))
    refused(
        folder,
        "the task 'copa' has a test split ('tasks/copa_test.jsonl') and a file with no split ('tasks/copa.jsonl'); "
        "name that one after its split too, such as copa_train.jsonl, or rename the other task",
    )


def test_a_task_without_training_examples_is_refused_unless_it_is_not_chosen(put: Put, lines: Lines) -> None:
    put("rte_train.jsonl", lines(5))
    put("rte_test.jsonl", lines(5))
    folder = put("copa_test.jsonl", lines(5))
    refused(
        folder,
        "the task 'copa' has no training examples, only 'tasks/copa_test.jsonl'; add a file of its train split, or "
        "leave the task out",
    )
    assert read_task_folder(folder, tasks=["rte"]).names == ["rte"]


def test_a_file_that_names_no_task_is_refused(put: Put, lines: Lines) -> None:
    folder = put("train.jsonl", lines(5))
    refused(
        folder,
        "tasks/train.jsonl, line 1 has no \"task\", and 'train.jsonl' names a split but no task; name the file after "
        "its task, or say which field has it: task_field (--task-field)",
    )


def test_a_name_and_a_folder_of_two_splits_are_refused(put: Put, lines: Lines) -> None:
    folder = put("test/copa_train.jsonl", lines(5))
    refused(
        folder,
        "'tasks/test/copa_train.jsonl' is named as a train split, but its folder as the test split; rename one of them",
    )


def test_a_file_without_examples_is_refused(put: Put) -> None:
    refused(put("copa.jsonl", ["", " "]), "'tasks/copa.jsonl' holds no examples; give it some, or remove it")


def test_a_folder_without_files_is_refused_by_what_it_holds(put: Put, tmp_path: Path) -> None:
    what = "the folder 'tasks' has no .jsonl or .parquet files of prompts and answers"
    folder = put("x", [])
    (folder / "x").unlink()
    refused(folder, f"{what} (it is empty)")
    put("a.csv", [])
    refused(folder, f"{what} (it holds a.csv)")
    put("more/copa.jsonl", [])
    refused(folder, f"{what} (its sub-folder more has; give that one)")
    wanted = "give the path of a folder with .jsonl or .parquet files of prompts and answers"
    refused(tmp_path / "x", f"no folder 'tasks'; {wanted}")
    refused(folder / "a.csv", f"'tasks' is not a folder; {wanted}")
