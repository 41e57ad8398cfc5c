from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from tasks import Batch, InputError, Task, TopicDocuments
from tests.tasks.topic_documents import END, MASK, PAD, SMALL, START, VARIED, same, whole, within

THEORY: dict[str, Any] = {"sampler": "subset", "boundaries": False}


def topics_of(task: TopicDocuments, split: str = "train") -> np.ndarray:
    """``[n_documents n_ctx]`` each word's topic, worked out from its printed name; -1 where there is none."""
    names = [int(re.match(r"t(\d+)\.", s)[1]) if s[0] == "t" else -1 for s in task.vocab]  # type: ignore[index]
    targets = whole(task, split).targets
    assert targets is not None
    return np.array(names)[targets.numpy()]


# ---- vocabulary and documents ----


def test_vocabulary_is_four_special_tokens_and_the_topics_words() -> None:
    task = TopicDocuments(**{**SMALL, "n_topics": 2})
    assert task.vocab == ["<pad>", "<mask>", "<start>", "<end>", "t0.0", "t0.1", "t0.2", "t1.0", "t1.1", "t1.2"]
    assert (task.d_vocab, task.n_words, TopicDocuments().d_vocab) == (10, 6, 104)
    assert task.token_topics.tolist() == [-1] * 4 + [0] * 3 + [1] * 3


@pytest.mark.parametrize("fields", VARIED, ids=str)
def test_labels_are_the_topics_of_the_tokens_that_belong_there(fields: dict[str, Any]) -> None:
    """Not shifted by START or by the four special ids, and those of the words that masks hide."""
    task = TopicDocuments(**{**SMALL, **fields})
    batch = whole(task)
    assert np.array_equal(batch.labels["topic"].numpy(), topics_of(task))
    assert set(batch.labels["topic"].flatten().tolist()) <= {-1, 0, 1, 2, 3}


@pytest.mark.parametrize("fields", VARIED, ids=str)
def test_documents_are_start_words_end_padding(fields: dict[str, Any]) -> None:
    task = TopicDocuments(**{**SMALL, **fields})
    low, high = task.lengths
    lengths = []
    for split in task.splits:
        batch = whole(task, split)
        assert batch.tokens.shape == (60, high + 2 * task.boundaries) == (60, task.n_ctx)
        for row, mask in zip(batch.targets.tolist(), batch.attention_mask.tolist(), strict=True):  # type: ignore[union-attr]
            real = row[: sum(mask)]
            assert mask == [True] * len(real) + [False] * (task.n_ctx - len(real))
            assert set(row[len(real) :]) <= {PAD}
            if task.boundaries:
                assert (real[0], real[-1]) == (START, END)
                real = real[1:-1]
            assert min(real) >= 4
            lengths.append(len(real))
    assert set(lengths) == set(range(low, high + 1))


def test_lengths_are_uniform() -> None:
    task = TopicDocuments(**{**SMALL, "n_documents": 4000})
    counts = Counter((whole(task).lengths() - 2).tolist())
    assert all(within(counts[n], 4000, 1 / 5) for n in range(5, 10))


def test_a_subset_document_mixes_that_many_topics_equally_and_all_subsets_come() -> None:
    task = TopicDocuments(**THEORY, n_topics=5, topics_per_document=3, lengths=(200, 200), n_documents=1000)
    topic, sets = topics_of(task), Counter()
    shares = np.stack([(topic == t).mean(axis=1) for t in range(5)])
    assert ((shares > 0).sum(axis=0) == 3).all()
    present = shares[shares > 0]  # each a binomial share of 200 words with mean 1/3
    assert abs(present.std() - math.sqrt(1 / 3 * 2 / 3 / 200)) < 0.003
    sets.update(frozenset(np.flatnonzero(column)) for column in shares.T)
    assert set(sets) == {frozenset(s) for s in combinations(range(5), 3)}
    assert all(within(n, 1000, 1 / 10) for n in sets.values())


