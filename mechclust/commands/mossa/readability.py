"""How hard texts are to read: two indices, by the library textstat."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tasks import InputError

INDICES = ("Flesch-Kincaid", "Coleman-Liau")


def readability(texts: Sequence[str]) -> tuple[dict[str, float], str]:
    """Mean grade levels over texts, and how they were found.

    Syllables are those of the CMU pronouncing dictionary where NLTK has it (``nltk.download('cmudict')``), else places
    of hyphenation, which moves Flesch-Kincaid by less than a grade on prose.

    Args:
        texts: such as the prompts of a task.

    Returns:
        ``"Flesch-Kincaid"`` and ``"Coleman-Liau"`` to a grade, and a sentence on the syllables.

    Raises:
        InputError: where textstat is not installed.

    Example:
        >>> found, how = readability(["The cat sat on the mat. It was comfortable."])
        >>> sorted(found)
        ['Coleman-Liau', 'Flesch-Kincaid']
    """
    try:
        import textstat
    except ImportError:
        raise InputError("readability needs textstat; install it with: pip install 'mechclust[llm]'") from None
    coleman = float(np.mean([textstat.coleman_liau_index(text) for text in texts]))
    if _has_dictionary():
        flesch, how = [textstat.flesch_kincaid_grade(text) for text in texts], "the CMU pronouncing dictionary"
    else:
        flesch, how = [_flesch_kincaid(text) for text in texts], "places of hyphenation"
    return {"Flesch-Kincaid": float(np.mean(flesch)), "Coleman-Liau": coleman}, f"Syllables are counted by {how}."


def _has_dictionary() -> bool:
    import nltk

    try:
        nltk.data.find("corpora/cmudict")
    except LookupError:
        return False
    return True


def _flesch_kincaid(text: str) -> float:
    """Kincaid et al. 1975, with textstat's words and sentences."""
    import textstat
    from pyphen import Pyphen

    hyphens = Pyphen(lang="en_US")
    words = text.lower().split()
    syllables = sum(len(hyphens.positions(word)) + 1 for word in words)
    return 0.39 * float(textstat.words_per_sentence(text)) + 11.8 * syllables / max(1, len(words)) - 15.59
