"""Measurements that are kept beside what they are made of, so that an interruption costs one of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from mechclust.commands.settings import EngineSettings
from mechclust.jobs import map_jobs, progress_bar
from probes import ProbeResult, load_result
from probes.store.digest import digest_of
from probes.store.files import versions
from tasks import InputError

_SHARD_ROWS, _SHARDS = 128, 64  # of which an interruption costs two: prompts at least, and how many at most


@dataclass(frozen=True)
class MeasurementPart:
    """One measurement, which another process may make.

    Attributes:
        path: where its result is kept; its name must tell it from those with any other setting or data.
        name: in errors and progress.
        measure: gives the result.
    """

    path: Path
    name: str
    measure: Callable[[], ProbeResult]

    def kept(self) -> ProbeResult | None:
        """The result, where it is there and undamaged.

        Raises:
            InputError: where a folder stands in its place, which nothing can be written over.
        """
        if self.path.is_dir():
            raise InputError(
                f"{str(self.path)!r} is a folder where a measurement is kept; remove it, or give another folder with "
                "--out"
            )
        if self.path.exists():
            with suppress(InputError):  # a damaged one is measured again
                return load_result(self.path)
        return None

    def found(self) -> ProbeResult:
        """The result: read where it is kept, measured otherwise."""
        if (kept := self.kept()) is not None:
            return kept
        result = self.measure()
        with suppress(InputError):  # what cannot be kept would only be measured again
            result.save(self.path)
        return result


def measured(
    groups: Mapping[str, Sequence[MeasurementPart]], settings: EngineSettings, folder: Path, *, progress: bool = False
) -> dict[str, list[ProbeResult]]:
    """The results of parts, by group: in this process one after the other, or as jobs of the engine.

    Args:
        groups: parts under the name of what they belong to, for progress bars.
        settings: which engine.
        folder: that all processes see.
        progress: show progress bars.
    """
    if not settings.here:
        return _by_workers(groups, settings, folder, ", ".join(groups) if progress else None)
    found = {}
    for name, parts in groups.items():
        shown = progress_bar(parts, desc=name, unit="part") if progress else parts
        found[name] = [part.found() for part in shown]
    return found


def _by_workers(
    groups: Mapping[str, Sequence[MeasurementPart]], settings: EngineSettings, folder: Path, told: str | None
) -> dict[str, list[ProbeResult]]:
    """The workers send their results: over NFS a file that was not there when it was looked for is seen much later."""
    parts = {(name, i): part for name, group in groups.items() for i, part in enumerate(group)}
    found = {key: result for key, part in parts.items() if (result := part.kept()) is not None}
    lacking = {key: part for key, part in parts.items() if key not in found}
    made = map_jobs(MeasurementPart.found, [*lacking.values()], **settings.on, folder=folder, progress=told)
    found |= zip(lacking, made, strict=True)
    return {name: [found[name, i] for i in range(len(group))] for name, group in groups.items()}


def part_path(folder: Path, name: str, settings: Sequence[Any], arrays: Iterable[Tensor]) -> Path:
    """Where a part is kept: under its name and the digest of all that its numbers depend on."""
    digest = digest_of([json.dumps([name, *settings, versions()]), *arrays])
    return folder / f"{name}-{digest}.safetensors"


def shard_rows(n: int, *, shared: bool = False) -> int:
    """Prompts of a shard; fewer where each worker writes its own."""
    return max(_SHARD_ROWS // 4 if shared else _SHARD_ROWS, n // _SHARDS)


def remove_others(folder: Path, used: Collection[Path]) -> None:
    """Remove what is kept in a folder of measurements with other settings or labels."""
    for path in folder.glob("*.safetensors"):
        if path not in used:
            path.unlink(missing_ok=True)
