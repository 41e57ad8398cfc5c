"""Checks that the checkpoints of a series are what their names say, before any conclusion is drawn from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float

from mechclust.models.sketch import WeightSketch
from mechclust.report.text import join
from tasks.text.visible import quoted

DefectKind = Literal["last", "equal", "order", "states", "tokenizer", "config"]
_SHORTER = 0.8  # of the way past a checkpoint: what another place must bring it below
_ENDS = 0.6  # likewise where the first is moved behind the last, or the last before the first: one distance for another
_SAME_STATES = 1e-5  # 1 - CKA, at every layer
_BETWEEN = 1e-4  # 1 - CKA of a later checkpoint, which such a one should have been below


@dataclass(frozen=True)
class Identity:
    """What distinguishes one checkpoint from another.

    Attributes:
        name: the checkpoint's name.
        weights: a sketch of its weights.
        config: the parts of the model's configuration that affect the numbers.
        tokenizer: a digest; ``None`` if the checkpoint has no tokenizer of its own.
    """

    name: str
    weights: WeightSketch
    config: Mapping[str, Any]
    tokenizer: str | None


@dataclass(frozen=True)
class Defect:
    """What is wrong with some checkpoints.

    Attributes:
        kind: ``last``: they have the weights of the last one; ``equal``: they have the same weights; ``order``: their
            weights belong elsewhere in the series; ``states``: they have the hidden states of the last one, but
            different weights; ``tokenizer``, ``config``: these differ from the last one's.
        checkpoints: their positions in the series; they are left out of all conclusions.
        text: the finding as a sentence.
    """

    kind: DefectKind
    checkpoints: tuple[int, ...]
    text: str


def check_series(
    series: Sequence[Identity], cka_with_last: Float[np.ndarray, "checkpoint layer"] | None = None
) -> list[Defect]:
    """What is wrong with a series of checkpoints, given in training order.

    A checkpoint is out of order if moving it elsewhere shortens the path through the weights: the sum of the distances
    that change must fall below 0.8 of its former value. A training run that moves straight or at random passes (every
    other position is longer); so does one that stays near a point (every position is equally long), and one whose
    learning rate falls at the end (0.83; 0.71 if the first is moved behind the last, for which the bound is 0.6). Two
    things cannot be detected: two checkpoints swapped at either end of a random walk, and a whole series in reverse.

    Args:
        series: at least two checkpoints.
        cka_with_last: linear CKA of each with the last one; NaN if unknown.

    Returns:
        The findings; none if nothing is wrong.
    """
    found = [*_other_parts(series), *_equal(series)]
    wrong = {i for finding in found for i in finding.checkpoints}
    comparable = [
        i for i in range(len(series)) if i not in wrong and series[i].weights.shapes == series[-1].weights.shapes
    ]
    found += _order(series, comparable)
    wrong = {i for finding in found for i in finding.checkpoints}
    if cka_with_last is not None:
        found += _same_states(series, cka_with_last, wrong)
    return found


def distances(series: Sequence[Identity]) -> Float[np.ndarray, "checkpoint checkpoint"]:
    """Estimates of the Euclidean distances between the weights; NaN where shapes differ."""
    found = np.full((len(series), len(series)), np.nan)
    for shapes in {each.weights.shapes for each in series}:
        same = [i for i, each in enumerate(series) if each.weights.shapes == shapes]
        values = torch.stack([series[i].weights.values for i in same])
        exact = torch.cdist(values, values, compute_mode="donot_use_mm_for_euclid_dist")
        found[np.ix_(same, same)] = exact.numpy()
    return found


def _other_parts(series: Sequence[Identity]) -> Iterator[Defect]:
    """Tokenizers and configurations that are not the last one's."""
    last = series[-1]
    known = next((each.tokenizer for each in reversed(series) if each.tokenizer is not None), None)
    if other := tuple(i for i, each in enumerate(series) if each.tokenizer not in (None, known)):
        yield Defect("tokenizer", other, f"{_named(series, other)} {_have(other)} another tokenizer than the last.")
    for i, each in enumerate(series):
        if unlike := _unlike(each.config, last.config):
            told = [f"{key} {_value(each, key)}, not {_value(last, key)}" for key in unlike[:3]]
            more = f", and {len(unlike) - 3} more" if len(unlike) > 3 else ""
            yield Defect("config", (i,), f"{quoted(each.name)} has another configuration ({'; '.join(told)}{more}).")


