"""Which rows make a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np
from jaxtyping import Int

from tasks._random import generator
from tasks.errors import InputError
from tasks.settings import check_count

_PADDING_DIVISOR = 32  # token_batch_rows makes no batch in which more than 1/32 of tokens_per_batch is padding


def consecutive_batch_rows(n: int, batch_size: int) -> Iterator[Int[np.ndarray, "row"]]:
    """Yield which of ``n`` rows make each of consecutive batches. The last may be smaller.

    Example:
        >>> [rows.tolist() for rows in consecutive_batch_rows(5, 2)]
        [[0, 1], [2, 3], [4]]
    """
    check_count(batch_size=(batch_size, 1))
    for start in range(0, n, batch_size):
        yield np.arange(start, min(start + batch_size, n))


def token_batch_rows(
    lengths: Sequence[int], tokens_per_batch: int, name: Callable[[int], str]
) -> Iterator[Int[np.ndarray, "row"]]:
    """Yield the sequences of each batch: similar lengths together, longest first.

    A batch's number of sequences times its longest is at most ``tokens_per_batch``, which counts padding too. It ends
    earlier if more than 1/32 of that would be padding, so that a few sequences of very different lengths are not padded
    to the longest.

    Args:
        lengths: tokens of each sequence.
        tokens_per_batch: most tokens of a batch.
        name: returns the name of a sequence, given its place in ``lengths``.

    Raises:
        InputError: for a sequence longer than ``tokens_per_batch``.

    Example:
        >>> [rows.tolist() for rows in token_batch_rows([3, 1, 6, 2], 6, str)]
        [[2], [0, 3], [1]]
    """
    check_count(tokens_per_batch=(tokens_per_batch, 1))
    n_tokens = np.asarray(lengths, dtype=np.int64)
    longest_first = np.argsort(-n_tokens, kind="stable")
    if len(longest_first) > 0 and n_tokens.max() > tokens_per_batch:
        raise InputError(
            f"tokens_per_batch is {tokens_per_batch}, fewer than the {n_tokens.max()} tokens of "
            f"{name(int(longest_first[0]))}; give at least {n_tokens.max()}, or leave out longer examples"
        )
    max_padding = math.ceil(tokens_per_batch / _PADDING_DIVISOR)
    start = 0
    while start < len(longest_first):
        longest = max(1, int(n_tokens[longest_first[start]]))
        fitting = longest_first[start : start + tokens_per_batch // longest]
        padding = np.cumsum(longest - n_tokens[fitting])  # padding of a batch that ends with each sequence
        n_rows = max(1, int(np.searchsorted(padding, max_padding, side="right")))
        yield fitting[:n_rows]
        start += n_rows


@lru_cache(maxsize=8)
def _order(seed: int, epoch: int, n: int) -> Int[np.ndarray, "n"]:
    return generator(seed, "order", epoch).permutation(n)


def epoch_batch_rows(seed: int, step: int, n: int, batch_size: int) -> Int[np.ndarray, "row"]:
    """Return which of ``n`` examples a training step sees.

    Each epoch goes through them in a new order. A last batch that would be smaller is left out.

    Example:
        >>> sorted(int(i) for step in (0, 1) for i in epoch_batch_rows(0, step, n=4, batch_size=2))
        [0, 1, 2, 3]
    """
    check_count(step=(step, 0))
    epoch, place = divmod(step, n // batch_size)
    return _order(seed, epoch, n)[place * batch_size : (place + 1) * batch_size].copy()  # the order is kept
