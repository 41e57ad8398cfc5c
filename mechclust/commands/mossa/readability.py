"""Measure how hard texts are to read: two indices, by the library textstat."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from mechclust.commands.parts import MeasurementPart, part_path
from probes import ProbeResult
from probes.store.digest import digest_of
from probes.store.versions import package_versions
from tasks import InputError

INDICES = ("Flesch-Kincaid", "Coleman-Liau")


def readability(texts: Sequence[str]) -> dict[str, float]:
    """Return mean grade levels over texts.

    Syllables are from the CMU pronouncing dictionary if NLTK has it (``nltk.download('cmudict')``). Otherwise, they are
    places of hyphenation, which moves Flesch-Kincaid by less than a grade on prose.

    Args:
        texts: such as the prompts of a task.

    Returns:
        ``"Flesch-Kincaid"`` and ``"Coleman-Liau"`` to a grade.

    Raises:
        InputError: if textstat is not installed.

    Example:
        >>> sorted(readability(["The cat sat on the mat. It was comfortable."]))
        ['Coleman-Liau', 'Flesch-Kincaid']
    """
    has_dictionary = _has_dictionary()
    import textstat

    flesch_kincaid = textstat.flesch_kincaid_grade if has_dictionary else _flesch_kincaid
    return {
        "Flesch-Kincaid": float(np.mean([flesch_kincaid(text) for text in texts])),
        "Coleman-Liau": float(np.mean([textstat.coleman_liau_index(text) for text in texts])),
    }


def kept_readability(texts: Sequence[str], folder: Path) -> tuple[dict[str, float], str]:
    """Return ``readability`` and how syllables are counted, kept in a folder, since many texts take minutes.

    Raises:
        InputError: if textstat is not installed.
    """
    syllables = "the CMU pronouncing dictionary" if _has_dictionary() else "places of hyphenation"
    path = part_path(folder, "readability", [digest_of(list(texts)), syllables, version("textstat")], [])
    grades = MeasurementPart(path, "readability", partial(_readability_result, texts)).found()
    return {index: float(grades[index]) for index in INDICES}, f"Syllables are counted by {syllables}."


def _readability_result(texts: Sequence[str]) -> ProbeResult:
    values = {index: torch.tensor(grade, dtype=torch.float64) for index, grade in readability(texts).items()}
    return ProbeResult("Readability", values, dict.fromkeys(values, ()), {}, metadata={"versions": package_versions()})


def _has_dictionary() -> bool:
    """Return whether NLTK has the CMU dictionary.

    Raises:
        InputError: if textstat is not installed, which brings NLTK.
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
    """Return the grade by Kincaid et al. 1975, with textstat's words and sentences."""
    import textstat
    from pyphen import Pyphen

    hyphens = Pyphen(lang="en_US")
    words = text.lower().split()
    syllables = sum(len(hyphens.positions(word)) + 1 for word in words)
    return 0.39 * float(textstat.words_per_sentence(text)) + 11.8 * syllables / max(1, len(words)) - 15.59
