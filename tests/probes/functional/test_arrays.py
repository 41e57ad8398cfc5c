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
from scipy import stats
from torch import Tensor

import probes.functional as functional
from probes.functional import within_ratio
from probes.functional.arrays import as_tensor, computed_in_torch
from tasks import InputError
from tests.bad_inputs.good_calls import good_calls

N = 40
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(N, 5))
Y = DRAW.normal(size=(N, 3))
LABEL = np.arange(N) % 2
CLUSTER = np.arange(N) % 3 // 2
PATTERN = DRAW.dirichlet(np.ones(4), size=(2, 3, 4))

CALLS = {call.name: call for call in good_calls(np.random.default_rng(0))}


def leaves(value: Any) -> list[Any]:
    """All arrays and numbers in a result."""
    if is_dataclass(value):
        value = [getattr(value, name) for name in value.__dataclass_fields__]
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, (list, tuple)) else [value]


def leaves_of_call(name: str, convert: Callable[[Any], Any]) -> list[Any]:
    call = CALLS[name]
    given = call.values().items()
    return leaves(call.function(**{name: convert(x) if isinstance(x, np.ndarray) else x for name, x in given}))


def test_every_public_function_is_listed() -> None:
    public = {name for name in functional.__all__ if inspect.isfunction(getattr(functional, name))}
    assert public == {call.function.__name__ for call in CALLS.values()} | {"half_interval"}  # of numbers


def test_numbers_that_nobody_gives_are_these() -> None:
    found: dict[str, dict[str, Any]] = {}
    for name in functional.__all__:
        if inspect.isfunction(function := getattr(functional, name)):
            defaults = {key: p.default for key, p in inspect.signature(function).parameters.items()}
            found[name] = {key: x for key, x in defaults.items() if isinstance(x, (int, float, tuple))}
    assert {name: numbers for name, numbers in found.items() if numbers} == {
        "adjusted_rand_null": {"n_permutations": 1000, "seed": 0},
        "cka_null": {"debiased": False, "seed": 0},
        "cka_resamples": {"debiased": False, "seed": 0},
        "kmeans": {"n_init": 10, "seed": 0, "max_iter": 300, "tol": 1e-4},
        "linear_cka": {"debiased": False, "remove_top": 0},
        "n_dims": {"variance": 0.99},
        "neighbour_purity": {"k": 10},
        "rbf_cka": {"fraction": 0.5, "debiased": False},
        "relabelling_p_values": {"permutations": 999, "seed": 0},
        "response_classes": {"tolerance": 0.0},
        "ridge_predictions": {"alphas": tuple(10.0**power for power in range(-1, 7))},
        "stratified_folds": {"seed": 0},
        "svcca": {"variance": 0.99},
        "topic_similarity": {"self_pairs": False},
        "wilson_interval": {"z": pytest.approx(stats.norm.ppf(0.975), rel=1e-15)},
    }


@pytest.mark.parametrize("name", CALLS)
def test_the_numbers_are_the_same_and_the_kind_is_that_of_the_arguments(name: str) -> None:
    of_arrays = leaves_of_call(name, np.copy)
    of_tensors = leaves_of_call(name, torch.tensor)
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
