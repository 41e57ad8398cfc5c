from __future__ import annotations

import itertools
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.store.index_set import IndexSet
from tasks import InputError

LARGEST = 2**63 - 1
INDEX = st.sampled_from([-LARGEST - 1, -LARGEST, LARGEST - 1, LARGEST]) | st.integers(-20, 60)  # they meet often
BATCHES = st.lists(st.lists(INDEX, max_size=12), max_size=25)
AGAIN = "give every example an index of its own and every batch once (after reset() a probe may measure it again)"


def filled(*batches: list[int]) -> IndexSet:
    held = IndexSet()
    for batch in batches:
        held.add(torch.tensor(batch, dtype=torch.int64))
    return held


def numbers(held: IndexSet) -> list[int]:
    return [i for first, last in held.tensor().tolist() for i in range(first, last + 1)]


@settings(max_examples=100, deadline=None)
@given(BATCHES)
def test_it_is_a_set_that_refuses_what_it_holds(batches: list[list[int]]) -> None:
    held, expected = IndexSet(), set[int]()
    for batch in batches:
        before = held.tensor()
        again = [i for i in batch if i in expected] + [i for i in batch if batch.count(i) > 1]
        if again:
            with pytest.raises(InputError, match=r"example index (-?\d+) was given twice; ") as error:
                held.add(torch.tensor(batch))
            assert int(re.findall(r"-?\d+", str(error.value))[0]) in again
            assert torch.equal(held.tensor(), before)  # nothing of it
        else:
            held.add(torch.tensor(batch, dtype=torch.int64))
            expected |= set(batch)
        assert len(held) == len(expected)
        assert held.end == max([-1, *expected]) + 1
    ranges = held.tensor().tolist()
    assert all(last + 1 < first for (_, last), (first, _) in itertools.pairwise(ranges))  # as few as there can be
    assert numbers(held) == sorted(expected)
    assert all(i in held for i in expected)
    assert held.holds(torch.tensor([*expected, -21], dtype=torch.int64)).tolist() == [True] * len(expected) + [False]
    assert not any(i in held for i in range(-20, 60) if i not in expected)


@settings(max_examples=100, deadline=None)
@given(st.sets(INDEX, max_size=40), st.sets(INDEX, max_size=40))
def test_update_is_a_union_that_refuses_what_both_hold(one: set[int], other: set[int]) -> None:
    first, second, both = filled(list(one)), filled(list(other)), one & other
    if both:
        message = (
            r"example index (-?\d+) \((\d+) such\) is in both states; merge each state once, and give every "
            r"example an index of its own"
        )
        with pytest.raises(InputError, match=message) as error:
            first.update(second)
        assert [int(i) for i in re.findall(r"-?\d+", str(error.value))] == [min(both), len(both)]
        assert numbers(first) == sorted(one)
    else:
        first.update(second)
        assert numbers(first) == sorted(one | other)
    assert numbers(second) == sorted(other)


def test_the_errors_say_how_often_and_the_way_out() -> None:
    with pytest.raises(InputError) as error:
        filled([3, 4], [5, 4])
    assert str(error.value) == f"example index 4 was given twice; {AGAIN}"
    with pytest.raises(InputError, match=r"^example index 5 was given twice; give a new folder$"):
        IndexSet().add(torch.tensor([5, 5]), "give a new folder")
    held = filled(list(range(100)))
    with pytest.raises(InputError, match=r"^example index 60 \(40 such\) is in both states; merge each state once"):
        held.update(filled(list(range(60, 150))))


def test_the_tensor_comes_back() -> None:
    held = filled([5, 6, 9], [-3], [7])
    assert held.tensor().tolist() == [[-3, -3], [5, 7], [9, 9]]
    again = IndexSet.from_tensor(held.tensor())
    assert torch.equal(again.tensor(), held.tensor())
    assert len(again) == 5
    again.add(torch.tensor([8]))  # and is a copy
    assert held.tensor().tolist() == [[-3, -3], [5, 7], [9, 9]]
    assert IndexSet.from_tensor(IndexSet().tensor()).tensor().shape == (0, 2)


@pytest.mark.parametrize("ranges", [[[5, 3]], [[0, 4], [4, 8]], [[8, 9], [0, 1]]])
def test_other_ranges_are_refused(ranges: list[list[int]]) -> None:
    with pytest.raises(InputError, match="ranges of example indices overlap or run backwards; give what tensor"):
        IndexSet.from_tensor(torch.tensor(ranges))


def test_what_are_no_ranges_is_refused() -> None:
    with pytest.raises(
        InputError, match=re.escape("ranges of example indices are torch.int64 [3]; expected int64 [k 2]")
    ):
        IndexSet.from_tensor(torch.arange(3))
    with pytest.raises(InputError, match=re.escape("are torch.float32 [1, 2]; expected int64 [k 2]")):
        IndexSet.from_tensor(torch.ones(1, 2))


def test_any_integer_dtype_and_neighbouring_ranges_join() -> None:
    held = IndexSet()
    for dtype in (torch.uint8, torch.int16, torch.int32):
        held.add(torch.arange(len(held), len(held) + 3, dtype=dtype))
    assert held.tensor().tolist() == [[0, 8]]
    both = filled([0, 1])
    both.update(filled([2, 3]))
    assert both.tensor().tolist() == [[0, 3]]
