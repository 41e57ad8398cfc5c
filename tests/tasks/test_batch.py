from __future__ import annotations

import math
import re

import pytest
import torch

from tasks import Batch, InputError

TOKENS = torch.tensor([[1, 2, 3], [4, 5, 0], [6, 7, 8], [0, 0, 9]])
MASK = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1], [0, 0, 1]]).bool()


def full() -> Batch:
    return Batch(
        tokens=TOKENS,
        attention_mask=MASK,
        targets=TOKENS.roll(-1, 1),
        loss_mask=MASK,
        positions={"input": torch.tensor([2, 1, 2, 2])},
        labels={"task": torch.tensor([0, 1, 0, 1]), "topic": TOKENS % 2},
        index=torch.tensor([10, 11, 12, 13]),
    )


def fields(batch: Batch) -> dict[str, list]:
    named = {"tokens": batch.tokens, "index": batch.index, "attention_mask": batch.attention_mask}
    named |= {"targets": batch.targets, "loss_mask": batch.loss_mask}
    named |= {f"positions {k}": v for k, v in batch.positions.items()}
    named |= {f"labels {k}": v for k, v in batch.labels.items()}
    return {k: v.tolist() for k, v in named.items() if v is not None}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"tokens": TOKENS[0]},
            "tokens has shape (3,); expected [batch pos]: stack the sequences, padded to one length",
        ),
        ({"tokens": TOKENS.float()}, "tokens is torch.float32; expected integer token ids: give tokens.long()"),
        ({"tokens": MASK}, "tokens is torch.bool; expected integer token ids: give tokens.long()"),
        ({"attention_mask": MASK[:, :2]}, "attention_mask has shape (4, 2); expected (4, 3) like tokens"),
        ({"targets": TOKENS[:2]}, "targets has shape (2, 3); expected (4, 3) like tokens"),
        ({"loss_mask": MASK[0]}, "loss_mask has shape (3,); expected (4, 3) like tokens"),
        ({"positions": {"x": MASK}}, "positions['x'] has shape (4, 3); expected (4,), one per example"),
        ({"index": torch.arange(3)}, "index has shape (3,); expected (4,), one per example"),
        (
            {"labels": {"task": torch.arange(3)}},
            "labels['task'] has shape (3,); expected (4,) per example or (4, 3) per token",
        ),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(given: dict, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        Batch(**{"tokens": TOKENS, **given})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tokens": None}, "tokens is a NoneType; expected a torch tensor"),
        ({"tokens": TOKENS.tolist()}, "tokens is a list; expected a torch tensor"),
        ({"attention_mask": MASK.numpy()}, "attention_mask is a ndarray; expected a torch tensor"),
        ({"attention_mask": 2 * MASK.long()}, "attention_mask has a number besides 0 and 1"),
        ({"attention_mask": MASK * math.nan}, "attention_mask has a number besides 0 and 1"),
        ({"loss_mask": 2 * MASK.long()}, "loss_mask has a number besides 0 and 1; expected 1 where the loss counts"),
        ({"targets": TOKENS.float()}, "targets is torch.float32; expected integer token ids: give targets.long()"),
        ({"labels": {"task": None}}, "labels['task'] is a NoneType; expected a torch tensor"),
        ({"positions": [1, 2]}, "positions is a list; expected tensors by name"),
        ({"index": [0, 1, 2, 3]}, "index is a list; expected a torch tensor"),
    ],
)
def test_what_is_no_tensor_is_refused(given: dict, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        Batch(**{"tokens": TOKENS, **given})


def test_index_counts_from_0_by_default() -> None:
    assert Batch(TOKENS).index.tolist() == [0, 1, 2, 3]


def test_missing_names_are_told_with_those_that_exist() -> None:
    with pytest.raises(InputError, match=r"no label 'skill' in this batch \(it has 'task', 'topic'\); add it to Batch"):
        full().label("skill")
    with pytest.raises(
        InputError, match=r"no position 'end' in this batch \(it has 'input'\); add it to Batch.positions"
    ):
        full().position("end")
    with pytest.raises(InputError, match=r"\(it has no labels\)"):
        Batch(TOKENS).label("task")
    with pytest.raises(InputError, match=r"\(it has no named positions\)"):
        Batch(TOKENS).position("input")


def test_lengths_and_last_positions_with_padding_on_either_side() -> None:
    assert full().lengths().tolist() == [3, 2, 3, 1]
    assert full().last_positions().tolist() == [2, 1, 2, 2]
    assert Batch(TOKENS).lengths().tolist() == [3, 3, 3, 3]
    assert Batch(TOKENS).last_positions().tolist() == [2, 2, 2, 2]


def test_words_and_lengths_do_not_depend_on_how_small_the_given_integers_are() -> None:
    label = torch.tensor([[0, 1, 0]], dtype=torch.uint8)
    masked = Batch(TOKENS[:1], attention_mask=torch.tensor([[1, 1, 0]]), labels={"word": label})
    assert masked.words("word").tolist() == [[0, 1, -1]]
    assert masked.words("word").dtype == torch.int64
    long = Batch(torch.zeros(2, 300, dtype=torch.long), index=torch.tensor([0, 1], dtype=torch.int8))
    assert long.lengths().tolist() == [300, 300]


def test_an_example_without_a_real_token_has_no_position() -> None:
    hidden = MASK.clone()
    hidden[2] = False
    batch = Batch(TOKENS, hidden, index=torch.tensor([10, 11, 12, 13]))
    message = re.escape("example index 12 has no real token (its attention mask is all 0); leave it out")
    for ask in (batch.last_positions, batch.first_positions, batch.check_examples_are_real):
        with pytest.raises(InputError, match=f"^{message}$"):
            ask()
    none = Batch(torch.zeros(2, 0, dtype=torch.long), index=torch.tensor([7, 8]))
    for ask in (none.last_positions, none.first_positions):
        with pytest.raises(InputError, match=r"^example index 7 has no tokens; leave it out$"):
            ask()


@pytest.mark.parametrize("width", [0, 3])
@pytest.mark.parametrize("masked", [False, True])
def test_an_empty_batch_has_no_positions_and_no_error(width: int, masked: bool) -> None:
    tokens = torch.zeros(0, width, dtype=torch.long)
    empty = Batch(tokens, tokens.bool() if masked else None)
    assert [empty.last_positions().tolist(), empty.first_positions().tolist(), empty.lengths().tolist()] == [[]] * 3


def test_a_mask_with_holes_has_its_last_position() -> None:
    mask = torch.tensor([[0, 1, 0, 1, 0], [1, 0, 0, 0, 0]]).bool()
    batch = Batch(torch.zeros(2, 5, dtype=torch.long), mask)
    assert (batch.last_positions().tolist(), batch.first_positions().tolist()) == ([3, 0], [1, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64])
def test_an_index_that_is_no_integer_is_refused(dtype: torch.dtype) -> None:
    message = re.escape(f"index is {dtype}; expected integers, one per example: give index.long()")
    with pytest.raises(InputError, match=f"^{message}$"):
        Batch(TOKENS, index=torch.arange(4).to(dtype))


def test_select_takes_the_given_examples_of_every_field_in_order() -> None:
    whole, chosen = fields(full()), fields(full().select(torch.tensor([2, 0])))
    assert chosen == {name: [rows[2], rows[0]] for name, rows in whole.items()}
    assert fields(full().select(slice(1, 3))) == {name: rows[1:3] for name, rows in whole.items()}


@pytest.mark.parametrize("size", [1, 3, 4, 100])
def test_split_and_concat_are_inverse(size: int) -> None:
    parts = list(full().split(size))
    assert [len(p) for p in parts] == [min(size, 4 - start) for start in range(0, 4, size)]
    assert fields(Batch.concat(parts)) == fields(full())


def test_split_and_concat_refuse_nothing() -> None:
    with pytest.raises(InputError, match="batch_size is 0; expected at least 1"):
        list(full().split(0))
    with pytest.raises(InputError, match="no batches to join; give at least one"):
        Batch.concat([])


@pytest.mark.parametrize(
    "other",
    [full(), Batch(TOKENS[:, :2]), Batch(TOKENS, labels={"task": TOKENS[:, 0]})],
    ids=["mask dropped", "length", "labels dropped"],
)
def test_concat_refuses_batches_with_different_fields(other: Batch) -> None:
    with pytest.raises(InputError):
        Batch.concat([Batch(TOKENS), other])


def test_a_label_may_be_asked_for_by_kind() -> None:
    labels = {"task": torch.arange(2), "word": torch.ones(2, 3, dtype=torch.int64)}
    batch = Batch(torch.zeros(2, 3, dtype=torch.int64), labels=labels)
    assert batch.label("task", per="example") is batch.labels["task"]
    assert batch.label("word", per="token") is batch.labels["word"]
    with pytest.raises(InputError, match="label 'word' is per token; give a label with one value per example"):
        batch.label("word", per="example")
    with pytest.raises(InputError, match="label 'task' is per example; give a label with one value per token"):
        batch.label("task", per="token")


def test_labels_are_integers() -> None:
    batch = Batch(TOKENS, labels={"even": torch.tensor([True, False, True, True])})
    assert batch.labels["even"].dtype == torch.int64
    assert batch.labels["even"].tolist() == [1, 0, 1, 1]
    message = (
        r"^labels\['x'\] is torch.float32; expected integers, one for each class: give classes, such as "
        r"torch.unique\(values, return_inverse=True\)\[1\]$"
    )
    with pytest.raises(InputError, match=message):
        Batch(TOKENS, labels={"x": torch.zeros(4)})


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_labels_and_index_become_int64(dtype: torch.dtype) -> None:
    numbers = torch.tensor([3, 0, 2, 1])
    batch = Batch(TOKENS, labels={"x": numbers.to(dtype), "small": numbers.to(torch.uint8)}, index=numbers.to(dtype))
    assert (batch.labels["x"].dtype, batch.labels["x"].tolist()) == (torch.int64, numbers.tolist())
    assert (batch.index.dtype, batch.index.tolist()) == (torch.int64, numbers.tolist())
    assert batch.labels["small"].dtype == torch.uint8


def test_numbers_beyond_int64_are_refused() -> None:
    large = torch.tensor([0, 1, 2, -1]).to(torch.uint64)
    for fields, name in (({"index": large}, "index"), ({"labels": {"x": large}}, r"labels\['x'\]")):
        with pytest.raises(InputError, match=rf"^{name} has a number of 2\*\*63 or more; give smaller ones"):
            Batch(TOKENS, **fields)


def test_a_mask_of_numbers_becomes_bool() -> None:
    for numbers in (MASK.long(), MASK.float(), MASK.to(torch.uint8)):
        batch = Batch(TOKENS, numbers, targets=TOKENS, loss_mask=numbers)
        for mask in (batch.attention_mask, batch.loss_mask):
            assert mask is not None
            assert mask.dtype == torch.bool
            assert torch.equal(mask, MASK)
    assert Batch(TOKENS, MASK).attention_mask is MASK


def test_to_moves_every_tensor_there() -> None:
    mixed = Batch(TOKENS, MASK.to("meta"), labels={"task": TOKENS[:, 0].to("meta")}, index=torch.arange(4))
    moved = mixed.to("meta")
    tensors = [moved.tokens, moved.attention_mask, moved.labels["task"], moved.index]
    assert all(x is not None and x.device.type == "meta" for x in tensors)
    assert moved.to("meta") is moved
    whole = full()
    assert whole.to("cpu") is whole
    labels_elsewhere = Batch(TOKENS.to("meta"), labels={"task": TOKENS[:, 0]})
    assert labels_elsewhere.to("meta").labels["task"].device.type == "meta"


def test_padding_on_the_right_changes_no_example() -> None:
    labels = {"task": torch.tensor([0, 1]), "topic": torch.tensor([[1, 2], [3, 4]])}
    batch = Batch(torch.tensor([[5, 6], [7, 8]]), targets=torch.tensor([[6, 1], [8, 1]]), labels=labels)
    padded = batch.padded_to(4)
    assert padded.lengths().tolist() == [2, 2]
    assert torch.equal(padded.tokens[:, :2], batch.tokens)
    assert padded.loss_mask is not None
    assert padded.loss_mask.tolist() == [[True, True, False, False]] * 2
    assert torch.equal(padded.labels["topic"][:, :2], labels["topic"])
    assert torch.equal(padded.labels["task"], labels["task"])
    assert torch.equal(batch.padded_to(2).tokens, batch.tokens)
    with pytest.raises(InputError, match="length is 1, but the batch has 2 tokens"):
        batch.padded_to(1)
