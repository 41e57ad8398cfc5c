"""Checks that the checkpoints of a series are as their names say, before any conclusion is drawn from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from mechclust.report.text import list_text
from tasks.text.visible import quoted

DefectKind = Literal["last", "equal", "states", "tokenizer", "config"]

# Chosen thresholds, of the largest 1 - CKA over layers: below the first, states count as the last checkpoint's. A later
# checkpoint has changed states if its distance exceeds _CHANGED_DISTANCE + _CHANGED_RATIO * that of the earlier one.
_SAME_STATES_DISTANCE = 1e-5
_CHANGED_DISTANCE = 1e-4
_CHANGED_RATIO = 10

_MAX_NAMES_LISTED = 5  # chosen, for a sentence that is still easy to read
_MAX_SETTINGS_LISTED = 3  # chosen likewise, since each comes with two values


@dataclass(frozen=True)
class Identity:
    """Facts that distinguish one checkpoint from another.

    Attributes:
        name: the checkpoint's name.
        weights: a digest of its weights.
        config: the parts of the model's configuration that affect the numbers.
        tokenizer: a digest, or ``None`` if the checkpoint has no tokenizer.
    """

    name: str
    weights: str
    config: Mapping[str, Any]
    tokenizer: str | None


@dataclass(frozen=True)
class Defect:
    """A fault of one or more checkpoints, which are left out of all conclusions.

    Attributes:
        kind: ``last``: they have the weights of the last checkpoint, which is kept. ``equal``: they have equal weights,
            and it is unknown whose these are, so all are left out. ``states``: they have the hidden states of the last
            checkpoint, but other weights. ``config``: their configurations differ from the last checkpoint's.
            ``tokenizer``: their tokenizers differ from the last tokenizer in the series.
        checkpoints: their positions in the series.
        text: the defect as a sentence.
    """

    kind: DefectKind
    checkpoints: tuple[int, ...]
    text: str


def check_series(
    series: Sequence[Identity], cka_with_last: Float[np.ndarray, "checkpoint layer"] | None = None
) -> list[Defect]:
    """Find defects in a series of checkpoints.

    Args:
        series: at least two checkpoints, in training order.
        cka_with_last: biased linear CKA with the last checkpoint, which is 1 only for equal states. NaN where it is
            undefined. ``None``: hidden states are not compared.

    Returns:
        The defects, if any.
    """
    defects = [*_other_tokenizers(series), *_other_configs(series), *_equal_weights(series)]
    if cka_with_last is not None:
        defects += _same_states(series, cka_with_last, flagged_checkpoints(defects))
    return defects


def flagged_checkpoints(defects: Sequence[Defect]) -> set[int]:
    """Return the positions of all checkpoints that have a defect."""
    return set(chain.from_iterable(defect.checkpoints for defect in defects))


def _other_tokenizers(series: Sequence[Identity]) -> Iterator[Defect]:
    last = next((each.tokenizer for each in reversed(series) if each.tokenizer is not None), None)
    others = tuple(i for i, each in enumerate(series) if each.tokenizer not in (None, last))
    if others:
        yield Defect("tokenizer", others, f"{_names_have(series, others)} another tokenizer than the last.")


def _other_configs(series: Sequence[Identity]) -> Iterator[Defect]:
    last = series[-1]
    for i, each in enumerate(series):
        keys = _different_settings(each.config, last.config)
        if keys:
            differences = [
                f"{key} {_setting(each, key)}, not {_setting(last, key)}" for key in keys[:_MAX_SETTINGS_LISTED]
            ]
            n_more = len(keys) - _MAX_SETTINGS_LISTED
            more = f", and {n_more} more" if n_more > 0 else ""
            text = f"{quoted(each.name)} has another configuration ({'; '.join(differences)}{more})."
            yield Defect("config", (i,), text)


def _different_settings(config: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the names of settings that differ.

    ``pad_token_id`` is not compared if one side lacks it, since Hugging Face's Trainer adds it from the tokenizer. This
    misses a real difference in RoBERTa, which numbers positions from it.
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
        groups.setdefault(each.weights, []).append(i)
    for group in groups.values():
        *earlier, newest = group
        if earlier and newest == len(series) - 1:
            yield Defect("last", tuple(earlier), f"{_names_have(series, earlier)} the weights of the last checkpoint.")
        elif earlier:
            yield Defect("equal", tuple(group), f"{_names_have(series, group)} the same weights.")


def _same_states(
    series: Sequence[Identity], cka: Float[np.ndarray, "checkpoint layer"], flagged: set[int]
) -> Iterator[Defect]:
    """Yield a defect if checkpoints have the last one's hidden states, but a later checkpoint does not.

    Equal states alone are no defect: training may have converged. Distance is the largest 1 - CKA of the layers at
    which CKA is defined. It may be undefined at layer 0, which can be constant over prompts.
    """
    distance = np.where(np.isfinite(cka), 1 - cka, -np.inf).max(axis=1)  # -inf: undefined at every layer
    usable = [i for i in range(len(series) - 1) if i not in flagged and np.isfinite(distance[i])]
    same = []
    for i in usable:
        largest_later = max((distance[j] for j in usable if j > i), default=-np.inf)
        if distance[i] < _SAME_STATES_DISTANCE and largest_later > _CHANGED_DISTANCE + _CHANGED_RATIO * distance[i]:
            same.append(i)
    if same:
        text = f"{_names_have(series, same)} the hidden states of the last checkpoint, with other weights."
        yield Defect("states", tuple(same), text)


def _names_have(series: Sequence[Identity], checkpoints: Sequence[int]) -> str:
    verb = "has" if len(checkpoints) == 1 else "have"
    return f"{listed_names([series[i].name for i in checkpoints])} {verb}"


def listed_names(names: Sequence[str]) -> str:
    """Return quoted names as a list in words. After five, the rest are only counted.

    Example:
        >>> listed_names(["step0", "step8"]), listed_names(list("abcdefg"))
        ("'step0' and 'step8'", "'a', 'b', 'c', 'd', 'e' and 2 more")
    """
    shown = [quoted(name) for name in names[:_MAX_NAMES_LISTED]]
    if len(names) > _MAX_NAMES_LISTED:
        shown.append(f"{len(names) - _MAX_NAMES_LISTED} more")
    return list_text(shown)
