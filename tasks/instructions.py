"""Instruction following on random finite functions: the data of Wu & Varshney."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tasks._random import generator
from tasks._regex import RandomRegex
from tasks.batch import Batch, row_batches
from tasks.errors import InputError
from tasks.settings import AtLeast, Count, CountOrZero, Share, ShareBelowOne, ShareBetween, check_settings
from tasks.task import Task


@dataclass(frozen=True)
class InstructionFollowing(Task):
    """Sequences ``[instruction; x; y]``: what to do is in the instruction, what to do it to is ``x``.

    A task is a random function on a few inputs. Inputs come from one vocabulary that all tasks
    share, so ``x`` alone does not determine the task. Each task has ``n_distributions`` random regular
    expressions, and its instructions are distinct strings sampled from them, distinct across tasks
    too.

    Labels: ``task``, ``output`` (the token id of ``y``), ``input`` (that of ``x``), ``instruction``
    (the string's number). Positions: ``input``, ``output`` and ``instruction_end``, the last token of
    the instruction. Loss on every token but padding, or on ``y`` alone.

    Args:
        n_tasks: number of tasks.
        outputs: ``"private"``: each task has ``n_outputs`` output tokens of its own. ``"shared"``:
            all tasks draw outputs from one set of ``n_outputs`` tokens. This decides what the top
            layers cluster by, so state it with every result.
        n_outputs: output tokens, per task (private) or overall (shared).
        overlap: of private outputs, the share that every task has: ``overlap * n_outputs`` of each task's tokens are
            the same in all tasks, the others are its own, so that any two tasks have exactly this share of their
            output tokens in common. 0: no token in common; 1: all tasks have the same tokens, as with
            ``outputs="shared"``. A seed's functions are the same at every overlap, but for the names of the outputs.
        n_inputs: size of the shared input vocabulary.
        n_mappings: inputs that each task maps.
        n_symbols: instruction symbols.
        n_distributions: regular expressions per task (M in the paper).
        variants: mean number of instruction strings per task.
        variants_spread: a task's number of strings is uniform in ``variants * (1 -+ variants_spread)``.
        regex_elements: fewest and most elements an expression starts with; it is lengthened where
            needed for enough distinct strings.
        split_by: ``"instance"``: validation instances (instruction, x) were not trained on.
            ``"instruction"``: validation instruction strings were never seen at all.
        validation_share: share of instances or instructions held out.
        loss_on: ``"all"``: every token but padding. ``"output"``: ``y`` alone.
        n_eval_tasks: tasks of the evaluation subsets, the first ones (all, where there are fewer).
        n_eval: examples in ``"train_subset"`` and in ``"validation_subset"``.
        seed: seed of all random draws.

    Example:
        >>> task = InstructionFollowing(n_tasks=3, variants=10, n_eval=20)
        >>> batch = task.train_batch(step=0, batch_size=4)
        >>> batch.tokens.shape[0], sorted(batch.labels)
        (4, ['input', 'instruction', 'output', 'task'])
    """

    name: ClassVar[str] = "instruction-following"
    splits: ClassVar[tuple[str, ...]] = ("train", "validation", "train_subset", "validation_subset")

    n_tasks: Count = 50
    outputs: Literal["private", "shared"] = "private"
    n_outputs: Count = 2
    overlap: Share = 0.0
    n_inputs: int = 10
    n_mappings: Count = 5
    n_symbols: Annotated[int, AtLeast(3)] = 20
    n_distributions: Count = 1
    variants: Count = 152
    variants_spread: ShareBelowOne = 0.3
    regex_elements: tuple[Count, Count] = (3, 4)
    split_by: Literal["instance", "instruction"] = "instance"
    validation_share: ShareBetween = 0.1
    loss_on: Literal["all", "output"] = "all"
    n_eval_tasks: Count = 20
    n_eval: Count = 1000
    seed: CountOrZero = 0

    def __post_init__(self) -> None:
        check_settings(self)
        if self.n_mappings > self.n_inputs:
            raise InputError(f"n_mappings is {self.n_mappings}; expected at most n_inputs ({self.n_inputs})")
        low, high = self.regex_elements
        if low > high:
            raise InputError(f"regex_elements is {(low, high)}; expected (fewest, most)")
        if self.n_distributions > (least := round(self.variants * (1 - self.variants_spread))):
            raise InputError(
                f"n_distributions is {self.n_distributions}; expected at most the {least} instructions a task may have"
            )
        if self.overlap and self.outputs == "shared":
            raise InputError("overlap applies to private outputs, but outputs is 'shared'; leave one of them out")
        in_common = self.overlap * self.n_outputs
        if abs(in_common - round(in_common)) > 1e-9:
            raise InputError(
                f"overlap is {self.overlap:g} of {self.n_outputs} outputs; expected steps of 1/{self.n_outputs}, so "
                "that a whole number of them is shared"
            )

    # ---- vocabulary ----
    # [PAD | instruction symbols | inputs | outputs], of the outputs first those that all tasks have

    @property
    def _n_common(self) -> int:
        """How many output tokens all tasks have."""
        return self.n_outputs if self.outputs == "shared" else round(self.overlap * self.n_outputs)

    @property
    def vocab(self) -> list[str]:
        symbols = [chr(ord("a") + s) if self.n_symbols <= 26 else f"i{s}" for s in range(self.n_symbols)]
        common, own = self._n_common, range(self._n_common, self.n_outputs)
        outputs = [*(f"y{o}" for o in range(common)), *(f"y{t}.{o}" for t in range(self.n_tasks) for o in own)]
        return ["<pad>", *symbols, *(f"x{k}" for k in range(self.n_inputs)), *outputs]

    @property
    def n_ctx(self) -> int:
        return int(self._lengths.max()) + 2

    # ---- tables ----

    @cached_property
    def mappings(self) -> np.ndarray:
        """``[n_tasks n_inputs]`` output token of each input token's number, -1 where undefined."""
        table = np.full((self.n_tasks, self.n_inputs), -1)
        first = 1 + self.n_symbols + self.n_inputs
        for t in range(self.n_tasks):
            rng = generator(self.seed, "mapping", t)
            inputs = rng.choice(self.n_inputs, self.n_mappings, replace=False)
            drawn = rng.integers(self.n_outputs, size=self.n_mappings)
            own = t * (self.n_outputs - self._n_common)
            table[t, inputs] = first + drawn + np.where(drawn < self._n_common, 0, own)
        return table

    @cached_property
    def _grammar(self) -> tuple[list[list[RandomRegex]], list[tuple[int, tuple[int, ...]]]]:
        """Expressions of each task, and all instruction strings as (task, symbols), distinct."""
        regexes: list[list[RandomRegex]] = []
        strings: list[tuple[int, tuple[int, ...]]] = []
        used: set[tuple[int, ...]] = set()
        for t in range(self.n_tasks):
            rng = generator(self.seed, "instructions", t)
            low, high = (self.variants * (1 + sign * self.variants_spread) for sign in (-1, 1))
            wanted = max(1, round(rng.uniform(low, high)))
            shares = [wanted // self.n_distributions] * self.n_distributions
            for d in range(wanted % self.n_distributions):
                shares[d] += 1
            regexes.append([])
            for share in shares:
                # An expression whose strings are mostly taken by other tasks is drawn again.
                for _ in range(100):
                    regex = RandomRegex.draw(rng, self.n_symbols, share, self.regex_elements)
                    own: dict[tuple[int, ...], None] = {}
                    for _ in range(50 * share + 100):
                        string = regex.sample(rng)
                        if string and string not in used:
                            own[string] = None
                        if len(own) == share:
                            break
                    if len(own) == share:
                        break
                else:
                    raise InputError(
                        f"no expression over {self.n_symbols} symbols gives task {t} its {share} distinct "
                        "instructions; raise n_symbols or lower variants"
                    )
                regexes[-1].append(regex)
                used.update(own)
                strings.extend((t, string) for string in own)
        return regexes, strings

    @cached_property
    def _lengths(self) -> np.ndarray:
        return np.array([len(symbols) for _, symbols in self._grammar[1]])

    @cached_property
    def _task_of(self) -> np.ndarray:
        return np.array([t for t, _ in self._grammar[1]])

    @cached_property
    def _instances(self) -> dict[str, np.ndarray]:
        """``{"train": [n 2], "validation": [n 2]}`` (instruction number, input number)."""
        pairs = np.array(
            [
                (number, x)
                for number, (t, _) in enumerate(self._grammar[1])
                for x in np.flatnonzero(self.mappings[t] >= 0)
            ]
        )
        rng = generator(self.seed, "split")
        keys = np.arange(len(pairs)) if self.split_by == "instance" else pairs[:, 0]
        unique = np.unique(keys)
        held = rng.permutation(unique)[: max(1, round(len(unique) * self.validation_share))]
        validation = np.isin(keys, held)
        if validation.all():
            raise InputError(
                f"all {len(pairs)} instances are held out; expected some to train on: "
                "raise variants or n_tasks, or lower validation_share"
            )
        return {"train": pairs[~validation], "validation": pairs[validation]}

    def _subset(self, split: str) -> np.ndarray:
        pairs = self._instances[split]
        pairs = pairs[self._task_of[pairs[:, 0]] < self.n_eval_tasks]
        rng = generator(self.seed, f"{split}_subset")
        return pairs[np.sort(rng.permutation(len(pairs))[: self.n_eval])]

    # ---- batches ----

    @cached_property
    def _table(self) -> np.ndarray:
        """``[instruction pos]`` symbols as token ids, padded with 0."""
        table = np.zeros((len(self._lengths), int(self._lengths.max())), dtype=np.int64)
        for number, (_, symbols) in enumerate(self._grammar[1]):
            table[number, : len(symbols)] = np.array(symbols) + 1
        return table

    def _batch(self, pairs: np.ndarray) -> Batch:
        number, x = pairs[:, 0], pairs[:, 1]
        task, lengths, rows = self._task_of[number], self._lengths[number], np.arange(len(pairs))
        longest = int(lengths.max())
        tokens = np.zeros((len(pairs), longest + 2), dtype=np.int64)
        tokens[:, :longest] = self._table[number, :longest]
        output = self.mappings[task, x]
        tokens[rows, lengths] = 1 + self.n_symbols + x
        tokens[rows, lengths + 1] = output
        real = np.arange(longest + 2) < (lengths + 2)[:, None]
        targets, counts = np.zeros_like(tokens), np.zeros_like(real)
        targets[:, :-1], counts[:, :-1] = tokens[:, 1:], real[:, 1:]
        if self.loss_on == "output":
            counts = np.arange(longest + 2) == lengths[:, None]
        as_tensor = torch.from_numpy
        return Batch(
            tokens=as_tensor(tokens),
            attention_mask=as_tensor(real),
            targets=as_tensor(targets),
            loss_mask=as_tensor(counts),
            positions={
                "instruction_end": as_tensor(lengths - 1),
                "input": as_tensor(lengths),
                "output": as_tensor(lengths + 1),
            },
            labels={
                "task": as_tensor(task),
                "output": as_tensor(output),
                "input": as_tensor(tokens[rows, lengths]),
                "instruction": as_tensor(number),
            },
            index=as_tensor(number * self.n_inputs + x),
        )

    def batches(self, split: str, batch_size: int = 256) -> Iterator[Batch]:
        self._check_split(split)
        pairs = self._subset(split.removesuffix("_subset")) if split.endswith("_subset") else self._instances[split]
        for rows in row_batches(len(pairs), batch_size):
            yield self._batch(pairs[rows])

    def train_batch(self, step: int, batch_size: int) -> Batch:
        pairs = self._instances["train"]
        rng = generator(self.seed, "train", step)
        return self._batch(pairs[rng.integers(len(pairs), size=batch_size)])

    def accuracy(self, logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> Float[Tensor, "batch"]:
        """``[batch]`` 1 where the most likely token after ``x`` is ``y``."""
        rows = torch.arange(len(batch), device=logits.device)
        guess = logits[rows, batch.position("input")].argmax(dim=-1)
        return (guess == batch.label("output")).float()

    def input_only_accuracy(self) -> float:
        """Share of ``validation_subset`` whose task is guessed from ``x`` alone (finding T8).

        The rule is the best one on ``train_subset``: the commonest task of each input token.
        """
        train, validation = (Batch.concat(list(self.batches(s, self.n_eval))) for s in self.splits[2:])
        counts = torch.zeros(self.d_vocab, self.n_tasks, dtype=torch.int64)
        ones = torch.ones(len(train), dtype=torch.int64)
        counts.index_put_((train.labels["input"], train.labels["task"]), ones, accumulate=True)
        guess = counts.argmax(dim=1)[validation.labels["input"]]
        return float((guess == validation.labels["task"]).float().mean())
