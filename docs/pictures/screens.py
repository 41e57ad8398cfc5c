"""Screenshots of the pages that the commands make, in a headless Chromium without a network."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image, ImageChops, ImageOps

from docs.pictures import runs
from docs.pictures.models import documents, folder, own, topical
from docs.pictures.registry import picture


def screen(page: Path, what: str, act: Callable[[Any], None] | None = None, *, width: int = 1000) -> Any:
    """What a browser shows of the element ``what``, after ``act`` has been done to the page."""
    from playwright.sync_api import sync_playwright

    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        shown = browser.new_context(offline=True, viewport={"width": width, "height": 900}).new_page()
        shown.goto(page.as_uri())
        shown.wait_for_selector(what)
        shown.wait_for_timeout(1500)  # the drawing, which follows the elements
        if act is not None:
            act(shown)
            shown.wait_for_timeout(800)
        taken = shown.locator(what).first.screenshot()
        browser.close()
    image = Image.open(io.BytesIO(taken)).convert("RGB")
    drawn = ImageChops.difference(image, Image.new("RGB", image.size, "white")).getbbox()
    return ImageOps.expand(image.crop(drawn), 12, "white")


@picture("view")
def attention() -> Any:
    from mechclust.attention import attention_view

    model, _, _ = own()
    path = folder() / "view.html"
    attention_view(model, "the opposite of hot is", layers=[0, 1]).save(path)
    return screen(path, "body", lambda page: page.locator("canvas").nth(6).click())


@picture("topics-view")
def topics() -> Any:
    from mechclust.attention import attention_view
    from probes import TopicAttention, run

    task, text = documents()
    untrained, model, _, _ = topical()
    tokens, labels = text[0].tokens[0, :24], text[0].labels["topic"][0, :24].tolist()
    heads = run(model, text[:50], TopicAttention(task.token_topics)).top_heads("ratio", k=1)
    print(f"attention within topics is {heads[0].value:.1f} times that between topics")
    path = folder() / "topics.html"
    view = attention_view(
        {"before": untrained, "after": model},
        tokens,
        heads=heads,
        str_tokens=task.to_str_tokens(tokens),
        labels=[f"topic {topic}" if topic >= 0 else None for topic in labels],
    )
    view.save(path)
    return screen(path, "body", lambda page: page.locator(".chip", has_text="t1.8").first.click())


@picture("clusters-map")
def prompt_map() -> Any:
    return screen(runs.clusters() / "report.html", ".mechclust-map")


@picture("history-slider")
def history_slider() -> Any:
    def early(page: Any) -> None:
        page.locator(".history input[type=range]").fill("4")

    return screen(runs.history() / "report.html", ".history", early, width=1250)


@picture("sandbox-layers")
def sandbox_layers() -> Any:
    from docs.pictures.models import sums_in_two_layers
    from mechclust.sandbox import sandbox_page

    def chosen(page: Any) -> None:
        page.locator("input[type=range]").first.fill("6")
        page.locator("#chooser summary").click()

    path = folder() / "layers.html"
    sandbox_page(sums_in_two_layers(), path)
    return screen(path, "body", chosen, width=1300)


@picture("sandbox-page")
def sandbox_page() -> Any:
    def late(page: Any) -> None:
        page.locator("input[type=range]").first.fill("70")

    return screen(runs.sandbox(), "body", late, width=1300)
