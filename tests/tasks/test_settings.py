"""Configurations: as JSON and back, changed, and checked."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Literal

import pytest

from tasks import InputError
from tasks.settings import check_choices, check_finite, configure, from_json, to_json


@dataclass(frozen=True)
class Leaf:
    rate: float = 0.1
    pair: tuple[int, int] = (1, 2)
    kind: Literal["plain", "lobed", "cut"] = "plain"

    def __post_init__(self):
        check_choices(self)


@dataclass(frozen=True)
class Tree:
    seeds: tuple[int, ...] = (0,)
    leaf: Leaf = Leaf()
    pairs: tuple[tuple[int, int], ...] = ()
    name: str | None = None


TREE = Tree(seeds=(4, 5), leaf=Leaf(0.3, (7, 8)), pairs=((1, 2), (3, 4)), name="x")


class TestConfigure:
    def test_nested(self):
        changed = configure(Tree(), **{"leaf.rate": 0.5, "seeds": (1, 2), "leaf.pair": (3, 4)})
        assert changed == Tree(seeds=(1, 2), leaf=Leaf(0.5, (3, 4)))
        assert Tree() == Tree(seeds=(0,), leaf=Leaf())

    def test_nothing(self):
        assert configure(Tree()) == Tree()

    def test_values_are_checked(self):
        with pytest.raises(InputError, match=r"^kind is 'oak'; expected 'plain', 'lobed' or 'cut'$"):
            configure(Tree(), **{"leaf.kind": "oak"})

    def test_an_unknown_field_is_named_with_the_nearest(self):
        with pytest.raises(InputError) as refused:
            configure(Tree(), **{"leaf.rat": 1})
        assert str(refused.value) == "Leaf has no field 'rat' (it has rate, pair, kind); did you mean 'rate'?"


class TestJSON:
    @pytest.mark.parametrize("like", [Tree, Tree(), replace(TREE, leaf=Leaf(9.0))])
    def test_round_trip(self, like):
        record = to_json(TREE)
        assert record == {
            "seeds": [4, 5],
            "leaf": {"rate": 0.3, "pair": [7, 8], "kind": "plain"},
            "pairs": [[1, 2], [3, 4]],
            "name": "x",
        }
        assert from_json(like, json.loads(json.dumps(record))) == TREE

    def test_what_is_left_out_is_as_in_the_example(self):
        assert from_json(TREE, {"leaf": {"rate": 0.5}}) == replace(TREE, leaf=Leaf(0.5, (7, 8)))
        assert from_json(Tree, {"leaf": {"rate": 0.5}}) == Tree(leaf=Leaf(0.5))

    @pytest.mark.parametrize("like", [Tree, TREE])
    def test_an_unknown_field_is_named(self, like):
        with pytest.raises(InputError) as refused:
            from_json(like, {"nam": "x"})
        assert str(refused.value) == "Tree has no field 'nam' (it has seeds, leaf, pairs, name); did you mean 'name'?"


def test_choices_leave_other_fields_alone():
    check_choices(TREE)
    check_choices(Leaf(kind="cut"))


@dataclass(frozen=True)
class Numbers:
    rate: float = 0.1
    pair: tuple[float, ...] = (1.0, 2.0)
    pairs: tuple[tuple[float, float], ...] = ()
    leaf: Leaf = Leaf()
    clip: float | None = None
    count: int = 10**400  # more than any float
    kind: type = Leaf


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("name", "value_of"),
    [
        ("rate", lambda bad: bad),
        ("pair", lambda bad: (1.0, bad)),
        ("pairs", lambda bad: ((1.0, 2.0), (3.0, bad))),
        ("leaf.rate", lambda bad: bad),
        ("clip", lambda bad: bad),
    ],
)
def test_every_number_is_finite(name, value_of, bad):
    check_finite(Numbers())
    with pytest.raises(InputError) as refused:
        check_finite(configure(Numbers(), **{name: value_of(bad)}))
    assert str(refused.value) == f"{name} is {bad}; expected a finite number"
