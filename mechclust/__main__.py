"""The command ``mechclust`` until its packages are needed: help in a moment, and Ctrl-C without a traceback."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence

from mechclust.command_table import ABOUT, COMMANDS

_WIDTH = 110


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, as ``mechclust.cli.main`` does. Print the list of commands without it."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given in ([], ["-h"], ["--help"]):
        print(_help())
        return 0
    if given == ["--version"]:
        from importlib.metadata import version

        print(f"mechclust {version('mechclust')}")
        return 0
    try:
        from mechclust.cli import main as run

        return run(given)
    except KeyboardInterrupt:  # while packages are imported, before any file is kept
        print("\nmechclust: interrupted; nothing had started", file=sys.stderr)
        return 130


def _help() -> str:
    lines = ["usage: mechclust [-h] [--version] COMMAND ...", "", ABOUT, "", "commands:"]
    for name, text in COMMANDS.items():
        about = text.partition("\n\n")[0].replace("`", "")
        first, *rest = textwrap.wrap(about, _WIDTH - 14)
        lines += [f"  {name:<11} {first}", *(f"{'':<14}{line}" for line in rest)]
    return "\n".join([*lines, "", "mechclust COMMAND --help lists a command's options."])


if __name__ == "__main__":
    sys.exit(main())
