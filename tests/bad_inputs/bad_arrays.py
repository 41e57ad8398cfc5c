"""Bad arrays of every kind, made from a good one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from tests.bad_inputs.good_calls import N

REFUSED = object()  # for arrays that no well-formed one has the meaning of


class Bad(NamedTuple):
    """A bad array; ``same`` is a well-formed one of the same meaning, or ``REFUSED``."""

    value: Any
    same: Any = REFUSED


def with_one(array: np.ndarray, value: Any, dtype: Any = np.float64) -> np.ndarray:
    """Return a copy with one value replaced, in the middle."""
    copy = array.astype(dtype)
    copy.flat[copy.size // 2] = value
    return copy


def bad_numbers(good: np.ndarray) -> dict[str, Bad]:
    """Return bad arrays of real numbers."""
    return numbers_of_other_shapes(good) | numbers_of_other_types(good)


def numbers_of_other_shapes(good: np.ndarray) -> dict[str, Bad]:
    """Return arrays with values or shapes that cannot be."""
    tensor = torch.from_numpy(good.copy())
    same = np.repeat(good[:1], len(good), axis=0)
    return {
        "NaN": Bad(with_one(good, np.nan)),
        "all NaN": Bad(np.full(good.shape, np.nan)),
        "infinity": Bad(with_one(good, np.inf)),
        "-infinity": Bad(with_one(good, -np.inf)),
        "1e300": Bad(good * 1e300, good * 1e300),
        "no rows": Bad(good[:0]),
        "no columns": Bad(good[..., :0]),
        "number": Bad(1.5),
        "0-d": Bad(np.array(1.5)),
        "None": Bad(None),
        "text": Bad("states.npy"),
        "list of lists": Bad(good.tolist(), good),
        "list of arrays": Bad(list(good), good),
        "list of tensors": Bad(list(tensor), good),
        "1-d": Bad(good.reshape(len(good), -1)[:, 0]),
        "one axis more": Bad(good[None]),
        "a row less": Bad(good[:-1]),
        "a row more": Bad(np.concatenate([good, good[:1]])),
        "one row": Bad(good[:1]),
        "all rows the same": Bad(same, same),
    }


def numbers_of_other_types(good: np.ndarray) -> dict[str, Bad]:
    """Return arrays of all types of numbers and of what are none, and of all layouts in memory."""
    whole = np.rint(good * 3)
    tensor = torch.from_numpy(good.copy())
    return {
        "int": Bad(whole.astype(np.int64), whole),
        "uint8": Bad(np.abs(whole).astype(np.uint8), np.abs(whole)),
        "bool": Bad(good > 0.1, (good > 0.1).astype(float)),
        "float16": Bad(good.astype(np.float16), good.astype(np.float16).astype(float)),
        "longdouble": Bad(good.astype(np.longdouble), good),
        "big-endian": Bad(good.astype(">f8"), good),
        "complex": Bad(good + 1j),
        "complex tensor": Bad(tensor + 1j),
        "object": Bad(good.astype(object), good),
        "object with None": Bad(with_one(good, None, object)),
        "str": Bad(good.astype(str)),
        "DataFrame": Bad(pd.DataFrame(good.reshape(len(good), -1)), good.reshape(len(good), -1)),
        "masked": Bad(np.ma.masked_array(good, mask=good > 1.0)),
        "read-only": Bad(read_only(good), good),
        "negative stride": Bad(good[::-1].copy()[::-1], good),
        "tensor": Bad(tensor, good),
        "tensor that requires grad": Bad(tensor.clone().requires_grad_(True), good),
        "bfloat16 tensor": Bad(tensor.bfloat16(), tensor.bfloat16().double().numpy()),
        "int tensor": Bad(torch.from_numpy(whole).long(), whole),
        "meta tensor": Bad(tensor.to("meta")),
        "sparse tensor": Bad(tensor.to_sparse(), good),
    }


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a copy that cannot be written to."""
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def bad_labels(good: np.ndarray) -> dict[str, Bad]:
    """Return bad labels, one per row, which count as names."""
    return labels_of_other_shapes(good) | labels_of_other_types(good)


