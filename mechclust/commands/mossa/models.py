"""The models of a MOSSA run, and a resident base that is each of them in turn."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mechclust.commands.mossa.config import MossaConfig
from mechclust.models.adapters import digest_of_adapter, plain_model, set_adapter
from mechclust.models.instructions import Answered, InstructionFormat
from mechclust.models.resolved import ResolvedModel, resolve_model
from mechclust.training.tuning import TuneConfig
from probes.engine.identity import fingerprint
from probes.store.files import file_name
from tasks._random import generator
from tasks.text.instructions import Example, InstructionTask, TaskCollection

BASE, TUNED, UNSEEN, CONTROL, AGAIN = "base", "tuned", "without-held-out", "control", "again"


@dataclass(frozen=True)
class Model:
    """One model of a run.

    Attributes:
        kind: ``base``; ``tuned`` on all tasks; tuned ``without-held-out`` tasks; ``control`` of a task; a control
            trained ``again`` with another seed.
        task: a control's.
        given: a checkpoint or an adapter that was given; ``None``: trained here.
    """

    kind: str
    task: str = ""
    given: ResolvedModel | None = None

    @property
    def name(self) -> str:
        """In errors, and of its folder."""
        return self.kind if not self.task else f"{self.kind}-{file_name(self.task)}"

    def folder(self, out: Path) -> Path:
        """Return the folder of an adapter that is trained here."""
        return out / "adapters" / self.name

    def resolved(self, out: Path) -> ResolvedModel:
        """Return the model that was given, or the adapter that is trained here."""
        return self.given or ResolvedModel(str(self.folder(out)), is_adapter=True)


class ResidentBase:
    """One base in memory, its tokenizer and the tasks: what a worker holds.

    Args:
        base: hub name or folder.
        config: of the run.
        out: its folder.
    """

    def __init__(self, base: str, config: MossaConfig, out: Path) -> None:
        self.base, self.config, self.out = base, config, out
        self._inside: tuple[Model, Any] | None = None
        self._prints: dict[Model, str] = {}

    @cached_property
    def hooked(self) -> Any:
        return self.config.load(self.config.resolve(self.base), "prompts", attention="sdpa")

    @property
    def plain(self) -> Any:
        """Hugging Face's model, with the weights of the adapter that is in."""
        return plain_model(self.hooked)

    @cached_property
    def print(self) -> str:
        """Fingerprint of the base."""
        set_adapter(self.hooked, None)
        return fingerprint(self.hooked)

    @cached_property
    def collection(self) -> TaskCollection:
        return self.config.read()

    @cached_property
    def format(self) -> InstructionFormat:
        return format_of(self.hooked.tokenizer, self.config)

    @contextmanager
    def as_model(self, model: Model) -> Iterator[Any]:
        """The hooked model for a block: the base with an adapter, or a checkpoint of its own, which is loaded and gone
        again. Inside a block of the same model it is the one that is in."""
        if self._inside is not None and self._inside[0] == model:
            yield self._inside[1]
            return
        outer = self._inside
        with self._put(model) as hooked:
            self._inside = model, hooked
            try:
                yield hooked
            finally:
                self._inside = outer
                del hooked  # so that a checkpoint is gone before the next one is loaded

    @contextmanager
    def _put(self, model: Model) -> Iterator[Any]:
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
        other = self.config.load(resolved, "prompts", attention="sdpa")
        try:
            yield other
        finally:
            del other
            gc.collect()

    def print_of(self, model: Model) -> str:
        """What tells a model from others, without loading it where it is an adapter; found once."""
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

    def training(self, model: Model) -> tuple[list[Answered], TuneConfig]:
        """What a model is trained on, and how."""
        examples = training_examples(model, self.collection, self.config)
        tuning = tuning_of(model, self.collection, self.config)
        return self.format.answered([e.prompt for e in examples], [e.answer for e in examples]), tuning


def format_of(tokenizer: Any, config: MossaConfig) -> InstructionFormat:
    """How a run reads prompts and answers."""
    chat = {"auto": None, "yes": True, "no": False}[config.chat]
    options: dict[str, Any] = {"end": config.end, "cutoff": config.cutoff, "bos": config.bos}
    return InstructionFormat(tokenizer, chat=chat, template=config.chat_template, **options)


def models_of(collection: TaskCollection, config: MossaConfig, controls: Mapping[str, str]) -> list[Model]:
    """The base, and every model of a run; those that take longest to train first. Of tasks that cannot be measured no
    control is trained, nor a model without held-out tasks where none of these can be measured.

    Args:
        collection: the tasks.
        config: the settings.
        controls: given ones by task.
    """
    found = [Model(BASE), Model(TUNED, given=_given(config.experimental))]
    if not config.trains:
        if collection.held_out and config.without_held_out:
            found.append(Model(UNSEEN, given=_given(config.without_held_out)))
        return [*found, *(Model(CONTROL, task, _given(source)) for task, source in controls.items())]
    measured = [task for task in collection if not task.too_few]
    if any(task.held_out for task in measured):
        found.append(Model(UNSEEN))
    found += [Model(CONTROL, task.name) for task in measured]
    return [*found, *(Model(AGAIN, name) for name in ceiling_tasks(collection, config.ceilings))]


def _given(source: str | None) -> ResolvedModel | None:
    """Return a model that was trained elsewhere, as every process finds it."""
    return resolve_model(source).portable if source else None


def ceiling_tasks(collection: TaskCollection, n: int) -> list[str]:
    """The tasks whose controls are trained twice: seen ones, of as many clusters as there are."""
    of_cluster: dict[str, list[str]] = {}
    for task in collection.seen:
        if not task.too_few:
            of_cluster.setdefault(task.cluster or task.name, []).append(task.name)
    rounds = max(map(len, of_cluster.values()), default=0)
    return [names[i] for i in range(rounds) for names in of_cluster.values() if i < len(names)][:n]


def tuning_of(model: Model, collection: TaskCollection, config: MossaConfig) -> TuneConfig:
    """How a model is trained. Each adapter has initial weights and an order of the data of its own: two that begin
    alike change the same few directions, and are alike for that."""
    tuning = config.tuning
    if config.steps_per_task is not None:
        tuning = replace(tuning, steps=config.steps_per_task * len(trained_on(model, collection)))
    draw = generator(tuning.seed, f"mossa adapter {model.name}")
    return replace(tuning, seed=int(draw.integers(2**31)))


def trained_on(model: Model, collection: TaskCollection) -> Sequence[InstructionTask]:
    """The tasks whose examples a model sees."""
    if model.task:
        return [collection[model.task]]
    return list(collection) if model.kind == TUNED else collection.seen


def training_examples(model: Model, collection: TaskCollection, config: MossaConfig) -> list[Example]:
    """What a model is trained on: a control on its whole task, a multi-task model on at most ``max_per_cluster``
    examples of each cluster, drawn at random."""
    tasks = trained_on(model, collection)
    if model.task:
        return list(tasks[0].train)
    of_cluster: dict[str, list[Example]] = {}
    for task in tasks:
        of_cluster.setdefault(task.cluster or task.name, []).extend(task.train)
    found: list[Example] = []
    for name, examples in of_cluster.items():
        if len(examples) > config.max_per_cluster:
            draw = generator(config.seed, f"mossa cluster {name}")
            order = draw.permutation(len(examples))[: config.max_per_cluster]
            examples = [examples[i] for i in sorted(order.tolist())]
        found += examples
    return found
