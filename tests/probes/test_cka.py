from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from probes import CKA, attach, head_output, mean, residual, run
from probes.extend import check_probe
from probes.functional import cka_null, cka_resamples, linear_cka
from probes.functional.halves import half_samples
from tasks import Batch, InputError

ONE = "blocks.1.hook_resid_post"
FORMS = {"cka": False, "debiased_cka": True}


def states(n: int, *dims: int, seed: int = 0) -> list[torch.Tensor]:
    """Planted states of ``n`` tokens; each layer shares a direction with the next."""
    draw = torch.Generator().manual_seed(seed)
    found = [torch.randn(n, d, generator=draw) for d in dims]
    for before, after in itertools.pairwise(found):
        after[:, 0] += before[:, 0]
    return found


def every_token(n: int, index: torch.Tensor | None = None) -> Batch:
    """One example a token, of class 0, 1 or 2."""
    tokens = torch.arange(n)[:, None] if index is None else index[:, None]
    return Batch(tokens, labels={"task": tokens[:, 0] % 3}, index=index)


# ---- what is measured ----


@pytest.mark.parametrize("form", ["moments", "rows"])
def test_layers_of_one_model(fake_model: Any, form: Any) -> None:
    planted = states(30, 4, 4, 6)
    result = run(fake_model(*planted), every_token(30).split(7), CKA(label="task", form=form))
    assert result.axes["cka"] == result.axes["debiased_cka"] == ("site", "other_site", "label")
    assert result.coords["site"] == result.coords["other_site"] == ["hook_embed", "blocks.0.hook_resid_post", ONE]
    assert (result.coords["label"], result["n"].tolist()) == (["all", "0", "1", "2"], [30, 10, 10, 10])
    assert result.metadata["d"] == {"hook_embed": 4, "blocks.0.hook_resid_post": 4, ONE: 6}
    task = torch.arange(30) % 3
    for measure, debiased in FORMS.items():
        for k, chosen in enumerate([task >= 0, task == 0, task == 1, task == 2]):
            for i, x in enumerate(planted):
                for j, y in enumerate(planted):
                    expected = float(linear_cka(x[chosen], y[chosen], debiased=debiased))
                    assert float(result[measure][i, j, k]) == pytest.approx(expected, abs=1e-10)
    assert result.notes == [
        "cka is too high where n is below 10 d (d up to 6): label all (n = 30), 0 (n = 10), 1 (n = 10), 2 (n = 10); "
        "see debiased_cka"
    ]
    assert result.layers == {"hook_embed": 0, "blocks.0.hook_resid_post": 1, ONE: 2}


def test_many_rows_need_no_note(fake_model: Any) -> None:
    planted = states(40, 4, 4)
    result = run(fake_model(*planted), every_token(40), CKA())
    assert (result.notes, result.coords["label"]) == ([], ["all"])


@pytest.mark.parametrize("form", ["moments", "rows"])
def test_a_constant_site_is_nan_and_named(fake_model: Any, form: Any) -> None:
    planted = states(20, 3, 3, 3)
    planted[1] = torch.full((20, 3), 1 / 3)
    result = run(fake_model(*planted), every_token(20).split(3), CKA(label="task", form=form))
    assert result["cka"][1].isnan().all()
    assert result["cka"][:, 1].isnan().all()
    assert not result["debiased_cka"][0, 2].isnan().any()
    note = "blocks.0.hook_resid_post: all examples are the same (label all, 0, 1, 2), so its CKA is NaN there"
    assert note in result.notes


def test_a_class_of_three_has_no_debiased_value(fake_model: Any) -> None:
    result = run(fake_model(*states(10, 2, 2)), every_token(10), CKA(label="task"))
    assert result["debiased_cka"][0, 1].isnan().tolist() == [False, False, True, True]
    assert not result["cka"].isnan().any()
    reason = "there are 3 examples, and the debiased form needs at least 4 (label 1, 2), so its CKA is NaN there"
    assert f"hook_embed: {reason}" in result.notes


