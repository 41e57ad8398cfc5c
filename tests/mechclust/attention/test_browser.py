"""The attention view in a real browser, offline, from a file."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from mechclust.attention.view import attention_view, attention_view_from_patterns
from mechclust.models.build import build_model
from mechclust.models.config import ModelConfig

pytestmark = pytest.mark.browser

HOSTILE = "</script><img src=x onerror=window.__pwned=1>"
STR_TOKENS = ["The", " cat", "\n", HOSTILE, " ", "naïve", "&lt;", "{{x}}"]
SHOWN = ["The", "·cat", "\\n", HOSTILE.replace(" ", "·"), "·", "naïve", "&lt;", "{{x}}"]
WHITE, BLUE, RED, GREY = [255, 255, 255], [10, 74, 156], [178, 24, 43], [227, 230, 233]
PATTERN = torch.tensor([[[1.0, 0, 0], [0.25, 0.75, 0], [0.5, 0.3, 0.2]], [[1, 0, 0], [0, 1, 0], [0, 0, 1]]])

PIXELS = """
canvas => {
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const pixel = i => [...data.slice(4 * i, 4 * i + 3)];
  return Array.from({ length: canvas.height }, (_, y) =>
    Array.from({ length: canvas.width }, (_, x) => pixel(y * canvas.width + x)));
}
"""
# What each token of a text is shaded with, from 0 (white) to 255.
DARKNESS = "text => [...text.querySelectorAll('.colored-tokens > span > span')].map(" + (
    "span => 255 - Number(getComputedStyle(span).backgroundColor.match(/[0-9]+/)[0]))"
)


@pytest.fixture
def show(open_page, tmp_path):
    """Opens a view's page and waits for its texts, which are drawn last."""

    def show_(view, title="Attention patterns"):
        view.save(tmp_path / "view.html", title=title)
        page = open_page(tmp_path / "view.html")
        page.wait_for_function(f"() => document.querySelectorAll('.colored-tokens').length === {len(view.models) or 1}")
        return page

    return show_


def small(**more):
    return attention_view_from_patterns(PATTERN, ["a", "b", "c"], ["L0H0", "L0H1"], causal=True, **more)


def at(page, query, key, large=0, n=3):
    """Moves the pointer to a cell."""
    box = page.locator("canvas.cells").nth(large).bounding_box()
    page.mouse.move(box["x"] + (key + 0.5) / n * box["width"], box["y"] + (query + 0.5) / n * box["height"])
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")


def read(page):
    """The readout, as {row: text}."""
    texts = page.locator(".readout > *").all_inner_texts()
    return {name: " ".join(text.split()) for name, text in zip(texts[::2], texts[1::2], strict=True)}


def darkness(page, text=0):
    return page.locator(".text").nth(text).evaluate(DARKNESS)


def shades(*weights):
    """The nine steps from white to blue."""
    steps = [0, 26, 52, 78, 105, 132, 160, 192, 245]
    return pytest.approx(np.interp(weights, np.linspace(0, 1, 9), steps).tolist(), abs=1)


