from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from probes import NDims, run
from probes.extend import check_probe
from probes.functional import n_dims
from tasks import Batch, InputError
from tests.probes.test_cka import every_token, states


def spectra(n: int, *dims: int) -> list[torch.Tensor]:
    """States whose standard deviations fall by a factor of 1,000 from first to last direction, far from 0."""
    return [x * torch.logspace(0, -3, x.shape[1]) + 5 for x in states(n, *dims)]


@pytest.mark.parametrize("variance", [0.5, 0.9, 0.99, 0.9999])
def test_moments_give_the_number_of_the_rows(fake_model: Any, variance: float) -> None:
    planted = spectra(90, 12, 20)
    task = torch.arange(90) % 3
    for form in ("moments", "rows"):
        probe = NDims(label="task", variance=variance, form=form)  # type: ignore[arg-type]
        result = run(fake_model(*planted), every_token(90).split(7), probe)
        assert result.metadata["form"] == form
        for k, chosen in enumerate([task >= 0, task == 0, task == 1, task == 2]):
            for i, x in enumerate(planted):
                s = torch.linalg.svdvals((x[chosen] - x[chosen].mean(0)).double()).square()
                expected = int((s.cumsum(0) / s.sum() < variance).sum()) + 1
                assert float(result["n_dims"][i, k]) == expected == n_dims(x[chosen], variance=variance)


def test_labels_come_in_the_order_of_their_numbers(fake_model: Any) -> None:
    tokens = torch.arange(30)[:, None]
    batch = Batch(tokens, labels={"task": torch.tensor([10, 2, 3])[tokens[:, 0] % 3]})
    result = run(fake_model(*spectra(30, 4)), batch, NDims(label="task"))
    assert result.coords["label"] == ["all", "2", "3", "10"]


def test_auto_keeps_rows_until_moments_take_less(fake_model: Any) -> None:
    planted = spectra(400, 30, 30)
    few, many = NDims(), NDims()
    part, whole = (run(fake_model(*planted), every_token(n).split(20), p) for n, p in ((20, few), (400, many)))
    assert (part.metadata["form"], whole.metadata["form"]) == ("rows", "moments")
    assert (len(few.moments), len(many.rows), len(many.classes)) == (0, 0, 0)
    assert whole["n_dims"].flatten().tolist() == [n_dims(x) for x in planted]
    half, other = (NDims(), NDims())
    for probe, index in ((half, torch.arange(380)), (other, torch.arange(380, 400))):
        run(fake_model(*planted), every_token(400).select(index), probe)
    half.merge(other)
    assert torch.equal(half.compute()["n_dims"], whole["n_dims"])


def test_a_doubt_is_said(fake_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(fake_model(*states(60, 3)), every_token(60), NDims(form="moments", variance=1.0)).notes == []
    monkeypatch.setattr("probes.n_dims.n_dims_of_scatter", lambda scatter, variance: (2.0, False))
    found = run(fake_model(*states(60, 3)), every_token(60), NDims(form="moments"))
    doubt = "moments leave n_dims in doubt, within rounding of the share 0.99 (label all); form='rows' settles it"
    assert (found["n_dims"].tolist(), found.notes) == ([[2.0]], [doubt])


def test_a_constant_site_is_nan_in_either_form(fake_model: Any) -> None:
    for form in ("rows", "moments"):
        probe = NDims(form=form)  # type: ignore[arg-type]
        result = run(fake_model(torch.full((20, 3), 1 / 3)), every_token(20).split(3), probe)
        assert result["n_dims"].isnan().all()
        assert "hook_embed: all examples are the same (label all), so its NDims is NaN there" in result.notes


def test_memory_counts_what_is_held(fake_model: Any) -> None:
    """The float64 copies of a site are more than its rows."""
    model, batch = fake_model(*states(40, 50, 60)), every_token(40)
    needed = 40 * 110 * 4 + 40 * 60 * 16 + 40 * 40 * 24
    run(model, batch, NDims(form="rows", max_memory=needed / 2**30))
    with pytest.raises(InputError, match=r"of rows: 40 examples so far at 2 sites .*, take form='moments', or raise"):
        run(model, batch, NDims(form="rows", max_memory=(needed - 1) / 2**30))
    needed = 8 * (50**2 + 6 * 50 + 60**2 + 6 * 60) + 32 * 60**2
    run(model, batch, NDims(form="moments", max_memory=needed / 2**30))
    message = r"of moments for 2 sites of up to 60 dimensions and 1 classes; .* form='rows' \(0.00042 MiB per example"
    with pytest.raises(InputError, match=message):
        run(model, batch, NDims(form="moments", max_memory=(needed - 1) / 2**30))


@pytest.mark.parametrize("form", ["moments", "auto"])
def test_the_contract(form: Any, model: Any, batch: Batch) -> None:
    check_probe(NDims(label="task", form=form, device="cpu"), model, batch)


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match=re.escape("form is 'gram'; expected 'auto', 'moments' or 'rows'")):
        NDims(form="gram")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no device 'gpu'; expected cpu, cuda"):
        NDims(device="gpu")
