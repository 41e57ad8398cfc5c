"""Which cluster is joined, with or without a token, and what is said where none is. Ray is started by the last only."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import uuid
from importlib.util import find_spec
from pathlib import Path

import pytest

from mechclust.jobs import Ray, ray_connection
from tasks import InputError

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="needs ray")
ROOT = Path(__file__).parents[3]
HERE = "localhost:6379"
NO_TOKEN = "AuthenticationError: RPC error: InvalidAuthToken: Authentication token is missing or incorrect."


@pytest.fixture
def clusters(monkeypatch):
    """What stands in for Ray: which modes the cluster answers to, why not to others, and how it is joined."""

    class Clusters:
        answers: tuple[str, ...] = ()
        why = NO_TOKEN
        fails: Exception | None = None

        def __init__(self):
            self.asked, self.joined = [], []

        def ask(self, address, mode):
            self.asked.append(mode)
            return None if mode in self.answers else self.why

        def init(self, address, **options):
            self.joined.append((address, os.environ.get("RAY_AUTH_MODE")))
            if self.fails is not None:
                raise self.fails

    stand_in = Clusters()
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setattr(ray_connection, "_joined", set())
    monkeypatch.setattr(ray_connection, "_check_listening", lambda address: None)
    monkeypatch.setattr(ray_connection, "_ask", stand_in.ask)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", stand_in.init)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    return stand_in


def refused(address=HERE):
    with pytest.raises(InputError) as error:
        ray_connection.connect_to_ray(address)
    return str(error.value)


@pytest.mark.parametrize(
    ("answers", "given", "asked", "mode"),
    [
        (("disabled", "token"), None, ["disabled"], None),  # an open cluster lets those with a token in, too
        (("disabled",), "disabled", ["disabled"], "disabled"),
        (("token",), "token", ["disabled", "token"], "token"),
    ],
)
@pytest.mark.parametrize("address", [HERE, "auto"])
def test_a_token_is_shown_to_a_cluster_that_asks_for_one_where_the_mode_says_so(
    clusters, monkeypatch, address, answers, given, asked, mode
):
    """And afterwards this process is as before."""
    if given is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", given)
    clusters.answers = answers
    ray_connection.connect_to_ray(address)
    assert (clusters.asked, clusters.joined) == (asked, [(address, mode)])
    ray_connection.leave_ray()
    assert os.environ.get("RAY_AUTH_MODE") == given


@pytest.mark.parametrize(
    ("answers", "given", "why", "text"),
    [
        (
            ("token",),
            None,
            NO_TOKEN,
            "the Ray cluster at 'localhost:6379' asks for its token; put its nodes' token into ~/.ray/auth_token, or "
            "the file's name into RAY_AUTH_TOKEN_PATH, with RAY_AUTH_MODE=token",
        ),
        (
            ("token",),
            "disabled",
            NO_TOKEN,
            "the Ray cluster at 'localhost:6379' asks for its token, and RAY_AUTH_MODE is 'disabled' here; put its "
            "nodes' token into ~/.ray/auth_token, or the file's name into RAY_AUTH_TOKEN_PATH, with "
            "RAY_AUTH_MODE=token",
        ),
        (
            ("disabled", "token"),
            "token",
            "",
            "the Ray cluster at 'localhost:6379' uses no token, but RAY_AUTH_MODE is 'token'; leave that out, or start "
            "the cluster with it",
        ),
        (
            (),
            "token",
            NO_TOKEN,
            "the Ray cluster at 'localhost:6379' asks for its token; put its nodes' token into ~/.ray/auth_token, or "
            "the file's name into RAY_AUTH_TOKEN_PATH, with RAY_AUTH_MODE=token",
        ),
        (
            (),
            None,
            "ConnectionError: Could not find any running Ray instance. Please specify the one to connect to",
            "no Ray cluster runs on this machine; start one (ray start --head on one node, ray start --address "
            "HOST:PORT on the others) or leave out --address",
        ),
        (
            (),
            None,
            "RpcError: Timed out",
            "cannot join the Ray cluster at 'localhost:6379' (RpcError: Timed out); run this on one of its nodes",
        ),
    ],
)
def test_what_cannot_be_joined_is_told_in_a_sentence(clusters, monkeypatch, answers, given, why, text):
    if given is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", given)
    clusters.answers, clusters.why = answers, why
    assert refused() == text
    assert clusters.joined == []


def test_whatever_ray_raises_is_told_in_a_sentence(clusters):
    """Bare exceptions too."""
    clusters.fails = Exception("The current node timed out during startup. This\ncould happen because ...")
    assert refused("local") == (
        "cannot start Ray on this machine (Exception: The current node timed out during startup. This could happen "
        "because ...); run the command again when the machine is less busy, or use local processes (--workers) without "
        "Ray"
    )
    clusters.answers = ("disabled",)
    assert refused().startswith("cannot join the Ray cluster at 'localhost:6379' (Exception: The current node timed")
    assert "RAY_AUTH_MODE" not in os.environ


def test_what_listens_and_is_no_cluster_is_left_in_time(monkeypatch):
    """As --address auto, which finds any."""
    monkeypatch.setattr(ray_connection, "_ANSWER_LIMIT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(InputError) as error:
            ray_connection._check_token(address)
    assert str(error.value).startswith(f"no Ray cluster answers at '{address}' within 0.5 s; start one (ray start ")


@pytest.mark.parametrize(
    ("gpus", "way"),
    [
        (0, "(at most 0 GPUs); leave out --gpus-per-job, or say how many workers (--workers), which waits"),
        (1, "(at most 1 GPU); give fewer gpus_per_job (--gpus-per-job), or say how many workers (--workers), which"),
    ],
)
def test_gpus_that_no_node_has(monkeypatch, gpus, way):
    from mechclust.jobs import ray_pool

    node = {"Alive": True, "Resources": {"CPU": 4.0, "GPU": float(gpus)}}
    monkeypatch.setattr("ray.nodes", lambda: [node, {"Alive": False, "Resources": {"GPU": 8.0}}])
    text = ray_pool._no_room(Ray(gpus_per_job=2))
    assert text.startswith(f"no node of the Ray cluster has 2 GPUs for a job {way}")


def test_what_ray_draws_has_no_colours_where_there_is_no_terminal(monkeypatch):
    from mechclust.jobs import ray_pool

    monkeypatch.setattr(ray_pool.tqdm_ray, "_manager", None)
    for name in ("RAY_COLOR_PREFIX", "RAY_TQDM_PATCH_PRINT"):
        monkeypatch.setenv(name, "")  # so that they are as before afterwards
        monkeypatch.delenv(name)
    ray_pool._without_colours()
    assert ray_pool.tqdm_ray.instance().should_colorize is False
    assert os.environ["RAY_COLOR_PREFIX"] == "0"
    assert print.__module__ == "builtins"


@pytest.mark.cluster
def test_a_cluster_with_a_token(tmp_path):
    """Joined without a word about it where its token is; refused in a sentence, without a line of gRPC's, elsewhere."""
    token = tmp_path / "token"
    token.write_text(uuid.uuid4().hex)
    environment = {name: text for name, text in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    shown = {"RAY_AUTH_TOKEN_PATH": str(token)}
    code = (
        "import sys\n"
        "from tests.mechclust.ray_cluster import Nodes\n"
        "nodes = Nodes()\n"
        "print('at', nodes.address, flush=True)\n"
        "sys.stdin.read()\n"
        "nodes.cluster.shutdown()\n"
    )
    work = (
        "import sys\n"
        "from mechclust.jobs import Ray, map_jobs\n"
        "print(map_jobs(abs, [-1, 2], 1, engine=Ray(sys.argv[1])))\n"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**environment, **shown, "RAY_AUTH_MODE": "token"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        address = next(line.split()[1] for line in started.stdout if line.startswith("at "))
        done, alone = (
            subprocess.run(
                [sys.executable, "-c", work, address],
                env=environment | way,
                capture_output=True,
                text=True,
            )
            for way in ({**shown, "RAY_AUTH_MODE": "token"}, {})
        )
    finally:
        started.communicate()
    assert (done.stdout, done.stderr) == ("[1, 2]\n", "")
    assert alone.returncode == 1
    assert alone.stderr.splitlines()[-1].startswith(f"tasks.errors.InputError: the Ray cluster at '{address}' asks for")
    assert "gcs_client" not in alone.stderr
