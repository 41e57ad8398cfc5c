"""What a cluster adds: nodes that are lost, do not share the folder or have other versions; drivers that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

from mechclust.jobs import Ray, imap_jobs, map_jobs
from tasks import InputError

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="needs ray")
ROOT = Path(__file__).parents[3]
PROCESS = "__import__('os').getpid()"


def noting(folder, and_then="None"):
    """A job that leaves a file named by its process."""
    return f"(__import__('pathlib').Path({str(folder)!r}, str({PROCESS})).touch(), {and_then})[1]"


def processes(folder):
    return [int(path.name) for path in folder.iterdir() if path.name.isdigit()]


def lives(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def wait_until(true):
    while not true():
        time.sleep(0.1)


def test_a_node_lost_in_the_middle_costs_time_only(nodes, tmp_path):
    """Its job is run again on the other, and nothing is done twice."""
    jobs = [noting(tmp_path, f"(__import__('time').sleep(2), {i})[1]") for i in range(3)]

    def lose():
        wait_until(lambda: len(processes(tmp_path)) == 2)
        nodes.lose(nodes.second)

    thread = threading.Thread(target=lose)
    thread.start()
    outcomes = list(imap_jobs(eval, jobs, engine=Ray(nodes.address)))
    thread.join()
    assert sorted((outcome.position, outcome.value) for outcome in outcomes) == [(0, 0), (1, 1), (2, 2)]


def test_a_node_that_does_not_see_the_folder(nodes, tmp_path, monkeypatch):
    """Where a path leads depends on who asks: this process's own folder is another one for a worker."""
    monkeypatch.chdir(tmp_path)
    folder = Path("/proc/self/cwd/run")
    with pytest.raises(InputError) as refused:
        map_jobs(eval, ["1", "2"], engine=Ray(nodes.address), folder=folder)
    text = str(refused.value)
    assert text.startswith("node ")
    assert text.endswith(
        "does not see '/proc/self/cwd/run'; give a folder (--out) on a file system that all nodes share"
    )
    assert not list((tmp_path / "run").iterdir())  # the token is gone
    run = tmp_path / "run"
    assert map_jobs(eval, [noting(run, "1")] * 3, 1, engine=Ray(nodes.address), folder=run) == [1, 1, 1]
    assert len(processes(run)) == 1  # workers says how many run at once
    assert len(list(run.iterdir())) == 1
    imap_jobs(eval, ["1"], 1, engine=Ray(nodes.address), folder=run).close()  # before the first result
    with pytest.raises(TypeError):
        map_jobs(threading.Lock(), ["1"], 1, engine=Ray(nodes.address), folder=run)  # cannot be sent
    assert map_jobs(eval, [], engine=Ray(nodes.address), folder=run) == []
    assert len(list(run.iterdir())) == 1


def test_a_node_with_another_version(nodes, tmp_path):
    """Of all that differs both versions are told."""
    for package, version in (("torch", "1.2.3"), ("transformer-lens", "0.0.1")):
        info = tmp_path / f"{package.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    nodes.lose(nodes.second)
    other = nodes.add(env_vars={"PYTHONPATH": str(tmp_path)})
    try:
        with pytest.raises(InputError) as refused:
            map_jobs(eval, ["__import__('time').sleep(20)"] * 2, engine=Ray(nodes.address))
    finally:
        nodes.lose(other)
    text = str(refused.value)
    assert " has torch 1.2.3 and transformer-lens 0.0.1, but this process has torch " in text
    assert text.endswith("; install the same versions on all nodes")


def driver(tmp_path, engine):
    """A process that runs two jobs which do not end by themselves."""
    script = tmp_path / "driver.py"
    job = noting(tmp_path, "(print('a job says hello'), __import__('time').sleep(500))")
    script.write_text(
        "import sys\n"
        "from mechclust.jobs import Ray, close_progress_bars, map_jobs, one_interrupt\n"
        "def main():\n"
        "    try:\n"
        "        with one_interrupt():\n"
        f"            print(map_jobs(eval, [{job!r}] * 2, 2, engine={engine}, progress='all jobs'))\n"
        "    except KeyboardInterrupt:\n"
        "        close_progress_bars()\n"
        "        return 130\n"
        "if __name__ == '__main__':\n"
        "    sys.exit(main())\n"
    )
    return subprocess.Popen(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_a_killed_driver_takes_its_workers_with_it_and_the_cluster_serves_the_next(nodes, tmp_path):
    first = driver(tmp_path, f"Ray({nodes.address!r})")
    wait_until(lambda: len(processes(tmp_path)) == 2)
    workers = processes(tmp_path)
    first.kill()
    first.communicate()
    wait_until(lambda: not any(map(lives, workers)))
    assert map_jobs(eval, ["1", "2"], 1, engine=Ray(nodes.address)) == [1, 2]


def test_ctrl_c_ends_the_jobs_and_leaves_the_cluster_that_was_joined(nodes, tmp_path):
    """Many times and fast, to all processes of the terminal."""
    stopped = driver(tmp_path, f"Ray({nodes.address!r})")
    said, workers = interrupt(stopped, tmp_path)
    assert "Traceback" not in said
    assert stopped.returncode == 130
    wait_until(lambda: not any(map(lives, workers)))
    assert nodes.alive() == 2


@pytest.mark.cluster
def test_ctrl_c_stops_a_cluster_that_was_started(tmp_path):
    """A worker's print and the bar over all jobs arrive; Ray's own messages do not."""
    stopped = driver(tmp_path, "Ray('local')")
    said, workers = interrupt(stopped, tmp_path, of_ray=True)
    assert stopped.returncode == 130
    assert "a job says hello" in said
    assert "all jobs:   0%" in said
    assert not {"Traceback", "raylet", "WARNING", "token"} & set(said.replace(")", " ").replace("(", " ").split())
    wait_until(lambda: not any(map(lives, workers)))


def interrupt(process, tmp_path, *, of_ray=False):
    """Give Ctrl-C until it has ended; gives what it said, and the processes that must end with it."""
    wait_until(lambda: len(processes(tmp_path)) == 2 or process.poll() is not None)
    workers = processes(tmp_path)
    if of_ray:
        time.sleep(1)  # for the print
        workers += [
            int(child) for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        ]
        assert len(workers) > 4  # two workers, and what makes a cluster
    while process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.01)
    return process.communicate()[0], workers


