"""Vocabulary and TF-IDF by the published rule, against loops; the same topics from disk as from memory."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from tasks import InputError
from tasks.text.topic_model import fit_topics_to_counts
from tasks.text.vocabulary import Vocabulary
from tasks.text.word_counts import WordCountsOnDisk
from tasks.text.words import words_of

DRAW = np.random.default_rng(0)
TEXTS = [" ".join(f"w{int(i)}" for i in DRAW.zipf(1.4, 30) if i < 500) for _ in range(200)]
LOOSE = {"size": None, "min_documents": 1, "max_share": 1.0, "stop_words": "none"}


def in_documents() -> Counter[str]:
    found: Counter[str] = Counter()
    for text in TEXTS:
        for word in dict.fromkeys(text.split()):
            found[word] += 1
    return found


def test_the_words_that_stand_in_most_documents_are_kept():
    met = in_documents()
    known = Vocabulary.count(TEXTS, 12, min_documents=5, max_share=0.3)
    fit = [word for word in met if 5 <= met[word] <= 60]
    ranked = sorted(fit, key=lambda word: (-met[word], word))
    assert len(ranked) > 15
    assert known.words == sorted(ranked[:12])
    assert known.documents.tolist() == [met[word] for word in known.words]
    assert (known.n_documents, known.undercount) == (200, 0)
    assert max(met.values()) > 60  # the words in most documents are left out


def test_tfidf_is_that_of_a_loop():
    known = Vocabulary.count(TEXTS, 40, 5, 0.3)
    found = known.tfidf(known.counts(TEXTS)).toarray()
    met = in_documents()
    for text, row in zip(TEXTS[:50], found, strict=False):
        weight = {word: words_of(text).count(word) * math.log2(200 / met[word]) for word in known.words}
        norm = math.sqrt(sum(value**2 for value in weight.values()))
        expected = [value / norm if norm else 0.0 for value in weight.values()]
        np.testing.assert_allclose(row, expected, rtol=1e-12)
    assert known.tfidf(known.counts(["nothing known"])).nnz == 0
    assert known.counts([]).shape == (0, 40)


def test_few_words_in_memory_count_too_low_by_no_more_than_is_said():
    met = in_documents()
    known = Vocabulary.count(TEXTS, most_words=40, **LOOSE)
    assert 0 < known.undercount < 100
    short = [met[word] - int(n) for word, n in zip(known.words, known.documents, strict=True)]
    assert min(short) >= 0
    assert 0 < max(short) <= known.undercount
    often = {word for word, n in met.items() if n > known.undercount}
    assert often <= set(known.words)  # who is met more often than that cannot be missed
    assert len(known.words) <= 40 < len(met)


@pytest.mark.parametrize("weights", ["counts", "tfidf"])
def test_topics_from_disk_are_those_from_memory(tmp_path, weights):
    known = Vocabulary.count(TEXTS, 60, 3, 0.5)
    texts = [*TEXTS, "nothing known"]
    bags = WordCountsOnDisk.gather(iter(texts), known, tmp_path, weights)
    counts = known.counts(texts)
    matrix = counts if weights == "counts" else known.tfidf(counts)
    assert bags.shape == (201, 60)
    rows = [200, 3, 3, 0]
    assert (bags[rows] != matrix[rows]).nnz == 0
    memory = fit_topics_to_counts(known.words, matrix, 3, passes=2, seed=5, batch_size=64)
    disk = fit_topics_to_counts(known.words, bags, 3, passes=2, seed=5, batch_size=64)
    assert disk.words == memory.words
    assert np.array_equal(disk.weights.numpy(), memory.weights.numpy())


def test_bags_without_any_word(tmp_path):
    known = Vocabulary.count(["cat"], **LOOSE)
    assert WordCountsOnDisk.gather(["dog", ""], known, tmp_path, "counts")[[1, 0]].toarray().tolist() == [[0], [0]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 1}, "vocabulary is 1; expected at least 2"),
        ({"min_documents": 0}, "min_documents is 0; expected at least 1"),
        ({"max_share": 2.0}, "max_share is 2.0; expected a share of the documents above 0, at most 1"),
        ({"most_words": 0}, "most_words is 0; expected at least 1"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(InputError) as error:
        Vocabulary.count(["a b", "a"], **{**LOOSE, **changes})
    assert str(error.value) == message


def test_other_weights_and_no_room(tmp_path):
    known = Vocabulary.count(["cat"], **LOOSE)
    with pytest.raises(InputError, match=r"^weights is 'bm25'; expected 'counts' or 'tfidf'$"):
        WordCountsOnDisk.gather([], known, tmp_path, "bm25")
    with pytest.raises(InputError, match=r"^cannot write word counts in '.*none' \(No such file .*\); give a folder"):
        WordCountsOnDisk.gather(["cat"], known, tmp_path / "none", "counts")
