from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks import InputError
from tasks.text.instructions import read_natural_instructions, split_of_instruction

COUNT = {
    "Contributors": ["A. Writer"],
    "Source": ["own"],
    "URL": ["own"],
    "Categories": ["Counting", "Arithmetic"],
    "Reasoning": [],
    "Definition": ["Say how many words there are. ", "Count the words."],
    "Input_language": ["English"],
    "Output_language": ["English"],
    "Instruction_language": ["English"],
    "Domains": ["Everything"],
    "Positive Examples": [{"input": "a b", "output": "2", "explanation": "There are two."}],
    "Negative Examples": [],
    "Instances": [
        {"id": f"task900-{n}", "input": f"words {'{n} ' * n}", "output": [str(n + 1), "many"]} for n in range(60)
    ],
    "Instance License": ["MIT"],
}
UPPER = COUNT | {
    "Categories": ["Spelling"],
    "Definition": "Write it in capitals.",
    "Instances": [{"id": str(n), "input": f"word {n}", "output": f"WORD {n}"} for n in range(60)],
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def files(**tasks: object) -> Path:
        for name, content in tasks.items():
            text = content if isinstance(content, str) else json.dumps(content, indent=1)
            (tmp_path / f"{name}.json").write_text(text)
        return tmp_path

    return files


def test_definition_and_input_are_the_prompt_and_the_first_output_the_answer(write) -> None:
    folder = write(task900_count=COUNT, task901_upper=UPPER)
    (folder / "README.md").write_text("not a task")
    found = read_natural_instructions(folder)
    assert found.clusters == {"Counting": ["task900_count"], "Spelling": ["task901_upper"]}
    task = found["task900_count"]
    examples = {e.where: e for e in (*task.train, *task.validation, *task.test)}
    assert len(examples) == 60
    third = examples[f"{folder}/task900_count.json, instance 3"]
    assert third.prompt == "Say how many words there are.\n\nInput: words {n} {n} \nOutput:"
    assert third.answer == "3"
    assert found["task901_upper"].train[0].prompt.startswith("Write it in capitals.\n\nInput: word ")
    for split in ("train", "validation", "test"):
        for each in found:
            assert {split_of_instruction(e.prompt) for e in getattr(each, split)} == {split}
    assert found.notes[:2] == (
        "clusters are the tasks' first categories",
        "no test split is given: validation and test split cut from the other examples by a hash of the prompt's text, "
        "about 10% of the prompts each: task900_count, task901_upper",
    )


def test_only_the_chosen_files_are_read_and_a_file_of_clusters_counts_more(write) -> None:
    folder = write(task900_count=COUNT, task901_upper=UPPER, task902_broken="{")
    (folder / "clusters.toml").write_text(
        '[clusters]\nmine = ["task900_count", "task901_upper"]\n[held_out]\ntasks = ["task901_upper"]\n'
    )
    found = read_natural_instructions(folder, tasks=["task901_upper", "task900_count"])
    assert found.clusters == {"mine": ["task900_count", "task901_upper"]}
    assert [task.name for task in found.held_out] == ["task901_upper"]
    assert read_natural_instructions(folder, tasks=["task900_count"]).held_out == []
    with pytest.raises(InputError, match=r"task902_broken\.json is not JSON \(Expecting property name"):
        read_natural_instructions(folder)
    with pytest.raises(InputError, match=r"no task is called 'task900' \(there are task900_count, task901_upper, "):
        read_natural_instructions(folder, tasks=["task900"])


def test_a_task_without_a_category_is_in_no_cluster(write) -> None:
    found = read_natural_instructions(write(task900_count=COUNT | {"Categories": []}, task901_upper=UPPER))
    assert found["task900_count"].cluster is None
    assert found.notes[0] == "clusters are the tasks' first categories; in none: task900_count"


def _instances(*instances: object) -> dict[str, object]:
    return COUNT | {"Instances": list(instances)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '{\n "Definition": x',
            "task900.json is not JSON (Expecting value at line 2, column 16): ' \"Definition\": x'",
        ),
        ([1], 'task900.json is a JSON list; expected an object with "Definition" and "Instances"'),
        ({"Instances": []}, 'task900.json has no "Definition" (it has Instances); add it'),
        ({"Definition": ["a"]}, 'task900.json has no "Instances" (it has Definition); add it'),
        (COUNT | {"Definition": []}, "task900.json: the definition is None; expected a string"),
        (COUNT | {"Categories": [3]}, "task900.json: the category is 3; expected a string"),
        (_instances(), 'task900.json: "Instances" is []; expected a list of objects, at least one'),
        (_instances("a"), 'task900.json, instance 1 is \'a\'; expected an object with "input" and "output"'),
        (
            _instances({"input": "a", "output": ["b"]}, {"input": "a"}),
            'task900.json, instance 2 has no "output" (it has input); add it',
        ),
        (
            _instances({"input": "a", "output": []}),
            "task900.json, instance 1: the output is None; expected a string",
        ),
        (
            _instances({"input": "a", "output": ["", "b"]}),
            "task900.json, instance 1: the output is empty; give it a text, or remove the example",
        ),
        (
            _instances({"input": " ", "output": ["b"]}),
            "task900.json, instance 1: the input is empty; give it a text, or remove the example",
        ),
    ],
)
def test_what_is_missing_is_refused_with_file_and_instance(write, content: object, message: str) -> None:
    with pytest.raises(InputError, match=f"/{re.escape(message).replace('task900', 'task900_count')}$"):
        read_natural_instructions(write(task900_count=content))


def test_a_folder_without_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"has no task\*_\*\.json file; give the folder tasks of natural-instructions$"
    ):
        read_natural_instructions(tmp_path)
    (tmp_path / "tasks").mkdir()
    with pytest.raises(InputError, match=rf"has no task\*_\*\.json file; give '{tmp_path}/tasks'$"):
        read_natural_instructions(tmp_path)
    with pytest.raises(InputError, match=r"^no folder '.*/x'; give the path of a folder with task\*_\*\.json files$"):
        read_natural_instructions(tmp_path / "x")
