"""The command ``mechclust`` until its packages are needed: help in a moment, and Ctrl-C without a traceback.

It stands outside the package ``mechclust``, whose import takes seconds: with it come torch and TransformerLens. What
help says is read from the source of ``mechclust/cli.py``, not imported.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

_ABOUT = "Where inside a transformer does structure live, and when in training does it appear?"
_VERIFY = "All but list and check also take --no-verify: do not verify the checksums of the files that are read."
_WIDTH = 110


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, as ``mechclust.cli.main`` does; help on all of them without it."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        if given in ([], ["-h"], ["--help"]):
            print(_help())
            return 0
        if given == ["--version"]:
            from importlib.metadata import version

            print(f"mechclust {version('mechclust')}")
            return 0
        from mechclust.cli import main as run

        return run(given)
    except KeyboardInterrupt:  # while packages are imported; later it says what is kept
        print("\nmechclust: interrupted; nothing had started", file=sys.stderr)
        return 130


def _help() -> str:
    lines = ["usage: mechclust [-h] [--version] COMMAND ...", "", _ABOUT, "", "commands:"]
    for name, about in _commands():
        first, *rest = textwrap.wrap(about, _WIDTH - 14)
        lines += [f"  {name:<11} {first}", *(f"{'':<14}{line}" for line in rest)]
    return "\n".join([*lines, "", "mechclust COMMAND --help lists a command's options.", _VERIFY])


def _commands() -> Iterator[tuple[str, str]]:
    """Names and first lines of what ``@app.command(name=...)`` stands before."""
    spec = find_spec("mechclust")  # without importing it
    assert spec is not None
    assert spec.submodule_search_locations is not None
    source = Path(spec.submodule_search_locations[0]) / "cli.py"
    for part in ast.parse(source.read_text(encoding="utf-8")).body:
        if not isinstance(part, ast.FunctionDef):
            continue
        for call in part.decorator_list:
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "app.command":
                name = next(ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg == "name")
                yield name, (ast.get_docstring(part) or "").split("\n\n")[0].replace("\n", " ").replace("`", "")


if __name__ == "__main__":
    sys.exit(main())
