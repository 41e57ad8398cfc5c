"""Every public function takes tensors and arrays, and returns what it is given."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import probes.functional as functional
from probes.functional import kmeans, within_ratio
from probes.functional.arrays import as_tensor, computed_in_torch
from tasks import InputError

N = 40
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(N, 5))
Y = DRAW.normal(size=(N, 3))
LABEL = np.arange(N) % 2
CLUSTER = np.arange(N) % 3 // 2
UNIT = np.arange(N) // 2
DIGITS = DRAW.integers(0, 2, size=(N, 3))
PATTERN = DRAW.dirichlet(np.ones(4), size=(2, 3, 4))

CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "accuracy_interval": ((np.array([9, 7, 8]), np.array([10, 10, 10])), {}),
    "adjusted_rand_moments": ((LABEL, CLUSTER), {}),
    "adjusted_rand_null": ((LABEL, CLUSTER, 20), {"within": UNIT % 2, "units": UNIT}),
    "adjusted_rand_score": ((LABEL, CLUSTER), {}),
    "answer_scores": ((X, LABEL), {}),
    "attention_entropy": ((PATTERN,), {}),
    "cka_null": ((X, Y, 5), {"units": UNIT}),
    "cka_resamples": ((X, Y, 5), {"debiased": True, "units": UNIT}),
    "integer_weights": ((DIGITS @ [[0.3], [-0.3], [0.6]], DIGITS), {"support": (0, 1), "modulus": 2}),
    "kmeans": ((X, 2), {"initial": X[:2]}),
    "linear_cka": ((X, Y), {}),
    "n_dims": ((X,), {}),
    "nearest_centroid_accuracy": ((X, LABEL), {}),
    "neighbour_purity": ((X, LABEL), {"k": 3}),
    "neighbour_purity_chance": ((LABEL,), {"units": UNIT}),
    "norm_jacobian": ((X,), {}),
    "planar_lattice": ((DIGITS @ [[1.0, 0.1], [0.3, 1.0], [2.0, 0.2]], DIGITS), {"support": (0, 1), "modulus": 2}),
    "rbf_cka": ((X, Y), {}),
    "relabelling_p_values": ((X[:, None], LABEL, 20), {"strata": np.arange(N) // 20, "units": UNIT}),
    "response_classes": ((DIGITS.T,), {"tolerance": 0.4}),
    "ridge_predictions": ((X, np.stack([LABEL, CLUSTER]), np.arange(N) % 4), {"given": UNIT % 5}),
    "stratified_folds": ((LABEL, 4), {"units": UNIT}),
    "svcca": ((X, Y), {}),
    "topic_attention": ((PATTERN, np.array([[0, 1, 2, 3]] * 2), np.array([0, 0, 1, 1])), {}),
    "topic_similarity": ((X, LABEL), {}),
    "within_ratio": ((X, LABEL), {}),
}
WITHOUT_ARRAYS = {"half_interval", "wilson_interval"}


def converted(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Convert all arrays, also those in lists."""
    if isinstance(value, (list, tuple)):
        return type(value)(converted(item, convert) for item in value)
    if isinstance(value, dict):
        return {key: converted(item, convert) for key, item in value.items()}
    return convert(value) if isinstance(value, np.ndarray) else value


def leaves(value: Any) -> list[Any]:
    """All arrays and numbers in a result."""
    if is_dataclass(value):
        value = [getattr(value, name) for name in value.__dataclass_fields__]
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, (list, tuple)) else [value]


def calls(name: str, convert: Callable[[Any], Any]) -> list[Any]:
    args, kwargs = converted(CASES[name], convert)
    return leaves(getattr(functional, name)(*args, **kwargs))


def test_every_public_function_is_listed() -> None:
    public = {name for name in functional.__all__ if inspect.isfunction(getattr(functional, name))}
    assert public == set(CASES) | WITHOUT_ARRAYS


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_are_the_same_and_the_kind_is_that_of_the_arguments(name: str) -> None:
    of_arrays = calls(name, np.copy)
    of_tensors = calls(name, torch.tensor)
    assert len(of_arrays) == len(of_tensors)
    for array, tensor in zip(of_arrays, of_tensors, strict=True):
        assert not isinstance(array, Tensor)
        assert not isinstance(tensor, (np.ndarray, np.generic))
        if isinstance(tensor, Tensor) and tensor.ndim:
            assert isinstance(array, np.ndarray)
            assert array.dtype == tensor.numpy().dtype
        else:
            assert isinstance(array, (float, int, bool, str, type(None)))
        np.testing.assert_array_equal(array, tensor)


