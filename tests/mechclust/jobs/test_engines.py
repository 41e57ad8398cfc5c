"""What both engines promise. The jobs are Python expressions: ``eval`` can be sent everywhere."""

from __future__ import annotations

import operator
import os
import time
from contextlib import closing
from functools import partial
from multiprocessing import get_context

import pytest

from mechclust.jobs import Ray, imap_jobs, map_jobs, mapping
from tasks import InputError

pytestmark = pytest.mark.usefixtures("forked")
PROCESS = "__import__('os').getpid()"
DIE = f"__import__('os').kill({PROCESS}, 9)"


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.cluster)])
def engine(request, monkeypatch):
    monkeypatch.setattr(mapping, "LOCAL_RETRIES", 1)
    return "local" if request.param == "local" else Ray(request.getfixturevalue("nodes").address, retries=1)


def once(path, first, then):
    """Do ``first`` when nobody did before."""
    made = f"__import__('pathlib').Path({str(path)!r})"
    return f"({then}) if {made}.exists() else ({made}.touch(), {first})"


def test_values_threads_environment_and_a_job_that_raises(engine, monkeypatch):
    """Nobody else's job is stopped by an error, which names its job and keeps its type."""
    monkeypatch.setattr("mechclust.jobs.local._CONTEXT", get_context("spawn"))  # a server has its own environment
    monkeypatch.setenv("MECHCLUST_VERIFY", "told")
    named = [f"__import__('os').environ[{name!r}]" for name in ("MECHCLUST_VERIFY", "MECHCLUST_LOCK_WAIT")]
    about = f"({PROCESS}, __import__('torch').get_num_threads(), {', '.join(named)})"
    jobs = [f"(__import__('time').sleep(1), {about})[1]"] * 2
    refuse = "next((_ for _ in ()).throw(__import__('tasks').InputError('this one')))"
    jobs += ["1 / 0", refuse, "__import__('sys').exit(3)", about]
    found = {}
    for outcome in imap_jobs(eval, jobs, 2, engine=engine, name=lambda job: job[:5]):
        assert outcome.position not in found
        found[outcome.position] = outcome
    assert sorted(found) == list(range(6))
    for position in (0, 1, 5):
        process, threads, *environment = found[position].value
        assert process != os.getpid()
        assert (threads, environment) == (1, ["told", "120.0"])
    assert len({found[position].value[0] for position in (0, 1, 5)}) == 2
    assert isinstance(found[2].error, ZeroDivisionError)
    assert "raised by job '1 / 0'" in found[2].error.__notes__
    assert any("Traceback" in note for note in found[2].error.__notes__)
    assert isinstance(found[3].error, InputError)
    assert str(found[3].error) == "job 'next(': this one"
    assert isinstance(found[4].error, RuntimeError)
    assert str(found[4].error).startswith("SystemExit: 3")


def test_a_job_whose_worker_is_killed_is_run_again_and_given_up_in_the_end(engine, tmp_path):
    """Also one that only speaks late: jobs of others are not touched."""
    log = tmp_path / "log"
    told = f"open({str(log)!r}, 'a').write('slow ')"
    slow = f"({told}, __import__('time').sleep(0.6), 'slow')[2]"
    jobs = [slow, DIE, "'last'"]
    found = {outcome.position: outcome for outcome in imap_jobs(eval, jobs, 2, engine=engine)}
    assert [found[position].value for position in range(3)] == ["slow", None, "last"]
    assert log.read_text() == "slow "
    text = str(found[1].error)
    assert isinstance(found[1].error, InputError)
    assert text.startswith("job 2 lost its worker 2 times (")
    assert (
        "often for too little memory); what other workers measured is kept: run the same command again, with fewer"
        in text
    )
    assert "signal 9" in text or ("process " in text and " on node " in text)


def test_a_job_that_takes_too_long_is_stopped_and_named(engine):
    """The clock starts with the job, not when its worker is made."""
    jobs = ["__import__('time').sleep(500)", "'quick'"]
    found = {o.position: o for o in imap_jobs(eval, jobs, 2, engine=engine, timeout=2, name=lambda job: job[-6:])}
    assert found[1].value == "quick"
    assert isinstance(found[0].error, InputError)
    assert str(found[0].error) == (
        "job 'p(500)' took longer than 2 s and was stopped; give more time (timeout, --job-timeout), or leave it out"
    )


