"""The built site in a browser, opened from its folder: search works, and notebooks show their outputs."""

import re
from pathlib import Path

import pytest

from tests.mechclust.browser import browser  # noqa: F401

SITE = Path(__file__).parents[2] / "build" / "site"
pytestmark = pytest.mark.browser


@pytest.fixture
def page(browser):  # noqa: F811
    if not (SITE / "index.html").exists():
        pytest.skip("no site in build/site; run: make docs")
    context = browser.new_context(offline=True, viewport={"width": 1300, "height": 900})
    page, trouble, asked = context.new_page(), [], []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    yield page
    context.close()
    assert trouble == []
    assert [url for url in asked if not re.match("file:|data:|about:|blob:", url)] == []


def test_search_works_from_a_folder(page):
    page.goto((SITE / "index.html").as_uri())
    page.locator("input[name=query]").first.click()
    page.locator("input[name=query]").first.press_sequentially("neighbour purity")
    page.wait_for_selector(".md-search-result__item a", state="attached")
    found = [a.get_attribute("href") or "" for a in page.locator(".md-search-result__item a").all()]
    assert any("probes/neighbour-purity.html" in link for link in found)


def test_a_notebook_shows_its_outputs(page):
    page.goto((SITE / "examples" / "quick_start.html").as_uri())
    page.wait_for_selector(".notebook-output canvas")
    assert page.locator(".notebook-output table").count() >= 1
    assert page.get_by_text("median rank of the answer").count() >= 1
