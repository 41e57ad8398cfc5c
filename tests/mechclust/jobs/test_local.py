"""Independent jobs over processes. The jobs are Python expressions: ``eval`` is picklable everywhere."""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from tqdm import tqdm

from mechclust.jobs import close_progress_bars, imap_jobs, map_jobs, mapping, progress_bar
from mechclust.jobs.local import LocalPool
from mechclust.jobs.progress import BarLock, place_progress_bars
from probes.engine.devices import check_device
from tasks import InputError

ROOT = Path(__file__).parents[3]


def writing(path, text, before=""):
    return f"{before}__import__('pathlib').Path({str(path)!r}).write_text(str({text}))"


@pytest.mark.parametrize("way", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_results_come_in_the_order_of_the_jobs_from_one_thread_a_worker(way, monkeypatch, capfd):
    """The first job takes longest; every job says who did it and with how many threads. All have bars in one
    terminal."""
    who = "(__import__('os').getpid(), __import__('torch').get_num_threads())"
    bar = "[n for n in __import__('mechclust.jobs').jobs.progress_bar(range(3), desc='steps of one')]"
    jobs = [f"(__import__('time').sleep({0.3 if i == 0 else 0}), {bar}, {i}, {who})[2:]" for i in range(5)]
    monkeypatch.setattr("mechclust.jobs.local._CONTEXT", multiprocessing.get_context(way))
    results = map_jobs(eval, jobs, workers=2, progress="all jobs")
    assert [i for i, _ in results] == [0, 1, 2, 3, 4]
    assert {threads for _, (_, threads) in results} == {1}
    pids = {pid for _, (pid, _) in results}
    assert os.getpid() not in pids
    assert len(pids) <= 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "steps of one" in err
    assert "all jobs: 100%" in err
    assert "5/5" in err


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("workers", [2, 1])
def test_of_several_failures_the_first_jobs_is_raised_and_the_others_go_on(tmp_path, workers):
    """Also where it comes last."""
    jobs = [f"[__import__('time').sleep({s}), int({name!r})]" for s, name in ((0.5, "slow"), (0, "quick"))]
    jobs += [writing(tmp_path / f"{i}", i) for i in range(3)]
    with pytest.raises(ValueError, match="'slow'"):
        map_jobs(eval, jobs, workers=workers)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0", "1", "2"]


@pytest.mark.usefixtures("forked")
def test_a_value_that_cannot_be_unpickled_is_its_jobs_error(tmp_path):
    unreadable = "type('Odd', (), {'__reduce__': lambda self: (int, ('unreadable',))})()"
    with pytest.raises(ValueError, match="'unreadable'") as caught:
        map_jobs(eval, [unreadable, *(writing(tmp_path / f"{i}", i) for i in range(3))], workers=2)
    assert caught.value.__notes__[0] == "the job's value cannot be unpickled"
    assert caught.value.__notes__[1].startswith("raised by ")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0", "1", "2"]


def exit_or_write(path):
    if path is None:
        sys.exit(3)
    path.touch()


class Unsendable:
    """A job with a file that is gone when it is pickled."""

    def __reduce__(self):
        raise FileNotFoundError("gone")


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("n_sendable", [0, 5])
def test_jobs_that_cannot_be_pickled_fail_alone(n_sendable):
    jobs = [Unsendable() for _ in range(9)] + ["1"] * n_sendable
    outcomes = list(imap_jobs(eval, jobs, workers=2, name=lambda job: type(job).__name__))
    assert sorted(outcome.position for outcome in outcomes) == list(range(9 + n_sendable))
    failed = [outcome.error for outcome in outcomes if outcome.error is not None]
    assert len(failed) == 9
    assert all(isinstance(error, FileNotFoundError) for error in failed)
    assert failed[0].__notes__ == ["raised by job 'Unsendable'"]


@pytest.mark.usefixtures("forked")
def test_each_worker_has_the_first_free_line_of_the_terminal_for_its_bars():
    pool = LocalPool(abs, None, 3)
    first, second = pool.start(), pool.start()
    pool.end([first])
    third = pool.start()
    pool.end([second, third])
    assert [worker.line for worker in (first, second, third)] == [1, 2, 1]


@pytest.mark.usefixtures("forked")
def test_the_lock_of_progress_bars_is_given_back():
    before = tqdm.get_lock()
    list(imap_jobs(eval, ["1", "2"], workers=2))
    assert tqdm.get_lock() is before


class TestInThisProcess:
    def test_one_worker_needs_no_other_process(self):
        assert map_jobs(lambda job: (job, os.getpid()), [3, 1], workers=1) == [(3, os.getpid()), (1, os.getpid())]

    def test_one_job_needs_none_either(self):
        assert map_jobs(lambda job: os.getpid(), ["only"], workers=8) == [os.getpid()]

    def test_ctrl_c_goes_through(self):
        def stop(job):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            map_jobs(stop, [1, 2], workers=1)

    @pytest.mark.usefixtures("forked")
    def test_a_job_that_exits_fails_alone(self, tmp_path):
        """As in a worker."""
        for workers in (1, 2):
            done = tmp_path / str(workers)
            done.mkdir()
            with pytest.raises(RuntimeError, match=r"^SystemExit: 3") as raised:
                map_jobs(exit_or_write, [None, done / "a", done / "b"], workers=workers)
            assert "raised by job 1" in raised.value.__notes__
            assert len(list(done.iterdir())) == 2

    def test_computes_with_one_thread_too(self):
        """So that a run with one worker and one with two end with the same bits."""
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            assert map_jobs(lambda job: torch.get_num_threads(), [0, 1], workers=1) == [1, 1]
            assert torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(before)


def test_progress_bar_goes_through_its_items(capsys):
    assert list(progress_bar(range(3), desc="x")) == [0, 1, 2]
    out, err = capsys.readouterr()
    assert out == ""
    assert "x" in err


def test_a_bar_of_another_kind_begins_where_the_work_does():
    """Such as Ray's, which takes no ``initial``."""

    class Bar:
        def __init__(self, items=None, total=None):
            self.done = 0

        def update(self, n=1):
            self.done += n

    place_progress_bars(Bar)
    try:
        assert progress_bar(range(3, 9), total=9, initial=3).done == 3
    finally:
        place_progress_bars()


class TestCheckDevice:
    def test_the_cpu_is_always_there(self):
        assert check_device("cpu") is None

    def test_no_such_device(self):
        with pytest.raises(InputError, match=r"^no device 'warp'; expected cpu, cuda, cuda:1 or mps$"):
            check_device("warp")

    @pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has one")
    def test_no_gpu(self):
        with pytest.raises(InputError) as refused:
            check_device("cuda")
        assert str(refused.value) == "device 'cuda' is not available on this machine; choose --device cpu"

    def test_a_gpu_with_too_high_a_number(self):
        with pytest.raises(InputError, match="device 'cuda:99' is not available on this machine"):
            check_device("cuda:99")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
def test_workers_end_when_their_parent_is_killed(tmp_path):
    """Else they would go on writing, beside the run that was started again."""
    touch = f"__import__('pathlib').Path({str(tmp_path)!r}, str(__import__('os').getpid())).touch()"
    job = f"[{touch}, __import__('time').sleep(60)]"
    code = f"from mechclust.jobs import map_jobs\nif __name__ == '__main__':\n    map_jobs(eval, [{job!r}] * 2, 2)"
    script = tmp_path / "parent.py"
    script.write_text(code)
    parent = subprocess.Popen([sys.executable, script], env={**os.environ, "PYTHONPATH": str(ROOT)})

    def workers():
        return [int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()]

    def wait_until(true):
        while not true():
            time.sleep(0.1)

    wait_until(lambda: len(workers()) == 2)
    parent.kill()
    parent.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers()))


