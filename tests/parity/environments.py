"""Build the wheels of the base commit and of the present code, and install each in an environment of its own."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
HOME = REPOSITORY / ".parity"
BUILT_FROM = ("mechclust", "probes", "tasks", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")


def prepare(sides: Sequence[str]) -> dict[str, Path]:
    """Return the Python of each side, with its wheel installed."""
    export = {"old": _export_base, "new": _export_present}
    pythons = {}
    for side in sides:
        source = _empty(HOME / side / "source")
        export[side](source)
        pythons[side] = _install(HOME / side, _wheel(source))
    return pythons


def key_of_base() -> str:
    """Return a digest of what the old side's observations depend on: base, calls, inputs and dependencies."""
    digest = hashlib.sha256(sys.version.encode())
    for path in sorted(HERE.iterdir()):
        if path.is_file() and path.name not in ("compare.py", "differences.toml", "__main__.py"):
            digest.update(path.read_bytes())
    installed = sorted(f"{each.name} {each.version}" for each in metadata.distributions())
    digest.update("\n".join(installed).encode())
    return digest.hexdigest()


def witness() -> Path:
    """Copy this package to where it can be imported without the repository's own packages."""
    folder = _empty(HOME / "witness")
    shutil.copytree(HERE, folder / "tests" / "parity", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests" / "__init__.py").touch()  # before any package of that name among the dependencies
    return folder


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _export_base(folder: Path) -> None:
    """Write the files of the base commit."""
    base = (HERE / "base.txt").read_text().strip()
    archive = subprocess.run(["git", "archive", base], cwd=REPOSITORY, stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["tar", "--extract", "--directory", str(folder)], input=archive, check=True)


def _export_present(folder: Path) -> None:
    """Copy what a wheel is built from: tracked files, and new ones that git does not ignore."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *BUILT_FROM]
    names = subprocess.run(listing, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in names:
        if (REPOSITORY / name).is_file():  # not one that was deleted but is still tracked
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, folder / name)


def _wheel(source: Path) -> Path:
    """Build the wheel of a source folder, with the build tools of this environment."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist", "."]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    if built.returncode:
        sys.exit(f"no wheel could be built from {source}:\n{built.stdout}{built.stderr}")
    return next((source / "dist").glob("*.whl"))


def _install(folder: Path, wheel: Path) -> Path:
    """Make an environment that has this wheel of its own, and sees the dependencies of the present environment.

    A line in a .pth file adds the present site-packages to the path without reading the .pth files in them, so an
    editable installation there is not seen.
    """
    environment = folder / "environment"
    shutil.rmtree(environment, ignore_errors=True)
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    packages = next((environment / "lib").glob("python*")) / "site-packages"
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", str(wheel)]
    subprocess.run([*pip, "--ignore-installed"], check=True)
    return python


def environment_of(work: Path, witness_folder: Path) -> dict[str, str]:
    """Return the environment variables of a side: offline, one thread, no settings of the user."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MECHCLUST", "HF_", "RAY_"))}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)  # workers would compile everything again
    return kept | {
        "PYTHONPATH": str(witness_folder),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(work / "huggingface"),
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "100",
        "MPLBACKEND": "agg",
        "PYTHONHASHSEED": "0",
    }
