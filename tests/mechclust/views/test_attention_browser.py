"""The attention view in a real browser, offline, from a file."""

import os

import pytest
import torch

from mechclust.models.build import build_model
from mechclust.models.config import ModelConfig
from mechclust.views.attention import attention_view, attention_view_from_patterns

pytestmark = pytest.mark.browser

HOSTILE = "</script><img src=x onerror=window.__pwned=1>"
STR_TOKENS = ["The", " cat", "\n", HOSTILE, " ", "naïve", "&lt;", "{{x}}"]


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_saved_page(open_page, drawn, tmp_path, attention):
    config = ModelConfig(d_vocab=8, n_ctx=8, n_layers=2, d_model=16, n_heads=2, init_std=0.8, attention=attention)
    view = attention_view(build_model(config), torch.arange(8), str_tokens=STR_TOKENS)
    view.save(tmp_path / "view.html", title="<b>Heads</b> & tokens")
    page = open_page(tmp_path / "view.html")

    assert page.locator("h1").inner_text() == "<b>Heads</b> & tokens"
    boxes = [canvas.bounding_box() for canvas in page.locator("canvas").all()]
    assert len(boxes) == 5  # four small, one large
    assert all(box["width"] > 20 and box["height"] > 20 for box in boxes)
    assert page.locator("h4").all_inner_texts() == ["L1H0", "L1H1", "L2H0", "L2H1"]
    assert all(head.is_visible() for head in page.locator("h4").all())

    assert page.evaluate("window.__pwned") is None
    assert page.locator("img").count() == 0
    painted = set(page.evaluate("window.painted"))
    labels = ["The", "·cat", "\\n", HOSTILE.replace(" ", "·"), "·", "naïve", "&lt;", "{{x}}"]
    assert {f"{label} ({i})" for i, label in enumerate(labels)} <= painted

    page.locator("h4", has_text="L2H1").click()
    page.wait_for_selector("h3:has-text('L2H1 Zoomed')")
    page.wait_for_function(drawn)
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=f"{folder}/attention-{attention}.png", full_page=True)


def test_a_weight_can_be_read_and_stands_where_it_should(open_page, tmp_path):
    pattern = torch.zeros(1, 3, 3)
    pattern[0, :, 0] = 1  # every query attends to the first token ...
    pattern[0, 2, :2] = torch.tensor([0.25, 0.75])  # ... but the last, at the bottom
    attention_view_from_patterns(pattern, ["a", "b", "c"], ["head"], causal=True).save(tmp_path / "view.html")
    page = open_page(tmp_path / "view.html")
    box = page.locator("canvas").last.bounding_box()
    for step in range(2, 19):  # down a line left of the middle: the column of the second token, whatever the margins
        page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * step / 20)
        page.wait_for_timeout(30)
    painted = page.evaluate("window.painted")
    assert "Val: 0.75" in painted
    assert painted[painted.index("Val: 0.75") - 3 : painted.index("Val: 0.75")] == ["(2, 1)", "Src: b", "Dest: c "]
    assert "N/A" in painted  # (0, 1) is above the diagonal


def test_fragments_share_the_javascript_and_swallow_nothing(open_page, tmp_path):
    view = attention_view_from_patterns(torch.eye(2)[None], ["a", "b"], ["L1H0"], causal=True)
    body = view.fragment(include_js=False) + "<p id=between>between</p>" + view.fragment() + "<p id=after>after</p>"
    (tmp_path / "report.html").write_text(f"<!doctype html><meta charset=utf-8><body>{body}</body>", encoding="utf-8")
    page = open_page(tmp_path / "report.html")
    page.wait_for_function("document.querySelectorAll('canvas').length === 4")
    for place in ("between", "after"):
        assert page.locator(f"#{place}").is_visible()
        assert page.evaluate(f"document.getElementById('{place}').parentElement.tagName") == "BODY"
