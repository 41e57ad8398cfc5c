"""The command line: the asked command is imported, parsed and run, and its errors are told."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from importlib import import_module
from typing import Any

import tyro

from mechclust.cli_settings import SETTINGS, nearest_options, verifying
from mechclust.command_table import ABOUT, COMMANDS, READERS, UNVERIFIED
from mechclust.jobs import close_bars, one_interrupt
from tasks import InputError
from tasks.errors import suggest
from tasks.text.visible import quoted, short, visible

_LONGEST = 2000  # characters of an error
_HELP: dict[str, Any] = {
    "config": (tyro.conf.PositionalMetavarFromFieldName, tyro.conf.DisallowNone),
    "registry": SETTINGS,
}
_DESCRIPTION = f"{ABOUT}\n\n{', '.join(READERS)} also take {UNVERIFIED}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; bad input gives one sentence on standard error and exit code 2."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # where it cannot write a character, it writes its number
        sys.stdout.reconfigure(errors="backslashreplace")
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
        return _refused(InputError(f"no command {argv[0]!r}{suggest(argv[0], COMMANDS)}"))
    app = _app(argv)  # outside of what follows: Ctrl-C while packages are imported is not of the command
    try:
        with one_interrupt(), verifying(argv, READERS) as argv:
            return _run(app, argv)
    except InputError as error:
        return _refused(error)
    except SystemExit as end:
        if end.code == 2:  # tyro has said what it did not understand
            _tell_nearest(app, argv)
        raise
    except KeyboardInterrupt as stop:
        close_bars()
        print(f"\nmechclust: interrupted{visible(str(stop.args[0])) if stop.args else ''}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # a name that no file can have, a file that is not ours to read
        if error.filename is None:
            raise  # a defect of ours
        close_bars()
        what = quoted(error.filename, _LONGEST)
        print(f"mechclust: cannot use {what} ({visible(error.strerror or str(error))}); give another", file=sys.stderr)
        return 2


def _refused(error: InputError) -> int:
    """Print an error's sentence, and return the exit code of bad input.

    The sentence is harmless to a terminal. Of a long one, in which names are long, the beginning and the way out stand.
    """
    close_bars()
    print(f"mechclust: {short(str(error), _LONGEST)}", file=sys.stderr)
    return 2


def _app(argv: Sequence[str]) -> tyro.extras.SubcommandApp:
    """Import the asked command, or all commands if none is asked, and make a parser of them."""
    app = tyro.extras.SubcommandApp()
    completing = bool(argv) and "completion" in argv[0]  # --tyro-write-completion
    for name in argv[:1] if argv and argv[0] in COMMANDS else COMMANDS:
        module = import_module(f"mechclust.cli_commands.{name}")
        every_option = completing and hasattr(module, "for_completion")
        app.command(name=name, help=COMMANDS[name])(module.for_completion() if every_option else module.command)
    if _is_suite(argv):
        import mechclust.cli_commands.topics_suite  # noqa: F401
    return app


def _run(app: tyro.extras.SubcommandApp, argv: list[str]) -> int:
    """Run a command; three of them read their arguments themselves."""
    if argv[:1] == ["run"] and len(argv) > 1 and not argv[1].startswith("-"):
        from mechclust.cli_commands.run import run_study_command

        run_study_command(argv[1], argv[2:])
    elif argv[:1] == ["mossa"]:
        from mechclust.cli_commands.mossa import mossa_command

        mossa_command(argv[1:])
    elif _is_suite(argv):
        from mechclust.cli_commands.topics_suite import suite_command

        suite_command(argv[1:])
    else:
        return int(app.cli(prog="mechclust", args=argv or ["--help"], description=_DESCRIPTION, **_HELP) or 0)
    return 0


def _is_suite(argv: Sequence[str]) -> bool:
    """Whether a command line is ``mechclust topics --suite``."""
    return argv[:1] == ["topics"] and any(word.partition("=")[0] == "--suite" for word in argv)


def _tell_nearest(app: tyro.extras.SubcommandApp, argv: Sequence[str]) -> None:
    """For options that a command does not have, those it may have been meant to be: ``--nperm``."""
    told = io.StringIO()
    with suppress(SystemExit), redirect_stdout(told):
        _run(app, [argv[0], "--suite", "--help"] if _is_suite(argv) else [argv[0], "--help"])
    for word, option in nearest_options(argv[1:], told.getvalue()).items():
        print(f"mechclust: no option {quoted(word)}; did you mean {option!r}?", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
