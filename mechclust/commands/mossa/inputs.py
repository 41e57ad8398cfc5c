"""What a MOSSA run measures: prompts of the tasks as tokens, and everything that can be refused before work starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from mechclust.commands.controls import task_and_model
from mechclust.commands.mossa.config import MossaConfig
from mechclust.commands.mossa.margins import Pairs, pairs_of, swapped_answers
from mechclust.commands.mossa.models import CONTROL, UNSEEN, Model, format_of, models_of
from mechclust.commands.units import few_units
from mechclust.models.adapter_bases import adapter_notes, check_fits_base
from mechclust.models.adapters import check_adapter
from mechclust.models.instructions import Answered, InstructionFormat
from mechclust.models.resolved import resolve_model
from mechclust.models.sizes import Sizes
from mechclust.models.tokenizers import check_read_alike, encoder, tokenizer_and_sizes
from mechclust.report.text import join
from probes.engine.state import hashed
from probes.functional.hsic import LEAST_DEBIASED
from probes.store.digest import digest_of
from tasks import Batch, InputError
from tasks.batch import pad_right, token_batches
from tasks.text.instructions import MISC, Example, InstructionTask, TaskCollection
from tasks.text.instructions.collection import LEAST_TEST_PROMPTS
from tasks.text.visible import short

_LEAST_TASKS = 3
_NAMED = 12  # tasks in a note
SAMPLE = 64  # examples of a task whose tokens are counted before work starts


@dataclass(frozen=True)
class Inputs:
    """What a run is about.

    Attributes:
        base: name or folder of the base.
        collection: the tasks.
        models: the base and all others.
        sizes: of the base.
        notes: what a reader must know.
        format: how prompts are read.
    """

    base: str
    collection: TaskCollection
    models: Sequence[Model]
    sizes: Sizes
    notes: Sequence[str]
    format: InstructionFormat

    @property
    def measured(self) -> list[InstructionTask]:
        """Tasks with enough test prompts."""
        return [task for task in self.collection if not task.too_few]

    def digest(self) -> str:
        """What tells these tasks and this way of reading them from others."""
        parts = [str(self.format), str(self.format.cutoff), *([self.format.template] if self.format.template else [])]
        for task in self.collection:
            parts += [task.name, str(task.held_out), str(task.cluster)]
            parts += [text for part in (task.train, task.test) for e in part for text in (e.prompt, e.answer)]
        return digest_of(parts)


def cluster_of(task: InstructionTask) -> str | None:
    """The cluster in figures and findings; those of FLAN's ``"misc"`` are alike in nothing, and have none."""
    return None if task.cluster == MISC else task.cluster


def read_inputs(base: str, config: MossaConfig) -> Inputs:
    """The tasks and the models' names, with tokenizer and sizes but without weights.

    Raises:
        InputError: for settings, files or models that nothing can be measured with.
    """
    config.check()
    collection = config.read()
    if len(usable := [task for task in collection.seen if not task.too_few]) < _LEAST_TASKS:
        raise InputError(
            f"{collection.source} has {len(usable)} tasks with 4 test prompts or more that are not held out; "
            f"expected at least {_LEAST_TASKS}"
        )
    controls = _controls(config, collection)
    if config.without_held_out is not None and not collection.held_out:
        raise InputError(
            "--without-held-out is given, but no task is held out; name those that it was not trained on "
            "(--held-out, or held_out in clusters.toml)"
        )
    left_out = _left_out(config, collection, controls)
    models = models_of(collection, config, controls)
    resolved = resolve_model(base)
    tokenizer, sizes = tokenizer_and_sizes(resolved, trust_remote_code=config.trust_remote_code)
    own = format_of(tokenizer, config)
    texts = {e.where: e.prompt for task in collection for e in task.test[:2]}
    notes = [*collection.notes, *left_out]
    adapters = [str(model.given.source) for model in models if model.given is not None and model.given.is_adapter]
    for adapter in adapters:
        check_adapter(adapter)
    for model in models:
        if model.given is not None and not model.given.is_adapter:
            theirs, other = tokenizer_and_sizes(model.given, trust_remote_code=config.trust_remote_code)
            both = ((f"base {base!r}", tokenizer), (model.name, theirs))
            notes += check_read_alike(texts, {name: (t, encoder(t, bos=config.bos)) for name, t in both})
            if other.n_layers != sizes.n_layers:
                raise InputError(
                    f"{model.name} has {other.n_layers} layers, but the base {sizes.n_layers}; give models "
                    "tuned from the same base"
                )
    _check_context(collection, models, own, sizes.n_ctx, config)
    check_fits_base(adapters, resolved, trust_remote_code=config.trust_remote_code)
    notes += adapter_notes(replace(resolved, adapter=adapter) for adapter in adapters)
    if config.units is not None:
        _check_units(collection, config)
        notes.append(f"CKA takes the prompts of one {config.units} as one unit; RBF CKA and SVCCA take all apart.")
    else:
        notes.append("CKA takes prompts as independent; if some share a template, give --units.")
    notes += [str(own), own.beginning, *_cut(collection, own)]
    return Inputs(str(base), collection, models, sizes, notes, own)


