"""What every trial is given: inputs, undisturbed runs to compare with, and a folder to work in."""

from __future__ import annotations

import difflib
import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

from tests.faults.bits import Bits, bits, other
from tests.faults.process import Call, Ended, Failed, run
from tests.faults.subjects import SUBJECTS, make_inputs

Outcome = Literal["same bits", "refused"]


@dataclass(frozen=True)
class Trial:
    """One disturbance.

    Attributes:
        kind: a row of the table.
        name: tells it apart from others of its kind; with the seed it decides everything that is drawn.
        run: from the bench and the trial's own draws; says how it ended, or raises ``Failed``.
        needs: subjects whose undisturbed runs it compares with.
        alone: whether nothing else should run beside it.
    """

    kind: str
    name: str
    run: Callable[[Bench, random.Random], Outcome]
    needs: Sequence[str] = ()
    alone: bool = False


def each_subject(
    kind: str,
    disturb: Callable[[str, Bench, random.Random], Outcome],
    size: str,
    few: Sequence[str],
    *,
    never: Sequence[str],
) -> list[Trial]:
    """One trial of a few subjects in the small round, three of all but some in the full one."""
    names = few if size == "small" else [name for name in SUBJECTS if name not in never]
    rounds = 1 if size == "small" else 3
    return [Trial(kind, f"{name}, {k}", partial(disturb, name), [name]) for name in names for k in range(rounds)]


@dataclass(frozen=True)
class Undisturbed:
    """A run that nothing disturbed: its folder, its bits, what it printed, and the seconds it took."""

    out: Path
    bits: Bits
    printed: str
    seconds: float

    @property
    def size(self) -> int:
        """Bytes in its folder, in whole pages."""
        return sum(-(-path.stat().st_size // 4096) * 4096 for path in self.out.rglob("*") if path.is_file())


class Bench:
    """A folder with inputs, undisturbed runs, and trials.

    Args:
        folder: an empty one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.inputs = self.folder / "inputs"
        self.kills = 0  # of processes, so far
        self._known: dict[str, Undisturbed] = {}

    def prepare(self) -> None:
        """Make the inputs."""
        if self.inputs.exists():
            return
        ended = run(lambda: make_inputs(self.inputs), self.folder)
        if ended.code:
            raise RuntimeError(f"no inputs: {ended.told}")

    def begins(self, name: str) -> str | None:
        """What a subject starts from."""
        return SUBJECTS[name].begins

    def undisturbed(self, name: str) -> Undisturbed:
        """The undisturbed run of a subject, made once."""
        if name not in self._known:
            folder = self.folder / "undisturbed" / name.replace(" ", "-")
            if not (folder / "ended.json").exists():
                shutil.rmtree(folder, ignore_errors=True)
                self.begin(name, folder)
                ended = run(self.call(name), folder)
                if ended.code:
                    raise Failed(f"{name} does not run, undisturbed: exit code {ended.code}\n{ended.told}")
                told = {"printed": ended.out.decode(), "seconds": ended.seconds}
                (folder / "ended.json").write_text(json.dumps(told))
            told = json.loads((folder / "ended.json").read_text())
            self._known[name] = Undisturbed(folder / "out", bits(folder / "out"), **told)
        return self._known[name]

    def call(self, name: str) -> Call:
        """What a subject does."""
        return SUBJECTS[name].call(self.inputs)

    def begin(self, name: str, folder: Path) -> None:
        """The working folder of a subject, with what it starts from."""
        folder.mkdir(parents=True, exist_ok=True)
        if (begins := SUBJECTS[name].begins) is not None:
            shutil.copytree(self.undisturbed(begins).out, folder / "out")

    @contextmanager
    def place(self, draw: random.Random) -> Iterator[Path]:
        """A new working folder, removed afterwards."""
        folder = self.folder / "trials" / f"{draw.getrandbits(64):016x}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def check_same(self, name: str, folder: Path, ended: Ended, *, others_print: bool = False) -> None:
        """Compare a run that came to its end with the undisturbed one: all bits, and what it printed.

        With ``others_print`` lines of somebody else, such as Ray's about a lost node, may stand between its own.

        Raises:
            Failed: when it did not end well, or something differs.
        """
        before = self.undisturbed(name)
        if ended.code:
            raise Failed(f"exit code {ended.code}:\n{ended.told}")
        if differs := other(bits(folder / "out"), before.bits):
            raise Failed(f"other bits: {differs}")
        expected, printed = before.printed.splitlines(), ended.out.decode(errors="replace").splitlines()
        rest = iter(printed)
        if not (all(line in rest for line in expected) if others_print else printed == expected):
            lines = difflib.unified_diff(expected, printed, "undisturbed", "now", n=0)
            raise Failed("\n".join(["something else is printed:", *islice(lines, 12)]))

    def finish(self, name: str, folder: Path) -> None:
        """Give the same command again, and compare.

        Raises:
            Failed: see above.
        """
        self.check_same(name, folder, run(self.call(name), folder))
