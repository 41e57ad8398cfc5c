"""The attention view against circuitsvis's own view of the same heads, in headless Chromium: time until drawn."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path
from statistics import median

import torch

_HEADS, _TOKENS = 12, 128
# When every canvas (a small one a head, and the large one) is painted, and the text, where there is one.
_WATCH = """
const painted = canvas => {
  if (!canvas.width || !canvas.height) return false;
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let count = 0;
  for (let i = 3; i < pixels.length; i += 4) count += pixels[i] > 0;
  return count > canvas.width * canvas.height / 3;
};
const timer = setInterval(() => {
  const canvases = [...document.querySelectorAll("canvas")];
  if (canvases.length < HEADS + 1 || !canvases.every(painted)) return;
  if (window.hasText && document.querySelectorAll(".colored-tokens > span").length < TOKENS) return;
  clearInterval(timer);
  requestAnimationFrame(() => setTimeout(() => { window.drawnAt = performance.now(); }));
}, 20);
"""


def _bundle() -> str:
    """The JavaScript of circuitsvis, out of an empty view of its own; it defines ``CircuitsVis``."""
    from circuitsvis.tokens import colored_tokens

    drawn = colored_tokens([], []).local_src  # printing it would ask google.com, and then load from a CDN
    match = re.search(r"<script[^>]*>(.*)CircuitsVis\.render\(.*CircuitsVis\.ColoredTokens,", drawn, re.DOTALL)
    assert match is not None, "this version of circuitsvis is laid out in another way; install circuitsvis==1.43.3"
    return re.sub(r"//# sourceMappingURL=\S*", "", match[1]).strip()


@lru_cache
def _pages() -> tuple[Path, Path, int]:
    """Files of circuitsvis's page and ours, and how many bytes ours has."""
    from mechclust.attention import attention_view_from_patterns

    scores = torch.randn(_HEADS, _TOKENS, _TOKENS, generator=torch.Generator().manual_seed(0))
    above = torch.ones(_TOKENS, _TOKENS).triu(1).bool()
    patterns = torch.softmax(scores.masked_fill(above, -torch.inf), -1)
    names, tokens = [f"L0H{head}" for head in range(_HEADS)], [f" word{i}" for i in range(_TOKENS)]
    rounded = [[[round(weight, 3) for weight in query] for query in head] for head in patterns.tolist()]
    props = json.dumps({"attention": rounded, "attentionHeadNames": names, "maskUpperTri": True, "tokens": tokens})
    folder = Path(tempfile.mkdtemp())
    theirs = f"""<!doctype html><meta charset="utf-8"><div id="place"></div><script>{_bundle()}</script>
<script type="module">CircuitsVis.render("place", CircuitsVis.AttentionHeads, {props});</script>"""
    ours = attention_view_from_patterns(patterns, tokens, names, causal=True).page()
    (folder / "theirs.html").write_text(theirs, encoding="utf-8")
    (folder / "ours.html").write_text(ours.replace("<head>", "<head><script>window.hasText = true</script>"), "utf-8")
    return folder / "theirs.html", folder / "ours.html", len(ours.encode())


@lru_cache
def _seconds() -> tuple[float, float]:
    """From opening a page until it is drawn: theirs, and the median of five of ours, in one browser."""
    from playwright.sync_api import sync_playwright

    theirs, ours, _ = _pages()
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    watch = _WATCH.replace("HEADS", str(_HEADS)).replace("TOKENS", str(_TOKENS))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])

        def until_drawn(path: Path) -> float:
            context = browser.new_context(offline=True, viewport={"width": 1280, "height": 1400})
            context.add_init_script(watch)
            page = context.new_page()
            page.goto(path.as_uri(), timeout=300_000)
            page.wait_for_function("() => window.drawnAt", timeout=300_000)
            seconds = page.evaluate("window.drawnAt") / 1000
            context.close()
            return seconds

        until_drawn(ours)  # warms the browser up
        found = until_drawn(theirs), median(until_drawn(ours) for _ in range(5))
        browser.close()
    return found


def faster() -> float:
    """circuitsvis's ``AttentionHeads`` over our view, 12 heads over 128 tokens."""
    theirs, ours = _seconds()
    return theirs / ours


def milliseconds() -> float:
    """Until our view of them is drawn, its text too."""
    return 1000 * _seconds()[1]


def megabytes() -> float:
    """Of our page."""
    return _pages()[2] / 1e6
