"""Read the prompts, find the models, and refuse invalid comparisons before a weight is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from mechclust.commands.compare.by_layer import ALL
from mechclust.commands.compare.checkpoints import find_checkpoints
from mechclust.commands.compare.config import CompareConfig
from mechclust.commands.sampling import prompts_at
from mechclust.commands.saved_rows import Checkpoint
from mechclust.commands.units import Units, repeated_prompt_notes, units_of
from mechclust.models.adapter_fit import adapter_fit_notes
from mechclust.models.adapters import check_adapter
from mechclust.models.chat_templates import templated_tokenizer
from mechclust.models.sizes import Sizes
from mechclust.models.tokenized_prompts import n_special_tokens_before
from mechclust.models.tokenizers import check_tokenizers_alike, tokenization_of, tokenizer_unknown_token_notes
from mechclust.models.whole_weights import check_whole_weights
from mechclust.report.folder import check_folder
from mechclust.report.resources import free_disk_bytes
from mechclust.report.text import GIB
from probes.functional.hsic import LEAST_DEBIASED
from probes.rows.kept_rows import activations_dtype
from probes.store.digest import digest_of
from probes.store.files import read_json, write_json
from probes.store.safetensors_files import safetensors_bytes
from tasks import Batch, InputError, LabelledPrompts
from tasks.text.token_ids import known_pad_token_id


@dataclass(frozen=True)
class Inputs:
    """Models and prompts of a comparison.

    Attributes:
        checkpoints: base and tuned model.
        tasks: names, in the order of the label's numbers.
        batches: the prompts as tokens. ``index`` is the place in the file, from 0.
        prompts: the file.
        notes: notes for readers.
        tokenization: how the prompts were read.
        units: which prompts belong together.
        sizes: of the models.
    """

    checkpoints: tuple[Checkpoint, Checkpoint]
    tasks: Sequence[str]
    batches: Sequence[Batch]
    prompts: LabelledPrompts
    notes: Sequence[str]
    tokenization: Mapping[str, Any]
    units: Units
    sizes: Mapping[Checkpoint, Sizes]

    @property
    def families(self) -> tuple[str, ...]:
        """Families of base and tuned model if they are known and differ, so that neither was tuned from the other."""
        base, tuned = (self.sizes[checkpoint].family for checkpoint in self.checkpoints)
        return () if base is None or tuned is None or base == tuned else (base, tuned)

    @property
    def has_different_dtypes(self) -> bool:
        """Whether base and tuned model are loaded with different dtypes. Models in memory keep their own."""
        base, tuned = self.checkpoints
        return not base.model.in_memory and not tuned.model.in_memory and base.dtype != tuned.dtype

    def of_task(self) -> dict[str, Int[Tensor, "_"]]:
        """Return the indices of each task's prompts."""
        labels = torch.cat([batch.labels["task"] for batch in self.batches])
        index = torch.cat([batch.index for batch in self.batches])
        return {task: index[labels == k] for k, task in enumerate(self.tasks)}

    def n_in_blocks(self, config: CompareConfig) -> list[int]:
        """Return the number of each task's prompts that are measured in blocks, or none if blocks are not measured."""
        base, tuned = self.checkpoints
        same_width = self.sizes[base].d_model == self.sizes[tuned].d_model
        if not config.blocks or self.families or self.has_different_dtypes or not same_width:
            return []
        return [min(len(index), config.blocks_prompts or len(index)) for index in self.of_task().values()]

    def digest(self) -> str:
        """Return 32 hexadecimal digits of the prompts, as they are read, and their tasks, in any batches."""
        lines = []
        for batch in self.batches:
            rows = zip(batch.index.tolist(), batch.lengths().tolist(), batch.labels["task"].tolist(), strict=True)
            for tokens, (index, length, task) in zip(batch.tokens, rows, strict=True):
                lines.append((index, f"{index} {task} {tokens[:length].tolist()}"))
        return digest_of([json.dumps(list(self.tasks)), *(line for _, line in sorted(lines))])


