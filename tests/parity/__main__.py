"""Run the witness: build both sides, run all calls under each, and compare."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.parity import commands, names
from tests.parity.compare import Difference, differences, gone, read_known, unlisted
from tests.parity.environments import HOME, SIDES, environment_of, prepare, witness
from tests.parity.inputs import write_inputs

HERE = Path(__file__).parent


def main() -> int:
    """Return 0 if the two sides differ in what is listed, and in nothing else."""
    arguments = _arguments()
    pythons = prepare()
    write_inputs(HOME / "inputs")
    observed = _run_both(pythons, arguments.only)
    calls = [call for call in observed["old"] if call in observed["new"]]
    found = _compare(observed)
    known = read_known(HERE / "differences.toml")
    new, stale = unlisted(found, known), gone(found, known, calls)
    _tell(found, new, stale, len(calls))
    uncovered = [] if arguments.only != ".*" else _uncovered(observed["old"])
    for line in uncovered:
        print(f"never used: {line}")
    return int(bool(new or stale or uncovered))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.parity", description=__doc__)
    parser.add_argument("--only", default=".*", help="a regular expression: run the calls whose whole name matches")
    return parser.parse_args()


def _run_both(pythons: dict[str, Path], only: str) -> dict[str, dict[str, Any]]:
    """Run both sides at the same time, and return what each observed."""
    folder = witness()
    started = {}
    for side in SIDES:
        command = [str(pythons[side]), "-P", "-m", "tests.parity.side", side, str(HOME), only]
        log = (HOME / side / "log.txt").open("w")
        variables = environment_of(HOME / side, folder)
        started[side] = subprocess.Popen(command, cwd=HOME, env=variables, stdout=log, stderr=subprocess.STDOUT)
    codes = {side: process.wait() for side, process in started.items()}
    for side, code in codes.items():
        if code:
            sys.exit(f"the {side} side ended with {code}:\n{(HOME / side / 'log.txt').read_text()[-3000:]}")
    return {side: json.loads((HOME / side / "observed.json").read_text()) for side in SIDES}


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
        if (name := commands.command_of(line)) in used:
            used[name] |= {word.partition("=")[0] for word in line.split() if word.startswith("--")}
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
