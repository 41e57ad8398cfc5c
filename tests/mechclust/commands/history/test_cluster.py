"""`mechclust history` on a Ray cluster of two nodes, whose processes run in another folder."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from mechclust import HistoryConfig
from mechclust.cli import main
from tests.faults.bits import bits, other

CHECKPOINTS = ("checkpoint-8", "checkpoint-16", "checkpoint-48")


def history(out, *engine):
    """All probes, by the command line and with paths that are relative to the caller's folder."""
    at = [f"run/{name}" for name in CHECKPOINTS]
    given = ["--prompts", "prompts.jsonl", "--corpus", "corpus.txt", "--checkpoints", *at]
    probes = ["--probes", "clusters", "cka", "heads", "topics", "--n-topics", "3", "--threshold", "0.3"]
    quick = ["--min-documents", "2", "--max-length", "16", "--n-init", "2", "--n-permutations", "49"]
    return main(["history", "run", *given, *probes, *quick, "--cka-permutations", "9", "--out", out, *engine])


def written(out):
    """What was measured: rows and facts of each checkpoint, results and tables."""
    return {f"{part}/{name}": found for part in ("checkpoints", "results") for name, found in bits(out / part).items()}


@pytest.mark.cluster
def test_the_bits_of_one_process_and_nothing_measured_twice(
    spoilt_series, history_prompts, tmp_path, nodes, monkeypatch, capsys
):
    for name in CHECKPOINTS:
        shutil.copytree(spoilt_series / name, tmp_path / "run" / name)
    shutil.copy(history_prompts, tmp_path / "prompts.jsonl")
    drawn = np.random.default_rng(0)
    words = [[f"w{i}" for i in range(6)], [f"w{i}" for i in range(6, 12)], [f"w{i}" for i in range(12, 20)]]
    (tmp_path / "corpus.txt").write_text("\n\n".join(" ".join(drawn.choice(words[k % 3], 110)) for k in range(60)))
    monkeypatch.chdir(tmp_path)
    here, there = tmp_path / "here", tmp_path / "there"
    on = ["--engine", "ray", "--address", nodes.address]
    assert history("here") == 0
    said = capsys.readouterr().out
    assert "'checkpoint-16' has the weights of the last checkpoint." in said

    monkeypatch.setattr(HistoryConfig, "load", lambda *_, **__: pytest.fail("this process loaded a model"))
    assert history("there", *on) == 0
    assert capsys.readouterr().out.replace("there/report", "here/report") == said
    assert other(written(there), written(here)) == ""
    for table in ("history.csv", "crossings.csv"):
        assert (there / table).read_bytes() == (here / table).read_bytes()
    measured = {path: path.stat().st_mtime_ns for path in (there / "checkpoints").rglob("*") if path.is_file()}
    kinds = {path.name.split("-")[0] for path in measured}
    assert kinds > {"facts.json", "heads.safetensors", "topics.safetensors", "clusters", "cka_last"}

    assert history("there", *on) == 0
    again = {path: path.stat().st_mtime_ns for path in (there / "checkpoints").rglob("*") if path.is_file()}
    assert again == measured
    assert other(written(there), written(here)) == ""
