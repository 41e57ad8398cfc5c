from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from probes import (
    CKA,
    RBFCKA,
    SVCCA,
    NDims,
    NeighbourPurity,
    Probe,
    ProbeResult,
    head_output,
    mean,
    residual,
    run,
    run_stores,
    save_rows,
)
from probes.engine.run import run_by_steps
from probes.engine.state import SumState
from probes.extend import check_probe
from probes.functional import n_dims, neighbour_purity, neighbour_purity_chance, rbf_cka, svcca
from probes.functional.neighbour_purity import nearest_rows, purity_by_query, purity_interval
from probes.store.splitmix64 import splitmix64
from tasks import Batch, InputError
from tests.probes.test_cka import every_token, states

PAIRWISE: dict[str, tuple[Callable[..., Probe], Callable[..., float]]] = {
    "svcca": (
        lambda **k: SVCCA(variance=0.9, **k),
        lambda x, y: float(svcca(x, y, variance=0.9)),
    ),
    "rbf_cka": (
        lambda **k: RBFCKA(fraction=0.7, **k),
        lambda x, y: float(rbf_cka(x, y, fraction=0.7)),
    ),
    "debiased_rbf_cka": (
        lambda **k: RBFCKA(fraction=0.7, **k),
        lambda x, y: float(rbf_cka(x, y, fraction=0.7, debiased=True)),
    ),
}
GROUPS = [slice(None), *(torch.arange(30) % 3 == c for c in range(3))]


@pytest.fixture
def two(fake_model: Any) -> tuple[dict[str, Any], tuple[list[torch.Tensor], ...]]:
    """Two models of different widths, and their planted states."""
    planted = states(30, 4, 4), states(30, 3, 5, seed=9)
    return {name: fake_model(*p) for name, p in zip(("tuned", "base"), planted, strict=True)}, planted


# ---- the values ----


@pytest.mark.parametrize("measure", PAIRWISE)
@pytest.mark.parametrize("pairs", ["diagonal", "all"])
def test_two_models_of_different_width(two: Any, measure: str, pairs: str) -> None:
    """Per class and overall, in any order of examples."""
    models, planted = two
    make, function = PAIRWISE[measure]
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    result = run(models, every_token(30, order).split(7), make(label="task", pairs=pairs))
    assert result.axes[measure] == (("site", "label") if pairs == "diagonal" else ("site", "other_site", "label"))
    assert result.coords["site"] == ["hook_embed", "blocks.0.hook_resid_post"]
    assert (result.coords["label"], result["n"].tolist()) == (["all", "0", "1", "2"], [30, 10, 10, 10])
    assert list(result.metadata["d"].values()) == [4, 4, 3, 5]
    for (k, chosen), i, j in itertools.product(enumerate(GROUPS), range(2), range(2)):
        if pairs == "all" or i == j:
            found = float(result[measure][(i, k) if pairs == "diagonal" else (i, j, k)])
            assert found == function(planted[0][i][chosen], planted[1][j][chosen])


@pytest.mark.parametrize("measure", PAIRWISE)
def test_layers_of_one_model(fake_model: Any, measure: str) -> None:
    planted = states(30, 4, 4, 6)
    make, function = PAIRWISE[measure]
    result = run(fake_model(*planted), every_token(30).split(7), make())
    assert (result.axes[measure], result.coords["label"]) == (("site", "other_site", "label"), ["all"])
    for i, j in itertools.product(range(3), repeat=2):
        assert float(result[measure][i, j, 0]) == pytest.approx(function(planted[i], planted[j]), abs=1e-12)
    assert torch.equal(result[measure][:, :, 0], result[measure][:, :, 0].T)
    torch.testing.assert_close(result[measure].diagonal()[0], torch.ones(3).double(), rtol=0, atol=1e-9)


