"""Random regular expressions over a few symbols, as instruction grammars."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

# (fewest, most) repeats, "drawn uniformly": once is twice as likely as optional or repeated.
_QUANTIFIERS = ((1, 1), (1, 1), (0, 1), (1, 3))


@dataclass(frozen=True)
class RegexElement:
    """A class of symbols with a quantifier, such as ``[ab]+``."""

    symbols: tuple[int, ...]
    repeats: tuple[int, int]

    def n_strings(self) -> int:
        """Return how many different strings the element matches."""
        low, high = self.repeats
        return sum(len(self.symbols) ** n for n in range(low, high + 1))


@dataclass(frozen=True)
class RandomRegex:
    """A sequence of elements. Its strings are tuples of symbol numbers."""

    elements: tuple[RegexElement, ...]

    @classmethod
    def draw(cls, rng: np.random.Generator, n_symbols: int, n_strings: int, elements: tuple[int, int]) -> RandomRegex:
        """Draw an expression that can spell clearly more than ``n_strings`` strings.

        It has ``elements[0]`` to ``elements[1]`` elements, and more only if draws of that size cannot spell enough.
        """
        count = int(rng.integers(elements[0], elements[1] + 1))
        while True:
            for _ in range(50):
                parts = [_draw_element(rng, n_symbols) for _ in range(count)]
                if _max_strings(parts) >= 2 * n_strings:
                    return cls(tuple(parts))
            count += 1

    def sample(self, rng: np.random.Generator) -> tuple[int, ...]:
        """Draw one string: a uniform number of repeats per element, then uniform symbols."""
        string: list[int] = []
        for element in self.elements:
            repeats = int(rng.integers(element.repeats[0], element.repeats[1] + 1))
            string.extend(element.symbols[int(k)] for k in rng.integers(len(element.symbols), size=repeats))
        return tuple(string)


def _draw_element(rng: np.random.Generator, n_symbols: int) -> RegexElement:
    size = int(rng.integers(1, 4))
    symbols = tuple(sorted(int(s) for s in rng.choice(n_symbols, size, replace=False)))
    return RegexElement(symbols, _QUANTIFIERS[int(rng.integers(len(_QUANTIFIERS)))])


def _max_strings(parts: list[RegexElement]) -> int:
    """Return an upper bound of how many strings the parts spell: two spellings may coincide."""
    return math.prod(part.n_strings() for part in parts)
