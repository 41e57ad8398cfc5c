"""Instruction following on random finite functions: the data of Wu & Varshney."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Annotated, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tasks._random import generator
from tasks._regex import RandomRegex
from tasks.batch import Batch
from tasks.batch_rows import consecutive_batch_rows
from tasks.errors import InputError
from tasks.settings import (
    MAX_SIZE,
    AtLeast,
    AtMost,
    Share,
    ShareBelowOne,
    ShareBetween,
    Size,
    WideSeed,
    check_count,
    check_settings,
)
from tasks.task import Task

_DRAWS_PER_EXPRESSION = 100  # tries before an InputError
TRAIN_SUBSET = "train_subset"
VALIDATION_SUBSET = "validation_subset"

_String: TypeAlias = tuple[int, ...]  # instruction symbols
_Instances: TypeAlias = Int[np.ndarray, "instance 2"]  # instruction number and input number


@dataclass(frozen=True)
class InstructionFollowing(Task):
    """Sequences ``[instruction; x; y]``, in which the instruction says which function to apply to ``x``.

    A task is a random function on a few inputs. Inputs come from one vocabulary that all tasks
    share, so ``x`` alone does not determine the task. Each task has ``n_distributions`` random regular
    expressions, and its instructions are distinct strings sampled from them, distinct across tasks
    too.

    Labels: ``task``, ``output`` (token id of ``y``), ``input`` (token id of ``x``), ``instruction`` (the string's
    number). Positions: ``input``, ``output`` and ``instruction_end``, the last token of the instruction. Loss on every
    token but padding, or on ``y`` alone.

    Args:
        n_tasks: number of tasks.
        outputs: ``"private"``: each task has ``n_outputs`` output tokens that no other task has. ``"shared"``: all
            tasks draw outputs from one set of ``n_outputs`` tokens. This decides whether the top layers cluster by
            task, so state it with every result.
        n_outputs: output tokens, per task (private) or overall (shared).
        overlap: share of private outputs that all tasks have in common: ``overlap * n_outputs`` of each task's tokens
            are in all tasks, the others in no other task. So any two tasks share exactly this part of their output
            tokens. 0: no token in common. 1: all tokens in common, as with ``outputs="shared"``. A seed's functions do
            not depend on the overlap, except for the names of the outputs.
        n_inputs: size of the shared input vocabulary.
        n_mappings: inputs that each task maps.
        n_symbols: instruction symbols.
        n_distributions: regular expressions per task (M in the paper).
        variants: mean number of instruction strings per task.
        variants_spread: a task's number of strings is uniform in ``variants * (1 -+ variants_spread)``.
        regex_elements: fewest and most elements an expression starts with. It is lengthened if needed for enough
            distinct strings.
        split_by: ``"instance"``: validation instances (instruction, x) were not trained on.
            ``"instruction"``: validation instruction strings were never seen at all.
        validation_share: share of instances or instructions held out.
        loss_on: ``"all"``: every token but padding. ``"output"``: ``y`` alone.
        n_eval_tasks: tasks of the evaluation subsets, the first ones (all, if there are fewer).
        n_eval: examples in ``"train_subset"`` and in ``"validation_subset"``.
        seed: seed of all random draws.

    Example:
        >>> task = InstructionFollowing(n_tasks=3, variants=10, n_eval=20)
        >>> batch = task.train_batch(step=0, batch_size=4)
        >>> batch.tokens.shape[0], sorted(batch.labels)
        (4, ['input', 'instruction', 'output', 'task'])
    """

    name: ClassVar[str] = "instruction-following"
    splits: ClassVar[tuple[str, ...]] = ("train", "validation", TRAIN_SUBSET, VALIDATION_SUBSET)

    n_tasks: Size = 50
    outputs: Literal["private", "shared"] = "private"
    n_outputs: Size = 2
    overlap: Share = 0.0
    n_inputs: Size = 10
    n_mappings: Size = 5
    n_symbols: Annotated[int, AtLeast(3), AtMost(MAX_SIZE)] = 20
    n_distributions: Size = 1
    variants: Size = 152
    variants_spread: ShareBelowOne = 0.3
    regex_elements: tuple[Size, Size] = (3, 4)
    split_by: Literal["instance", "instruction"] = "instance"
    validation_share: ShareBetween = 0.1
    loss_on: Literal["all", "output"] = "all"
    n_eval_tasks: Size = 20
    n_eval: Size = 1000
    seed: WideSeed = 0

    def __post_init__(self) -> None:
        check_settings(self)
        self._check_instructions()
        self._check_overlap()
        if self.n_mappings > self.n_inputs:
            raise InputError(f"n_mappings is {self.n_mappings}; expected at most n_inputs ({self.n_inputs})")

    def _check_instructions(self) -> None:
        low, high = self.regex_elements
        if low > high:
            raise InputError(f"regex_elements is {(low, high)}; expected (fewest, most)")
        fewest_variants = max(1, round(self.variants * (1 - self.variants_spread)))
        if self.n_distributions > fewest_variants:
            raise InputError(
                f"n_distributions is {self.n_distributions}; expected at most the {fewest_variants} instructions a "
                "task may have"
            )

    def _check_overlap(self) -> None:
        if self.overlap and self.outputs == "shared":
            raise InputError("overlap applies to private outputs, but outputs is 'shared'; leave one of them out")
        n_common = self.overlap * self.n_outputs
        if abs(n_common - round(n_common)) > 1e-9:
            raise InputError(
                f"overlap is {self.overlap:g} of {self.n_outputs} outputs; expected steps of 1/{self.n_outputs}, so "
                "that a whole number of them is shared"
            )

    # ---- vocabulary ----
    # [PAD | instruction symbols | inputs | outputs], of the outputs first those that all tasks have

    @property
    def _n_common(self) -> int:
        """Number of output tokens that all tasks have."""
        return self.n_outputs if self.outputs == "shared" else round(self.overlap * self.n_outputs)

    @property
    def vocab(self) -> list[str]:
        """The printable string of every token id."""
        if self.n_symbols <= 26:
            symbols = [chr(ord("a") + s) for s in range(self.n_symbols)]
        else:
            symbols = [f"i{s}" for s in range(self.n_symbols)]
        inputs = [f"x{k}" for k in range(self.n_inputs)]
        common_outputs = [f"y{o}" for o in range(self._n_common)]
        private = product(range(self.n_tasks), range(self._n_common, self.n_outputs))
        private_outputs = [f"y{t}.{o}" for t, o in private]
        return ["<pad>", *symbols, *inputs, *common_outputs, *private_outputs]

    @property
    def n_ctx(self) -> int:
        """Tokens of the longest sequence."""
        return int(self._lengths.max()) + 2

    # ---- functions ----

    @cached_property
    def mappings(self) -> Int[np.ndarray, "task input"]:
        """The output token of each task and input number, -1 if undefined."""
        table = np.full((self.n_tasks, self.n_inputs), -1)
        first_output = 1 + self.n_symbols + self.n_inputs
        n_private = self.n_outputs - self._n_common
        for t in range(self.n_tasks):
            rng = generator(self.seed, "mapping", t)
            inputs = rng.choice(self.n_inputs, self.n_mappings, replace=False)
            output = rng.integers(self.n_outputs, size=self.n_mappings)
            is_common = output < self._n_common
            table[t, inputs] = first_output + np.where(is_common, output, output + t * n_private)
        return table

    # ---- instructions ----

    @cached_property
    def _grammar(self) -> tuple[list[list[RandomRegex]], list[tuple[int, _String]]]:
        """The expressions of each task, and all instructions as (task, string), distinct."""
        expressions: list[list[RandomRegex]] = []
        instructions: list[tuple[int, _String]] = []
        used: set[_String] = set()
        for t in range(self.n_tasks):
            rng = generator(self.seed, "instructions", t)
            expressions.append([])
            for n_strings in self._strings_per_expression(rng):
                regex, strings = self._draw_expression(rng, n_strings, used, t)
                expressions[t].append(regex)
                instructions.extend((t, string) for string in strings)
                used.update(strings)
        return expressions, instructions

    def _strings_per_expression(self, rng: np.random.Generator) -> list[int]:
        """Draw a task's number of instructions, and divide it among its expressions."""
        fewest = self.variants * (1 - self.variants_spread)
        most = self.variants * (1 + self.variants_spread)
        n_strings = max(1, round(rng.uniform(fewest, most)))
        each, rest = divmod(n_strings, self.n_distributions)
        return [each + (number < rest) for number in range(self.n_distributions)]

    def _draw_expression(
        self, rng: np.random.Generator, n_strings: int, used: Collection[_String], task: int
    ) -> tuple[RandomRegex, list[_String]]:
        """Draw an expression with ``n_strings`` unused strings, again while other tasks have most of them."""
        for _ in range(_DRAWS_PER_EXPRESSION):
            regex = RandomRegex.draw(rng, self.n_symbols, n_strings, self.regex_elements)
            strings = _unused_strings(regex, rng, n_strings, used)
            if len(strings) == n_strings:
                return regex, strings
        raise InputError(
            f"no expression over {self.n_symbols} symbols gives task {task} its {n_strings} distinct "
            "instructions; raise n_symbols or lower variants"
        )

    @cached_property
    def _lengths(self) -> Int[np.ndarray, "instruction"]:
        _, instructions = self._grammar
        return np.array([len(string) for _, string in instructions])

    @cached_property
    def _task_of(self) -> Int[np.ndarray, "instruction"]:
        _, instructions = self._grammar
        return np.array([t for t, _ in instructions])

    @cached_property
    def _instruction_tokens(self) -> Int[np.ndarray, "instruction pos"]:
        """Token ids, padded with 0."""
        _, instructions = self._grammar
        tokens = np.zeros((len(instructions), int(self._lengths.max())), dtype=np.int64)
        for number, (_, string) in enumerate(instructions):
            tokens[number, : len(string)] = np.array(string) + 1
        return tokens

    # ---- splits ----

    @cached_property
    def _instances(self) -> dict[str, _Instances]:
        """The instances of the splits train and validation."""
        is_defined = self.mappings[self._task_of] >= 0
        instances = np.argwhere(is_defined)
        keys = np.arange(len(instances)) if self.split_by == "instance" else instances[:, 0]
        unique = np.unique(keys)
        n_held_out = max(1, round(len(unique) * self.validation_share))
        held_out = generator(self.seed, "split").permutation(unique)[:n_held_out]
        in_validation = np.isin(keys, held_out)
        if in_validation.all():
            raise InputError(
                f"all {len(instances)} instances are held out; expected some to train on: "
                "raise variants or n_tasks, or lower validation_share"
            )
        return {"train": instances[~in_validation], "validation": instances[in_validation]}

    def _subset(self, split: str) -> _Instances:
        """Draw instances of the first tasks."""
        instances = self._instances[split]
        instances = instances[self._task_of[instances[:, 0]] < self.n_eval_tasks]
        if len(instances) == 0:
            share = "raise" if split == "validation" else "lower"
            raise InputError(
                f"no example of '{split}_subset' is of the first {self.n_eval_tasks} tasks; raise n_eval_tasks or "
                f"variants, or {share} validation_share"
            )
        rng = generator(self.seed, f"{split}_subset")
        return instances[np.sort(rng.permutation(len(instances))[: self.n_eval])]

    # ---- batches ----

    def _batch(self, instances: _Instances) -> Batch:
        instruction = instances[:, 0]
        input_number = instances[:, 1]
        task = self._task_of[instruction]
        length = self._lengths[instruction]
        longest = int(length.max())
        row = np.arange(len(instances))
        input_token = 1 + self.n_symbols + input_number
        output_token = self.mappings[task, input_number]
        tokens = np.zeros((len(instances), longest + 2), dtype=np.int64)
        tokens[:, :longest] = self._instruction_tokens[instruction, :longest]
        tokens[row, length] = input_token
        tokens[row, length + 1] = output_token
        targets = np.zeros_like(tokens)
        targets[:, :-1] = tokens[:, 1:]
        position = np.arange(longest + 2)
        attention_mask = position < (length + 2)[:, None]
        loss_mask = position == length[:, None] if self.loss_on == "output" else position < (length + 1)[:, None]
        return Batch(
            tokens=torch.from_numpy(tokens),
            attention_mask=torch.from_numpy(attention_mask),
            targets=torch.from_numpy(targets),
            loss_mask=torch.from_numpy(loss_mask),
            positions={
                "instruction_end": torch.from_numpy(length - 1),
                "input": torch.from_numpy(length),
                "output": torch.from_numpy(length + 1),
            },
            labels={
                "task": torch.from_numpy(task),
                "output": torch.from_numpy(output_token),
                "input": torch.from_numpy(input_token),
                "instruction": torch.from_numpy(instruction),
            },
            index=torch.from_numpy(instruction * self.n_inputs + input_number),
        )

    def batches(self, split: str, batch_size: int = 256) -> Iterator[Batch]:
        """Yield the examples of a split, in a fixed order."""
        self._check_split(split)
        whole = split.removesuffix("_subset")
        instances = self._instances[split] if split == whole else self._subset(whole)
        for rows in consecutive_batch_rows(len(instances), batch_size):
            yield self._batch(instances[rows])

    def train_batch(self, step: int, batch_size: int) -> Batch:
        """Return the batch of one step: training examples drawn with replacement.

        ``index`` says which examples they are, so that it may repeat. A probe that takes each example once, as in
        ``attach``, needs an index that counts the draws: ``replace(batch, index=step * n + torch.arange(n))``.
        """
        check_count(step=(step, 0), batch_size=(batch_size, 1))
        instances = self._instances["train"]
        rng = generator(self.seed, "train", step)
        return self._batch(instances[rng.integers(len(instances), size=batch_size)])

    def accuracy(self, logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> Float[Tensor, "batch"]:
        """Return 1 for each example whose most likely token after ``x`` is ``y`` and 0 for the others."""
        rows = torch.arange(len(batch), device=logits.device)
        guess = logits[rows, batch.position("input")].argmax(dim=-1)
        return (guess == batch.label("output")).float()

    def input_only_accuracy(self) -> float:
        """Return the share of ``validation_subset`` whose task is guessed from ``x`` alone (finding T8).

        The rule is the best one on ``train_subset``: the commonest task of each input token.
        """
        train = Batch.concat(list(self.batches(TRAIN_SUBSET, self.n_eval)))
        validation = Batch.concat(list(self.batches(VALIDATION_SUBSET, self.n_eval)))
        counts = torch.zeros(self.d_vocab, self.n_tasks, dtype=torch.int64)
        ones = torch.ones(len(train), dtype=torch.int64)
        counts.index_put_((train.labels["input"], train.labels["task"]), ones, accumulate=True)
        guess = counts.argmax(dim=1)[validation.labels["input"]]
        return float((guess == validation.labels["task"]).float().mean())


def _unused_strings(
    regex: RandomRegex, rng: np.random.Generator, n_strings: int, used: Collection[_String]
) -> list[_String]:
    """Draw up to ``n_strings`` different strings of an expression, none of them empty or used."""
    strings: dict[_String, None] = {}  # ordered by draw
    for _ in range(50 * n_strings + 100):
        string = regex.sample(rng)
        if string and string not in used:
            strings[string] = None
        if len(strings) == n_strings:
            break
    return list(strings)