def test_dimensions(two: Any) -> None:
    models, planted = two
    result = run(models, every_token(30).split(7), NDims(label="task", variance=0.9))
    assert result.axes == {"n_dims": ("site", "label"), "n": ("label",)}
    assert result.coords["site"][1:3] == ["tuned/blocks.0.hook_resid_post", "base/hook_embed"]
    assert result["n"].tolist() == [30, 10, 10, 10]
    expected = [[n_dims(x[chosen], variance=0.9) for chosen in GROUPS] for x in (*planted[0], *planted[1])]
    assert result["n_dims"].tolist() == expected
    alone = run(models["base"], every_token(30), NDims(variance=0.9))
    assert alone["n_dims"].tolist() == [row[:1] for row in expected[2:]]
    assert (alone.coords["site"][0], alone.notes) == ("hook_embed", [])


def test_purity(two: Any) -> None:
    models, planted = two
    result = run(models, every_token(30).split(7), NeighbourPurity(k=4))
    task = torch.arange(30) % 3
    expected = [neighbour_purity(x, task, k=4) for x in (*planted[0], *planted[1])]
    assert result["neighbour_purity"].tolist() == expected
    assert float(result["chance"]) == neighbour_purity_chance(task)
    intervals = [purity_interval(nearest_rows(x, 4), task) for x in (*planted[0], *planted[1])]
    for end, name in enumerate(("neighbour_purity_low", "neighbour_purity_high")):
        assert result[name].tolist() == [interval[end] for interval in intervals]
    assert result.axes == {
        **dict.fromkeys(("neighbour_purity", "neighbour_purity_low", "neighbour_purity_high"), ("site",)),
        "chance": (),
    }
    assert (result.metadata["n_asked"], result.notes) == (30, [])
    assert result.coords["site"][0] == "tuned/hook_embed"
    assert result.metadata["n"] == {"all": 30, "0": 10, "1": 10, "2": 10}


def test_purity_of_some_examples(two: Any) -> None:
    """Which ones depends on their index alone; neighbours are looked for among all."""
    models, planted = two
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    found = [
        run(models, batches, NeighbourPurity(k=4, max_rows=12))
        for batches in (every_token(30).split(7), every_token(30, order).split(4))
    ]
    assert all(torch.equal(found[0][measure], found[1][measure]) for measure in found[0].values)
    asked, task = torch.argsort(splitmix64(torch.arange(30)))[:12], torch.arange(30) % 3
    expected = [purity_by_query(nearest_rows(x, 4), task)[asked].mean() for x in (*planted[0], *planted[1])]
    assert found[0]["neighbour_purity"].tolist() == pytest.approx(expected)
    assert float(found[0]["chance"]) == neighbour_purity_chance(task)
    assert found[0].metadata["n_asked"] == 12
    assert found[0].notes == ["neighbour_purity is that of 12 of 30 examples, among all of them"]
    whole = run(models, every_token(30), NeighbourPurity(k=4, max_rows=30))
    assert torch.equal(
        whole["neighbour_purity"], run(models, every_token(30), NeighbourPurity(k=4))["neighbour_purity"]
    )


def test_classes_in_order_are_no_evidence_where_states_are_tied(fake_model: Any) -> None:
    """Every state is one of ten, whatever the class. Ties in order of the file gave p = 0.001."""
    tied = states(10, 4)[0][torch.arange(200) % 10]
    task = torch.tensor([0] * 100 + [1] * 50 + [2] * 50)
    batch = Batch(torch.arange(200)[:, None], labels={"task": task})
    probe = NeighbourPurity("hook_embed", k=1, n_permutations=199)
    assert float(run(fake_model(tied), batch, probe)["p_value"]) > 0.05