def _check_units(collection: TaskCollection, config: MossaConfig) -> None:
    """Refuse units of which a measured task has too few for CKA."""
    for task in collection:
        if not task.too_few:
            units = [example.unit for example in chosen_examples(task, config.n_prompts)]
            if few := few_units(units, [task.name] * len(units), LEAST_DEBIASED):
                raise InputError(f"--units is {config.units!r}, but {few}; give another field, or leave out --units")


def _check_context(
    collection: TaskCollection, models: Sequence[Model], own: InstructionFormat, n_ctx: int | None, config: MossaConfig
) -> None:
    """Where ``--cutoff`` is more than the model takes, refuse examples of measured tasks that are longer than that.

    Raises:
        InputError: naming a task, its longest example and both limits.
    """
    if n_ctx is None or own.cutoff <= n_ctx:
        return
    unseen = any(model.kind == UNSEEN for model in models)
    for task in (collection[model.task] for model in models if model.kind == CONTROL):
        if task.too_few or (task.held_out and not unseen):
            continue  # not measured
        examples, exchanged, _ = questions(task, config.n_answers, own)
        trained = task.train if config.trains else ()
        read = [*examples, *exchanged, *own.answered([e.prompt for e in trained], [e.answer for e in trained])]
        lengths = [len(e.tokens) for e in read] + [len(t) for t in own.prompts(chosen_prompts(task, config.n_prompts))]
        if (longest := max(lengths)) > n_ctx:
            raise InputError(
                f"--cutoff is {own.cutoff}, but the model takes {n_ctx} tokens, and an example of {task.name!r} has "
                f"{longest}; give --cutoff {n_ctx}"
            )


def _cut(collection: TaskCollection, own: InstructionFormat) -> list[str]:
    """A note where prompts lose their beginning, or answers their end; of the first examples of each task."""
    found: dict[str, tuple[int, int]] = {}
    for task in collection:
        examples = [*task.train[:SAMPLE], *task.test[:SAMPLE]]
        cut = own.cut([e.prompt for e in examples], [e.answer for e in examples])
        if any(cut):
            found[task.name] = cut
    if not found:
        return []
    prompts, answers = (max(cut[k] for cut in found.values()) for k in (0, 1))
    least = f"; {answers} answers lose their end there" if answers else ""
    return [
        f"With --cutoff {own.cutoff}, examples of {_listed(list(found))} are too long (checked on up to {2 * SAMPLE} "
        f"of each task): up to {prompts} prompts of a task lose their beginning{least}"
    ]


def _left_out(config: MossaConfig, collection: TaskCollection, controls: Mapping[str, str]) -> list[str]:
    """Notes on tasks of which nothing is measured, or nothing trained, and why.

    Raises:
        InputError: where given controls leave too few seen tasks.
    """
    able = [task for task in collection if not task.too_few]
    held_out = [task.name for task in able if task.held_out]
    if config.trains:
        notes = []
        if few := collection.too_few:
            notes.append(f"No control is trained for {_listed(few)}, since nothing could be measured with it")
        if collection.held_out and not held_out:
            notes.append(
                "No model is trained without the held-out tasks, since none of these has "
                f"{LEAST_TEST_PROMPTS} test prompts"
            )
        return notes
    known = [task.name for task in able if not task.held_out and task.name in controls]
    if len(known) < _LEAST_TASKS:
        raise InputError(
            f"{len(known)} of the tasks that are not held out {'has' if len(known) == 1 else 'have'} a control and "
            f"{LEAST_TEST_PROMPTS} test prompts or more; expected at least {_LEAST_TASKS}: give more --controls"
        )
    notes = []
    if lacking := [task.name for task in able if task.name not in controls]:
        notes.append(f"No control was given for {_listed(lacking)}: not measured")
    if held_out and config.without_held_out is None:
        notes.append(
            f"No model that was trained without the held-out tasks was given (--without-held-out): {_listed(held_out)} "
            f"{'are' if len(held_out) > 1 else 'is'} not measured"
        )
    return notes


