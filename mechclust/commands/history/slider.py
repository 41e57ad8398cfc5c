"""The page's slider over checkpoints: prompts in fixed planes, and attention of chosen prompts, as an HTML fragment."""

from __future__ import annotations

import base64
from functools import lru_cache
from importlib.resources import files
from typing import Any
from uuid import uuid4

import numpy as np
import torch

from mechclust.commands.history.measurements import Measurements
from mechclust.report.prompt_map import MAX_CHARACTERS, clean, shortened
from probes.engine.sites import head_name

_REACH = 4.0  # most of half a frame's width, where the mean square distance from the middle is 1
_STEPS = 30_000  # half a frame's width as an integer; beyond it, points stand at the edge
_MISSING = -32_768
_MOST_ATTENTION = 4_000_000  # bytes of patterns on a page


def slider(result: Measurements) -> str | None:
    """The fragment, or ``None`` where there are no planes. It needs JavaScript, and no network."""
    planes = result.planes
    if planes is None:
        return None
    from jinja2.utils import htmlsafe_json_dumps  # json.dumps would let a prompt close the script element

    far = np.nanmax(np.abs(planes.xy)) if np.isfinite(planes.xy).any() else 1.0
    reach = min(_REACH, 1.1 * float(far)) or 1.0
    data = {
        "names": [clean(name) for name in result.names],
        "findings": [
            [finding.text for finding in result.findings if i in finding.checkpoints] for i in range(len(result.series))
        ],
        "layers": [f"layer {layer} ({site})" for layer, site in zip(planes.layers, planes.sites, strict=True)],
        "texts": [shortened(text) for text in planes.texts],
        "places": list(planes.places),
        "labels": [{"name": clean(name), **_classes(values)} for name, values in planes.labels.items()],
        "xy": [[_packed(own / reach) for own in of] for of in planes.xy],
        "variance": [[None if np.isnan(x) else round(float(x), 3) for x in of] for of in planes.variance],
        "reach": _STEPS,
        "missing": _MISSING,
        "attention": _attention(result),
    }
    place = f"history-{uuid4().hex[:12]}"
    inside = htmlsafe_json_dumps(data, separators=(",", ":"), ensure_ascii=False)
    style, script = _code()
    told = f"{len(planes.texts)} prompts at {len(result.names)} checkpoints stand here; they need JavaScript."
    return f"""<style>{style}</style>
<div id="{place}" class="history"><p>{told}</p></div>
<script type="module">
{script}
show(document.getElementById("{place}"), {inside});
</script>
"""


def _classes(values: list[str]) -> dict[str, Any]:
    names = sorted(set(values))
    place = {name: i for i, name in enumerate(names)}
    return {"classes": [clean(name)[:MAX_CHARACTERS] for name in names], "codes": [place[value] for value in values]}


def _packed(xy: np.ndarray) -> str:
    """``[prompt 2]`` from -1 to 1, in base64 of 16-bit integers, x and y in turn."""
    steps = np.clip(np.round(xy * _STEPS), -_STEPS, _STEPS)
    return _base64(np.where(np.isnan(xy), _MISSING, np.nan_to_num(steps)).astype("<i2"))


def _attention(result: Measurements) -> list[dict[str, Any]]:
    """Of each chosen prompt: tokens, blocks, names of heads by block, and patterns by checkpoint; fewer blocks where
    all are too many."""
    found = []
    last = result.attention[-1]
    share = _MOST_ATTENTION // max(1, len(last))
    for place, patterns in last.items():
        n_blocks, n_heads, n, _ = patterns.shape
        each = n_heads * n * n * len(result.series)
        chosen = sorted({round(i) for i in np.linspace(n_blocks - 1, 0, max(1, min(n_blocks, share // each)))})
        own = []
        for of in result.attention:
            same = place in of and of[place].shape == patterns.shape
            own.append(_base64(of[place][torch.tensor(chosen)].numpy()) if same else None)
        tokens = [clean(word) for word in result.words[place][:n]]
        heads = [[head_name(block, head) for head in range(n_heads)] for block in chosen]
        blocks = [f"blocks.{block}" for block in chosen]
        found.append({"place": place, "tokens": tokens, "blocks": blocks, "heads": heads, "patterns": own})
    return found


def _base64(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


@lru_cache(maxsize=1)
def _code() -> tuple[str, str]:
    templates = files("mechclust.commands.history") / "templates"
    return tuple((templates / f"history.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))  # type: ignore[return-value]
