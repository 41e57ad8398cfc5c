"""Which examples are for training and which for testing, where the data do not say it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Literal

from tasks.text.instructions.collection import Example

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

TEST_SHARE = 0.1  # and as much for validation


def split_of(prompt: str) -> Split:
    """The split of a prompt, by a hash of its text: about a tenth each is for validation and for testing.

    It depends on nothing else: it never moves when examples are added or put in another order, and equal prompts, also
    of two tasks, are in one split. One question in two wordings is two prompts: such data should bring splits of their
    own.

    Example:
        >>> [split_of(f"Sort: b a {i}") for i in range(5)]
        ['train', 'test', 'test', 'validation', 'train']
    """
    digest = hashlib.blake2b(prompt.encode("utf-8"), digest_size=8).digest()
    place = int.from_bytes(digest, "big") / 2**64
    return "test" if place < TEST_SHARE else "validation" if place < 2 * TEST_SHARE else "train"


def with_test(given: Mapping[Split | None, Sequence[Example]]) -> tuple[dict[Split, list[Example]], tuple[Split, ...]]:
    """Examples by split, with a test split: where none is given, ``split_of`` cuts it from the training examples.

    A validation split is cut with it where there is none. What is given stays as it is: nothing is cut beside a test
    split.

    Args:
        given: examples by the split that the data say, or under ``None`` where they say none.

    Returns:
        The examples, and which splits were cut.
    """
    found: dict[Split, list[Example]] = {split: list(given.get(split, ())) for split in SPLITS if split != "train"}
    cut = () if "test" in given else tuple(split for split in SPLITS if split != "train" and split not in given)
    found["train"] = []
    for example in (*given.get("train", ()), *given.get(None, ())):
        split = split_of(example.prompt) if cut else "train"
        found[split if split in cut else "train"].append(example)
    return found, cut