def test_intervals_and_null(fake_model: Any) -> None:
    planted = states(24, 3, 5)
    probe = CKA(label="task", n_resamples=9, n_permutations=19, seed=3)
    result = run(fake_model(*planted), every_token(24), probe)
    assert result.metadata["form"] == "rows"
    x, y = planted
    for measure, debiased in FORMS.items():
        value = float(linear_cka(x, y, debiased=debiased))
        spread = cka_resamples(x, y, 9, debiased=debiased, seed=3)
        null = cka_null(x, y, 19, debiased=debiased, seed=3)
        low, high = (value + spread.quantile(torch.tensor([0.025, 0.975]).double())).tolist()
        found = [float(result[f"{measure}_{k}"][0, 1, 0]) for k in ("low", "high", "null_low", "null_high", "p_value")]
        ends = null.quantile(torch.tensor([0.025, 0.975]).double()).tolist()
        assert found == pytest.approx([low, high, *ends, (1 + int((null >= value).sum())) / 20])
        assert torch.equal(result[f"{measure}_low"][0, 1], result[f"{measure}_low"][1, 0])
    few = run(fake_model(*planted), every_token(7), CKA(n_resamples=3))
    assert "debiased_cka_low and _high are NaN where half of the examples have no CKA" in few.notes
    assert set(few.values) == {
        "cka",
        "cka_low",
        "cka_high",
        "debiased_cka",
        "debiased_cka_low",
        "debiased_cka_high",
        "n",
    }


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_without_the_largest_component_of_each_side(fake_model: Any, precision: Any) -> None:
    """Of each class by itself; by numpy's singular value decomposition."""
    planted = states(30, 4, 6)
    for x in planted:
        x[:, 1] *= 500
    probe = CKA(label="task", remove_top=1, n_resamples=5, n_permutations=5, precision=precision)
    result = run(fake_model(*planted), every_token(30).split(7), probe)
    assert result.metadata["remove_top"] == 1
    assert result.metadata["form"] == "rows"
    task = torch.arange(30) % 3
    for k, chosen in enumerate([task >= 0, task == 0, task == 1, task == 2]):
        sides = []
        for x in planted:
            part = x[chosen].double().numpy()
            u, s, vh = np.linalg.svd(part - part.mean(0), full_matrices=False)
            sides.append(torch.from_numpy((u[:, 1:] * s[1:]) @ vh[1:]))
        for measure, debiased in FORMS.items():
            value = float(linear_cka(*sides, debiased=debiased))
            assert float(result[measure][0, 1, k]) == pytest.approx(value, abs=1e-6)
            spread = cka_resamples(*sides, 5, debiased=debiased).quantile(torch.tensor([0.025, 0.975]).double())
            ends = [float(result[f"{measure}_{end}"][0, 1, k]) for end in ("low", "high")]
            assert ends == pytest.approx([value + float(x) for x in spread], abs=1e-6)
            high = cka_null(*sides, 5, debiased=debiased).quantile(0.975)
            assert float(result[f"{measure}_null_high"][0, 1, k]) == pytest.approx(float(high), abs=1e-6)


def test_nothing_left_without_the_largest_component(fake_model: Any) -> None:
    planted = states(20, 3, 3, 3)
    planted[1] = torch.arange(20.0)[:, None] * torch.ones(3)
    result = run(fake_model(*planted), every_token(20), CKA(remove_top=1))
    assert result["debiased_cka"][1].isnan().all()
    assert not result["debiased_cka"][0, 2].isnan().any()
    assert (
        "blocks.0.hook_resid_post: nothing is left without its largest principal component (label all), so its CKA is "
        "NaN there"
    ) in result.notes


# ---- the contract ----


