"""Bash completes commands, studies and options, by the script that the documentation says to write."""

import contextlib
import shutil
import subprocess

import pytest

from mechclust.cli import main
from mechclust.command_table import COMMANDS

PRESS_TAB = 'source "$0"; COMP_WORDS=(mechclust "$@"); COMP_CWORD=$#; _tyro_mechclust; printf "%s\\n" "${COMPREPLY[@]}"'


@pytest.fixture(scope="module")
def completions(tmp_path_factory):
    """What bash offers for the last of some words."""
    if shutil.which("bash") is None:
        pytest.skip("no bash")
    script = tmp_path_factory.mktemp("completion") / "mechclust"
    with contextlib.suppress(SystemExit):
        main(["--tyro-write-completion", "bash", str(script)])

    def offered(*words):
        return subprocess.check_output(["bash", "-c", PRESS_TAB, str(script), *words], text=True).split()

    return offered


def test_every_command(completions):
    assert set(COMMANDS) <= set(completions(""))
    assert completions("comp") == ["compare"]


def test_options(completions):
    assert "--n-permutations" in completions("clusters", "my-model", "--n")
    assert completions("run", "task-clusters", "--pre") == ["--preset"]
    assert completions("mossa", "--tuning.r") == ["--tuning.rank"]
    assert completions("topics", "--su") == ["--suite"]
    assert completions("topics", "--suite", "p7.toml", "--topic-m") == ["--topic-model"]
    assert completions("topics", "my-model", "--max-s") == ["--max-share"]


def test_studies_and_their_options(completions):
    assert completions("run", "t") == ["task-clusters", "topic-structure"]
    assert completions("run", "task-clusters", "--ar") == ["--arms"]
    assert completions("run", "topic-structure", "--ar") == []
