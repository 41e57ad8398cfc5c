"""Read the tasks of a MOSSA run as tokens, and refuse invalid ones before work starts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mechclust.commands.mossa.config import MossaConfig
from mechclust.commands.mossa.margins import Pairs, pairs_of, swapped_answers
from mechclust.commands.mossa.models import CONTROL, Model, format_of, models_of
from mechclust.commands.sampling import draw_prompts
from mechclust.commands.units import few_units
from mechclust.models.adapter_fit import adapter_fit_notes, check_adapter_fits, model_without_weights
from mechclust.models.adapters import check_adapter
from mechclust.models.chat_templates import templated_tokenizer
from mechclust.models.instruction_format import FormattedExample, InstructionFormat
from mechclust.models.resolved import resolve_model
from mechclust.models.sizes import Sizes
from mechclust.models.tokenizers import check_tokenizers_alike, tokenizer_and_sizes
from mechclust.models.whole_weights import check_whole_weights
from mechclust.report.text import first_few
from mechclust.training.tuning.lora import check_modules
from probes.functional.hsic import LEAST_DEBIASED
from probes.store.digest import digest_of
from tasks import Batch, InputError
from tasks.batch import pad_right
from tasks.batch_rows import token_batch_rows
from tasks.text.instructions import MISC, Example, InstructionTask, TaskCollection
from tasks.text.instructions.instruction_task import LEAST_TEST_PROMPTS

_LEAST_TASKS = 3
SAMPLE = 64  # examples of a task whose tokens are counted before work starts


@dataclass(frozen=True)
class Inputs:
    """Tasks and models of a run, read without weights.

    Attributes:
        base: name or folder of the base.
        collection: the tasks.
        models: the base and all others.
        sizes: sizes of the base.
        notes: remarks for the reader.
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
        """Tasks with a control, and enough test prompts."""
        with_control = {model.task for model in self.models if model.kind == CONTROL}
        return [task for task in self.collection if task.name in with_control and not task.too_few]

    @property
    def clusters(self) -> list[str]:
        """Names of the clusters, by number. Tasks of FLAN's ``"misc"`` are in none."""
        return [name for name in self.collection.clusters if name != MISC]

    def digest(self) -> str:
        """Return a digest of these tasks and of how they are read."""
        parts = [str(self.format), str(self.format.cutoff), *([self.format.template] if self.format.template else [])]
        for task in self.collection:
            parts += [task.name, str(task.held_out), str(task.cluster)]
            for example in (*task.train, *task.test):
                parts += [example.prompt, example.answer]
        return digest_of(parts)


def cluster_of(task: InstructionTask) -> str | None:
    """Return the cluster in figures and findings. Tasks of FLAN's ``"misc"`` have none, as they share little."""
    return None if task.cluster == MISC else task.cluster


def read_inputs(base: str, config: MossaConfig) -> Inputs:
    """Read the tasks, the tokenizer, the sizes and the models' names, without weights.

    Raises:
        InputError: for settings, files or models that do not allow any measurement.
    """
    config.check()
    collection = config.read()
    _check_tasks(collection, config)
    controls = _controls(config, collection)
    left_out = _left_out(config, collection, controls)
    models = models_of(collection, config, controls)
    resolved = resolve_model(base)
    tokenizer, sizes = tokenizer_and_sizes(resolved, trust_remote_code=config.trust_remote_code)
    if sizes.n_ctx is not None and config.cutoff > sizes.n_ctx:
        raise InputError(
            f"--cutoff is {config.cutoff}, but the model takes {sizes.n_ctx} tokens; give --cutoff {sizes.n_ctx}"
        )
    given = [model.given for model in models if model.given is not None]
    adapters = [str(model.source) for model in given if model.is_adapter]
    unloaded = None
    if adapters or config.experimental is None:
        unloaded = model_without_weights(resolved, trust_remote_code=config.trust_remote_code)
    if unloaded is not None and config.experimental is None:
        check_modules(unloaded, config.tuning.modules)
    text_format = format_of(tokenizer, config)
    notes = [*collection.notes, *left_out]
    for adapter in adapters:
        check_adapter(adapter)
    check_whole_weights([resolved, *given])
    notes += _check_checkpoints(base, tokenizer, sizes, models, collection, config)
    if unloaded is not None:
        for adapter in adapters:
            check_adapter_fits(adapter, unloaded)
    notes += adapter_fit_notes(replace(resolved, adapter=adapter) for adapter in adapters)
    notes.append(_units_note(collection, config))
    notes += [str(text_format), text_format.beginning, *_cut(collection, text_format)]
    return Inputs(str(base), collection, models, sizes, notes, text_format)


