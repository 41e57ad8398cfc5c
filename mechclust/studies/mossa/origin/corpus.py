"""Train on a fixed number of examples of each of several domains, epoch after epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tasks import Batch, SkillSuite, Task
from tasks.skills import OPERATIONS

_EXAMPLES_PER_DRAW = 1000  # for any corpus size, so that a smaller corpus is the beginning of a larger one


@dataclass(frozen=True)
class DomainCorpus(Task):
    """``n_examples`` prompts with answers per domain, which is an operation of a ``SkillSuite`` with all arguments.

    The examples of a domain do not depend on the other domains, and a smaller corpus is the beginning of a larger one.
    Every epoch goes through all examples in a different order. The loss is on the answer.

    Args:
        suite: the skills. Its ``skills`` and ``stream_seed`` are not used.
        domains: operations.
        n_examples: number of examples per domain.
        order: seed of the order of examples.

    Example:
        >>> corpus = DomainCorpus(SkillSuite(), ("copy", "type"), n_examples=3)
        >>> sorted(corpus.train_batch(0, batch_size=6).labels["cluster"].tolist())
        [0, 0, 0, 3, 3, 3]
    """

    name: ClassVar[str] = "domain-corpus"
    splits: ClassVar[tuple[str, ...]] = SkillSuite.splits

    suite: SkillSuite = SkillSuite()
    domains: tuple[str, ...] = OPERATIONS
    n_examples: int = 1000
    order: int = 0

    @property
    def vocab(self) -> list[str]:
        """The suite's vocabulary."""
        return self.suite.vocab

    @property
    def n_ctx(self) -> int:
        """The suite's context length."""
        return self.suite.n_ctx

    @cached_property
    def examples(self) -> Batch:
        """All training examples, domain after domain."""
        return Batch.concat([self._examples_of(domain) for domain in self.domains])

    def _examples_of(self, domain: str) -> Batch:
        # Each domain has its stream. Otherwise, the prompts of domains would differ in the operation only.
        stream = replace(self.suite, skills=skills_of(self.suite, domain), stream_seed=1 + OPERATIONS.index(domain))
        n_draws = math.ceil(self.n_examples / _EXAMPLES_PER_DRAW)
        draws = [stream.train_batch(step, _EXAMPLES_PER_DRAW) for step in range(n_draws)]
        return Batch.concat(draws).select(slice(self.n_examples))

    def batches(self, split: str, batch_size: int = 250) -> Iterator[Batch]:
        """Yield the examples of a split, of all arguments of the domains."""
        skills = [skill for domain in self.domains for skill in skills_of(self.suite, domain)]
        return self.suite.batches(split, batch_size, tasks=skills)

    def train_batch(self, step: int, batch_size: int) -> Batch:
        """Return the examples of a training step."""
        n = len(self.examples)
        places = np.arange(step * batch_size, (step + 1) * batch_size)
        epochs = places // n
        rows = []
        for epoch in np.unique(epochs):
            order = _order(self.suite.seed, self.order, int(epoch), n)
            rows.append(order[places[epochs == epoch] % n])
        batch = self.examples.select(torch.from_numpy(np.concatenate(rows)))
        return replace(batch, index=torch.arange(batch_size))  # an example may come twice, at the end of an epoch

    def accuracy(self, logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> Float[Tensor, "batch"]:
        """Return the accuracy of each answer, as ``SkillSuite.accuracy``."""
        return self.suite.accuracy(logits, batch)


@lru_cache(maxsize=8)
def _order(seed: int, order: int, epoch: int, n: int) -> Int[np.ndarray, "example"]:
    return np.random.default_rng([seed, order, epoch]).permutation(n)


def skills_of(suite: SkillSuite, domain: str) -> tuple[str, ...]:
    """Return the skills of a domain: its operation with every argument."""
    return tuple(name for name in suite.task_names if name.rpartition("-")[0] == domain)
