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
SAME_STATES = 1e-5  # 1 - CKA at every layer
DIFFERENT_STATES = 1e-4  # 1 - CKA of a later checkpoint that shows that the equal one is too early
MAX_NAMED = 5  # checkpoints and settings named in a sentence


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
    """Checkpoints that contradict their names.

    Attributes:
        kind: ``last``: they have the weights of the last one. ``equal``: they have equal weights. ``states``:
            they have the hidden states of the last one, but different weights. ``tokenizer``, ``config``: these differ
            from the last one's.
        checkpoints: their positions in the series. They are left out of all conclusions.
        text: the finding as a sentence.
    """

    kind: DefectKind
    checkpoints: tuple[int, ...]
    text: str


def check_series(
    series: Sequence[Identity], cka_with_last: Float[np.ndarray, "checkpoint layer"] | None = None
) -> list[Defect]:
    """Find defects in a series of checkpoints, given in training order.

    Args:
        series: at least two checkpoints.
        cka_with_last: linear CKA of each with the last one, or NaN if unknown.

    Returns:
        The defects, if any.
    """
    defects = [*_other_tokenizers(series), *_other_configs(series), *_equal_weights(series)]
    if cka_with_last is not None:
        defects += _same_states(series, cka_with_last, flagged_checkpoints(defects))
    return defects


def flagged_checkpoints(defects: Sequence[Defect]) -> set[int]:
    """Return the positions of the checkpoints with findings."""
    return set(chain.from_iterable(defect.checkpoints for defect in defects))


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
        groups.setdefault(each.weights, []).append(i)
    for group in groups.values():
        *stale, newest = group
        if stale and newest == len(series) - 1:
            yield Defect("last", tuple(stale), f"{_names_with_verb(series, stale)} the weights of the last checkpoint.")
        elif stale:
            yield Defect("equal", tuple(group), f"{_names_with_verb(series, group)} the same weights.")


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
