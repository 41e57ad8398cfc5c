"""Rows of a parquet file, some at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tasks.errors import InputError
from tasks.text.json_lines import Records


def parquet_rows(
    path: Path, needed: Sequence[str], optional: Sequence[str] | None = (), *, extra: str, at_once: int = 65536
) -> Records:
    """Yield the rows of a file.

    If a column of ``needed`` is missing, rows have all columns, so that the caller can name them in its message.

    Args:
        path: path of the file.
        needed: columns that are read.
        optional: columns that are read if they exist. ``None``: all columns.
        extra: our extra that installs pyarrow, for the message.
        at_once: rows in memory.

    Raises:
        InputError: for a file that is missing or cannot be read as parquet, and if pyarrow is not installed.
    """
    try:
        import pyarrow as arrow  # type: ignore[import-untyped]
        import pyarrow.parquet as parquet  # type: ignore[import-untyped]
    except ImportError:
        raise InputError(
            f"reading {str(path)!r} needs pyarrow; install it with: pip install 'mechclust[{extra}]'"
        ) from None
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            known = [name for name in names if optional is None or name in (*needed, *optional)]
            number = 0
            for batch in file.iter_batches(at_once, columns=known if set(needed) <= set(names) else names):
                for record in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", record
    except FileNotFoundError:
        raise InputError(f"no file {str(path)!r}; give the path of a parquet file") from None
    except (arrow.ArrowException, OSError) as error:
        reason = str(error).split("\n")[0][:200]
        raise InputError(f"{str(path)!r} cannot be read as parquet ({reason}); write it again") from None
