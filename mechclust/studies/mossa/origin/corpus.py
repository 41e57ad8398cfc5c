"""A fixed number of training examples for each of several domains, used epoch after epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tasks import Batch, SkillSuite, Task
from tasks.skills import OPERATIONS

_DRAWN = 1000  # examples drawn at a time, for any corpus size: a smaller corpus is the beginning of a larger one


@dataclass(frozen=True)
class DomainCorpus(Task):
    """``n_examples`` prompts with answers per domain, which is an operation of a ``SkillSuite`` with all arguments.

    The examples of a domain do not depend on the other domains, and a smaller corpus is the beginning of a larger one.
    Every epoch goes through all examples in a different order. The loss is on the answer.

    Args:
        suite: the skills; its ``skills`` and ``stream_seed`` are not used.
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
        return self.suite.vocab

    @property
    def n_ctx(self) -> int:
        return self.suite.n_ctx

    @cached_property
    def examples(self) -> Batch:
        """All training examples, domain after domain."""
        return Batch.concat([self._of(domain) for domain in self.domains])

    def _of(self, domain: str) -> Batch:
        # Each domain has its own stream: otherwise domains would have the same prompts except for the operation.
        stream = replace(self.suite, skills=skills_of(self.suite, domain), stream_seed=1 + OPERATIONS.index(domain))
        parts = [stream.train_batch(step, _DRAWN) for step in range(-(-self.n_examples // _DRAWN))]
        return Batch.concat(parts).select(slice(self.n_examples))

    def batches(self, split: str, batch_size: int = 250) -> Iterator[Batch]:
        skills = [skill for domain in self.domains for skill in skills_of(self.suite, domain)]
        return self.suite.batches(split, batch_size, tasks=skills)

    def train_batch(self, step: int, batch_size: int) -> Batch:
        n = len(self.examples)
        places = np.arange(step * batch_size, (step + 1) * batch_size)
        seed = (self.suite.seed, self.order)
        rows = [_order(*seed, int(epoch), n)[places[places // n == epoch] % n] for epoch in np.unique(places // n)]
        found = self.examples.select(torch.from_numpy(np.concatenate(rows)))
        return replace(found, index=torch.arange(batch_size))  # an example may come twice, at the end of an epoch

    def accuracy(self, logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> Float[Tensor, "batch"]:
        """As ``SkillSuite.accuracy``: for the answer only."""
        return self.suite.accuracy(logits, batch)


@lru_cache(maxsize=8)
def _order(seed: int, order: int, epoch: int, n: int) -> np.ndarray:
    return np.random.default_rng([seed, order, epoch]).permutation(n)


def skills_of(suite: SkillSuite, domain: str) -> tuple[str, ...]:
    """The skills of a domain: its operation with every argument."""
    return tuple(name for name in suite.task_names if name.rpartition("-")[0] == domain)
