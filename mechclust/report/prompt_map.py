"""Make the interactive map of prompts: each layer's plane with a slider over layers, as an HTML fragment."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from html import escape
from typing import Any
from uuid import uuid4

import numpy as np
from jaxtyping import Float, Integer

from mechclust.report.text import without_surrogates
from mechclust.web.scripts import ViewScript, script_numbers, script_text, scripts_with_kit

_PACKAGE = "mechclust.report"
CLUSTER = "cluster"  # the colouring that ``clusters`` adds
_STEPS = 30_000  # half a frame's width as an integer. ``_EDGE`` marks points outside
_EDGE = 32_767
MAX_CHARACTERS = 300  # of a prompt on a page
_MAX_NUMERIC_CLASSES = 12  # more different numbers are a scale


def prompt_map(
    planes: Mapping[str, Float[np.ndarray, "_ example 2"]],
    layers: Sequence[int] | Mapping[str, Sequence[int]],
    texts: Sequence[str],
    colours: Mapping[str, Sequence[str]],
    *,
    clusters: Integer[np.ndarray, "layer example"] | None = None,
    start: int | None = None,
    variance: Mapping[str, Sequence[float]] | None = None,
) -> str:
    """Return an HTML fragment with a map of the prompts per model, a slider over layers, and the prompts' texts.

    A prompt under the pointer, or selected by a click, is marked in every model's map. Models with equal layers share a
    slider, otherwise each has one. The fragment needs JavaScript but no network. A page may have several.

    Each layer's frame fits its prompts, so do not compare scales over layers. A few prompts far from all others are
    drawn as triangles at the frame's edge, and the map gives their number.

    Args:
        planes: by model name, each layer's prompts in a plane, as ``aligned_planes`` gives them. Models may have
            different numbers of layers.
        layers: numbers of the layers, ascending. By model name if the models have different ones.
        texts: the prompts. At most 300 characters of each go into the page. The search sees no more.
        colours: by label or surface feature, a value per prompt. The first is shown at the start. A constant one is
            left out if there are others.
        clusters: the cluster of each prompt at each layer, of a single model. Adds the colouring "cluster" and a table
            of clusters against labels. A cluster keeps its colour from layer to layer if it keeps its prompts.
        start: the layer shown first, by default the last.
        variance: by model name, the share of each layer's variance that its plane holds, shown under the map.

    Example:
        >>> planes = np.random.default_rng(0).normal(size=(3, 4, 2))
        >>> html = prompt_map({"gpt2": planes}, [0, 1, 2], ["a", "b", "c", "d"], {"task": ["x", "x", "y", "y"]})
        >>> html.count("<script")
        2
    """
    numbers = {name: list(map(int, layers[name] if isinstance(layers, Mapping) else layers)) for name in planes}
    variance = variance or {}
    models = []
    for name, xy in planes.items():
        models.append(
            {
                "name": without_surrogates(name),
                "layers": numbers[name],
                "start": len(xy) - 1 if start is None else numbers[name].index(start),
                "xy": [_packed_plane(layer) for layer in xy],
                "spot": [bool((layer == layer[0]).all()) for layer in xy],
                "variance": [_finite_or_none(share) for share in variance[name]] if name in variance else None,
            }
        )
    data = {
        "n": len(texts),
        "texts": [prompt_map_text(text) for text in texts],
        "models": models,
        "shared": len(set(map(tuple, numbers.values()))) == 1,
        "colours": [
            {"name": without_surrogates(name), **prompt_map_classes(values)}
            for name, values in _varied(colours).items()
        ],
        "clusters": None if clusters is None else _colour_slots(clusters),
    }
    return _fragment(data, len(texts), sum(map(len, numbers.values())))


def _packed_plane(layer: Float[np.ndarray, "example 2"]) -> str:
    """Return a plane in base64 of 16-bit integers, x and y in turn.

    30,000 is half the frame's width. 32,767 marks an axis of a prompt outside the frame. It is drawn at the frame's
    edge, on the line to it from the middle.
    """
    low, high = np.quantile(layer, [0.02, 0.98], axis=0)
    placed = layer - (low + high) / 2
    reach = np.abs(placed).max(axis=1)
    half = min(float(reach.max()), 1.5 * float(np.quantile(reach, 0.98)) or math.inf) or 1.0
    outside = reach > half
    steps = np.round(placed / np.where(outside, reach, half)[:, None] * _STEPS)
    steps[outside] = np.where(np.abs(steps[outside]) == _STEPS, np.sign(steps[outside]) * _EDGE, steps[outside])
    return script_numbers(steps, "<i2")


def _finite_or_none(share: float) -> float | None:
    return round(float(share), 4) if math.isfinite(share) else None


def _varied(colours: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Return the labels with more than one value, or the first label if there are none."""
    varied = {name: values for name, values in colours.items() if len(set(values)) > 1}
    return varied or dict([next(iter(colours.items()))])


