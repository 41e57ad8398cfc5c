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
from jaxtyping import Float, Integer, Shaped

from mechclust.report.text import without_surrogates
from mechclust.web.scripts import ViewScript, script_numbers, script_text, scripts_with_kit
from tasks import InputError

_PACKAGE = "mechclust.report"
CLUSTER = "cluster"  # the colouring that ``clusters`` adds
_STEPS = 30_000  # half a frame's width as an integer. ``_EDGE`` marks points outside
_EDGE = 32_767
MAX_CHARACTERS = 300  # of a prompt on a page
_MAX_NUMERIC_CLASSES = 12  # more different numbers are a scale


def prompt_map(
    planes: Mapping[str, Shaped[np.ndarray, "_ example 2"]],
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

    Raises:
        InputError: for no prompts, numbers of layers or of prompts that differ, and values that are not finite.

    Example:
        >>> planes = np.random.default_rng(0).normal(size=(3, 4, 2))
        >>> html = prompt_map({"gpt2": planes}, [0, 1, 2], ["a", "b", "c", "d"], {"task": ["x", "x", "y", "y"]})
        >>> html.count("<script")
        2
    """
    _check_given(planes, layers, texts, colours)
    coordinates = {name: np.asarray(xy, dtype=np.float64) for name, xy in planes.items()}
    numbers = {name: list(map(int, layers[name] if isinstance(layers, Mapping) else layers)) for name in planes}
    _check_planes(coordinates, numbers, len(texts))
    _check_colours(colours, len(texts))
    if clusters is not None:
        clusters = np.asarray(clusters)
        _check_clusters(clusters, numbers, len(texts), colours)
    first = _first_layers(start, numbers)
    shares = _variance_shares(variance or {}, numbers)
    models = []
    for name, xy in coordinates.items():
        models.append(
            {
                "name": without_surrogates(name),
                "layers": numbers[name],
                "start": first[name],
                "xy": [_packed_plane(layer) for layer in xy],
                "spot": [bool((layer == layer[0]).all()) for layer in xy],
                "variance": shares.get(name),
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


def _check_given(
    planes: Mapping[str, Shaped[np.ndarray, "..."]],
    layers: Sequence[int] | Mapping[str, Sequence[int]],
    texts: Sequence[str],
    colours: Mapping[str, Sequence[str]],
) -> None:
    if not len(texts):
        raise InputError("there are no prompts to map; give at least one text")
    if not planes:
        raise InputError("planes has no model; give an array [layers examples 2] by model name")
    if not colours:
        raise InputError("colours has no label; give a value per prompt by label, such as {'task': [...]}")
    if isinstance(layers, Mapping) and set(layers) != set(planes):
        raise InputError(f"layers are given for {_names(layers)}, and planes for {_names(planes)}; give both by model")


def _check_planes(
    coordinates: Mapping[str, Float[np.ndarray, "..."]], numbers: Mapping[str, Sequence[int]], n: int
) -> None:
    for name, xy in coordinates.items():
        if xy.ndim != 3 or xy.shape[2] != 2:
            raise InputError(f"the planes of {name!r} have the shape {list(xy.shape)}; expected [layers examples 2]")
        if not len(xy) or len(xy) != len(numbers[name]):
            raise InputError(
                f"the planes of {name!r} have {len(xy)} layers, and layers names {len(numbers[name])}; "
                "name each layer, at least one"
            )
        if xy.shape[1] != n:
            raise InputError(
                f"the planes of {name!r} have {xy.shape[1]} examples, and there are {n} texts; give a text per example"
            )
        wrong = np.flatnonzero(~np.isfinite(xy).all(axis=(1, 2)))
        if len(wrong):
            raise InputError(
                f"the planes of {name!r} have values that are not finite at layer {numbers[name][wrong[0]]}; "
                "leave these layers or examples out"
            )


def _check_colours(colours: Mapping[str, Sequence[str]], n: int) -> None:
    for name, values in colours.items():
        if len(values) != n:
            raise InputError(
                f"the colour {name!r} has {len(values)} values and there are {n} texts; give one per prompt"
            )


def _check_clusters(
    clusters: Shaped[np.ndarray, "..."],
    numbers: Mapping[str, Sequence[int]],
    n: int,
    colours: Mapping[str, Sequence[str]],
) -> None:
    if len(numbers) != 1:
        raise InputError(
            f"clusters are of one model, and planes has {_names(numbers)}; leave clusters out, or map one model"
        )
    (layers,) = numbers.values()
    if clusters.shape != (len(layers), n):
        raise InputError(
            f"clusters have the shape {list(clusters.shape)}; expected [layers examples], here [{len(layers)}, {n}]"
        )
    if not np.issubdtype(clusters.dtype, np.integer):
        raise InputError(f"clusters are of the type {clusters.dtype}; expected integers")
    if CLUSTER in colours:
        raise InputError(f"colours has a label {CLUSTER!r}, which clusters adds; rename the label")


def _first_layers(start: int | None, numbers: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return, by model, the index of the layer that is shown first."""
    if start is None:
        return {name: len(layers) - 1 for name, layers in numbers.items()}
    for name, layers in numbers.items():
        if start not in layers:
            raise InputError(
                f"start is layer {start}, and {name!r} has the layers {', '.join(map(str, layers))}; give one of them"
            )
    return {name: list(layers).index(start) for name, layers in numbers.items()}


def _variance_shares(
    variance: Mapping[str, Sequence[float]], numbers: Mapping[str, Sequence[int]]
) -> dict[str, list[float | None]]:
    """Return, by model, the shares of variance, with ``None`` for NaN."""
    unknown = [name for name in variance if name not in numbers]
    if unknown:
        raise InputError(
            f"variance is given for {_names(unknown)}, and planes for {_names(numbers)}; give both by model"
        )
    for name, shares in variance.items():
        if len(shares) != len(numbers[name]):
            raise InputError(
                f"variance has {len(shares)} values for {name!r}, which has {len(numbers[name])} layers; give one each"
            )
    return {name: list(map(_finite_or_none, shares)) for name, shares in variance.items()}


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


def _names(names: Any) -> str:
    return " and ".join(map(repr, names)) or "none"


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
