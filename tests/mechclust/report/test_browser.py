"""A run's report in a real browser, offline, from a file."""

import pytest
import torch

from mechclust.attention import attention_view_from_patterns
from mechclust.report.analysis import Analysis
from mechclust.report.page import render_report

pytestmark = pytest.mark.browser

HOSTILE = "</script><img src=x onerror=window.__pwned=1>"


def test_smoke_run(open_page, smoke_run):
    _, out = smoke_run
    page = open_page(out / "report.html")  # waits until the attention view is drawn; fails on any error or request
    assert page.locator("tbody tr").count() == 10
    assert page.locator(".verdict").first.inner_text() == "not tested at this size"
    figures = page.locator("figure img").all()
    assert len(figures) == 4
    assert all(figure.evaluate("image => image.complete && image.naturalWidth > 300") for figure in figures)
    page.locator("summary").click()
    assert '"n_tasks"' in page.locator("pre").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_hostile_tokens_are_inert(open_page, tmp_path):
    view = attention_view_from_patterns(torch.ones(1, 8, 8) / 8, [*"abcdefg", HOSTILE], ["L1H0"], causal=False)
    page_text = render_report(
        title=HOSTILE,
        source=HOSTILE,
        analysis=Analysis(claims=[], views={HOSTILE: view.fragment()}, notes=[HOSTILE]),
        facts={"date": HOSTILE},
        config={"name": HOSTILE},
    )
    (tmp_path / "report.html").write_text(page_text, encoding="utf-8")
    page = open_page(tmp_path / "report.html")
    assert page.locator("h1").inner_text() == HOSTILE
    assert page.locator("img").count() == 0
    assert page.evaluate("window.__pwned") is None
