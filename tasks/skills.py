"""A family of skills in clusters, asked for by composable instructions: the data of the MOSSA study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tasks._random import generator
from tasks.batch import Batch
from tasks.errors import InputError, repeated
from tasks.settings import AtLeast, Count, CountOrZero, Several, Share, check_settings
from tasks.task import Task

OPERATIONS = ("copy", "swap", "translate", "type", "classify", "sentiment")
_SEEN = {"copy": (0, 3), "swap": (0, 1), "translate": (1, 2), "type": (2, 3), "classify": (0, 3), "sentiment": (0, 1)}


@dataclass(frozen=True)
class SkillSuite(Task):
    """Prompts ``[operation, argument, filler; x1 ... xn; ANS]`` and an answer of one or two tokens, then EOS.

    A skill is an operation (its cluster) on the pair that its argument selects: argument k means
    ``(a, b) = (x[2k], x[2k + 1])``. ``copy`` answers ``a b``; ``swap`` ``b a``; ``translate`` ``P[a]`` for a fixed
    permutation; ``type`` the quartile of ``b``; ``classify`` the quartile of ``a`` with labels of its own;
    ``sentiment`` YES where ``a + b >= n_symbols``. Operation and argument come in either order, each in one of
    several words, with a filler word: ``2 x synonyms x argument_synonyms x n_fillers`` instructions per skill.

    Skills outside ``seen`` are held out from tuning, where their operation and their argument appear, never together.
    The pre-training stream has the prompts of all skills: of operations in ``encoded`` with the right answer, of
    the others with a generic continuation.

    Labels: ``task`` (the skill), ``cluster`` (its operation), ``argument``. Position: ``answer`` (where ANS stands).
    Splits ``validation`` and ``test`` hold ``n_eval`` prompts of every skill.

    Args:
        stream: what ``train_batch`` draws: ``"tuning"``: skills with their answers, loss on the answer;
            ``"pretraining"``: the generic stream, loss on every token.
        skills: which skills the tuning stream draws from, by name; empty: all of ``seen``.
        seen: skills to tune on, such as ``"copy-0"``; every operation and every argument must be among them.
        encoded: operations that the pre-training stream answers.
        encoded_share: their share in it.
        pair_share: share of the other operations' prompts that are answered by ``a b``.
        label_share: share of the rest that are answered by a random label; what is left continues the walk.
        n_symbols: data symbols.
        length: data symbols of a prompt.
        walk_share: share of prompts whose data is a random walk in steps of 1 and 2, reflected at the ends; the
            data of the others is uniform.
        n_arguments: argument words, times their synonyms.
        synonyms: words of each operation.
        argument_synonyms: words of each argument.
        n_fillers: filler words.
        n_eval: prompts of each skill in a split.
        seed: for the permutation and of all data.
        stream_seed: a further seed of ``train_batch`` alone: another order of the same skills.

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
    seen: tuple[str, ...] = tuple(f"{operation}-{k}" for operation, ks in _SEEN.items() for k in ks)
    encoded: tuple[str, ...] = OPERATIONS[:2]
    encoded_share: Share = 0.5
    pair_share: Share = 0.2
    label_share: Share = 0.15
    n_symbols: Annotated[int, AtLeast(4)] = 12
    length: Several = 8
    walk_share: Share = 0.5
    n_arguments: Count = 4
    synonyms: Count = 3
    argument_synonyms: Count = 2
    n_fillers: Count = 6
    n_eval: Count = 1000
    seed: CountOrZero = 0
    stream_seed: CountOrZero = 0

    def __post_init__(self) -> None:
        check_settings(self)
        if self.length < 2 * self.n_arguments:
            raise InputError(
                f"length is {self.length}; expected at least {2 * self.n_arguments}, a pair for each of the "
                f"{self.n_arguments} arguments"
            )
        for name, values, known in (
            ("seen", self.seen, self.task_names),
            ("skills", self.skills, self.task_names),
            ("encoded", self.encoded, OPERATIONS),
        ):
            if unknown := [value for value in values if value not in known]:
                raise InputError(f"{name} has {unknown[0]!r}; expected some of {', '.join(known)}")
            if twice := repeated(values):
                raise InputError(f"{name} has {twice[0]!r} twice; give it once")
        if not self.encoded or set(self.encoded) == set(OPERATIONS):
            raise InputError(
                f"encoded has {len(self.encoded)} of {len(OPERATIONS)} operations; expected some and not all, so that "
                "clusters that pre-training encoded can be told from others"
            )
        words = {part for skill in self.seen for part in skill.split("-")}
        if lacking := [w for w in (*OPERATIONS, *map(str, range(self.n_arguments))) if w not in words]:
            raise InputError(
                f"seen has no skill with {lacking[0]!r}; expected every operation and every argument in some seen "
                "skill, or the held-out ones cannot be composed"
            )

    # ---- names ----

    @property
    def task_names(self) -> list[str]:
        """``"operation-argument"`` of every value of the label ``task``."""
        return [f"{operation}-{k}" for operation in OPERATIONS for k in range(self.n_arguments)]

    @property
    def cluster_names(self) -> list[str]:
        """The operation of every value of the label ``cluster``."""
        return list(OPERATIONS)

    @cached_property
    def vocab(self) -> list[str]:
        return [
            "PAD",
            *map(str, range(self.n_symbols)),
            *(f"{operation}.{s}" for operation in OPERATIONS for s in range(self.synonyms)),
            *(f"arg{k}.{s}" for k in range(self.n_arguments) for s in range(self.argument_synonyms)),
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
        return self.answer_position + 4

    @property
    def answer_position(self) -> int:
        """Where ANS stands, the last token of every prompt."""
        return 3 + self.length

    @cached_property
    def permutation(self) -> np.ndarray:
        """``[n_symbols]`` what ``translate`` turns each symbol into."""
        return generator(self.seed, "permutation").permutation(self.n_symbols)

    # ---- examples ----

    def _data(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """``[n length]`` symbols, and ``[n]`` the symbol that goes on with each as a walk."""
        top, steps = self.n_symbols - 1, rng.choice((-2, -1, 1, 2), (n, self.length + 1))
        walk = np.empty((n, self.length + 1), dtype=np.int64)
        walk[:, 0] = rng.integers(self.n_symbols, size=n)
        for i in range(1, self.length + 1):
            walk[:, i] = top - np.abs(top - np.abs(walk[:, i - 1] + steps[:, i]))
        rows = np.where(
            rng.random((n, 1)) < self.walk_share,
            walk[:, :-1],
            rng.integers(self.n_symbols, size=(n, self.length)),
        )
        return rows, top - np.abs(top - np.abs(rows[:, -1] + steps[:, 0]))

    def _pairs(self, rows: np.ndarray, argument: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        places = np.arange(len(rows))
        return rows[places, 2 * argument], rows[places, 2 * argument + 1]

    def _answers(self, rows: np.ndarray, operation: np.ndarray, argument: np.ndarray) -> np.ndarray:
        """``[n 2]`` token ids of the right answers; PAD where there is no second token."""
        a, b = self._pairs(rows, argument)
        symbol, quartile = self._id["0"], 4 * np.arange(self.n_symbols) // self.n_symbols
        first = np.stack(
            [
                symbol + a,
                symbol + b,
                symbol + self.permutation[a],
                self._id["type0"] + quartile[b],
                self._id["class0"] + quartile[a],
                self._id["NO"] + (a + b >= self.n_symbols),
            ]
        )[operation, np.arange(len(rows))]
        second = np.where(operation == 0, symbol + b, np.where(operation == 1, symbol + a, 0))
        return np.stack([first, second], axis=1)

    def _continuations(
        self, rng: np.random.Generator, rows: np.ndarray, after: np.ndarray, argument: np.ndarray
    ) -> np.ndarray:
        """``[n 2]`` generic answers of the pre-training stream."""
        n, symbol = len(rows), self._id["0"]
        a, b = self._pairs(rows, argument)
        label = self._id["type0"] + rng.integers(8, size=n)
        found = np.stack([np.where(rng.random(n) < self.label_share, label, symbol + after), np.zeros_like(a)], axis=1)
        pair = rng.random(n) < self.pair_share
        found[pair] = np.stack([symbol + a, symbol + b], axis=1)[pair]
        return found

    def _prompts(
        self, rng: np.random.Generator, rows: np.ndarray, operation: np.ndarray, argument: np.ndarray
    ) -> np.ndarray:
        """``[n answer_position + 1]`` tokens up to ANS."""
        n = len(rows)
        words = np.stack(
            [
                self._id["copy.0"] + operation * self.synonyms + rng.integers(self.synonyms, size=n),
                self._id["arg0.0"] + argument * self.argument_synonyms + rng.integers(self.argument_synonyms, size=n),
            ],
            axis=1,
        )
        swapped = rng.random((n, 1)) < 0.5
        filler = self._id["fill0"] + rng.integers(self.n_fillers, size=(n, 1))
        end = np.full((n, 1), self._id["ANS"])
        return np.concatenate([np.where(swapped, words[:, ::-1], words), filler, self._id["0"] + rows, end], axis=1)

    def _batch(
        self,
        prompts: np.ndarray,
        answers: np.ndarray,
        operation: np.ndarray,
        argument: np.ndarray,
        index: np.ndarray,
        whole: bool = False,
    ) -> Batch:
        n, at = len(prompts), self.answer_position
        tokens = np.concatenate([prompts, answers, np.zeros((n, 1), dtype=np.int64)], axis=1)
        length = 1 + (answers[:, 1] > 0)
        tokens[np.arange(n), at + 1 + length] = self._id["EOS"]
        targets = np.concatenate([tokens[:, 1:], np.zeros((n, 1), dtype=np.int64)], axis=1)
        counts = targets > 0
        if not whole:
            counts[:, :at] = False
        as_tensor = torch.from_numpy
        return Batch(
            tokens=as_tensor(tokens),
            attention_mask=as_tensor(tokens > 0),
            targets=as_tensor(targets),
            loss_mask=as_tensor(counts),
            positions={"answer": torch.full((n,), at)},
            labels={
                "task": as_tensor(operation * self.n_arguments + argument),
                "cluster": as_tensor(operation),
                "argument": as_tensor(argument),
            },
            index=as_tensor(index),
        )

    def _examples(self, rng: np.random.Generator, task: np.ndarray, index: np.ndarray) -> Batch:
        """Prompts of the skills ``[n]`` with their right answers."""
        operation, argument = np.divmod(task, self.n_arguments)
        rows, _ = self._data(rng, len(task))
        answers = self._answers(rows, operation, argument)
        return self._batch(self._prompts(rng, rows, operation, argument), answers, operation, argument, index)

    def _number(self, names: Sequence[str]) -> np.ndarray:
        known = self.task_names
        if unknown := [name for name in names if name not in known]:
            raise InputError(f"no skill {unknown[0]!r} (there are {', '.join(known)})")
        return np.array([known.index(name) for name in names], dtype=np.int64)

    # ---- what a Task offers ----

    def batches(self, split: str, batch_size: int = 250, *, tasks: Sequence[str] | None = None) -> Iterator[Batch]:
        """The examples of a split, skill after skill; of ``tasks`` only, where given."""
        self._check_split(split)
        for number in self._number(self.task_names if tasks is None else tasks).tolist():
            task, index = np.full(self.n_eval, number), number * self.n_eval + np.arange(self.n_eval)
            yield from self._examples(generator(self.seed, split, number), task, index).split(batch_size)

    def train_batch(self, step: int, batch_size: int) -> Batch:
        rng = generator(self.seed, self.stream, self.stream_seed, step)
        index = np.arange(batch_size)
        if self.stream == "tuning":
            return self._examples(rng, rng.choice(self._number(self.skills or self.seen), batch_size), index)
        known = np.array([OPERATIONS.index(operation) for operation in self.encoded])
        others = np.array([i for i in range(len(OPERATIONS)) if i not in known])
        answered = rng.random(batch_size) < self.encoded_share
        operation = np.where(answered, rng.choice(known, batch_size), rng.choice(others, batch_size))
        argument = rng.integers(self.n_arguments, size=batch_size)
        rows, after = self._data(rng, batch_size)
        generic = self._continuations(rng, rows, after, argument)
        answers = np.where(answered[:, None], self._answers(rows, operation, argument), generic)
        prompts = self._prompts(rng, rows, operation, argument)
        return self._batch(prompts, answers, operation, argument, index, whole=True)

    def accuracy(self, logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> Float[Tensor, "batch"]:
        """``[batch]`` 1 where every token of the answer is the most likely one, given those before it."""
        assert batch.targets is not None
        answer = slice(self.answer_position, self.answer_position + 2)
        targets = batch.targets[:, answer]
        counts = (targets > 0) & (targets != self._id["EOS"])
        return ((logits[:, answer].argmax(dim=-1) == targets) | ~counts).all(dim=1).float()

    def chance(self, split: str = "test") -> dict[str, float]:
        """Accuracy without the skill, by skill: of its commonest answer, or of its operation on the wrong argument.

        The larger of both; the second is that of the best other argument its operation is tuned on. Neighbouring
        symbols are alike where the data walks, so it can be far above the first.
        """
        found = {}
        for name in self.task_names:
            batch = Batch.concat(list(self.batches(split, tasks=[name])))
            rows = batch.tokens[:, 3 : self.answer_position].numpy() - self._id["0"]
            operation = batch.labels["cluster"].numpy()
            right = self._answers(rows, operation, batch.labels["argument"].numpy())
            shares = [np.unique(right, axis=0, return_counts=True)[1].max() / len(batch)]
            for other in self.seen:
                own, k = other.split("-")
                if own == name.split("-")[0] and other != name:
                    wrong = self._answers(rows, operation, np.full(len(batch), int(k)))
                    shares.append((wrong == right).all(axis=1).mean())
            found[name] = float(max(shares))
        return found
