"""Sparse modular addition: what the labels say follows from the digits, and nothing from the call before."""

from __future__ import annotations

import zlib
from collections import Counter

import numpy as np
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


def test_no_codes_of_multisets_beyond_64_bits():
    most = whole(SparseModularAddition(p=2, length=63, n_support=63), "test")
    pairs = set(zip(most.labels["multiset"].tolist(), most.labels["sum"].tolist(), strict=True))
    assert len(pairs) == len(most.labels["sum"].unique()) == len(most.labels["multiset"].unique())
    assert most.labels["multiset"].min() >= 0
    beyond = whole(SparseModularAddition(p=2, length=64, n_support=64), "test")
    assert set(beyond.labels) == {"answer", "sum"}
    message = (
        "^there are too many multisets of 64 digits below 2 to number; choose the label 'sum', or a smaller support$"
    )
    with pytest.raises(InputError, match=message):
        beyond.label("multiset")


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


@pytest.mark.parametrize("batch_size", [20, 17, 60])  # 17: the last 9 of each epoch are left out
def test_batches_of_several_steps_are_those_of_each_in_order(batch_size):
    steps = range(2, 9)
    several = SMALL.train_batches(steps, batch_size)
    each = Batch.concat([SMALL.train_batch(step, batch_size) for step in steps])
    for ours, theirs in ((several.tokens, each.tokens), (several.targets, each.targets), (several.index, each.index)):
        assert torch.equal(ours, theirs)
    assert torch.equal(several.loss_mask, each.loss_mask)
    assert several.labels.keys() == each.labels.keys()
    assert all(torch.equal(several.labels[name], each.labels[name]) for name in each.labels)
    assert torch.equal(Task.train_batches(SMALL, steps, batch_size).tokens, several.tokens)  # what other tasks do


def test_rows_are_places_in_the_split_train():
    steps = range(1, 7)
    rows, batch = SMALL.train_rows(steps, 17), SMALL.train_batches(steps, 17)
    known = whole(SMALL, "train")
    assert (rows.shape, rows.dtype) == ((6 * 17,), torch.int64)
    assert torch.equal(rows, batch.index)
    assert torch.equal(known.tokens[rows], batch.tokens)
    assert torch.equal(known.labels["answer"][rows], batch.targets[batch.loss_mask])


def test_rows_that_are_changed_change_no_later_ones():
    rows = SMALL.train_rows(range(1), 60)
    before = rows.clone()
    rows.zero_()
    assert torch.equal(SMALL.train_rows(range(1), 60), before)


@pytest.mark.parametrize(("batch_size", "steps"), [(1, 60), (17, 3), (20, 3), (31, 1), (60, 1)])
def test_steps_of_an_epoch(batch_size, steps):
    assert SMALL.epoch_steps(batch_size) == steps
    epochs = [SMALL.train_rows(range(e * steps, (e + 1) * steps), batch_size).tolist() for e in range(2)]
    assert all(len(set(rows)) == len(rows) == steps * batch_size for rows in epochs)
    assert epochs[0] != epochs[1]


def test_loss_at_is_the_loss():
    batch = next(SMALL.batches("test", 6))
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    answer = batch.targets[batch.loss_mask]
    assert torch.equal(SMALL.loss_at(logits, answer), SMALL.loss(logits, batch))


@pytest.mark.parametrize("batch_size", [0, -1, 61])
def test_batches_that_the_training_sequences_do_not_fill(batch_size):
    message = f"batch_size is {batch_size}; expected 1 to the 60 training sequences"
    calls = (SMALL.train_batch, 0), (SMALL.train_batches, range(2)), (SMALL.train_rows, range(2))
    for function, steps in calls:
        with pytest.raises(InputError, match=message):
            function(steps, batch_size)
    with pytest.raises(InputError, match=message):
        SMALL.epoch_steps(batch_size)


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
        ({"p": 1}, "p is 1; expected at least 2"),
        ({"n_support": 13}, "n_support is 13; expected at most the 12 digits of a sequence"),
        ({"support": (0, 12)}, "support has position 12; expected different positions from 0 to 11"),
        ({"support": (1, 1)}, "support has an empty or repeated position; expected different positions"),
        ({"support": ()}, "support has an empty or repeated position"),
        ({"p": 5}, r"n_embeddings is 3; expected at least p \(5\), one per digit"),
        ({"seed": -1}, "seed is -1; expected at least 0"),
    ],
)
def test_what_is_refused(fields, message):
    with pytest.raises(InputError, match=message):
        SparseModularAddition(**fields)


def test_too_many_sequences_to_enumerate():
    task = SparseModularAddition(p=3, length=20)
    with pytest.raises(
        InputError, match=r"there are 3\^20 sequences, more than 1048576 to enumerate; use the split 't"
    ):
        next(task.batches("all"))
    with pytest.raises(InputError, match="batch_size is 0"):
        next(task.batches("test", 0))
    with pytest.raises(InputError, match="batch_size is 2049; expected 1 to the 2048 training sequences"):
        task.train_batch(0, 2049)


def test_draws_are_those_that_are_written_down():
    """So that another implementation can train on the same sequences in the same order."""
    task = SparseModularAddition(p=3, length=4, n_support=2, n_train=20, n_test=10, seed=7)

    def rng(purpose, *index):
        return np.random.default_rng([7, zlib.crc32(purpose.encode()), *index])

    for split, n in (("train", 20), ("test", 10)):
        assert torch.equal(
            next(task.batches(split)).tokens, torch.tensor(rng(f"{split} digits").integers(3, size=(n, 4)))
        )
    for epoch in (0, 3):
        rows = [task.train_batch(2 * epoch + i, 10).index for i in (0, 1)]
        assert torch.cat(rows).tolist() == rng("order", epoch).permutation(20).tolist()
