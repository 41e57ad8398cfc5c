from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from probes import NDims, ProbeResult, TaskClusterARI, last_token, residual, run
from probes.engine.result import load_result
from probes.store.safetensors_files import read_safetensors, write_safetensors
from tasks import Batch, InputError


@pytest.fixture
def result() -> ProbeResult:
    return ProbeResult(
        probe="Demo",
        values={
            "ari": torch.tensor([[0.1, 0.2], [0.3, math.nan]], dtype=torch.float64),
            "n": torch.tensor(7),
            "label": torch.tensor([2, 5, 1]),
        },
        axes={"n": (), "ari": ("site", "label"), "label": ("example",)},
        coords={"site": ["hook_embed", "blocks.0.hook_z"], "label": ["task", "output"], "example": ["0", "1", "8"]},
        layers={"hook_embed": 0, "blocks.0.hook_z": 1},
        metadata={"n": 3, "versions": {"torch": "2"}},
        notes=["'ari' is NaN: <one> class & no more"],
    )


def test_a_measure_that_does_not_fit_its_axes_is_refused() -> None:
    message = "'ari' has shape (2,); expected (3,) for axes ('site',)"
    with pytest.raises(InputError, match=re.escape(message)):
        ProbeResult("Demo", {"ari": torch.zeros(2)}, {"ari": ("site",)}, {"site": ["a", "b", "c"]})


def test_a_missing_measure_is_told_with_those_that_exist(result: ProbeResult) -> None:
    assert result["n"] == 7
    with pytest.raises(KeyError, match=r"no measure 'p' in this Demo result \(it has ari, n, label\)"):
        result["p"]


def test_sel_takes_named_coordinates(result: ProbeResult) -> None:
    assert result.sel("ari", label="task").tolist() == [0.1, 0.3]
    assert result.sel("ari", site="hook_embed").tolist() == [0.1, 0.2]
    assert float(result.sel("ari", label="output", site="hook_embed")) == 0.2
    assert torch.equal(result.sel("label"), result["label"])


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ({"lyer": "1"}, "no axis 'lyer' in 'ari' (it has site, label, layer); did you mean 'layer'?"),
        ({"label": "skill"}, "no label 'skill' in 'ari' (it has task, output)"),
        ({"head": "1"}, "no axis 'head' in 'ari' (it has site, label, layer)"),
    ],
)
def test_sel_tells_what_there_is(result: ProbeResult, at: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        result.sel("ari", **at)


def test_a_dataframe_has_one_row_a_number(result: ProbeResult) -> None:
    frame = result.to_dataframe()
    columns = ["probe", "measure", "site", "layer", "other_site", "head", "label", "step", "coords", "value"]
    assert list(frame.columns) == columns
    assert len(frame) == 4 + 1 + 3
    row = frame[(frame.measure == "ari") & (frame.label == "task") & (frame.site == "blocks.0.hook_z")].iloc[0]
    assert (row["probe"], row["layer"], row["value"]) == ("Demo", 1, 0.3)
    assert math.isnan(frame[(frame.label == "output") & (frame.layer == 1)].value.iloc[0])
    assert frame[frame.measure == "label"].value.tolist() == [2, 5, 1]
    assert frame[frame.measure == "label"].site.isna().all()
    assert frame[frame.measure == "label"].coords.tolist() == ["example=0", "example=1", "example=8"]


def test_a_dataset_has_a_variable_a_measure(result: ProbeResult) -> None:
    pytest.importorskip("xarray")
    found = result.to_xarray()
    assert set(found.data_vars) == {"ari", "n", "label_"}
    assert found["ari"].dims == ("site", "label")
    assert float(found["ari"].sel(site="blocks.0.hook_z", label="task")) == 0.3
    assert found["ari"].sel(label="task").swap_dims(site="layer").sel(layer=1).item() == 0.3
    assert math.isnan(float(found["ari"].sel(site="blocks.0.hook_z", label="output")))
    assert (int(found["n"]), found["label_"].sel(example="8").item()) == (7, 1)
    assert (found.attrs["probe"], found.attrs["notes"]) == ("Demo", result.notes)
    assert json.loads(found.attrs["metadata"]) == result.metadata


def test_steps_and_heads_are_integers_in_a_dataset() -> None:
    pytest.importorskip("xarray")
    coords = {"step": ["0", "20", "100"], "head": ["0", "1"]}
    result = ProbeResult("Demo", {"score": torch.arange(6).reshape(3, 2)}, {"score": ("step", "head")}, coords)
    assert int(result.to_xarray()["score"].sel(step=100, head=1)) == 5


def test_a_dataset_without_xarray_is_refused(result: ProbeResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(InputError, match="xarray"):
        result.to_xarray()


def test_a_notebook_shows_the_table_and_the_notes_escaped(result: ProbeResult) -> None:
    html = result._repr_html_()
    assert "<table" in html
    assert "&lt;one&gt; class &amp; no more" in html


def test_save_and_load_keep_everything(result: ProbeResult, tmp_path: Path) -> None:
    path = tmp_path / "new" / "result.safetensors"
    result.save(path)
    loaded = load_result(path)
    assert list(loaded.values) == list(result.values)
    for name, tensor in result.values.items():
        assert loaded[name].dtype == tensor.dtype
        torch.testing.assert_close(loaded[name], tensor, rtol=0, atol=0, equal_nan=True)
    for name in ("probe", "axes", "coords", "layers", "metadata", "notes"):
        assert getattr(loaded, name) == getattr(result, name)


def test_views_can_be_saved(tmp_path: Path) -> None:
    both = torch.arange(6.0).reshape(2, 3)
    values = {"all": both, "turned": both.T, "again": both}
    axes = {"all": ("a", "b"), "turned": ("b", "a"), "again": ("a", "b")}
    ProbeResult("Demo", values, axes, {"a": ["0", "1"], "b": ["x", "y", "z"]}).save(tmp_path / "r")
    loaded = load_result(tmp_path / "r")
    assert all(torch.equal(loaded[name], value) for name, value in values.items())


def test_complex_values_are_not_saved(tmp_path: Path) -> None:
    found = ProbeResult("Demo", {"z": torch.tensor(1j)}, {"z": ()}, {})
    with pytest.raises(InputError, match=r"^'z' is torch.complex64, which files do not keep; give one of float64, "):
        found.save(tmp_path / "z.safetensors")
    assert not list(tmp_path.iterdir())


def test_files_that_are_no_result_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no file '.*none'; give the path of a safetensors file"):
        load_result(tmp_path / "none")
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1)}, tmp_path / "other")
    assert read_safetensors(tmp_path / "other")[1] == {}
    with pytest.raises(InputError, match=r"other' is not a probe result; expected a file from ProbeResult.save"):
        load_result(tmp_path / "other")


