"""Bash completes commands and their options, by the script that the documentation says to write."""

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
    assert completions("topics", "my-model", "--no-a") == ["--no-above"]
