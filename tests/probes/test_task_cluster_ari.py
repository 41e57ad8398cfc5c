from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_mutual_info_score, silhouette_score
from sklearn.metrics import adjusted_rand_score as reference

from probes import (
    LinearDecodability,
    Preprocess,
    Projection,
    TaskClusterARI,
    all_tokens,
    embedding,
    last_token,
    residual,
    run,
)
from probes.extend import check_probe
from probes.functional import adjusted_rand_null, half_interval
from tasks import Batch, InputError

N, D = 60, 6
QUICK: dict[str, Any] = {"readout": last_token(), "n_init": 2, "n_permutations": 100}


def blobs(labels: torch.Tensor, spread: float, seed: int = 0) -> torch.Tensor:
    """``[n d]`` Gaussian blobs, one per label; ``spread`` 0 plants none."""
    draw = torch.Generator().manual_seed(seed)
    centres = spread * torch.nn.functional.one_hot(labels, D).float()
    return centres + torch.randn(len(labels), D, generator=draw)


@pytest.fixture(scope="module")
def batch() -> Batch:
    """Each example is one token of its own, whose state a fake model plants."""
    task, output = torch.arange(N) % 3, (torch.arange(N) // 3) % 4
    return Batch(torch.arange(N)[:, None], labels={"task": task, "output": output, "topic": task[:, None]})


def test_planted_clusters_are_found_where_they_are_planted(fake_model: Any, batch: Batch) -> None:
    task, output = batch.labels["task"], batch.labels["output"]
    model = fake_model(blobs(task, 0.0), blobs(task, 30.0), blobs(output, 30.0))
    result = run(model, batch.split(7), TaskClusterARI(**QUICK, also=("output",)))
    assert result.axes["ari"] == ("site", "label")
    ari = result["ari"]
    assert (float(ari[1, 0]), float(ari[2, 1])) == (1.0, 1.0)
    assert abs(float(ari[1, 1])) < 0.1  # tasks say nothing about outputs here
    assert abs(float(ari[2, 0])) < 0.1
    assert float(result["p_value"][1, 0]) == pytest.approx(1 / 101)
    assert result["null_high"][1, 0] < 0.2
    assert result.metadata["n_clusters"] == {"task": 3, "output": 4}
    assert result.metadata["n"] == N
    assert result.notes == []


def test_without_clusters_the_index_is_what_chance_gives(fake_model: Any, batch: Batch) -> None:
    states = [blobs(batch.labels["task"], 0.0, seed) for seed in range(8)]
    result = run(fake_model(*states), batch, TaskClusterARI(**QUICK))
    inside = (result["null_low"] <= result["ari"]) & (result["ari"] <= result["null_high"])
    assert int(inside.sum()) >= 7  # 95% each
    assert bool((result["null_low"] < 0).all())
    assert bool((result["null_high"] > 0).all())
    assert float(result["ari"].abs().max()) < 0.1
    assert float(result["p_value"].min()) > 1 / 101


def test_clusters_are_as_tight_as_scikit_learns(fake_model: Any, batch: Batch) -> None:
    states = blobs(batch.labels["task"], 2.0)
    for k in (3, 5):
        probe = TaskClusterARI(readout=last_token(), n_permutations=20, n_clusters=k, keep_clusters=True, seed=4)
        result = run(fake_model(states), batch, probe)
        clusters = result["cluster"][0, 0]
        assert float(result["ari"][0, 0]) == pytest.approx(reference(batch.labels["task"], clusters), abs=1e-12)
        inertia = sum(float((x - x.mean(0)).square().sum()) for x in (states[clusters == c] for c in range(k)))
        assert inertia <= 1.01 * KMeans(k, n_init=10, random_state=4).fit(states.numpy()).inertia_


def test_tsne_comes_before_the_clusters(fake_model: Any, batch: Batch) -> None:
    probe = TaskClusterARI(**QUICK, reduce="tsne", at=embedding())
    result = run(fake_model(blobs(batch.labels["task"], 30.0)), batch, probe)
    assert float(result["ari"][0, 0]) == 1.0
    assert result.metadata["reduce"] == "tsne"


def test_a_cap_takes_examples_by_their_index(fake_model: Any, batch: Batch) -> None:
    model = fake_model(blobs(batch.labels["task"], 2.0))
    capped = [run(model, batch.split(size), TaskClusterARI(**QUICK, max_rows=20)) for size in (60, 7, 1)]
    assert [r.metadata["n"] for r in capped] == [20] * 3
    assert len({float(r["ari"]) for r in capped}) == 1


def test_fewer_distinct_states_than_clusters_is_said_once_without_warnings(fake_model: Any, batch: Batch) -> None:
    few = torch.eye(D)[torch.arange(N) % 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = run(fake_model(few, blobs(batch.labels["task"], 30.0)), batch, TaskClusterARI(**QUICK))
    expected = reference(batch.labels["task"], torch.arange(N) % 2)
    assert float(result["ari"][0, 0]) == pytest.approx(expected, abs=1e-12)
    assert result.notes == [
        "hook_embed: 2 distinct states for 3 clusters of 'task', so that each is a cluster of its own"
    ]


def test_what_the_examples_must_offer(fake_model: Any, batch: Batch) -> None:
    model, task = fake_model(blobs(batch.labels["task"], 2.0)), batch.labels["task"]
    cases = [
        (
            batch.select(slice(0, 2)),
            TaskClusterARI(**QUICK, n_clusters=4),
            "2 examples for 4 clusters of 'task'; give at least as many examples as clusters, or set n_clusters",
        ),
        (
            Batch(batch.tokens, labels={"task": task * 0}),
            TaskClusterARI(**QUICK),
            "label 'task' has one class only; clustering needs examples of at least 2 classes",
        ),
        (
            batch,
            TaskClusterARI(**QUICK, also=("topic",)),
            "label 'topic' is per token; give a label with one value per example",
        ),
    ]
    for given, probe, message in cases:
        with pytest.raises(InputError, match=re.escape(message)):
            run(model, given, probe)


@pytest.mark.parametrize("n", [2, 6])
def test_one_example_a_class_is_refused(fake_model: Any, n: int) -> None:
    """As many clusters as examples: the index would be 1, whatever the model."""
    given = Batch(torch.arange(n)[:, None], labels={"task": torch.arange(n)})
    message = (
        f"label 'task' has one example per class ({n} in all), which any clustering into as many clusters agrees with; "
        "give at least 2 examples of some classes, preferably 20"
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        run(fake_model(torch.randn(n, 3)), given, TaskClusterARI(at="hook_embed", readout=last_token()))


def test_one_example_a_class_of_a_further_label_has_no_index(fake_model: Any) -> None:
    given = Batch(torch.arange(24)[:, None], labels={"task": torch.arange(24) % 3, "id": torch.arange(24)})
    probe = TaskClusterARI(at="hook_embed", readout=last_token(), also=("id",), n_permutations=9)
    result = run(fake_model(torch.randn(24, 3)), given, probe)
    for name, value in result.values.items():
        assert value.isnan().tolist() == [[False, True]], name
    assert result.notes == [
        "label 'id' has one example per class (24 in all), which any clustering into as many clusters agrees with, so "
        "its index is NaN"
    ]


def test_few_examples_come_with_a_note(fake_model: Any) -> None:
    def notes(*classes: int) -> list[str]:
        labels = {"task": torch.tensor(classes)}
        given = Batch(torch.arange(len(classes))[:, None], labels=labels)
        probe = TaskClusterARI(at="hook_embed", readout=last_token(), n_permutations=400, n_init=1)
        result = run(fake_model(torch.randn(10, 3)), given, probe)
        smallest.append(float(result["p_value"].min()))
        return result.notes

    smallest: list[float] = []
    for few, ways in (((0, 0, 1), 3), ((0, 0, 0, 1, 1), 10)):
        (note,) = notes(*few)
        assert f"in only {ways} ways, too few for a p-value, which is NaN; give 4 examples in each of 2 classes" in note
    assert np.isnan(smallest).all()
    assert notes(0, 0, 0, 1, 1, 1, 2, 2) == []


def test_a_p_value_from_moments_is_nan_where_few_relabellings_are_possible(fake_model: Any) -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    given = Batch(torch.arange(6)[:, None], labels={"task": labels})
    result = run(fake_model(blobs(labels, 30.0)), given, TaskClusterARI(**{**QUICK, "n_permutations": 0}))
    (note,) = result.notes
    assert "in only 10 ways, too few for a p-value, which is NaN" in note
    assert result["p_value"].isnan().all()
    assert float(result["ari"]) == 1


def test_states_in_one_point_have_moments_and_no_note_that_says_otherwise(fake_model: Any, batch: Batch) -> None:
    labelled = Batch(batch.tokens, labels={"task": batch.labels["task"]})
    result = run(fake_model(torch.ones(N, D)), labelled, TaskClusterARI(**{**QUICK, "n_permutations": 0}))
    assert (float(result["null_low"]), float(result["p_value"])) == (0, 1)
    assert not [note for note in result.notes if "too few classes" in note]


# ---- what the states follow ----


def under_another(
    n: int, strength: float, seed: int = 0, correlated: float = 0.0, other: float = 30.0
) -> tuple[torch.Tensor, Batch]:
    """States ``[n d]`` that follow ``ending`` far more than ``task``, and their batch."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(3, size=n)
    ending = torch.from_numpy(np.where(rng.random(n) < correlated, classes, rng.integers(4, size=n)))
    task = torch.from_numpy(classes)
    draw = torch.Generator().manual_seed(seed)
    states = other * torch.randn(4, D, generator=draw)[ending] + torch.randn(n, D, generator=draw)
    states += strength * torch.nn.functional.one_hot(task, D)
    return states, Batch(torch.arange(n)[:, None], labels={"task": task, "ending": ending})


def test_a_label_under_a_larger_one_is_found_once_that_is_given(fake_model: Any) -> None:
    states, batch = under_another(240, 8.0)
    raw, given = (
        run(fake_model(states), batch.split(50), TaskClusterARI(**QUICK, at="hook_embed", given=name, n_clusters=4))
        for name in (None, "ending")
    )
    assert abs(float(raw["ari"])) < 0.05
    assert float(raw["p_value"]) > 0.05
    assert float(given["ari"]) > 0.6
    assert float(given["p_value"]) == pytest.approx(1 / 101)
    assert given.notes == []


def test_chance_is_chance_where_states_follow_only_what_is_given(fake_model: Any) -> None:
    """Also where the label goes with it: the free null says that the states cluster by the label, rightly."""
    found: dict[str, list[float]] = {"free": [], "given": [], "within": []}
    for seed in range(25):
        states, batch = under_another(60, 0.0, seed, correlated=0.5, other=1.5)
        options: dict[str, Any] = {**QUICK, "n_init": 1, "n_permutations": 19, "seed": seed, "at": "hook_embed"}
        probes = [TaskClusterARI(**options, **({} if way == "free" else {way: "ending"})) for way in found]
        for values, result in zip(found.values(), run(fake_model(states), batch, probes), strict=True):
            values.append(float(result["p_value"]))
    rejected = {way: sum(p <= 0.05 for p in values) for way, values in found.items()}
    assert rejected["free"] > 8
    low, high = binom.ppf([0.0005, 0.9995], 25, 0.05)
    assert all(low <= rejected[way] <= high for way in ("given", "within"))
    assert all(0.35 < np.mean(found[way]) < 0.75 for way in ("given", "within"))  # ties count as high


def test_relabelling_within_inputs_keeps_what_inputs_explain(fake_model: Any) -> None:
    """States follow the input, and so does the task: the index is high, and so is chance."""
    given = torch.arange(N) % 6
    task = torch.where(torch.arange(N) % 10 == 0, 2 - given // 2, given // 2)  # some are of another task
    batch = Batch(torch.arange(N)[:, None], labels={"task": task, "input": given})
    model = fake_model(blobs(given, 30.0))
    result = run(model, batch, TaskClusterARI(**QUICK, at="hook_embed", within="input"))
    assert float(result["ari"]) > 0.1
    assert float(result["null_mean"]) == pytest.approx(float(result["ari"]))  # clusters are inputs: nothing to shuffle
    assert float(result["p_value"]) == 1
    free = run(model, batch, TaskClusterARI(**QUICK, at="hook_embed"))
    assert float(free["p_value"]) == pytest.approx(1 / 101)
    assert abs(float(free["null_mean"])) < 0.02


def test_states_less_class_means_are_what_is_clustered(fake_model: Any) -> None:
    states, batch = under_another(90, 6.0)
    ending = batch.labels["ending"]
    left = states.double().clone()
    for e in range(4):
        left[ending == e] -= left[ending == e].mean(0)
    expected = KMeans(3, n_init=2, random_state=0).fit(left.float().numpy()).labels_
    probe = TaskClusterARI(**QUICK, at="hook_embed", given="ending", keep_clusters=True)
    result = run(fake_model(states), batch.split(11), probe)
    assert reference(result["cluster"][0, 0], expected) == 1.0
    assert float(result["ari"]) == pytest.approx(reference(batch.labels["task"], expected), abs=1e-12)
    null = adjusted_rand_null(batch.labels["task"].numpy(), result["cluster"][0, 0].numpy(), 100, within=ending.numpy())
    drawn = [float(result[f"null_{name}"]) for name in ("low", "high", "mean")]
    assert drawn == pytest.approx([*np.quantile(null, [0.025, 0.975]), null.mean()])


def test_what_is_determined_by_what_is_given(fake_model: Any) -> None:
    task = torch.arange(N) % 3
    fine, other = torch.arange(N) % 12, (torch.arange(N) // 5) % 4
    labels = {"task": task, "fine": fine, "other": other}
    batch, model = Batch(torch.arange(N)[:, None], labels=labels), fake_model(blobs(task, 3.0))
    message = (
        "label 'task' is determined by 'fine' (each fine has one task), so nothing of it is left once 'fine' is given; "
        "choose one whose classes have examples of several classes of 'task'"
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        run(model, batch, TaskClusterARI(**QUICK, given="fine"))
    with pytest.raises(
        InputError, match=r"^label 'task' has one class within each class of 'fine', so no relabelling wi"
    ):
        run(model, batch, TaskClusterARI(**QUICK, within="fine"))
    result = run(model, batch, TaskClusterARI("fine", **QUICK, at="hook_embed", also=("task",), given="other"))
    assert not result["ari"].isnan().any()
    several = TaskClusterARI("other", **QUICK, at="hook_embed", also=("fine", "task"), given="task", keep_clusters=True)
    result = run(model, batch, several)
    assert result["ari"].isnan().tolist() == [[False, False, True]]
    assert result["cluster"][0, 2].tolist() == [-1] * N
    assert result.notes == [
        "label 'task' is determined by 'task' (each task has one task), so nothing of it is left once 'task' is given; "
        "its index is NaN"
    ]
    within = run(model, batch, TaskClusterARI("other", **QUICK, at="hook_embed", also=("task",), within="fine"))
    assert [within[name].isnan().tolist() for name in ("ari", "p_value")] == [[[False, False]], [[False, True]]]


def test_what_is_partly_determined_is_noted(fake_model: Any) -> None:
    task = torch.arange(N) % 3
    given = torch.where(torch.arange(N) < 12, 10 + task, 0)
    given[0] = 99
    batch = Batch(torch.arange(N)[:, None], labels={"task": task, "ending": given})
    result = run(fake_model(blobs(task, 3.0)), batch, TaskClusterARI(**QUICK, at="hook_embed", given="ending"))
    assert result.notes == [
        "relabellings within classes of 'ending' leave 20% of the examples as they are, for lack of another class of "
        "'task'",
        "1 classes of 'ending' have one example, whose state is 0 once its class mean is removed",
    ]


def test_the_examples_that_keep_their_class_are_counted_not_their_units(fake_model: Any) -> None:
    """One unit of half of the examples is alone in its stratum, beside ten that may exchange labels."""
    unit = torch.cat([torch.zeros(N // 2, dtype=torch.int64), 1 + torch.arange(N - N // 2) % 10])
    batch = Batch(torch.arange(N)[:, None], labels={"task": unit % 2, "unit": unit, "half": (unit > 0).long()})
    probe = TaskClusterARI(**QUICK, at="hook_embed", units="unit", within="half")
    result = run(fake_model(blobs(unit % 2, 3.0)), batch, probe)
    assert result.notes == [
        "relabellings within classes of 'half' and 'unit' leave 50% of the examples as they are, for lack of another "
        "class of 'task'"
    ]


# ---- further measures ----


def test_information_and_silhouettes_are_scikit_learns(fake_model: Any, batch: Batch) -> None:
    states, task = blobs(batch.labels["task"], 3.0), batch.labels["task"].numpy()
    result = run(fake_model(states), batch.split(13), TaskClusterARI(**QUICK, at="hook_embed", keep_clusters=True))
    assert result.axes["cluster"] == ("site", "label", "example")
    assert result.coords["example"] == [str(i) for i in range(N)]
    found = result["cluster"][0, 0].numpy()
    assert result["cluster"].dtype is torch.int64
    assert float(result["ami"]) == pytest.approx(adjusted_mutual_info_score(task, found), abs=1e-12)
    assert float(result["silhouette"]) == pytest.approx(silhouette_score(states.double(), found), abs=1e-6)
    assert float(result["label_silhouette"]) == pytest.approx(silhouette_score(states.double(), task), abs=1e-6)
    assert "cluster" not in run(fake_model(states), batch, TaskClusterARI(**QUICK)).values


def test_silhouettes_of_a_sample_are_of_the_same_examples_in_any_order(
    fake_model: Any, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = blobs(batch.labels["task"], 3.0)
    whole = run(fake_model(states), batch, TaskClusterARI(**QUICK))["label_silhouette"]
    monkeypatch.setattr("probes.task_cluster_ari._MAX_SILHOUETTE_ROWS", 30)
    backwards = batch.select(torch.arange(N).flip(0))
    first, second = (
        run(fake_model(states), b, TaskClusterARI(**QUICK))["label_silhouette"] for b in (batch, backwards)
    )
    assert torch.equal(first, second)
    assert 0 < float((first - whole).abs()) < 0.2


def test_one_point_has_no_silhouette(fake_model: Any, batch: Batch) -> None:
    result = run(fake_model(torch.ones(N, D)), batch, TaskClusterARI(**QUICK))
    assert bool(result["silhouette"].isnan().all())
    assert bool(result["label_silhouette"].isnan().all())
    assert float(result["ari"]) == 0


def test_several_numbers_of_clusters(fake_model: Any, batch: Batch) -> None:
    model = fake_model(blobs(batch.labels["task"], 3.0), blobs(batch.labels["output"], 3.0))
    options = {**QUICK, "also": ("output",), "keep_clusters": True}
    several = run(model, batch, TaskClusterARI(**options, n_clusters=(2, 5)))
    assert several.axes["ari"] == ("site", "label", "n_clusters")
    assert several.axes["cluster"] == ("site", "label", "n_clusters", "example")
    assert several.axes["label_silhouette"] == ("site", "label")
    assert several.coords["n_clusters"] == ["2", "5"]
    assert several.metadata["n_clusters"] == {"task": [2, 5], "output": [2, 5]}
    for k in (2, 5):
        one = run(model, batch, TaskClusterARI(**options, n_clusters=k))
        for measure in one.values:
            same = several[measure] if measure == "label_silhouette" else several.sel(measure, n_clusters=str(k))
            torch.testing.assert_close(same, one[measure], rtol=0, atol=0, equal_nan=True)
    assert len(several.to_dataframe()) == 4 * (7 * 2 + 1 + 2 * N)


def test_preprocessing_comes_before_the_clusters(fake_model: Any, batch: Batch) -> None:
    """One huge dimension of noise hides the tasks, unless it is left out or scaled."""
    states = torch.cat([blobs(batch.labels["task"], 12.0), 500 * torch.randn(N, 1)], dim=1)
    ari = {}
    for options in ({}, {"drop_outliers": 20}, {"standardise": True}, {"pca": 3}):
        preprocess = Preprocess(**options)
        result = run(fake_model(states), batch, TaskClusterARI(**QUICK, preprocess=preprocess, at="hook_embed"))
        ari[preprocess] = float(result["ari"])
        assert result.metadata.get("dropped_dimensions") == (
            {"hook_embed": 1} if options.get("drop_outliers") else None
        )
    values = list(ari.values())
    assert values[0] < 0.2
    assert min(values[1:3]) > 0.9
    assert values[3] < 0.2
    noted = run(fake_model(states), batch, TaskClusterARI(**QUICK, preprocess=Preprocess(pca=99)))
    assert noted.notes == ["hook_embed: 60 rows of 7 dimensions have 7 principal components, not 99"]


def test_chance_without_relabellings(fake_model: Any, batch: Batch) -> None:
    model = fake_model(*(blobs(batch.labels["task"], spread, seed=3) for spread in (0.0, 2.0, 3.0)))
    many = run(model, batch, TaskClusterARI(readout=last_token(), n_init=2, n_permutations=10_000))
    none = run(model, batch, TaskClusterARI(readout=last_token(), n_init=2, n_permutations=0))
    assert torch.equal(many["ari"], none["ari"])
    for measure in ("null_low", "null_high", "p_value"):
        torch.testing.assert_close(none[measure], many[measure], rtol=0, atol=0.02)
    assert not none["null_mean"].any()
    assert none.notes == many.notes


def test_moments_of_few_classes_are_nan_with_a_note(fake_model: Any, batch: Batch) -> None:
    labels = {**batch.labels, "half": torch.arange(N) % 2, "id": torch.arange(N), "rare": torch.arange(N).clamp(max=2)}
    labelled = Batch(batch.tokens, labels=labels)
    model = fake_model(*(blobs(batch.labels["task"], spread) for spread in (0.0, 2.0, 3.0)))
    options: dict[str, Any] = {**QUICK, "also": ("half", "id", "rare"), "n_clusters": (2, 5)}
    moments = run(model, labelled, TaskClusterARI(**{**options, "n_permutations": 0}))
    drawn = run(model, labelled, TaskClusterARI(**{**options, "n_permutations": 999}))
    lopsided = [note for note in moments.notes if note not in drawn.notes]
    assert len(lopsided) == 3
    assert lopsided[0].startswith("a clustering compared with label 'task' has too few classes")
    assert lopsided[1].startswith("label 'half' has too few classes")
    assert lopsided[2].startswith("label 'rare' has too few classes")
    task, half = (moments.sel("p_value", label=name) for name in ("task", "half"))
    assert task[:, 0].isnan().all()
    assert half[:, 1].isnan().all()
    assert task[:, 1].isfinite().all()
    torch.testing.assert_close(half[:, 0], drawn.sel("p_value", label="half")[:, 0], rtol=0, atol=0.05)  # two and two


@pytest.mark.parametrize(
    "options",
    [
        {"given": "output", "n_clusters": (2, 3), "keep_clusters": True, "also": ("topic",)},
        {"within": "output", "preprocess": Preprocess(drop_outliers=3, standardise=True, pca=3, cosine=True)},
        {"device": "cpu", "n_permutations": 0, "n_resamples": 3},
    ],
)
def test_the_contract_holds_with_every_option(fake_model: Any, batch: Batch, options: dict[str, Any]) -> None:
    states = blobs(batch.labels["task"], 1.0)
    some = batch.select(slice(0, 24))
    labelled = Batch(some.tokens, labels={**some.labels, "topic": torch.arange(24) % 2})
    probe = TaskClusterARI(**{**QUICK, "n_init": 1, "n_permutations": 9, **options}, at="hook_embed")
    check_probe(probe, fake_model(states), labelled)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reduce": "pca"}, "reduce is 'pca'; expected None or 'tsne'"),
        ({"n_clusters": 1}, "n_clusters is 1; expected at least 2, or None for one per class"),
        (
            {"also": "output"},
            "also is the string 'output'; expected a sequence of label names such as ('output',)",
        ),
        ({"n_resamples": -1}, "n_resamples is -1; expected at least 0"),
        ({"n_resamples": 1}, "n_resamples is 1, but one half has no variance; give 50, or 0 for no interval"),
        ({"n_clusters": ()}, "n_clusters is empty; expected numbers such as (5, 10, 20), or None for one per class"),
        ({"n_clusters": (5, 1)}, "n_clusters is 1; expected at least 2, or None for one per class"),
        ({"n_clusters": (5, 5)}, "n_clusters has 5 twice; give it once"),
        ({"given": "task"}, "given is 'task', the label itself; give another label, or None"),
        ({"within": "task"}, "within is 'task', the label itself; give another label, or None"),
        ({"device": "gpu"}, "no device 'gpu'; expected cpu, cuda"),
        (
            {"n_clusters": (5, 50), "max_rows": 20},
            "max_rows is 20; expected at least 50, as many as clusters, or None for no limit",
        ),
        (
            {"n_permutations": 0, "given": "ending"},
            "n_permutations is 0, but there is no formula for relabellings within classes of another label or of whole "
            "units; give 1000, or leave out given, within and units",
        ),
        (
            {"n_permutations": 0, "n_resamples": 20, "units": "template"},
            "n_permutations is 0, but there is no formula for relabellings within classes of another label or of whole "
            "units; give 1000, or leave out given, within and units",
        ),
    ],
)
def test_a_bad_argument_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        TaskClusterARI(**arguments)


@pytest.mark.parametrize("arguments", [{"n_permutations": -1}, {"n_init": 0}, {"max_rows": 0}, {"seed": -1}], ids=str)
def test_an_argument_that_cannot_work_is_refused_at_once(arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        TaskClusterARI(**arguments)


@pytest.mark.parametrize("probe", [TaskClusterARI, LinearDecodability])
def test_a_device_without_float64_is_refused(probe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    with pytest.raises(InputError, match="device 'mps' has no float64; choose cpu or cuda"):
        probe(device="mps")


def test_a_readout_that_keeps_positions_is_refused(fake_model: Any, batch: Batch) -> None:
    with pytest.raises(InputError, match="all_tokens"):
        run(fake_model(torch.randn(N, D)), batch, TaskClusterARI(readout=all_tokens(), n_init=1, n_permutations=10))


# ---- the picture ----


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_a_projection_shows_every_example_with_its_label(fake_model: Any, batch: Batch, method: Any) -> None:
    task = batch.labels["task"]
    probe = Projection(readout=last_token(), at=residual(), method=method)
    result = run(fake_model(blobs(task, 30.0)), batch.split(11), probe)
    assert result["xy"].shape == (1, N, 2)
    assert torch.equal(result["label"], task)
    assert result.coords["example"] == [str(i) for i in range(N)]
    centres = torch.stack([result["xy"][0, task == t].mean(0) for t in range(3)])
    assert torch.equal(torch.cdist(result["xy"][0], centres).argmin(1), task)


def test_a_projection_says_where_it_is_pca_instead(fake_model: Any, batch: Batch) -> None:
    few = batch.labels["task"][:, None].float() * torch.ones(D)
    result = run(fake_model(few), batch, Projection(readout=last_token(), at=residual()))
    assert result.notes == ["hook_embed: PCA instead of tsne, as the states are a few points many times over"]


def test_a_projection_of_a_single_point_is_pca(fake_model: Any, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("probes.projection.project_2d")  # whose t-SNE of one point ends the process
    probe = Projection(readout=last_token(), at=residual())
    result = run(fake_model(torch.ones(N, D)), batch.select(slice(0, 6)), probe)
    assert bool((result["xy"] == 0).all())
    assert len(result.notes) == 1


def test_what_a_projection_refuses(fake_model: Any, batch: Batch) -> None:
    with pytest.raises(InputError, match="method is 'umap'; expected 'tsne', 'opentsne' or 'pca'"):
        Projection(method="umap")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="max_rows is 3; expected at least 4, or None for no limit"):
        Projection(max_rows=3)
    with pytest.raises(InputError, match="3 examples cannot be projected; give at least 4"):
        run(fake_model(torch.randn(N, D)), batch.select(slice(0, 3)), Projection(readout=last_token()))
    least = Projection(readout=last_token(), method="pca")
    assert run(fake_model(torch.randn(N, D)), batch.select(slice(0, 4)), least)["xy"].shape == (1, 4, 2)


class TestInterval:
    """Of the index, from halves of the examples or of their units, each clustered anew."""

    def test_covers_what_was_planted(self, fake_model: Any) -> None:
        """The mean index of 24 samples of 60 examples lies in at least 21 of their intervals."""
        task = torch.arange(N) % 3
        batch = Batch(torch.arange(N)[:, None], labels={"task": task})
        states = [blobs(task, 2.2, seed) for seed in range(24)]
        probe = TaskClusterARI(readout=last_token(), n_init=1, n_permutations=0, n_resamples=10)
        result = run(fake_model(*states), batch, probe)
        mean = float(result["ari"].mean())
        assert 0.2 < mean < 0.9
        covered = (result["ari_low"] <= mean) & (mean <= result["ari_high"])
        assert int(covered.sum()) >= 21
        assert bool((result["ari_low"] < result["ari"]).all() and (result["ari"] < result["ari_high"]).all())

    def test_no_t_sne_of_a_few_states(self, fake_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each state is a cluster. A t-SNE of one state, as at layer 0, ends the process in scikit-learn's code."""
        monkeypatch.delattr("probes.task_cluster_ari.project_2d")
        task = torch.arange(N) % 3
        for states in (torch.ones(N, D), torch.eye(D)[task]):
            probe = TaskClusterARI(**QUICK, at="hook_embed", reduce="tsne", n_resamples=5, keep_halves=True)
            result = run(fake_model(states), Batch(torch.arange(N)[:, None], labels={"task": task}), probe)
            assert (result["ari_halves"] == result["ari"]).all()

    def test_of_states_that_differ_by_rounding(self, fake_model: Any) -> None:
        """K-means leaves clusters without examples."""
        draw = torch.Generator().manual_seed(0)
        states = torch.randn(20, 64, generator=draw).repeat(6, 1)
        states *= 1 + 1e-7 * torch.randn(120, 64, generator=draw)
        batch = Batch(torch.arange(120)[:, None], labels={"task": torch.arange(120) % 20})
        probe = TaskClusterARI(**QUICK, at="hook_embed", n_clusters=30, n_resamples=4, keep_clusters=True)
        result = run(fake_model(states), batch, probe)
        n = len(result["cluster"].unique())
        assert n < 30
        assert f"hook_embed: {n} of 30 clusters of 'task' have examples, as some states hardly differ" in result.notes
        assert float(result["ari_low"]) <= float(result["ari"]) <= float(result["ari_high"])

    def test_values_of_halves_give_the_interval(self, fake_model: Any) -> None:
        task = torch.arange(N) % 3
        batch = Batch(torch.arange(N)[:, None], labels={"task": task})
        probe = TaskClusterARI(**QUICK, n_resamples=20, keep_halves=True)
        result = run(fake_model(blobs(task, 2.2)), batch, probe)
        assert result.axes["ari_halves"] == ("site", "label", "half")
        ends = half_interval(float(result["ari"]), result["ari_halves"].flatten().tolist(), result.metadata["n_units"])
        assert ends == (float(result["ari_low"]), float(result["ari_high"]))

    def test_units_that_go_together_make_it_wider(self, fake_model: Any) -> None:
        task, unit = torch.arange(120) % 3, torch.arange(120) % 12  # four units a task
        shift = 0.8 * torch.randn(12, D, generator=torch.Generator().manual_seed(1))
        model = fake_model(blobs(task, 1.8) + shift[unit])
        batch = Batch(torch.arange(120)[:, None], labels={"task": task, "template": unit})
        width = {}
        for units in (None, "template"):
            result = run(model, batch, TaskClusterARI(**QUICK, at="hook_embed", n_resamples=40, units=units))
            width[units] = float(result["ari_high"] - result["ari_low"])
        assert width["template"] > 1.5 * width[None]

    def test_perfect_clusters_have_one_below_1(self, fake_model: Any, batch: Batch) -> None:
        probe = TaskClusterARI(**QUICK, at="hook_embed", n_resamples=20)
        result = run(fake_model(blobs(batch.labels["task"], 30.0)), batch, probe)
        assert float(result["ari"]) == float(result["ari_high"]) == 1
        assert "ari_halves" not in result
        assert 0.8 < float(result["ari_low"]) < 1

    def test_too_few_units_have_none(self, fake_model: Any, batch: Batch) -> None:
        for n in (7, 8):
            given = Batch(batch.tokens, labels={"task": batch.labels["task"], "template": torch.arange(N) % n})
            probe = TaskClusterARI(**QUICK, at="hook_embed", n_resamples=20, units="template")
            result = run(fake_model(blobs(batch.labels["task"], 2.0)), given, probe)
            assert bool(result["ari_low"].isnan() & result["ari_high"].isnan()) == (n == 7)
            note = f"{n} units ('template') are too few for an interval of ari (8 are enough)"
            assert (note in result.notes) == (n == 7)