# ---- the best heads ----


def of_heads(**extra: Any) -> ProbeResult:
    sites = ["blocks.0.attn.hook_pattern", "blocks.1.attn.hook_pattern"]
    values = {
        "ratio": torch.tensor([[1.0, 3.0, math.nan], [2.0, -1.0, 0.5]]),
        "by": torch.arange(12.0).reshape(2, 3, 2),
        "mean": torch.tensor([1.5, 0.5]),
    }
    axes: dict[str, tuple[str, ...]] = {"ratio": ("site", "head"), "by": ("site", "head", "bucket"), "mean": ("site",)}
    coords = {"site": sites, "head": ["0", "1", "2"], "bucket": ["same", "other"]}
    return ProbeResult("Demo", values, axes, coords, {sites[0]: 0, sites[1]: 1}, **extra)


def test_top_heads_are_the_best_with_nan_left_out() -> None:
    found = of_heads().top_heads("ratio", 3)
    assert found == [(0, 1, 3.0), (1, 0, 2.0), (0, 0, 1.0)]
    assert [head.name for head in found] == ["L0H1", "L1H0", "L0H0"]
    assert (found[0].layer, found[0].head, found[0].value) == (0, 1, 3.0)
    assert of_heads().top_heads("ratio", 1, smallest=True) == [(1, 1, -1.0)]
    assert len(of_heads().top_heads("ratio", 99)) == 5
    assert of_heads().top_heads("by", 1, bucket="same") == [(1, 2, 10.0)]


