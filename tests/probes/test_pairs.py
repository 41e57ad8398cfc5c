"""Several models on the same batches, for probes that compare."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from probes import CKA, Probe, ProbeResult, Sum, TaskClusterARI, attach, last_token, residual, run
from probes.extend import check_probe
from probes.functional import linear_cka
from tasks import Batch, InputError
from tests.probes.test_cka import FORMS, every_token, states


class Distance(Probe):
    """Mean squared distance between two models' states, layer by layer."""

    compares = True
    total, count = Sum(), Sum(torch.int64)

    def __init__(self, at: Any = residual(), readout: Any = last_token()) -> None:
        self.at, self.readout = at, readout

    def update(self, activations: Mapping[str, torch.Tensor], batch: Batch) -> None:
        names = list(activations)
        for one, other in zip(names[: len(names) // 2], names[len(names) // 2 :], strict=True):
            self.total.add(one, (activations[one] - activations[other]).double().square().sum())
        self.count.add("n", len(batch))

    def compute(self) -> ProbeResult:
        names = self.site_names[: len(self.site_names) // 2]
        return self.result(
            {"distance": torch.stack([self.total[n] / self.count["n"] for n in names])},
            {"distance": ("pair",)},
            {"pair": names},
        )


@pytest.fixture
def two(fake_model: Any) -> dict[str, Any]:
    return {"tuned": fake_model(*states(30, 4, 4, 4)), "base": fake_model(*states(30, 4, 4, 4, seed=9))}


# ---- what it gives ----


def test_a_probe_that_compares(two: dict[str, Any]) -> None:
    result = run(two, every_token(30).split(4), Distance())
    expected = [
        (a.weight - b.weight).double().square().sum(1).mean()
        for a, b in zip(two["tuned"].layers, two["base"].layers, strict=True)
    ]
    torch.testing.assert_close(result["distance"], torch.stack(expected))
    assert result.coords["pair"][0] == "tuned/hook_embed"


@pytest.mark.parametrize("form", ["moments", "rows"])
@pytest.mark.parametrize("pairs", ["diagonal", "all"])
def test_cka_of_two_models(fake_model: Any, form: Any, pairs: Any) -> None:
    """Dimensions differ; classes come in any order."""
    planted = states(30, 4, 4), states(30, 3, 5, seed=9)
    models = {name: fake_model(*p) for name, p in zip(("tuned", "base"), planted, strict=True)}
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    probe = CKA(label="task", form=form, pairs=pairs)
    result = run(models, every_token(30, order).split(7), probe)
    assert result.coords["site"] == ["hook_embed", "blocks.0.hook_resid_post"]
    assert result.axes["cka"] == (("site", "label") if pairs == "diagonal" else ("site", "other_site", "label"))
    assert result.metadata["models"] == ["tuned", "base"]
    assert list(result.metadata["d"].values()) == [4, 4, 3, 5]
    for measure, debiased in FORMS.items():
        for k, chosen in enumerate([slice(None), *(torch.arange(30) % 3 == c for c in range(3))]):
            for i in range(2):
                for j in [i] if pairs == "diagonal" else range(2):
                    expected = float(linear_cka(planted[0][i][chosen], planted[1][j][chosen], debiased=debiased))
                    place = (i, k) if pairs == "diagonal" else (i, j, k)
                    assert float(result[measure][place]) == pytest.approx(expected, abs=1e-10)


def test_finding_c1(two: dict[str, Any], fake_model: Any) -> None:
    """A model under two names, and rotated and scaled, is the same."""
    one = two["tuned"]
    rotation = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(1)))[0]
    turned = fake_model(*(1e-3 * layer.weight.detach() @ rotation for layer in one.layers))
    for models in ({"a": one, "b": one}, {"a": one, "b": turned}):
        result = run(models, every_token(30).split(8), CKA())
        for measure in FORMS:
            torch.testing.assert_close(result[measure], torch.ones(3, 1).double(), atol=1e-5, rtol=0)


def test_different_numbers_of_layers_give_a_heat_map(fake_model: Any) -> None:
    models = {"tuned": fake_model(*states(9, 2, 2, 2)), "base": fake_model(*states(9, 2, 2))}
    result = run(models, every_token(9), CKA())
    assert result["cka"].shape == (3, 2, 1)
    assert result.notes[0] == (
        "the models do not have the same sites ('tuned' has 3 and 'base' has 2), so every site is compared with every "
        "other"
    )
    assert run(models, every_token(9), CKA(pairs="all")).notes[0].startswith("cka is too high")


# ---- how it runs ----


def test_one_forward_of_each_model_a_batch(two: dict[str, Any], hooks_of: Any) -> None:
    before = {name: hooks_of(model) for name, model in two.items()}
    two["base"].train()
    random = torch.get_rng_state()
    run(two, every_token(30).split(10), [Distance(), CKA(residual([0, 1])), CKA(label="task")])
    assert [model.calls.count("hook_embed") for model in two.values()] == [3, 3]
    assert {name: hooks_of(model) for name, model in two.items()} == before
    assert (two["base"].training, two["base"].drop.training, two["tuned"].training) == (True, True, False)
    assert torch.equal(random, torch.get_rng_state())


def test_each_model_stops_after_its_own_deepest_site(two: dict[str, Any]) -> None:
    run(two, every_token(30).split(10), Distance(residual(0)))
    for model in two.values():  # the first batch goes through, to see that the hook points fire once
        assert model.calls == [*model.names, "hook_embed", "hook_embed"]


def test_hooks_go_also_after_an_error(two: dict[str, Any], hooks_of: Any) -> None:
    before = {name: hooks_of(model) for name, model in two.items()}
    two["base"].layers[1].weight.data[12] = torch.nan
    message = (
        "NaN or infinity in the activations at 'blocks.0.hook_resid_post' of model 'base' for example index 12; "
        "find its cause in the model or leave the example out"
    )
    with pytest.raises(InputError, match=re.escape(message)):
        run(two, every_token(30).split(10), CKA())
    assert {name: hooks_of(model) for name, model in two.items()} == before


@pytest.mark.parametrize("probe", [Distance(), CKA(label="task"), CKA(pairs="all", form="rows")], ids=repr)
def test_the_contract(two: dict[str, Any], probe: Probe) -> None:
    check_probe(probe, two, every_token(12))


# ---- refusals ----


def test_what_is_refused(two: dict[str, Any], tiny_model: Any, batch: Batch) -> None:
    one, rows = two["tuned"], every_token(30)
    cases: list[tuple[Any, Any, str]] = [
        (
            two,
            TaskClusterARI(),
            "TaskClusterARI measures one model at a time, but was given 2 (tuned, base); run it on",
        ),
        ({**two, "third": one}, CKA(), "CKA compares two models, but was given 3 ('tuned', 'base', 'third'); give two"),
        ({"a": one}, CKA(), "CKA compares two models, but was given 1 ('a'); give two at a time, or one for its own"),
        ({}, CKA(), "no models given; give one, or several by name"),
        ({"": one, "c": one}, CKA(), "a model is called ''; expected a name"),
        (
            two,
            CKA("hook_embedd"),
            "model 'tuned': no hook point 'hook_embedd' in this model; did you mean 'hook_embed'",
        ),
        (two, Distance("hook_silent"), "hook point 'hook_silent' of model 'tuned' exists but did not fire"),
        (
            {"tuned": tiny_model(d_vocab=30), "base": tiny_model(d_vocab=31)},
            CKA(),
            "model 'tuned' has a vocabulary of 30 tokens and 'base' one of 31, so the same tokens are not the same "
            "text; compare models with one tokenizer",
        ),
    ]
    for models, probe, message in cases:
        with pytest.raises(InputError, match=re.escape(message)):
            run(models, rows, probe)
    two["base"].fire_twice = True
    with pytest.raises(InputError, match="'hook_embed' of model 'base' fired twice"):
        run(two, rows, CKA())
    with (
        pytest.raises(InputError, match=re.escape("attach measures one model, and was given 2; use run() for probes")),
        attach(two, CKA()),
    ):
        pass


# ---- names as they stand on the hub ----


@pytest.mark.parametrize("probe", [CKA(), CKA(pairs="all"), CKA(form="rows")], ids=["diagonal", "all", "rows"])
@pytest.mark.parametrize("names", [("meta-llama/Llama-3", "gpt2"), ("a", "a/b"), ("a/b", "a"), ("a|b/", "a/|")])
def test_names_of_models_may_hold_slashes(two: dict[str, Any], names: tuple[str, str], probe: CKA) -> None:
    models = dict(zip(names, two.values(), strict=True))
    expected, found = run(two, every_token(30), probe.clone()), run(models, every_token(30), probe)
    for measure in FORMS:
        assert torch.equal(found[measure], expected[measure])
    assert (found.coords, found.layers) == (expected.coords, expected.layers)
    assert found.metadata["models"] == list(names)
    assert found.metadata["model"].keys() == set(names)
    assert list(found.metadata["d"]) == [f"{name}/{site}" for name in names for site in found.coords["site"]]
    again = probe.clone()
    again.load_state_dict(probe.state_dict())
    for measure in FORMS:
        assert torch.equal(again.compute()[measure], expected[measure])
