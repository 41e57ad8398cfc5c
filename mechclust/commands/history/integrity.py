"""Checks that the checkpoints of a series are as their names say, before any conclusion is drawn from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float

from mechclust.models.sketch import WeightSketch
from mechclust.report.text import list_text
from tasks.text.visible import quoted

DefectKind = Literal["last", "equal", "order", "states", "tokenizer", "config"]
MAX_LENGTH_RATIO = 0.8
"""Length of the distances that a move changes, after over before, below which a checkpoint is out of order."""
MAX_LENGTH_RATIO_AT_ENDS = 0.6
"""The bound for a move from one end to the other, which replaces one distance by another."""
SAME_STATES = 1e-5  # 1 - CKA at every layer
DIFFERENT_STATES = 1e-4  # 1 - CKA of a later checkpoint that shows that the equal one is too early
MAX_NAMED = 5  # checkpoints and settings named in a sentence

_Distances = Float[np.ndarray, "checkpoint checkpoint"]


@dataclass(frozen=True)
class Identity:
    """Facts that distinguish one checkpoint from another.

    Attributes:
        name: the checkpoint's name.
        weights: a sketch of its weights.
        config: the parts of the model's configuration that affect the numbers.
        tokenizer: a digest, or ``None`` if the checkpoint has no tokenizer.
    """

    name: str
    weights: WeightSketch
    config: Mapping[str, Any]
    tokenizer: str | None


@dataclass(frozen=True)
class Defect:
    """Checkpoints that contradict their names.

    Attributes:
        kind: ``last``: they have the weights of the last one. ``equal``: they have equal weights. ``order``: their
            weights belong elsewhere in the series. ``states``: they have the hidden states of the last one, but
            different weights. ``tokenizer``, ``config``: these differ from the last one's.
        checkpoints: their positions in the series. They are left out of all conclusions.
        text: the finding as a sentence.
    """

    kind: DefectKind
    checkpoints: tuple[int, ...]
    text: str


class _Move(NamedTuple):
    """A checkpoint moved to another place among the others.

    Attributes:
        ratio: length of the distances that change, after over before, scaled to the bound ``MAX_LENGTH_RATIO``.
        source: its place in the order.
        target: its place among the others.
    """

    ratio: float
    source: int
    target: int


def check_series(
    series: Sequence[Identity], cka_with_last: Float[np.ndarray, "checkpoint layer"] | None = None
) -> list[Defect]:
    """Find defects in a series of checkpoints, given in training order.

    A checkpoint is out of order if moving it elsewhere shortens the path through the weights: the sum of the distances
    that change must fall below 0.8 of its former value. A training run that moves straight or at random passes (every
    other position is longer). So does one that stays near a point (every position is equally long). One whose learning
    rate falls at the end passes too (0.83, or 0.71 if the first is moved behind the last, for which the bound is 0.6).
    Two errors cannot be detected: two checkpoints swapped at either end of a random walk, and a whole series in
    reverse.

    Args:
        series: at least two checkpoints.
        cka_with_last: linear CKA of each with the last one, or NaN if unknown.

    Returns:
        The defects, if any.
    """
    defects = [*_other_tokenizers(series), *_other_configs(series), *_equal_weights(series)]
    wrong = flagged_checkpoints(defects)
    shapes = series[-1].weights.shapes
    comparable = [i for i, each in enumerate(series) if i not in wrong and each.weights.shapes == shapes]
    defects += _out_of_order(series, comparable)
    if cka_with_last is not None:
        defects += _same_states(series, cka_with_last, flagged_checkpoints(defects))
    return defects


def flagged_checkpoints(defects: Sequence[Defect]) -> set[int]:
    """Return the positions of the checkpoints with findings."""
    return set(chain.from_iterable(defect.checkpoints for defect in defects))


def weight_distances(series: Sequence[Identity]) -> _Distances:
    """Estimate the Euclidean distances between the weights, with NaN if shapes differ."""
    apart = np.full((len(series), len(series)), np.nan)
    for shapes in {each.weights.shapes for each in series}:
        same = [i for i, each in enumerate(series) if each.weights.shapes == shapes]
        values = torch.stack([series[i].weights.values for i in same])
        exact = torch.cdist(values, values, compute_mode="donot_use_mm_for_euclid_dist")
        apart[np.ix_(same, same)] = exact.numpy()
    return apart


def _other_tokenizers(series: Sequence[Identity]) -> Iterator[Defect]:
    last = next((each.tokenizer for each in reversed(series) if each.tokenizer is not None), None)
    others = tuple(i for i, each in enumerate(series) if each.tokenizer not in (None, last))
    if others:
        yield Defect("tokenizer", others, f"{_names_with_verb(series, others)} another tokenizer than the last.")


def _other_configs(series: Sequence[Identity]) -> Iterator[Defect]:
    last = series[-1]
    for i, each in enumerate(series):
        keys = _different_settings(each.config, last.config)
        if keys:
            differences = [f"{key} {_setting(each, key)}, not {_setting(last, key)}" for key in keys[:3]]
            more = f", and {len(keys) - 3} more" if len(keys) > 3 else ""
            text = f"{quoted(each.name)} has another configuration ({'; '.join(differences)}{more})."
            yield Defect("config", (i,), text)


def _different_settings(config: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return settings that differ.

    Hugging Face's Trainer copies the padding's token id from the tokenizer. One that was missing before is not counted
    as a difference, although RoBERTa numbers positions from it.
    """
    keys = [key for key in sorted({*config, *other}) if config.get(key) != other.get(key)]
    if None in (config.get("pad_token_id"), other.get("pad_token_id")):
        return [key for key in keys if key != "pad_token_id"]
    return keys


