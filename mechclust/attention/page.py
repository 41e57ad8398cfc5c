"""Make the HTML of an attention view: its packed data, the scripts that draw it, and a page around it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import lru_cache
from html import escape
from typing import Any
from uuid import uuid4

import torch
from jaxtyping import Float
from torch import Tensor

from mechclust.web.scripts import ViewCode, template_text, with_kit

# Make the browser enforce that an exported page loads no other resources.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
_PACKAGE = "mechclust.attention"
STEPS = 10_000  # a weight of 1 as an integer: four decimals fit 16 bits


def html_fragment(data: Mapping[str, Any], text: str, *, include_js: bool) -> str:
    """Return HTML for a view. Without JavaScript it shows the view as text."""
    from jinja2.utils import htmlsafe_json_dumps  # json.dumps would let a token close the script element

    place = f"attention-{uuid4().hex[:12]}"
    # A module runs after the whole page is read, so the order of views does not matter.
    return f"""<div id="{place}" data-lm-suppress-shortcuts="true"><pre>{escape(text)}</pre></div>
{_code().html if include_js else ""}<script type="module">
const data = {htmlsafe_json_dumps(data, separators=(",", ":"))};
{_code().function}("{place}", data);
</script>
"""


def html_page(title: str, body: str) -> str:
    """Return a self-contained HTML page that works from a file, without a network."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>body {{ font-family: system-ui, "DejaVu Sans", sans-serif; color: #1d2733; background: #fff; margin: 1em }}
h1 {{ font-size: 1.3em; margin: 0 0 .6em }}</style>
</head>
<body>
<h1>{escape(title)}</h1>
{body}</body>
</html>
"""


def packed_pattern(patterns: Float[Tensor, "head query key"], causal: bool) -> str:
    """Return the weights row by row in base64 of 16-bit integers, causal ones without the part above the diagonal."""
    integers = (patterns * STEPS).round().to(torch.int16)
    if causal:
        queries, keys = torch.tril_indices(integers.shape[1], integers.shape[2])
        integers = integers[:, queries, keys]
    return base64.b64encode(integers.contiguous().numpy().astype("<i2").tobytes()).decode()


def least_bytes(n_patterns: int, n_tokens: int) -> int:
    """Return a lower bound of the size of a page with so many patterns."""
    return _code_bytes() + n_patterns * n_tokens * (n_tokens + 1) * 8 // 6


def _code_bytes() -> int:
    """Return the size of the JavaScript and styles on every page."""
    return len(_code().html.encode())


def visible_token(text: str, space: str = "·") -> str:
    r"""Return a text with visible whitespace and control characters: ``" a\n"`` becomes ``"·a\\n"``."""
    visible = [c if c.isprintable() else c.encode("unicode_escape").decode() for c in text]
    return "".join(visible).replace(" ", space)


@lru_cache(maxsize=1)
def _code() -> ViewCode:
    script = with_kit(_PACKAGE, "attention_draw.js", "attention.js")
    return ViewCode("mechclustAttention", template_text(_PACKAGE, "attention.css"), script)
