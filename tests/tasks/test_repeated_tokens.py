"""Repeated tokens: what can be predicted follows from the period, and nothing from the call before."""

from __future__ import annotations

import pytest
import torch

from tasks import Batch, InputError, RepeatedTokens, Task

SMALL = RepeatedTokens(n_symbols=12, length=20, periods=(4, 9), n_test=30, seed=3)
WITH_BOS = RepeatedTokens(n_symbols=12, length=20, periods=(4, 9), bos=5, n_test=30)
BOS_OUTSIDE = RepeatedTokens(n_symbols=12, length=20, periods=(4, 9), bos=40, n_test=30)


@pytest.mark.parametrize("task", [SMALL, WITH_BOS, BOS_OUTSIDE], ids=["none", "among the symbols", "outside"])
def test_tokens_repeat_with_their_period_and_only_repeats_count(task):
    batch = Batch.concat(list(task.batches("test", 7)))
    start = 0 if task.bos is None else 1
    assert len(batch) == 30
    assert set(batch.labels["period"].tolist()) == set(range(4, 10))
    for tokens, period, mask, targets in zip(
        batch.tokens.tolist(),
        batch.labels["period"].tolist(),
        batch.loss_mask.tolist(),
        batch.targets.tolist(),
        strict=True,
    ):
        assert tokens[:start] == [task.bos] * start
        random = tokens[start:]
        assert len(set(random)) == period
        assert set(random) <= set(range(12)) - {task.bos}
        assert random[period:] == random[:-period]
        assert targets == [*tokens[1:], 0]
        assert mask == [start + period <= position < 19 for position in range(20)]


def test_a_batch_does_not_depend_on_what_was_drawn_before():
    late = SMALL.train_batch(7, 5)
    assert torch.equal(Task.from_config(SMALL.to_config()).train_batch(7, 5).tokens, late.tokens)
    assert not torch.equal(SMALL.train_batch(8, 5).tokens, late.tokens)
    assert late.index.tolist() == list(range(35, 40))


def test_accuracy_of_a_model_that_copies_what_came_a_period_ago():
    batch = SMALL.train_batch(0, 6)
    logits = torch.nn.functional.one_hot(batch.targets, SMALL.d_vocab).float()
    assert SMALL.accuracy(logits, batch).tolist() == [1.0] * 6
    assert SMALL.accuracy(logits.roll(1, dims=-1), batch).tolist() == [0.0] * 6
    assert float(SMALL.loss(30 * logits, batch)) == pytest.approx(0, abs=1e-6)


def test_the_vocabulary_has_the_token_at_the_beginning():
    assert (SMALL.d_vocab, WITH_BOS.d_vocab, BOS_OUTSIDE.d_vocab) == (12, 12, 41)
    assert WITH_BOS.to_str_tokens(torch.tensor([5, 6])) == ["<bos>", "6"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"periods": (9, 8)}, r"periods is \(9, 8\); expected \(fewest, most\)"),
        ({"length": 20}, "periods has 20; expected at most 18 in sequences of 20 tokens"),
        ({"length": 22, "bos": 0}, "periods has 20; expected at most 19 in sequences of 22 tokens"),
        ({"n_symbols": 20, "bos": 3}, "periods has 20; expected at most the 19 different tokens"),
        ({"periods": (0, 4)}, r"periods\[0\] is 0; expected at least 1"),
        ({"n_test": 0}, "n_test is 0; expected at least 1"),
        ({"bos": -1}, "bos is -1; expected at least 0"),
    ],
)
def test_what_is_refused(fields, message):
    with pytest.raises(InputError, match=message):
        RepeatedTokens(**fields)
    with pytest.raises(InputError, match="no split 'train' in repeated-tokens"):
        next(RepeatedTokens().batches("train"))
