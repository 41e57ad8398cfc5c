from __future__ import annotations

import re

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks._random import generator
from tasks._regex import RandomRegex, RegexElement
from tests.tasks.regex import python_pattern

NAMES = [chr(ord("a") + i) for i in range(12)]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 200))
def test_samples_match_the_expression_and_it_has_strings_to_spare(seed: int, wanted: int) -> None:
    rng = np.random.default_rng(seed)
    regex = RandomRegex.draw(rng, len(NAMES), wanted, (3, 4))
    assert len(regex.elements) >= 3
    assert all(1 <= len(e.symbols) <= 3 for e in regex.elements)
    assert np.prod([e.n_strings() for e in regex.elements], dtype=object) >= 2 * wanted
    for _ in range(5):
        string = regex.sample(rng)
        assert re.fullmatch(python_pattern(regex, NAMES), "".join(NAMES[s] for s in string))


def test_counts_of_a_known_expression() -> None:
    regex = RandomRegex((RegexElement((0, 1), (1, 1)), RegexElement((2,), (0, 1)), RegexElement((3, 4), (1, 3))))
    assert python_pattern(regex, NAMES) == "[ab]{1,1}[c]{0,1}[de]{1,3}"
    assert [e.n_strings() for e in regex.elements] == [2, 2, 2 + 4 + 8]


def test_a_generator_depends_on_its_address_alone() -> None:
    def draw(*address: int | str) -> list[int]:
        return generator(*address).integers(10**9, size=3).tolist()  # type: ignore[arg-type]

    assert draw(0, "train", 7) == draw(0, "train", 7)
    others = [draw(1, "train", 7), draw(0, "split", 7), draw(0, "train", 8), draw(0, "train")]
    assert draw(0, "train", 7) not in others
