"""Splits of examples for training and testing, if the data have none."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Literal

from tasks.text.instructions.example import Example

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

TEST_SHARE = 0.1  # equal to the share for validation


def split_of_instruction(prompt: str) -> Split:
    """Return the split of a prompt, by a hash of its text: about a tenth each is for validation and for testing.

    It depends on the text alone. So a prompt never moves when examples are added or reordered, and equal prompts, also
    of two tasks, are in one split. One question in two wordings is two prompts: such data should come with splits.

    Example:
        >>> [split_of_instruction(f"Sort: b a {i}") for i in range(5)]
        ['train', 'test', 'test', 'validation', 'train']
    """
    digest = hashlib.blake2b(prompt.encode("utf-8"), digest_size=8).digest()
    place = int.from_bytes(digest, "big") / 2**64
    if place < TEST_SHARE:
        return "test"
    return "validation" if place < 2 * TEST_SHARE else "train"


def with_test_split(
    given: Mapping[Split | None, Sequence[Example]],
) -> tuple[dict[Split, list[Example]], tuple[Split, ...]]:
    """Return examples by split, with a test split: if none is given, it is cut from the training examples.

    ``split_of_instruction`` cuts it, and with it a validation split if none is given. If a test split is given, no
    split is cut.

    Args:
        given: examples by their split in the data, or under ``None`` if the data have no splits.

    Returns:
        The examples, and which splits were cut.
    """
    cut: tuple[Split, ...] = ()
    if "test" not in given:
        cut = ("test",) if "validation" in given else ("validation", "test")
    examples: dict[Split, list[Example]] = {
        "train": [],
        "validation": list(given.get("validation", ())),
        "test": list(given.get("test", ())),
    }
    for example in (*given.get("train", ()), *given.get(None, ())):
        split = split_of_instruction(example.prompt) if cut else "train"
        examples[split if split in cut else "train"].append(example)
    return examples, cut
