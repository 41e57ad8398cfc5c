"""How hard texts are to read: two indices, by the library textstat."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from mechclust.commands.parts import MeasurementPart, part_path
from probes import ProbeResult
from probes.store.digest import digest_of
from probes.store.files import versions
from tasks import InputError

INDICES = ("Flesch-Kincaid", "Coleman-Liau")
_CMU, _HYPHENS = "the CMU pronouncing dictionary", "places of hyphenation"


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
    dictionary = _has_dictionary()
    import textstat

    coleman = float(np.mean([textstat.coleman_liau_index(text) for text in texts]))
    flesch = [textstat.flesch_kincaid_grade(text) if dictionary else _flesch_kincaid(text) for text in texts]
    how = _CMU if dictionary else _HYPHENS
    return {"Flesch-Kincaid": float(np.mean(flesch)), "Coleman-Liau": coleman}, _said(how)


def kept_readability(texts: Sequence[str], folder: Path) -> tuple[dict[str, float], str]:
    """``readability``, made once for these texts and kept in a folder: of many it takes minutes.

    Raises:
        InputError: where textstat is not installed.
    """
    digest = digest_of(list(texts))
    how = _CMU if _has_dictionary() else _HYPHENS

    def made() -> ProbeResult:
        grades, _ = readability(texts)
        values = {index: torch.tensor(grade, dtype=torch.float64) for index, grade in grades.items()}
        return ProbeResult("Readability", values, dict.fromkeys(values, ()), {}, metadata={"versions": versions()})

    path = part_path(folder, "readability", [digest, how, version("textstat")], [])
    found = MeasurementPart(path, "readability", made).found()
    return {index: float(found[index]) for index in INDICES}, _said(how)


def _said(how: str) -> str:
    return f"Syllables are counted by {how}."


def _has_dictionary() -> bool:
    """Whether the CMU dictionary is here.

    Raises:
        InputError: where textstat is not installed, which brings NLTK.
    """
    try:
        import nltk
        import textstat  # noqa: F401
    except ImportError:
        raise InputError("readability needs textstat; install it with: pip install 'mechclust[llm]'") from None

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
