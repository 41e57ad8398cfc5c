"""Bad arrays for every public function of ``probes.functional``.

A case replaces one argument of a good call. Its outcome is OK if the array is refused by name, if the result is that of
a well-formed array with the same meaning, or if it has NaN.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from tests.bad_inputs import bad_arrays
from tests.bad_inputs.bad_arrays import REFUSED, Bad
from tests.bad_inputs.good_calls import Call, good_calls
from tests.bad_inputs.outcome import Case, Outcome, Result, of_error

OTHER_NUMBER_OF_ROWS = ("a row less", "a row more")


class Role(NamedTuple):
    """What an array is for.

    Attributes:
        kinds: makes bad arrays of a good one, by kind.
        right: kinds that are not bad in this role.
    """

    kinds: Callable[[Any], dict[str, Bad]]
    right: tuple[str, ...] = ()


ROLES = {
    "matrix": Role(bad_arrays.bad_numbers),
    "only matrix": Role(bad_arrays.bad_numbers, OTHER_NUMBER_OF_ROWS),
    "centres": Role(bad_arrays.bad_numbers, ("None",)),
    "vectors": Role(
        bad_arrays.bad_numbers,
        (*OTHER_NUMBER_OF_ROWS, "no rows", "one row", "1-d", "one axis more", "infinity", "-infinity"),
    ),
    "logits": Role(bad_arrays.bad_numbers, ("infinity", "-infinity")),  # of tokens that are masked
    "weights": Role(bad_arrays.bad_pattern, ("ones", "sums to 2")),  # which are summed as they are
    "rows of weights": Role(
        bad_arrays.bad_pattern, (*OTHER_NUMBER_OF_ROWS, "no rows", "one row", "1-d", "one axis more")
    ),
    "labels": Role(bad_arrays.bad_labels),
    "only labels": Role(bad_arrays.bad_labels, ("one less", "one more")),
    "classes": Role(bad_arrays.bad_integers, ("str",)),  # which are numbered
    "integers": Role(bad_arrays.bad_integers),
    "words": Role(bad_arrays.bad_integers, ("negative",)),  # no word
    "tokens": Role(bad_arrays.bad_integers, ("none", "one less", "one more", "negative", "too large", "huge")),
    "answers": Role(bad_arrays.bad_integers, ("one less", "one more", "negative", "too large", "huge")),  # any numbers
    "folds": Role(bad_arrays.bad_folds, ("too large", "huge")),
    "counts": Role(bad_arrays.bad_counts, ("all 0", "fractions", "more hits than examples")),
    "topics": Role(bad_arrays.bad_topics, ("one more",)),  # a word that does not occur
    "labelings": Role(bad_arrays.bad_labelings, ("one more", "too large")),
    "support": Role(bad_arrays.bad_support),
    "number": Role(bad_arrays.bad_number),
}
OTHER_NAMES = {"answers": "answer", "tokens": "token", "classes": "class"}


def cases(rng: np.random.Generator) -> Iterator[Case]:
    """Yield a case for every function, argument and kind of bad array."""
    for call in good_calls(rng):
        for argument, (array, role) in call.good().items():
            for kind, bad in ROLES[role].kinds(array).items():
                given = bad._replace(same=bad.value) if kind in ROLES[role].right else bad
                yield Case(kind, f"{call.name} {argument}", partial(result_of, call, argument, given))


def result_of(call: Call, argument: str, bad: Bad) -> Result:
    """Call with one argument replaced, and return the outcome."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = call.function(**(call.values() | {argument: bad.value}))
        except Exception as error:
            return of_error(error, f"{argument}|{OTHER_NAMES.get(argument, argument)}")
    shown = " ".join(repr(value).split())[:110] + "".join(f" ({warning.message})" for warning in caught[:1])
    if bad.same is REFUSED:
        return Result(Outcome.OK if has_nan(value) else Outcome.SILENT, shown)
    expected = call.function(**(call.values() | {argument: bad.same}))
    return Result(Outcome.OK if is_same(value, expected) else Outcome.SILENT, f"{shown}; expected {expected!r:.110}")


def numbers(value: Any) -> dict[str, np.ndarray]:
    """Return all numbers in a result, by their place."""
    if isinstance(value, torch.Tensor):
        value = value.detach().to(torch.float16 if value.dtype is torch.bfloat16 else value.dtype).numpy()
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    elif isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        return {f"{key}.{place}": n for key, part in value.items() for place, n in numbers(part).items()}
    if value is None or isinstance(value, str):
        return {}
    return {"": np.asarray(value)}


def is_same(first: Any, second: Any) -> bool:
    """Return whether two results have the same numbers, up to rounding."""
    a = numbers(first)
    b = numbers(second)
    return a.keys() == b.keys() and all(a[k].shape == b[k].shape and is_close(a[k], b[k]) for k in a)


def is_close(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether numbers differ by rounding alone."""
    return np.allclose(a, b, rtol=2e-2 if a.dtype == np.float16 else 1e-4, atol=1e-6, equal_nan=True)


def has_nan(value: Any) -> bool:
    """Return whether a result says that it is undefined."""
    return any(np.isnan(n).any() for n in numbers(value).values() if n.dtype.kind in "fc")