@pytest.mark.parametrize(
    "probe",
    [
        CKA(),
        CKA(residual([1, 2]), label="task", form="rows"),
        CKA(residual([0, -1]), n_resamples=2, n_permutations=2),
        CKA([residual(-1, final_norm=True), head_output(1)], mean(), label="task", pairs="all", max_memory=1.0),
        CKA(residual([1, 2]), label="task", remove_top=1, n_resamples=2),
    ],
    ids=lambda p: f"{p.form}-{p.label}-{p.n_resamples}-{p.pairs}-{p.precision}-{p.remove_top}",
)
def test_the_contract(probe: CKA, model: Any, batch: Batch) -> None:
    check_probe(probe, model, batch.select(slice(0, 8)))


@pytest.mark.slow
def test_two_processes_agree_with_one(forked: None, model: Any, batch: Batch) -> None:
    check_probe(CKA(residual([0, -1]), label="task"), model, batch, processes=True)


# ---- rows that become moments ----


def test_auto_keeps_rows_until_moments_take_less(fake_model: Any) -> None:
    planted = states(120, 12, 12)
    model = fake_model(*planted)
    few, many = CKA(), CKA()
    whole = run(model, every_token(120).split(20), many)
    part = run(model, every_token(40).split(20), few)
    assert (part.metadata["form"], whole.metadata["form"]) == ("rows", "moments")
    assert (len(few.rows), len(few.moments)) == (2, 0)
    assert (len(many.rows), len(many.classes), len(many.moments)) == (0, 0, 1)
    for result, n in ((part, 40), (whole, 120)):
        for measure, debiased in FORMS.items():
            expected = float(linear_cka(planted[0][:n], planted[1][:n], debiased=debiased))
            assert float(result[measure][0, 1, 0]) == pytest.approx(expected, abs=1e-10)


def test_wide_states_of_few_examples_fit_where_moments_would_not(fake_model: Any) -> None:
    model = fake_model(*states(20, 2000, 2000))
    assert CKA().memory([2000, 2000], n=20) == 4 * 20 * 4000
    result = run(model, every_token(20).split(6), CKA(max_memory=1e-3))
    assert result.metadata["form"] == "rows"
    with pytest.raises(InputError, match=r"would keep 0\.\d+ GiB of moments"):
        run(model, every_token(20).split(6), CKA(form="moments", max_memory=1e-3))


@pytest.mark.parametrize("sizes", [(100, 20), (20, 100), (20, 20)], ids=str)
def test_rows_and_moments_merge(fake_model: Any, sizes: tuple[int, int]) -> None:
    planted = states(120, 12, 12)
    model, n = fake_model(*planted), sum(sizes)
    parts = every_token(n).select(torch.arange(sizes[0])), every_token(n).select(torch.arange(sizes[0], n))
    probes = [CKA(label="task"), CKA(label="task")]
    for probe, part in zip(probes, parts, strict=True):
        run(model, part.split(10), probe)
    probes[0].merge(probes[1])
    expected = run(model, every_token(n), CKA(label="task", form="rows"))
    for measure in FORMS:
        torch.testing.assert_close(probes[0].compute()[measure], expected[measure], atol=1e-10, rtol=0)


@pytest.mark.parametrize(("form", "label", "n_layers"), [("auto", "task", 2), ("moments", None, 12)])
def test_goes_on_after_a_saved_state_and_outside_inference_mode(
    fake_model: Any, tmp_path: Any, form: Any, label: str | None, n_layers: int
) -> None:
    """Also with twelve layers: "10" comes before "2" in a file."""
    planted = states(90, *range(3, 3 + n_layers))
    model, batches = fake_model(*planted), list(every_token(90).split(30))
    probe = CKA(label=label, form=form)
    run(model, batches[:1], probe)
    with attach(model, probe) as attached, torch.no_grad(), attached.on(batches[1]):
        model(batches[1].tokens)
    probe.save_state(tmp_path / "state.safetensors")
    again = CKA(label=label, form=form)
    again.load_state(tmp_path / "state.safetensors")
    with attach(model, again) as attached, torch.no_grad(), attached.on(batches[2]):
        model(batches[2].tokens)
    expected = run(model, batches, CKA(label=label, form="rows"))
    for measure in FORMS:
        torch.testing.assert_close(again.compute()[measure], expected[measure], atol=1e-9, rtol=0)


