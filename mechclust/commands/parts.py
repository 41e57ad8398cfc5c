"""Keep measurements in parts beside their sources, so that an interruption costs one part."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from jaxtyping import Shaped
from torch import Tensor

from mechclust.commands.settings import EngineSettings
from mechclust.jobs import map_jobs, progress_bar
from probes import Probe, ProbeResult, RowStore, load_result, run_stores
from probes.store.digest import digest_of
from probes.store.versions import package_versions
from tasks import InputError

RunOnStores = Callable[[Mapping[str, RowStore], Probe], ProbeResult]
_Key = TypeVar("_Key", bound=Hashable)
# An interruption costs two shards.
MIN_SHARD_ROWS = 128
MAX_SHARDS = 64


@dataclass(frozen=True)
class MeasurementPart:
    """One measurement, which another process may make.

    Attributes:
        path: file of its result, whose name differs for any other setting or data.
        name: name in errors and progress.
        measure: returns the result.
    """

    path: Path
    name: str
    measure: Callable[[], ProbeResult]

    def kept(self) -> ProbeResult | None:
        """Return the result if it is there and undamaged, else ``None``."""
        if self.path.exists():
            with suppress(InputError):  # a damaged one is measured again
                return load_result(self.path)
        return None

    def found(self) -> ProbeResult:
        """Return the result: read if it is kept, measured otherwise."""
        kept = self.kept()
        if kept is not None:
            return kept
        result = self.measure()
        with suppress(InputError):  # a result that cannot be kept would only be measured again
            result.save(self.path)
        return result


def measure_parts(
    parts: Sequence[MeasurementPart], settings: EngineSettings, folder: Path, title: str | None
) -> list[ProbeResult]:
    """Return the results of parts, measured in this process one after the other, or as jobs of the engine.

    Args:
        parts: the parts.
        settings: where jobs run.
        folder: a folder that all processes see.
        title: title of the progress bar, or ``None`` for no bar.
    """
    if settings.here:
        return [part.found() for part in progress_bar(parts, desc=title, unit="part", disable=title is None)]
    # Workers send their results: over NFS a new file can stay unseen for long.
    kept = [part.kept() for part in parts]
    lacking = [part for part, result in zip(parts, kept, strict=True) if result is None]
    measured_now = iter(map_jobs(MeasurementPart.found, lacking, **settings.on, folder=folder, progress=title))
    return [next(measured_now) if result is None else result for result in kept]


def part_path(folder: Path, name: str, settings: Sequence[Any], arrays: Iterable[Shaped[Tensor, "..."]]) -> Path:
    """Return the file of a part: its name and the digest of all that its numbers depend on."""
    digest = digest_of([json.dumps([name, *settings, package_versions()]), *arrays])
    return folder / f"{name}-{digest}.safetensors"


def _run(stores: Mapping[str, RowStore], probe: Probe) -> ProbeResult:
    """Run a probe on the hidden states of models. The result's sites do not need the name of a single one."""
    if len(stores) > 1:
        return run_stores(stores, probe)
    (store,) = stores.values()
    return run_stores(store, probe)


def _measure(run: RunOnStores, stores: Mapping[str, RowStore], probe: Probe) -> ProbeResult:
    """Run a probe and free its state, since parts live until the last one is measured."""
    result = run(stores, probe)
    probe.reset()
    return result


def probe_part(
    folder: Path,
    name: str,
    probe: Probe,
    stores: Mapping[str, RowStore],
    *,
    subject: str = "",
    settings: Sequence[Any] = (),
    arrays: Iterable[Shaped[Tensor, "..."]] = (),
    run: RunOnStores = _run,
) -> MeasurementPart:
    """Return the part that runs a probe on hidden states.

    Its file is named by all that its numbers depend on.

    Args:
        folder: folder of parts.
        name: name of the measure.
        probe: the probe.
        stores: hidden states of each model.
        subject: what is measured, in errors.
        settings: further settings that the numbers depend on.
        arrays: further arrays that they depend on.
        run: runs the probe.
    """
    models = {model: [store.model, repr(store.dtype)] for model, store in stores.items()}
    prompts = chain.from_iterable((store.index, store.tokens) for store in stores.values())
    path = part_path(folder, name, [subject, repr(probe), models, *settings], [*prompts, *arrays])
    return MeasurementPart(
        path, f"{name} of {subject}" if subject else name, partial(_measure, run, dict(stores), probe)
    )


def merged_results(
    groups: Mapping[_Key, Sequence[MeasurementPart]],
    settings: EngineSettings,
    folder: Path,
    title: str,
    *,
    metadata: Mapping[str, Any],
    notes: bool = False,
    progress: bool = False,
) -> dict[_Key, ProbeResult]:
    """Measure all parts and merge each group's.

    Args:
        groups: parts of one result.
        settings: where jobs run.
        folder: a folder that all processes see.
        title: title of the progress bar.
        metadata: added to each result's metadata.
        notes: keep the notes of all parts.
        progress: show a progress bar.
    """
    parts_of_all = [*chain.from_iterable(groups.values())]
    results = iter(measure_parts(parts_of_all, settings, folder, title if progress else None))
    merged = {}
    for key, parts in groups.items():
        result = reduce(ProbeResult.merge, [next(results) for _ in parts])
        kept_notes = result.notes if notes else []
        merged[key] = replace(result, metadata={**result.metadata, **metadata}, notes=kept_notes)
    return merged


def shard_rows(n: int, *, shared: bool = False) -> int:
    """Return the prompts of a shard, fewer if each worker writes its shard itself."""
    return max(MIN_SHARD_ROWS // 4 if shared else MIN_SHARD_ROWS, n // MAX_SHARDS)


def remove_others(folder: Path, used: Collection[Path]) -> None:
    """Remove measurements with other settings or labels from a folder."""
    for path in folder.glob("*.safetensors"):
        if path not in used:
            path.unlink(missing_ok=True)
