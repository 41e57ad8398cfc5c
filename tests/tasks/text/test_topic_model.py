"""Topics that were planted are found; the words kept are those the rule says."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest
import torch

from tasks import Corpus, InputError, TopicModel, fit_topics
from tasks.text.stop_words import read_stop_words
from tasks.text.topic_model import (
    check_enough_for_topics,
    check_topic_model,
    fit_topics_to_counts,
    least_topic_model_threshold,
)
from tasks.text.vocabulary import Vocabulary

WORDS = [[f"{letter}{i}" for i in range(8)] for letter in "abcd"]


@pytest.fixture(scope="module")
def planted() -> Corpus:
    """120 documents of 40 words, each of one topic of eight words, and the stop word "the"."""
    draw = np.random.default_rng(0)
    texts = [" ".join(["the", *draw.choice(WORDS[i % 4], 40)]) for i in range(120)]
    return Corpus(texts, ["x"] * len(texts))


@pytest.fixture(scope="module")
def fitted(planted) -> TopicModel:
    return fit_topics(planted, n_topics=4, passes=3, seed=1)


class TestFit:
    def test_planted_topics_are_recovered(self, fitted):
        assert sorted(sorted(words) for words in fitted.top_words(8)) == WORDS
        assert fitted.words == [word for words in WORDS for word in words]
        kept = fitted.membership(7 / 32, overlap=False)  # int(32 * 7 / 32) + 1 = 8 words a topic
        assert kept.sum(dim=0).tolist() == [8] * 4
        topic = kept.int().argmax(dim=1)
        assert all(len(set(topic[[fitted.words.index(w) for w in words]].tolist())) == 1 for words in WORDS)

    def test_weights_are_probabilities(self, fitted):
        assert fitted.weights.shape == (4, 32)
        assert fitted.weights.dtype == torch.float64
        assert torch.allclose(fitted.weights.sum(dim=1), torch.ones(4, dtype=torch.float64))
        assert fitted.shares.tolist() == pytest.approx([0.25] * 4, abs=0.05)
        assert fitted.n_topics == 4

    def test_shares_do_not_count_the_prior_and_the_random_start(self):
        documents = ["cat dog bird fish"] * 18 + ["bread milk salt oil"] * 2
        model = fit_topics(Corpus(documents, ["a.txt"] * 20), n_topics=2, passes=20, min_documents=1, max_share=1.0)
        assert sorted(model.shares.tolist()) == pytest.approx([0.1, 0.9], abs=0.05)

    def test_is_deterministic_and_leaves_the_random_state_alone(self, planted, fitted):
        before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
        again = fit_topics(planted, n_topics=4, passes=3, seed=1)
        assert torch.equal(again.weights, fitted.weights)
        assert not torch.equal(fit_topics(planted, n_topics=4, passes=3, seed=2).weights, fitted.weights)
        assert torch.equal(torch.get_rng_state(), before)
        assert (np.random.get_state()[1] == numpy_before).all()

    def test_is_online(self, planted):
        """Every pass and every batch changes the topics; all documents in one batch is another path."""
        fits = [fit_topics(planted, 4, passes=p, batch_size=b).weights for p, b in ((1, 40), (2, 40), (2, 120))]
        assert not torch.equal(fits[0], fits[1])
        assert not torch.equal(fits[1], fits[2])

    def test_defaults_are_the_same_everywhere(self):
        whole = inspect.signature(fit_topics).parameters
        for part in (fit_topics_to_counts, check_topic_model):
            given = {name: p.default for name, p in inspect.signature(part).parameters.items() if name in whole}
            del given["n_topics"]
            assert given == {name: whole[name].default for name in given}
        assert [p.default for p in whole.values()][1:] == [100, 6, 0, 5, 0.5, "english", 128, False]

    def test_progress_bars(self, planted, capsys):
        fit_topics(planted, 4, passes=1, progress=True)
        shown = capsys.readouterr().err
        assert "counting words" in shown
        assert "fitting topics" in shown


class TestCounts:
    TEXTS = ("the cat a cat", "The dog", "cat dog bird", "fish DOG")

    def count(self, **options):
        defaults = {"size": None, "min_documents": 1, "max_share": 1.0, "stop_words": "none"}
        known = Vocabulary.count(self.TEXTS, **{**defaults, **options})
        return known.words, known.counts(self.TEXTS).toarray().tolist()

    def test_counts(self):
        words, counts = self.count(stop_words="english")
        assert words == ["bird", "cat", "dog", "fish"]
        assert counts == [[0, 2, 0, 0], [0, 0, 1, 0], [1, 1, 1, 0], [0, 0, 1, 1]]

    def test_what_is_left_out(self):
        assert self.count(min_documents=2)[0] == ["cat", "dog", "the"]
        assert self.count(min_documents=2, max_share=0.5)[0] == ["cat", "the"]
        assert self.count(stop_words=["Cat", "a"])[0] == ["bird", "dog", "fish", "the"]

    def test_stop_words_from_a_file(self, tmp_path):
        path = tmp_path / "stop.txt"
        path.write_text("\ufeffCat\nthe\n", encoding="utf-8")
        assert read_stop_words(str(path)) == {"cat", "the"}
        assert "and" in read_stop_words("english")
        assert read_stop_words("none") == frozenset()

    def test_unknown_stop_words(self):
        with pytest.raises(InputError) as error:
            read_stop_words("french")
        assert str(error.value).startswith(
            "stop_words is 'french'; expected 'english', 'none' or a UTF-8 file with one word per line ("
        )


class TestMembership:
    """Five words, three topics; by hand."""

    MODEL = TopicModel(
        ["a", "b", "c", "d", "e"],
        torch.tensor([[0.5, 0.3, 0.1, 0.05, 0.05], [0.1, 0.4, 0.3, 0.1, 0.1], [0.1, 0.1, 0.1, 0.1, 0.6]]),
    )

    def test_one_word_a_topic(self):
        for threshold in (0.0, 0.1):  # int(5 * 0.1) + 1 = 1
            expected = [[1, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0, 1]]
            assert self.MODEL.membership(threshold).int().tolist() == expected

    def test_two_words_a_topic(self):
        """Topic 0 keeps a, b; topic 1 b, c; topic 2 e and, of four as likely, the first: a."""
        assert self.MODEL.kept(0.2).tolist() == [[0, 1], [1, 2], [4, 0]]  # int(5 * 0.2) + 1 = 2
        assert self.MODEL.membership(0.2).int().tolist() == [[1, 0, 1], [1, 1, 0], [0, 1, 0], [0, 0, 0], [0, 0, 1]]
        assert self.MODEL.membership(0.2, overlap=False).int().tolist() == [
            [0, 0, 0],
            [0, 0, 0],
            [0, 1, 0],
            [0, 0, 0],
            [0, 0, 1],
        ]

    def test_every_word(self):
        assert bool(self.MODEL.membership(0.99).all())
        assert not bool(self.MODEL.membership(0.99, overlap=False).any())

    @pytest.mark.parametrize("threshold", [-0.1, 1.0, float("nan")])
    def test_bad_threshold(self, threshold):
        message = f"threshold is {threshold}; expected a share of the vocabulary from 0 to below 1"
        with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
            self.MODEL.membership(threshold)

    def test_the_least_threshold_keeps_two_words_and_no_much_smaller_one_does(self):
        for n in (2, 3, 7, 20, 49, 1000, 4321, 98765):
            least = least_topic_model_threshold(n)
            assert int(n * least) + 1 == 2
            assert int(n * least * 0.98) + 1 == 1

    def test_top_words(self):
        assert self.MODEL.top_words(2) == [["a", "b"], ["b", "c"], ["e", "a"]]


class TestRefusals:
    def refused(self, call, *args, **kwargs):
        with pytest.raises(InputError) as error:
            call(*args, **kwargs)
        return str(error.value)

    def test_fewer_documents_than_topics(self, planted):
        assert self.refused(fit_topics, planted, n_topics=121) == (
            "the corpus has 120 documents for 121 topics; give more text, split it into more documents, "
            "or ask for fewer topics (n_topics)"
        )
        counts = np.ones((120, 1))
        assert "120 documents for 121" in self.refused(fit_topics_to_counts, ["a"], counts, n_topics=121)

    def test_no_words_left(self, planted):
        assert self.refused(fit_topics, planted, 4, min_documents=61) == (
            "no word except stop words is in at least 61 and at most 60 of the 120 documents; "
            "give more text, or lower min_documents or raise max_share"
        )
        only_stop_words = Corpus(["the and"] * 6, ["x"] * 6)
        assert "except stop words is in at least 5" in self.refused(fit_topics, only_stop_words, 2, max_share=1.0)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"n_topics": 1}, "n_topics is 1; expected at least 2"),
            ({"passes": 0}, "passes is 0; expected at least 1"),
            ({"seed": -1}, "seed is -1; expected at least 0"),
            ({"seed": 2**32}, "seed is 4294967296; expected at most 4294967295"),
            ({"batch_size": 0}, "batch_size is 0; expected at least 1"),
            ({"max_share": 0.0}, "max_share is 0.0; expected a share of the documents above 0, at most 1"),
        ],
    )
    def test_numbers(self, planted, changes, message):
        assert self.refused(fit_topics, planted, **{"n_topics": 4, **changes}) == message

    def test_settings_are_checked_without_a_corpus_and_its_size_without_settings(self):
        assert check_topic_model(1000) is None
        assert check_enough_for_topics(4, 4) is None
        assert "3 documents for 4 topics" in self.refused(check_enough_for_topics, 3, 4)