def read_inputs(base: Any, tuned: Any, config: CompareConfig, out: Path, tokenizer: Any = None) -> Inputs:
    """Read the prompts as tokens, and find the models, without loading weights.

    Args:
        base: see ``compare_models``.
        tuned: see ``compare_models``.
        config: the settings.
        out: folder that will keep the rows.
        tokenizer: of models in memory that come without one.

    Raises:
        InputError: for settings, prompts or tokenizers that do not allow a comparison. Also if the rows would not fit
            in memory or on disk.
    """
    check_folder(out, "compare")
    prompts = config.read_prompts()
    config.check()
    places = _choose(prompts, config)
    tasks = prompts.classes["task"]
    compared_in: list[str | None] = [None] * len(prompts)
    for i in places:
        compared_in[i] = prompts.labels["task"][i]
    units = units_of(prompts, config.units, relabelled=None, compared_in=compared_in)
    prompts = units.added_to(prompts)
    checkpoints = find_checkpoints(base, tuned, config, tokenizer)
    _check_adapters(checkpoints, config)
    check_whole_weights(checkpoint.model for checkpoint in checkpoints)
    tokenizers = {}
    sizes = {}
    for model in checkpoints:
        tokenizers[model], sizes[model] = model.read(config.trust_remote_code)
    check_same_depth({checkpoint: size.n_layers for checkpoint, size in sizes.items()})
    drawn = prompts_at(prompts, places)
    batches, notes = _tokenize(drawn, places, tokenizers, sizes, config)
    notes += [
        *repeated_prompt_notes(drawn, units.of(places)),
        units.sentence,
        *adapter_fit_notes(checkpoint.model for checkpoint in checkpoints),
    ]
    first, template = (tokenizers[model] for model in checkpoints)
    tokenization = tokenization_of(first, chat=config.chat, template=template, bos=config.bos)
    inputs = Inputs(checkpoints, tasks, batches, prompts, notes, tokenization, units, sizes)
    _check_memory(inputs, config)
    _check_disk(inputs, config, out)
    return inputs


def _choose(prompts: LabelledPrompts, config: CompareConfig) -> list[int]:
    """Return the places in the file of the prompts to use, ascending."""
    places: dict[str, list[int]] = {task: [] for task in prompts.classes["task"]}
    if len(places) < 2:
        raise InputError(
            f"{config.prompts} has one task only ({next(iter(places))!r}); comparing tasks needs at least 2"
        )
    if ALL in places:
        raise InputError(f"{config.prompts} has a task {ALL!r}, as all prompts together are called; rename it")
    for i, task in enumerate(prompts.labels["task"]):
        places[task].append(i)
    few = [f"{task!r} (n = {len(some)})" for task, some in places.items() if len(some) < config.min_per_task]
    if few:
        lower = "" if config.min_per_task == LEAST_DEBIASED else ", or lower --min-per-task"
        raise InputError(
            f"{config.prompts} has fewer than {config.min_per_task} prompts of {', '.join(few)}; "
            f"give more, leave the task out{lower}"
        )
    chosen: list[int] = []
    for some in places.values():  # each task has a separate draw, which other tasks do not change
        order = torch.randperm(len(some), generator=torch.Generator().manual_seed(config.seed))
        chosen += [some[i] for i in order[: config.max_per_task].tolist()]
    return sorted(chosen)


def _check_adapters(checkpoints: Sequence[Checkpoint], config: CompareConfig) -> None:
    """Refuse incomplete adapters, and any on quantised weights."""
    for adapter in {each.model.merged_adapter for each in checkpoints if each.model.merged_adapter is not None}:
        check_adapter(adapter)
        if config.quantize is not None:
            raise InputError(
                f"an adapter ({adapter!r}) cannot be added exactly to {config.quantize} weights; leave out --quantize"
            )


def check_same_depth(n_layers: Mapping[Checkpoint, int | None]) -> None:
    """Refuse models with another number of layers than the base, which cannot be compared layer by layer.

    Args:
        n_layers: blocks of the base and the tuned model, or ``None`` if it is not known.

    Raises:
        InputError: with both numbers of layers.
    """
    base, tuned = n_layers
    if n_layers[tuned] is None or n_layers[base] is None or n_layers[tuned] == n_layers[base]:
        return
    raise InputError(
        f"{tuned} has {n_layers[tuned]} layers, but {base} {n_layers[base]}; give a model tuned from this base. From "
        "Python, the probe CKA(pairs='all') compares every layer with every other"
    )


def _tokenize(
    prompts: LabelledPrompts,
    places: Sequence[int],
    tokenizers: Mapping[Checkpoint, Any],
    sizes: Mapping[Checkpoint, Sizes],
    config: CompareConfig,
) -> tuple[list[Batch], list[str]]:
    """Return the prompts at these places of the file as tokens, which all models must read alike, and notes on them."""
    base, tuned = tokenizers
    template = tokenizers[tuned]
    if config.chat and not getattr(template, "chat_template", None):
        raise InputError(f"the tokenizer of {tuned} has no chat template; leave out --chat")
    readers = {
        str(m): (t, templated_tokenizer(t, config.chat, template, bos=config.bos)) for m, t in tokenizers.items()
    }
    texts = {f"{config.prompts}: prompt {i + 1}": text for i, text in zip(places, prompts.prompts, strict=True)}
    notes = check_tokenizers_alike(texts, readers)
    tokenizer, encode = readers[str(base)]
    fewest = min((size.d_vocab for size in sizes.values() if size.d_vocab is not None), default=None)
    some = prompts.batches(
        encode,
        config.tokens_per_batch,
        pad_id=known_pad_token_id(tokenizer.pad_token_id, fewest),
        max_length=min((size.n_ctx for size in sizes.values() if size.n_ctx is not None), default=None),
        too_long=config.too_long,
        keep=n_special_tokens_before(tokenizer, config.bos, chat=config.chat, template=template),
    )
    batches = [replace(batch, index=torch.tensor(places)[batch.index]) for batch in some]
    _check_ids(batches, sizes)
    return batches, [*notes, *tokenizer_unknown_token_notes(tokenizer, batches)]


