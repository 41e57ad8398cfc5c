"""Disks that are full: a small file system of its own, on which room is made after the refusal.

Where none can be mounted, no file may grow beyond a limit instead, which refuses large files only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.faults.bench import Bench, Outcome, Trial, each_subject
from tests.faults.process import Call, Failed, run, sentence
from tests.faults.subjects import SUBJECTS

KIND = "full disks"
_PAGE = 4096
_libc = ctypes.CDLL(None, use_errno=True)


def trials(size: str, draw: random.Random) -> list[Trial]:
    """Each subject, or a few, on disks of several sizes."""
    few = ("save_rows", "train", "compare", "report")
    return each_subject(KIND, _full, size, few, never=("artefacts",))


def _full(name: str, bench: Bench, draw: random.Random) -> Outcome:
    """A disk with room for a part of what the undisturbed run writes; then room, and the same command."""
    known = bench.undisturbed(name)
    begins = SUBJECTS[name].begins
    held = 0 if begins is None else bench.undisturbed(begins).size + 40 * _PAGE
    with bench.place(draw) as place:
        for _ in range(4):
            room = held + int(draw.uniform(0.05, 0.85 if not held else 0.2) * known.size) // _PAGE * _PAGE + _PAGE
            with _small(place / "disk", room) as (limited, more):
                bench.begin(name, place / "disk")
                ended = run(limited(bench.call(name)), place / "disk")
                if ended.code == 0:  # it needs less than its files' sizes say
                    continue
                try:
                    said = sentence(ended)
                    if "out" not in said:
                        raise Failed(f"the sentence names no path: {said}")
                    more()
                    bench.finish(name, place / "disk")
                except Failed as failure:
                    raise Failed(f"with room for {room} of {known.size} bytes: {failure}") from None
                return "same bits"
            shutil.rmtree(place / "disk", ignore_errors=True)
    raise Failed("no disk was small enough")


@contextlib.contextmanager
def _small(folder: Path, room: int) -> Iterator[tuple[Callable[[Call], Call], Callable[[], None]]]:
    """A folder with so many bytes of room: what limits a call, and what makes room."""
    folder.mkdir(parents=True, exist_ok=True)
    if not mounts():
        limit = max(1, room // 8)
        yield lambda call: partial(_limited, call, limit), lambda: None
        return
    _mount(folder, f"size={room + _PAGE},mode=0777", 0)
    try:
        yield lambda call: call, lambda: _mount(folder, "size=256m", 32)  # MS_REMOUNT
    finally:
        _libc.umount2(os.fsencode(folder), 2)  # MNT_DETACH


def mounts() -> bool:
    """Whether a file system can be mounted here."""
    probe = Path(tempfile.mkdtemp(prefix="mechclust-mount-"))
    try:
        _mount(probe, "size=4096", 0)
        _libc.umount2(os.fsencode(probe), 2)
        return True
    except OSError:
        return False
    finally:
        probe.rmdir()


def _mount(folder: Path, options: str, flags: int) -> None:
    if _libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", flags, options.encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))


def _limited(call: Call, limit: int) -> int | None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    return call()
