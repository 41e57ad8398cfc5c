from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probes import Rows, Sum
from probes.engine.state import RowsState, SumState
from probes.store.splitmix64 import splitmix64
from tasks import InputError


class Holder:
    total, count = Sum(), Sum(torch.int64)
    rows, few = Rows(), Rows(cap="max_rows")
    max_rows = 4


def test_each_object_has_its_own_state() -> None:
    one, other = Holder(), Holder()
    one.total.add("a", 1.0)
    assert "a" in one.total
    assert "a" not in other.total
    assert (len(one.total), list(one.total), len(other.rows)) == (1, ["a"], 0)
    assert isinstance(Holder.total, Sum)


def test_a_cap_may_be_a_parameter_of_the_probe() -> None:
    assert Holder().few.cap == 4
    assert Holder().rows.cap is None


# ---- Sum ----


def test_sums_are_in_float64_and_exact_integers() -> None:
    state = Holder()
    for _ in range(10):
        state.total.add("a", torch.tensor([0.1, 1e8], dtype=torch.float32))
        state.count.add("a", 2**60 // 10 + 1)
    expected = torch.tensor([0.1, 1e8], dtype=torch.float32).double() * 10
    torch.testing.assert_close(state.total["a"], expected, rtol=1e-15, atol=0)
    assert int(state.count["a"]) == 10 * (2**60 // 10 + 1)
    state.count.add("b", torch.tensor([True, False]))
    assert state.count["b"].tolist() == [1, 0]


def test_a_sum_is_a_copy() -> None:
    state, x = SumState(torch.float64), torch.ones(2, dtype=torch.float64)
    state.add("a", x)
    x.zero_()
    assert state["a"].tolist() == [1, 1]


def test_what_a_sum_refuses() -> None:
    with pytest.raises(InputError, match=re.escape("Sum(torch.float32) would round; use torch.float64 or torch.int64")):
        Sum(torch.float32)
    state = Holder()
    with pytest.raises(InputError, match=r"an int64 Sum was given torch.float32 at 'a'; declare Sum\(\) for real"):
        state.count.add("a", torch.tensor(1.0))
    state.total.add("a", torch.zeros(2, 3))
    message = (
        "a Sum of shape (2, 3) at 'a' was given (4, 3); add the same shape for every batch (sum over the batch first)"
    )
    with pytest.raises(InputError, match=re.escape(message)):
        state.total.add("a", torch.zeros(4, 3))


def test_rows_are_added_in_place() -> None:
    """As a dense sum of each batch gives them, to the bit, in memory that stays the same."""
    draw = torch.Generator().manual_seed(0)
    whole, dense, held = SumState(torch.float64), SumState(torch.float64), None
    with torch.inference_mode():
        parts = [(torch.randint(0, 9, (n,), generator=draw), torch.randn(n, 2, 3, generator=draw)) for n in (5, 0, 40)]
    for index, rows in [*parts, *((i.clone(), x.clone()) for i, x in parts)]:
        whole.add_rows("a", index, rows, size=9)
        dense.add("a", torch.zeros(9, 2, 3, dtype=torch.float64).index_add_(0, index, rows.double()))
        assert held in (None, whole["a"].data_ptr())
        held = whole["a"].data_ptr()
    assert torch.equal(whole["a"], dense["a"])
    count = SumState(torch.int64)
    count.add_rows("a", torch.tensor([1, 1, 0]), torch.tensor([2**60, 1, 3]), size=2)
    assert count["a"].tolist() == [3, 2**60 + 1]


def test_what_was_saved_before_rows_are_added_stays() -> None:
    state, other = SumState(torch.float64), SumState(torch.float64)
    state.add_rows("a", torch.tensor([0]), torch.ones(1, 1), size=2)
    saved = state.tensors()
    other.load(saved)
    for each in (state, other):
        each.add_rows("a", torch.tensor([1]), torch.ones(1, 1), size=2)
    assert (saved["a"].tolist(), state["a"].tolist(), other["a"].tolist()) == ([[1], [0]], [[1], [1]], [[1], [1]])


def test_what_adding_rows_refuses() -> None:
    state = SumState(torch.float64)
    state.add_rows("a", torch.tensor([0]), torch.ones(1, 3), size=2)
    for index, rows, size, message in (
        (torch.tensor([0, 1]), torch.ones(1, 3), 2, "1 rows at 'a' for 2 places; give one place per row"),
        (torch.tensor([0]), torch.ones(1, 4), 2, "a Sum of shape (2, 3) at 'a' was given (2, 4)"),
        (torch.tensor([1, 2]), torch.ones(2, 3), 2, "places from 1 to 2 in a Sum of 2 rows at 'a'"),
        (torch.tensor([-1]), torch.ones(1, 3), 2, "places from -1 to -1 in a Sum of 2 rows at 'a'"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            state.add_rows("a", index, rows, size)


# ---- Rows ----


def kept(cap: int | None, *parts: torch.Tensor) -> list[int]:
    state = RowsState(cap)
    for index in parts:
        state.add("a", index, -index[:, None])
    index, rows = state.get("a")
    assert rows[:, 0].tolist() == [-i for i in index.tolist()]
    return index.tolist()


@settings(max_examples=50, deadline=None)
@given(st.sets(st.integers(-(2**40), 2**62), min_size=1, max_size=60), st.integers(1, 20), st.randoms())
def test_which_rows_stay_depends_on_their_index_alone(indices: set[int], cap: int, random) -> None:
    whole = torch.tensor(sorted(indices))
    shuffled = sorted(indices)
    random.shuffle(shuffled)
    parts = torch.tensor(shuffled).split(random.randint(1, 9))
    expected = kept(cap, whole)
    assert expected == sorted(sorted(indices, key=lambda i: int(splitmix64(torch.tensor([i]))))[:cap])
    assert kept(cap, *parts) == expected
    one, other = RowsState(cap), RowsState(cap)
    for i, part in enumerate(parts):
        (one, other)[i % 2].add("a", part, part)
    for first, second in ((one, other), (other, one)):
        merged = RowsState(cap)
        merged.merge(first)
        merged.merge(second)
        assert merged.get("a")[0].tolist() == expected


@given(st.integers(-(2**63), 2**63 - 1))
def test_the_hash_is_splitmix64(index: int) -> None:
    word = 2**64 - 1
    z = (index + 0x9E3779B97F4A7C15) & word
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & word
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & word
    z ^= z >> 31
    assert int(splitmix64(torch.tensor([index]))) & word == z


def test_a_cap_bounds_what_is_held() -> None:
    state = RowsState(10)
    for start in range(0, 1000, 7):
        state.add("a", torch.arange(start, start + 7), torch.zeros(7, 3))
        assert sum(len(i) for i, _ in state._values["a"]) <= 27
    assert len(state.get("a")[0]) == 10


def test_rows_do_not_keep_the_tensor_they_are_part_of() -> None:
    state, activation = RowsState(None), torch.zeros(4, 100, 8)
    state.add("a", torch.arange(4), activation[:, 0])
    (_, rows) = state._values["a"][0]
    assert rows.untyped_storage().nbytes() == rows.numel() * rows.element_size()
    activation.fill_(1)
    assert not rows.any()


def test_what_rows_refuse() -> None:
    state = RowsState(None)
    with pytest.raises(InputError, match="3 rows at 'a' for 2 examples; give one row per example"):
        state.add("a", torch.arange(2), torch.zeros(3, 1))
    message = (
        "example index 2 was given twice at 'a'; give every example an index of its own (Batch.index) "
        "and every batch once"
    )
    state.add("a", torch.tensor([4, 2]), torch.zeros(2, 1))
    state.add("a", torch.tensor([2, 1]), torch.zeros(2, 1))
    with pytest.raises(InputError, match=re.escape(message)):
        state.get("a")
    for cap in (0, -1):
        with pytest.raises(InputError, match=f"the cap on rows is {cap}; expected at least 1, or None for no cap"):
            RowsState(cap)


def test_a_refused_index_leaves_the_state_as_it_was() -> None:
    state = RowsState(None)
    state.add("a", torch.tensor([1, 1]), torch.zeros(2, 1))
    for _ in range(2):
        with pytest.raises(InputError, match="given twice"):
            state.get("a")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_rows_keep_their_type(dtype: torch.dtype) -> None:
    state, other = RowsState(None), RowsState(None)
    state.add("a", torch.tensor([1, 0]), torch.tensor([[1], [0]]).to(dtype))
    other.load(state.tensors())
    assert other.get("a")[1].dtype == dtype
    assert other.get("a")[1].tolist() == [[0], [1]]