def _check_ids(batches: Sequence[Batch], sizes: Mapping[Checkpoint, Sizes]) -> None:
    """Refuse tokens for which a model has no embedding."""
    largest = max(int(batch.tokens[batch.token_mask()].max()) for batch in batches)
    for model, size in sizes.items():
        if size.d_vocab is not None and largest >= size.d_vocab:
            raise InputError(
                f"{model} has {size.d_vocab} token embeddings, but its tokenizer gives id {largest}; "
                "save the tokenizer that belongs to the model"
            )


def _bytes_per_number(model: Checkpoint, config: CompareConfig) -> int:
    """Return the bytes of a number of a model's hidden states. Means over tokens are float32 at least."""
    dtype = activations_dtype(model.model.source) if model.model.in_memory else getattr(torch, model.dtype)
    itemsize: int = dtype.itemsize
    return max(4, itemsize) if config.position == "mean" else itemsize


def _check_memory(inputs: Inputs, config: CompareConfig) -> None:
    """Refuse layers that do not fit in memory, as far as sizes are known."""
    base, tuned = (inputs.sizes[model].d_model for model in inputs.checkpoints)
    if base is None or tuned is None:
        return
    n = sum(map(len, inputs.batches))
    what = "a layer"
    of_prompt = 0
    for model, d in zip(inputs.checkpoints, (base, tuned), strict=True):
        of_prompt += d * _bytes_per_number(model, config)
    needed = n * of_prompt * config.at_once / GIB
    if needed > config.max_memory:
        fewer = "fewer prompts (--max-per-task)"
        if config.at_once > 1:
            what = f"{what} in each of {config.at_once} workers"
            fewer = f"fewer --workers, {fewer}"
        raise InputError(
            f"comparing {what} takes {needed:.3g} GiB ({n} prompts x {tuned} and {base} dimensions), more than "
            f"max_memory = {config.max_memory:g}; give {fewer} or raise --max-memory"
        )


def _check_disk(inputs: Inputs, config: CompareConfig, out: Path) -> None:
    """Refuse hidden states that do not fit on disk, as far as sizes are known."""
    n = sum(map(len, inputs.batches))
    n_in_blocks = sum(inputs.n_in_blocks(config))
    total = 0
    for model in inputs.checkpoints:
        size = inputs.sizes[model]
        if size.n_layers is None or size.d_model is None:
            return
        n_layers = size.n_layers
        n_states = n * (1 + n_layers) + n_in_blocks * n_layers
        total += n_states * size.d_model * _bytes_per_number(model, config)
    free = free_disk_bytes(out)
    if total - safetensors_bytes(out / "rows") > free:
        blocks = f", and {n_in_blocks} x {n_layers} blocks," if n_in_blocks else ""
        options = "--max-per-task, --blocks-prompts" if n_in_blocks else "--max-per-task"
        raise InputError(
            f"the hidden states of 2 models take {total / GIB:.3g} GiB on disk ({n} prompts x {1 + n_layers} "
            f"layers{blocks} x {size.d_model} dimensions), but {str(out)!r} has {free / GIB:.3g} GiB free; "
            f"give fewer prompts ({options}), or another folder with --out"
        )


def check_same_prompts(inputs: Inputs, out: Path) -> None:
    """Begin a folder of rows, or refuse one that holds rows of other prompts.

    Args:
        inputs: the prompts.
        out: the folder, which this process owns.

    Raises:
        InputError: for a folder with hidden states of other prompts, tasks or tokens.
    """
    record = {"prompts": inputs.digest()}
    path = prompts_file(out)
    if path.exists() and read_json(path) == record:
        return
    if path.exists() and safetensors_bytes(path.parent):
        raise InputError(
            f"{str(out)!r} holds hidden states of other prompts, tasks or tokens; give the same, "
            "or another folder with --out"
        )
    write_json(path, record)


def prompts_file(out: Path) -> Path:
    """Return the path of the file that identifies the prompts of the rows in a folder."""
    return out / "rows" / "prompts.json"
