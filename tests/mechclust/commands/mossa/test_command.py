"""``mechclust mossa`` on the command line."""

from __future__ import annotations

import re
import shutil

import pytest

from mechclust.cli import main

pytestmark = pytest.mark.usefixtures("few_draws")
SETTINGS = [  # those of tiny.run
    *("--tuning.lr", "1e-2", "--tuning.batch-size", "4", "--tuning.accumulation", "1", "--tuning.save-every", "5"),
    *("--tuning.rank", "2", "--steps-per-task", "3", "--cutoff", "32", "--ceilings", "1", "--nulls", "1"),
    *("--n-answers", "4", "--n-shown", "6", "--n-resamples", "20", "--svcca", "--keep-rows"),
]


@pytest.fixture
def command(base, tasks, result, out, tmp_path):
    """A command whose run is done."""
    shutil.copytree(out, tmp_path / "run")
    return ["mossa", str(base), "--tasks", str(tasks), "--out", str(tmp_path / "run"), *SETTINGS]


def helped(capsys, *argv):
    with pytest.raises(SystemExit) as end:
        main(["mossa", *argv, "--help"])
    assert end.value.code in (0, None)
    return " ".join(re.sub("[╭╮╰╯│─]", " ", capsys.readouterr().out).split())


def test_groups_sentences_findings_and_the_report(command, tmp_path, capsys, undrawn):
    trained = {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "adapters").rglob("*.safetensors")}
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "\n\nLayer 0 is hook_embed, and layer l is blocks.{l - 1}.hook_resid_post.\n\n" in printed
    report = f"report: {tmp_path / 'run' / 'report.html'}"
    parts = ["first layer", "- Tasks learnt by their own controls: ", "C2 ", report]
    places = [printed.index(part) for part in parts]
    assert places == sorted(places)
    assert (tmp_path / "run" / "report.html").exists()
    assert trained == {path: path.stat().st_mtime_ns for path in trained}


def test_an_interruption_says_how_to_go_on(command, tmp_path, monkeypatch, capsys):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("mechclust.cli_commands.mossa.run_mossa", stop)
    assert main(command) == 130
    assert capsys.readouterr().err == (
        f"\nmechclust: interrupted; what was measured so far is in {tmp_path / 'run'}; run the same command again to "
        "resume\n"
    )


def test_help_shows_every_option_and_the_presets_defaults(capsys):
    printed = helped(capsys)
    assert "mossa [-h] [OPTIONS] BASE" in printed
    assert "--preset {flan2021,small}" in printed
    assert "--tuning.lr FLOAT learning rate of AdamW. It falls to 0 along a cosine. (default: 5e-05)" in printed
    assert r"(default: '\nAnswer:')" in printed
    assert not [odd for odd in ("``", "{None}", "(default: None)") if odd in printed]
    small = helped(capsys, "--preset", "small")
    assert "a cosine. (default: 0.001)" in small
    assert "instead of tuning.epochs. (default: 100)" in small
    assert "test prompts per task to measure. (default: 10000)" in helped(capsys, "--preset", "flan2021")


def test_a_wrong_preset_is_refused(capsys):
    assert main(["mossa", "base", "--tasks", "x", "--preset", "smal"]) == 2
    printed = "mechclust: no preset 'smal' of mossa (it has flan2021, small); did you mean 'small'?\n"
    assert capsys.readouterr().err == printed


def test_what_is_missing_is_refused(capsys):
    with pytest.raises(SystemExit) as end:
        main(["mossa", "base"])
    assert end.value.code == 2
    assert "--tasks" in capsys.readouterr().err