def test_keys_on_whatever_is_in_focus_are_not_those_of_jupyterlab(show):
    """Its shortcuts look at the element in focus first: an attribute of the view round it comes too late."""
    page = show(small(labels=["x", None, "y"], values=[1.0, 2.0]))
    parts = page.locator(".mechclust-attention :is(button, input, select, a, summary, [tabindex], div)")
    within = parts.evaluate_all(
        "all => all.filter(e => !e.closest('.text') || e.matches('.text'))"
        ".map(e => [e.tagName, e.dataset.lmSuppressShortcuts])"
    )
    assert {"BUTTON", "INPUT", "DIV"} <= {tag for tag, _ in within}
    assert all(value == "true" for _, value in within)
    assert page.locator(".text :is(button, input, select, a, summary, [tabindex])").count() == 0


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_saved_page(show, attention):
    config = ModelConfig(d_vocab=8, n_ctx=8, n_layers=2, d_model=16, n_heads=2, init_std=0.8, attention=attention)
    labels = ["a", "a", None, "b", "b", HOSTILE, None, "a"]
    view = attention_view(build_model(config), torch.arange(8), str_tokens=STR_TOKENS, labels=labels)
    page = show(view, title="<b>Heads</b> & tokens")

    assert page.locator("h1").inner_text() == "<b>Heads</b> & tokens"
    assert page.locator(".thumb b").all_inner_texts() == ["L0H0", "L0H1", "L1H0", "L1H1"]
    boxes = [canvas.bounding_box() for canvas in page.locator("canvas").all()]
    assert [box["width"] > size and box["height"] > size for box, size in zip(boxes, [40] * 4 + [220], strict=True)]
    assert page.locator(".chip").all_inner_texts() == SHOWN
    assert [text.replace("\xa0", " ") for text in page.locator(".colored-tokens > span").all_inner_texts()] == SHOWN
    assert page.locator(".labels .entry").all_inner_texts() == ["a", "b", HOSTILE]
    assert page.evaluate("window.__pwned") is None
    assert page.locator("img").count() == 0

    page.locator(".thumb", has_text="L1H1").click()
    assert page.locator(".large .title").inner_text() == "L1H1"
    pixels = torch.tensor(page.locator("canvas.cells").evaluate(PIXELS))
    red = pixels[..., 0].float()  # falls as weights grow
    order = (red[:, :, None, None] - red[None, None]) * (view.patterns[3][:, :, None, None] - view.patterns[3])
    seen = torch.tril(torch.ones(8, 8)).bool() if attention == "causal" else torch.ones(8, 8).bool()
    assert (order[seen][:, seen] <= 0).all()
    assert ((pixels == torch.tensor(GREY)).all(-1) == ~seen).all()
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=f"{folder}/attention-{attention}.png", full_page=True)


def test_every_weight_is_where_it_should_be(show):
    page = show(small())
    pixels = page.locator("canvas.cells").evaluate(PIXELS)
    assert [pixels[0][0], pixels[0][1:], pixels[1][2]] == [BLUE, [GREY, GREY], GREY]
    assert pixels[2] == [[150, 159, 206], *pixels[2][1:]]  # half way: the fifth of nine steps
    assert pixels[1][0][0] > pixels[2][1][0] > pixels[2][0][0] > pixels[1][1][0] > pixels[0][0][0]
    assert page.locator(".thumb canvas").first.evaluate(PIXELS) == pixels
    page.locator(".thumb").nth(1).click()
    assert page.locator("canvas.cells").evaluate(PIXELS) == [
        [BLUE, GREY, GREY],
        [WHITE, BLUE, GREY],
        [WHITE, WHITE, BLUE],
    ]
    page.locator(".lift input").check()
    page.locator(".thumb").nth(0).click()
    assert page.locator("canvas.cells").evaluate(PIXELS)[1][0] == [150, 159, 206]  # the root of a quarter
    assert page.locator(".ticks span").all_inner_texts() == ["0", "0.25", "1"]


def test_negative_weights_are_red(show):
    patterns = torch.tensor([[[0.5, -0.5], [0.0, 0.25]]])
    page = show(attention_view_from_patterns(patterns, ["a", "b"], ["difference"], causal=False))
    (first, second), (third, _) = page.locator("canvas.cells").evaluate(PIXELS)
    assert [first, second, third] == [BLUE, RED, WHITE]
    assert page.locator(".ticks span").all_inner_texts() == ["−0.5", "−0.25", "0", "0.25", "0.5"]
    at(page, 0, 1, n=2)
    assert read(page) == {"query": "0 a", "key": "1 b", "weight": "−0.5000"}
    assert page.locator(".thumbs").count() == 0  # one head needs no choice


def test_the_scale_of_small_weights_has_two_digits(show):
    page = show(attention_view_from_patterns(PATTERN / 1000, ["a", "b", "c"], ["L0H0", "L0H1"], causal=True))
    assert page.locator(".ticks span").all_inner_texts() == ["0", "0.0005", "0.001"]
    page.locator(".lift input").check()
    assert page.locator(".ticks span").all_inner_texts() == ["0", "0.00025", "0.001"]