def test_an_error_begins_on_a_line_of_its_own(capsys):
    """A bar that an exception left standing is taken away before the error is printed."""
    bar = iter(progress_bar(range(3), desc="layers", file=sys.stderr))
    next(bar)
    close_progress_bars()
    print("mechclust: wrong", file=sys.stderr)
    shown, wiped, told = capsys.readouterr().err.rsplit("\r", 2)
    assert "layers" in shown
    assert not wiped.strip()  # spaces over the bar
    assert told == "mechclust: wrong\n"


class TestWhatIsGiven:
    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"workers": 0}, "workers is 0; expected at least 1"),
            ({"timeout": 0}, "the timeout of a job is 0; expected more than 0 seconds"),
            ({"engine": "dask"}, "no engine 'dask'; expected 'local', 'ray', or mechclust.Ray(...) with its settings"),
        ],
    )
    def test_what_makes_no_sense_is_refused_before_any_job(self, options, text):
        with pytest.raises(InputError) as refused:
            map_jobs(print, ["never"], **options)
        assert str(refused.value) == text

    def test_jobs_are_named_by_their_own_name_by_one_given_or_by_number(self):
        class Job:
            name = "own"

        def fail(job):
            raise InputError("no")

        for name, said in ((None, "job 'own': no"), (lambda job: "given", "job 'given': no")):
            with pytest.raises(InputError) as refused:
                map_jobs(fail, [Job()], workers=1, name=name)
            assert str(refused.value) == said
        with pytest.raises(InputError) as refused:
            map_jobs(fail, [3], workers=1)
        assert str(refused.value) == "job 1: no"

    def test_a_worker_that_ends_at_its_start_is_told_of_the_guard(self, monkeypatch):
        monkeypatch.setattr("mechclust.jobs.local._CONTEXT", multiprocessing.get_context("fork"))
        monkeypatch.setattr("mechclust.jobs.local._serve", lambda *_: sys.exit(1))
        with pytest.raises(InputError) as refused:
            map_jobs(abs, [1, 2], workers=2)
        assert "a worker's process ended at its start with exit code 1 (error above); a script" in str(refused.value)
        assert "needs `if __name__ == '__main__':`" in str(refused.value)

    @pytest.mark.slow
    def test_a_script_without_a_guard_is_told_so_once(self, tmp_path):
        script = tmp_path / "script.py"
        script.write_text("from mechclust.jobs import map_jobs\nmap_jobs(abs, [1, 2], 2)\n")
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
        assert done.returncode == 1
        assert "before its first job" not in done.stderr
        last = done.stderr.splitlines()[-1]
        assert "a worker's process ended at its start with exit code 1 (error above); a script that runs jobs" in last
        assert "needs `if __name__ == '__main__':`" in last


