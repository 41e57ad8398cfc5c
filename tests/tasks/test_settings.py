"""Configurations: as JSON and back, changed, and checked."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from tasks import InputError
from tasks.settings import (
    Above,
    AtLeast,
    AtMost,
    Below,
    Count,
    Draws,
    Positive,
    Seed,
    check_at_least,
    check_count,
    check_settings,
    configure,
    settings_from_json,
    settings_to_json,
)


@dataclass(frozen=True)
class Leaf:
    rate: float = 0.1
    pair: tuple[int, int] = (1, 2)
    kind: Literal["plain", "lobed", "cut"] = "plain"

    def __post_init__(self):
        check_settings(self)


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

    def test_a_value_has_no_fields(self):
        with pytest.raises(InputError, match=r"^tuple has no field 'first'"):
            configure(Tree(), **{"seeds.first": 1})


class TestJSON:
    @pytest.mark.parametrize("like", [Tree, Tree(), replace(TREE, leaf=Leaf(9.0))])
    def test_round_trip(self, like):
        record = settings_to_json(TREE)
        assert record == {
            "seeds": [4, 5],
            "leaf": {"rate": 0.3, "pair": [7, 8], "kind": "plain"},
            "pairs": [[1, 2], [3, 4]],
            "name": "x",
        }
        assert settings_from_json(like, json.loads(json.dumps(record))) == TREE

    def test_what_is_left_out_is_as_in_the_example(self):
        assert settings_from_json(TREE, {"leaf": {"rate": 0.5}}) == replace(TREE, leaf=Leaf(0.5, (7, 8)))
        assert settings_from_json(Tree, {"leaf": {"rate": 0.5}}) == Tree(leaf=Leaf(0.5))

    @pytest.mark.parametrize("like", [Tree, TREE])
    def test_an_unknown_field_is_named(self, like):
        with pytest.raises(InputError) as refused:
            settings_from_json(like, {"nam": "x"})
        assert str(refused.value) == "Tree has no field 'nam' (it has seeds, leaf, pairs, name); did you mean 'name'?"


@dataclass(frozen=True)
class Numbers:
    rate: float = 0.1
    pair: tuple[float, ...] = (1.0, 2.0)
    pairs: tuple[tuple[float, float], ...] = ()
    leaf: Leaf = Leaf()
    clip: float | None = None
    either: float | str | None = None
    rates: list[float] | None = None
    anything: Any = None
    untyped: tuple = ()
    kind: type = Leaf


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
@pytest.mark.parametrize(
    ("name", "value_of"),
    [
        ("rate", lambda bad: bad),
        ("pair[1]", lambda bad: (1.0, bad)),
        ("pairs[1][0]", lambda bad: ((1.0, 2.0), (bad, 3.0))),
        ("leaf.rate", lambda bad: bad),
        ("clip", lambda bad: bad),
        ("either", lambda bad: bad),
        ("rates[0]", lambda bad: [bad]),
        ("anything", lambda bad: bad),
        ("untyped[0]", lambda bad: (bad,)),
    ],
)
def test_every_number_is_finite(name, value_of, bad):
    check_settings(Numbers())
    with pytest.raises(InputError) as refused:
        check_settings(configure(Numbers(), **{name.partition("[")[0]: value_of(bad)}))
    shown = "rate" if name == "leaf.rate" else name  # a leaf checks itself
    assert str(refused.value) == f"{shown} is {bad}; expected a finite number"


@dataclass(frozen=True)
class Ranges:
    share: Annotated[float, Above(0), AtMost(1)] = 0.5
    below: Annotated[float, AtLeast(0), Below(1)] = 0.5
    even: Annotated[int, "a mark that is not ours", AtLeast(2)] = 2
    grid: tuple[Annotated[int, AtLeast(1)], ...] = (1, 2)
    span: tuple[Count, Positive] = (1, 0.1)
    depth: Count | None = None
    draws: Draws = 100
    seed: Seed = 0
    whole: int = -3
    kinds: tuple[Literal["a", "b"], ...] = ()
    name: str = ""
    flag: bool = False

    def __post_init__(self):
        check_settings(self)


@pytest.mark.parametrize(
    "changes",
    [
        {"share": 1, "below": 0},
        {"even": np.int64(2), "share": np.float32(0.5)},
        {"grid": ()},
        {"grid": [1, 2]},
        {"depth": 1},
        {"seed": 2**32 - 1, "whole": 2**63 - 1},
        {"kinds": ("a", "b", "a")},
    ],
)
def test_allowed_values(changes):
    Ranges(**changes)


def test_numbers_of_numpy_become_numbers_of_python():
    given = {"share": np.float32(0.5), "even": np.int64(4), "grid": np.arange(1, 3), "span": [np.int64(1), 0.1]}
    given |= {"depth": np.int64(2), "seed": np.uint32(7)}
    plain = {"share": 0.5, "even": 4, "grid": (1, 2), "span": [1, 0.1], "depth": 2, "seed": 7}
    assert repr(Ranges(**given)) == repr(Ranges(**plain))
    assert settings_to_json(Ranges(**given)) == settings_to_json(Ranges(**plain))
    assert settings_to_json(configure(Tree(), **{"leaf.pair": (np.int64(3), 4)})) == {
        **settings_to_json(Tree()),
        "leaf": {"rate": 0.1, "pair": [3, 4], "kind": "plain"},
    }
    checked = Numbers(anything=np.int64(3), either=np.float32(0.5))
    check_settings(checked)
    assert repr((checked.anything, checked.either)) == "(3, 0.5)"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"share": 0.0}, "share is 0.0; expected above 0"),
        ({"share": 1.5}, "share is 1.5; expected at most 1"),
        ({"below": -0.1}, "below is -0.1; expected at least 0"),
        ({"below": 1}, "below is 1; expected below 1"),
        ({"even": 1}, "even is 1; expected at least 2"),
        ({"grid": (1, 0)}, "grid[1] is 0; expected at least 1"),
        ({"grid": 3}, "grid is 3; expected several values"),
        ({"span": (1, 0.0)}, "span[1] is 0.0; expected above 0"),
        ({"span": (1,)}, "span has 1 values; expected 2"),
        ({"depth": 0}, "depth is 0; expected at least 1"),
        ({"draws": 10**20}, f"draws is {10**20}; expected an integer that fits into 64 bits"),
        ({"draws": 10**7 + 1}, "draws is 10000001; expected at most 10000000"),
        ({"seed": 2**32}, "seed is 4294967296; expected at most 4294967295"),
        ({"whole": 2**63}, f"whole is {2**63}; expected an integer that fits into 64 bits"),
        ({"whole": -(2**63)}, f"whole is {-(2**63)}; expected an integer that fits into 64 bits"),
        ({"whole": 2.0}, "whole is 2.0; expected an integer"),
        ({"whole": True}, "whole is True; expected an integer"),
        ({"whole": (3,)}, "whole is (3,); expected an integer"),
        ({"even": [2]}, "even is [2]; expected an integer"),
        ({"whole": Leaf()}, f"whole is {Leaf()!r}; expected an integer"),
        ({"share": (0.5,)}, "share is (0.5,); expected a number"),
        ({"kinds": "ab"}, "kinds is 'ab'; expected several values"),
        ({"depth": 1.5}, "depth is 1.5; expected an integer"),
        ({"share": True}, "share is True; expected a number"),
        ({"name": None}, "name is None; expected a string"),
        ({"flag": "no"}, "flag is 'no'; expected True or False"),
        ({"flag": 1}, "flag is 1; expected True or False"),
        ({"kinds": ("a", np.ones(2))}, "kinds[1] is array([1., 1.]); expected 'a' or 'b'"),
        ({"kinds": ("a", "c")}, "kinds[1] is 'c'; expected 'a' or 'b'"),
    ],
)
def test_refused_values(changes, message):
    with pytest.raises(InputError) as refused:
        Ranges(**changes)
    assert str(refused.value) == message


def test_nested_settings_are_named_with_dots():
    @dataclass(frozen=True)
    class Inner:
        steps: Count = 1

    @dataclass(frozen=True)
    class Outer:
        inner: Any = Inner()

    with pytest.raises(InputError, match=r"^run\.inner\.steps is 0;"):
        check_settings(Outer(Inner(0)), "run.")


# ---- checks of one argument ----


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "3", None, True, 1j, -1, [3]])
def test_what_is_no_number_or_too_small_is_refused(value: Any) -> None:
    for check in (check_at_least, check_count):
        with pytest.raises(InputError, match=r"^steps is .*; expected (at least 1|a number|an integer)"):
            check(steps=(value, 1))


def test_numbers_pass() -> None:
    check_at_least(tol=(0.5, 0), steps=(np.int64(3), 1))
    check_count(steps=(np.int64(3), 1))
    with pytest.raises(InputError, match=r"steps is 2\.5; expected an integer of at least 1"):
        check_count(steps=(2.5, 1))
