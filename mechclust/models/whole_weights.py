"""Find weights that are damaged or cut off before the first model is measured."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from safetensors import safe_open

from mechclust.models.resolved import ResolvedModel
from tasks import InputError
from tasks.errors import error_line


def check_whole_weights(models: Iterable[ResolvedModel]) -> None:
    """Refuse safetensors files whose length differs from their header. No weights are read.

    Args:
        models: those in memory, on the hub, or in files of other formats are left out.

    Raises:
        InputError: naming the first such file.
    """
    for model in models:
        folders = [] if model.in_memory else model.folders
        for folder in dict.fromkeys(folders):
            for path in sorted(Path(folder).glob("*.safetensors")):
                _check_file(path)


def _check_file(path: Path) -> None:
    try:
        with safe_open(path, framework="pt"):  # compares the header with the file's length
            pass
    except Exception as error:  # of the library: several kinds
        raise InputError(
            f"the weights {str(path)!r} are damaged or cut off ({error_line(error)}); download or save them again"
        ) from error