@pytest.mark.parametrize(
    ("measure", "at", "message"),
    [
        ("by", {}, "'by' leaves the axes (site, head, bucket); expected (site, head): fix the others, as in sel()"),
        (
            "ratio",
            {"head": "0"},
            "'ratio' leaves the axes (site); expected (site, head): do not fix site, layer or head",
        ),
        (
            "ratio",
            {"layer": 0},
            "'ratio' leaves the axes (head); expected (site, head): do not fix site, layer or head",
        ),
        ("mean", {}, "'mean' leaves the axes (site); expected (site, head): choose a measure of heads"),
        ("by", {"bucket": "none"}, "no bucket 'none' in 'by' (it has same, other)"),
    ],
)
def test_top_heads_needs_heads_and_nothing_else(measure: str, at: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        of_heads().top_heads(measure, **at)
    with pytest.raises(KeyError, match="no measure 'none'"):
        of_heads().top_heads("none")


# ---- tables ----


def test_frames_of_any_results_have_the_same_columns_and_types(result: ProbeResult) -> None:
    steps = ProbeResult(
        "Norms", {"norm": torch.rand(2, 1)}, {"norm": ("step", "weight")}, {"step": ["0", "5"], "weight": ["W"]}
    )
    alone = ProbeResult("Accuracy", {"accuracy": torch.tensor(0.5)}, {"accuracy": ()}, {})
    frames = [each.to_dataframe() for each in (result, of_heads(), steps, alone)]
    assert len({tuple(frame.dtypes.items()) for frame in frames}) == 1
    assert frames[2].step.tolist() == [0, 5]
    assert frames[2].coords.tolist() == ["weight=W"] * 2
    assert frames[1][frames[1].measure == "by"].coords.unique().tolist() == ["bucket=same", "bucket=other"]
    assert frames[3].value.tolist() == [0.5]


def test_a_site_without_a_layer_is_refused() -> None:
    with pytest.raises(InputError, match=re.escape("site 'a' has no layer (layers has none)")):
        ProbeResult("Demo", {"ari": torch.zeros(1)}, {"ari": ("site",)}, {"site": ["a"]})


def test_a_long_table_after_the_first_is_only_named() -> None:
    """Such as the accuracy of every shuffle."""
    result = ProbeResult(
        "Demo",
        {"mean": torch.tensor([0.5]), "draws": torch.arange(25.0)[None], "few": torch.arange(24.0)[None]},
        {"mean": ("label",), "draws": ("label", "shuffle"), "few": ("label", "fold")},
        {"label": ["a"], "shuffle": [str(i) for i in range(25)], "fold": [str(i) for i in range(24)]},
    )
    for shown in (str(result), result._repr_html_()):
        assert "draws: 25 rows by label, shuffle; to_dataframe() has them" in shown
        assert "more rows" not in shown
    assert sum(" a " in line for line in str(result).splitlines()) == 1 + 24


def test_a_notebook_shows_a_row_a_place_and_a_column_a_measure() -> None:
    n = 30
    result = ProbeResult(
        "Demo",
        {"a": torch.arange(n), "b": torch.arange(n) / 3, "none": torch.zeros(0), "one": torch.tensor(0.25)},
        {"a": ("step",), "b": ("step",), "none": ("head",), "one": ()},
        {"step": [str(i) for i in range(n)], "head": []},
        metadata={"n": 7, "versions": {}, "kind": "<b>"},
    )
    html = result._repr_html_()
    assert html.count("<table") == 1
    assert html.count("<tr") == 1 + 24
    assert "and 6 more rows: to_dataframe() has them all" in html
    assert "n = 7, kind = &lt;b&gt;" in html
    assert "one 0.25" in html
    assert "0.3333" in html


# ---- what people read and type ----


def test_print_shows_the_numbers() -> None:
    result = ProbeResult(
        "Demo",
        {"ari": torch.tensor([0.25, math.nan]), "n": torch.tensor(7)},
        {"ari": ("site",), "n": ()},
        {"site": ["hook_embed", "blocks.0.hook_resid_post"]},
        {"hook_embed": 0, "blocks.0.hook_resid_post": 1},
        {"examples": "12-" + "0" * 16, "model": "a1b2c3d4" + "f" * 56, "padding": 0.1234567},
        ["'ari' is NaN: one class"],
    )
    assert str(result).splitlines() == [
        "Demo examples = 12, model = a1b2c3d4, padding = 0.1235",
        " layer                     site  ari",
        "     0               hook_embed 0.25",
        "     1 blocks.0.hook_resid_post  NaN",
        "n 7",
        "Note: 'ari' is NaN: one class",
    ]
    assert repr(result) == "ProbeResult(Demo: ari, n by 2 site; print() shows them)"
    assert "f" * 56 not in result._repr_html_()


def test_measures_are_found_counted_and_completed(result: ProbeResult) -> None:
    assert list(result) == ["ari", "n", "label"]
    assert "ari" in result
    assert "no such" not in result
    assert result._ipython_key_completions_() == ["ari", "n", "label"]


def test_a_layer_by_its_number(result: ProbeResult) -> None:
    assert result.sel("ari", layer=1, label="task") == 0.3
    assert result.sel("ari", layer=0).tolist() == [0.1, 0.2]
    assert of_heads().sel("ratio", layer=0, head=1) == 3.0


def test_a_layer_of_no_site_or_several_is_told(result: ProbeResult) -> None:
    with pytest.raises(InputError, match=re.escape("no layer 7 in 'ari' (it has 0, 1)")):
        result.sel("ari", layer=7)
    with pytest.raises(InputError, match=re.escape("layer 1 and site 'hook_embed' are both given; give one of them")):
        result.sel("ari", layer=1, site="hook_embed")
    two = replace(result, layers=dict.fromkeys(result.layers, 1))
    words = "layer 1 of 'ari' is 'hook_embed', 'blocks.0.hook_z'; give site= instead"
    with pytest.raises(InputError, match=re.escape(words)):
        two.sel("ari", layer=1)
    with pytest.raises(InputError, match=re.escape("no axis 'layer' in 'n' (it has none)")):
        result.sel("n", layer=1)


# ---- two results as one ----


def part(*layers: int, n: int = 10, value: float = 0.0, at: str = "", **settings: str) -> ProbeResult:
    sites = [f"blocks.{layer - 1}.hook_resid_post" for layer in layers]
    return ProbeResult(
        "Demo",
        {"ari": torch.tensor([[layer + value] for layer in layers]), "n": torch.tensor([n])},
        {"ari": ("site", "label"), "n": ("label",)},
        {"site": sites, "label": ["task"]},
        dict(zip(sites, layers, strict=True)),
        {"parameters": {"at": at, "seed": "0", **settings}, "d": dict.fromkeys(sites, 8), "versions": {"torch": "2"}},
        [f"note of {layers}"],
    )


def test_layers_measured_apart_merge_to_what_was_measured_together() -> None:
    first, second = part(1, 3, at="residual([1, 3])"), part(2, at="residual([2])")
    for whole in (first.merge(second), second.merge(first)):
        assert whole["ari"].tolist() == [[1.0], [2.0], [3.0]]
        assert whole["n"].tolist() == [10]
        assert [whole.layers[site] for site in whole.coords["site"]] == [1, 2, 3]
        assert set(whole.metadata["d"]) == set(whole.coords["site"])
        assert sorted(whole.notes) == ["note of (1, 3)", "note of (2,)"]
    assert first.merge(second).metadata["parameters"]["at"] == "residual([1, 3]) and residual([2])"


def test_labels_measured_apart_merge_in_the_order_given() -> None:
    first = part(1, 2)
    second = replace(part(1, 2, value=5.0, n=4), coords={**first.coords, "label": ["output"]})
    assert first.merge(second)["ari"].tolist() == [[1.0, 6.0], [2.0, 7.0]]
    assert first.merge(second)["n"].tolist() == [10, 4]
    assert second.merge(first).coords["label"] == ["output", "task"]


def test_what_does_not_merge_says_why() -> None:
    states = "merge the probes' states instead (save_state in each job, then load_state, merge and compute)"
    one = part(1)
    accuracy = ProbeResult("Accuracy", {"accuracy": torch.tensor(0.5)}, {"accuracy": ()}, {})
    labelled = replace(part(2), coords={**part(2).coords, "label": ["output"]})
    cases = [
        (accuracy, "cannot merge results of Demo and Accuracy; put them side by side with pandas.concat("),
        (part(1, value=1.0), f"that measured the same things (site, label); if they saw different examples, {states}"),
        (part(2, 1), "along site: both have 'blocks.0.hook_resid_post'; give results of different sites, or, if they"),
        (
            part(2, n=11),
            "along site: 'n' has one value for all of it, which differs; measure both parts in one run, or, if they",
        ),
        (part(2, seed="1"), "with different settings (seed = 0 and 1); measure both with the same"),
        (labelled, "results that differ along site and label; they may differ along one axis only"),
        (
            replace(part(2), axes={"ari": ("label", "site"), "n": ("label",)}, values={**part(2).values}),
            "of different measures",
        ),
        (replace(part(2), metadata={**part(2).metadata, "d": 5}), "whose 'd' differs"),
    ]
    for other, message in cases:
        with pytest.raises(InputError) as error:
            one.merge(other)
        assert str(error.value).startswith("cannot merge ")
        assert message in str(error.value)


def test_p_values_corrected_over_heads_do_not_merge() -> None:
    def of_layer(layer: int) -> ProbeResult:
        site = f"blocks.{layer}.attn.hook_pattern"
        p = {"p_holm": torch.tensor([0.02])}
        return ProbeResult("Demo", p, {"p_holm": ("site",)}, {"site": [site]}, {site: layer}, part(1).metadata)

    with pytest.raises(InputError, match="since p_holm is corrected over all heads of one"):
        of_layer(0).merge(of_layer(1))


def test_layers_of_unknown_examples_merge_with_a_note() -> None:
    known = replace(part(2), metadata={**part(2).metadata, "examples": "10-abc"})
    for one, other in ((part(1), known), (known, part(1))):
        assert one.merge(other).notes[-1] == "merged without knowing whether both measured the same examples"


def test_a_measure_with_the_name_of_an_axis_is_shown() -> None:
    coords = {"site": ["a", "b"]}
    layers = ProbeResult("Demo", {"layer": torch.tensor([3.0, 4.0])}, {"layer": ("site",)}, coords, {"a": 0, "b": 1})
    assert str(layers).splitlines()[1:] == [" layer site  layer", "     0    a      3", "     1    b      4"]


def test_other_versions_merge_with_a_note() -> None:
    other = part(2)
    found = part(1).merge(replace(other, metadata={**other.metadata, "versions": {"torch": "3"}}))
    assert found.notes[-1] == "merged from results of different versions: {'torch': '2'} and {'torch': '3'}"


def test_layers_kept_as_rows_and_as_moments_merge() -> None:
    """Which of them takes less memory depends on how many layers are measured together."""
    forms = {layer: replace(part(layer), metadata={**part(layer).metadata, "form": form})
             for layer, form in ((1, "rows"), (2, "moments"), (3, "rows"))}  # fmt: skip
    whole = forms[1].merge(forms[2]).merge(forms[3])
    assert whole["ari"].tolist() == [[1.0], [2.0], [3.0]]
    assert whole.metadata["form"] == "rows and moments"


def test_layers_measured_in_other_batches_merge(model: Any) -> None:
    rows = [{"input_ids": [1] * n} for n in (2, 3, 4, 2, 3, 4)]
    lower = run(model, rows, NDims(residual(0)), tokens_per_batch=4)
    upper = run(model, rows, NDims(residual(1)), tokens_per_batch=24)
    assert lower.metadata["padding"] != upper.metadata["padding"]
    merged = lower.merge(upper)
    assert merged.coords["site"] == ["hook_embed", "blocks.0.hook_resid_post"]
    assert merged.metadata["padding"] == lower.metadata["padding"]


def test_parts_of_other_examples_or_another_model_are_refused(tiny_model: Any) -> None:
    model, other = tiny_model(), tiny_model(seed=1)
    tokens = torch.arange(24).reshape(6, 4) % 5
    batch, others = (Batch(t, labels={"task": torch.arange(6) % 2}) for t in (tokens, tokens.flip(0)))

    def at(layer: int, on: Batch, measured: Any = model) -> ProbeResult:
        probe = TaskClusterARI(at=residual([layer]), readout=last_token(), n_init=1, n_permutations=5)
        return run(measured, on, probe)

    lower, upper = at(0, batch), at(1, Batch.concat(list(batch.split(2))))
    assert lower.merge(upper).coords["site"] == [*lower.coords["site"], *upper.coords["site"]]
    assert lower.merge(upper).metadata["examples"] == lower.metadata["examples"]
    with pytest.raises(InputError, match="TaskClusterARI results of different examples; merge the probes'"):
        lower.merge(at(1, others))
    with pytest.raises(InputError, match="cannot merge TaskClusterARI results of different models; compare them side"):
        lower.merge(at(1, batch, other))


def test_steps_come_in_order_and_a_site_has_one_layer() -> None:
    def step(name: str) -> ProbeResult:
        return ProbeResult("Norms", {"norm": torch.tensor([float(name)])}, {"norm": ("step",)}, {"step": [name]})

    assert step("100").merge(step("0")).merge(step("20"))["norm"].tolist() == [0, 20, 100]
    wrong = part(2)
    wrong = replace(wrong, layers={**wrong.layers, "blocks.0.hook_resid_post": 5})
    with pytest.raises(InputError, match=re.escape("have 'blocks.0.hook_resid_post' at different layers; use")):
        part(1).merge(wrong)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({}, "'result'"),
        ({"result": "{}"}, "'probe'"),
        ({"result": "{"}, "Expecting property name"),
        ({"result": "[" * 100_000}, "maximum recursion depth"),
    ],
)
def test_a_damaged_header_is_told(tmp_path: Path, header: dict[str, str], why: str) -> None:
    write_safetensors(tmp_path / "r", {"x": torch.zeros(1)}, {"format": "mechclust-result-3", **header})
    with pytest.raises(InputError, match=f"r' is a damaged probe result \\({why}.*\\); measure it again"):
        load_result(tmp_path / "r")


