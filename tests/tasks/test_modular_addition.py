"""Sparse modular addition: what the labels say follows from the digits, and nothing from the call before."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from tasks import Batch, InputError, SparseModularAddition, Task

SMALL = SparseModularAddition(p=3, length=5, n_support=3, n_train=60, n_test=40, seed=4)


def whole(task, split):
    return Batch.concat(list(task.batches(split, 17)))


@pytest.mark.parametrize("task", [SMALL, SparseModularAddition(p=3, length=5, support=(4, 1), n_train=60, n_test=40)])
def test_labels_follow_from_the_digits(task):
    for split in task.splits:
        batch = whole(task, split)
        for tokens, answer, total, target, counts in zip(
            batch.tokens.tolist(),
            batch.labels["answer"].tolist(),
            batch.labels["sum"].tolist(),
            batch.targets.tolist(),
            batch.loss_mask.tolist(),
            strict=True,
        ):
            digits = [tokens[t] for t in task.positions]
            assert (total, answer) == (sum(digits), sum(digits) % 3)
            assert target[-1] == answer
            assert counts == [False] * 4 + [True]


def test_multisets_are_equivalence_classes():
    batch = whole(SMALL, "all")
    codes = {}
    for tokens, code in zip(batch.tokens.tolist(), batch.labels["multiset"].tolist(), strict=True):
        codes.setdefault(tuple(sorted(tokens[:3])), set()).add(code)
    assert all(len(found) == 1 for found in codes.values())
    assert len({next(iter(found)) for found in codes.values()}) == len(codes) == 10  # multisets of 3 digits out of 3


def test_for_p_2_the_multiset_is_the_sum_and_there_are_six():
    batch = whole(SparseModularAddition(), "all")
    assert len(batch) == 4096 == len({tuple(row) for row in batch.tokens.tolist()})
    pairs = set(zip(batch.labels["multiset"].tolist(), batch.labels["sum"].tolist(), strict=True))
    assert len(pairs) == 6


def test_digits_are_uniform_and_splits_independent():
    task = SparseModularAddition(p=3, n_train=4000, n_test=4000)
    train, test = whole(task, "train").tokens, whole(task, "test").tokens
    for digits in (train, test):
        shares = torch.stack([(digits == d).double().mean(dim=0) for d in range(3)])
        assert (shares - 1 / 3).abs().max() < 0.035  # 4.7 standard errors
    assert 0.3 < (train == test).double().mean() < 0.37


def test_an_epoch_visits_every_sequence_once_and_the_next_in_another_order():
    first, second = ([SMALL.train_batch(step, 20) for step in range(3 * e, 3 * e + 3)] for e in range(2))
    orders = [[i for batch in epoch for i in batch.index.tolist()] for epoch in (first, second)]
    assert all(Counter(order) == Counter(range(60)) for order in orders)
    assert orders[0] != orders[1]
    rows = whole(SMALL, "train")
    assert torch.equal(first[1].tokens, rows.tokens[first[1].index])


def test_a_batch_does_not_depend_on_what_was_drawn_before():
    late = SMALL.train_batch(7, 20)
    fresh = SparseModularAddition(p=3, length=5, n_support=3, n_train=60, n_test=40, seed=4)
    assert torch.equal(fresh.train_batch(7, 20).tokens, late.tokens)
    other = SparseModularAddition(p=3, length=5, n_support=3, n_train=60, n_test=40, seed=5)
    assert not torch.equal(other.train_batch(7, 20).tokens, late.tokens)


def test_configuration_round_trip():
    task = SparseModularAddition(support=(3, 0), length=6, seed=2)
    assert Task.from_config(task.to_config()) == task


def test_loss_and_accuracy_of_pooled_and_of_positional_logits():
    batch = next(SMALL.batches("test", 6))
    pooled = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    positional = torch.zeros(6, 5, 3)
    positional[:, -1] = pooled
    answer = batch.labels["answer"]
    expected = -(pooled.softmax(-1)[torch.arange(6), answer]).log().mean()
    for logits in (pooled, positional):
        torch.testing.assert_close(SMALL.loss(logits, batch), expected)
        assert SMALL.accuracy(logits, batch).tolist() == (pooled.argmax(-1) == answer).float().tolist()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"p": 1}, "p is 1; expected at least 2, the smallest modulus with two answers"),
        ({"n_support": 13}, "n_support is 13; expected at most the 12 digits of a sequence"),
        ({"support": (0, 12)}, "support has position 12; expected different positions from 0 to 11"),
        ({"support": (1, 1)}, "support has an empty or repeated position; expected different positions"),
        ({"support": ()}, "support has an empty or repeated position"),
        ({"p": 5}, r"n_embeddings is 3; expected at least p \(5\), one a digit"),
        ({"n_train": 0}, "n_train is 0; expected at least 1"),
        ({"seed": -1}, "seed is -1; expected at least 0"),
    ],
)
def test_what_is_refused(fields, message):
    with pytest.raises(InputError, match=message):
        SparseModularAddition(**fields)


def test_too_many_sequences_to_enumerate():
    task = SparseModularAddition(p=3, length=20)
    assert not task.can_enumerate
    with pytest.raises(
        InputError, match=r"there are 3\^20 sequences, more than 1048576 to enumerate; use the split 't"
    ):
        next(task.batches("all"))
    with pytest.raises(InputError, match="batch_size is 0"):
        next(task.batches("test", 0))
    with pytest.raises(InputError, match="batch_size is 2049; expected 1 to the 2048 training sequences"):
        task.train_batch(0, 2049)