def test_the_final_norm_has_the_number_of_its_own_model(tiny_model: Any, batch: Batch) -> None:
    models = {"shallow": tiny_model(n_layers=1), "deep": tiny_model(n_layers=3)}
    result = run(models, batch, SVCCA(at=residual([0, 1], final_norm=True)))
    assert result.layers["unembed.hook_in"] == 2
    axes = result.plot()
    assert [text.get_text() for text in axes.get_yticklabels()] == ["0", "1", "2"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0", "1", "4"]
    assert "other_layers" not in run({"a": models["deep"], "b": models["deep"]}, batch, SVCCA()).metadata


# ---- notes ----


def constant(fake_model: Any) -> Any:
    planted = states(20, 3, 3)
    return fake_model(planted[0], torch.full((20, 3), 1 / 3))


@pytest.mark.parametrize(("probe", "measure"), [(SVCCA(), "svcca"), (RBFCKA(), "rbf_cka")])
def test_a_constant_site_is_nan_and_named(fake_model: Any, probe: Any, measure: str) -> None:
    result = run(constant(fake_model), every_token(20).split(3), probe)
    assert result[measure][1].isnan().all()
    assert not result[measure][0, 0].isnan().any()
    name = type(probe).__name__
    reason = f"all examples are the same (label all), so its {name} is NaN there"
    assert f"blocks.0.hook_resid_post: {reason}" in result.notes


def test_why_else_rbf_cka_is_nan(fake_model: Any) -> None:
    mostly = torch.zeros(10, 2)
    mostly[0] = 1
    result = run(fake_model(states(10, 2)[0], mostly), every_token(10), RBFCKA(label="task"))
    reason = "more than half of the distances between examples are 0 (label all), so its RBFCKA is NaN there"
    assert f"blocks.0.hook_resid_post: {reason}" in result.notes
    three = "there are 3 examples, and the debiased form needs at least 4 (label 1, 2), so its RBFCKA is NaN there"
    assert f"hook_embed: {three}" in result.notes
    assert result["debiased_rbf_cka"][0, 0].isnan().tolist() == [False, False, True, True]
    assert not result["rbf_cka"][0, 0].isnan().any()


def test_few_examples_are_noted(fake_model: Any) -> None:
    model = fake_model(*states(40, 4, 4))
    assert run(model, every_token(40), SVCCA(label="task")).notes == [
        "svcca of unrelated rows is far from 0 where n is below 10 times the directions: "
        "label 0 (n = 14, up to 4), 1 (n = 13, up to 4), 2 (n = 13, up to 4)"
    ]
    assert run(model, every_token(40), SVCCA()).notes == []
    assert run(model, every_token(9), NDims(label="task")).notes == [
        "n_dims is at most n - 1, below d (up to 4): label 0 (n = 3), 1 (n = 3), 2 (n = 3); compare at equal n"
    ]
    assert run(model, every_token(5), NDims()).notes == []


# ---- the contract, and rows on disk ----


@pytest.mark.parametrize(
    "probe",
    [
        SVCCA(),
        SVCCA(residual([0, -1]), mean(), label="task", pairs="all", variance=0.5, max_memory=1.0),
        RBFCKA(label="task"),
        NDims([residual(final_norm=True), head_output()], mean(), variance=0.5),
        NeighbourPurity(k=2),
    ],
    ids=repr,
)
def test_the_contract(probe: Probe, model: Any, batch: Batch) -> None:
    check_probe(probe, model, batch.select(slice(0, 8)))


@pytest.mark.parametrize("probe", [SVCCA(label="task"), RBFCKA(), NDims(), NeighbourPurity(k=3)], ids=repr)
def test_the_contract_for_two_models(two: Any, probe: Probe) -> None:
    check_probe(probe, two[0], every_token(9))


@pytest.mark.parametrize("probe", [SVCCA(pairs="all"), RBFCKA(), NDims(label="task"), NeighbourPurity()], ids=repr)
def test_rows_on_disk_give_the_same(two: Any, tmp_path: Path, probe: Probe) -> None:
    models, _ = two
    expected: ProbeResult = run(models, every_token(30), probe.clone())
    batches = {"tuned": every_token(30).split(4), "base": every_token(30, torch.arange(30).flip(0)).split(7)}
    stores = {
        name: save_rows(model, batches[name], tmp_path / name, labels=["task"], shard_rows=8)
        for name, model in models.items()
    }
    found = run_stores(stores, probe)
    assert all(torch.equal(found[measure], value) for measure, value in expected.values.items())
    of_run = {name: value for name, value in expected.metadata.items() if name != "padding"}  # of batches
    assert (found.coords, found.notes, found.metadata) == (expected.coords, expected.notes, of_run)


# ---- memory and refusals ----


def test_too_much_memory_is_refused_with_the_numbers(fake_model: Any) -> None:
    model, batch = fake_model(*states(30, 300, 400)), every_token(30)
    end = "measure fewer layers at a time (at=residual(layers=[...])), give fewer examples, or raise max_memory"
    for probe, needed, limit in (
        # 26 x 700 x 4 bytes, and of a site 26 x 400 x 16, and 26^2 x 24
        (NDims(max_memory=2e-4), "NDims would keep 0.000238", "0.0002"),
        (SVCCA(max_memory=1.9e-4), "SVCCA would keep 0.000203", "0.00019"),  # 12 bytes
        # 4 bytes, and blocks of 4 x 26^2 and 2 x 26 x 400 numbers
        (RBFCKA(max_memory=2e-4), "RBFCKA would keep 0.000243", "0.0002"),
    ):
        message = (
            f"{needed} GiB of rows: 26 examples so far at 2 sites of up to 400 dimensions; that is more than "
            f"max_memory = {limit}; {end}"
        )
        with pytest.raises(InputError, match=re.escape(message)):
            run(model, batch.split(13), probe)


@pytest.mark.parametrize("probe", [RBFCKA(label="task"), CKA(label="task")])
def test_what_a_batch_costs_does_not_grow_with_the_labels(
    two: Any, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, look = [0], SumState.__getitem__

    def counted(self: SumState, key: str) -> torch.Tensor:
        looks[0] += 1
        return look(self, key)

    models, n = two[0], 400
    tokens = torch.randint(30, (n, 3), generator=torch.Generator().manual_seed(0))
    batch = Batch(tokens, labels={"task": torch.arange(n)})  # every example is of a class of its own
    found = []
    with run_by_steps(models, [probe]) as step, monkeypatch.context() as patched:
        patched.setattr(SumState, "__getitem__", counted)
        for part in batch.split(20):
            before = looks[0]
            step(part)
            found.append(looks[0] - before)
    assert len(probe.seen) == n
    assert max(found) < 10


def test_what_is_refused(two: Any) -> None:
    models, batch = two[0], every_token(30)
    per_token = Batch(torch.tensor([[0, 1], [1, 2]]), labels={"word": torch.zeros(2, 2, dtype=torch.int64)})
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: SVCCA(variance=1.5), "variance is 1.5; expected a share above 0 and at most 1"),
        (lambda: NDims(variance=0), "variance is 0; expected a share above 0 and at most 1"),
        (lambda: RBFCKA(fraction=0), "fraction is 0; expected a number above 0, such as 0.5"),
        (lambda: NeighbourPurity(k=0), "k is 0; expected at least 1"),
        (lambda: NeighbourPurity(max_rows=1), "max_rows is 1; expected at least 2, or None for all"),
        (lambda: NeighbourPurity(device="gpu"), "no device 'gpu'; expected cpu, cuda, cuda:1 or mps"),
        (lambda: RBFCKA(device="gpu"), "no device 'gpu'; expected cpu, cuda, cuda:1 or mps"),
        (lambda: SVCCA(pairs="some"), "pairs is 'some'; expected 'diagonal' or 'all'"),  # type: ignore[arg-type]
        (lambda: NDims(readout="last"), "readout is 'last'; expected last_token()"),  # type: ignore[arg-type]
        (lambda: run(models, per_token, NDims(label="word")), "label 'word' is per token; give a label with one"),
        (lambda: run(models, batch, NeighbourPurity("hook_embed", label="other")), "no label 'other' in this batch"),
        (lambda: run(models, every_token(7), NeighbourPurity()), "k is 10 for 7 examples; expected 1 to 6"),
        (
            lambda: run(models, Batch(batch.tokens, labels={"task": torch.zeros(30).long()}), NeighbourPurity()),
            "label 'task' has one class only; purity needs examples of at least 2 classes",
        ),
        (
            lambda: run(models, Batch(batch.tokens, labels={"task": torch.arange(30)}), NeighbourPurity()),
            "label 'task' has one example per class (30 in all), so no neighbour can be of the same; give at least 2",
        ),
    ]
    for call, message in cases:
        with pytest.raises(InputError, match=re.escape(message)):
            call()
