from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeClassifierCV
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from probes.functional import ridge_predictions, stratified_folds, wilson_interval
from probes.functional.linear_decodability import ALPHAS
from tasks import InputError


def reference(rows: np.ndarray, classes: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """The same by scikit-learn."""
    found = np.empty(len(rows), dtype=int)
    for k in np.unique(folds):
        model = make_pipeline(StandardScaler(), RidgeClassifierCV(ALPHAS)).fit(rows[folds != k], classes[folds != k])
        found[folds == k] = model.predict(rows[folds == k])
    return found


def example(n: int, d: int, classes: int, seed: int = 0, signal: float = 0.7) -> tuple[torch.Tensor, np.ndarray]:
    rng = np.random.default_rng(seed)
    label = rng.integers(classes, size=n)
    rows = rng.normal(size=(n, d)) * rng.exponential(3, size=d) + 4
    rows[:, :classes] += signal * rows.std(0)[:classes] * np.eye(classes)[label]
    return torch.from_numpy(rows), label


@pytest.mark.parametrize(("n", "d", "classes"), [(120, 8, 3), (60, 200, 4), (100, 100, 2), (90, 40, 6), (50, 10, 2)])
@pytest.mark.parametrize("signal", [0.0, 0.7, 3.0])
def test_predictions_are_scikit_learns(n: int, d: int, classes: int, signal: float) -> None:
    rows, label = example(n, d, classes, seed=n + d, signal=signal)
    folds = stratified_folds(label, 5)
    shuffled = np.random.default_rng(1).permutation(label)
    found = ridge_predictions(rows, [torch.from_numpy(np.stack([label, shuffled]))], torch.from_numpy(folds))[0]
    for mine, theirs in zip(found.numpy(), (label, shuffled), strict=True):
        assert mine.tolist() == reference(rows.numpy(), theirs, folds).tolist()


def test_every_label_and_labeling_is_predicted_as_if_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, label = example(80, 30, 4)
    other = np.random.default_rng(2).integers(7, size=80)
    folds = torch.from_numpy(stratified_folds(label, 4))
    shuffles = [np.stack([np.random.default_rng(i).permutation(x) for i in range(9)]) for x in (label, other)]
    together = ridge_predictions(rows, [torch.from_numpy(x) for x in shuffles], folds)
    for part, found in zip(shuffles, together, strict=True):
        alone = [ridge_predictions(rows, [torch.from_numpy(x[None])], folds)[0][0] for x in part]
        assert torch.equal(found, torch.stack(alone))
    monkeypatch.setattr("probes.functional.linear_decodability._HELD", 1)
    apart = ridge_predictions(rows, [torch.from_numpy(x) for x in shuffles], folds)
    assert all(torch.equal(x, y) for x, y in zip(apart, together, strict=True))


def test_class_means_of_another_label_are_those_of_the_training_folds() -> None:
    rows, label = example(90, 12, 3, signal=2.0)
    given = np.random.default_rng(3).integers(4, size=90)
    given[:2] = [8, 9]  # classes of one example: unseen when they are tested
    folds = stratified_folds(label, 5)
    found = ridge_predictions(rows, [torch.from_numpy(label)[None]], torch.from_numpy(folds), torch.from_numpy(given))
    expected = np.empty(90, dtype=int)
    for k in range(5):
        training, test, x = folds != k, folds == k, rows.numpy().copy()
        means = {g: x[training & (given == g)].mean(0) for g in set(given) if (training & (given == g)).any()}
        overall = x[training].mean(0)
        x -= np.stack([means.get(g, overall) for g in given])
        model = make_pipeline(StandardScaler(), RidgeClassifierCV(ALPHAS)).fit(x[training], label[training])
        expected[test] = model.predict(x[test])
    assert found[0][0].tolist() == expected.tolist()
    assert (expected == label).mean() > 0.6


def test_where_nothing_is_left_of_the_states_the_commonest_class_is_predicted() -> None:
    given = torch.arange(40) % 4
    rows, label = torch.randn(4, 6)[given], torch.tensor([0] * 24 + [1] * 16)
    folds = torch.arange(40) % 5
    for x in (rows, torch.zeros(40, 6) + 0.1):
        assert set(ridge_predictions(x, [label[None]], folds, given)[0][0].tolist()) == {0}


def test_a_class_that_the_training_folds_lack_is_never_predicted() -> None:
    rows, label = example(60, 5, 3)
    label[:3] = 3
    folds = np.arange(60) % 5
    folds[:3] = 0
    found = ridge_predictions(rows, [torch.from_numpy(label)[None]], torch.from_numpy(folds))[0][0].numpy()
    assert 3 not in found[folds == 0]
    assert found.tolist() == reference(rows.numpy(), label, folds).tolist()


def test_folds_are_scikit_learns() -> None:
    label, groups = np.repeat([0, 1, 2], [20, 15, 9]), np.arange(44) % 11
    for split, given in ((StratifiedKFold, None), (StratifiedGroupKFold, groups)):
        found = stratified_folds(label, 4, given, seed=5)
        parts = split(4, shuffle=True, random_state=5).split(label, label, given)
        assert [sorted(np.flatnonzero(found == k)) for k in range(4)] == [sorted(test) for _, test in parts]
    by_group = stratified_folds(label, 4, groups)
    assert all(len(set(by_group[groups == g])) == 1 for g in range(11))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.array([0, 0, 1, 1]), 1), "folds is 1; expected at least 2"),
        ((np.array([0, 0, 1]), 5), "3 examples for 5 folds; give at least as many examples as folds, or fewer folds"),
        (
            (np.array([0, 0, 1, 1]), 3, np.array([0, 0, 1, 1])),
            "2 groups for 3 folds; give at least as many groups as folds, or fewer folds",
        ),
        (
            (np.array([0, 0, 1, 1]), 3),
            "every class has fewer examples than the 3 folds; give more examples a class, or fewer folds",
        ),
    ],
)
def test_folds_that_cannot_be(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        stratified_folds(*arguments)


def test_wilson_interval_is_scipys() -> None:
    from scipy.stats import binomtest

    for hits, n in ((0, 10), (3, 10), (10, 10), (870, 1000)):
        expected = binomtest(hits, n).proportion_ci(method="wilson")
        assert wilson_interval(hits, n) == pytest.approx((expected.low, expected.high), abs=1e-12)
    with pytest.raises(InputError, match="n is 0; expected at least 1 example"):
        wilson_interval(0, 0)
