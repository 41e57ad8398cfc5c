"""Work of more than a day, or of more memory than is free, is refused before anything is written or loaded."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
import torch

from mechclust.cli import main
from mechclust.commands.cost import Cost, topic_attention_bytes
from mechclust.commands.heads import HeadsConfig
from mechclust.commands.mossa import MossaConfig
from mechclust.commands.settings import EngineSettings, ModelSettings
from mechclust.commands.topics import TopicsConfig
from mechclust.report.matmul_speed import matmul_speed
from tasks import InputError

PROMPTS = "--prompts prompts.jsonl"
CORPUS = "--corpus corpus --n-topics 3"
COMMANDS = {
    "clusters": f"clusters gpt2 {PROMPTS}",
    "compare": f"compare gpt2 gpt2 {PROMPTS} --min-per-task 8",
    "history": f"history series {PROMPTS}",
    "history, topics": f"history series {PROMPTS} {CORPUS} --min-documents 1 --probes topics",
    "topics": f"topics bert {CORPUS}",
    "heads": "heads gpt2 --length 30 --periods 4 6 --max-offset 2",
    "mossa": "mossa llama --tasks tasks --steps-per-task 3 --cutoff 32",
}
EXCESSIVE = (
    ("clusters", "--n-resamples 10000000"),
    ("compare", "--n-permutations 10000000"),
    ("compare", "--n-resamples 10000000"),
    ("history", "--cka-permutations 10000000"),
    ("history", "--n-resamples 10000000"),
    ("history, topics", "--n-permutations 10000000"),
    ("topics", "--resamples 10000000"),
    ("heads", "--n-permutations 10000000"),
    ("mossa", "--n-resamples 10000000"),
    ("mossa", "--steps-per-task 100000000"),
)
OWNERS = ("clusters.measure", "compare.measure", "history.measure", "topics.measure", "heads.measure",
          "mossa.run")  # fmt: skip


class Began(Exception):
    """The folder is about to be written."""


def begin(*_, **__):
    raise Began


@pytest.fixture
def no_work(inputs, monkeypatch):
    """Stop where the first thing is written, in a machine with 4 GiB of free memory."""
    monkeypatch.chdir(inputs)
    monkeypatch.setattr("mechclust.report.resources.free_device_memory", lambda _: 2**32)
    monkeypatch.setattr(ModelSettings, "load", begin)
    monkeypatch.setattr("mechclust.commands.heads.estimate._ADDITIONS_PER_S", 2e5)  # so that few sequences take long
    for owner in OWNERS:
        monkeypatch.setattr(f"mechclust.commands.{owner}.own_folder", begin)


@pytest.mark.parametrize(("command", "numbers"), EXCESSIVE)
def test_excessive_numbers_need_a_yes(command, numbers, no_work, tmp_path, capsys):
    line = f"{COMMANDS[command]} {numbers} --out {tmp_path / 'out'}"
    assert main(line.split()) == 2
    said = capsys.readouterr().err
    assert "this takes about " in said
    assert "--yes to begin anyway" in said
    assert f"{numbers.split()[0]}" in said
    assert not (tmp_path / "out").exists()
    with pytest.raises(Began):
        main([*line.split(), "--yes"])


def test_time_and_memory_are_refused_together(no_work):
    with pytest.raises(
        InputError, match=r"about 30.0 h, more than a day, and 8 GiB of memory, more than the 4 GiB that "
    ):
        Cost(30 * 3600, 2**33).check(EngineSettings(), "fewer prompts")


@pytest.mark.parametrize("command", COMMANDS)
def test_defaults_need_none(command, no_work, tmp_path, capsys):
    with pytest.raises(Began):
        main([*COMMANDS[command].split(), "--out", str(tmp_path / "out")])
    assert re.search("time( of [a-z ]+)?: about ", capsys.readouterr().err)


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_processes_share_the_time_if_their_number_is_known(engine, capsys):
    Cost(30 * 3600, 0).check(EngineSettings(engine=engine, workers=10), "fewer prompts")
    assert capsys.readouterr().err == "time: about 3.0 h in 10 processes\n"
    with pytest.raises(InputError, match=r"about 30.0 h, .* give .*fewer prompts"):
        Cost(30 * 3600, 0).check(EngineSettings(engine=engine), "fewer prompts")
    assert capsys.readouterr().err == "time: about 30.0 h in one process\n"


def test_what_is_not_known_is_not_printed(capsys):
    Cost(0, 0).check(EngineSettings(), "fewer prompts")
    assert capsys.readouterr().err == ""
    Cost(0, 1024).check(EngineSettings(), "fewer prompts")
    assert "time" not in capsys.readouterr().err


def test_attention_of_topics_takes_the_memory_of_the_batch_with_most_windows():
    """Eight short windows make a batch, although only two of mean length would fit."""
    n_heads, n_permutations, n_resamples = 5, 7, 3
    of_window = n_heads * n_permutations + 3 * n_resamples
    of_corpus = 2 * n_heads * (n_permutations + n_resamples)
    found = topic_attention_bytes([64] * 16 + [8] * 20, 64, n_heads, n_permutations, n_resamples)
    assert found == 8 * (8 * of_window + of_corpus)
    assert topic_attention_bytes([], 64, n_heads, n_permutations, n_resamples) == 8 * of_corpus


def test_the_speed_is_that_of_the_products_in_the_time_they_took(monkeypatch):
    times = iter([5.0, 5.03, 5.06])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    operations = 2 * 2 * 3 * 7 * 7  # a multiplication and an addition, of two products of 3 rows
    assert matmul_speed("cpu", torch.float64, 7, 3, one_thread=False) == pytest.approx(operations / 0.06)


@pytest.mark.parametrize(
    ("config", "one_thread"),
    [
        (HeadsConfig(), False),
        (HeadsConfig(workers=2), True),
        (TopicsConfig((Path("texts"),)), True),
        (MossaConfig(tasks=Path("tasks")), True),
    ],
)
def test_the_speed_is_that_of_the_threads_that_do_the_work(monkeypatch, config, one_thread):
    """``topics`` and ``mossa`` run jobs with one thread also in this process."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    threads = set()

    def clock():
        threads.add(torch.get_num_threads())
        return next(seconds)

    seconds = itertools.count()
    monkeypatch.setattr("time.perf_counter", clock)
    matmul_speed.cache_clear()
    try:
        config.forward_speed(7)
        assert threads == {1 if one_thread else 2}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
        matmul_speed.cache_clear()