@pytest.mark.parametrize("concentration", [0.1, 2.0])
def test_a_dirichlet_document_has_that_mixture(concentration: float) -> None:
    task = TopicDocuments(n_topics=5, concentration=concentration, lengths=(100, 100), n_documents=4000)
    topic = topics_of(task)
    shares = np.stack([(topic == t).sum(axis=1) / 100 for t in range(5)])
    total = 5 * concentration
    variance = 0.2 * 0.8 / (1 + total)  # of the mixture; then 100 words are drawn from it
    expected = variance + (0.2 * 0.8 - variance) / 100
    assert np.allclose(shares.mean(axis=1), 0.2, atol=5 * math.sqrt(expected / 4000))
    assert np.allclose(shares.var(axis=1), expected, rtol=0.1)
    covariance = -0.2 * 0.2 / (1 + total)
    between = np.cov(shares)[~np.eye(5, dtype=bool)]
    assert np.allclose(between, covariance - (0.04 + covariance) / 100, atol=0.006)
    # the words of a document are exchangeable: its halves have the same topics
    halves = [np.stack([(part == t).mean(axis=1) for t in range(5)]) for part in (topic[:, 1:51], topic[:, 51:101])]
    assert abs((halves[0] - halves[1]).mean(axis=1)).max() < 0.01