@pytest.mark.usefixtures("forked")
def test_a_worker_that_is_lost_while_it_is_made_ready_is_told_in_the_end(monkeypatch):
    monkeypatch.setattr(mapping, "LOCAL_RETRIES", 1)
    setup = partial(eval, "__import__('os').kill(__import__('os').getpid(), 9)")
    with pytest.raises(InputError) as refused:
        list(imap_jobs(print, [1, 2], 2, setup=setup))
    assert re.match(  # the other worker may be lost as well by then
        r"a worker was lost before its first job [23] times \(killed by signal 9, often for too little memory\); ",
        str(refused.value),
    )


@pytest.mark.usefixtures("forked")
def test_workers_that_are_lost_while_they_are_made_ready_stop_no_other(monkeypatch, tmp_path):
    """The first one does all the jobs."""
    monkeypatch.setattr(mapping, "LOCAL_RETRIES", 0)
    made = f"__import__('pathlib').Path({str(tmp_path / 'first')!r})"
    die = "__import__('os').kill(__import__('os').getpid(), 9)"
    setup = partial(eval, f"(__import__('time').sleep(1), {die}) if {made}.exists() else {made}.touch()")
    outcomes = list(imap_jobs(_sized, ["__import__('time').sleep(1)", "2", "3"], 2, setup=setup))
    assert [outcome.error for outcome in outcomes] == [None] * 3
    assert sorted(outcome.position for outcome in outcomes) == [0, 1, 2]


@pytest.mark.usefixtures("forked")
def test_large_jobs_and_large_results_pass_each_other():
    """More than a pipe holds, both ways at once, with a second job sent while the first is done."""
    big = "'" + "x" * 2_000_000 + "'"
    results = imap_jobs(_sized, [big] * 6, 2, setup=dict)
    assert [outcome.value for outcome in results] == ["x" * 2_000_000] * 6


def _sized(resource, job):
    return eval(job)


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("workers", [1, 2])
def test_jobs_in_order_take_what_their_worker_made_ready(workers):
    assert map_jobs(_after, ["a", "b", "c"], workers, setup=partial(str, "ready ")) == ["ready a", "ready b", "ready c"]


def _after(resource, job):
    return resource + job


def test_a_lock_whose_owner_was_killed_stops_nobody_for_long():
    waits = []

    class Watched:
        """A lock that notes how long it was waited for."""

        def acquire(self, timeout):
            waits.append(timeout)
            return inner.acquire(timeout=0.01)

    inner = multiprocessing.get_context("spawn").RLock()
    lock = BarLock(Watched())
    holder = threading.Thread(target=inner.acquire)
    holder.start()
    holder.join()
    for _ in range(3):
        with lock:
            pass
    assert waits == [1.0]


def test_a_function_that_cannot_be_sent_is_told_before_a_process_starts():
    way = "give a function at the top level of a module, or a functools.partial of one"
    with pytest.raises(InputError, match=rf"^'.*<lambda>' cannot be sent to another process \(.*\); {way}$"):
        map_jobs(lambda job: job, [1, 2], workers=2)
    with pytest.raises(InputError, match=r"^'.*<lambda>' cannot be sent"):
        map_jobs(lambda resource, job: job, [1, 2], workers=2, setup=dict)
    with pytest.raises(InputError, match=r"^'.*<lambda>' cannot be sent"):
        map_jobs(eval, [1, 2], workers=2, setup=lambda: 1)
