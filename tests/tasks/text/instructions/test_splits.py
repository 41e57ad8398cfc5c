from __future__ import annotations

import hashlib

from tasks.text.instructions import Example, split_of_instruction
from tasks.text.instructions.splits import with_test_split

PROMPTS = [f"Question {i}, überall?" for i in range(4000)]


def test_the_rule_is_the_hash_of_the_text_alone() -> None:
    """Written out once more, by the first 8 of blake2b's bytes: it must never move."""
    for prompt in PROMPTS[:200]:
        tenth = int(hashlib.blake2b(prompt.encode(), digest_size=8).hexdigest(), 16) * 10 // 2**64
        assert split_of_instruction(prompt) == {0: "test", 1: "validation"}.get(tenth, "train")


def test_a_tenth_each_is_for_validation_and_testing() -> None:
    found = [split_of_instruction(prompt) for prompt in PROMPTS]
    for split in ("validation", "test"):
        assert abs(found.count(split) / len(PROMPTS) - 0.1) < 0.02  # four standard errors


def test_only_what_is_missing_is_cut_and_nothing_is_lost() -> None:
    given = [Example(prompt, "yes") for prompt in PROMPTS[:300]]
    other = [Example("Given?", "yes")]

    split, cut = with_test_split({None: given})
    assert cut == ("validation", "test")
    assert {name: [split_of_instruction(e.prompt) for e in found] for name, found in split.items()} == {
        name: [name] * len(found) for name, found in split.items()
    }
    assert sorted(e.prompt for found in split.values() for e in found) == sorted(PROMPTS[:300])
    assert with_test_split({"train": given}) == (split, cut)

    found, cut = with_test_split({"train": given, "validation": other})
    assert cut == ("test",)
    assert found["test"] == split["test"]
    assert found["validation"] == other
    assert found["train"] == [e for e in given if e not in split["test"]]

    assert with_test_split({"train": given, "test": other}) == ({"train": given, "validation": [], "test": other}, ())
    every = {"train": given, "validation": other, "test": other}
    assert with_test_split(every) == (every, ())
