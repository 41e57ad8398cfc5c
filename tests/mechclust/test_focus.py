"""What is drawn in a notebook keeps the keys that are typed on it from JupyterLab, which deletes a cell with ``x``.

A check of the HTML and of the scripts that make it; the browser tests of each view look at what they have made.
"""

import re

import numpy as np
import pytest
import torch

from mechclust.attention.view import attention_view_from_patterns
from mechclust.report.prompt_map import prompt_map
from mechclust.web.scripts import scripts_with_kit

ATTRIBUTE = "data-lm-suppress-shortcuts"


def fragments():
    planes, texts = np.random.default_rng(0).normal(size=(1, 6, 2)), [f"prompt {i}" for i in range(6)]
    return {
        "attention": attention_view_from_patterns(torch.eye(2)[None], ["a", "b"], ["L0H0"], causal=True).fragment(),
        "map": prompt_map({"m": planes}, [0], texts, {"task": list("ababab")}),
    }


@pytest.mark.parametrize("name", ["attention", "map"])
def test_the_place_has_it_and_no_other_element_is_written_as_html(name):
    html = fragments()[name]
    outside = re.sub(r"<(script|style)\b.*?</\1>", "", html, flags=re.DOTALL)
    tags = re.findall(r"<([a-z]+)([^>]*)>", outside)
    assert tags[0][0] == "div"
    assert f'{ATTRIBUTE}="true"' in tags[0][1]
    assert {tag for tag, _ in tags} <= {"div", "pre", "p"}  # nothing else that could have the focus


@pytest.mark.parametrize(
    ("package", "scripts"),
    [
        ("mechclust.attention", ("attention_draw.js", "attention.js")),
        ("mechclust.report", ("points.js", "prompt_map.js")),
        ("mechclust.commands.history", ("history.js",)),
        ("mechclust.sandbox", ("sandbox_data.js", "sandbox_panels.js", "sandbox.js")),
    ],
)
def test_every_element_that_a_script_makes_has_it(package, scripts):
    text = scripts_with_kit(package, *scripts)
    made = re.findall(r"function el\(.*?\n}", text, re.DOTALL)
    assert len(made) == 1
    assert 'made.dataset.lmSuppressShortcuts = "true"' in made[0]
    rest = text.replace(made[0], "")
    assert set(re.findall(r"createElement\(([^)]*)\)", rest)) <= {'"canvas"'}  # never put into the page
    assert "innerHTML" not in rest
    assert "insertAdjacentHTML" not in rest