def labels_of_other_shapes(good: np.ndarray) -> dict[str, Bad]:
    """Return labels with values or shapes that cannot be."""
    tensor = torch.from_numpy(good.copy())
    different = np.arange(len(good))
    return {
        "NaN": Bad(with_one(good, np.nan)),
        "NaN tensor": Bad(torch.from_numpy(with_one(good, np.nan))),
        "NaN list": Bad(with_one(good, np.nan).tolist()),
        "two NaN": Bad(np.where(good == good[0], np.nan, good)),
        "infinity": Bad(with_one(good, np.inf), with_one(good, 99)),
        "none": Bad(good[:0]),
        "empty list": Bad([]),
        "number": Bad(3),
        "text": Bad("labels.csv"),
        "text of the same length": Bad("ab" * (len(good) // 2)),
        "list": Bad(good.tolist(), good),
        "tuple": Bad(tuple(good.tolist()), good),
        "range": Bad(range(len(good)), different),
        "generator": Bad(label for label in good),
        "set": Bad(set(good.tolist())),
        "list of tensors": Bad(list(tensor), good),
        "2-d": Bad(good[:, None], good),
        "2-d, two columns": Bad(np.stack([good, good], axis=1)),
        "ragged": Bad([[1, 2], [3]] + [[4]] * (len(good) - 2)),
        "0-d": Bad(np.array(3)),
        "one less": Bad(good[:-1]),
        "one more": Bad(np.append(good, 0)),
        "one label": Bad(np.zeros_like(good), np.zeros_like(good)),
        "all different": Bad(different, different),
    }


def labels_of_other_types(good: np.ndarray) -> dict[str, Bad]:
    """Return labels of all types."""
    tensor = torch.from_numpy(good.copy())
    names = np.array([f"class {label:02d}" for label in good])
    return {
        "negative": Bad(good - 5, good),
        "huge": Bad(good * 10**12, good),
        "uint64": Bad(good.astype(np.uint64) + 2**63, good),
        "float": Bad(good.astype(float), good),
        "fractions": Bad(good / 2, good),
        "bool": Bad(good > 0, (good > 0).astype(int)),
        "complex": Bad(good + 1j, good),
        "str": Bad(names, good),
        "list of str": Bad(names.tolist(), good),
        "bytes": Bad(names.astype(bytes), good),
        "object of int": Bad(good.astype(object), good),
        "object with None": Bad(with_one(good, None, object)),
        "list with None": Bad([None, *good.tolist()[1:]]),
        "mixed": Bad(["a", *good.tolist()[1:]]),
        "str with NaN": Bad(["a", float("nan"), *names.tolist()[2:]]),
        "Series": Bad(pd.Series(good, index=range(100, 100 + len(good))), good),
        "Series of category": Bad(pd.Series(names, dtype="category"), good),
        "Series with NA": Bad(pd.Series(good, dtype="Int64").mask(good == 1)),
        "dates": Bad(np.datetime64("2024-01-01") + good, good),
        "NaT": Bad(with_one(np.datetime64("2024-01-01") + good, np.datetime64("NaT"), "datetime64[D]")),
        "masked": Bad(np.ma.masked_array(good, mask=good == 1)),
        "tensor": Bad(tensor, good),
        "float tensor that requires grad": Bad(tensor.double().requires_grad_(True), good),
        "int32 tensor": Bad(tensor.int(), good),
        "meta tensor": Bad(tensor.to("meta")),
    }


def bad_integers(good: np.ndarray) -> dict[str, Bad]:
    """Return bad arrays of integers that count as numbers: ids, digits, folds, answers."""
    tensor = torch.from_numpy(good.copy())
    return {
        "NaN": Bad(with_one(good, np.nan)),
        "infinity": Bad(with_one(good, np.inf)),
        "none": Bad(good[:0]),
        "no columns": Bad(good[..., :0]),
        "number": Bad(1),
        "0-d": Bad(np.array(1)),
        "None": Bad(None),
        "text": Bad("tokens.npy"),
        "list": Bad(good.tolist(), good),
        "list of arrays": Bad(list(good), good),
        "flat": Bad(good.ravel()) if good.ndim > 1 else Bad(good[:, None]),
        "one axis more": Bad(good[None]),
        "one less": Bad(good[:-1]),
        "one more": Bad(np.concatenate([good, good[:1]])),
        "negative": Bad(with_one(good, -1, np.int64)),
        "too large": Bad(with_one(good, 99, np.int64)),
        "huge": Bad(with_one(good, 10**12, np.int64)),
        "float": Bad(good.astype(float), good),
        "fractions": Bad(with_one(good, 0.5)),
        "bool": Bad(good > 0, (good > 0).astype(int)),
        "uint8": Bad(good.astype(np.uint8), good),
        "int32 tensor": Bad(tensor.int(), good),
        "complex": Bad(good + 1j),
        "object": Bad(good.astype(object), good),
        "object with None": Bad(with_one(good, None, object)),
        "str": Bad(good.astype(str)),
        "Series": Bad(pd.Series(list(good), index=range(100, 100 + len(good))), good),
        "tensor": Bad(tensor, good),
        "float tensor that requires grad": Bad(tensor.double().requires_grad_(True), good),
        "meta tensor": Bad(tensor.to("meta")),
    }


def bad_pattern(good: np.ndarray) -> dict[str, Bad]:
    """Return bad attention patterns."""
    return bad_numbers(good) | {
        "ones": Bad(np.ones_like(good)),
        "sums to 2": Bad(2 * good),
        "negative weight": Bad(with_one(good, -0.2)),
        "logits": Bad(np.log(good)),
    }


def bad_labelings(good: np.ndarray) -> dict[str, Bad]:
    """Return bad labelings [labeling row]."""
    return bad_integers(good) | {
        "a row less": Bad(good[:, :-1]),
        "a row more": Bad(np.append(good, 0)[None]),
        "all negative": Bad(good - 5),
        "one class": Bad(np.zeros_like(good), np.zeros_like(good)),
        "str": Bad(np.array([["a", "b", "c"] * (N // 3)])),
    }


def bad_folds(good: np.ndarray) -> dict[str, Bad]:
    """Return bad folds."""
    kinds = bad_integers(good)
    kinds["one fold"] = Bad(np.zeros_like(good))
    kinds["all negative"] = Bad(good - 9)
    kinds["str"] = Bad([f"fold {fold}" for fold in good], good)  # as every label
    kinds.pop("bool")
    return kinds


def bad_counts(good: np.ndarray) -> dict[str, Bad]:
    """Return bad counts per fold."""
    kinds = bad_integers(good)
    kinds["more hits than examples"] = Bad(np.array([9, 9, 9, 9]))
    kinds["all 0"] = Bad(np.zeros_like(good))
    kinds["DataFrame"] = Bad(pd.DataFrame(good))
    for kind in ("too large", "huge", "bool"):
        kinds.pop(kind)
    return kinds


def bad_topics(good: np.ndarray) -> dict[str, Bad]:
    """Return bad topics: one integer for each word, or a table."""
    kinds = bad_integers(good)
    kinds["table of floats"] = Bad(np.eye(3)[good])
    kinds["table of 2"] = Bad(2 * np.eye(3, dtype=int)[good])
    kinds["one topic"] = Bad(np.zeros_like(good))
    kinds["all negative"] = Bad(good - 9)
    kinds["flat"] = Bad(good[:, None])
    for kind in ("negative", "too large", "huge"):  # no topic, and numbers count as names
        kinds.pop(kind)
    return kinds


def bad_support(good: tuple[int, ...]) -> dict[str, Bad]:
    """Return bad sets of positions."""
    return {
        "number": Bad(1),
        "empty": Bad(()),
        "twice": Bad((0, 0)),
        "negative": Bad((-1, 0)),
        "too large": Bad((0, 99)),
        "float": Bad((0.0, 1.0), good),
        "fractions": Bad((0.5, 1)),
        "NaN": Bad((float("nan"), 1)),
        "str": Bad("01"),
        "list of str": Bad(["0", "1"]),
        "array": Bad(np.array(good), good),
        "tensor": Bad(torch.tensor(good), good),
        "set": Bad(set(good), good),
        "range": Bad(range(2), good),
        "None inside": Bad((0, None)),
        "bool": Bad((True, False)),
        "nested": Bad(((0,), (1,))),
    }


def bad_number(good: float) -> dict[str, Bad]:
    """Return bad numbers."""
    return {
        "NaN": Bad(float("nan")),
        "infinity": Bad(float("inf")),
        "negative": Bad(-1),
        "text": Bad("5"),
        "None": Bad(None),
        "array": Bad(np.array([good, good])),
        "tensor": Bad(torch.tensor(float(good)), good),
        "complex": Bad(good + 1j),
        "too many": Bad(10**6) if good == 5 else Bad(2),
        "0": Bad(0) if good != 5 else Bad(0, 0),
    }