def _check_tasks(collection: TaskCollection, config: MossaConfig) -> None:
    """Refuse too few tasks, and a model without held-out tasks if there are none."""
    usable = [task for task in collection.seen if not task.too_few]
    if len(usable) < _LEAST_TASKS:
        raise InputError(
            f"{collection.source} has {len(usable)} tasks with {LEAST_TEST_PROMPTS} test prompts or more that are not "
            f"held out; expected at least {_LEAST_TASKS}"
        )
    if config.without_held_out is not None and not collection.held_out:
        raise InputError(
            "--without-held-out is given, but no task is held out; name those that it was not trained on "
            "(--held-out, or held_out in clusters.toml)"
        )


def _check_checkpoints(
    base: str, tokenizer: Any, sizes: Sizes, models: Sequence[Model], collection: TaskCollection, config: MossaConfig
) -> list[str]:
    """Refuse checkpoints with another number of layers or another tokenization.

    Return notes on the others.
    """
    texts: dict[str, str] = {}
    for task in collection:
        texts |= {example.where: example.prompt for example in task.test[:2]}
    notes: list[str] = []
    for model in models:
        if model.given is None or model.given.is_adapter:
            continue
        own_tokenizer, own_sizes = tokenizer_and_sizes(model.given, trust_remote_code=config.trust_remote_code)
        tokenizers = {f"base {base!r}": tokenizer, model.name: own_tokenizer}
        notes += check_tokenizers_alike(
            texts, {name: (each, templated_tokenizer(each, bos=config.bos)) for name, each in tokenizers.items()}
        )
        if own_sizes.n_layers != sizes.n_layers:
            raise InputError(
                f"{model.name} has {own_sizes.n_layers} layers, but the base {sizes.n_layers}; give models "
                "tuned from the same base"
            )
    return notes


def _units_note(collection: TaskCollection, config: MossaConfig) -> str:
    """Return how prompts were grouped.

    Refuse units of which a measured task has too few for CKA.
    """
    if config.units is None:
        return "CKA takes prompts as independent; if some share a template, give --units."
    for task in collection:
        if task.too_few:
            continue
        units = [example.unit for example in chosen_examples(task, config.n_prompts)]
        few = few_units(units, [task.name] * len(units), LEAST_DEBIASED)
        if few:
            raise InputError(f"--units is {config.units!r}, but {few}; give another field, or leave out --units")
    return f"CKA takes the prompts of one {config.units} as one unit; RBF CKA and SVCCA take all apart."


def _cut(collection: TaskCollection, text_format: InstructionFormat) -> list[str]:
    """Return a note on prompts that lose their beginning, or answers their end, among the first examples of a task."""
    cut: dict[str, tuple[int, int]] = {}
    for task in collection:
        examples = [*task.train[:SAMPLE], *task.test[:SAMPLE]]
        counts = text_format.cut([example.prompt for example in examples], [example.answer for example in examples])
        if any(counts):
            cut[task.name] = counts
    if not cut:
        return []
    prompts, answers = map(max, zip(*cut.values(), strict=True))
    cut_answers = f"; {answers} answers lose their end there" if answers else ""
    return [
        f"With --cutoff {text_format.cutoff}, examples of {first_few(list(cut))} are too long (checked on up to "
        f"{2 * SAMPLE} of each task): up to {prompts} prompts of a task lose their beginning{cut_answers}"
    ]


def _left_out(config: MossaConfig, collection: TaskCollection, controls: Mapping[str, str]) -> list[str]:
    """Return notes on tasks that are not measured, or not trained, and why.

    Raises:
        InputError: if the controls that were given leave too few seen tasks.
    """
    measurable = [task for task in collection if not task.too_few]
    held_out = [task.name for task in measurable if task.held_out]
    notes = []
    if config.trains:
        if collection.too_few:
            which = first_few(collection.too_few)
            notes.append(f"No control is trained for {which}, since nothing could be measured with it")
        if collection.held_out and not held_out:
            notes.append(
                "No model is trained without the held-out tasks, since none of these has "
                f"{LEAST_TEST_PROMPTS} test prompts"
            )
        return notes
    known = [task.name for task in measurable if not task.held_out and task.name in controls]
    if len(known) < _LEAST_TASKS:
        raise InputError(
            f"{len(known)} of the tasks that are not held out {'has' if len(known) == 1 else 'have'} a control and "
            f"{LEAST_TEST_PROMPTS} test prompts or more; expected at least {_LEAST_TASKS}: give more --controls"
        )
    lacking = [task.name for task in measurable if task.name not in controls]
    if lacking:
        notes.append(f"No control was given for {first_few(lacking)}: not measured")
    if held_out and config.without_held_out is None:
        verb = "are" if len(held_out) > 1 else "is"
        notes.append(
            "No model that was trained without the held-out tasks was given (--without-held-out): "
            f"{first_few(held_out)} {verb} not measured"
        )
    return notes


