"""Every command that takes a device gives there the tables that it gives on the CPU.

On the simulated GPU they are the same to the last digit, but for attention, for which PyTorch has another kernel there
(less than 1e-8). A real GPU sums in another order, which k-means and
permutations may magnify: there the tables have the same shape and their columns the same names.
"""

from __future__ import annotations

import csv
import re

import peft  # noqa: F401 - it looks for GPUs when it is imported
import pytest

from mechclust.cli import main

MEASURED = "--prompts prompts.jsonl --tokens-per-batch 30"
TUNED = "--tuning.lr 1e-2 --tuning.batch-size 4 --tuning.accumulation 1 --tuning.rank 2"
COMMANDS = {
    "check": "check gpt2",
    "clusters": f"clusters gpt2 {MEASURED} --n-init 1 --n-permutations 9 --n-shuffles 9",
    "compare": f"compare gpt2 series/checkpoint-2 {MEASURED} --min-per-task 8 --n-resamples 20 --n-permutations 9",
    "history": f"history series {MEASURED} --n-init 1 --n-permutations 19 --cka-permutations 19",
    "topics": "topics bert --corpus corpus --n-topics 3 --no-below 1 --no-above 1 --passes 2 --thresholds 0.2 "
    "--resamples 20",
    "heads": "heads gpt2 --corpus corpus --length 16 --periods 4 6 --max-offset 2 --n-sequences 6 --n-permutations 9",
    "mossa": "mossa llama --tasks tasks --steps-per-task 3 --cutoff 32 --ceilings 1 --nulls 1 --n-answers 4 "
    f"--n-shown 6 {TUNED}",
    "run": "run task-clusters --preset smoke --workers 1 --seeds 0 --arms private --n-init 1 --no-tsne",
}


NUMBER = re.compile(r"-?[0-9.]+(e-?[0-9]+)?")
WITH_ATTENTION = ("topics", "heads")


def tables(command, device, inputs, folder):
    """Run a command in the folder of its inputs; return its tables by file name."""
    out = [] if command == "check" else ["--out", str(folder)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(inputs)
        assert main([*COMMANDS[command].split(), "--device", device, *out]) == 0
    return {path.name: rows_of(path) for path in sorted(folder.rglob("*.csv"))}


def rows_of(path):
    """Return a table without the time that something took."""
    rows = list(csv.DictReader(path.open()))
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def numbers(row):
    """Return a row of a table with its numbers as such."""
    return {name: float(value) if NUMBER.fullmatch(value) else value for name, value in row.items()}


@pytest.fixture(scope="module")
def on_cpu(inputs, tmp_path_factory):
    """Tables of the commands, measured when they are asked for."""
    measured = {}

    def get(command):
        if command not in measured:
            measured[command] = tables(command, "cpu", inputs, tmp_path_factory.mktemp(command) / "out")
        return measured[command]

    return get


@pytest.fixture
def expected(command, on_cpu):
    """Tables from the CPU; asked for before the device is simulated."""
    return on_cpu(command)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["simulated cuda", "cuda"], indirect=True)
@pytest.mark.parametrize("command", COMMANDS)
def test_tables_are_those_of_the_cpu(command, undrawn, expected, device, request, inputs, tmp_path):
    measured = tables(command, device, inputs, tmp_path / "out")
    assert measured.keys() == expected.keys()
    for name, rows in expected.items():
        assert [row.keys() for row in measured[name]] == [row.keys() for row in rows], name
    if request.node.callspec.params["device"] != "cuda":
        for name, rows in expected.items():
            if command in WITH_ATTENTION:
                assert [numbers(row) for row in measured[name]] == [
                    pytest.approx(numbers(row), abs=1e-6)
                    for row in rows  # ratios up to 10 of float32 sums
                ]
            else:
                assert measured[name] == rows, name