def _listed(tasks: Sequence[str]) -> str:
    return join([*map(short, tasks[:_NAMED]), *([f"{len(tasks) - _NAMED} more"] if len(tasks) > _NAMED else [])])


def _controls(config: MossaConfig, collection: TaskCollection) -> Mapping[str, str]:
    """Given single-task models by task."""
    found: dict[str, str] = {}
    names = [task.name for task in collection]
    for task, source in (task_and_model(control, names) for control in config.controls):
        collection[task]  # which refuses a name that is not there
        if task in found:
            raise InputError(f"{found[task]!r} and {source!r} are both controls of {task!r}; give one per task")
        found[task] = source
    return found


def rows_bytes(inputs: Inputs, config: MossaConfig) -> int:
    """Most bytes of hidden states on disk at a time, as far as sizes are known."""
    layers, d = (inputs.sizes.n_layers or 0) + 2, inputs.sizes.d_model or 0
    most = min(config.n_prompts, max(len(task.test) for task in inputs.measured))
    models = 4 + config.nulls
    shown = 2 * min(config.n_shown, most) * len(inputs.measured)
    at_once = len(inputs.measured) if config.keep_rows else config.at_once
    return (most * models * at_once + shown) * layers * d * getattr(torch, config.dtype).itemsize


def test_batches(
    tasks: Sequence[InstructionTask],
    most: int,
    own: InstructionFormat,
    tokens_per_batch: int,
    numbers: Mapping[str, int],
) -> list[Batch]:
    """Test prompts of tasks as batches: those of like length together.

    Args:
        tasks: of which.
        most: prompts of a task, chosen by a hash of their place in the file.
        own: how they are read.
        tokens_per_batch: padding included.
        numbers: of the tasks, for the label ``task``. The label ``unit`` numbers the units, which are the tasks if
            examples have none.
    """
    chosen = [(numbers[task.name], example) for task in tasks for example in chosen_examples(task, most)]
    texts = [example.prompt for _, example in chosen]
    units = {unit: i for i, unit in enumerate(dict.fromkeys((task, example.unit) for task, example in chosen))}
    tokens = own.prompts(texts)
    labels = {
        "task": torch.tensor([task for task, _ in chosen]),
        "unit": torch.tensor([units[task, example.unit] for task, example in chosen]),
    }
    lengths = [len(ids) for ids in tokens]
    found = []
    for rows in token_batches(lengths, tokens_per_batch, lambda i: f"test prompt {texts[i][:40]!r}"):
        padded, mask = pad_right([torch.tensor(tokens[i]) for i in rows])
        index = torch.from_numpy(rows)
        found.append(Batch(padded, attention_mask=mask, labels={k: v[index] for k, v in labels.items()}, index=index))
    return found


def questions(task: InstructionTask, most: int, own: InstructionFormat) -> tuple[list[Answered], list[Answered], Pairs]:
    """Test prompts with their answers, and pairs of them with answers exchanged.

    Args:
        task: of which.
        most: prompts, as ``chosen_examples``.
        own: how they are read.
    """
    chosen = chosen_examples(task, most)
    prompts, answers = [e.prompt for e in chosen], [e.answer for e in chosen]
    pairs = pairs_of(answers)
    return own.answered(prompts, answers), own.answered(*swapped_answers(prompts, answers, pairs)), pairs


def chosen_prompts(task: InstructionTask, most: int) -> list[str]:
    """The prompts of ``chosen_examples``."""
    return [example.prompt for example in chosen_examples(task, most)]


def chosen_examples(task: InstructionTask, most: int) -> list[Example]:
    """At most so many of a task's test examples, by a hash of their place: files may be ordered by their answers."""
    order = hashed(torch.arange(len(task.test))).argsort(stable=True)[:most].sort().values
    return [task.test[i] for i in order.tolist()]