def test_axes_must_be_known() -> None:
    with pytest.raises(InputError, match=re.escape("'a' has the axis 'layer', but coords has site; give names along")):
        ProbeResult("Demo", {"a": torch.zeros(1)}, {"a": ("layer",)}, {"site": []})
    with pytest.raises(InputError, match=re.escape("values has a and axes nothing; expected the axes of each measure")):
        ProbeResult("Demo", {"a": torch.zeros(1)}, {}, {})


def test_infinity_is_not_nan() -> None:
    nan, infinite = (
        replace(part(k), values={**part(k).values, "n": torch.tensor([x])}) for k, x in ((1, math.nan), (2, math.inf))
    )
    with pytest.raises(InputError, match="'n' has one value for all of it, which differs"):
        nan.merge(infinite)
    assert nan.merge(replace(infinite, values={**infinite.values, "n": torch.tensor([math.nan])}))["n"].isnan().all()


@pytest.mark.parametrize(
    ("value", "axes", "coords", "message"),
    [
        ([0.5], ("site",), {}, "'v' is a list; expected a tensor"),
        (torch.zeros(1, 2), ("site", "label"), {"label": [0, 1]}, r"coords\['label'\] has 0; expected texts: give str"),
        (torch.zeros(1, 2), ("site", "head"), {"head": ["H0", "H1"]}, r"coords\['head'\] has 'H0'; expected numbers"),
        (torch.zeros(1, 1), ("site", "site"), {}, "'v' has the axis 'site' twice; call one of them other_site"),
    ],
)
def test_values_and_names_that_no_table_could_show_are_refused(
    value: Any, axes: tuple[str, ...], coords: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        ProbeResult("P", {"v": value}, {"v": axes}, {"site": ["hook_embed"], **coords}, {"hook_embed": 0})


def test_notes_are_several_texts() -> None:
    with pytest.raises(InputError, match="notes is the text 'seen'"):
        replace(part(1), notes="seen")


def test_values_of_weights_and_in_half_precision_are_drawn_and_tabled() -> None:
    pytest.importorskip("xarray")
    weights = torch.tensor([0.5], requires_grad=True)
    values = {"w": weights, "half": weights.detach().bfloat16()}
    result = ProbeResult("P", values, dict.fromkeys(values, ("site",)), {"site": ["hook_embed"]}, {"hook_embed": 0})
    assert result.plot("w").lines[0].get_ydata().tolist() == [0.5]
    assert float(result.to_xarray()["w"][0]) == float(result.to_xarray()["half"][0]) == 0.5
