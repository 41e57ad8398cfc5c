"""Describe the models of a MOSSA run, and keep one base in memory that becomes each of them in turn."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, TypeVar

from mechclust.commands.mossa.config import MossaConfig
from mechclust.jobs import map_jobs
from mechclust.models.adapters import digest_of_adapter, set_adapter
from mechclust.models.instruction_format import FormattedExample, InstructionFormat
from mechclust.models.plain_model import plain_model
from mechclust.models.resolved import ResolvedModel, resolve_model, resolved_model_path
from mechclust.training.tuning import TuneConfig
from probes.engine.fingerprint import fingerprint
from probes.store.file_names import file_name
from tasks._random import generator
from tasks.text.instructions import Example, InstructionTask, TaskCollection

BASE = "base"
TUNED = "tuned"
UNSEEN = "without-held-out"
CONTROL = "control"
AGAIN = "again"
_Job = TypeVar("_Job")
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Model:
    """One model of a run.

    Attributes:
        kind: ``base``, ``tuned`` on all tasks, tuned ``without-held-out`` tasks, ``control`` of a task, or a control
            trained ``again`` with another seed.
        task: task of a control.
        given: a checkpoint or an adapter that was given, or ``None`` if the model is trained here.
    """

    kind: str
    task: str = ""
    given: ResolvedModel | None = None

    @property
    def name(self) -> str:
        """Name in errors, and of its folder."""
        return self.kind if not self.task else f"{self.kind}-{file_name(self.task)}"

    def folder(self, out: Path) -> Path:
        """Return the folder of an adapter that is trained here."""
        return out / "adapters" / self.name

    def resolved(self, out: Path) -> ResolvedModel:
        """Return the model that was given, or the adapter that is trained here."""
        return self.given or ResolvedModel(str(self.folder(out)), is_adapter=True)


class ResidentBase:
    """One base in memory, its tokenizer and the tasks, for the jobs of a worker.

    Args:
        base: hub name or folder.
        config: settings of the run.
        out: folder of the run.
    """

    def __init__(self, base: str, config: MossaConfig, out: Path) -> None:
        self.base = base
        self.config = config
        self.out = out
        self._current: tuple[Model, Any] | None = None
        self._prints: dict[Model, str] = {}

    @cached_property
    def hooked(self) -> Any:
        """Hooked model of the base, loaded once."""
        return self.config.load(self.config.resolve(self.base), "prompts", attention="sdpa")

    @property
    def plain(self) -> Any:
        """Hugging Face model, with the weights of the current adapter."""
        return plain_model(self.hooked)

    @property
    def n_layers(self) -> int:
        """Number of blocks."""
        return int(self.plain.config.get_text_config().num_hidden_layers)

    @cached_property
    def print(self) -> str:
        """Fingerprint of the base."""
        set_adapter(self.hooked, None)
        return fingerprint(self.hooked)

    @cached_property
    def collection(self) -> TaskCollection:
        """Tasks of the run."""
        return self.config.read()

    @cached_property
    def format(self) -> InstructionFormat:
        """Format in which prompts and answers are read."""
        return format_of(self.hooked.tokenizer, self.config)

    @contextmanager
    def as_model(self, model: Model) -> Iterator[Any]:
        """Give the hooked model of a block: the base with an adapter, or a checkpoint that is loaded and freed again.

        A block may hold others of the same model, which get what it has, but none of another model.
        """
        if self._current is not None and self._current[0] == model:
            yield self._current[1]
            return
        with self._loaded(model) as hooked:
            self._current = model, hooked
            try:
                yield hooked
            finally:
                self._current = None
                del hooked  # so that a checkpoint is freed before the next one is loaded

    @contextmanager
    def _loaded(self, model: Model) -> Iterator[Any]:
        if model.kind == BASE:
            set_adapter(self.hooked, None)
            yield self.hooked
            return
        resolved = model.resolved(self.out)
        if resolved.is_adapter:
            set_adapter(self.hooked, resolved.source)
            try:
                yield self.hooked
            finally:
                set_adapter(self.hooked, None)
            return
        checkpoint = self.config.load(resolved, "prompts", attention="sdpa")
        try:
            yield checkpoint
        finally:
            del checkpoint
            gc.collect()

    def print_of(self, model: Model) -> str:
        """Return the fingerprint of a model, computed once, without loading it if it is an adapter."""
        if model not in self._prints:
            self._prints[model] = self._print_of(model)
        return self._prints[model]

    def _print_of(self, model: Model) -> str:
        resolved = model.resolved(self.out)
        if model.kind == BASE:
            return self.print
        if resolved.is_adapter:
            return f"{self.print}+{digest_of_adapter(resolved.source)}"
        with self.as_model(model) as hooked:
            return fingerprint(hooked)

    def training(self, model: Model) -> tuple[list[FormattedExample], TuneConfig]:
        """Return the examples that a model is trained on, and how it is trained."""
        examples = training_examples(model, self.collection, self.config)
        tuning = tuning_of(model, self.collection, self.config)
        return answered(self.format, examples), tuning


def run_on_base(
    run: Callable[[ResidentBase, _Job], _Value],
    jobs: Sequence[_Job],
    base: str,
    config: MossaConfig,
    out: Path,
    *,
    title: str | None,
) -> list[_Value]:
    """Run jobs with one base in memory for each worker, and return their results in order.

    Errors are raised when all jobs are done.

    Args:
        run: runs one job.
        jobs: jobs with a ``name``.
        base: hub name or folder.
        config: settings of the run.
        out: folder of the run.
        title: title of the progress bar, or ``None`` for none.
    """
    return map_jobs(
        run,
        jobs,
        config.workers or (1 if config.here else None),
        engine=config.jobs,
        setup=partial(ResidentBase, resolved_model_path(base), config.portable, out.absolute()),
        timeout=config.job_timeout,
        folder=out,
        progress=title,
    )


def format_of(tokenizer: Any, config: MossaConfig) -> InstructionFormat:
    """Return the format in which a run reads prompts and answers."""
    chat = {"auto": None, "yes": True, "no": False}[config.chat]
    return InstructionFormat(
        tokenizer, chat=chat, end=config.end, cutoff=config.cutoff, bos=config.bos, template=config.chat_template
    )


def models_of(collection: TaskCollection, config: MossaConfig, controls: Mapping[str, str]) -> list[Model]:
    """Return the base and every model of a run, the longest to train first.

    A task that cannot be measured has no control. If no held-out task can be measured, there is no model without them.

    Args:
        collection: the tasks.
        config: the settings.
        controls: controls that were given, by task.
    """
    models = [Model(BASE), Model(TUNED, given=_given(config.experimental))]
    if not config.trains:
        if collection.held_out and config.without_held_out:
            models.append(Model(UNSEEN, given=_given(config.without_held_out)))
        return [*models, *(Model(CONTROL, task, _given(source)) for task, source in controls.items())]
    measured = [task for task in collection if not task.too_few]
    if any(task.held_out for task in measured):
        models.append(Model(UNSEEN))
    models += [Model(CONTROL, task.name) for task in measured]
    return [*models, *(Model(AGAIN, name) for name in ceiling_tasks(collection, config.ceilings))]


def _given(source: str | None) -> ResolvedModel | None:
    """Return a model that was trained elsewhere, as every process finds it."""
    return resolve_model(source).portable if source else None


def answered(text_format: InstructionFormat, examples: Sequence[Example]) -> list[FormattedExample]:
    """Return examples as tokens, with their answers."""
    return text_format.answered([example.prompt for example in examples], [example.answer for example in examples])


def ceiling_tasks(collection: TaskCollection, n: int) -> list[str]:
    """Return the seen tasks whose controls are trained twice, taken from the clusters in turn."""
    by_cluster: dict[tuple[str, str], list[str]] = {}
    for task in collection.seen:
        if not task.too_few:
            by_cluster.setdefault(_cluster_key(task), []).append(task.name)
    in_turn = chain.from_iterable(zip_longest(*by_cluster.values()))
    return [name for name in in_turn if name is not None][:n]


def _cluster_key(task: InstructionTask) -> tuple[str, str]:
    """Return a task's cluster, or the task alone, which may be called like another task's cluster."""
    return (task.cluster, "") if task.cluster else ("", task.name)


def tuning_of(model: Model, collection: TaskCollection, config: MossaConfig) -> TuneConfig:
    """Return how a model is trained.

    Each adapter has separate initial weights and order of the data. Two that begin alike would change a few common
    directions, which makes them similar.
    """
    tuning = config.tuning
    if config.steps_per_task is not None:
        tuning = replace(tuning, steps=config.steps_per_task * len(trained_on(model, collection)))
    draw = generator(tuning.seed, f"mossa adapter {model.name}")
    return replace(tuning, seed=int(draw.integers(2**31)))


def trained_on(model: Model, collection: TaskCollection) -> Sequence[InstructionTask]:
    """Return the tasks whose examples a model sees."""
    if model.task:
        return [collection[model.task]]
    return list(collection) if model.kind == TUNED else collection.seen


def training_examples(model: Model, collection: TaskCollection, config: MossaConfig) -> list[Example]:
    """Return the examples that a model is trained on.

    A control has its whole task, a multi-task model at most ``max_per_cluster`` examples of each cluster, drawn at
    random.
    """
    tasks = trained_on(model, collection)
    if model.task:
        return list(tasks[0].train)
    by_cluster: dict[tuple[str, str], list[Example]] = {}
    for task in tasks:
        by_cluster.setdefault(_cluster_key(task), []).extend(task.train)
    drawn: list[Example] = []
    for (cluster, task_name), examples in by_cluster.items():
        if len(examples) > config.max_per_cluster:
            draw = generator(config.seed, f"mossa cluster {cluster or task_name}")
            order = draw.permutation(len(examples))[: config.max_per_cluster]
            examples = [examples[i] for i in sorted(order.tolist())]
        drawn += examples
    return drawn
