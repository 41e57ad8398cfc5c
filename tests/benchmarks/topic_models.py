"""Libraries that fit LDA, on one corpus: the docstrings of Python's standard library. Time and coherence."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from statistics import mean

import numpy as np

N_TOPICS, PASSES, BATCH = 30, 6, 128
SEEDS = (0, 1, 2)
_SWEEPS = 200  # of Gibbs sampling
_SHOWN = 10  # likeliest words of a topic, of which every pair is looked at


@cache
def _corpus():
    """Words and counts of half of the documents, and the words of each of the other half."""
    from tasks import CorpusStream
    from tasks.text.vocabulary import Vocabulary
    from tasks.text.word_counts import WordCounts
    from tests.real.data import standard_library

    folder, _ = standard_library()
    texts = list(CorpusStream(folder))
    known = Vocabulary.count(texts[::2], None, min_documents=5, max_share=0.1)
    held_out = [[known.words[i] for i in known.bag(text)[0]] for text in texts[1::2]]
    return WordCounts(known.words, known.counts(texts[::2])), known, held_out


def scikit_learn(seed: int, weights: str = "counts", passes: int = PASSES) -> np.ndarray:
    """``[topic word]`` by online variational Bayes, as mechclust fits them."""
    from tasks.text.topic_model import fit_topics_to_counts
    from tasks.text.word_counts import WordCounts

    counts, known, _ = _corpus()
    given = counts if weights == "counts" else WordCounts(known.words, known.tfidf(counts.counts))
    return fit_topics_to_counts(given, N_TOPICS, passes, seed, BATCH).weights.numpy()


def gensim(seed: int, weights: str = "counts") -> np.ndarray:
    """The same by gensim, whose defaults the published models were made with."""
    from gensim.matutils import Sparse2Corpus
    from gensim.models import LdaModel

    counts, known, _ = _corpus()
    table = counts.counts if weights == "counts" else known.tfidf(counts.counts)
    model = LdaModel(
        Sparse2Corpus(table, documents_columns=False), N_TOPICS, dict(enumerate(known.words)), chunksize=BATCH,
        passes=PASSES, random_state=seed,
    )  # fmt: skip
    return np.asarray(model.get_topics())


def tomotopy(seed: int) -> np.ndarray:
    """By collapsed Gibbs sampling, on one thread. It takes whole counts only."""
    from tomotopy import LDAModel

    counts, known, _ = _corpus()
    model = LDAModel(k=N_TOPICS, seed=seed)
    for row in counts.counts:
        if row.nnz:
            model.add_doc([known.words[i] for i in np.repeat(row.indices, row.data)])
    model.train(_SWEEPS, workers=1)
    place = {word: i for i, word in enumerate(known.words)}
    found = np.zeros((N_TOPICS, len(known.words)))
    found[:, [place[word] for word in model.used_vocabs]] = [model.get_topic_word_dist(k) for k in range(N_TOPICS)]
    return found


@cache
def fitted(fit: Callable[..., np.ndarray], *options: str | int) -> tuple[float, list[np.ndarray]]:
    """Processor seconds of a fit, a mean over ``SEEDS``, and the topics of each."""
    _corpus()
    start = time.process_time()
    found = [fit(seed, *options) for seed in SEEDS]
    return (time.process_time() - start) / len(SEEDS), found


def npmi(topics: np.ndarray) -> float:
    """Coherence of the likeliest words of each topic, over whole documents that were not fitted, as gensim computes it.

    -1 for words that never meet, 0 for words that meet as often as by chance, 1 for words that only meet.

    Source: Bouma, GSCL 2009; Lau, Newman & Baldwin, EACL 2014.
    """
    from gensim.corpora import Dictionary
    from gensim.models import CoherenceModel

    _, known, held_out = _corpus()
    there = np.isin(known.words, [word for document in held_out for word in document])  # of others nothing is known
    shown = [[known.words[i] for i in np.argsort(-row * there, kind="stable")[:_SHOWN]] for row in topics]
    words = Dictionary([known.words])
    return float(
        CoherenceModel(
            topics=shown, texts=held_out, dictionary=words, coherence="c_npmi", window_size=10**6, processes=1
        ).get_coherence()
    )


_KINDS: dict[str, tuple[str, Callable[..., np.ndarray], tuple[str | int, ...]]] = {
    "scikit-learn": ("sklearn", scikit_learn, ()),
    "scikit-learn, 60 passes": ("sklearn", scikit_learn, ("counts", 60)),
    "scikit-learn on TF-IDF": ("sklearn", scikit_learn, ("tfidf",)),
    "gensim": ("gensim", gensim, ()),
    "gensim on TF-IDF": ("gensim", gensim, ("tfidf",)),
    "tomotopy": ("tomotopy", tomotopy, ()),
}


def table() -> list[tuple[str, Callable[[], float], str]]:
    """Time and coherence of each library that is installed; coherence needs gensim."""
    rows: list[tuple[str, Callable[[], float], str]] = []
    for name, (module, fit, options) in _KINDS.items():
        for what, measure, needs in _MEASURES:
            lacking = [library for library in (module, needs) if find_spec(library) is None]
            if lacking:
                rows.append((f"LDA by {name}, {what}: skipped, {lacking[0]} is not installed", lambda: math.nan, ""))
            else:
                rows.append((f"LDA by {name}, {what} (no ratio)", partial(measure, fit, *options), ""))
    return rows


def _seconds(fit: Callable[..., np.ndarray], *options: str | int) -> float:
    return fitted(fit, *options)[0]


def _coherence(fit: Callable[..., np.ndarray], *options: str | int) -> float:
    return mean(map(npmi, fitted(fit, *options)[1]))


_MEASURES = (("s of processor time", _seconds, "sklearn"), ("NPMI on other documents", _coherence, "gensim"))