def test_pointing_at_a_cell(show):
    page = show(small(values=[2.5, 1.0]))
    assert page.locator(".large .title").inner_text() == "L0H0 2.5"
    assert read(page) == {"query": "2 c", "key": "0 a", "weight": "0.5000"}  # the last token's strongest
    at(page, 1, 0)
    assert read(page) == {"query": "1 b", "key": "0 a", "weight": "0.2500"}
    assert page.locator(".name.marked").all_text_contents() == ["a", "b"]
    assert darkness(page) == shades(0.25, 0.75, 0)  # the text follows
    at(page, 0, 2)
    assert read(page)["weight"] == "none: a later token"
    page.mouse.move(0, 0)
    page.wait_for_function("() => document.querySelector('.readout').innerText.includes('0.5000')")


def test_a_click_holds_the_query(show):
    page = show(small())
    at(page, 1, 1)
    page.mouse.click(*page.evaluate("() => { const b = document.querySelector('canvas.cells').getBoundingClientRect(); "
                                    "return [b.left + b.width / 2, b.top + b.height / 2]; }"))  # fmt: skip
    at(page, 2, 1)
    assert read(page)["weight"] == "0.3000"
    assert darkness(page) == shades(0.25, 0.75, 0)  # the text stays with the query that is held
    pressed = page.locator(".chip[aria-pressed=true]")
    assert pressed.all_inner_texts() == ["b"]
    page.keyboard.press("Tab")
    page.locator(".plot").press("Escape")
    at(page, 2, 1)
    assert darkness(page) == shades(0.5, 0.3, 0.2)

    page.locator(".chip", has_text="a").click()
    page.mouse.move(0, 0)
    page.get_by_text("is attended by").click()
    assert page.locator(".textbox .title").inner_text() == "L0H0: what attends to a0"
    page.wait_for_function("() => document.querySelector('.readout').innerText.includes('1.0000')")
    assert darkness(page) == shades(1, 0.25, 0.5)  # the column of the first token


def test_the_text_answers(show):
    page = show(small())
    page.locator(".colored-tokens > span").nth(1).hover()
    page.wait_for_function("() => document.querySelector('.readout').innerText.includes('0.3000')")
    page.locator(".colored-tokens > span").nth(1).click()
    assert page.locator(".chip[aria-pressed=true]").inner_text() == "b"


def test_keyboard(show):
    page = show(small())
    page.locator(".thumb").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".large .title").inner_text() == "L0H1"
    assert page.evaluate("document.activeElement.textContent") == "L0H1"
    page.keyboard.press("Home")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "plot"  # one stop for all thumbnails
    page.keyboard.press("ArrowUp")
    page.wait_for_function("() => document.querySelector('.readout').innerText.includes('0.2500')")
    page.keyboard.press("Enter")
    assert page.locator(".chip[aria-pressed=true]").inner_text() == "b"
    page.locator(".chip").nth(0).focus()
    page.keyboard.press("End")
    assert page.locator(".chip[aria-pressed=true]").inner_text() == "c"
    assert darkness(page) == shades(0.5, 0.3, 0.2)