def test_labels_may_be_lists_and_strings() -> None:
    expected = within_ratio(X, LABEL)
    assert within_ratio(X, LABEL.tolist()) == expected
    assert within_ratio(X, np.array(["even", "odd"])[LABEL]) == expected
    assert within_ratio(torch.from_numpy(X), ["even", "odd"] * (N // 2)) == expected
    assert within_ratio(points=X, labels=LABEL) == expected
    with pytest.raises(InputError, match="labels has None at row 1; leave the example out, or label it"):
        within_ratio(X, ["even", None] * (N // 2))


@pytest.mark.filterwarnings("error")
def test_arrays_of_any_layout_are_taken() -> None:
    read_only = X.astype(">f8")
    read_only.flags.writeable = False
    for array in (X[::-1][::-1], np.asfortranarray(X), read_only, X.astype(np.float16)[:, ::-1]):
        assert torch.equal(as_tensor(array), torch.tensor(array.astype(array.dtype.newbyteorder("=")).copy()))
    assert as_tensor(LABEL.astype(np.uint16)).dtype == torch.int64
    assert as_tensor(LABEL > 0).dtype == torch.bool
    assert as_tensor(X).data_ptr() == X.ctypes.data


def test_bfloat16_is_taken_in_lists_and_by_functions_of_numpy() -> None:
    rows = torch.from_numpy(X).bfloat16()
    expected = functional.linear_cka(rows.float(), torch.from_numpy(Y))
    assert functional.linear_cka(list(rows), Y).value == pytest.approx(expected.value)
    hits = torch.tensor([9, 7, 8]).bfloat16()
    assert functional.accuracy_interval(hits, [10, 10, 10]) == functional.accuracy_interval([9, 7, 8], [10, 10, 10])


def test_rows_may_be_several_arrays() -> None:
    whole = kmeans(X, 2)
    shards = kmeans([X[:7], X[7:]], 2)
    np.testing.assert_array_equal(whole.labels, shards.labels)


def test_what_is_worked_out_of_a_result_is_of_its_kind() -> None:
    of_arrays = functional.topic_similarity(X, LABEL)
    of_tensors = functional.topic_similarity(torch.from_numpy(X), LABEL)
    for name in ("mean", "ratio", "difference"):
        assert isinstance(getattr(of_arrays, name), np.ndarray)
        np.testing.assert_array_equal(getattr(of_arrays, name), getattr(of_tensors, name))
    words = np.array([[0, 1, 2, 3]] * 2)
    topics = [0, 0, 1, 1]
    assert isinstance(functional.topic_attention(PATTERN, words, topics).within_mean, np.ndarray)


def test_results_are_on_the_device_of_the_first_tensor(device: str) -> None:
    labels = torch.from_numpy(LABEL).to(device)
    assert functional.adjusted_rand_null(labels, CLUSTER, 2).device.type == device
    rows = torch.from_numpy(X).to(device)
    assert functional.within_ratio(rows, LABEL).device.type == device


def test_tensors_are_passed_on_as_they_are() -> None:
    seen = []

    @computed_in_torch()
    def function(x: Float[Tensor, "n"], y: Float[Tensor, "n"] | None = None, *, times: int = 1) -> Float[Tensor, "n"]:
        seen.append((x, y))
        return x

    x = torch.ones(2, requires_grad=True)
    assert function(x, times=3) is x
    assert seen[0][0] is x
    with pytest.raises(TypeError, match="too many positional arguments"):
        function(np.ones(2), None, 3)  # type: ignore[misc]


def test_a_parameter_that_is_not_there_is_found_at_once() -> None:
    with pytest.raises(AssertionError, match="lacks a parameter"):
        computed_in_torch(not_finite=["y"])(lambda x: x)
