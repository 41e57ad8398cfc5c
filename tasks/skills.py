"""A family of skills in clusters, requested by composable instructions: the data of the MOSSA study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Annotated, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tasks._random import generator
from tasks.batch import Batch
from tasks.errors import InputError
from tasks.settings import (
    MAX_SIZE,
    AtLeast,
    AtMost,
    Share,
    Size,
    SizeOfSeveral,
    WideSeed,
    check_count,
    check_different_settings,
    check_settings,
)
from tasks.task import Task

OPERATIONS = ("copy", "swap", "translate", "type", "classify", "sentiment")
SEEN_BY_DEFAULT = (
    "copy-0",
    "copy-3",
    "swap-0",
    "swap-1",
    "translate-1",
    "translate-2",
    "type-2",
    "type-3",
    "classify-0",
    "classify-3",
    "sentiment-0",
    "sentiment-1",
)

_PerExample: TypeAlias = Int[np.ndarray, "batch"]
_Symbols: TypeAlias = Int[np.ndarray, "batch symbol"]
_Answers: TypeAlias = Int[np.ndarray, "batch 2"]
_Prompts: TypeAlias = Int[np.ndarray, "batch prompt"]


@dataclass(frozen=True)
class SkillSuite(Task):
    """Prompts ``[operation, argument, filler; x1 ... xn; ANS]`` and an answer of one or two tokens, then EOS.

    A skill is an operation (its cluster) on the pair that its argument selects: argument k means
    ``(a, b) = (x[2k], x[2k + 1])``. ``copy`` answers ``a b``, ``swap`` ``b a``, ``translate`` ``P[a]`` for a fixed
    permutation, ``type`` the quartile of ``b``, ``classify`` the quartile of ``a`` with other labels, and ``sentiment``
    YES if ``a + b >= n_symbols``. Operation and argument come in either order, each in one of several words, with a
    filler word: ``2 x synonyms x argument_synonyms x n_fillers`` instructions per skill.

    Skills outside ``seen`` are held out from tuning: their operation and argument appear there, but never together. The
    pre-training stream has the prompts of all skills. Operations in ``encoded`` get the right answer, the others a
    generic continuation.

    Labels: ``task`` (the skill), ``cluster`` (its operation), ``argument``. Position: ``answer`` (of ANS). Splits
    ``validation`` and ``test`` hold ``n_eval`` prompts of every skill.

    Args:
        stream: the data of ``train_batch``. ``"tuning"``: skills with their answers, loss on the answer.
            ``"pretraining"``: the generic stream, loss on every token.
        skills: which skills the tuning stream draws from, by name. Empty: all of ``seen``.
        seen: skills to tune on, such as ``"copy-0"``. Every operation and every argument must be among them.
        encoded: operations that the pre-training stream answers.
        encoded_share: share of these operations in the pre-training stream.
        pair_share: share of the other operations' prompts that are answered by ``a b``.
        label_share: share of the rest that are answered by a random label. The others continue the walk.
        n_symbols: data symbols.
        length: data symbols of a prompt.
        walk_share: share of prompts whose data is a random walk in steps of 1 and 2, reflected at the ends. Other data
            is uniform.
        n_arguments: argument words, times their synonyms.
        synonyms: words of each operation.
        argument_synonyms: words of each argument.
        n_fillers: filler words.
        n_eval: prompts of each skill in a split.
        seed: for the permutation and of all data.
        stream_seed: a further seed of ``train_batch`` alone, which changes the order of the skills.

    Example:
        >>> suite = SkillSuite(n_eval=5)
        >>> batch = next(suite.batches("test", tasks=["swap-3"]))
        >>> suite.task_names[int(batch.labels["task"][0])], batch.tokens.shape
        ('swap-3', torch.Size([5, 15]))
        >>> " ".join(suite.to_str_tokens(batch.tokens[0]))
        'swap.0 arg3.1 fill2 10 10 9 10 10 10 8 10 ANS 10 8 EOS'
    """

    name: ClassVar[str] = "skill-suite"
    splits: ClassVar[tuple[str, ...]] = ("validation", "test")

    stream: Literal["tuning", "pretraining"] = "tuning"
    skills: tuple[str, ...] = ()
    seen: tuple[str, ...] = SEEN_BY_DEFAULT
    encoded: tuple[str, ...] = OPERATIONS[:2]
    encoded_share: Share = 0.5
    pair_share: Share = 0.2
    label_share: Share = 0.15
    n_symbols: Annotated[int, AtLeast(4), AtMost(MAX_SIZE)] = 12
    length: SizeOfSeveral = 8
    walk_share: Share = 0.5
    n_arguments: Size = 4
    synonyms: Size = 3
    argument_synonyms: Size = 2
    n_fillers: Size = 6
    n_eval: Size = 1000
    seed: WideSeed = 0
    stream_seed: WideSeed = 0

    def __post_init__(self) -> None:
        check_settings(self)
        if self.length < 2 * self.n_arguments:
            raise InputError(
                f"length is {self.length}; expected at least {2 * self.n_arguments}, a pair for each of the "
                f"{self.n_arguments} arguments"
            )
        _check_names("seen", self.seen, self.task_names)
        _check_names("skills", self.skills, self.task_names)
        _check_names("encoded", self.encoded, OPERATIONS)
        if not self.encoded or set(self.encoded) == set(OPERATIONS):
            raise InputError(
                f"encoded has {len(self.encoded)} of {len(OPERATIONS)} operations; expected some and not all, so that "
                "clusters that pre-training encoded can be told from others"
            )
        self._check_seen_composes()

    def _check_seen_composes(self) -> None:
        """Refuse seen skills without some operation or argument."""
        seen_parts = set("-".join(self.seen).split("-"))
        for part in (*OPERATIONS, *map(str, range(self.n_arguments))):
            if part not in seen_parts:
                raise InputError(
                    f"seen has no skill with {part!r}; expected every operation and every argument in some seen "
                    "skill, or the held-out ones cannot be composed"
                )

    # ---- names ----

    @property
    def task_names(self) -> list[str]:
        """``"operation-argument"`` of every value of the label ``task``."""
        return [f"{operation}-{k}" for operation, k in product(OPERATIONS, range(self.n_arguments))]

    @property
    def cluster_names(self) -> list[str]:
        """The operation of every value of the label ``cluster``."""
        return list(OPERATIONS)

    @cached_property
    def vocab(self) -> list[str]:
        """The printable string of every token id."""
        operations = product(OPERATIONS, range(self.synonyms))
        arguments = product(range(self.n_arguments), range(self.argument_synonyms))
        return [
            "PAD",
            *map(str, range(self.n_symbols)),
            *(f"{operation}.{synonym}" for operation, synonym in operations),
            *(f"arg{k}.{synonym}" for k, synonym in arguments),
            *(f"fill{f}" for f in range(self.n_fillers)),
            *(f"type{q}" for q in range(4)),
            *(f"class{q}" for q in range(4)),
            "NO",
            "YES",
            "ANS",
            "EOS",
        ]

    @cached_property
    def _id(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.vocab)}

    @property
    def n_ctx(self) -> int:
        """Tokens of a sequence."""
        return self.answer_position + 4

    @property
    def answer_position(self) -> int:
        """The position of ANS, the last token of every prompt."""
        return 3 + self.length

    @cached_property
    def permutation(self) -> Int[np.ndarray, "symbol"]:
        """The symbol that ``translate`` turns each symbol into."""
        return generator(self.seed, "permutation").permutation(self.n_symbols)

    # ---- examples ----

    def _data(self, rng: np.random.Generator, n: int) -> tuple[_Symbols, _PerExample]:
        """Draw the data of ``n`` prompts, and the symbol that each would go on with as a random walk."""
        steps = rng.choice((-2, -1, 1, 2), (n, self.length + 1))
        walk = np.empty((n, self.length + 1), dtype=np.int64)
        walk[:, 0] = rng.integers(self.n_symbols, size=n)
        for i in range(1, self.length + 1):
            walk[:, i] = self._reflect(walk[:, i - 1] + steps[:, i])
        walks = rng.random((n, 1)) < self.walk_share
        uniform = rng.integers(self.n_symbols, size=(n, self.length))
        symbols = np.where(walks, walk[:, :-1], uniform)
        return symbols, self._reflect(symbols[:, -1] + steps[:, 0])

    def _reflect(self, walk: _PerExample) -> _PerExample:
        """Return symbols that a step took beyond the first or last one, reflected there."""
        last = self.n_symbols - 1
        return last - np.abs(last - np.abs(walk))

    def _pairs(self, symbols: _Symbols, argument: _PerExample) -> tuple[_PerExample, _PerExample]:
        rows = np.arange(len(symbols))
        return symbols[rows, 2 * argument], symbols[rows, 2 * argument + 1]

    def _answers(self, symbols: _Symbols, operation: _PerExample, argument: _PerExample) -> _Answers:
        """Return the token ids of the right answers, and PAD if there is no second token."""
        a, b = self._pairs(symbols, argument)
        first_symbol = self._id["0"]
        quartile = 4 * np.arange(self.n_symbols) // self.n_symbols
        by_operation = np.stack(
            [
                first_symbol + a,
                first_symbol + b,
                first_symbol + self.permutation[a],
                self._id["type0"] + quartile[b],
                self._id["class0"] + quartile[a],
                self._id["NO"] + (a + b >= self.n_symbols),
            ]
        )
        first = by_operation[operation, np.arange(len(symbols))]
        second = np.zeros_like(first)
        copies = operation == OPERATIONS.index("copy")
        swaps = operation == OPERATIONS.index("swap")
        second[copies] = first_symbol + b[copies]
        second[swaps] = first_symbol + a[swaps]
        return np.stack([first, second], axis=1)

    def _continuations(
        self, rng: np.random.Generator, symbols: _Symbols, next_symbol: _PerExample, argument: _PerExample
    ) -> _Answers:
        """Draw generic answers of the pre-training stream."""
        n = len(symbols)
        first_symbol = self._id["0"]
        a, b = self._pairs(symbols, argument)
        label = self._id["type0"] + rng.integers(8, size=n)
        has_label = rng.random(n) < self.label_share
        has_pair = rng.random(n) < self.pair_share
        one_token = np.where(has_label, label, first_symbol + next_symbol)
        answers = np.stack([one_token, np.zeros_like(one_token)], axis=1)
        answers[has_pair] = np.stack([first_symbol + a, first_symbol + b], axis=1)[has_pair]
        return answers

    def _prompts(
        self, rng: np.random.Generator, symbols: _Symbols, operation: _PerExample, argument: _PerExample
    ) -> _Prompts:
        """Return the tokens up to ANS."""
        n = len(symbols)
        operation_synonym = rng.integers(self.synonyms, size=n)
        argument_synonym = rng.integers(self.argument_synonyms, size=n)
        operation_word = self._id["copy.0"] + operation * self.synonyms + operation_synonym
        argument_word = self._id["arg0.0"] + argument * self.argument_synonyms + argument_synonym
        words = np.stack([operation_word, argument_word], axis=1)
        swapped = rng.random((n, 1)) < 0.5
        words = np.where(swapped, words[:, ::-1], words)
        filler = self._id["fill0"] + rng.integers(self.n_fillers, size=(n, 1))
        end = np.full((n, 1), self._id["ANS"])
        return np.concatenate([words, filler, self._id["0"] + symbols, end], axis=1)

    def _batch(
        self,
        prompts: _Prompts,
        answers: _Answers,
        operation: _PerExample,
        argument: _PerExample,
        index: _PerExample,
        loss_on_prompt: bool = False,
    ) -> Batch:
        n = len(prompts)
        one_pad = np.zeros((n, 1), dtype=np.int64)
        tokens = np.concatenate([prompts, answers, one_pad], axis=1)
        answer_length = 1 + (answers[:, 1] > 0)
        tokens[np.arange(n), self.answer_position + 1 + answer_length] = self._id["EOS"]
        targets = np.concatenate([tokens[:, 1:], one_pad], axis=1)
        loss_mask = targets > 0
        if not loss_on_prompt:
            loss_mask[:, : self.answer_position] = False
        return Batch(
            tokens=torch.from_numpy(tokens),
            attention_mask=torch.from_numpy(tokens > 0),
            targets=torch.from_numpy(targets),
            loss_mask=torch.from_numpy(loss_mask),
            positions={"answer": torch.full((n,), self.answer_position)},
            labels={
                "task": torch.from_numpy(operation * self.n_arguments + argument),
                "cluster": torch.from_numpy(operation),
                "argument": torch.from_numpy(argument),
            },
            index=torch.from_numpy(index),
        )

    def _examples(self, rng: np.random.Generator, task: _PerExample, index: _PerExample) -> Batch:
        """Draw a prompt of each skill, with its right answer."""
        operation, argument = np.divmod(task, self.n_arguments)
        symbols, _ = self._data(rng, len(task))
        answers = self._answers(symbols, operation, argument)
        prompts = self._prompts(rng, symbols, operation, argument)
        return self._batch(prompts, answers, operation, argument, index)

    def _numbers(self, names: Sequence[str]) -> Int[np.ndarray, "skill"]:
        known = self.task_names
        unknown = [name for name in names if name not in known]
        if unknown:
            raise InputError(f"no skill {unknown[0]!r} (there are {', '.join(known)})")
        return np.array([known.index(name) for name in names], dtype=np.int64)

    # ---- the interface of a Task ----

    def batches(self, split: str, batch_size: int = 250, *, tasks: Sequence[str] | None = None) -> Iterator[Batch]:
        """Yield the examples of a split, skill after skill, or of ``tasks`` only if they are given."""
        self._check_split(split)
        for number in self._numbers(self.task_names if tasks is None else tasks).tolist():
            task = np.full(self.n_eval, number)
            index = number * self.n_eval + np.arange(self.n_eval)
            yield from self._examples(generator(self.seed, split, number), task, index).split(batch_size)

    def train_batch(self, step: int, batch_size: int) -> Batch:
        """Return the batch of one step of the stream."""
        check_count(step=(step, 0), batch_size=(batch_size, 1))
        rng = generator(self.seed, self.stream, self.stream_seed, step)
        index = step * batch_size + np.arange(batch_size)
        if self.stream == "pretraining":
            return self._pretraining_batch(rng, index)
        skills = self._numbers(self.skills or self.seen)
        return self._examples(rng, rng.choice(skills, batch_size), index)

    def _pretraining_batch(self, rng: np.random.Generator, index: _PerExample) -> Batch:
        batch_size = len(index)
        encoded = [OPERATIONS.index(operation) for operation in self.encoded]
        others = [number for number in range(len(OPERATIONS)) if number not in encoded]
        answered = rng.random(batch_size) < self.encoded_share
        encoded_operation = rng.choice(np.array(encoded), batch_size)
        other_operation = rng.choice(np.array(others), batch_size)
        operation = np.where(answered, encoded_operation, other_operation)
        argument = rng.integers(self.n_arguments, size=batch_size)
        symbols, next_symbol = self._data(rng, batch_size)
        generic = self._continuations(rng, symbols, next_symbol, argument)
        answers = np.where(answered[:, None], self._answers(symbols, operation, argument), generic)
        prompts = self._prompts(rng, symbols, operation, argument)
        return self._batch(prompts, answers, operation, argument, index, loss_on_prompt=True)

    def accuracy(self, logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> Float[Tensor, "batch"]:
        """Return 1 for each example whose every answer token is the most likely one, given those before it, else 0."""
        assert batch.targets is not None
        answer = slice(self.answer_position, self.answer_position + 2)
        targets = batch.targets[:, answer]
        is_answer = (targets > 0) & (targets != self._id["EOS"])
        right = logits[:, answer].argmax(dim=-1) == targets
        return (right | ~is_answer).all(dim=1).float()

    def chance(self, split: str = "test") -> dict[str, float]:
        """Return by skill the accuracy of its commonest answer or of a wrong argument.

        It is the larger of both. The second is the accuracy of the operation on the best other argument that it is
        tuned on. In data that walks, neighbouring symbols are alike, so it can be far above the first.
        """
        return {name: self._chance_of(name, split) for name in self.task_names}

    def _chance_of(self, name: str, split: str) -> float:
        batch = Batch.concat(list(self.batches(split, tasks=[name])))
        symbols = batch.tokens[:, 3 : self.answer_position].numpy() - self._id["0"]
        operation = batch.labels["cluster"].numpy()
        right = self._answers(symbols, operation, batch.labels["argument"].numpy())
        _, counts = np.unique(right, axis=0, return_counts=True)
        accuracies = [counts.max() / len(batch)]
        for other in self.seen:
            other_operation, other_argument = other.split("-")
            if other_operation == name.split("-")[0] and other != name:
                wrong = self._answers(symbols, operation, np.full(len(batch), int(other_argument)))
                accuracies.append((wrong == right).all(axis=1).mean())
        return float(max(accuracies))


def _check_names(field: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise InputError(f"{field} has {name!r}; expected some of {', '.join(known)}")
    check_different_settings(**{field: names})
