"""A command with a bad input, run in a process forked from this one, and the class of what came of it."""

from __future__ import annotations

import os
import re
import resource
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Literal

from tests.bad_inputs.outcome import Outcome, Result
from tests.faults.process import Ended, Failed, Process, command

TIME_LIMIT_S = 90.0
MAX_BYTES = 12 * 2**30  # of a process's address space
MINE = b"mine"  # what stands in the files of a user
_NOT_MEASURED = ("config.json", "mechclust.json", ".log", ".lock")


@dataclass(frozen=True)
class Call:
    """A command line, and what must come of it.

    Attributes:
        line: after ``mechclust``; ``@in/`` is the folder of inputs, ``@here/`` that of this call, in which it runs.
        words: one of them must be in the sentence that refuses.
        expected: ``"refused"``, ``"accepted"``, or ``"either"``.
        prepare: makes inputs in the folder of this call.
        said: pattern of something that must be printed where the call is accepted.
        mine: files of a user, which must stay.
        stdout: ``"full"`` or ``"closed"`` for an output that cannot be written.
        at_work: whether the fault is only seen at work, after other things were measured.
    """

    line: str
    words: tuple[str, ...] = ()
    expected: Literal["refused", "accepted", "either"] = "refused"
    prepare: Callable[[Path], None] | None = None
    said: str = ""
    mine: tuple[str, ...] = ()
    stdout: Literal["", "full", "closed"] = ""
    at_work: bool = False


def result_of(call: Call, inputs: Path) -> Result:
    """Run a call in a new folder, which is removed afterwards."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in call.mine:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(MINE)
        if call.prepare is not None:
            call.prepare(folder)
        before = _files(folder)
        stamps = _files(inputs)
        process = Process(partial(_run, call, inputs, folder), folder)
        try:
            ended = process.wait(TIME_LIMIT_S)
        except Failed:
            return Result(Outcome.HANG, f"no end after {TIME_LIMIT_S:g} s")
        finally:
            process.kill(group=True)
        if _files(inputs) != stamps or any((folder / file).read_bytes() != MINE for file in _there(folder, call.mine)):
            return Result(Outcome.UNSAFE, "a file of the user's changed")
        if len(_there(folder, call.mine)) < len(call.mine):
            return Result(Outcome.UNSAFE, "a file of the user's is gone")
        written = [file for file in _files(folder) if file not in before and not file.endswith(_NOT_MEASURED)]
        return _classified(call, ended, written)


def _there(folder: Path, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if (folder / name).is_file()]


def _files(folder: Path) -> dict[str, int]:
    """Return the files below a folder, with the times of their last change."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def _run(call: Call, inputs: Path, folder: Path) -> int:
    """Run the command and flush its output at the end, as a new process would."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if call.stdout == "full":
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    elif call.stdout == "closed":
        os.close(1)
        sys.stdout = None  # as Python finds it after >&-
    words = shlex.split(call.line)
    try:
        return command(*(word.replace("@in/", f"{inputs}/").replace("@here/", f"{folder}/") for word in words))() or 0
    finally:
        if call.stdout == "closed":
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - flushed at the end of the process


def _classified(call: Call, ended: Ended, written: list[str]) -> Result:
    """Return the class of how a call ended."""
    err = ended.err.decode(errors="replace")
    if ended.code < 0:
        return Result(Outcome.CRASH, signal.Signals(-ended.code).name)
    if "Traceback (most recent call last)" in err or ended.code not in (0, 1, 2):
        return Result(Outcome.TRACEBACK, (err.strip().splitlines() or [f"exit code {ended.code}"])[-1][:300])
    if ended.code != 2:
        return _accepted(call, ended)
    sentences = [line for line in err.splitlines() if line.startswith("mechclust: ")]
    if not sentences:  # the parser lists what it expects
        return Result(Outcome.OK if call.expected != "accepted" else Outcome.UNCLEAR, "refused by the parser")
    if call.expected == "accepted":
        return Result(Outcome.UNCLEAR, f"refused: {sentences[-1]}")
    if written and not call.at_work:
        return Result(Outcome.LATE, f"wrote {written[0]}: {sentences[-1]}")
    if call.words and not any(word in sentences[-1] for word in call.words):
        return Result(Outcome.UNCLEAR, sentences[-1])
    return Result(Outcome.OK, sentences[-1])


def _accepted(call: Call, ended: Ended) -> Result:
    printed = (ended.out + ended.err).decode(errors="replace")
    if call.expected == "refused":
        return Result(Outcome.SILENT, "accepted")
    if call.said and re.search(call.said, printed) is None:
        return Result(Outcome.SILENT, f"accepted, without {call.said!r}")
    return Result(Outcome.OK, "accepted")


def warm_up() -> None:
    """Import what commands import, so that no process does, and compute nothing."""
    import torch

    from mechclust.command_table import COMMANDS
    from mechclust.studies import list_studies
    from probes import list_probes

    torch.set_num_threads(1)
    for name in COMMANDS:
        import_module(f"mechclust.cli_commands.{name}")
    for name in ("peft", "sklearn.cluster", "sklearn.manifold", "matplotlib.pyplot", "pandas"):
        import_module(name)
    for family in ("gpt2", "llama", "bert"):
        import_module(f"transformers.models.{family}.modeling_{family}")
    list_studies()
    list_probes()


def copied(name: str, to: str, inputs: Path, folder: Path) -> Path:
    """Copy a folder of the inputs into that of a call."""
    return Path(shutil.copytree(inputs / name, folder / to))
