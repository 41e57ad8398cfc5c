"""`mechclust topics` on a Ray cluster of two nodes, whose processes run in another folder."""

from __future__ import annotations

import pytest

from mechclust.cli import main
from mechclust.commands.topics import job as jobs
from mechclust.commands.topics.measure import MEASURED
from tests.faults.bits import bits, other
from tests.mechclust.commands.topics.cases import plant, write_planted_corpus


def suite(out, *engine):
    """By the command line, with paths that are relative to the caller's folder."""
    quick = ["--n-topics", "3", "--passes", "3", "--no-below", "1", "--no-above", "1", "--max-length", "16"]
    drawn = ["--topic-seeds", "0", "1", "--thresholds", "0.1", "0.2", "--resamples", "20"]
    given = ["--suite", "suite.toml", "--corpus", "corpus", "--split", "file", "--weights", "counts"]
    return main(["topics", *given, *quick, *drawn, "--out", out, *engine])


@pytest.mark.cluster
def test_the_bits_of_one_process_and_nothing_measured_here(write_checkpoint, tmp_path, nodes, monkeypatch, capsys):
    write_checkpoint(tmp_path / "bert", "bert", change=plant)
    write_checkpoint(tmp_path / "albert", "albert")
    write_planted_corpus(tmp_path / "corpus")
    (tmp_path / "suite.toml").write_text(
        '[[model]]\nmodel = "bert"\nname = "planted"\n[[model]]\nmodel = "albert"\nname = "plain"\ntwins = 0\n'
    )
    monkeypatch.chdir(tmp_path)
    assert suite("here") == 0
    said = capsys.readouterr().out
    monkeypatch.setattr(jobs, "_measure", lambda *_: pytest.fail("this process measured a model"))
    on = ["--engine", "ray", "--address", nodes.address]
    assert suite("there", *on) == 0
    assert capsys.readouterr().out.replace("there/report", "here/report") == said
    assert other(bits(tmp_path / "there" / "results"), bits(tmp_path / "here" / "results")) == ""
    measured = {path: path.stat().st_mtime_ns for path in (tmp_path / "there" / MEASURED).rglob("*.safetensors")}
    assert suite("there", *on) == 0
    assert len(measured) >= 3
    assert {path: path.stat().st_mtime_ns for path in measured} == measured