def test_rows_are_folded_before_both_would_not_fit(fake_model: Any) -> None:
    """Rows and moments are in memory together while one becomes the other."""
    planted = states(120, 12, 12)
    moments = CKA().memory([12, 12])
    probe = CKA(max_memory=(moments + 30 * 24 * 4) / 2**30)  # room for the moments and 30 rows; alone they take 60
    found = run(fake_model(*planted), every_token(40).split(20), probe)
    assert (found.metadata["form"], len(probe.rows)) == ("moments", 0)
    expected = float(linear_cka(planted[0][:40], planted[1][:40]))
    assert float(found["cka"][0, 1, 0]) == pytest.approx(expected, abs=1e-10)


# ---- precision ----


@pytest.mark.parametrize("form", ["moments", "rows"])
@pytest.mark.parametrize("dims", [(6, 9), (90, 80)])
def test_float32_products(fake_model: Any, form: Any, dims: tuple[int, int]) -> None:
    """Near the exact value, and not the same."""
    planted = states(60, *dims)
    exact, found = (
        run(fake_model(*planted), every_token(60).split(13), CKA(label="task", form=form, precision=precision))
        for precision in ("float64", "float32")
    )
    assert (exact.metadata["precision"], found.metadata["precision"]) == ("float64", "float32")
    for measure in FORMS:
        errors = (found[measure] - exact[measure]).abs()
        assert found[measure].dtype == torch.float64
        assert 0 < float(errors.max()) < 2e-6


def test_values_of_halves(fake_model: Any) -> None:
    """Each is the CKA of a random half of the examples, the same halves in every comparison."""
    x, y = states(40, 3, 5)
    result = run(fake_model(x, y), every_token(40), CKA(n_resamples=5, seed=3, keep_halves=True))
    expected = [float(linear_cka(x[half], y[half], debiased=True)) for half in half_samples(40, 5, seed=3)]
    assert result["debiased_cka_halves"][0, 1, 0].tolist() == pytest.approx(expected)
    assert result["debiased_cka_halves"][0, 0, 0].tolist() == pytest.approx([1.0] * 5)
    assert result.metadata["n_units"] == {"all": 40}


def test_float32_intervals_are_near(fake_model: Any) -> None:
    planted, options = states(60, 6, 9), {"n_resamples": 9, "n_permutations": 9}
    exact, found = (
        run(fake_model(*planted), every_token(60), CKA(precision=precision, **options))  # type: ignore[arg-type]
        for precision in ("float64", "float32")
    )
    for name in exact.values:
        torch.testing.assert_close(found[name], exact[name], atol=1e-5, rtol=0)
    assert float(found["debiased_cka_low"][0, 1, 0]) != float(exact["debiased_cka_low"][0, 1, 0])


def test_few_digits_in_float32_are_said(fake_model: Any) -> None:
    """The debiased form is a small difference where every two examples are nearly as far apart as every other two."""
    for noise, note in ((1e-1, False), (1e-2, True), (1e-3, None)):
        near = torch.eye(40) + noise * states(40, 40)[0]
        found = run(fake_model(near, *states(40, 5)), every_token(40), CKA(precision="float32"))
        exact = run(fake_model(near, *states(40, 5)), every_token(40), CKA())
        said = [x for x in found.notes if x.startswith("float32 may move debiased_cka by up to: label all (")]
        assert bool(said) == bool(note)
        assert not any("float32" in x for x in exact.notes)
        reason = "float32 leaves fewer than four digits of the debiased form; use precision='float64'"
        assert any(reason in x for x in found.notes) == (note is None)
        error = (found["debiased_cka"] - exact["debiased_cka"]).abs()
        if note is not None:
            assert float(error[0, 1, 0]) < (1e-4 if note else 1e-5)
        assert bool(found["debiased_cka"][0].isnan().all()) == (note is None)