def _setting(each: Identity, key: str) -> str:
    return quoted(str(each.config[key]), 40) if key in each.config else "missing"


def _equal_weights(series: Sequence[Identity]) -> Iterator[Defect]:
    groups: dict[str, list[int]] = {}
    for i, each in enumerate(series):
        groups.setdefault(each.weights.digest, []).append(i)
    for group in groups.values():
        *stale, newest = group
        if stale and newest == len(series) - 1:
            yield Defect("last", tuple(stale), f"{_names_with_verb(series, stale)} the weights of the last checkpoint.")
        elif stale:
            yield Defect("equal", tuple(group), f"{_names_with_verb(series, group)} the same weights.")


def _out_of_order(series: Sequence[Identity], order: list[int]) -> Iterator[Defect]:
    """Take out checkpoints whose move to another place makes the path shorter, the worst first."""
    apart = weight_distances(series)
    misplaced: list[tuple[int, ...]] = []
    while len(order) > 2:
        best = min(_moves(apart, order), default=None)
        if best is None or not best.ratio < MAX_LENGTH_RATIO:
            break
        moved = order[best.source]
        # Of neighbours that changed places, either may be said to have moved.
        neighbours = abs(best.target - best.source) == 1
        misplaced.append((moved, order[best.target]) if neighbours else (moved,))
        order = [i for i in order if i not in misplaced[-1]]
    for checkpoints in misplaced:
        names = [quoted(series[i].name) for i in sorted(checkpoints)]
        if len(checkpoints) > 1:
            text = f"By the weights, {list_text(names)} are in each other's place."
        else:
            sides = [quoted(series[i].name) for i in _nearest_place(checkpoints[0], apart, order)]
            text = f"By the weights, {names[0]} belongs {'between' if len(sides) > 1 else 'beside'} {list_text(sides)}."
        yield Defect("order", tuple(sorted(checkpoints)), text)


def _nearest_place(moved: int, apart: _Distances, order: Sequence[int]) -> list[int]:
    """Return the neighbours between which it lengthens the path through the others least."""
    places = list(zip([None, *order], [*order, None], strict=True))
    longer = [_through(apart, left, moved, right) - _edge(apart, left, right) for left, right in places]
    return [i for i in places[int(np.argmin(longer))] if i is not None]


def _moves(apart: _Distances, order: Sequence[int]) -> Iterator[_Move]:
    """Yield every move of one checkpoint to another place."""
    for source, moved in enumerate(order):
        others = [None, *(i for i in order if i != moved), None]
        closed = _edge(apart, others[source], others[source + 1])
        opened = _through(apart, others[source], moved, others[source + 1])
        for target in range(len(order)):
            if target == source:
                continue
            left, right = others[target : target + 2]
            before = opened + _edge(apart, left, right)
            after = closed + _through(apart, left, moved, right)
            if before > 0:
                over_ends = {source, target} == {0, len(order) - 1}
                scale = MAX_LENGTH_RATIO / MAX_LENGTH_RATIO_AT_ENDS if over_ends else 1
                yield _Move(after / before * scale, source, target)


def _through(apart: _Distances, left: int | None, moved: int, right: int | None) -> float:
    """Return the length of the path from one checkpoint through a second to a third."""
    return _edge(apart, left, moved) + _edge(apart, moved, right)


def _edge(apart: _Distances, a: int | None, b: int | None) -> float:
    return 0.0 if a is None or b is None else float(apart[a, b])


def _same_states(
    series: Sequence[Identity], cka: Float[np.ndarray, "checkpoint layer"], wrong: set[int]
) -> Iterator[Defect]:
    """Find hidden states of the last checkpoint, long before it, that the weights do not explain.

    Only layers at which CKA is defined count, since layer 0 may be constant over prompts.
    """
    undefined = ~np.isfinite(cka)
    away = 1 - np.where(undefined, np.inf, cka).min(axis=1)
    away[undefined.all(axis=1)] = np.nan
    right = [i for i in range(len(series) - 1) if i not in wrong and np.isfinite(away[i])]
    stale = []
    for i in right:
        later = [away[j] for j in right if j > i]
        if away[i] < SAME_STATES and any(x > DIFFERENT_STATES + 10 * away[i] for x in later):
            stale.append(i)
    if stale:
        text = f"{_names_with_verb(series, stale)} the hidden states of the last checkpoint, with other weights."
        yield Defect("states", tuple(stale), text)


def _names_with_verb(series: Sequence[Identity], checkpoints: Sequence[int]) -> str:
    verb = "has" if len(checkpoints) == 1 else "have"
    return f"{first_names([series[i].name for i in checkpoints])} {verb}"


def first_names(names: Sequence[str]) -> str:
    """Return names in quotes, at most five of them.

    Example:
        >>> first_names(["step0", "step8"]), first_names(list("abcdefg"))
        ("'step0' and 'step8'", "'a', 'b', 'c', 'd', 'e' and 2 more")
    """
    shown = [quoted(name) for name in names[:MAX_NAMED]]
    if len(names) > MAX_NAMED:
        shown.append(f"{len(names) - MAX_NAMED} more")
    return list_text(shown)