def prompt_map_classes(values: Sequence[str]) -> dict[str, Any]:
    """Return a label's classes and the class of each prompt.

    Numbers come in ascending order, other values with the most frequent first.
    """
    texts = [without_surrogates(value) for value in values]
    counts = Counter(texts)
    numbers = {text: _number(text) for text in counts}
    is_numeric = None not in numbers.values()
    order = numbers if is_numeric else {text: -count for text, count in counts.items()}
    names = [text for _, text in sorted((order[text], text) for text in counts)]
    place = {text: i for i, text in enumerate(names)}
    return {
        "classes": [prompt_map_text(name) for name in names],
        "codes": script_numbers([place[text] for text in texts], "<u4"),
        "numbers": [numbers[name] for name in names] if is_numeric and len(names) > _MAX_NUMERIC_CLASSES else None,
    }


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _colour_slots(clusters: Integer[np.ndarray, "layer example"]) -> dict[str, Any]:
    """Return the colour slot of each cluster at each layer.

    A cluster takes the slot of the previous layer's cluster with which it shares most prompts (Hungarian method).
    """
    from scipy.optimize import linear_sum_assignment

    names: list[list[str]] = []
    codes: list[str] = []
    before: Integer[np.ndarray, "example"] | None = None
    for layer in clusters:
        ids, cluster = np.unique(layer, return_inverse=True)
        if before is None:
            slot = np.arange(len(ids))
        else:
            shared = np.zeros((len(ids), max(int(before.max()) + 1, len(ids))), dtype=np.int64)
            np.add.at(shared, (cluster, before), 1)
            slot = linear_sum_assignment(-shared)[1]  # rows come in order
        before = slot[cluster]
        name_of_slot = [""] * (int(slot.max()) + 1)
        for i, at in enumerate(slot):
            name_of_slot[at] = str(ids[i])
        names.append(name_of_slot)
        codes.append(script_numbers(before, "<u4"))
    return {"names": names, "codes": codes}


def _fragment(data: Mapping[str, Any], n: int, n_layers: int) -> str:
    from jinja2.utils import htmlsafe_json_dumps  # json.dumps would let a prompt close the script element

    place = f"prompt-map-{uuid4().hex[:12]}"
    inside = htmlsafe_json_dumps(data, separators=(",", ":"), ensure_ascii=False)
    without_script = f"A map of {n:,} prompts at {n_layers} layers belongs here; it needs JavaScript, but no network."
    # A module runs after the whole page is read, so the order of maps does not matter.
    return f"""<div id="{place}" data-lm-suppress-shortcuts="true"><p>{escape(without_script)}</p></div>
{_code().html}<script type="module">
{_code().function}("{place}", {inside});
</script>
"""


@lru_cache(maxsize=1)
def _code() -> ViewScript:
    script = scripts_with_kit(_PACKAGE, "points.js", "prompt_map.js")
    return ViewScript("mechclustPromptMap", script_text(_PACKAGE, "prompt_map.css"), script)


def prompt_map_text(text: str) -> str:
    """Return a text as the page shows it: cut, with an ellipsis, if it is long."""
    return without_surrogates(text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…")
