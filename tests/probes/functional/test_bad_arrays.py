"""Every public function refuses bad arrays by name, and takes lists, arrays and tensors of all types."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import torch

from probes.functional import attention_entropy, norm_jacobian, ridge_predictions, within_ratio
from probes.functional.arrays import check_finite
from probes.functional.cross_moments import CrossMoments
from tasks import InputError
from tests.bad_inputs.arrays import cases
from tests.bad_inputs.good_calls import good_calls
from tests.bad_inputs.outcome import Case, Outcome

KINDS = (
    *("NaN", "infinity", "NaT", "mixed", "fractions", "complex", "masked", "object with None", "str with NaN"),
    *("None", "text", "number", "0-d", "set", "no rows", "none", "a row less", "one less", "one axis more", "2-d"),
    *("list", "list of lists", "list of tensors", "int", "float16", "bfloat16 tensor", "Series", "tensor"),
)
NAMES = [call.name for call in good_calls(np.random.default_rng(0))]


@pytest.fixture(scope="module")
def cases_of() -> dict[str, list[Case]]:
    """The cases of each function; read only."""
    found = defaultdict[str, list[Case]](list)
    for case in cases(np.random.default_rng(0)):
        if case.kind in KINDS:
            found[case.name.rpartition(" ")[0]].append(case)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_bad_arrays_are_refused_by_name(cases_of: dict[str, list[Case]], name: str) -> None:
    assert cases_of[name]
    for case in cases_of[name]:
        result = case.run()
        assert result.outcome is Outcome.OK, (case.name, case.kind, result)


def test_one_sentence_says_what_is_expected() -> None:
    x = torch.zeros(3, 2)
    for labels, message in (
        ([0, 1], "points has 3 rows and labels 2; give both for the same rows"),
        ([[0], [1], [2]], "labels has shape (3, 1); expected labels [row], at least one of each"),
        ("abc", "labels is 'abc'; expected labels [row]: a tensor, an array or a list"),
        ([0, None, 1], "labels has None at row 1; leave the example out, or label it"),
        (["a", 1, "b"], "labels has labels of different types; give numbers or strings"),
    ):
        with pytest.raises(InputError) as error:
            within_ratio(x, labels)
        assert str(error.value) == message


def test_classes_are_counted_from_0() -> None:
    x = torch.zeros(3, 2)
    for labels in ([0, 1, 3], [-1, 0, 1], [0.0, 0.5, 1.0]):
        with pytest.raises(InputError, match="expected classes 0 to 2"):
            within_ratio(x, labels, 3)
    assert within_ratio(torch.eye(3), [0.0, 1.0, 1.0], 2) == within_ratio(torch.eye(3), [5, 7, 7])


def test_gradients_and_vmap_pass() -> None:
    x = torch.randn(4, 6, 3, requires_grad=True)
    labels = torch.tensor([0, 1, 0, 1, 0, 1]).expand(4, 6)
    ratios = torch.func.vmap(lambda points, classes: within_ratio(points, classes, 2))(x, labels)
    assert torch.allclose(ratios, torch.stack([within_ratio(points, labels[0]) for points in x]))
    (gradient,) = torch.autograd.grad(ratios.sum() + norm_jacobian(x).sum(), x)
    assert bool(gradient.isfinite().all())
    assert bool(torch.func.grad(lambda points: within_ratio(points, labels[0]))(x[0]).isfinite().all())


def test_large_numbers_are_finite_though_their_sum_is_not() -> None:
    for dtype in (torch.float16, torch.float32, torch.float64):
        largest = torch.full((4, 3), torch.finfo(dtype).max, dtype=dtype)
        check_finite(largest, "x")
        largest[2, 1] = torch.inf
        with pytest.raises(InputError, match="x has NaN or infinity in row 2"):
            check_finite(largest, "x")


def test_attention_that_is_no_distribution_has_no_entropy() -> None:
    weights = torch.tensor([[0.5, 0.5], [1.0, 1.0], [0.0, 0.0], [0.498, 0.5]])
    assert attention_entropy(weights).isnan().tolist() == [False, True, True, False]
    assert attention_entropy(weights[:1].bfloat16()).exp().tolist() == pytest.approx([2.0])


def test_moments_of_other_dimensions_are_refused() -> None:
    x = torch.randn(9, 3)
    y = torch.randn(9, 2)
    with pytest.raises(InputError, match="x and y have"):
        CrossMoments.of_rows(x, y).merge(CrossMoments.of_rows(y, x))


def test_folds_and_classes_are_counted_from_0() -> None:
    rows = torch.randn(6, 2)
    labels = torch.tensor([[0, 1, 0, 1, 0, 1]])
    for folds, message in (([0, 0, 0, 1, 1, -1], "folds has -1"), ([0] * 6, "folds has one fold")):
        with pytest.raises(InputError, match=message):
            ridge_predictions(rows, labels, folds)
    with pytest.raises(InputError, match="has -1; expected classes 0 to"):
        ridge_predictions(rows, labels - 1, [0, 0, 0, 1, 1, 1])
