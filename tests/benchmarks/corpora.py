"""Memory of what a suite does with its corpus: a long text is to take no more than a short one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np

from tests.benchmarks.memory import own, printed

SHORT, LONG = 20, 200  # MB of text
_WORDS, _PER_DOCUMENT, _AT_ONCE = 100_000, 300, 500
_EVERY = 500  # documents
PASSES = ("counting words", "weighing words", "fitting topics", "drawing documents")


def write_text(path: Path, megabytes: float) -> None:
    """Documents of 300 words that follow Zipf's law, one a line."""
    rng = np.random.default_rng(0)
    letters = rng.integers(97, 123, size=(_WORDS, 8)).astype(np.uint8)
    words = np.array([bytes(row[: 3 + i % 6]).decode() for i, row in enumerate(letters)], dtype=object)
    share = 1 / np.arange(1, _WORDS + 1)
    edges = np.cumsum(share / share.sum())
    with open(path, "w", encoding="utf-8") as file:
        while file.tell() < megabytes * 1e6:
            drawn = words[np.searchsorted(edges, rng.random((_AT_ONCE, _PER_DOCUMENT))).clip(max=_WORDS - 1)]
            file.writelines(" ".join(row) + "\n" for row in drawn)


def measure(megabytes: float) -> None:
    """Print how much more memory, in MiB, the process has in each of ``PASSES`` than before the first.

    Pages of the scratch files do not count: the system drops them when it needs the room.
    """
    from sklearn.decomposition import LatentDirichletAllocation  # noqa: F401  (imported before memory is looked at)

    from tasks import CorpusStream
    from tasks.text.topic_model import fit_topics_to_counts
    from tasks.text.vocabulary import Vocabulary
    from tasks.text.word_counts import WordCountsOnDisk

    with tempfile.TemporaryDirectory() as folder:
        write_text(path := Path(folder, "corpus.txt"), megabytes)
        stream = CorpusStream(path, split="line")
        before, most = own(), []

        def watched(texts: Iterable[str]) -> Iterator[str]:
            for i, text in enumerate(texts):
                if i % _EVERY == 0:
                    most[-1] = max(most[-1], own() - before)
                yield text

        most.append(0.0)
        known = Vocabulary.count(watched(stream))
        most.append(0.0)
        bags = WordCountsOnDisk.gather(watched(stream), known, folder, "tfidf")
        most.append(0.0)
        fit_topics_to_counts(bags.word_counts, n_topics=10, passes=1)
        most[-1] = own() - before
        most.append(0.0)
        stream.sample(1000)
        most[-1] = own() - before
    print(*most)


@cache
def _measured(megabytes: float) -> list[float]:
    return printed(f"from tests.benchmarks.corpora import measure; measure({megabytes})")


def _ratio(place: int) -> float:
    return _measured(LONG)[place] / _measured(SHORT)[place]


def table() -> list[tuple[str, Callable[[], float], str]]:
    """Growth of memory in each pass, long text over short; the long one has a larger vocabulary too."""
    return [
        (f"growth of memory, {what}, {LONG} MB of text / {SHORT} MB", partial(_ratio, place), "")
        for place, what in enumerate(PASSES)
    ]
