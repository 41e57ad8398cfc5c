"""Probes chosen by the user, run on a study's trained models for its report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from mechclust.jobs import imap_jobs, progress_bar
from mechclust.models import load_model
from mechclust.report.probe_trial import try_probes
from probes import HookedModel, RegisteredProbe, find_probe, run
from probes.engine.result import load_result
from probes.store.file_names import file_name
from probes.store.files import write_atomic
from tasks import Batch, InputError, Task

_SHOWN = 4  # models per probe shown in the report, whereas all are in the folder


@dataclass(frozen=True)
class TrainedModel:
    """A trained model of a study, and the examples that probes are run on.

    Attributes:
        name: name of the model, such as ``"private-seed0"``.
        load: returns both, when they are needed.
        examples: returns the examples alone, so that probes can be tried on them before training. ``None`` if they need
            the model.
    """

    name: str
    load: Callable[[], tuple[HookedModel, Iterable[Batch]]]
    examples: Callable[[], Iterable[Batch]] | None = None

    @classmethod
    def from_parts(
        cls, name: str, load_model: Callable[[], HookedModel], examples: Callable[[], Iterable[Batch]]
    ) -> TrainedModel:
        """Return a model whose examples do not need it.

        Args:
            name: name of the model.
            load_model: returns the model alone.
            examples: returns the examples.
        """
        return cls(name, partial(_load_both, load_model, examples), examples)

    @classmethod
    def at_last_step(cls, out: Path, name: str, task: Task, split: str, steps: int) -> TrainedModel:
        """Return the network that ``CheckpointCallback`` kept at the last step of a job, with a split of its task.

        Args:
            out: folder of the study.
            name: name of the job.
            task: the task that the network was trained on.
            split: split of the task.
            steps: number of training steps.
        """
        path = out / "models" / name / f"step-{steps:06d}.safetensors"
        return cls.from_parts(name, partial(load_model, path), partial(task.batches, split))


def _load_both(
    load_model: Callable[[], HookedModel], examples: Callable[[], Iterable[Batch]]
) -> tuple[HookedModel, Iterable[Batch]]:
    return load_model(), examples()


def chosen_probes(names: Sequence[str]) -> list[RegisteredProbe]:
    """Return the probes with these names, each checked to work without arguments.

    Raises:
        InputError: as ``probes.get_probe``.
    """
    probes = [find_probe(name) for name in dict.fromkeys(names)]
    for probe in probes:
        probe.new()
    return probes


def try_further(trained_models: Iterable[TrainedModel], probes: Sequence[RegisteredProbe]) -> None:
    """Refuse probes that fit none of the examples that are known before anything is trained.

    Args:
        trained_models: the study's. Those whose examples need the model are not tried, so that a probe must fit others.
        probes: the probes to run.

    Raises:
        InputError: naming the probe, with the reason of the first model.
    """
    tried = [trained.examples for trained in trained_models if trained.examples is not None]
    for probe in probes:
        errors = []
        for examples in tried:
            try:
                try_probes({probe.name: probe.new()}, examples(), "examples", kind="--probes")
                break
            except InputError as error:
                errors.append(error)
        if errors and len(errors) == len(tried):
            raise errors[0]


def measure_further(
    trained_models: Callable[[Any, Path], Iterable[TrainedModel]],
    config: Any,
    out: Path,
    probes: Sequence[RegisteredProbe],
    **on: Any,
) -> None:
    """Run probes on trained models and keep the results in ``out/results/probes``.

    They are measured again each time, since a probe under development may change without a new version. A probe that
    cannot measure a model stops neither the others nor the study. The reason is kept with the results.

    Args:
        trained_models: the study's, see ``Study``.
        config: the study's settings.
        out: the run's folder.
        probes: the probes to run.
        on: ``workers``, ``engine`` and ``timeout``, see ``map_jobs``.
    """
    names = [trained.name for trained in trained_models(config, out)] if probes else []
    if not names:
        return
    measure = partial(_measure, trained_models, config, out, probes)
    outcomes = imap_jobs(measure, range(len(names)), folder=out, name=names.__getitem__, **on)
    bar = progress_bar(desc="further probes", unit="model", total=len(names))
    with closing(outcomes), closing(bar):
        for outcome in outcomes:
            if outcome.error is not None:
                for probe in probes:
                    _note_loss(out, probe, names[outcome.position], outcome.error)
            bar.update()


def _measure(
    trained_models: Callable[[Any, Path], Iterable[TrainedModel]],
    config: Any,
    out: Path,
    probes: Sequence[RegisteredProbe],
    position: int,
) -> None:
    """Run all probes on the model with this index, in a worker."""
    trained = list(trained_models(config, out))[position]
    model, batches = trained.load()
    batches = list(batches)
    for probe in probes:
        path = _result_path(out, probe, trained.name)
        try:
            result = run(model, batches, probe.new())
            replace(result, metadata={**result.metadata, "package": probe.package}).save(path)
            path.with_suffix(".txt").unlink(missing_ok=True)
        except Exception as error:  # third-party code, or a label that these examples do not have
            _note_failure(out, probe, trained.name, error)


def _result_path(out: Path, probe: RegisteredProbe, model: str) -> Path:
    return out / "results" / "probes" / file_name(probe.name) / f"{file_name(model)}.safetensors"


def _note_failure(out: Path, probe: RegisteredProbe, model: str, error: Exception) -> None:
    path = _result_path(out, probe, model)
    path.unlink(missing_ok=True)
    _write_note(path, f"{probe.name} could not measure {model}", error)


def _note_loss(out: Path, probe: RegisteredProbe, model: str, error: Exception) -> None:
    """Note that a process was lost or took too long. An existing result is complete and is kept."""
    path = _result_path(out, probe, model)
    what = "may hold an earlier measurement of" if path.exists() else "could not measure"
    _write_note(path, f"{probe.name} {what} {model}", error)


def _write_note(path: Path, what: str, error: Exception) -> None:
    why = " ".join(str(error).split()) or type(error).__name__
    write_atomic(path.with_suffix(".txt"), f"{what}: {why}\n".encode())


def further_notes(out: Path) -> list[str]:
    """Return the reason for each measurement that failed."""
    return [path.read_text(encoding="utf-8").strip() for path in sorted((out / "results" / "probes").glob("*/*.txt"))]


def further_views(out: Path) -> Mapping[str, str]:
    """Return the results of ``measure_further``, as HTML by heading."""
    views = {}
    for folder in sorted((out / "results" / "probes").glob("*/")):
        files = sorted(folder.glob("*.safetensors"))
        parts = [f"<h3>{escape(unquote(path.stem))}</h3>{_shown(path)}" for path in files[:_SHOWN]]
        if len(files) > _SHOWN:
            parts.append(f"<p>and {len(files) - _SHOWN} more models in {escape(str(folder.relative_to(out)))}</p>")
        if parts:
            views[f"Probe: {unquote(folder.name)}"] = "".join(parts)
    return views


def _shown(path: Path) -> str:
    try:
        return load_result(path)._repr_html_()
    except InputError as error:  # a damaged file must not hide the others
        return f"<p>{escape(str(error))}</p>"