def _controls(config: MossaConfig, collection: TaskCollection) -> Mapping[str, str]:
    """Return the single-task models that were given, by task."""
    controls: dict[str, str] = {}
    for control in config.controls:
        task, source = task_and_model(control, collection.names)
        collection[task]  # refuses a name that is not there
        if task in controls:
            raise InputError(f"{controls[task]!r} and {source!r} are both controls of {task!r}; give one per task")
        controls[task] = source
    return controls


def task_and_model(control: str, tasks: Collection[str]) -> tuple[str, str]:
    """Return task and model of a control: ``TASK=MODEL``, or a folder called as its task.

    Both may hold a ``=``. If several tasks fit, the longest is taken.

    Example:
        >>> task_and_model("copa=models/a", ["copa"]), task_and_model("runs/lr=1e-3/copa", ["copa"])
        (('copa', 'models/a'), ('copa', 'runs/lr=1e-3/copa'))
    """
    places = [i for i, character in enumerate(control) if character == "=" and control[:i] in tasks]
    if not places:
        return Path(control).name, control
    last = places[-1]
    return control[:last], control[last + 1 :]


def rows_bytes(inputs: Inputs, config: MossaConfig) -> int:
    """Return the most bytes of hidden states on disk at a time, as far as sizes are known."""
    layers = (inputs.sizes.n_layers or 0) + 2
    d = inputs.sizes.d_model or 0
    most = min(config.n_prompts, max(len(task.test) for task in inputs.measured))
    models = 4 + config.nulls
    shown = 2 * min(config.n_shown, most) * len(inputs.measured)
    at_once = len(inputs.measured) if config.keep_rows else config.at_once
    return (most * models * at_once + shown) * layers * d * getattr(torch, config.dtype).itemsize


def test_batches(
    tasks: Sequence[InstructionTask],
    most: int,
    text_format: InstructionFormat,
    tokens_per_batch: int,
    numbers: Mapping[str, int],
) -> list[Batch]:
    """Return test prompts of tasks as batches of prompts of similar length.

    Args:
        tasks: the tasks.
        most: maximum number of prompts of a task, chosen by a hash of their place in the file.
        text_format: how they are read.
        tokens_per_batch: maximum number of tokens, including padding.
        numbers: numbers of the tasks, for the label ``task``. The label ``unit`` numbers the units, which are the tasks
            if examples have none.
    """
    examples: list[Example] = []
    task_numbers: list[int] = []
    for task in tasks:
        chosen = chosen_examples(task, most)
        examples += chosen
        task_numbers += [numbers[task.name]] * len(chosen)
    keys = [(task, example.unit) for task, example in zip(task_numbers, examples, strict=True)]
    units = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    labels = {"task": torch.tensor(task_numbers), "unit": torch.tensor([units[key] for key in keys])}
    texts = [example.prompt for example in examples]
    tokens = text_format.prompts(texts)
    batches = []
    for rows in token_batch_rows([len(ids) for ids in tokens], tokens_per_batch, partial(_prompt_name, texts)):
        padded, mask = pad_right([torch.tensor(tokens[i]) for i in rows])
        index = torch.from_numpy(rows)
        batch_labels = {name: values[index] for name, values in labels.items()}
        batches.append(Batch(padded, attention_mask=mask, labels=batch_labels, index=index))
    return batches


def _prompt_name(texts: Sequence[str], place: int) -> str:
    return f"test prompt {texts[place][:40]!r}"


def prompts_and_pairs(
    task: InstructionTask, most: int, text_format: InstructionFormat
) -> tuple[list[FormattedExample], list[FormattedExample], Pairs]:
    """Return test prompts with their answers, and pairs of them with answers exchanged.

    Args:
        task: the task.
        most: number of prompts, as in ``chosen_examples``.
        text_format: how they are read.
    """
    chosen = chosen_examples(task, most)
    prompts = [example.prompt for example in chosen]
    answers = [example.answer for example in chosen]
    pairs = pairs_of(answers)
    exchanged = text_format.answered(*swapped_answers(prompts, answers, pairs))
    return text_format.answered(prompts, answers), exchanged, pairs


def chosen_examples(task: InstructionTask, most: int) -> list[Example]:
    """Return at most ``most`` of a task's test examples, drawn by a hash, since files may be ordered by answers."""
    return [task.test[i] for i in draw_prompts(torch.arange(len(task.test)), most).tolist()]
