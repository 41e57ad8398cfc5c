"""The folder of a command: named by what is measured, and owned by one command, model and data at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import xxhash

from mechclust.jobs.interrupts import telling_what_is_kept
from mechclust.report.folder import check_command, check_subject, record_command
from mechclust.report.manifest import WAY_OUT
from probes.store.files import remove_leftovers
from probes.store.locks import locked
from tasks import InputError

_LONGEST = 40  # characters of a part of a folder's name
_HELD: ContextVar[tuple[ExitStack, set[Path]] | None] = ContextVar("held", default=None)


def default_folder(command: str, *parts: Any) -> Path:
    """Where a command writes if it is not told: ``runs/``, and what is measured.

    Args:
        command: as it is called.
        parts: models, adapters and files, of each its last part; ``None`` is left out.

    Example:
        >>> default_folder("compare", "openai/gpt2", "./tuned", "data/prompts.jsonl").as_posix()
        'runs/compare-gpt2-tuned-prompts'
    """
    return Path("runs") / "-".join([command, *(_short(part) for part in parts if part is not None)])


def _short(part: Any) -> str:
    """A path's last part without its ending, as part of any file's name; names that are cut or changed stay apart."""
    path = Path(part)
    name = (path if path.name else path.absolute()).name
    name = re.sub(r"\.(jsonl?|csv|tsv|parquet|txt|gguf|safetensors)$", "", name) or "x"
    plain = re.sub("[^A-Za-z0-9._+]+", "-", name)[:_LONGEST].strip("-.")
    if plain == name:
        return name
    return f"{plain}-{xxhash.xxh32(name.encode(errors='surrogatepass')).hexdigest()}".removeprefix("-")


@contextmanager
def own_folder(out: str | Path | None, command: str, subject: Mapping[str, str] | None = None) -> Iterator[None]:
    """Own the folder ``out`` for the block, or inside ``until_reported`` to that block's end.

    What killed processes were making in it is removed. What was measured is recorded with the results
    (``save_results``), so that what is refused before changes nothing.

    Args:
        out: the folder; ``None``: none is needed.
        command: as it is called.
        subject: what is to be measured, by kind, such as ``{"model": "gpt2"}``; ``None`` where hidden states in the
            folder tell it better than names do, or where only a report is written.

    Raises:
        InputError: when another process owns the folder, or it holds the report of another command or subject, or
            files that are not of this command.
    """
    if out is None:
        yield
        return
    out = Path(out)
    check_command(out, command)
    with _owned(out):
        remove_leftovers(out, recursive=True)
        check_command(out, command)  # another owner may just have ended
        check_subject(out, subject or {})
        record_command(out, command)
        try:
            yield
        finally:
            if out.is_dir():  # somebody may have removed the folder, and what is in it now is of this command
                with suppress(InputError):
                    record_command(out, command)


@contextmanager
def until_reported() -> Iterator[None]:
    """Folders that are taken inside the block are kept to its end: nobody comes between measurement and report."""
    with ExitStack() as stack:
        token = _HELD.set((stack, set()))
        try:
            yield
        finally:
            _HELD.reset(token)


@contextmanager
def goes_on(out: Path) -> Iterator[None]:
    """Own the folder from measurement to report; an interruption says what it left."""
    with telling_what_is_kept(lambda: _so_far(out)), until_reported():
        yield


def _so_far(out: Path) -> str:
    """What an interruption left."""
    if (out / "adapters").exists():
        return f"; adapters and measurements so far are in {out}; run the same command again to resume"
    if (out / "checkpoints").exists():
        return f"; checkpoints measured so far are in {out / 'checkpoints'}; run the same command again to resume"
    if (out / "rows").exists():
        return f"; hidden states so far are in {out / 'rows'}; run the same command again to resume"
    if (out / "measured").exists():
        return f"; topics and encoders measured so far are in {out}; run the same command again to resume"
    if (out / "shards").exists():
        return f"; what workers measured so far is in {out / 'shards'}; run the same command again to resume"
    if (out / "results").exists():
        return f"; what was measured is in {out / 'results'}"
    return "; nothing was saved yet; the same command starts again from the beginning"


@contextmanager
def _owned(out: Path) -> Iterator[None]:
    held = _HELD.get()
    if held is None:
        with locked(out, way=WAY_OUT):
            yield
        return
    stack, ours = held
    if out.absolute() not in ours:
        stack.enter_context(locked(out, way=WAY_OUT))
        ours.add(out.absolute())
    yield
