"""A run's report in a real browser, offline, from a file."""

import pytest
import torch
from matplotlib.figure import Figure

from mechclust.attention import attention_view_from_patterns
from mechclust.report.analysis import Analysis
from mechclust.report.page import render_report_page
from mechclust.report.panel import Panel

pytestmark = pytest.mark.browser

HOSTILE = "</script><img src=x onerror=window.__pwned=1>"


@pytest.mark.slow
def test_smoke_run(open_page, smoke_run):
    _, out = smoke_run
    page = open_page(out / "report.html", view=False)
    assert page.locator("tbody tr:not(.part)").count() == 6  # four are in findings.csv only
    assert page.locator(".verdict").first.text_content().startswith("– not tested: ")
    figures = page.locator("figure img").all()
    assert len(figures) == 4
    assert all(figure.evaluate("image => image.complete && image.naturalWidth > 300") for figure in figures)
    page.locator("summary", has_text="Configuration").click()
    assert '"n_tasks"' in page.locator("pre").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_high_first_figure_stays_legible(open_page, tmp_path):
    """Of 1,040 pixels, at least half, so that letters of 8 points have 7 pixels; its sides keep their ratio."""
    panels = [Panel("high", Figure(figsize=(16.5, 8)), "")]
    text = render_report_page(title="", source="", analysis=Analysis(panels=panels), facts={}, config={})
    (tmp_path / "report.html").write_text(text)
    page = open_page(tmp_path / "report.html", view=False)
    page.set_viewport_size({"width": 1400, "height": 900})
    box = page.locator("figure img").bounding_box()
    assert box["height"] > 520
    assert box["width"] / box["height"] == pytest.approx(16.5 / 8, rel=0.01)


def test_hostile_tokens_are_inert(open_page, tmp_path):
    view = attention_view_from_patterns(torch.ones(1, 8, 8) / 8, [*"abcdefg", HOSTILE], ["L0H0"], causal=False)
    page_text = render_report_page(
        title=HOSTILE,
        source=HOSTILE,
        analysis=Analysis(findings=[], views={HOSTILE: view.fragment()}, notes=[HOSTILE]),
        facts={"date": HOSTILE},
        config={"name": HOSTILE},
    )
    (tmp_path / "report.html").write_text(page_text, encoding="utf-8")
    page = open_page(tmp_path / "report.html")
    assert page.locator("h1").inner_text() == HOSTILE
    assert page.locator("img").count() == 0
    assert page.evaluate("window.__pwned") is None


INJECTED = f"<script>window.__pwned = 1</script><img src=x onerror='window.__pwned = 1'>{HOSTILE}"


def test_a_script_that_got_into_the_page_is_not_run(browser, tmp_path):
    """The second line of defence: as if somewhere a text were not escaped."""
    view = attention_view_from_patterns(torch.ones(1, 2, 2) / 2, ["a", "b"], ["L0H0"], causal=False)
    text = render_report_page(
        title="t", source="s", analysis=Analysis(views={"v": view.fragment()}), facts={}, config={}
    )
    (tmp_path / "report.html").write_text(text.replace("</main>", f"{INJECTED}</main>"), encoding="utf-8")
    context = browser.new_context(offline=True)
    page, refused = context.new_page(), []
    page.on("console", lambda message: refused.append(message.text) if message.type == "error" else None)
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_selector("canvas")  # the view's own scripts are
    assert page.evaluate("window.__pwned") is None
    assert len([text for text in refused if "Content Security Policy" in text]) >= 3
    assert page.evaluate("fetch('https://example.com').then(() => 'sent', () => 'refused')") == "refused"
    context.close()
