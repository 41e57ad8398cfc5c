from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom

from probes import LinearDecodability, last_token, residual, run
from probes.extend import check_probe
from probes.functional import accuracy_interval, stratified_folds, wilson_interval
from tasks import Batch, InputError
from tests.probes.functional.test_linear_decodability import reference

N, D = 120, 8


def planted(strength: float, seed: int = 0, n: int = N, correlated: float = 0.0) -> tuple[torch.Tensor, Batch]:
    """States that follow ``ending`` far more than ``task``; every input comes four times."""
    rng = np.random.default_rng(seed)
    classes = rng.permutation(np.arange(n) % 3)
    ending = torch.from_numpy(np.where(rng.random(n) < correlated, classes, rng.integers(4, size=n)))
    task = torch.from_numpy(classes)
    draw = torch.Generator().manual_seed(seed)
    states = 30 * torch.randn(4, D, generator=draw)[ending] + torch.randn(n, D, generator=draw)
    states += strength * torch.nn.functional.one_hot(task, D)
    labels = {"task": task, "ending": ending, "input": torch.arange(n) // 4, "half": task % 2}
    return states, Batch(torch.arange(n)[:, None], labels=labels)


def measure(fake_model: Any, states: torch.Tensor, batch: Batch, **options: Any) -> Any:
    return run(fake_model(states), batch.split(50), LinearDecodability(at="hook_embed", **options))


@pytest.mark.parametrize("options", [{}, {"given": "ending"}, {"units": "input"}])
def test_a_planted_label_is_read(fake_model: Any, options: dict[str, Any]) -> None:
    result = measure(fake_model, *planted(5.0), **options)
    assert result.axes["accuracy"] == ("site", "label")
    assert float(result["accuracy"]) > 0.9
    assert float(result["p_value"]) == pytest.approx(1 / 101)
    assert 0.2 < float(result["null_low"]) < float(result["null_high"]) < 0.65
    assert float(result["majority"]) == pytest.approx(1 / 3)
    assert result["n"].tolist() == [N]
    assert result.notes == []


def test_accuracy_is_scikit_learns_with_its_interval(fake_model: Any) -> None:
    states, batch = planted(1.5)
    task = batch.labels["task"].numpy()
    result = measure(fake_model, states, batch, n_shuffles=1, seed=4, folds=4)
    folds = stratified_folds(task, 4, seed=4)
    right = reference(states.double().numpy(), task, folds) == task
    assert float(result["accuracy"]) == right.mean()
    low, high = accuracy_interval([right[folds == k].sum() for k in range(4)], [(folds == k).sum() for k in range(4)])
    assert [float(result[name]) for name in ("accuracy_low", "accuracy_high")] == [low, high]
    assert (low, high) != wilson_interval(int(right.sum()), N)


def test_a_further_label_has_the_chance_it_has_as_the_first(fake_model: Any) -> None:
    """Noise, and 20 inputs of 6 examples: in folds that are stratified by another label an input is least frequent
    where it is tested, and chance would be near 0."""
    n = 120
    states = torch.randn(n, 16, generator=torch.Generator().manual_seed(0))
    labels = {"task": torch.arange(n) % 6, "input": torch.arange(n) // 6}
    batch = Batch(torch.arange(n)[:, None], labels=labels)
    first = measure(fake_model, states, batch, label="input")
    second = measure(fake_model, states, batch, also=("input",))
    for name in ("accuracy", "null_low", "null_high", "p_value"):
        assert float(second.sel(name, label="input")) == float(first[name])
    assert float(first["null_high"]) > 1 / 20


def test_every_shuffles_accuracy_is_given(fake_model: Any) -> None:
    states, batch = planted(1.5)
    labelled = Batch(batch.tokens, labels={**batch.labels, "id": torch.arange(N)})
    model = fake_model(torch.randn(N, D, generator=torch.Generator().manual_seed(2)), states)
    options: dict[str, Any] = {"also": ("ending", "id"), "n_shuffles": 19}
    result = run(model, labelled, LinearDecodability(**options))
    null = result["null"]
    assert (null.dtype, null.shape, result.axes["null"]) == (torch.float64, (2, 3, 19), ("site", "label", "shuffle"))
    assert result.coords["shuffle"] == [str(i) for i in range(19)]
    assert null[:, 2].isnan().all()
    low, high = null[:, :2].quantile(torch.tensor([0.025, 0.975], dtype=torch.float64), dim=-1)
    torch.testing.assert_close(result["null_low"][:, :2], low, rtol=0, atol=1e-12)
    torch.testing.assert_close(result["null_high"][:, :2], high, rtol=0, atol=1e-12)
    p = (1 + (null >= result["accuracy"][:, :, None]).sum(-1)) / 20
    torch.testing.assert_close(result["p_value"][:, :2], p[:, :2].double())
    layers = [run(model, labelled, LinearDecodability(at=residual([i]), **options)) for i in (1, 0)]
    merged = layers[0].merge(layers[1])
    for name, value in result.values.items():
        assert torch.equal(merged[name].nan_to_num(-1), value.nan_to_num(-1)), name
    assert merged.coords == result.coords


def test_without_shuffles_the_accuracy_is_the_same(fake_model: Any) -> None:
    states, batch = planted(1.5)
    expected = measure(fake_model, states, batch, n_shuffles=4)
    result = measure(fake_model, states, batch, n_shuffles=0)
    for name in ("accuracy", "accuracy_low", "accuracy_high"):
        assert torch.equal(result[name], expected[name])
    assert result["null"].shape[-1] == 0
    assert result["p_value"].isnan().all()
    assert result.notes == ["n_shuffles is 0, so chance and p_value are NaN"]


def test_the_same_shuffles_serve_every_site(fake_model: Any) -> None:
    """So that the highest of several layers has a null: the highest of each shuffle."""
    states, batch = planted(1.5)
    null = run(fake_model(states, states), batch, LinearDecodability(n_shuffles=19))["null"]
    assert torch.equal(null[0], null[1])
    assert len(null.unique()) > 3


@pytest.mark.parametrize(
    "options",
    [{}, {"given": "ending"}, {"units": "input"}, {"given": "ending", "units": "input"}, {"label": "whole"}],
    ids=str,
)
def test_chance_is_chance(fake_model: Any, options: dict[str, Any]) -> None:
    """States follow the ending only, with which the task goes in some designs, or the group."""
    p = []
    for seed in range(30):
        states, batch = planted(0.0, seed, n=60, correlated=0.5 if "given" in options else 0.0)
        settings: dict[str, Any] = {**options}
        if options.get("label"):  # one class a group, and states that follow the group
            draw = torch.Generator().manual_seed(seed)
            label = torch.randint(2, (15,), generator=draw)
            label[:6] = torch.arange(6) % 2
            states = states + 9 * torch.randn(15, D, generator=draw)[batch.labels["input"]]
            batch = Batch(batch.tokens, labels={**batch.labels, "whole": label[batch.labels["input"]]})
            settings["units"] = "input"
        p.append(float(measure(fake_model, states, batch, n_shuffles=19, folds=3, seed=seed, **settings)["p_value"]))
    low, high = binom.ppf([0.0005, 0.9995], len(p), 0.05)
    assert low <= sum(x <= 0.05 for x in p) <= high
    assert (
        np.nanmean(p) > 0.4
    )  # NaN where there are too few shuffles; and higher where a constant answer is best, for then shuffles tie


def test_without_what_is_given_chance_is_broken(fake_model: Any) -> None:
    """The test above can fail."""
    p = []
    for seed in range(10):
        states, batch = planted(0.0, seed, n=60, correlated=0.5)
        p.append(float(measure(fake_model, states, batch, n_shuffles=39, seed=seed)["p_value"]))
    assert sum(x <= 0.05 for x in p) > 5


def test_groups_stay_in_one_fold_and_are_shuffled_whole(fake_model: Any) -> None:
    """Every group has a state and a class of its own: known from its other examples, and from nothing else."""
    group = torch.arange(N) // 4
    label = torch.randint(2, (30,), generator=torch.Generator().manual_seed(1))[group]
    states = 20 * torch.randn(30, D, generator=torch.Generator().manual_seed(0))[group] + 0.1 * torch.randn(N, D)
    batch = Batch(torch.arange(N)[:, None], labels={"task": label, "input": group})
    free, grouped = (measure(fake_model, states.repeat(1, 8) ** 2, batch, units=g) for g in (None, "input"))
    assert float(free["accuracy"]) > float(grouped["accuracy"])
    assert float(grouped["null_high"]) - float(grouped["null_low"]) > float(free["null_high"]) - float(free["null_low"])


def test_further_labels_and_sites(fake_model: Any) -> None:
    states, batch = planted(5.0)
    model = fake_model(torch.zeros(N, D), states)
    probe = LinearDecodability(also=("ending",), n_shuffles=20, readout=last_token())
    result = run(model, batch, probe)
    assert result["accuracy"].shape == (2, 2)
    assert result["accuracy"][0].tolist() == pytest.approx([1 / 3, float(result["majority"][1])], abs=0.15)
    assert float(result["accuracy"][1].min()) > 0.9
    assert result.metadata["n_classes"] == {"task": 3, "ending": 4}
    alone = run(model, batch, LinearDecodability(n_shuffles=20))
    assert torch.equal(alone["accuracy"], result["accuracy"][:, :1])


def test_what_is_said_about_small_classes(fake_model: Any) -> None:
    states, batch = planted(1.0, n=40)
    rare = torch.arange(40) // 8
    rare[:2] = 9
    labels = {**batch.labels, "rare": rare, "id": torch.arange(40), "ten": torch.arange(40) // 10}
    result = measure(fake_model, states, Batch(batch.tokens, labels=labels), also=("rare", "id", "ten"), n_shuffles=9)
    assert result.notes == [
        "1 classes of 'rare' have fewer examples than there are folds (5); some folds lack them",
        "label 'rare' has 6.7 examples per class; with fewer than 10, a classifier reads less than is there",
        "label 'id' has one example per class (40 in all), which nothing can predict; its accuracy is NaN",
    ]
    assert result["accuracy"].isnan().tolist() == [[False, False, True, False]]


def test_what_is_determined_by_what_is_given(fake_model: Any) -> None:
    states, batch = planted(1.0)
    fine = Batch(batch.tokens, labels={**batch.labels, "fine": torch.arange(N) % 2 + 2 * batch.labels["task"]})
    message = (
        "label 'task' is determined by 'fine' (each fine has one task), so nothing of it is left once 'fine' is given; "
        "choose one whose classes have examples of several classes of 'task'"
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        measure(fake_model, states, fine, given="fine")
    result = measure(fake_model, states, fine, given="task", label="ending", also=("half",), n_shuffles=9)
    assert result["accuracy"].isnan().tolist() == [[False, True]]
    assert result.notes == [
        "label 'half' is determined by 'task' (each task has one half), so nothing of it is left once 'task' is given; "
        "its accuracy is NaN"
    ]


def test_where_no_shuffle_changes_the_label(fake_model: Any) -> None:
    states, batch = planted(1.0, n=12)
    pairs = torch.tensor([0, 1, 2] * 4), torch.tensor([0] * 3 + [1] * 3 + [2] * 3 + [3] * 3)
    labelled = Batch(batch.tokens, labels={"task": pairs[0], "ending": pairs[1]})
    result = measure(fake_model, states, labelled, given="ending", folds=4, n_shuffles=9)
    if result["p_value"].isnan().all():
        assert any("no shuffle changes it" in note or "too few for a p-value" in note for note in result.notes)
    else:
        assert any("stays as it is" in note for note in result.notes)
    assert not result["accuracy"].isnan().any()


@pytest.mark.parametrize(
    "options",
    [{}, {"given": "ending", "also": ("half",)}, {"units": "input", "folds": 3}, {"max_rows": 16, "device": "cpu"}],
    ids=str,
)
def test_the_contract(fake_model: Any, options: dict[str, Any]) -> None:
    states, batch = planted(1.0, n=24)
    check_probe(LinearDecodability(at="hook_embed", n_shuffles=9, **options), fake_model(states), batch)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"folds": 1}, "folds is 1; expected at least 2"),
        ({"n_shuffles": -1}, "n_shuffles is -1; expected at least 0"),
        ({"max_rows": 4}, "max_rows is 4; expected at least 5, as many as folds, or None for no limit"),
        ({"also": "ending"}, "also is the string 'ending'; expected a sequence of label names such as ('ending',)"),
        ({"given": "task"}, "given is 'task', the label itself; give another label, or None"),
        ({"units": "task"}, "units is 'task', the label itself; give another label, or None"),
        ({"device": "gpu"}, "no device 'gpu'; expected cpu, cuda"),
    ],
)
def test_a_bad_argument_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        LinearDecodability(**arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"units": "half"}, "label 'task' ('half'): 2 units for 5 folds; give at least as many units as folds"),
        ({"folds": 50}, "label 'task': every class has fewer examples than the 50 folds; give more examples per class"),
        ({"folds": 500}, "label 'task': 120 examples for 500 folds; give at least as many examples as folds"),
        ({"label": "one"}, "label 'one' has one class only; a classifier needs examples of at least 2 classes"),
    ],
)
def test_what_the_examples_must_offer(fake_model: Any, options: dict[str, Any], message: str) -> None:
    states, batch = planted(1.0)
    labelled = Batch(batch.tokens, labels={**batch.labels, "one": torch.zeros(N, dtype=torch.int64)})
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        measure(fake_model, states, labelled, **options)
