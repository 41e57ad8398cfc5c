"""Commands as processes that can be killed: each is forked from this one, which has imported everything and computed
nothing, so that a kill falls into the work and not into the imports."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

LIMIT = 240.0  # seconds after which a process counts as hanging
Call = Callable[[], "int | None"]


class Failed(Exception):
    """What the campaign must not find: said in one paragraph."""


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code (minus the signal that killed it), what it printed, and the time it took."""

    code: int
    out: bytes
    err: bytes
    seconds: float

    @property
    def told(self) -> str:
        """The last lines of both streams, for the report of a failure."""
        return (self.out[-300:] + self.err[-1200:]).decode(errors="replace").strip()


class Process:
    """A call that runs in a process, and a process group, of its own.

    Args:
        call: what to do; what it returns is the exit code.
        folder: the working folder, made where it is not there.
        env: further environment.
    """

    def __init__(self, call: Call, folder: Path, env: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._streams = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115 - closed when it ends
        self._began = time.monotonic()
        self._ended: Ended | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os._exit(self._child(call, folder, env or {}))

    def _child(self, call: Call, folder: Path, env: Mapping[str, str]) -> int:
        try:
            os.setsid()
            os.chdir(folder)
            os.environ.update(env)
            for stream, file in enumerate(self._streams, 1):
                os.dup2(file.fileno(), stream)
            sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
            signal.signal(signal.SIGINT, signal.default_int_handler)
            code = call() or 0
            sys.stdout.flush()
            return code
        except SystemExit as stop:
            return stop.code if isinstance(stop.code, int) else 1
        except BaseException:
            traceback.print_exc()
            return 1
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()

    def poll(self) -> bool:
        """Whether it has ended."""
        if self._ended is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._end(status)
        return self._ended is not None

    def wait(self, seconds: float = LIMIT) -> Ended:
        """How it ended.

        Raises:
            Failed: when it has not ended by then; it is killed.
        """
        end = time.monotonic() + seconds
        while not self.poll():
            if time.monotonic() > end:
                self.kill(group=True)
                raise Failed(f"hangs: not done after {seconds:.0f} s")
            time.sleep(0.005)
        assert self._ended is not None
        return self._ended

    def after(self, seconds: float) -> bool:
        """Wait so long from its start; whether it still runs."""
        while not self.poll() and time.monotonic() < self._began + seconds:
            time.sleep(0.002)
        return not self.poll()

    def stop(self) -> bool:
        """Let it stand still; whether it does, and has not ended."""
        if not self.poll():
            os.kill(self.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return not self.poll()

    def go_on(self) -> None:
        """End its standing still."""
        if not self.poll():
            os.kill(self.pid, signal.SIGCONT)

    def kill(self, *, group: bool) -> Ended:
        """kill -9 of the process alone, or of its workers too."""
        if not self.poll():
            if group:
                with contextlib.suppress(ProcessLookupError):  # a child that has just begun has no group of its own yet
                    os.killpg(self.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
            self._end(status)
        assert self._ended is not None
        return self._ended

    def _end(self, status: int) -> None:
        seconds = time.monotonic() - self._began
        texts = []
        for file in self._streams:
            file.seek(0)
            texts.append(file.read())
            file.close()
        self._ended = Ended(os.waitstatus_to_exitcode(status), texts[0], texts[1], seconds)


def run(call: Call, folder: Path, env: Mapping[str, str] | None = None) -> Ended:
    """A call from beginning to end."""
    process = Process(call, folder, env)
    try:
        return process.wait()
    finally:
        process.kill(group=True)


def command(*argv: str) -> Call:
    """``mechclust ARGUMENTS``, as a call."""

    def call() -> int:
        from mechclust.cli import main

        return main(argv)

    return call


def python(work: Callable[[], object]) -> Call:
    """A call of Python; an ``InputError`` is printed as the command line prints it."""

    def call() -> int:
        from tasks import InputError

        try:
            work()
        except InputError as error:
            print(f"mechclust: {error}", file=sys.stderr)
            return 2
        return 0

    return call


def sentence(ended: Ended) -> str:
    """The one sentence in which a process refused.

    Raises:
        Failed: for another exit code than 2, a traceback, or more than a sentence.
    """
    text = ended.err.decode(errors="replace")
    if ended.code != 2 or "Traceback" in text:
        raise Failed(f"exit code {ended.code}, and not one sentence:\n{ended.told}")
    lines = text.replace("\r", "\n").replace("\x1b[A", "\n").splitlines()  # as workers' bars move the cursor
    said = [line for line in lines if line.startswith("mechclust: ")]
    if len(said) != 1:
        raise Failed(f"{len(said)} sentences:\n{ended.told}")
    return said[0].removeprefix("mechclust: ")


def descendants(pid: int) -> Iterator[tuple[int, str]]:
    """Living processes below this one, each with its command line."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(entry))
    waiting = list(parents.get(pid, ()))
    while waiting:
        child = waiting.pop()
        waiting += parents.get(child, ())
        with contextlib.suppress(OSError):
            yield child, Path("/proc", str(child), "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
