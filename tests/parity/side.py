"""Run all calls under the code that is installed here, and write what was observed.

A program of its own, since old and new code cannot be imported together. Libraries are imported once; each call runs in
a forked process and in a folder of its own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from tests.parity import commands, library, names, observe

TIMEOUT_S = 400
POLL_S = 0.01
PRELOADED = (
    "torch", "transformers", "transformer_lens", "sklearn.cluster", "scipy.stats", "pandas", "matplotlib.pyplot",
    "tyro", "peft", "probes", "tasks", "mechclust.cli",
)  # fmt: skip


def main(side: str, home: Path, only: str) -> None:
    """Run the calls whose names match, and write ``observed.json`` after each of them."""
    _check_origin()
    for name in PRELOADED:
        import_module(name)
    import_module("torch").set_num_threads(1)
    work = home / side / "work"
    shutil.rmtree(work, ignore_errors=True)
    observed: dict[str, Any] = {}
    for name, call in _calls(side, home, work).items():
        if not re.fullmatch(only, name):
            continue
        start = time.monotonic()
        (work / name).mkdir(parents=True)
        try:
            observed[name] = call(work / name)
        except Exception as error:  # a file in a form that the witness does not know: one call is lost, not the run
            observed[name] = {"not observed": f"{type(error).__name__}: {error}"}
        print(f"{time.monotonic() - start:6.1f} s  {name}", flush=True)
        (home / side / "observed.json").write_text(json.dumps(observed))


def _check_origin() -> None:
    """Refuse packages that do not come from the wheel in this environment."""
    for name in ("mechclust", "probes", "tasks"):
        place = Path(str(import_module(name).__file__)).resolve()
        if not place.is_relative_to(Path(sys.prefix).resolve()):
            raise SystemExit(f"{name} comes from {place}, not from the wheel in {sys.prefix}")
    if metadata.distribution("mechclust").read_text("direct_url.json") is None:
        raise SystemExit("mechclust was not installed from a wheel")


def _calls(side: str, home: Path, work: Path) -> dict[str, Callable[[Path], dict[str, Any]]]:
    """Return all calls by name, in order: some use what earlier ones wrote."""

    argv = partial(commands.words, inputs=home / "inputs", work=work)
    calls: dict[str, Callable[[Path], dict[str, Any]]] = {}
    for name, line in commands.HELP.items():
        calls[f"help {name}"] = partial(_help, argv(line))
    for name, function in library.CALLS.items():
        calls[name] = partial(_python, function, names.Library(side), home)
    for name, line in commands.commands().items():
        calls[name] = partial(_command, argv(line), name, home)
    for name, (line, expected) in commands.REFUSED.items():
        calls[name] = partial(_refused, argv(line), name, home, expected)
    for name, (line, pattern) in commands.KILLED.items():
        calls[name] = partial(_killed, argv(line), name, home, pattern)
    calls["signatures"] = _signatures
    return calls


# ---- processes ----


def _fork(folder: Path, function: Callable[[], int]) -> int:
    """Start a function in a process whose folder and output are this folder's, and return the process's number."""
    sys.stdout.flush()
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.chdir(folder)
        for stream, number in (("stdout", 1), ("stderr", 2)):
            os.dup2(os.open(folder / f"{stream}.txt", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
        code = function()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(process: int, limit: float = TIMEOUT_S) -> int | str:
    """Return the exit code of a process, or how it was ended."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(POLL_S)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return "hangs"


def _mechclust(argv: list[str]) -> int:
    """Run the command line as its console script does."""
    sys.argv = ["mechclust", *argv]
    entry = next(iter(metadata.entry_points(group="console_scripts", name="mechclust")))
    return int(entry.load()() or 0)


# ---- kinds of calls ----


def _command(argv: list[str], name: str, home: Path, folder: Path) -> dict[str, Any]:
    """Run a command line, and observe its exit code and the files in its folder."""
    if name in commands.COPIED:
        shutil.copytree(home / "inputs" / commands.COPIED[name], folder / "out", dirs_exist_ok=True)
    plugin = home / "inputs" / "plugin"

    def run() -> int:
        if name in commands.WITH_PLUGIN:
            sys.path.insert(0, str(plugin))
        return _mechclust(argv)

    code = _wait(_fork(folder, run), commands.LIMITS_S.get(name, TIMEOUT_S))
    said = (folder / "stderr.txt").read_text(errors="replace")
    found: dict[str, Any] = {"exit": code, "traceback": "Traceback (most recent call last)" in said}
    if name in commands.SHOWN:
        found["lines"] = observe.headings((folder / "stdout.txt").read_text())
    load_result = names.Library("old").probes.load_result
    return found | {"folder": observe.folder(folder, load_result)}


def _refused(argv: list[str], name: str, home: Path, expected: str, folder: Path) -> dict[str, Any]:
    """Run a command line that must be refused, and observe whether the message names what is wrong."""
    found = _command(argv, name, home, folder)
    return found | {"names what is wrong": expected in (folder / "stderr.txt").read_text(errors="replace")}


def _killed(argv: list[str], name: str, home: Path, pattern: str, folder: Path) -> dict[str, Any]:
    """Kill a command line while it runs, and run it again."""
    return {"killed": _kill(folder, argv, pattern), **_command(argv, name, home, folder)}


def _help(argv: list[str], folder: Path) -> dict[str, Any]:
    """Ask for a command's help, and observe its options."""
    code = _wait(_fork(folder, lambda: _mechclust(argv)))
    return {"exit": code, "options": observe.options((folder / "stdout.txt").read_text())}


def _python(function: Callable[..., Any], library_of: names.Library, home: Path, folder: Path) -> dict[str, Any]:
    """Run a call in Python, and observe what it returns, or the class of its error."""

    def run() -> int:
        try:
            found = observe.encode(function(library_of, home / "inputs"))
        finally:
            (folder / "used.json").write_text(json.dumps(sorted(library_of.used)))
        (folder / "found.json").write_text(json.dumps(found))
        return 0

    code = _wait(_fork(folder, run))
    used = folder / "used.json"
    found = {"exit": code, "used": json.loads(used.read_text()) if used.exists() else []}
    if code == 0:
        return found | json.loads((folder / "found.json").read_text())
    return found | {"error": (folder / "stderr.txt").read_text().strip().splitlines()[-1:]}


def _kill(folder: Path, argv: list[str], pattern: str) -> bool:
    """Start a command, kill it as soon as it has written a file, and return whether it was killed while it ran."""
    process = _fork(folder, lambda: _mechclust(argv))
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end and not any(folder.glob(pattern)):
        if os.waitpid(process, os.WNOHANG)[0]:
            return False
        time.sleep(POLL_S)
    os.kill(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL


def _signatures(folder: Path) -> dict[str, Any]:
    """Return the signatures of all public names."""
    found: dict[str, Any] = {}
    for module in names.MODULES:
        public = names.public_names(module)
        found[module] = {name: observe.signature(getattr(import_module(module), name)) for name in public}
    return found


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
