"""Run the witness: build both sides, run all calls under each, and compare."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.parity import commands, names
from tests.parity.compare import Difference, differences, gone, read_known, unlisted
from tests.parity.environments import HOME, environment_of, key_of_base, prepare, witness
from tests.parity.inputs import write_inputs

HERE = Path(__file__).parent
ALL = ".*"


def main() -> int:
    """Return 0 if the two sides differ in what is listed, and in nothing else."""
    arguments = _arguments()
    observed = _observe(arguments.calls, arguments.again)
    calls = [call for call in observed["old"] if call in observed["new"]]
    found = _compare(observed)
    known = read_known(HERE / "differences.toml")
    new, stale = unlisted(found, known), gone(found, known, calls)
    _tell(found, new, stale, len(calls))
    uncovered = _uncovered(observed["old"]) if arguments.calls == ALL else []
    for line in uncovered:
        print(f"never used: {line}")
    return int(bool(new or stale or uncovered))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.parity", description=__doc__)
    told = "a regular expression: run only the calls whose whole name matches, which must include those they read from"
    parser.add_argument("--calls", default=ALL, help=told)
    parser.add_argument("--again", action="store_true", help="run the old side again, even if nothing of it changed")
    return parser.parse_args()


def _observe(calls: str, again: bool) -> dict[str, dict[str, Any]]:
    """Run the sides that have to run, at the same time, and return what each observed."""
    key, kept = key_of_base(), HOME / "old" / "key.txt"
    is_kept = not again and kept.exists() and kept.read_text() == key
    sides = ("new",) if is_kept else ("old", "new")
    pythons = prepare(sides)
    write_inputs(HOME / "inputs")
    folder = witness()
    started = {side: _start(side, pythons[side], folder, calls) for side in sides}
    for side, process in started.items():
        if code := process.wait():
            sys.exit(f"the {side} side ended with {code}:\n{(HOME / side / 'log.txt').read_text()[-3000:]}")
    if "old" in sides:
        kept.write_text(key if calls == ALL else "")
    observed = {side: json.loads((HOME / side / "observed.json").read_text()) for side in ("old", "new")}
    return {side: {name: x for name, x in each.items() if re.fullmatch(calls, name)} for side, each in observed.items()}


def _start(side: str, python: Path, folder: Path, calls: str) -> subprocess.Popen:
    """Start the program of one side."""
    command = [str(python), "-P", "-m", "tests.parity.side", side, str(HOME), calls]
    with (HOME / side / "log.txt").open("w") as log:
        variables = environment_of(HOME / side, folder)
        return subprocess.Popen(command, cwd=HOME, env=variables, stdout=log, stderr=subprocess.STDOUT)


def _compare(observed: dict[str, dict[str, Any]]) -> list[Difference]:
    """Return all differences, call by call; what a call in Python used is not compared."""
    old, new = observed["old"], observed["new"]
    found = []
    for call in [*old, *(call for call in new if call not in old)]:
        sides = [{k: v for k, v in side.get(call, {}).items() if k != "used"} for side in (old, new)]
        found += differences(call, *sides)
    return found


def _tell(found: Sequence[Difference], new: Sequence[Difference], stale: Sequence[Any], calls: int) -> None:
    for difference in new:
        print(f"not listed: {difference}")
    for entry in stale:
        print(f"no longer occurs: call {entry.call!r}, what {entry.what!r} ({entry.reason})")
    print(f"{calls} calls: {len(found)} differences, of which {len(found) - len(new)} are listed")


# ---- what was never used ----


def _uncovered(old: dict[str, Any]) -> list[str]:
    """Return options that no command line has, and public names that no call read."""
    return [*_unused_options(old), *_unused_names(old)]


def _unused_options(old: dict[str, Any]) -> list[str]:
    used: dict[str, set[str]] = {name: set() for name in commands.HELP}
    for line in commands.all_lines():
        options = {word.partition("=")[0] for word in line.split() if word.startswith("--")}
        name = commands.command_of(line)
        for known in (name, "run") if name.startswith("run ") else (name,):
            used.setdefault(known, set()).update(options)
    missing = []
    for name in commands.HELP:
        for option in old[f"help {name}"]["options"]:
            if not used[name] & set(option.split()) and option not in commands.UNUSED:
                missing.append(f"{option} of {name}")
    return missing


def _unused_names(old: dict[str, Any]) -> list[str]:
    read = {name for call in old.values() for name in call.get("used", ())}
    packages = ("probes", "probes.functional", "tasks", "mechclust")
    public = [f"{package}.{name}" for package in packages for name in old["signatures"][package]]
    return [name for name in public if name not in read and name not in names.UNUSED]


if __name__ == "__main__":
    sys.exit(main())
