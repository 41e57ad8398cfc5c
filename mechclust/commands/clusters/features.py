"""Surface features of prompts, read from their text and tokens without any model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

RARE = "(rare)"
MIN_PROMPTS = 5  # of one value. Rarer values are pooled
WORDS = ("last word", "first word")
TOKENS = ("last token", "first token", "length")
_N_LENGTH_BINS = 5


def surface_features(
    texts: Sequence[str],
    ids: Sequence[Sequence[int]],
    decode: Callable[[int], str],
    special: Collection[int] = (),
) -> dict[str, list[str]]:
    """Return ``last word``, ``last token``, ``first word``, ``first token`` and ``length`` of each prompt, by name.

    Values of fewer than 5 prompts are pooled as ``(rare)``. Features with a single value are left out.

    Args:
        texts: the prompts, without a chat template.
        ids: token ids of each prompt, as the model reads them.
        decode: returns a token's text.
        special: ids of tokens that are no text. First and last token are the ones between them.

    Example:
        >>> texts = 5 * ["Sort b a now"] + 5 * ["Count b a now"]
        >>> features = surface_features(texts, [[len(word) for word in text.split()] for text in texts], str)
        >>> sorted(set(features["first word"])), "last word" in features
        (['Count', 'Sort'], False)
    """
    inner = [[i for i in row if i not in special] or list(row) for row in ids]
    first = [row[0] for row in inner]
    last = [row[-1] for row in inner]
    names = _distinct_names({i: decode(i) for i in {*first, *last}})
    words = word_features(texts)
    features = {
        "last word": words["last word"],
        "last token": pool_rare_values([names[i] for i in last]),
        "first word": words["first word"],
        "first token": pool_rare_values([names[i] for i in first]),
        "length": _length_bins([len(row) for row in ids]),
    }
    return {name: values for name, values in features.items() if len(set(values)) > 1}


def word_features(texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the features that need no tokens, including features with a single value.

    Example:
        >>> word_features(5 * ["Sort b a"])["first word"]
        ['Sort', 'Sort', 'Sort', 'Sort', 'Sort']
    """
    words = [text.split() for text in texts]
    return {
        "last word": pool_rare_values([row[-1] for row in words]),
        "first word": pool_rare_values([row[0] for row in words]),
    }


def pool_rare_values(values: Sequence[str], least: int = MIN_PROMPTS) -> list[str]:
    """Return the values, with values of fewer than ``least`` examples replaced by ``(rare)``.

    Example:
        >>> pool_rare_values(["a", "a", "b", "c"], least=2)
        ['a', 'a', '(rare)', '(rare)']
    """
    counts = Counter(values)
    return [value if counts[value] >= least else RARE for value in values]


def labels_determine(label: Sequence[str], *given: Sequence[str]) -> bool:
    """Return whether prompts that agree in all of ``given`` also agree in ``label``.

    Example:
        >>> labels_determine(["a", "a", "b"], ["x", "x", "y"]), labels_determine(["a", "b", "b"], ["x", "x", "y"])
        (True, False)
    """
    strata = list(zip(*given, strict=True))
    return len(set(strata)) == len(set(zip(strata, label, strict=True)))


def _length_bins(lengths: Sequence[int]) -> list[str]:
    """Return the range of each length's bin. Bins have about equally many prompts."""
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, _N_LENGTH_BINS + 1)[1:-1]))
    places = np.searchsorted(edges, lengths)
    texts = {}
    for place in np.unique(places):
        in_bin = np.asarray(lengths)[places == place]
        low = int(in_bin.min())
        high = int(in_bin.max())
        texts[int(place)] = f"{low} tokens" if low == high else f"{low}-{high} tokens"
    return [texts[int(place)] for place in places]


def _distinct_names(texts: Mapping[int, str]) -> dict[int, str]:
    """Return the text of each token, with its id if the text is blank or shared by several tokens."""
    counts = Counter(texts.values())
    return {i: text if counts[text] == 1 and text.strip() else f"{text!r} (id {i})" for i, text in texts.items()}
