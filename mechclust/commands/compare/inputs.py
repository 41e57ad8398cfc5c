"""What ``mechclust compare`` measures, and everything that can be refused before a weight is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechclust.commands.compare.checkpoints import Checkpoint, find_checkpoints
from mechclust.commands.compare.config import CompareConfig
from mechclust.commands.compare.task_clusters import ClustersOfTasks, find_task_clusters
from mechclust.commands.layers import layers_bytes
from mechclust.commands.units import Units, units_of
from mechclust.models.adapter_bases import adapter_notes
from mechclust.models.adapters import check_adapter
from mechclust.models.sizes import Sizes
from mechclust.models.tokenizers import check_read_alike, encoder, n_leading, tokenization_of, what_is_wrong
from mechclust.report.folder import check_command, free_space, kept_bytes
from probes.functional.cka import LEAST_DEBIASED
from probes.store.digest import digest_of
from probes.store.files import read_json, write_json
from tasks import Batch, InputError, LabelledPrompts

_GIB = 2**30


@dataclass(frozen=True)
class Inputs:
    """What ``compare_models`` measures.

    Attributes:
        checkpoints: base, tuned, then controls.
        tasks: names, in the order of the label's numbers.
        batches: the prompts as tokens; ``index`` is the place in the file, from 0.
        prompts: the file.
        notes: what a reader must know.
        tokenization: how the prompts were read.
        units: which prompts belong together.
        clusters: of the tasks.
        families: of the base and of the tuned model, where these are of two families; else empty.
    """

    checkpoints: Sequence[Checkpoint]
    tasks: Sequence[str]
    batches: Sequence[Batch]
    prompts: LabelledPrompts
    notes: Sequence[str]
    tokenization: Mapping[str, Any]
    units: Units
    clusters: ClustersOfTasks = ClustersOfTasks()
    families: tuple[str, ...] = ()

    def of_task(self) -> dict[str, Tensor]:
        """Task to the indices of its prompts."""
        labels = torch.cat([batch.labels["task"] for batch in self.batches])
        index = torch.cat([batch.index for batch in self.batches])
        counts = labels.bincount(minlength=len(self.tasks)).tolist()
        parts = torch.split(index[torch.sort(labels, stable=True).indices], counts)
        return dict(zip(self.tasks, parts, strict=True))

    def digest(self) -> str:
        """32 hexadecimal digits that tell these prompts, as they are read, and their tasks from others."""
        found = []
        for batch in self.batches:
            rows = zip(batch.index.tolist(), batch.lengths().tolist(), batch.labels["task"].tolist(), strict=True)
            for tokens, (index, length, task) in zip(batch.tokens, rows, strict=True):
                found.append((index, f"{index} {task} {tokens[:length].tolist()}"))
        return digest_of([json.dumps(list(self.tasks)), *(prompt for _, prompt in sorted(found))])  # in any batches

    def batches_of(self, task: str | None) -> list[Batch]:
        """The prompts of one task, or of all."""
        if task is None:
            return list(self.batches)
        k = self.tasks.index(task)
        parts = (batch.select((batch.labels["task"] == k).nonzero()[:, 0]) for batch in self.batches)
        return [part for part in parts if len(part)]


def read_inputs(base: Any, tuned: Any, config: CompareConfig, out: Path, tokenizer: Any = None) -> Inputs:
    """The prompts as tokens, and the models.

    Args:
        base, tuned: see ``compare_models``.
        config: what to measure.
        out: where the rows are to be kept.
        tokenizer: of models in memory that come without one.

    Raises:
        InputError: for settings, prompts, clusters, tokenizers or controls that nothing can be compared with, and where
            the rows would not fit in memory or on disk.
    """
    check_command(out, "compare")
    prompts = config.read_prompts()
    config.check()
    tasks = prompts.classes["task"]
    if len(tasks) < 2:
        raise InputError(f"{config.prompts} has one task only ({tasks[0]!r}); comparing tasks needs at least 2")
    places = _chosen(prompts, config)
    chosen = set(places)
    compared_in = [task if i in chosen else None for i, task in enumerate(prompts.labels["task"])]
    units = units_of(prompts, config.units, relabelled=None, compared_in=compared_in)
    prompts = units.added_to(prompts)
    clusters = find_task_clusters(config.clusters, prompts)
    checkpoints = find_checkpoints(
        base,
        tuned,
        config.controls,
        tasks,
        adapter=config.adapter,
        where=(config.device, config.dtype),
        tuned_where=(config.tuned_device or config.device, config.tuned_dtype or config.dtype),
        tokenizer=tokenizer,
    )
    for adapter in {model.adapter for model in checkpoints if model.adapter is not None}:
        check_adapter(adapter)
        if config.quantize is not None:
            raise InputError(
                f"an adapter ({adapter!r}) cannot be added exactly to {config.quantize} weights; leave out --quantize"
            )
    read = {model: model.read(config.trust_remote_code) for model in checkpoints}
    templates, sizes = read[checkpoints[1]][0], {model: found for model, (_, found) in read.items()}
    if config.chat and not getattr(templates, "chat_template", None):
        raise InputError(f"the tokenizer of {checkpoints[1]} has no chat template; leave out --chat")
    _check_layers(checkpoints, sizes)
    readers = {str(m): (own, encoder(own, config.chat, templates, bos=config.bos)) for m, (own, _) in read.items()}
    texts = {f"{config.prompts}: prompt {i + 1}": prompts.prompts[i] for i in places}
    notes = check_read_alike(texts, readers)
    first, encode = readers[str(checkpoints[0])]
    keep = n_leading(first, config.bos)
    batches = _batches(
        prompts, places, encode, first.pad_token_id or 0, keep, list(sizes.values()), config, units.label
    )
    notes += what_is_wrong(first, batches, prompts.repeated)
    largest = max(int(batch.tokens.max()) for batch in batches)
    for model, size in sizes.items():
        if size.d_vocab is not None and largest >= size.d_vocab:
            raise InputError(
                f"{model} has {size.d_vocab} token embeddings, but its tokenizer gives id {largest}; "
                "save the tokenizer that belongs to the model"
            )
    read_as = tokenization_of(first, chat=config.chat, template=templates, bos=config.bos)
    notes += [units.sentence]
    notes += adapter_notes((m.adapter, m.source) for m in checkpoints if m.adapter is not None)
    families = _two_families(*(sizes[model].family for model in checkpoints[:2]))
    inputs = Inputs(checkpoints, tasks, batches, prompts, notes, read_as, units, clusters, families)
    _check_room(checkpoints, sizes, inputs.of_task(), config, out)
    return inputs


def _two_families(base: str | None, tuned: str | None) -> tuple[str, ...]:
    """Return both families if they are known and differ, so that neither model was tuned from the other."""
    return () if base is None or tuned is None or base == tuned else (base, tuned)


def _chosen(prompts: LabelledPrompts, config: CompareConfig) -> list[int]:
    """Places in the file of the prompts to use, ascending."""
    places: dict[str, list[int]] = {task: [] for task in prompts.classes["task"]}
    for i, task in enumerate(prompts.labels["task"]):
        places[task].append(i)
    if few := [f"{task!r} (n = {len(p)})" for task, p in places.items() if len(p) < config.min_per_task]:
        lower = "" if config.min_per_task == LEAST_DEBIASED else ", or lower --min-per-task"
        raise InputError(
            f"{config.prompts} has fewer than {config.min_per_task} prompts of {', '.join(few)}; "
            f"give more, leave the task out{lower}"
        )
    if config.max_per_task is None:
        return sorted(i for p in places.values() for i in p)
    chosen: list[int] = []
    for p in places.values():  # each task's draw is its own: other tasks do not change it
        order = torch.randperm(len(p), generator=torch.Generator().manual_seed(config.seed))
        chosen += [p[i] for i in order[: config.max_per_task].tolist()]
    return sorted(chosen)


def _check_layers(checkpoints: Sequence[Checkpoint], sizes: Mapping[Checkpoint, Sizes]) -> None:
    """A control is compared layer by layer with both models."""
    base, tuned, *controls = checkpoints
    for control in controls:
        for other in (tuned, base):
            if sizes[control].n_layers != sizes[other].n_layers:
                raise InputError(
                    f"{control} has {sizes[control].n_layers} layers, but {other} {sizes[other].n_layers}; "
                    "give controls tuned from the same base, or leave them out"
                )


def _batches(
    prompts: LabelledPrompts,
    places: list[int],
    encode: Any,
    pad_id: int,
    keep: int,
    sizes: list[Sizes],
    config: CompareConfig,
    units: str | None,
) -> list[Batch]:
    source = prompts.source if len(places) == len(prompts) else f"{prompts.source}, {len(places)} prompts drawn"
    kept = {name: prompts.labels[name] for name in dict.fromkeys(["task", *([] if units is None else [units])])}
    labels = {name: [values[i] for i in places] for name, values in kept.items()}
    some = LabelledPrompts([prompts.prompts[i] for i in places], labels, source)
    context = min((s.n_ctx for s in sizes if s.n_ctx is not None), default=None)
    options: dict[str, Any] = {"max_length": context, "too_long": config.too_long, "pad_id": pad_id, "keep": keep}
    where = torch.tensor(places)
    return [replace(b, index=where[b.index]) for b in some.batches(encode, config.tokens_per_batch, **options)]


def _check_room(
    checkpoints: Sequence[Checkpoint],
    sizes: Mapping[Checkpoint, Sizes],
    of_task: Mapping[str, Tensor],
    config: CompareConfig,
    out: Path,
) -> None:
    """Refuse rows that do not fit, in memory or on disk, as far as sizes are known."""
    n = sum(map(len, of_task.values()))
    if any(s.n_layers is None or s.d_model is None for s in sizes.values()):
        return
    shapes = {m: [s.d_model or 0] * ((s.n_layers or 0) + 1) for m, s in sizes.items()}
    base, tuned = (shapes[model] for model in checkpoints[:2])
    alike = len(base) == len(tuned)
    svcca = config.svcca_of(of_task)
    size = layers_bytes(tuned[:1], base[:1], n, svcca) if alike else layers_bytes(tuned, base, n)
    needed = size * config.at_once / _GIB
    if needed > config.max_memory:
        what = "a layer" if alike else "every layer with every other"
        fewer = "fewer prompts (--max-per-task)"
        if config.at_once > 1:
            what, fewer = f"{what} in each of {config.at_once} workers", f"fewer --workers, {fewer}"
        raise InputError(
            f"comparing {what} takes {needed:.3g} GiB ({n} prompts x {tuned[0]} and {base[0]} dimensions), more than "
            f"max_memory = {config.max_memory:g}; give {fewer} or raise --max-memory"
        )
    total = sum(
        (n if model.task is None else len(of_task[model.task])) * sum(d) * getattr(torch, model.dtype).itemsize
        for model, d in shapes.items()
    )
    free = free_space(out)
    if total - kept_bytes(out / "rows") > free:
        raise InputError(
            f"the hidden states of {len(shapes)} models take {total / _GIB:.3g} GiB on disk ({n} prompts x "
            f"{len(tuned)} layers x {tuned[0]} dimensions), but {str(out)!r} has {free / _GIB:.3g} GiB free; "
            "give fewer prompts (--max-per-task), or another folder with --out"
        )


def check_same_prompts(inputs: Inputs, out: Path) -> None:
    """Rows are kept with their labels: begin a folder, or refuse one that was begun with others.

    Args:
        inputs: the prompts.
        out: the folder, which is ours.

    Raises:
        InputError: saying so.
    """
    record = {"prompts": inputs.digest()}
    path = prompts_file(out)
    if not path.exists():
        write_json(path, record)
    elif read_json(path) != record:
        raise InputError(
            f"{str(out)!r} holds hidden states of other prompts, tasks or tokens; give the same, "
            "or another folder with --out"
        )


def prompts_file(out: Path) -> Path:
    """What says of which prompts the rows in a folder are."""
    return out / "rows" / "prompts.json"