def test_no_such_cluster_is_told_at_once():
    from mechclust.jobs import ray_connection

    ray_connection.leave_ray()  # a connection that is there would be taken for another address too
    text = r"^no Ray cluster answers at '127.0.0.1:1' \(ConnectionRefused.*\); start one \(ray start --head"
    with pytest.raises(InputError, match=text):
        map_jobs(abs, [1, 2], engine=Ray("127.0.0.1:1"))


def test_what_no_node_has_is_told_unless_workers_are_waited_for(nodes, monkeypatch, capfd):
    way = "say how many workers (--workers), which waits for nodes that the cluster may start"
    with pytest.raises(InputError) as refused:
        map_jobs(abs, [1, 2], engine=Ray(nodes.address, cpus_per_job=64))
    assert str(refused.value) == (
        f"no node of the Ray cluster has 64 CPUs for a job (at most 1 CPU); give fewer cpus_per_job, or {way}"
    )
    with pytest.raises(InputError, match=r"^no node of the Ray cluster has 999 GPUs for a job \(at most \d+ GPUs?\); "):
        map_jobs(abs, [1, 2], engine=Ray(nodes.address, gpus_per_job=999))

    from mechclust.jobs import ray_pool

    monkeypatch.setattr(ray_pool, "_PATIENCE_S", 1.0)
    nodes.lose(nodes.second)

    said = []
    with ThreadPoolExecutor(1) as thread:
        results = thread.submit(map_jobs, abs, [1, -2], 1, engine=Ray(nodes.address, cpus_per_job=2))
        wait_until(lambda: "waiting until" in "".join(said.append(capfd.readouterr().err) or said))
        nodes.second = nodes.add(num_cpus=2)
        assert results.result() == [1, 2]
    said.append(capfd.readouterr().err)
    nodes.lose(nodes.second)
    told = "mechclust: no node of the Ray cluster has 2 CPUs free for a job; waiting until one has"
    assert "".join(said).count(told) == 1


def test_without_the_package_ray_it_is_said_how_to_get_it():
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "from mechclust.jobs import map_jobs\n"
        "print(map_jobs(abs, [1], engine='local'))\n"
        "map_jobs(abs, [1], engine='ray')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[1]\n"
    assert done.stderr.endswith("InputError: jobs on Ray need the package ray: pip install 'mechclust[ray]'\n")


NO_AMOUNTS = (-1, 1.5, 0.00001)
NO_NUMBERS = {float("nan"): "finite number", float("inf"): "finite number", "two": "number", True: "number"}
ADDRESS = "expected HOST:PORT (6379 on the head node), auto or local"
GPUS = "expected 0, a part of one GPU (at least 0.0001) or a whole number"
CPUS = "expected a part of one CPU (at least 0.0001) or a whole number"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"address": ""}, f"address is empty; {ADDRESS}"),
        *[({"address": a}, f"address is {a!r}; {ADDRESS}") for a in ("head", ":6379", "ray://head:10001", "head:x")],
        ({"address": "localhost:65536"}, "address is 'localhost:65536'; expected a port from 1 to 65535"),
        ({"address": "head:0"}, "address is 'head:0'; expected a port from 1 to 65535"),
        *[({"gpus_per_job": n}, f"gpus_per_job (--gpus-per-job) is {n!r}; {GPUS}") for n in NO_AMOUNTS],
        *[({"cpus_per_job": n}, f"cpus_per_job is {n!r}; {CPUS}") for n in (1.5, 0)],
        *[({"gpus_per_job": n}, f"gpus_per_job is {n!r}; expected a {what}") for n, what in NO_NUMBERS.items()],
        ({"cpus_per_job": "two"}, "cpus_per_job is 'two'; expected a number"),
        ({"retries": -1}, "retries is -1; expected at least 0"),
        ({"retries": 1.5}, "retries is 1.5; expected an integer"),
    ],
)
def test_settings_are_checked_at_once(settings, text):
    with pytest.raises(InputError) as refused:
        Ray(**settings)
    assert str(refused.value) == text


def test_amounts_that_ray_can_give():
    for amount in (0.0001, 0.5, 1, 1.0, 2, 8.0):
        assert Ray(gpus_per_job=amount, cpus_per_job=amount).gpus_per_job == amount
    assert [Ray(address).address for address in ("auto", "local", "[::1]:6379")] == ["auto", "local", "[::1]:6379"]
