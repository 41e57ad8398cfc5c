"""Make the HTML of an attention view: its packed data, the scripts that draw it, and a page around it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from html import escape
from typing import Any
from uuid import uuid4

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import max_pool2d

from mechclust.web.scripts import ViewScript, script_numbers, script_text, scripts_with_kit

# Make the browser enforce that an exported page loads no other resources.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
_PACKAGE = "mechclust.attention"
STEPS = 10_000  # a weight of 1 as an integer: four decimals fit 16 bits
MAX_WHOLE_TOKENS = 512  # of a page with every weight
MAX_TOKENS = 2**16  # positions of keys have 16 bits
_BLOCKS_PER_SIDE = 192  # of the whole map of more tokens
_BLOCK_STEPS = 127  # the square root of a weight of 1 in 8 bits
_LEAST_KEPT = 8  # keys of each query
_KEPT_BYTES = 1_500_000  # of the weights of all heads, if that is not fewer keys


def attention_fragment(data: Mapping[str, Any], text: str, *, include_js: bool) -> str:
    """Return HTML for a view. Without JavaScript it shows the view as text."""
    from jinja2.utils import htmlsafe_json_dumps  # json.dumps would let a token close the script element

    place = f"attention-{uuid4().hex[:12]}"
    code = _code(len(data["tokens"]))
    # A module runs after the whole page is read, so the order of views does not matter.
    return f"""<div id="{place}" data-lm-suppress-shortcuts="true"><pre>{escape(text)}</pre></div>
{code.html if include_js else ""}<script type="module">
const data = {htmlsafe_json_dumps(data, separators=(",", ":"))};
{code.function}("{place}", data);
</script>
"""


def attention_page(title: str, body: str) -> str:
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


def attention_page_pattern(patterns: Float[Tensor, "head query key"], causal: bool) -> str:
    """Return the weights row by row in base64 of 16-bit integers, causal ones without the part above the diagonal."""
    integers = (patterns * STEPS).round().to(torch.int16)
    if causal:
        queries, keys = torch.tril_indices(integers.shape[1], integers.shape[2])
        integers = integers[:, queries, keys]
    return script_numbers(integers.numpy(), "<i2")


def attention_page_tiles(models: Float[Tensor, "model head query key"]) -> dict[str, Any]:
    """Return what a page holds of many tokens: the strongest weight of each block, and each query's strongest keys.

    Square roots of the blocks' weights have 8 bits, those of keys have four decimals, and the strongest key is first.
    """
    n_models, n_heads, n_tokens, _ = models.shape
    block = -(-n_tokens // _BLOCKS_PER_SIDE)
    kept = _n_kept(n_models * n_heads, n_tokens)
    tiles: dict[str, Any] = {"block": block, "kept": kept, "blocks": [], "keys": [], "weights": []}
    for patterns in models:
        blocks = [_strongest_by_block(pattern, block) for pattern in patterns]
        tiles["blocks"].append(script_numbers((torch.stack(blocks) * _BLOCK_STEPS).round().numpy(), "i1"))
        keys = torch.stack([pattern.abs().topk(kept).indices for pattern in patterns])
        tiles["keys"].append(script_numbers(keys.numpy(), "<u2"))
        weights = (patterns.gather(2, keys) * STEPS).round()
        tiles["weights"].append(script_numbers(weights.numpy(), "<i2"))
    return tiles


def _strongest_by_block(pattern: Float[Tensor, "query key"], size: int) -> Float[Tensor, "block block"]:
    """Return the weight of largest size in each square block, as its square root with the weight's sign."""
    highest = max_pool2d(pattern[None], size, ceil_mode=True)[0]
    lowest = max_pool2d(-pattern[None], size, ceil_mode=True)[0]
    return torch.where(highest >= lowest, highest.clamp(min=0).sqrt(), -lowest.clamp(min=0).sqrt())


def _n_kept(n_patterns: int, n_tokens: int) -> int:
    """Return the number of keys that are kept of each query: as many as the page has room for."""
    room = (_KEPT_BYTES - n_patterns * _BLOCKS_PER_SIDE**2 * 4 // 3) // (n_patterns * n_tokens * 16 // 3)
    return min(n_tokens, max(_LEAST_KEPT, room))


def least_attention_page_bytes(n_patterns: int, n_tokens: int) -> int:
    """Return a lower bound of the size of a page with so many patterns."""
    if n_tokens > MAX_WHOLE_TOKENS:
        of_each = n_tokens * _n_kept(n_patterns, n_tokens) * 16 // 3
    else:
        of_each = n_tokens * (n_tokens + 1) * 8 // 6
    return len(_code(n_tokens).html.encode()) + n_patterns * of_each


def _code(n_tokens: int) -> ViewScript:
    """Return the style and script of a view of so many tokens."""
    return _code_in("attention_long.js" if n_tokens > MAX_WHOLE_TOKENS else "attention.js")


@lru_cache(maxsize=2)
def _code_in(name: str) -> ViewScript:
    script = scripts_with_kit(_PACKAGE, "attention_draw.js", name)
    return ViewScript("mechclustAttention", script_text(_PACKAGE, "attention.css"), script)
