"""Ctrl-C many times and fast, as an impatient hand gives it: to all processes of the terminal."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

import pytest

from mechclust import cli
from mechclust.jobs import local, map_jobs, one_interrupt
from mechclust.jobs.interrupts import interrupt_message
from tests.faults.process import Process

ROOT = Path(__file__).parents[3]


@pytest.fixture
def driver(tmp_path):
    """Start a command with two jobs that do not end by themselves; return it once the first job has begun."""
    started = []

    def start():
        touch = f"__import__('pathlib').Path({str(tmp_path)!r}, str(__import__('os').getpid())).touch()"
        job = f"[{touch}, __import__('time').sleep(500)]"
        script = tmp_path / "driver.py"
        script.write_text(
            "import sys\n"
            "from mechclust import cli\n"
            "from mechclust.jobs import map_jobs\n"
            "def command(*given):\n"
            f"    map_jobs(eval, [{job!r}] * 2, 2, progress='all jobs')\n"
            "cli._run = command\n"
            "if __name__ == '__main__':\n"
            "    sys.exit(cli.main(['list']))\n"
        )
        process = subprocess.Popen(
            [sys.executable, script],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        while not workers(tmp_path):  # the second may still be starting
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def workers(folder):
    """Return the processes that have begun a job."""
    return [path.name for path in folder.iterdir() if path.name.isdigit()]


def no_worker_lives(folder):
    return not [pid for pid in workers(folder) if Path(f"/proc/{pid}").exists()]


@pytest.mark.slow
def test_fast_repeated_ctrl_c_prints_no_traceback_and_leaves_no_worker(driver, tmp_path):
    process = driver()
    while process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.002)
    said = process.communicate()[0]
    assert "Traceback" not in said
    assert said.endswith("mechclust: interrupted\n")
    assert process.returncode == 130
    assert no_worker_lives(tmp_path)


def test_so_it_is_where_all_workers_are_at_work(tmp_path, monkeypatch):
    """Processes that are forked from this one, which import nothing."""

    def command():
        touch = f"__import__('pathlib').Path({str(tmp_path)!r}, str(__import__('os').getpid())).touch()"
        map_jobs(eval, [f"[{touch}, __import__('time').sleep(500)]"] * 2, 2, progress="all jobs")

    def call():
        monkeypatch.setattr(local, "_CONTEXT", multiprocessing.get_context("fork"))
        monkeypatch.setattr(cli, "_run", lambda *given: command())
        return cli.main(["list"])

    process = Process(call, tmp_path)
    try:
        while len(workers(tmp_path)) < 2:
            assert not process.poll(), process.wait().told
            time.sleep(0.02)
        while not process.poll():
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.002)
    finally:
        ended = process.kill(group=True)
    said = (ended.out + ended.err).decode()
    assert "Traceback" not in said
    assert said.endswith("mechclust: interrupted\n")
    assert ended.code == 130
    assert no_worker_lives(tmp_path)


# ---- within this process ----


@pytest.fixture(autouse=True)
def _handler():
    """Ctrl-C ends the tests again after a test."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def ctrl_c(*_):
    signal.raise_signal(signal.SIGINT)


class Finaliser:
    __del__ = ctrl_c


def in_a_finaliser():
    Finaliser()


def in_a_callback():
    referent = set()
    reference = weakref.ref(referent, ctrl_c)
    del referent
    assert reference() is None


def in_a_bare_except():
    try:
        ctrl_c()
    except BaseException:
        return


@pytest.mark.parametrize("drop", [in_a_finaliser, in_a_callback, in_a_bare_except])
def test_an_interrupt_that_is_dropped_is_not_the_last(drop, capfd):
    dropped = 0

    def command():
        nonlocal dropped
        for _ in range(3):
            drop()
            dropped += 1
        ctrl_c()

    with pytest.raises(KeyboardInterrupt), one_interrupt():
        command()
    assert dropped == 3
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("drop", [in_a_finaliser, in_a_callback])
def test_an_interrupt_that_python_drops_comes_again(drop, capfd):
    def command():
        drop()
        time.sleep(300)
        pytest.fail("it did not come")

    with pytest.raises(KeyboardInterrupt), one_interrupt():
        command()
    assert "Traceback" not in capfd.readouterr().err


def test_an_interrupt_does_not_come_again_after_the_command():
    with one_interrupt():
        in_a_finaliser()
    time.sleep(0.2)  # the handler of the tests would raise


def test_later_interrupts_do_not_disturb_the_clean_up_nor_the_end(monkeypatch):
    monkeypatch.setattr("mechclust.jobs.interrupts._CLEAN_UP", 600.0)
    cleaned = 0

    def command():
        nonlocal cleaned
        try:
            ctrl_c()
        finally:
            for step in (ctrl_c, in_a_finaliser):
                step()
                cleaned += 1

    with pytest.raises(KeyboardInterrupt), one_interrupt():
        command()
    assert cleaned == 2
    ctrl_c()  # ignored: what a command says at its end is said


def test_an_interrupt_that_is_kept_is_not_the_last(monkeypatch):
    """Some code stores an exception and goes on: later Ctrl-C are ignored for a moment only."""
    monkeypatch.setattr("mechclust.jobs.interrupts._CLEAN_UP", 0.0)
    kept = []

    def command():
        try:
            ctrl_c()
        except KeyboardInterrupt as error:
            kept.append(error)
        ctrl_c()
        pytest.fail("the second Ctrl-C was ignored")

    with pytest.raises(KeyboardInterrupt), one_interrupt():
        command()
    assert len(kept) == 1


def test_an_interrupt_that_was_made_into_another_ends_the_command_too():
    def command():
        try:
            ctrl_c()
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None

    with pytest.raises(KeyboardInterrupt), one_interrupt():
        command()
    ctrl_c()  # ignored


def fail_in_set_name():
    """Python 3.11 makes a RuntimeError of an exception in ``__set_name__``, as an import may be interrupted in."""
    try:
        ctrl_c()
    except KeyboardInterrupt as stop:
        raise RuntimeError("error calling __set_name__") from stop


def test_an_error_that_was_made_of_an_interrupt_ends_the_command_as_one():
    with pytest.raises(KeyboardInterrupt), one_interrupt():
        fail_in_set_name()


def test_an_error_that_was_made_of_an_interrupt_says_what_is_kept():
    with pytest.raises(KeyboardInterrupt, match="rows"), one_interrupt(), interrupt_message(lambda: "rows"):
        fail_in_set_name()


def test_an_error_without_an_interrupt_stays_what_it_is():
    with pytest.raises(ValueError, match="a defect"), one_interrupt(), interrupt_message(str):
        raise ValueError("a defect") from KeyError("another")


def test_a_command_without_an_interrupt_leaves_ctrl_c_as_it_was():
    before = signal.getsignal(signal.SIGINT)
    with one_interrupt():
        in_a_finaliser()
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt), one_interrupt():
        raise KeyboardInterrupt  # nobody pressed Ctrl-C
    assert signal.getsignal(signal.SIGINT) is before
