"""No pickle is read, no socket is opened by what runs on this machine, and memory stays flat over many resumptions."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.faults.bench import Bench, Outcome, Trial
from tests.faults.process import Call, Failed, command, run, sentence
from tests.faults.subjects import COMPARE, SUBJECTS

PICKLES, SOCKETS, MEMORY = "pickles", "sockets", "memory over resumptions"
_MIB = 2**20
_GROWTH = 8 * _MIB  # at most, over the resumptions after the first ones


def pickles(size: str, draw: random.Random) -> list[Trial]:
    """Every place where a file of weights or states is read."""
    return [Trial(PICKLES, place, partial(_pickle, place), needs) for place, needs in _PICKLED.items()]


def sockets(size: str, draw: random.Random) -> list[Trial]:
    """Every subject, or a few."""
    names = ("save_rows", "topics", "mossa") if size == "small" else tuple(SUBJECTS)
    return [Trial(SOCKETS, name, partial(_no_socket, name), [name]) for name in names]


def memory(size: str, draw: random.Random) -> list[Trial]:
    """The same command over and over, in one process."""
    names = (
        ("save_rows",) if size == "small" else ("save_rows", "train", "compare", "clusters", "topics", "task-clusters")
    )
    return [Trial(MEMORY, name, partial(_flat, name, 10 if size == "small" else 24), [name]) for name in names]


# ---- pickles ----


class _Payload:
    """Unpickled, it writes a file."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, ...]]:
        return os.mkdir, ("unpickled",)


_PICKLED: dict[str, list[str]] = {
    "a checkpoint as pytorch_model.bin": [],
    "a model of ours": ["artefacts"],
    "a result": ["artefacts"],
    "the state of a probe": ["artefacts"],
    "the state of a training": ["train"],
    "a shard of rows": ["save_rows"],
    "a snapshot": ["train_ensemble"],
}
_FILES = {
    "a model of ours": "model.safetensors",
    "a result": "result.safetensors",
    "the state of a probe": "state.safetensors",
    "the state of a training": "state.safetensors",
    "a shard of rows": "shard-*/index.safetensors",
    "a snapshot": "snapshots-*.safetensors",
}


def _pickle(place: str, bench: Bench, draw: random.Random) -> Outcome:
    needs = _PICKLED[place]
    with bench.place(draw) as folder:
        if needs:
            shutil.copytree(bench.undisturbed(needs[0]).out, folder / "out")
            path = sorted((folder / "out").glob(_FILES[place]))[0]
            call = bench.call(needs[0])
        else:
            shutil.copytree(bench.inputs / "tuned", folder / "tuned")
            (folder / "tuned" / "model.safetensors").unlink()
            path = folder / "tuned" / "pytorch_model.bin"
            prompts = str(bench.inputs / "prompts.jsonl")
            models = (str(bench.inputs / "base"), "tuned")
            call = command("compare", *models, "--prompts", prompts, *COMPARE, "--out", "out")
        path.write_bytes(pickle.dumps(_Payload()))
        ended = run(call, folder)
        if (folder / "unpickled").exists():
            raise Failed("the pickle was executed")
        if ended.code == 0 and needs:
            bench.check_same(needs[0], folder, ended)
            return "same bits"
        sentence(ended)
    return "refused"


# ---- sockets ----


def _no_socket(name: str, bench: Bench, draw: random.Random) -> Outcome:
    with bench.place(draw) as folder:
        bench.begin(name, folder)
        ended = run(partial(_watched, bench.call(name), folder / "sockets"), folder)
        bench.check_same(name, folder, ended)
        if (folder / "sockets").exists():
            raise Failed(f"sockets were opened: {(folder / 'sockets').read_text()[:300]}")
    return "same bits"


def _watched(call: Call, told: Path) -> int | None:
    """Write down each socket that this process opens, other than those between processes of this machine."""

    def hear(event: str, args: tuple[object, ...]) -> None:
        if event in ("socket.__new__", "socket.connect", "socket.bind", "socket.getaddrinfo"):
            family = args[1] if event == "socket.__new__" else getattr(args[0], "family", 0)
            if family != socket.AF_UNIX:
                with open(told, "a") as file:
                    file.write(f"{event} {args[1:]}\n")

    sys.addaudithook(hear)
    return call()


# ---- memory ----


def _flat(name: str, times: int, bench: Bench, draw: random.Random) -> Outcome:
    with bench.place(draw) as folder:
        bench.begin(name, folder)
        ended = run(partial(_again, bench.call(name), times, folder / "memory"), folder)
        if ended.code:
            raise Failed(f"exit code {ended.code}:\n{ended.told}")
        held = [int(line) for line in (folder / "memory").read_text().split()]
        early, late = min(held[times // 2 - 2 : times // 2 + 1]), min(held[-3:])
        if late - early > _GROWTH:
            raise Failed(f"grows from {early / _MIB:.1f} to {late / _MIB:.1f} MiB over {times // 2} resumptions")
    return "same bits"


def _again(call: Call, times: int, told: Path) -> int:
    """What the process holds after each of so many calls."""
    import gc

    for _ in range(times):
        if code := call():
            return code
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        with open(told, "a") as file:
            file.write(f"{pages * os.sysconf('SC_PAGE_SIZE')}\n")
    return 0
