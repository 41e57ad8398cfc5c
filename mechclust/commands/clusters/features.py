"""Surface features of prompts: what can be told from their text and tokens without any model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

RARE = "(rare)"
LEAST = 5  # prompts of one value; rarer ones are pooled
WORDS, TOKENS = ("last word", "first word"), ("last token", "first token", "length")
_BINS = 5  # of lengths


def surface_features(
    texts: Sequence[str],
    ids: Sequence[Sequence[int]],
    decode: Callable[[int], str],
    special: Collection[int] = (),
) -> dict[str, list[str]]:
    """Name to one value per prompt: ``last word``, ``last token``, ``first word``, ``first token``, ``length``.

    Values of fewer than 5 prompts are pooled as ``(rare)``. A feature is left out where it has one value, or where
    nothing is left of it but rare ones.

    Args:
        texts: the prompts, without a chat template.
        ids: ``[n]`` token ids of each, as the model reads them.
        decode: a token's text.
        special: ids of tokens that stand for no text; first and last token are those between them.

    Example:
        >>> texts = 5 * ["Sort b a now"] + 5 * ["Count b a now"]
        >>> found = surface_features(texts, [[len(word) for word in text.split()] for text in texts], str)
        >>> sorted(set(found["first word"])), "last word" in found
        (['Count', 'Sort'], False)
    """
    inner = [[i for i in row if i not in special] or list(row) for row in ids]
    ends = {row[place] for row in inner for place in (0, -1)}
    names = _told_apart({i: decode(i) for i in ends})
    words = word_features(texts)
    found = {
        "last word": words["last word"],
        "last token": pooled([names[row[-1]] for row in inner]),
        "first word": words["first word"],
        "first token": pooled([names[row[0]] for row in inner]),
        "length": _bins([len(row) for row in ids]),
    }
    return {name: values for name, values in found.items() if len(set(values)) > 1}


def word_features(texts: Sequence[str]) -> dict[str, list[str]]:
    """Those that need no tokens, also where they have one value.

    Example:
        >>> word_features(5 * ["Sort b a"])["first word"]
        ['Sort', 'Sort', 'Sort', 'Sort', 'Sort']
    """
    words = [text.split() for text in texts]
    return {"last word": pooled([row[-1] for row in words]), "first word": pooled([row[0] for row in words])}


def pooled(values: Sequence[str], least: int = LEAST) -> list[str]:
    """The values, those of fewer than ``least`` examples as one.

    Example:
        >>> pooled(["a", "a", "b", "c"], least=2)
        ['a', 'a', '(rare)', '(rare)']
    """
    counts = Counter(values)
    return [value if counts[value] >= least else RARE for value in values]


def determines(label: Sequence[str], *given: Sequence[str]) -> bool:
    """Whether prompts with the same values of all of ``given`` never have two of ``label``: nothing is left of it then.

    Example:
        >>> determines(["a", "a", "b"], ["x", "x", "y"]), determines(["a", "b", "b"], ["x", "x", "y"])
        (True, False)
    """
    strata = list(zip(*given, strict=True))
    return len(set(strata)) == len(set(zip(strata, label, strict=True)))


def _bins(lengths: Sequence[int]) -> list[str]:
    """Each length as the range of its bin; bins hold about as many prompts each."""
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, _BINS + 1)[1:-1]))
    places = np.searchsorted(edges, lengths)
    texts = {}
    for place in np.unique(places):
        within = np.asarray(lengths)[places == place]
        low, high = int(within.min()), int(within.max())
        texts[int(place)] = f"{low} tokens" if low == high else f"{low}-{high} tokens"
    return [texts[int(place)] for place in places]


def _told_apart(names: Mapping[int, str]) -> dict[int, str]:
    """Texts of tokens; those of the same text also by their id."""
    counts = Counter(names.values())
    return {i: name if counts[name] == 1 and name.strip() else f"{name!r} (id {i})" for i, name in names.items()}
