"""The page's slider over checkpoints: prompts in fixed planes, and attention of chosen prompts, as an HTML fragment."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import numpy as np
import torch
from jaxtyping import Float

from mechclust.commands.history.measurements import Measurements, PatternBytes
from mechclust.commands.history.planes import FixedPlanes, evenly_spaced
from mechclust.report.prompt_map import prompt_map_classes, prompt_map_text
from mechclust.report.text import without_surrogates
from mechclust.web.scripts import script_numbers, script_text, scripts_with_kit
from probes.engine.head_names import head_name

MAX_HALF_WIDTH = 4.0  # of a frame, in which the mean square distance from the middle is 1
MAX_ATTENTION_BYTES = 4_000_000  # of patterns on a page
_STEPS = 30_000  # half a frame's width as an integer. Points beyond are drawn at the edge
_MISSING = -32_768


def slider(result: Measurements) -> str | None:
    """Return the fragment, or ``None`` if there are no planes. It needs JavaScript, and no network."""
    planes = result.planes
    if planes is None:
        return None
    from jinja2.utils import htmlsafe_json_dumps  # json.dumps would let a prompt close the script element

    place = f"history-{uuid4().hex[:12]}"
    data = htmlsafe_json_dumps(_data(result, planes), separators=(",", ":"), ensure_ascii=False)
    without_script = (
        f"{len(planes.texts)} prompts at {len(result.names)} checkpoints belong here; they need JavaScript."
    )
    package = "mechclust.commands.history"
    return f"""<style>{script_text(package, "history.css")}</style>
<div id="{place}" class="history"><p>{without_script}</p></div>
<script type="module">
{scripts_with_kit("mechclust.report", "points.js")}{script_text(package, "history.js")}
show(document.getElementById("{place}"), {data});
</script>
"""


def _data(result: Measurements, planes: FixedPlanes) -> dict[str, Any]:
    far = np.nanmax(np.abs(planes.xy)) if np.isfinite(planes.xy).any() else 1.0
    reach = min(MAX_HALF_WIDTH, 1.1 * float(far)) or 1.0
    findings: list[list[str]] = [[] for _ in result.series]
    for finding in result.findings:
        for i in finding.checkpoints:
            findings[i].append(finding.text)
    return {
        "names": [without_surrogates(name) for name in result.names],
        "findings": findings,
        "layers": [f"layer {layer} ({site})" for layer, site in zip(planes.layers, planes.sites, strict=True)],
        "texts": [prompt_map_text(text) for text in planes.texts],
        "places": list(planes.places),
        "labels": [
            {"name": without_surrogates(name), **prompt_map_classes(values)} for name, values in planes.labels.items()
        ],
        "xy": [[_packed_plane(layer / reach) for layer in checkpoint] for checkpoint in planes.xy],
        "variance": [[_share(share) for share in checkpoint] for checkpoint in planes.variance.tolist()],
        "reach": _STEPS,
        "missing": _MISSING,
        "attention": [_attention(result, place) for place in result.attention[-1]],
    }


def _packed_plane(xy: Float[np.ndarray, "prompt 2"]) -> str:
    """Return coordinates from -1 to 1 in base64 of 16-bit integers, x and y in turn."""
    steps = np.clip(np.round(xy * _STEPS), -_STEPS, _STEPS)
    return script_numbers(np.where(np.isnan(xy), _MISSING, np.nan_to_num(steps)), "<i2")


def _share(share: float) -> float | None:
    return None if np.isnan(share) else round(share, 3)


def _attention(result: Measurements, place: int) -> dict[str, Any]:
    """Return a prompt's tokens, blocks, names of heads by block, and patterns by checkpoint.

    If the patterns of all blocks are too large for a page, only some are there.
    """
    last = result.attention[-1][place]
    n_blocks, n_heads, n, _ = last.shape
    most = MAX_ATTENTION_BYTES // len(result.attention[-1]) // (n_heads * n * n * len(result.series))
    blocks = [n_blocks - 1 - i for i in reversed(evenly_spaced(n_blocks, max(1, most)))]
    return {
        "place": place,
        "tokens": [without_surrogates(word) for word in result.words[place][:n]],
        "blocks": [f"blocks.{block}" for block in blocks],
        "heads": [[head_name(block, head) for head in range(n_heads)] for block in blocks],
        "patterns": [_packed_patterns(patterns.get(place), last, blocks) for patterns in result.attention],
    }


def _packed_patterns(patterns: PatternBytes | None, last: PatternBytes, blocks: list[int]) -> str | None:
    """Return the patterns of some blocks, or ``None`` if their heads differ from the last checkpoint's."""
    if patterns is None or patterns.shape != last.shape:
        return None
    return script_numbers(patterns[torch.tensor(blocks)].numpy(), "u1")
