from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score as reference

from probes import Projection, TaskClusterARI, all_tokens, embedding, last_token, residual, run
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


def test_shuffled_labels_are_at_chance(fake_model: Any, batch: Batch) -> None:
    shuffled = batch.labels["task"][torch.randperm(N, generator=torch.Generator().manual_seed(1))]
    other = Batch(batch.tokens, labels={"task": shuffled})
    result = run(fake_model(blobs(batch.labels["task"], 30.0)), other, TaskClusterARI(**QUICK))
    assert float(result["null_low"][0, 0]) <= float(result["ari"][0, 0]) <= float(result["null_high"][0, 0])


def test_the_index_is_scikit_learns_on_scikit_learns_clusters(fake_model: Any, batch: Batch) -> None:
    states = blobs(batch.labels["task"], 2.0)
    for k in (3, 5):
        probe = TaskClusterARI(**QUICK, n_clusters=None if k == 3 else k, seed=4)
        found = KMeans(k, n_init=2, random_state=4).fit(states.numpy()).labels_
        result = run(fake_model(states), batch, probe)
        assert float(result["ari"][0, 0]) == pytest.approx(reference(batch.labels["task"], found), abs=1e-12)
        assert result.metadata["n_clusters"] == {"task": k}


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


def test_the_global_random_state_is_left_alone(fake_model: Any, batch: Batch) -> None:
    before = repr(np.random.get_state(legacy=False)), torch.get_rng_state()
    run(fake_model(blobs(batch.labels["task"], 2.0)), batch, TaskClusterARI(**QUICK))
    assert repr(np.random.get_state(legacy=False)) == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_fewer_distinct_states_than_clusters_is_said_once_without_warnings(fake_model: Any, batch: Batch) -> None:
    few = torch.eye(D)[torch.arange(N) % 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = run(fake_model(few, blobs(batch.labels["task"], 30.0)), batch, TaskClusterARI(**QUICK))
    expected = reference(batch.labels["task"], torch.arange(N) % 2)
    assert float(result["ari"][0, 0]) == pytest.approx(expected, abs=1e-12)
    assert result.notes == [
        "hook_embed has 2 distinct states for 3 clusters of 'task': each state is a cluster of its own"
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
        f"label 'task' has one example a class ({n} in all), which any clustering into as many clusters agrees with; "
        "give at least 2 examples of some classes, better 20"
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
        "label 'id' has one example a class (24 in all), which any clustering into as many clusters agrees with, so "
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
    assert notes(0, 0, 1) == ["label 'task' can be handed out in 3 ways only, so p_value is about 0.33 at least"]
    assert notes(0, 0, 0, 1, 1)[0].startswith("label 'task' can be handed out in 10 ways only, so p_value is about 0.1")
    assert smallest[0] > 0.25
    assert smallest[1] > 0.06
    assert notes(0, 0, 0, 1, 1, 1, 2, 2) == []


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reduce": "pca"}, "reduce is 'pca'; expected None or 'tsne'"),
        ({"n_clusters": 1}, "n_clusters is 1; expected at least 2, or None for one per class"),
        (
            {"also": "output"},
            "also is the string 'output'; expected a sequence of label names such as ('output',)",
        ),
    ],
)
def test_a_bad_argument_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        TaskClusterARI(**arguments)


@pytest.mark.parametrize("arguments", [{"n_permutations": 0}, {"n_init": 0}, {"max_rows": 0}, {"seed": -1}], ids=str)
def test_an_argument_that_cannot_work_is_refused_at_once(arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        TaskClusterARI(**arguments)


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


def test_what_a_projection_refuses(fake_model: Any, batch: Batch) -> None:
    with pytest.raises(InputError, match="method is 'umap'; expected 'tsne' or 'pca'"):
        Projection(method="umap")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="3 examples cannot be projected; give at least 4"):
        run(fake_model(torch.randn(N, D)), batch.select(slice(0, 3)), Projection(readout=last_token()))