def test_label_colours(show):
    n = 27
    labels = ["first", "first", None, *(f"label {i}" for i in range(24))]
    view = attention_view_from_patterns(
        torch.eye(n)[None], [f"t{i}" for i in range(n)], ["L0H0"], causal=True, labels=labels
    )
    page = show(view)
    style = "chip => { const s = getComputedStyle(chip); return [s.borderBottomColor, s.borderBottomStyle]; }"
    chips = [page.locator(".chip").nth(i).evaluate(style) for i in range(n)]
    assert chips[0] == chips[1] == ["rgb(0, 114, 178)", "solid"]
    assert page.locator(".chip").nth(2).get_attribute("data-cue") is None
    assert chips[3] == ["rgb(230, 159, 0)", "solid"]
    assert chips[10] == ["rgb(0, 114, 178)", "double"]  # the ninth label: the first colour, and another cue
    assert chips[18] == ["rgb(0, 114, 178)", "dotted"]
    assert len(set(map(tuple, [chips[0], *chips[3:26]]))) == 24
    assert chips[26] == ["rgb(169, 175, 182)", "solid"]
    assert page.locator(".labels .entry").all_inner_texts()[-2:] == ["label 22", "1 more label"]
    strips = "hue => document.querySelectorAll(`.plot rect[fill='${hue}']`).length"
    assert page.evaluate(strips, "#0072b2") == 2 * (2 + 2 + 1)  # two plain, one with a gap, one shorter; on both axes
    at(page, 26, 3, n=n)
    assert read(page)["query"] == "26 t26 label 23"
    assert read(page)["key"] == "3 t3 label 0"


def test_two_models_are_linked(show):
    other = PATTERN.clone()
    other[0, 2] = torch.tensor([0.1, 0.1, 0.8])
    view = attention_view_from_patterns(
        {HOSTILE: PATTERN, "base": other}, ["a", "b", "c"], ["L0H0", "L0H1"], causal=True
    )
    page = show(view)
    assert page.locator(".large .title").all_inner_texts() == [f"{HOSTILE} L0H0", "base L0H0"]
    first, second = (canvas.bounding_box() for canvas in page.locator("canvas.cells").all())
    assert first["y"] == second["y"]
    assert second["x"] > first["x"] + first["width"]
    at(page, 2, 2, large=1)
    assert list(read(page).values()) == ["2 c", "2 c", "0.2000", "0.8000", "+0.6000"]
    assert list(read(page))[2:] == [HOSTILE, "base", "change"]
    assert page.locator(".name.marked").all_text_contents() == ["c"] * 4
    assert darkness(page, 0) == shades(0.5, 0.3, 0.2)
    assert darkness(page, 1) == shades(0.1, 0.1, 0.8)
    page.locator(".thumb").nth(1).click()
    assert page.locator(".large .title").all_inner_texts() == [f"{HOSTILE} L0H1", "base L0H1"]
    assert page.locator("canvas.cells").first.evaluate(PIXELS) == page.locator("canvas.cells").last.evaluate(PIXELS)
    assert page.evaluate("window.__pwned") is None


def test_narrow_pages_and_many_tokens(show):
    n = 128
    patterns = torch.softmax(torch.randn(2, 12, n, n, generator=torch.Generator().manual_seed(0)), -1)
    names, tokens = [f"L0H{i}" for i in range(12)], [f" token{i}" for i in range(n)]
    page = show(attention_view_from_patterns({"a": patterns[0], "b": patterns[1]}, tokens, names, causal=False))
    assert page.locator(".thumb").count() == 12
    first, second = page.locator("canvas.cells").all()
    assert first.bounding_box()["width"] % n == 0  # whole screen pixels a cell
    assert second.bounding_box()["y"] == first.bounding_box()["y"]
    page.set_viewport_size({"width": 480, "height": 900})
    page.wait_for_function("() => document.querySelector('.main').classList.contains('stacked')")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert second.bounding_box()["y"] > first.bounding_box()["y"] + n
    assert first.bounding_box()["width"] % n == 0


def test_fragments_share_the_code_and_swallow_nothing(open_page, tmp_path):
    view = small()
    body = view.fragment(include_js=False) + "<p id=between>between</p>" + view.fragment() + "<p id=after>after</p>"
    body += f"<details><summary>more</summary>{view.fragment()}</details>"
    style = "<style>body { background: #111; color: #eee }</style>"
    (tmp_path / "report.html").write_text(f"<!doctype html><meta charset=utf-8>{style}<body>{body}</body>", "utf-8")
    page = open_page(tmp_path / "report.html")
    page.wait_for_function("() => document.querySelectorAll('.colored-tokens').length === 3")
    assert page.locator("canvas.cells").count() == 3
    for place in ("between", "after"):
        assert page.locator(f"#{place}").is_visible()
        assert page.evaluate(f"document.getElementById('{place}').parentElement.tagName") == "BODY"
    page.locator("canvas.cells").first.click()
    assert page.locator(".chip[aria-pressed=true]").all_inner_texts() == [
        "b",
        "c",
        "",
    ]  # each for itself; the last is folded away
    page.locator("summary").click()
    page.wait_for_function("() => document.querySelectorAll('canvas.cells')[2].clientWidth > 200")  # laid out when seen
    colours = "root => { const s = getComputedStyle(root); return [s.color, s.backgroundColor]; }"
    assert page.locator(".mechclust-attention").first.evaluate(colours) == ["rgb(29, 39, 51)", "rgb(255, 255, 255)"]