@pytest.mark.parametrize("sampler", ["subset", "dirichlet"])
def test_words_are_uniform_within_a_topic_whatever_came_before(sampler: Any) -> None:
    task = TopicDocuments(n_topics=3, words_per_topic=4, sampler=sampler, lengths=(50, 50), n_documents=2000)
    targets = whole(task).targets
    words = targets[targets >= 4] - 4  # type: ignore[index,operator]
    for t in range(3):
        counts = torch.bincount(words[words // 4 == t] % 4)
        assert all(within(int(n), int(counts.sum()), 1 / 4) for n in counts)
    first, second = targets[:, 1] - 4, targets[:, 2] - 4  # type: ignore[index]
    together = first // 4 == second // 4
    equal = (first == second)[together]
    assert within(int(equal.sum()), len(equal), 1 / 4)


# ---- topics more like those of text ----


def test_overlapping_topics_share_words_with_their_neighbours_in_a_ring() -> None:
    task = TopicDocuments(n_topics=3, words_per_topic=4, overlap=1, lengths=(40, 60), n_documents=300)
    member, batch = task.token_membership, whole(task)
    assert (task.n_words, task.d_vocab, len(task.vocab)) == (9, 13, 13)
    sets = [set(member[:, t].nonzero()[:, 0].tolist()) for t in range(3)]
    assert sets == [{4, 5, 6, 7}, {7, 8, 9, 10}, {10, 11, 12, 4}]
    assert not member[:4].any()
    topic, targets = batch.labels["topic"], batch.targets
    assert ((topic >= 0) == (targets >= 4)).all()  # type: ignore[operator]
    drawn = topic >= 0
    assert member[targets[drawn], topic[drawn]].all()  # type: ignore[index]
    for word in (4, 7, 10):  # drawn from both of its topics
        assert len(topic[targets == word].unique()) == 2
    with pytest.raises(InputError, match="topics overlap by 1 words, which have two topics; use token_membership"):
        task.token_topics  # noqa: B018


def test_membership_is_that_of_the_topics_where_none_overlap() -> None:
    task = TopicDocuments(**SMALL)
    topics = task.token_topics
    assert torch.equal(task.token_membership, topics[:, None] == torch.arange(4))


def test_word_frequencies_follow_zipfs_law_within_a_topic() -> None:
    task = TopicDocuments(n_topics=3, words_per_topic=4, zipf=1.5, lengths=(50, 50), n_documents=2000)
    targets = whole(task).targets
    words = targets[targets >= 4] - 4  # type: ignore[index,operator]
    expected = np.array([1, 3, 4, 2]) ** -1.5 / (np.arange(1, 5) ** -1.5).sum()  # the ends come most often
    for t in range(3):
        counts = torch.bincount(words[words // 4 == t] % 4)
        assert all(within(int(n), int(counts.sum()), p) for n, p in zip(counts, expected, strict=True))


def test_overlapping_topics_share_frequent_words() -> None:
    task = TopicDocuments(n_topics=4, words_per_topic=6, overlap=2, zipf=1.0, lengths=(50, 50), n_documents=4000)
    batch = whole(task)
    topic, targets = batch.labels["topic"], batch.targets
    counts = torch.stack([torch.bincount(targets[topic == t], minlength=task.d_vocab) for t in range(4)]).double()  # type: ignore[index]
    share = counts / counts.sum(dim=1, keepdim=True)
    shared = task.token_membership.sum(dim=1) == 2
    for t in range(4):
        own = task.token_membership[:, t]
        assert share[t][own & shared].min() > share[t][own & ~shared].max()


def test_logistic_normal_mixes_are_correlated_in_pairs_and_about_as_concentrated_as_dirichlet_ones() -> None:
    of = {"sampler": "logistic-normal", "topic_correlation": 0.9}
    task = TopicDocuments(**of, n_topics=6, lengths=(200, 200), n_documents=3000)  # type: ignore[arg-type]
    topic = topics_of(task)
    shares = np.stack([(topic == t).sum(axis=1) / 200 for t in range(6)])
    assert np.allclose(shares.mean(axis=1), 1 / 6, atol=0.03)
    between = np.corrcoef(shares)
    pairs = {(0, 1), (2, 3), (4, 5)}
    assert min(between[pair] for pair in pairs) > 0.3
    assert max(between[pair] for pair in combinations(range(6), 2) if pair not in pairs) < -0.1
    odd = TopicDocuments(**of, n_topics=3, n_documents=50)  # type: ignore[arg-type]
    assert set(whole(odd).labels["topic"].flatten().tolist()) == {-1, 0, 1, 2}
    squares = []
    for fields in ({}, {"sampler": "logistic-normal"}):
        topic = topics_of(TopicDocuments(**fields, lengths=(200, 200), n_documents=3000))  # type: ignore[arg-type]
        squares.append(sum(((topic == t).sum(axis=1) / 200) ** 2 for t in range(10)).mean())
    assert abs(squares[0] - squares[1]) < 0.03


# ---- addressed randomness ----


@pytest.mark.parametrize("fields", VARIED, ids=str)
def test_the_same_seed_gives_the_same_bits(fields: dict[str, Any]) -> None:
    task, again = (TopicDocuments(**{**SMALL, **fields}) for _ in range(2))
    for of in (lambda t: whole(t, "dev"), lambda t: t.train_batch(7, 13)):
        assert same(of(task), of(again))


@pytest.mark.parametrize("masking", ["static", "fresh"])
def test_the_seed_decides_documents_masks_and_order_each(masking: Any) -> None:
    """Documents of one length, so that masks can only differ by what they were drawn with."""
    tasks = [TopicDocuments(**{**SMALL, "lengths": (9, 9)}, masking=masking, seed=seed) for seed in (0, 1)]
    for of in (lambda t: whole(t, "dev"), lambda t: t.train_batch(7, 13)):
        a, b = map(of, tasks)
        assert not torch.equal(a.targets, b.targets)
        assert not torch.equal(a.loss_mask, b.loss_mask)
        order = [batch.loss_mask[batch.index.argsort()] for batch in (a, b)]
        assert not torch.equal(*order)
    assert not torch.equal(*(t.train_batch(7, 13).index for t in tasks))
    masks = [t.train_batch(0, 60) for t in tasks]  # a whole epoch, back in the documents' order
    assert not torch.equal(*(batch.loss_mask[batch.index.argsort()] for batch in masks))  # type: ignore[index]


def test_splits_and_steps_are_drawn_apart() -> None:
    task = TopicDocuments(**{**SMALL, "lengths": (9, 9)})
    train, dev, test = (whole(task, split) for split in task.splits)
    for a, b in combinations((train, dev, test), 2):
        assert not torch.equal(a.targets, b.targets)  # type: ignore[arg-type]
        assert not torch.equal(a.loss_mask, b.loss_mask)  # type: ignore[arg-type]
    fresh = replace(task, masking="fresh")
    steps = [fresh.train_batch(step, 20).loss_mask for step in (0, 1, 3)]
    for first, second in combinations(steps, 2):
        assert not torch.equal(first, second)  # type: ignore[arg-type]


@pytest.mark.parametrize("masking", ["static", "fresh"])
def test_a_training_batch_depends_on_its_step_alone(masking: Any) -> None:
    task = TopicDocuments(**SMALL, masking=masking)
    for step in (30, 0, 4):
        task.train_batch(step, 10)
    list(task.text("train", 5))
    whole(task)
    assert same(task.train_batch(8, 10), TopicDocuments(**SMALL, masking=masking).train_batch(8, 10))


def test_the_global_random_state_is_left_alone() -> None:
    before = repr(np.random.get_state(legacy=False)), torch.get_rng_state()
    TopicDocuments(**SMALL, masking="fresh").train_batch(0, 5)
    assert repr(np.random.get_state(legacy=False)) == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


@pytest.mark.parametrize("size", [10, 60, 7])
def test_an_epoch_takes_every_document_once_in_an_order_of_its_own(size: int) -> None:
    task = TopicDocuments(**SMALL)
    a_epoch = 60 // size
    orders = [
        [i for s in range(a_epoch) for i in task.train_batch(e * a_epoch + s, size).index.tolist()] for e in (0, 1)
    ]
    for order in orders:
        assert len(set(order)) == len(order) == a_epoch * size
    assert orders[0] != orders[1]
    batch, everything = task.train_batch(1, size), whole(task)
    assert torch.equal(batch.tokens, everything.tokens[batch.index])
    assert torch.equal(batch.labels["topic"], everything.labels["topic"][batch.index])


def test_batches_do_not_depend_on_the_batch_size() -> None:
    task = TopicDocuments(**SMALL)
    parts = list(task.batches("dev", 7))
    assert [len(p) for p in parts] == [7] * 8 + [4]
    assert same(Batch.concat(parts), whole(task, "dev"))


def test_config_survives_json() -> None:
    task = TopicDocuments(**SMALL, sampler="subset", exact_shares=True, objective="squared", seed=3)
    again = Task.from_config(json.loads(json.dumps(task.to_config())))
    assert again == task
    assert same(again.train_batch(2, 8), task.train_batch(2, 8))


# ---- errors ----


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_topics": 1}, "n_topics is 1; expected at least 2"),
        ({"words_per_topic": 0}, "words_per_topic is 0; expected at least 1"),
        ({"n_documents": -1}, "n_documents is -1; expected at least 1"),
        ({"topics_per_document": 0}, "topics_per_document is 0; expected at least 1"),
        ({"sampler": "lda"}, "sampler is 'lda'; expected 'dirichlet', 'subset' or 'logistic-normal'"),
        ({"masking": "none"}, "masking is 'none'; expected 'static' or 'fresh'"),
        ({"objective": "mse"}, "objective is 'mse'; expected 'cross-entropy' or 'squared'"),
        (
            {"sampler": "subset", "topics_per_document": 11},
            "topics_per_document is 11; expected at most n_topics (10)",
        ),
        ({"concentration": 0.0}, "concentration is 0.0; expected above 0"),
        ({"lengths": (0, 5)}, "lengths[0] is 0; expected at least 1"),
        ({"lengths": (7, 5)}, "lengths is (7, 5); expected (fewest, most)"),
        ({"selected_share": 0.0}, "selected_share is 0.0; expected above 0"),
        ({"selected_share": 1.1}, "selected_share is 1.1; expected at most 1"),
        ({"correct_share": -0.1}, "correct_share is -0.1; expected at least 0"),
        (
            {"correct_share": 0.7, "random_share": 0.4},
            "correct_share + random_share is 0.7 + 0.4; expected at most 1 in total: the rest are MASK",
        ),
        ({"seed": -1}, "seed is -1; expected at least 0"),
        ({"zipf": -1.0}, "zipf is -1.0; expected at least 0"),
        ({"overlap": 6}, "overlap is 6 of 10 words per topic; expected at most half of them"),
        ({"overlap": 1, "n_topics": 2}, "overlap is 1 with 2 topics; expected at least 3 topics"),
        ({"topic_std": 0.0}, "topic_std is 0.0; expected above 0"),
        ({"sampler": "logistic-normal", "topic_correlation": 1.0}, "topic_correlation is 1.0; expected below 1"),
        (
            {"topic_correlation": 0.5},
            "topic_correlation is 0.5, but sampler is 'dirichlet'; expected sampler 'logistic-normal', "
            "or no topic_correlation",
        ),
    ],
    ids=str,
)
def test_a_bad_field_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refused:
        TopicDocuments(**fields)
    assert str(refused.value) == message


def test_what_is_allowed_at_the_edge() -> None:
    task = TopicDocuments(**SMALL, sampler="subset", topics_per_document=4, correct_share=0.9, random_share=0.1)
    assert MASK not in whole(task).tokens
    assert replace(task, sampler="dirichlet", topics_per_document=9).d_vocab == 16  # says nothing there


def test_bad_requests_are_told() -> None:
    task = TopicDocuments(**SMALL)
    message = re.escape("no split 'validation' in topic-documents (it has train, dev, test)")
    for ask in (task.batches, task.text):
        with pytest.raises(InputError, match=message):
            next(ask("validation"))
    with pytest.raises(InputError, match="batch_size is 61; expected at most the 60 documents"):
        task.train_batch(0, 61)
