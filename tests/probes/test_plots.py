"""Figures of results: what is drawn where, read back from matplotlib's own objects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import pyplot
from matplotlib.collections import PolyCollection

from probes import CKA, ProbeResult, TaskClusterARI, last_token, run
from tasks import Batch, InputError

STREAM = ["hook_embed", "blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]
LAYERS = {name: layer for layer, name in enumerate(STREAM)}
PATTERNS = [f"blocks.{i}.attn.hook_pattern" for i in range(2)]


@pytest.fixture(autouse=True)
def _nothing_on_a_screen() -> Iterator[None]:
    with matplotlib.rc_context({"backend": "agg"}):
        yield
    pyplot.close("all")


def curves(**more: torch.Tensor) -> ProbeResult:
    values = {
        "ari": torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]),
        "ami": torch.zeros(3, 2),
        "null_low": torch.full((3, 2), -0.1),
        "null_high": torch.tensor([[0.1, 0.2]]).expand(3, 2),
        **more,
    }
    axes = dict.fromkeys(values, ("site", "label"))
    return ProbeResult("Demo", values, axes, {"site": STREAM, "label": ["task", "$x"]}, LAYERS)


def bands(axes: Any) -> list[PolyCollection]:
    return [found for found in axes.collections if isinstance(found, PolyCollection)]


def extent(band: PolyCollection) -> list[float]:
    heights = band.get_paths()[0].vertices[:, 1]
    return [round(float(heights.min()), 6), round(float(heights.max()), 6)]


def test_a_curve_for_each_label_in_its_chance_band() -> None:
    axes = curves().plot()
    assert [line.get_ydata().tolist() for line in axes.lines] == [
        pytest.approx([0.1, 0.3, 0.5]),
        pytest.approx([0.2, 0.4, 0.6]),
    ]
    assert axes.lines[0].get_xdata().tolist() == [0, 1, 2]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["task", "$x"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("layer", "ari")
    assert [band.get_hatch() for band in bands(axes)] == ["////"] * 2
    assert [extent(band) for band in bands(axes)] == [[-0.1, 0.1], [-0.1, 0.2]]
    axes.figure.canvas.draw()  # "$x" is no formula


def test_the_band_is_that_of_the_first_measure_only() -> None:
    assert not bands(curves().plot("ami"))


def test_intervals_are_drawn_without_hatches() -> None:
    ends = {"ari_low": torch.zeros(3, 2), "ari_high": torch.ones(3, 2)}
    found = bands(curves(**ends).plot(label="task"))
    assert [(band.get_hatch(), extent(band)) for band in found] == [(None, [0, 1]), ("////", [-0.1, 0.1])]


def test_it_draws_where_it_is_told() -> None:
    _, mine = pyplot.subplots()
    before = len(pyplot.get_fignums())
    assert curves().plot("ari", ax=mine, label="task") is mine
    assert len(pyplot.get_fignums()) == before
    assert mine.get_title() == "task"
    assert len(mine.lines) == 1


def test_hook_points_of_another_kind_are_curves_of_their_own() -> None:
    sites = ["tuned/hook_embed", "tuned/blocks.0.hook_resid_post", "base/hook_embed", "tuned/blocks.0.hook_mlp_out"]
    layers = dict(zip(sites, [0, 1, 0, 0], strict=True))
    result = ProbeResult("Demo", {"x": torch.arange(4.0)}, {"x": ("site",)}, {"site": sites}, layers)
    axes = result.plot()
    drawn = {line.get_label(): (line.get_xdata().tolist(), line.get_ydata().tolist()) for line in axes.lines}
    assert drawn == {"tuned": ([0, 1], [0, 1]), "base": ([0], [2]), "tuned, hook_mlp_out": ([0], [3])}
    of_one = [site.removeprefix("tuned/") for site in sites if site.startswith("tuned/")]
    result = ProbeResult("Demo", {"x": torch.arange(3.0)}, {"x": ("site",)}, {"site": of_one}, dict.fromkeys(of_one, 0))
    assert {line.get_label() for line in result.plot().lines} == {"residual stream", "hook_mlp_out"}


def heads() -> ProbeResult:
    values = {
        "sum": torch.arange(12.0).reshape(2, 3, 2),
        "ratio": torch.tensor([[1.0, 3.0, torch.nan], [2.0, 1.0, 0.5]]),
        "ratio_null_low": torch.full((2, 3), 0.8),
        "ratio_null_high": torch.full((2, 3), 1.2),
    }
    axes: dict[str, tuple[str, ...]] = dict.fromkeys(values, ("site", "head"))
    coords = {"site": PATTERNS, "head": ["0", "1", "2"], "bucket": ["same", "other"]}
    return ProbeResult(
        "Demo", values, {**axes, "sum": ("site", "head", "bucket")}, coords, dict(zip(PATTERNS, [0, 1], strict=True))
    )


def test_blocks_of_a_model_of_ones_own_make_a_curve() -> None:
    sites = ["encoder.0.out", "encoder.1.out", "blocks.1.experts.0.out", "blocks.1.experts.1.out"]
    layers = dict(zip(sites, [0, 1, 1, 1], strict=True))
    result = ProbeResult("Demo", {"x": torch.arange(4.0)}, {"x": ("site",)}, {"site": sites}, layers)
    drawn = {line.get_label(): line.get_xdata().tolist() for line in result.plot().lines}
    assert drawn == {"encoder.out": [0, 1], "experts.0.out": [1], "experts.1.out": [1]}


def test_a_map_of_heads_with_a_dot_where_the_value_is_chance() -> None:
    axes = heads().plot()
    (image,) = axes.images
    np.testing.assert_array_equal(image.get_array().filled(np.nan), heads()["ratio"])
    assert [text.get_text() for text in axes.get_yticklabels()] == [f"{i}  {name}" for i, name in enumerate(PATTERNS)]
    (dots,) = axes.lines
    assert list(zip(dots.get_xdata(), dots.get_ydata(), strict=True)) == [(0, 0), (1, 1)]  # head, block


@pytest.mark.parametrize(("axes", "shape"), [(("site",), (2,)), ((), ())], ids=["by layer", "for all heads"])
def test_a_chance_band_that_heads_share_has_dots_too(axes: tuple[str, ...], shape: tuple[int, ...]) -> None:
    ends = {"ratio_null_low": torch.full(shape, 0.8), "ratio_null_high": torch.full(shape, 1.2)}
    of_ends = dict.fromkeys(ends, axes)
    shared = replace(heads(), values={**heads().values, **ends}, axes={**heads().axes, **of_ends})
    (dots,) = shared.plot().lines
    assert list(zip(dots.get_xdata(), dots.get_ydata(), strict=True)) == [(0, 0), (1, 1)]


def test_further_axes_are_panels_on_one_scale() -> None:
    panels = heads().plot("sum")
    assert [panel.get_title() for panel in panels] == ["same", "other"]
    assert {panel.images[0].get_clim() for panel in panels} == {(0.0, 11.0)}
    assert heads().plot("sum", bucket="same").get_title() == "same"
    for place, panel in enumerate([*panels, heads().plot("sum", bucket="other")]):
        np.testing.assert_array_equal(panel.images[0].get_array(), heads()["sum"][..., min(place, 1)])


def test_a_map_without_any_number_is_drawn_empty() -> None:
    values = {"ratio": torch.full((2, 3), torch.nan)}
    coords = {"site": PATTERNS, "head": ["0", "1", "2"]}
    nothing = ProbeResult("Demo", values, {"ratio": ("site", "head")}, coords, dict(zip(PATTERNS, [0, 1], strict=True)))
    (image,) = nothing.plot().images
    assert image.get_clim() == (0.0, 1.0)
    assert bool(image.get_array().mask.all())


def test_a_matrix_of_sites() -> None:
    values = torch.arange(6.0).reshape(3, 2, 1)
    coords = {"site": STREAM, "other_site": STREAM[:2], "label": ["(all)"]}
    result = ProbeResult("CKA", {"cka": values}, {"cka": ("site", "other_site", "label")}, coords, LAYERS)
    axes = result.plot()
    np.testing.assert_array_equal(axes.images[0].get_array(), values[..., 0])
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0", "1"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["0", "1", "2"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("layer (other_site)", "layer (site)")


def test_steps() -> None:
    result = ProbeResult("N", {"norm": torch.tensor([3.0, 2.0])}, {"norm": ("step",)}, {"step": ["100", "0"]})
    assert result.plot().lines[0].get_xdata().tolist() == [0, 100]
    assert result.plot().lines[0].get_ydata().tolist() == [2, 3]


@pytest.mark.parametrize(
    ("result", "arguments", "message"),
    [
        (
            ProbeResult("A", {"x": torch.tensor(1.0)}, {"x": ()}, {}),
            {},
            "this A result has nothing by site, layer or step to draw (it has x); get the numbers from to_dataframe()",
        ),
        (
            ProbeResult("A", {"x": torch.zeros(2)}, {"x": ("head",)}, {"head": ["0", "1"]}),
            {"measure": "x"},
            "'x' has the axes (head) and cannot be drawn; expected one by site, layer or step: choose another measure",
        ),
        (curves(), {"measure": "ari", "label": "skill"}, "no label 'skill' in 'ari' (it has task, $x)"),
        (curves(), {"label": "skill"}, "no label 'skill' in 'ari' (it has task, $x)"),
        (heads(), {"measure": "sum", "ax": object()}, "makes 2 panels, but ax is one; leave ax out, or fix the axis"),
        (
            ProbeResult(
                "A", {"x": torch.zeros(1, 40)}, {"x": ("site", "i")}, {"site": ["a"], "i": list("ab" * 20)}, {"a": 0}
            ),
            {"measure": "x"},
            "'x' by i makes 40 curves; expected at most 24: fix the axis, as in sel(), such as i='a'",
        ),
    ],
)
def test_what_cannot_be_drawn_says_why(result: ProbeResult, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        result.plot(**arguments)


def test_results_of_probes(tiny_model: Any) -> None:
    tokens = torch.arange(60).reshape(12, 5) % 5
    batch = Batch(tokens, labels={"task": torch.arange(12) % 3})
    ari = run(tiny_model(), batch, TaskClusterARI(readout=last_token(), n_init=1, n_permutations=9))
    axes = ari.plot()
    assert axes.get_ylabel() == "ari"
    np.testing.assert_allclose(axes.lines[0].get_ydata(), ari.sel("ari", label="task"))
    assert len(bands(axes)) == 1
    cka = run(tiny_model(), batch, CKA(pairs="all"))
    np.testing.assert_allclose(cka.plot("cka").images[0].get_array(), cka["cka"][..., 0])


@pytest.mark.parametrize("layers", [[1], [0, 1, 2]])
def test_a_layer_without_neighbours_has_its_interval_and_chance(layers: list[int]) -> None:
    """A single layer, or one between layers of NaN."""
    alone = torch.tensor([[1.0 if layer == 1 else torch.nan] for layer in layers])
    ends = {"ari_low": 0.3, "ari_high": 0.5, "null_low": -0.1, "null_high": 0.1}
    values = {"ari": 0.4 * alone} | {name: end * alone for name, end in ends.items()}
    sites = [STREAM[layer] for layer in layers]
    axes_of = dict.fromkeys(values, ("site", "label"))
    result = ProbeResult("Demo", values, axes_of, {"site": sites, "label": ["task"]}, {s: LAYERS[s] for s in sites})
    axes = result.plot("ari")
    drawn = [band for band in bands(axes) if len(band.get_paths()) and np.ptp(band.get_paths()[0].vertices[:, 0])]
    assert [extent(band) for band in drawn] == [[0.3, 0.5], [-0.1, 0.1]]
    axes.get_figure().canvas.draw()
    low, high = axes.get_xlim()
    ticks = [tick.get_text() for tick in axes.get_xticklabels() if low <= tick.get_position()[0] <= high]
    assert ticks == ["1"]
