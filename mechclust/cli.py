"""Import, parse and run the command that a command line names, and print its errors."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import tyro

from mechclust.cli_settings import SETTINGS
from mechclust.command_table import ABOUT, COMMANDS
from mechclust.jobs import close_progress_bars, one_interrupt
from tasks import InputError
from tasks.errors import error_suggestion
from tasks.text.visible import quoted, shortened, visible_text

_MAX_ERROR = 2000  # characters
_HELP: dict[str, Any] = {
    "config": (tyro.conf.PositionalMetavarFromFieldName, tyro.conf.DisallowNone),
    "registry": SETTINGS,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit code: 2 for bad input, after one sentence on standard error."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for characters that it cannot write
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
        return _bad_input(f"no command {argv[0]!r}{error_suggestion(argv[0], COMMANDS)}")
    parser = _parser(argv)  # before one_interrupt, because Ctrl-C during imports does not interrupt a command
    try:
        with one_interrupt():
            return _run(parser, argv)
    except InputError as error:
        return _bad_input(str(error))
    except KeyboardInterrupt as interrupt:
        return _interrupted(interrupt)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # such as an impossible file name, or a file without permission
        if error.filename is None:
            raise  # a defect of ours
        reason = visible_text(error.strerror or str(error))
        return _bad_input(f"cannot use {quoted(error.filename, _MAX_ERROR)} ({reason}); give another")


def _bad_input(sentence: str) -> int:
    """Print an error without control characters, cut in the middle if it is long, and return its exit code."""
    close_progress_bars()
    print(f"mechclust: {shortened(sentence, _MAX_ERROR)}", file=sys.stderr)
    return 2


def _interrupted(interrupt: KeyboardInterrupt) -> int:
    close_progress_bars()
    hint = visible_text(str(interrupt.args[0])) if interrupt.args else ""
    print(f"\nmechclust: interrupted{hint}", file=sys.stderr)
    return 130


def _parser(argv: Sequence[str]) -> tyro.extras.SubcommandApp:
    """Import the named command, or all commands if there is none, and return a parser."""
    parser = tyro.extras.SubcommandApp()
    for name in argv[:1] if argv and argv[0] in COMMANDS else COMMANDS:
        module = import_module(f"mechclust.cli_commands.{name}")
        parser.command(name=name, help=COMMANDS[name])(module.command)
    return parser


def _run(parser: tyro.extras.SubcommandApp, argv: list[str]) -> int:
    """Run a command and return its exit code. Two commands parse their arguments themselves."""
    if argv[:1] == ["run"] and len(argv) > 1 and not argv[1].startswith("-"):
        from mechclust.cli_commands.run import run_study_command

        run_study_command(argv[1], argv[2:])
    elif argv[:1] == ["mossa"]:
        from mechclust.cli_commands.mossa import mossa_command

        mossa_command(argv[1:])
    else:
        return int(parser.cli(prog="mechclust", args=argv or ["--help"], description=ABOUT, **_HELP) or 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
