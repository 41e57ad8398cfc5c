"""The sandbox page in a real browser, offline, from a file."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest

from mechclust.sandbox import Curves, sandbox_page
from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
from mechclust.studies.clustering_heads.sandbox import sandbox_run
from mechclust.training import Member, TrainConfig, train_ensemble
from tasks import SparseModularAddition

pytestmark = pytest.mark.browser

HOSTILE = "</script><img src=x onerror=window.__pwned=1><b>x</b>"
SHOWN_SEQUENCES = ("xi", "class_map", "xi_normalized", "mlp_out", "output", "level_lines", "simplex")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    task = SparseModularAddition(n_train=64, n_test=96)
    settings = TrainConfig(steps=60, batch_size=32, lr=0.05, schedule="constant", optimizer="adam", clip=None)
    members = [Member(PoolingTransformerConfig(seed=3), task)]
    snapshots = train_ensemble(members, settings, tmp_path_factory.mktemp("run"), backend="loop")
    falling = np.geomspace(0.7, 1e-4, 31)
    curves = Curves(
        epochs=range(31),
        panels={
            "loss": {"train": falling, "test": falling * 1.1},
            "accuracy": {"train": 1 - falling, "test": 1 - falling},
            "gradient_norms": {"embeddings": falling, "attention": falling, HOSTILE: falling},
            "within_ratio": {"within / total": falling},
        },
        spikes=[(12, HOSTILE)],
    )
    return sandbox_run(snapshots, 0, max_frames=24, curves=curves, title=HOSTILE)


@pytest.fixture(scope="module")
def sandbox_file(run, tmp_path_factory):
    return sandbox_page(run, tmp_path_factory.mktemp("page") / "sandbox.html")


@pytest.fixture
def page(at_start):
    return at_start


def label(page):
    return page.locator("#epoch").inner_text()


def cursor(page, panel="loss"):
    return page.locator(f"#panel-{panel} .veil").get_attribute("style")


def spots(page, panel="xi"):
    """Where the points of a panel stand, ``[point 2]`` in its pixels: as drawn, not as the script believes."""
    script = """name => {
      const panel = sandbox.panels.find(p => p.spec.name === name);
      const trace = panel.plot.querySelectorAll(".scatterlayer > .trace")[panel.moving.main];
      const places = [...trace.querySelectorAll("path.point")].map(p => p.getAttribute("transform"));
      return places.map(place => place.match(/-?[\\d.]+/g).map(Number));
    }"""
    return np.array(page.evaluate(script, panel))


def centre(locator):
    box = locator.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def ring(page, panel):
    return page.locator(f"#panel-{panel} .scatterlayer > .trace").last.locator("path.point").first


def test_the_keyboard_moves_everything(page, run):
    assert label(page) == "epoch 0 of 30 · 24 of 31 epochs kept"
    before = label(page), cursor(page), spots(page).tolist(), spots(page, "sums").tolist()
    picture = "document.querySelector('#panel-class_map canvas').toDataURL()"
    before_map = page.evaluate(picture)
    page.keyboard.press("ArrowRight")
    after = label(page), cursor(page), spots(page).tolist(), spots(page, "sums").tolist()
    assert all(a != b for a, b in zip(before, after, strict=True))
    assert page.evaluate(picture) != before_map
    assert after[0].startswith(f"epoch {run.epochs[1]} of 30")
    assert page.locator("#slider").input_value() == "1"

    for key, frame in (("Shift+ArrowRight", 11), ("ArrowLeft", 10), ("End", 23), ("ArrowRight", 23), ("Home", 0)):
        page.keyboard.press(key)
        assert label(page).startswith(f"epoch {run.epochs[frame]} of"), key
    assert (label(page), cursor(page)) == before[:2]
    page.locator("#slider").focus()  # the browser's own arrows and ours are not added up
    page.keyboard.press("ArrowRight")
    assert page.locator("#slider").input_value() == "1"


def test_points_stand_where_plotly_would_draw_them(page, run):
    page.keyboard.press("Shift+ArrowRight")
    for name in ("sums", "xi", "output", "receptors", "position_embeddings"):
        moved = spots(page, name)
        values = run.values[name][10]
        page.evaluate(
            """([name, x, y]) => { const panel = sandbox.panels.find(p => p.spec.name === name);
              Plotly.restyle(panel.plot, { x: [x], y: [y] }, [panel.moving.main]); }""",
            [name, values[:, 0].tolist(), values[:, 1].tolist()],
        )
        np.testing.assert_allclose(moved, spots(page, name), atol=0.1)


def test_a_sequence_is_marked_in_every_panel(page):
    page.keyboard.press("End")
    points = page.locator("#panel-xi .scatterlayer > .trace").nth(1).locator("path.point")  # after the cloud
    page.mouse.move(*centre(points.nth(0)))
    tokens = page.locator("#readout .tokens")
    assert len(re.findall(r"\d", tokens.inner_text())) == 12
    assert tokens.locator("u").count() == 5  # the support
    assert re.search(r"answer [01]\s.*p\(0\) [\d.]+ p\(1\)", page.locator("#readout").inner_text(), re.DOTALL)
    chosen = page.evaluate("sandbox.state.pointed")
    assert chosen["of"] == "sequence"
    for panel in SHOWN_SEQUENCES:
        at = [float(x) for x in re.findall(r"-?[\d.]+", ring(page, panel).get_attribute("transform"))]
        np.testing.assert_allclose(at, spots(page, panel)[chosen["index"]], atol=0.1)
        if panel in ("xi", "simplex"):
            assert ring(page, panel).is_visible()
    assert page.locator("#panel-attention .shapelayer path").count() == 41  # a band a row, the support's end
    marked, picture = (page.locator(f"#panel-attention {what}").bounding_box() for what in (".mark", "canvas"))
    assert marked["y"] == pytest.approx(picture["y"] + chosen["index"] * picture["height"] / 40, abs=1)
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=f"{folder}/sandbox.png")

    page.mouse.down()
    page.mouse.up()
    page.mouse.move(5, 5)
    assert "held" in page.locator("#readout").inner_text()
    page.keyboard.press("ArrowLeft")  # what is held stays marked, at its new place
    at = [float(x) for x in re.findall(r"-?[\d.]+", ring(page, "output").get_attribute("transform"))]
    np.testing.assert_allclose(at, spots(page, "output")[chosen["index"]], atol=0.1)
    page.keyboard.press("Escape")
    assert "-9999" in ring(page, "output").get_attribute("transform")
    assert page.locator("#panel-attention .mark").is_hidden()


def test_attention_rows_tokens_and_neurons_are_linked(page):
    box = page.locator("#panel-attention canvas").bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + box["height"] * 10.5 / 40)
    assert page.evaluate("sandbox.state.pointed") == {"of": "sequence", "index": 10}
    page.mouse.move(*centre(page.locator("#panel-receptors path.point").nth(3)))
    neuron = page.evaluate("sandbox.state.pointed")
    assert neuron["of"] == "neuron"
    at = [float(x) for x in re.findall(r"-?[\d.]+", ring(page, "assemblers").get_attribute("transform"))]
    np.testing.assert_allclose(at, spots(page, "assemblers")[neuron["index"]], atol=0.1)
    assert "argues for answer" in page.locator("#readout").inner_text()
    page.mouse.move(*centre(page.locator("#panel-position_embeddings path.point").nth(2)))
    assert "position" in page.locator("#readout").inner_text()


def test_spikes_and_curves_lead_to_their_epoch(page):
    mark = page.locator("#marks button")
    assert mark.count() == 1
    assert HOSTILE in mark.get_attribute("title")
    mark.click()
    assert label(page).startswith("epoch 12 of 30")
    plot = page.locator("#panel-accuracy .plot").bounding_box()
    page.mouse.click(plot["x"] + plot["width"] - 11, plot["y"] + plot["height"] / 2)
    assert label(page).startswith("epoch 30 of 30")
    triangle = centre(page.locator("#panel-loss path.point").first)
    page.mouse.move(*triangle)
    assert page.locator("#readout").inner_text() == f"Loss spike at epoch 12: {HOSTILE}"
    page.mouse.click(*triangle)
    assert label(page).startswith("epoch 12 of 30")
    assert page.evaluate("window.__pwned") is None
    assert page.locator("img").count() == 0
    assert page.locator("h1").inner_text() == HOSTILE


def test_it_plays(page):
    page.select_option("#speed", "60")
    page.locator("h1").click()
    page.keyboard.press(" ")
    page.wait_for_function("() => sandbox.state.frame > 3")
    page.keyboard.press(" ")
    page.wait_for_function("() => !sandbox.state.playing")
    stopped = label(page)
    page.wait_for_timeout(150)
    assert label(page) == stopped
    page.locator("#play").click()
    page.wait_for_function("() => sandbox.state.frame === 23 && !sandbox.state.playing")  # stops at the end


def test_panels_can_be_hidden_and_enlarged_and_axes_follow(page):
    page.locator("#chooser summary").click()
    page.locator("#choices label", has_text="Receptors").locator("input").uncheck()
    assert page.locator("#panel-receptors").is_hidden()
    page.locator("h1").click()
    before = page.locator("#panel-xi").bounding_box()["width"], spots(page)
    page.locator("#panel-xi .grow").click()
    page.wait_for_function("() => sandbox.panels.find(p => p.spec.name === 'xi').width > 400")
    assert page.locator("#panel-xi").bounding_box()["width"] > 1.9 * before[0]
    assert np.ptp(spots(page), axis=0).max() > 1.4 * np.ptp(before[1], axis=0).max()
    page.locator("#panel-xi .grow").click()
    page.wait_for_function("() => sandbox.panels.find(p => p.spec.name === 'xi').width < 400")
    np.testing.assert_allclose(spots(page), before[1], atol=0.1)
    page.locator("#autoscale").check()
    assert np.abs(spots(page, "output") - spots(page, "output").mean(0)).max() > 5  # the first epoch fills its panel
    page.locator("#autoscale").uncheck()
    np.testing.assert_allclose(spots(page), before[1], atol=0.1)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