def test_a_device_for_the_sums(fake_model: Any) -> None:
    planted = states(40, 4, 4)
    expected = run(fake_model(*planted), every_token(40).split(9), CKA())
    found = run(fake_model(*planted), every_token(40).split(9), CKA(device="cpu"))
    assert torch.equal(found["debiased_cka"], expected["debiased_cka"])
    with pytest.raises(InputError, match="no device 'gpu'; expected cpu, cuda"):
        CKA(device="gpu")


# ---- memory ----


def test_memory_as_told_is_what_is_held(fake_model: Any) -> None:
    for form, numbers in (("moments", 8), ("rows", 4)):
        probe = CKA(label="task", form=form)
        run(fake_model(*states(30, 3, 4, 5)), every_token(30).split(8), probe)
        tensors = {k: t for k, t in probe.state_dict()["tensors"].items() if k.startswith(("moments", "rows"))}
        held = sum(t.numel() for k, t in tensors.items() if t.ndim and not k.endswith("index"))
        assert probe.memory([3, 4, 5], classes=3, n=30) == numbers * held


def test_too_much_memory_is_refused_with_the_numbers(fake_model: Any) -> None:
    model, batch = fake_model(*states(30, 300, 400)), every_token(30)
    cases = [
        (
            CKA(label="task", form="moments", max_memory=1e-3),
            "CKA would keep 0.00841 GiB of moments for 2 sites of up to 400 dimensions and 3 classes; that is more "
            "than max_memory = 0.001; measure fewer layers at a time (at=residual(layers=[...])), take form='rows' "
            "(0.00267 MiB per example), or raise max_memory",
        ),
        (
            CKA(max_memory=6e-5, form="rows"),
            "CKA would keep 6.78e-05 GiB of rows: 26 examples so far at 2 sites of up to 400 dimensions; that is more "
            "than max_memory = 6e-05; measure fewer layers",
        ),
    ]
    for probe, message in cases:
        with pytest.raises(InputError, match=re.escape(message)):
            run(model, batch.split(13), probe)


# ---- refusals ----


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CKA(pairs="some"), "pairs is 'some'; expected 'diagonal' or 'all'"),  # type: ignore[arg-type]
        (lambda: CKA(form="gram"), "form is 'gram'; expected 'auto', 'moments' or 'rows'"),  # type: ignore[arg-type]
        (lambda: CKA(n_resamples=-1), "n_resamples is -1; expected at least 0"),
        (lambda: CKA(n_resamples=1), "n_resamples is 1, but one half has no variance; give 50, or 0 for no interval"),
        (lambda: CKA(precision="half"), "precision is 'half'; expected 'float64' or 'float32'"),  # type: ignore[arg-type]
        (
            lambda: CKA(form="moments", n_permutations=5),
            "n_permutations is 5, which needs the examples themselves; use",
        ),
        (lambda: CKA(remove_top=-1), "remove_top is -1; expected at least 0"),
        (
            lambda: CKA(form="moments", remove_top=1),
            "remove_top is 1, which needs the examples themselves; use form='rows' or 'auto'",
        ),
        (
            lambda: CKA(form="rows").memory([4]),
            "form 'rows' keeps every example; give their number, memory(..., n=1000)",
        ),
    ],
)
def test_parameters_that_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        make()


def test_labels_that_are_refused(fake_model: Any) -> None:
    batch = Batch(torch.tensor([[0, 1], [1, 2]]), labels={"word": torch.zeros(2, 2, dtype=torch.int64)})
    model = fake_model(*states(5, 2))
    with pytest.raises(InputError, match="label 'word' is per token; give a label with one value per example"):
        run(model, batch, CKA(label="word"))
    with pytest.raises(InputError, match="no label 'task' in this batch"):
        run(model, batch, CKA(label="task"))
