"""The sandbox of a two-layer, 16-dimensional run in a real browser, offline, from a file."""

from __future__ import annotations

import os

import pytest
import torch

from mechclust import ModelConfig, TrainConfig, build_model, train
from mechclust.sandbox import Curves, SandboxRecorder, sandbox_page
from probes.engine.readout import token_at
from tasks import Batch, InstructionFollowing

pytestmark = pytest.mark.browser

HOSTILE = "</script><img src=x onerror=window.__pwned=1><b>x</b>"
FRAMES = 12


@pytest.fixture(scope="module")
def run():
    task = InstructionFollowing(n_tasks=3, n_symbols=8, n_eval=64)
    model = build_model(ModelConfig(d_vocab=task.d_vocab, n_ctx=task.n_ctx, n_layers=2, d_model=16, n_heads=4))
    batch = Batch.concat(list(task.batches("validation_subset")))
    reads = {"label": "task", "label_names": [HOSTILE, "b", "c"], "readout": token_at("input")}
    recorder = SandboxRecorder(batch, **reads, vocab=[HOSTILE, *task.vocab[1:]])
    settings = TrainConfig(steps=FRAMES - 1, batch_size=16, lr=0.01, checkpoint_every=1)
    losses = train(model, task, settings, callbacks=[recorder])
    curves = Curves(
        range(FRAMES),
        {"loss": {"train": [*losses.tolist(), losses[-1]]}},
        spikes=[(4, "one")],
        small_spikes=[(8, "low")],
    )
    return recorder.run(curves=curves, title=HOSTILE)


@pytest.fixture(scope="module")
def sandbox_file(run, tmp_path_factory):
    return sandbox_page(run, tmp_path_factory.mktemp("page") / "sandbox.html")


@pytest.fixture
def page(at_start):
    return at_start


PLAY = """() => new Promise(done => {
  const seen = [];
  sandbox.go(0);
  const next = () => {
    sandbox.go(sandbox.state.frame + 1);
    seen.push(sandbox.panels.find(p => p.spec.name === "residual_2").spots.map(String).join());
    if (seen.length < FRAMES - 1) requestAnimationFrame(next); else done(new Set(seen).size);
  };
  requestAnimationFrame(next);
})""".replace("FRAMES", str(FRAMES))


def test_every_frame_is_drawn_elsewhere(page):
    assert page.evaluate(PLAY) == FRAMES - 1


def test_what_is_drawn_is_what_was_recorded(page, run):
    page.keyboard.press("End")
    for name in ("residual_1", "output_L1H3", "token_embeddings"):
        spots = page.evaluate("name => sandbox.panels.find(p => p.spec.name === name).spots", name)
        drawn = page.evaluate(
            """name => { const panel = sandbox.panels.find(p => p.spec.name === name);
              return [...panel.plot.querySelectorAll(".scatterlayer > .trace")[panel.moving.main].querySelectorAll(
                "path.point")].map(p => p.getAttribute("transform").match(/-?[\\d.]+/g).map(Number)); }""",
            name,
        )
        axes = page.evaluate(
            """([name, points]) => { const { xaxis, yaxis } = sandbox.panels.find(p => p.spec.name === name).plot
              ._fullLayout; return points.map(([x, y]) => [xaxis.l2p(x), yaxis.l2p(y)]); }""",
            [name, run.values[name][-1].tolist()],
        )
        for found in (spots, drawn):
            torch.testing.assert_close(torch.tensor(found), torch.tensor(axes), atol=0.2, rtol=0)
    share = run.variance["residual_1"][-1]
    assert page.locator("#panel-residual_1 .key").inner_text() == f"{round(100 * share)}% var."


def test_labels_do_not_overlap(page):
    overlaps = """() => { let n = 0, shown = 0;
      for (const panel of document.querySelectorAll("section.plane")) {
        const boxes = [...panel.querySelectorAll(".label")].filter(l => l.style.visibility === "visible").map(l => l.getBoundingClientRect());
        shown += boxes.length;
        boxes.forEach((a, i) => boxes.slice(i + 1).forEach(b => { n += a.left < b.right - 0.5 && b.left < a.right - 0.5 && a.top < b.bottom - 0.5 && b.top < a.bottom - 0.5; }));
      }
      return [n, shown]; }"""  # noqa: E501
    for key in ("Home", "End"):
        page.keyboard.press(key)
        n, shown = page.evaluate(overlaps)
        assert n == 0
        assert shown > 10


def test_layers_and_heads_are_chosen_in_the_page(page):
    page.locator("#chooser summary").click()
    whole = page.locator("#choices label.group", has_text="All of block 0").locator("input")
    whole.uncheck()
    for name in ("attention_L0H0", "output_L0H3", "residual_1"):
        assert page.locator(f"#panel-{name}").is_hidden()
    assert page.locator("#panel-residual_2").is_visible()
    page.locator("#choices label", has_text="L0H3: output z").locator("input").check()
    assert page.locator("#panel-output_L0H3").is_visible()
    assert whole.is_checked()
    whole.uncheck()
    whole.check()
    assert page.locator("#panel-attention_L0H0").is_visible()
    page.keyboard.press("End")


def test_the_legend_and_small_spikes(page):
    legend = page.locator("#legend").inner_text()
    for text in ("b", "c", HOSTILE[:20], "loss spike", "rise of the loss below the floor of spikes"):
        assert text in legend
    assert page.locator("#marks button").count() == 1
    page.locator("#panel-loss").scroll_into_view_if_needed()
    page.mouse.move(*centre(page.locator("#panel-loss path.point").last))
    said = "Rise of the loss below the floor of spikes, not counted, at step 8: low"
    assert page.locator("#readout").inner_text() == said


def test_a_sequence_is_followed_through_layers(page, run):
    page.keyboard.press("End")
    page.locator("#panel-residual_2").scroll_into_view_if_needed()
    page.mouse.move(*centre(page.locator("#panel-residual_2 .scatterlayer > .trace").first.locator("path.point").first))
    chosen = page.evaluate("sandbox.state.pointed")
    assert chosen["of"] == "sequence"
    readout = page.locator("#readout").inner_text()
    assert "cluster" in readout
    assert f"answer {run.answers[run.sequences.answers[chosen['index']]]}" in readout
    for name in ("output_L0H0", "residual_1"):
        ring = page.locator(f"#panel-{name} .scatterlayer > .trace").last.locator("path.point").first
        assert "-9999" not in ring.get_attribute("transform")
    assert page.locator("#panel-attention_L1H2 .mark").is_visible()
    assert page.evaluate("window.__pwned") is None
    assert page.locator("img").count() == 0
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=f"{folder}/sandbox-layers.png")


def centre(locator):
    box = locator.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
