"""The connection to a Ray cluster: how it is joined or started, and how it ends."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from typing import Any

from tasks import InputError
from tasks.errors import error_line

_START = "start one (ray start --head on one node, ray start --address HOST:PORT on the others) or leave out --address"
_ANSWER_LIMIT_S = 60.0  # within which a cluster has to say that it is there
_MODE = "RAY_AUTH_MODE"
_RAY_COMMAND = """
from importlib.metadata import entry_points
(ray,) = entry_points(group="console_scripts", name="ray")
ray.load()()
"""
_joined: set[str] = set()  # the address that this process was told to join


def connect_to_ray(address: str) -> None:
    """Join the cluster, or start one on this machine. An existing connection is used again.

    A new cluster on this machine uses Ray's token authentication, as is Ray's default. The token is in
    ``~/.ray/auth_token``, which Ray writes if there is none. ``RAY_AUTH_MODE=disabled`` turns it off. To join a cluster
    that uses a token, set ``RAY_AUTH_MODE=token`` before this process starts, as for ``ray start``.

    Raises:
        InputError: if no cluster is there, or this process may not or cannot join it.
    """
    import ray

    if ray.is_initialized():
        if not _joined or address in _joined:
            return
        leave_ray()
    options: dict[str, Any] = {}
    if address == "local":
        options["include_dashboard"] = False
    else:
        _check_listening(address)
        _check_token(address)
    try:
        ray.init(address=address, logging_level=logging.ERROR, **options)
    except Exception as error:  # Ray raises bare ones too
        raise InputError(_refusal(address, error_line(error))) from None
    _joined.add(address)


def leave_ray() -> None:
    """End the connection that we made. A cluster that we started ends with it."""
    import ray

    if _joined:
        _joined.clear()
        ray.shutdown()


def _refusal(address: str, why: str) -> str:
    """Return why there is no connection, and the way out."""
    if address == "local":
        way = "run the command again when the machine is less busy, or use local processes (--workers) without Ray"
        return f"cannot start Ray on this machine ({why}); {way}"
    if "Could not find any running Ray" in why:
        return f"no Ray cluster runs on this machine; {_START}"
    if "Version mismatch" in why:
        return f"the Ray cluster at {address!r} has other versions: {why}"
    return f"cannot join the Ray cluster at {address!r} ({why}); run this on one of its nodes"


def _check_listening(address: str) -> None:
    """Refuse an address at which no process listens, at once: Ray itself tries for a minute."""
    host, colon, port = address.rpartition(":")
    if colon:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        except (OSError, UnicodeError) as error:
            raise InputError(f"no Ray cluster answers at {address!r} ({error_line(error)}); {_START}") from None


# Ray handles neither mismatch: without the cluster's token it tries for 20 s, with a warning each second. With a token
# that the cluster does not use, jobs never begin.
def _check_token(address: str) -> None:
    """Refuse a cluster that does not answer, and one that uses a token if this process does not, or the reverse."""
    mode = os.environ.get(_MODE)
    with_token = mode is not None and mode.lower() == "token"
    failure = _ask(address, "disabled")
    if failure is None and with_token:
        way = "leave that out, or start the cluster with it"
        raise InputError(f"the Ray cluster at {address!r} uses no token, but {_MODE} is {mode!r}; {way}")
    if failure is not None and _is_about_token(failure) and with_token:
        failure = _ask(address, "token")
    if failure is None:
        return
    if _is_about_token(failure):
        way = "put its nodes' token into ~/.ray/auth_token, or the file's name into RAY_AUTH_TOKEN_PATH"
        also = "" if mode is None or with_token else f", and {_MODE} is {mode!r} here"
        raise InputError(f"the Ray cluster at {address!r} asks for its token{also}; {way}, with {_MODE}=token")
    raise InputError(_refusal(address, failure))


def _is_about_token(failure: str) -> bool:
    return "AuthenticationError" in failure or "InvalidAuthToken" in failure


def _ask(address: str, mode: str) -> str | None:
    """Return why ``ray status`` fails with this ``RAY_AUTH_MODE``, or ``None`` if the cluster answers."""
    try:
        status = subprocess.run(
            [sys.executable, "-c", _RAY_COMMAND, "status", "--address", address],
            env={**os.environ, _MODE: mode},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"no Ray cluster answers at {address!r} within {_ANSWER_LIMIT_S:g} s; {_START}") from None
    if status.returncode == 0:
        return None
    lines = (status.stdout + status.stderr).strip().splitlines() or ["ray status says nothing"]
    errors = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception"))]
    return (errors or lines)[-1].removeprefix("ray.exceptions.")[:300]