def _unlike(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Settings that differ. Hugging Face's Trainer copies the padding's token id from the tokenizer: one that was
    missing before is not counted as a difference, although RoBERTa numbers positions from it."""
    keys = sorted({*one, *other})
    unset = None in (one.get("pad_token_id"), other.get("pad_token_id"))
    return [key for key in keys if one.get(key) != other.get(key) and not (unset and key == "pad_token_id")]


def _value(each: Identity, key: str) -> str:
    return quoted(str(each.config[key]), 40) if key in each.config else "missing"


def _equal(series: Sequence[Identity]) -> Iterator[Defect]:
    groups: dict[str, list[int]] = {}
    for i, each in enumerate(series):
        groups.setdefault(each.weights.digest, []).append(i)
    for group in groups.values():
        if len(group) > 1 and group[-1] == len(series) - 1:
            stale = tuple(group[:-1])
            yield Defect("last", stale, f"{_named(series, stale)} {_have(stale)} the weights of the last checkpoint.")
        elif len(group) > 1:
            yield Defect("equal", tuple(group), f"{_named(series, group)} have the same weights.")


def _order(series: Sequence[Identity], left: list[int]) -> Iterator[Defect]:
    """Checkpoints whose removal to another place makes the path shorter, the worst first, each taken out."""
    apart, found = distances(series), list[tuple[int, ...]]()
    while len(left) > 2:
        ratio, k, place = min(_moves(apart, left), default=(math.inf, 0, 0))
        if not ratio < _SHORTER:
            break
        # Of neighbours that changed places, either may be said to have moved.
        found.append((left[k], left[place]) if abs(place - k) == 1 else (left[k],))
        left = [i for i in left if i not in found[-1]]
    for wrong in found:
        named = [_name(series, i) for i in sorted(wrong)]
        if len(wrong) > 1:
            text = f"By the weights, {join(named)} are in each other's place."
        else:
            sides = [_name(series, i) for i in _place_of(wrong[0], apart, left)]
            text = f"By the weights, {named[0]} belongs {'between' if len(sides) > 1 else 'beside'} {join(sides)}."
        yield Defect("order", tuple(sorted(wrong)), text)


def _place_of(moved: int, apart: np.ndarray, left: Sequence[int]) -> list[int]:
    """Its neighbours where it makes the path through the others longer by the least."""

    def longer(sides: tuple[int | None, int | None]) -> float:
        a, b = sides
        return _edge(apart, a, moved) + _edge(apart, moved, b) - _edge(apart, a, b)

    places: list[tuple[int | None, int | None]] = [*zip([None, *left], [*left, None], strict=True)]
    return [i for i in min(places, key=longer) if i is not None]


def _moves(apart: np.ndarray, order: Sequence[int]) -> Iterator[tuple[float, int, int]]:
    """For each place ``k`` and each place among the others: the length of what changes, after over before.

    It is scaled where need be, so that ``_SHORTER`` bounds it.
    """
    for k, moved in enumerate(order):
        others = [i for i in order if i != moved]
        left, right = (others[k - 1] if k else None), (others[k] if k < len(others) else None)
        gone = _edge(apart, left, moved) + _edge(apart, moved, right)
        closed = _edge(apart, left, right)
        for place in range(len(others) + 1):
            if place == k:
                continue
            a, b = (others[place - 1] if place else None), (others[place] if place < len(others) else None)
            before = gone + _edge(apart, a, b)
            after = closed + _edge(apart, a, moved) + _edge(apart, moved, b)
            if before > 0:
                over_ends = {k, place} == {0, len(others)}
                yield after / before * (_SHORTER / _ENDS if over_ends else 1), k, place


def _edge(apart: np.ndarray, a: int | None, b: int | None) -> float:
    return 0.0 if a is None or b is None else float(apart[a, b])


def _same_states(series: Sequence[Identity], cka: np.ndarray, wrong: set[int]) -> Iterator[Defect]:
    """Hidden states of the last checkpoint, long before it, that its weights do not tell; at the layers where CKA is
    defined (layer 0 may be the same for all prompts)."""
    away = np.array([1 - of[np.isfinite(of)].min() if np.isfinite(of).any() else np.nan for of in cka])
    right = [i for i in range(len(series) - 1) if i not in wrong and np.isfinite(away[i])]
    stale = tuple(
        i for i in right if away[i] < _SAME_STATES and any(away[j] > _BETWEEN + 10 * away[i] for j in right if j > i)
    )
    if stale:
        text = f"{_named(series, stale)} {_have(stale)} the hidden states of the last checkpoint, with other weights."
        yield Defect("states", stale, text)


def _have(which: Sequence[int]) -> str:
    return "has" if len(which) == 1 else "have"


def _name(series: Sequence[Identity], i: int) -> str:
    return quoted(series[i].name)


def _named(series: Sequence[Identity], which: Sequence[int]) -> str:
    """At most five by name."""
    names = [_name(series, i) for i in which[:5]]
    return join([*names, f"{len(which) - 5} more"]) if len(which) > 5 else join(names)
