"""Seed torch's global generators for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """Seed torch's global generators, and give them back as they were.

    The generators of GPUs that were not used yet are left alone: torch would seed them at their first use.
    """
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield
