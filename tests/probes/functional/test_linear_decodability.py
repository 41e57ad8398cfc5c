from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float, Int
from scipy.stats import binom, t
from sklearn.linear_model import RidgeClassifierCV
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from probes.functional import accuracy_interval, ridge_predictions, stratified_folds, wilson_interval
from probes.functional.accuracy_interval import accuracy_effective_size
from probes.functional.linear_decodability import ALPHAS, MAX_TARGET_BYTES
from tasks import InputError
from tests.probes.test_attention import LargestTensor


def reference(
    rows: Float[np.ndarray, "row dim"], classes: Int[np.ndarray, "row"], folds: Int[np.ndarray, "row"]
) -> Int[np.ndarray, "row"]:
    """Return the classes that scikit-learn predicts."""
    predicted = np.empty(len(rows), dtype=int)
    for k in np.unique(folds):
        model = make_pipeline(StandardScaler(), RidgeClassifierCV(ALPHAS)).fit(rows[folds != k], classes[folds != k])
        predicted[folds == k] = model.predict(rows[folds == k])
    return predicted


def example(
    n: int, d: int, classes: int, seed: int = 0, signal: float = 0.7
) -> tuple[Float[torch.Tensor, "row dim"], Int[np.ndarray, "row"]]:
    rng = np.random.default_rng(seed)
    label = rng.integers(classes, size=n)
    rows = rng.normal(size=(n, d)) * rng.exponential(3, size=d) + 4
    rows[:, :classes] += signal * rows.std(0)[:classes] * np.eye(classes)[label]
    return torch.from_numpy(rows), label


@pytest.mark.parametrize(("n", "d", "classes"), [(120, 8, 3), (60, 200, 4), (100, 100, 2), (90, 40, 6), (50, 10, 2)])
@pytest.mark.parametrize("signal", [0.0, 0.7])
def test_predictions_are_scikit_learns(n: int, d: int, classes: int, signal: float) -> None:
    rows, label = example(n, d, classes, seed=n + d, signal=signal)
    folds = stratified_folds(label, 5)
    shuffled = np.random.default_rng(1).permutation(label)
    predicted = ridge_predictions(rows, torch.from_numpy(np.stack([label, shuffled])), torch.from_numpy(folds))
    for mine, expected in zip(predicted.numpy(), (label, shuffled), strict=True):
        assert mine.tolist() == reference(rows.numpy(), expected, folds).tolist()


def test_every_labeling_is_predicted_as_if_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, label = example(80, 30, 4)
    folds = torch.from_numpy(stratified_folds(label, 4))
    shuffles = torch.from_numpy(np.stack([np.random.default_rng(i).permutation(label) for i in range(9)]))
    together = ridge_predictions(rows, shuffles, folds)
    alone = [ridge_predictions(rows, shuffle[None], folds)[0] for shuffle in shuffles]
    assert torch.equal(together, torch.stack(alone))
    monkeypatch.setattr("probes.functional.linear_decodability.MAX_TARGET_BYTES", 8 * 8 * 5 * 80)  # of 2 labelings
    assert torch.equal(ridge_predictions(rows, shuffles, folds), together)


def test_blocks_of_rows_predict_as_all_rows_together(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, label = example(150, 20, 4)
    labelings = torch.from_numpy(np.stack([label, np.random.default_rng(0).permutation(label)]))
    folds = torch.from_numpy(stratified_folds(label, 3))
    together = ridge_predictions(rows, labelings, folds)
    monkeypatch.setattr("probes.functional.linear_decodability._BLOCK", 16)
    assert torch.equal(ridge_predictions(rows, labelings, folds), together)


def test_of_classes_that_tie_the_first_is_predicted() -> None:
    label = torch.arange(40) % 4
    predicted = ridge_predictions(torch.ones(40, 3), label[None], torch.arange(40) // 4 % 5)
    assert set(predicted[0].tolist()) == {0}


def test_targets_take_the_memory_that_is_told() -> None:
    """3,000 x 20 one-hot targets of 60 labelings are 29 MB in float64, and what is made of them is as large each."""
    rows, label = example(3000, 20, 20)
    shuffles = torch.from_numpy(np.stack([np.random.default_rng(i).permutation(label) for i in range(60)]))
    with LargestTensor() as largest:
        ridge_predictions(rows, shuffles, torch.arange(3000) % 2)
    assert MAX_TARGET_BYTES == 2**26
    assert 4 * largest.numbers <= MAX_TARGET_BYTES / 5


def test_class_means_of_another_label_are_those_of_the_training_folds() -> None:
    rows, label = example(90, 12, 3, signal=2.0)
    given = np.random.default_rng(3).integers(4, size=90)
    given[:2] = [8, 9]  # classes of one example: unseen when they are tested
    folds = stratified_folds(label, 5)
    predicted = ridge_predictions(rows, torch.from_numpy(label)[None], torch.from_numpy(folds), torch.from_numpy(given))
    expected = np.empty(90, dtype=int)
    for k in range(5):
        training = folds != k
        test = folds == k
        x = rows.numpy().copy()
        means = {g: x[training & (given == g)].mean(0) for g in set(given) if (training & (given == g)).any()}
        overall = x[training].mean(0)
        x -= np.stack([means.get(g, overall) for g in given])
        model = make_pipeline(StandardScaler(), RidgeClassifierCV(ALPHAS)).fit(x[training], label[training])
        expected[test] = model.predict(x[test])
    assert predicted[0].tolist() == expected.tolist()
    assert (expected == label).mean() > 0.6


def test_where_nothing_is_left_of_the_states_the_commonest_class_is_predicted() -> None:
    given = torch.arange(40) % 4
    rows = torch.randn(4, 6)[given]
    label = torch.tensor([0] * 24 + [1] * 16)
    folds = torch.arange(40) % 5
    for x in (rows, torch.zeros(40, 6) + 0.1):
        assert set(ridge_predictions(x, label[None], folds, given)[0].tolist()) == {0}


def test_a_class_that_the_training_folds_lack_is_never_predicted() -> None:
    rows, label = example(60, 5, 3)
    label[:3] = 3
    folds = np.arange(60) % 5
    folds[:3] = 0
    predicted = ridge_predictions(rows, torch.from_numpy(label)[None], torch.from_numpy(folds))[0].numpy()
    assert 3 not in predicted[folds == 0]
    assert predicted.tolist() == reference(rows.numpy(), label, folds).tolist()


def test_folds_are_scikit_learns() -> None:
    label = np.repeat([0, 1, 2], [20, 15, 9])
    groups = np.arange(44) % 11
    for split, given in ((StratifiedKFold, None), (StratifiedGroupKFold, groups)):
        fold_of_row = stratified_folds(label, 4, given, seed=5)
        parts = split(4, shuffle=True, random_state=5).split(label, label, given)
        assert [sorted(np.flatnonzero(fold_of_row == k)) for k in range(4)] == [sorted(test) for _, test in parts]
    by_group = stratified_folds(label, 4, groups)
    assert all(len(set(by_group[groups == g])) == 1 for g in range(11))


def test_units_of_one_class_are_stratified_as_units_whatever_their_sizes() -> None:
    """Labels that whole units exchange are then balanced as the given ones are."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        sizes = rng.geometric(1 / 6, size=40)
        class_of_unit = np.arange(40) % 4
        units = np.repeat(np.arange(40), sizes)
        folds = stratified_folds(class_of_unit[units], 5, units, seed=seed)
        fold_of_unit = folds[np.cumsum(sizes) - 1]
        assert (folds == fold_of_unit[units]).all()
        assert (np.histogram2d(class_of_unit, fold_of_unit, bins=(4, 5))[0] == 2).all()


def test_units_of_several_classes_are_one_class_among_units_of_one() -> None:
    label = np.array([0, 0, 1, 1, 0, 1, 0, 1])
    units = np.repeat(np.arange(4), 2)
    for seed in range(20):
        folds = stratified_folds(label, 2, units, seed=seed)
        assert folds[4] != folds[6]
        assert folds[0] != folds[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.array([0, 0, 1, 1]), 1), "folds is 1; expected at least 2"),
        ((np.array([0, 0, 1]), 5), "3 examples for 5 folds; give at least as many examples as folds, or fewer folds"),
        (
            (np.array([0, 0, 1, 1]), 3, np.array([0, 0, 1, 1])),
            "2 units for 3 folds; give at least as many units as folds, or fewer folds",
        ),
        (
            (np.array([0, 0, 1, 1]), 3),
            "every class has fewer examples than the 3 folds; give more examples per class, or fewer folds",
        ),
    ],
)
def test_folds_that_cannot_be(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        stratified_folds(*arguments)


def test_wilson_interval_holds_the_share_in_spite_of_rounding() -> None:
    for n in range(1, 60):
        assert wilson_interval(0, n)[0] == 0
        assert wilson_interval(n, n)[1] == 1


def test_wilson_interval_is_scipys() -> None:
    from scipy.stats import binomtest

    for hits, n in ((0, 10), (3, 10), (10, 10), (870, 1000)):
        expected = binomtest(hits, n).proportion_ci(method="wilson")
        assert wilson_interval(hits, n) == pytest.approx((expected.low, expected.high), abs=1e-12)
    with pytest.raises(InputError, match="n is 0; expected at least 1"):
        wilson_interval(0, 0)
    with pytest.raises(InputError, match="hits is 3; expected at most n, 2"):
        wilson_interval(3, 2)


def test_accuracy_interval_is_the_wider_one_on_either_side() -> None:
    for hits, size in (([10, 7, 9, 7, 8], 20), ([10, 7, 9, 7, 8], 12)):
        half = t.ppf(0.975, 4) * np.sqrt((1 / 5 + 1 / 4) * np.var(np.array(hits) / size, ddof=1))
        share = sum(hits) / (5 * size)
        interval = accuracy_interval(hits, [size] * 5)
        assert interval == pytest.approx((share - half, share + half))
        low, high = wilson_interval(sum(hits), 5 * size)
        assert interval[0] < low < high < interval[1]
    assert accuracy_interval([1, 0, 1, 1, 0], [1] * 5) == (0, 1)
    assert accuracy_interval([7, 7, 0], [10, 10, 0]) == wilson_interval(14, 20)
    assert accuracy_interval([10, 10], [10, 10]) == wilson_interval(20, 20)
    assert accuracy_interval([0, 7], [0, 9]) == wilson_interval(7, 9)
    low, high = accuracy_interval([40, 39, 39, 39, 39], [40] * 5)  # Wilson's is wider below, the other above
    assert (low, high) == (wilson_interval(196, 200)[0], 1.0)
    assert accuracy_interval([49, 50], [50, 50])[1] == 1
    with pytest.raises(InputError, match=r"n is 0\.0; expected at least 1"):
        accuracy_interval([0, 0], [0, 0])
    with pytest.raises(InputError, match="hits_per_fold is 9 of n_per_fold 8 in fold 1; expected 0 to 8"):
        accuracy_interval([5, 9], [8, 8])


def test_two_units_that_disagree_are_one_independent_example() -> None:
    """In sums of 49, rounding made it less than one, of which there is no interval."""
    right = np.repeat([True, False], 49)
    n_effective = accuracy_effective_size(right, np.repeat([0, 1], 49))
    assert n_effective == 1
    assert accuracy_interval([49, 0], [49, 49], n_effective) == (0, 1)
    assert accuracy_effective_size(right, np.arange(98) % 49) == 98  # each unit has one right and one wrong


def test_accuracy_interval_covers_the_true_accuracy() -> None:
    """It holds the accuracy of classifiers of independent examples. Wilson's interval alone does not."""
    draws = 150
    accuracies = []
    folded = []
    pooled = []
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        label = rng.integers(10, size=300)
        rows = rng.normal(size=(300, 60))
        rows[:, :10] += 2 * np.eye(10)[label]
        folds = stratified_folds(label, 5, seed=seed)
        predicted = ridge_predictions(torch.from_numpy(rows), torch.from_numpy(label)[None], torch.from_numpy(folds))
        right = predicted[0].numpy() == label
        accuracies.append(right.mean())
        folded.append(accuracy_interval(np.bincount(folds[right], minlength=5).tolist(), np.bincount(folds).tolist()))
        pooled.append(wilson_interval(int(right.sum()), 300))
    true = np.mean(accuracies)
    covered, without = (sum(low <= true <= high for low, high in x) for x in (folded, pooled))
    assert without < binom.ppf(0.01, draws, 0.93) <= covered