def test_a_notebook_inserts_the_output_and_runs_its_scripts(open_page, tmp_path):
    from jinja2.utils import htmlsafe_json_dumps

    insert = f"""<!doctype html><meta charset=utf-8><body><canvas width=300 height=300></canvas><script>
for (const html of {htmlsafe_json_dumps([small()._repr_html_() for _ in range(2)])}) {{
  const output = document.createElement("div");
  output.innerHTML = html;
  document.body.prepend(output);
  for (const old of output.querySelectorAll("script")) {{
    const fresh = document.createElement("script");
    for (const {{ name, value }} of old.attributes) fresh.setAttribute(name, value);
    fresh.textContent = old.textContent;
    old.replaceWith(fresh);
  }}
}}
const last = document.querySelector("body > canvas").getContext("2d"); // what the fixture waits for
last.fillRect(0, 0, 300, 300);
</script></body>"""
    (tmp_path / "notebook.html").write_text(insert, "utf-8")
    page = open_page(tmp_path / "notebook.html")
    page.wait_for_function("() => document.querySelectorAll('.colored-tokens').length === 2")
    assert page.locator("canvas.cells").count() == 2
    assert page.locator("pre").count() == 0


def test_without_javascript_there_is_text(browser, tmp_path):
    small().save(tmp_path / "view.html")
    context = browser.new_context(offline=True, java_script_enabled=False)
    page = context.new_page()
    page.goto((tmp_path / "view.html").as_uri())
    assert page.locator("pre").inner_text() == str(small())
    assert page.locator("pre").is_visible()
    context.close()


def test_long_model_names_leave_the_weights_readable(open_page, tmp_path):
    name = "Llama-3.1-8B-Instruct-my-finetune"
    patterns = {f"{name}-v{i}": torch.eye(3)[None] for i in (1, 2)}
    attention_view_from_patterns(patterns, ["a", "b", "c"], ["L0H0"], causal=True).save(tmp_path / "view.html")
    page = open_page(tmp_path / "view.html")
    weights = page.evaluate(
        """() => [...document.querySelectorAll(".readout > *")]
            .filter(cell => /^[+-]?\\d\\.\\d{4}$/.test(cell.innerText))
            .map(cell => [cell.innerText, cell.scrollWidth <= cell.clientWidth])"""
    )
    assert weights == [["1.0000", True], ["1.0000", True], ["0.0000", True]]


