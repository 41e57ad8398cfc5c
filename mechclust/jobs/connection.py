"""The connection to a Ray cluster: which it is, whether it asks for a token, and how it ends."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from typing import Any

from tasks import InputError
from tasks.errors import first_line

_START = "start one (ray start --head on one node, ray start --address HOST:PORT on the others) or leave out --address"
_LIMIT = 60.0  # seconds in which a cluster has to say that it is there
_MODE = "RAY_AUTH_MODE"
_LOOK_UP = """
import sys
from ray._private.services import canonicalize_bootstrap_address
from ray._raylet import GcsClient
address = canonicalize_bootstrap_address(sys.argv[1])
GcsClient(address=address).get_all_node_info(timeout=10)
print(address)
"""
_joined: dict[str, str | None] = {}  # "address" that this process was told to join, "mode": RAY_AUTH_MODE before that


def connect(address: str) -> None:
    """Join the cluster, or start one on this machine; a connection that is there already serves.

    A new cluster on this machine uses Ray's token authentication, as Ray does by itself: the token stands in
    ``~/.ray/auth_token`` (Ray writes one where there is none), ``RAY_AUTH_MODE=disabled`` does without. A cluster of
    ``ray start`` is asked first whether it uses one; where it does, that in ``RAY_AUTH_TOKEN_PATH`` or
    ``~/.ray/auth_token`` is shown to it.

    Raises:
        InputError: where no cluster is there, or this process may not or cannot join it.
    """
    import ray

    if ray.is_initialized():
        if _joined.get("address", address) == address:
            return
        leave()
    given = os.environ.get(_MODE)
    if address == "local":
        found, mode = address, given
    else:
        _check_listening(address)
        found, mode = _find(address, given)
    options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    _set_mode(mode)
    try:
        ray.init(address=found, logging_level=logging.ERROR, **options)
    except Exception as error:  # Ray raises bare ones too
        _set_mode(given)
        raise InputError(_refusal(address, error)) from None
    _joined.update(address=address, mode=given)


def leave() -> None:
    """End the connection that we made; with it ends a cluster that we started."""
    import ray

    if _joined.pop("address", None) is not None:
        ray.shutdown()
        _set_mode(_joined.pop("mode", None))


def _refusal(address: str, error: Exception) -> str:
    """Why there is no connection, and the way out."""
    why = first_line(error)
    if address == "local":
        way = "run the command again when the machine is less busy, or use local processes (--workers) without Ray"
        return f"cannot start Ray on this machine ({why}); {way}"
    if "Version mismatch" in str(error):
        return f"the Ray cluster at {address!r} has other versions: {why}"
    return _cannot_join(address, why)


def _cannot_join(address: str, why: str) -> str:
    return f"cannot join the Ray cluster at {address!r} ({why}); run this on one of its nodes"


def _check_listening(address: str) -> None:
    """At once, where Ray itself tries for a minute."""
    host, colon, port = address.rpartition(":")
    if colon:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        except (OSError, UnicodeError) as error:
            raise InputError(f"no Ray cluster answers at {address!r} ({first_line(error)}); {_START}") from None


# Ray neither does this by itself nor bears a wrong guess: without its token a cluster is asked for 20 s, with a line of
# warning each; a process with a token waits for ever on answers of a cluster that has none.
def _find(address: str, given: str | None) -> tuple[str, str | None]:
    """HOST:PORT of the cluster, and what RAY_AUTH_MODE has to be."""
    with_token = given is not None and given.lower() == "token"
    found, why = _ask(address, "disabled")
    if found is not None:
        if with_token:
            way = "leave that out, or start the cluster with it"
            raise InputError(f"the Ray cluster at {address!r} uses no token, but {_MODE} is {given!r}; {way}")
        return found, given
    if "AuthenticationError" in why or "InvalidAuthToken" in why:
        if given is None or with_token:
            found, _ = _ask(address, "token")
        if found is None:
            way = "put its nodes' token into ~/.ray/auth_token, or the file's name into RAY_AUTH_TOKEN_PATH"
            also = "" if given is None or with_token else f", and {_MODE} is {given!r} here"
            raise InputError(f"the Ray cluster at {address!r} asks for its token{also}; {way}, with {_MODE}=token")
        return found, "token"
    if "Could not find any running Ray" in why:
        raise InputError(f"no Ray cluster runs on this machine; {_START}")
    if why.startswith(("AttributeError", "ImportError", "ModuleNotFoundError", "TypeError")):
        return address, given  # a version of Ray that cannot be asked in this way
    raise InputError(_cannot_join(address, why))


def _ask(address: str, mode: str) -> tuple[str | None, str]:
    """The cluster's HOST:PORT, or ``None`` and why not. In a process of its own, which can be stopped and is quiet."""
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _LOOK_UP, address],
            env={**os.environ, _MODE: mode},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"no Ray cluster answers at {address!r} within {_LIMIT:g} s; {_START}") from None
    said = (asked.stdout if asked.returncode == 0 else asked.stderr).strip().splitlines() or [""]
    if asked.returncode == 0:
        return said[-1], ""
    raised = [line for line in said if line.partition(":")[0].endswith(("Error", "Exception"))] or said
    return None, raised[-1].removeprefix("ray.exceptions.")[:300]


def _set_mode(mode: str | None) -> None:
    """For Ray in this process, which sets it by itself where it starts a cluster, and keeps what it has read."""
    if os.environ.get(_MODE) == mode:
        return
    if mode is None:
        del os.environ[_MODE]
    else:
        os.environ[_MODE] = mode
    from ray._raylet import Config  # type: ignore[attr-defined] # its stub lacks it

    Config.initialize("")
