"""Whether an optional library is installed."""

from __future__ import annotations

from importlib.util import find_spec

from tasks import InputError


def check_installed(package: str, work: str, extra: str) -> None:
    """Refuse work that needs a missing library.

    Args:
        package: its name.
        work: what needs it, for the error.
        extra: our extra that installs it.

    Raises:
        InputError: with the command that installs it.
    """
    if find_spec(package) is None:
        raise InputError(f"{work} needs {package}; install it with: pip install 'mechclust[{extra}]'")