def test_many_tokens_are_drawn_in_a_map_and_a_window(open_page, tmp_path):
    """Of 2,048 tokens every cell has its tokens and its weight, without a frame that takes long."""
    n = 2048
    patterns = torch.rand(2, n, n, generator=torch.Generator().manual_seed(0)).tril()
    patterns /= 2 * patterns.sum(dim=-1, keepdim=True)
    patterns[1, torch.arange(1024, n), torch.arange(1, 1025)] += 0.5  # induction, at a distance of 1023
    names = [f" t{i}" for i in range(n)]
    labels = ["first" if i < 1024 else "second" for i in range(n)]
    view = attention_view_from_patterns(patterns, names, ["L0H0", "L1H0"], causal=True, labels=labels)
    replace(view, roles=("previous", "induction")).save(tmp_path / "view.html")
    page = open_page(tmp_path / "view.html")
    assert page.locator(".way", has_text="induction").evaluate("way => { way.click(); return 1; }")
    assert page.locator(".thumb:visible").all_inner_texts() == ["L1H0"]

    covered = 187 * 11  # blocks of 11 tokens
    at(page, 1500, 477, n=covered)  # the strongest of its block, which has several of these
    told = read(page)
    query, key = (int(told[axis].split()[0]) for axis in ("query", "key"))
    assert query - key == 1023
    assert float(told["weight"]) == pytest.approx(float(patterns[1, query, key]), abs=1e-4)
    assert told["query"] == f"{query} \u00b7t{query} second"
    box = page.locator("canvas.cells").first.bounding_box()
    page.mouse.click(box["x"] + 477.5 / covered * box["width"], box["y"] + 1500.5 / covered * box["height"])

    window = page.locator("canvas.cells").last
    pixels = np.array(window.evaluate(PIXELS))
    assert pixels.shape == (64, 64, 3)
    assert 48 < (pixels[..., 0] < 60).sum() <= 64  # strong weights, on one diagonal
    at(page, 10, 20, large=1, n=64)
    assert read(page)["weight"].startswith("at most 0.00")
    page.get_by_role("button", name="32", exact=True).click()
    assert np.array(window.evaluate(PIXELS)).shape == (32, 32, 3)
    assert page.locator(".name").count() == 2 * 32
    page.locator(".line").first.click()
    assert page.locator(".hint").inner_text().startswith("this cell is held")
    slowest = page.evaluate(SLOWEST)
    assert slowest < 1000
    page.keyboard.press("Escape")


def long_view(open_page, tmp_path, weight, n=577):
    """Open the view of one head in which every token attends to itself alone, with one weight."""
    patterns = torch.zeros(1, n, n)
    patterns[0, torch.arange(n), torch.arange(n)] = weight
    attention_view_from_patterns(patterns, [f"t{i}" for i in range(n)], ["L0H0"], causal=False).save(
        tmp_path / "view.html"
    )
    return open_page(tmp_path / "view.html")


@pytest.mark.parametrize("weight", [0.2, -0.2])
def test_the_strongest_weights_of_many_tokens_have_the_strongest_colour(open_page, tmp_path, weight):
    """0.2 is rounded up to 0.2014 in the map."""
    diagonal = f"canvas => ({PIXELS})(canvas).map((row, i) => row[i])"
    found = long_view(open_page, tmp_path, weight).locator("canvas.cells").first.evaluate(diagonal)
    assert found == [BLUE if weight > 0 else RED] * 145


def test_the_map_of_many_tokens_answers_for_the_block_pointed_at(open_page, tmp_path):
    """Its 145 blocks have room for 580 tokens, 3 more than there are."""
    page = long_view(open_page, tmp_path, 0.5)
    for block in (0, 100, 143, 144):
        at(page, block, block, n=145)
        query = int(read(page)["query"].split()[0])
        assert query // 4 == block
        window, cell = page.locator(".whole .marks rect").evaluate_all(
            "rects => rects.map(r => [+r.getAttribute('x'), +r.getAttribute('width')])"
        )
        pixel = 374 / 580
        assert window == pytest.approx([(577 - 64) * pixel, 64 * pixel])
        assert cell[0] + 3 == pytest.approx(query * pixel)
    box = page.locator("canvas.cells").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 0.5, box["y"] + box["height"] - 0.5)
    page.wait_for_function("() => document.querySelector('.readout').innerText.includes('576')")


# Milliseconds of the slowest of 30 frames in which the pointer moves over the map.
SLOWEST = """
async () => {
  const canvas = document.querySelector("canvas.cells"), box = canvas.getBoundingClientRect();
  let slowest = 0, last = performance.now();
  for (let i = 0; i < 30; i++) {
    const place = { clientX: box.left + 3 * i, clientY: box.top + 8 * i };
    canvas.dispatchEvent(new PointerEvent("pointermove", place));
    await new Promise(requestAnimationFrame);
    slowest = Math.max(slowest, performance.now() - last);
    last = performance.now();
  }
  return slowest;
}
"""
