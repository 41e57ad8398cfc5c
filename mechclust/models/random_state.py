"""Seed torch's global generators for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded_generators(seed: int, *, gpu: bool = False) -> Iterator[None]:
    """Seed torch's global generators, and give them back as they were.

    CUDA's are left alone if CUDA was not used yet: torch would seed them at their first use.

    Args:
        seed: the seed.
        gpu: whether the block may be the first to use CUDA. It is then initialised before.
    """
    if gpu and torch.cuda.is_available():
        torch.cuda.init()  # type: ignore[no-untyped-call]
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    try:
        with torch.random.fork_rng(devices=devices):
            torch.default_generator.manual_seed(seed)
            if devices:
                torch.cuda.manual_seed_all(seed)
            if mps is not None:
                torch.mps.manual_seed(seed)
            yield
    finally:
        if mps is not None:
            torch.mps.set_rng_state(mps)