@pytest.mark.parametrize("seconds", [3_000_000.0, float("inf")])
def test_a_limit_of_months_is_no_limit(seconds):
    """Pipes are waited for at most some weeks."""
    assert [outcome.value for outcome in imap_jobs(eval, ["7"], 1, timeout=seconds)] == [7]


def test_the_error_that_is_raised_says_how_many_others_there_are():
    refuse = "next((_ for _ in ()).throw(__import__('tasks').InputError('no')))"
    with pytest.raises(InputError) as refused:
        map_jobs(eval, [refuse, "1", refuse], 1)
    assert str(refused.value) == "job 1: no; 1 other job failed too"
    with pytest.raises(ZeroDivisionError) as failed:
        map_jobs(eval, ["1 / 0", refuse, refuse], 1)
    assert "2 other jobs failed too" in failed.value.__notes__
    with pytest.raises(InputError) as slow:
        map_jobs(eval, ["__import__('time').sleep(500)"] * 3, 1, timeout=0.2, name=str)
    assert str(slow.value).endswith("--job-timeout), or leave it out; 2 other jobs failed too")


def test_no_bar_is_drawn_over_no_jobs(capsys):
    assert map_jobs(abs, [], 2, progress="layers") == []
    assert capsys.readouterr().err == ""
    assert map_jobs(abs, [-1], 2, progress="layers") == [1]
    assert "layers: 100%" in capsys.readouterr().err


def test_a_failure_is_reported_while_other_jobs_go_on(capsys):
    refuse = "next((_ for _ in ()).throw(__import__('tasks').InputError('no')))"
    jobs = ["1", refuse, "1 / 0", "2", refuse]
    with pytest.raises(InputError):
        map_jobs(eval, jobs, 1, progress="sums")
    lines = [line for line in capsys.readouterr().err.replace("\r", "\n").split("\n") if "go on" in line]
    assert lines == [
        "job 2: no; the other jobs go on",
        "job 3: ZeroDivisionError: division by zero; the other jobs go on",
    ]
    with pytest.raises(InputError):
        map_jobs(eval, jobs, 1)
    assert capsys.readouterr().err == ""


def test_setup_is_called_once_a_worker_and_a_lost_workers_jobs_are_done_by_another(engine, tmp_path):
    """``resource(job)``: the resource is a function. Each job is reported once."""
    calls = tmp_path / "calls"
    drawn = []

    def jobs():
        for i in range(8):
            drawn.append(i)
            yield once(tmp_path / "died", DIE, "times * 3") if i == 3 else f"times * {i}"

    called = f"open({str(calls)!r}, 'a').write(str({PROCESS}) + ' ')"
    make = f"(lambda called: lambda job: eval(job, {{'times': 10}}))({called})"
    work = imap_jobs(operator.call, jobs(), 2, engine=engine, setup=partial(eval, make))
    found, ahead = [], []
    with closing(work):
        for outcome in work:
            assert outcome.error is None
            found.append((outcome.position, outcome.value))
            ahead.append(len(drawn) - len(found))
    assert sorted(found) == [(i, 10 * i) for i in range(8)]
    made = calls.read_text().split()
    assert len(made) == len(set(made))  # once a worker
    assert len(made) in (2, 3)  # one was killed
    assert max(ahead) <= 5  # each worker's job and one more, and what another worker is done with


def test_what_setup_raises_is_raised(engine):
    with pytest.raises(ZeroDivisionError):
        list(imap_jobs(operator.call, ["1", "2"], 2, engine=engine, setup=partial(eval, "1 / 0")))


def test_an_early_end_ends_the_workers(engine, tmp_path):
    note = f"open({str(tmp_path / 'process')!r}, 'w').write(str({PROCESS}))"
    work = imap_jobs(eval, ["1", f"({note}, __import__('time').sleep(500))"], 2, engine=engine)
    with closing(work):
        assert next(work).value == 1
        while not (tmp_path / "process").exists() or not (tmp_path / "process").read_text():
            time.sleep(0.1)
    process = int((tmp_path / "process").read_text())
    while _lives(process):
        time.sleep(0.1)


def _lives(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().split()[2] != "Z"
    except OSError:
        return False
