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
from docs.pictures.registry import Drawn, picture


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


@picture("view", "docs/notebooks.md", alt="Heads of a small GPT-2 over five words, one of them enlarged")
def attention() -> Drawn:
    from mechclust.attention import attention_view

    model, _, _ = own()
    path = folder() / "view.html"
    attention_view(model, "the opposite of hot is", layers=[0, 1]).save(path)
    return screen(path, "body", lambda page: page.locator("canvas").nth(6).click()), (
        "The attention view: eight heads of a small GPT-2 that gives the opposite of a word. A click enlarges one. Here 'is' "
        "attends to that word, 'hot'. There is no chance level. A token that attends uniformly has a row of one shade."
    )


@picture(
    "topics-view",
    "docs/notebooks.md",
    alt="The words of a document, coloured by topic, in a model before and after training",
)
def topics() -> Drawn:
    from mechclust.attention import attention_view
    from probes import TopicAttention, run

    task, text = documents()
    untrained, model, _, _ = topical()
    tokens, labels = text[0].tokens[0, :24], text[0].labels["topic"][0, :24].tolist()
    heads = run(model, text[:50], TopicAttention(task.token_topics)).top_heads("ratio", k=1)
    path = folder() / "topics.html"
    view = attention_view(
        {"before": untrained, "after": model},
        tokens,
        heads=heads,
        str_tokens=task.to_str_tokens(tokens),
        labels=[f"topic {topic}" if topic >= 0 else None for topic in labels],
    )
    view.save(path)
    return screen(path, "body", lambda page: page.locator(".chip", has_text="t1.8").first.click()), (
        "A one-layer transformer before and after training on documents with ten planted topics, on 24 words of one "
        f"document coloured by topic. After training, attention within topics is {heads[0].value:.1f} times that between "
        "topics (50 documents, chance 1)."
    )


@picture(
    "clusters-map",
    "docs/commands/clusters.md",
    alt="A map of prompts as points, coloured by answer, with a slider over layers",
)
def prompt_map() -> Drawn:
    return screen(runs.clusters() / "report.html", ".mechclust-map"), (
        "The map in this report: the 96 prompts at layer 2, coloured by answer, with a slider over layers and the clusters "
        "below. A plane has no chance level, unlike the curves."
    )


@picture(
    "history-slider",
    "docs/commands/history.md",
    alt="Prompts as points in five planes, one per layer, under a slider over checkpoints",
)
def history_slider() -> Drawn:
    def early(page: Any) -> None:
        page.locator(".history input[type=range]").fill("4")

    return screen(runs.history() / "report.html", ".history", early, width=1250), (
        "The slider in this report, at step 40: the 96 prompts at each layer, and the attention of one prompt. All "
        "checkpoints share one plane per layer. A plane has no chance level, unlike the curves."
    )


@picture(
    "sandbox-layers",
    "docs/sandbox.md",
    alt="The sandbox of a two-layer transformer: planes of heads and residual streams, and the menu that chooses panels",
)
def sandbox_layers() -> Drawn:
    from docs.pictures.models import sums_in_two_layers
    from mechclust.sandbox import sandbox_page

    def chosen(page: Any) -> None:
        page.locator("input[type=range]").first.fill("6")
        page.locator("#chooser summary").click()

    path = folder() / "layers.html"
    sandbox_page(sums_in_two_layers(), path)
    return screen(path, "body", chosen, width=1300), (
        "The page of a two-layer transformer, trained for 600 steps to add two of six digits modulo 3, here at step 120. "
        "Points are sequences, in the plane of the last checkpoint's first two principal components. Corners give the share "
        "of variance in this plane. The menu chooses panels, layers and heads. Chance is an accuracy of 1/3."
    )


@picture(
    "sandbox-page",
    "docs/sandbox.md",
    alt="The sandbox: panels of points, a map of answers, curves, and a slider over epochs",
)
def sandbox_page() -> Drawn:
    def late(page: Any) -> None:
        page.locator("input[type=range]").first.fill("70")

    return screen(runs.sandbox(), "body", late, width=1300), (
        "The page of a network with one head of two dimensions, which learns to add three of eight binary digits, here after "
        "epoch 70. An accuracy of one half is chance."
    )
