"""Random regular expressions over a few symbols, as instruction grammars."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# (fewest, most) repeats, "drawn uniformly": once is twice as likely as optional or repeated.
_QUANTIFIERS = ((1, 1), (1, 1), (0, 1), (1, 3))


@dataclass(frozen=True)
class Element:
    """A class of symbols with a quantifier, such as ``[ab]+``."""

    symbols: tuple[int, ...]
    repeats: tuple[int, int]

    def n_strings(self) -> int:
        low, high = self.repeats
        return sum(len(self.symbols) ** n for n in range(low, high + 1))


@dataclass(frozen=True)
class RandomRegex:
    """A sequence of elements; strings are tuples of symbol numbers."""

    elements: tuple[Element, ...]

    @classmethod
    def draw(cls, rng: np.random.Generator, n_symbols: int, n_strings: int, elements: tuple[int, int]) -> RandomRegex:
        """A random expression of ``elements[0]`` to ``elements[1]`` elements that can spell clearly
        more than ``n_strings`` strings; of more elements only where draws of that size cannot."""
        count = int(rng.integers(elements[0], elements[1] + 1))
        while True:
            for _ in range(50):
                parts = [_draw_element(rng, n_symbols) for _ in range(count)]
                if _spelled(parts) >= 2 * n_strings:
                    return cls(tuple(parts))
            count += 1

    def sample(self, rng: np.random.Generator) -> tuple[int, ...]:
        """One string: a uniform number of repeats per element, then uniform symbols."""
        out: list[int] = []
        for element in self.elements:
            repeats = int(rng.integers(element.repeats[0], element.repeats[1] + 1))
            out.extend(element.symbols[int(k)] for k in rng.integers(len(element.symbols), size=repeats))
        return tuple(out)


def _draw_element(rng: np.random.Generator, n_symbols: int) -> Element:
    size = int(rng.integers(1, 4))
    symbols = tuple(sorted(int(s) for s in rng.choice(n_symbols, size, replace=False)))
    return Element(symbols, _QUANTIFIERS[int(rng.integers(len(_QUANTIFIERS)))])


def _spelled(parts: list[Element]) -> int:
    total = 1
    for part in parts:
        total *= part.n_strings()
    return total  # an upper bound: two spellings may coincide
