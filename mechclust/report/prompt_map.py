"""The interactive map of prompts: each layer's plane with a slider over layers, as an HTML fragment."""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any
from uuid import uuid4

import numpy as np
from jaxtyping import Float, Integer

from tasks import InputError

MOST_TEXT = 300  # characters of a prompt that go into the page
_SCRIPTS = ("prompt_map_draw.js", "prompt_map.js")  # in this order
CLUSTER = "cluster"  # the colouring that ``clusters`` adds
_STEPS = 30_000  # half a frame's width as an integer; ``_EDGE`` marks what lies outside
_EDGE = 32_767
_NUMBERS = 12  # more different numbers than this are a scale, not classes


def prompt_map(
    planes: Mapping[str, Float[np.ndarray, "_ examples 2"]],
    layers: Sequence[int] | Mapping[str, Sequence[int]],
    texts: Sequence[str],
    colours: Mapping[str, Sequence[str]],
    *,
    clusters: Integer[np.ndarray, "layers examples"] | None = None,
    start: int | None = None,
    variance: Mapping[str, Sequence[float]] | None = None,
) -> str:
    """An HTML fragment with a map of the prompts per model, a slider over layers, and the prompts' texts.

    A prompt that is pointed at or clicked on is marked in every model's map. Where the models' layers are the same
    they share a slider, otherwise each has its own. The fragment needs JavaScript but no network, and may stand
    several times on a page or in a notebook's outputs.

    Each layer is drawn in a frame of its own size, so that scales are not compared over layers. A few prompts far off
    from all others are drawn as triangles at the frame's edge, and the map says how many they are.

    Args:
        planes: by model name ``[layers examples 2]``, each layer's prompts in a plane, as ``aligned_planes`` gives
            them. Different models may have different numbers of layers.
        layers: what the layers are called, ascending; by model name where the models have different ones.
        texts: the prompts. At most 300 characters of each go into the page; the search sees no more.
        colours: by label or surface feature, a value per prompt. The first is shown at the start. One with the same
            value for all prompts is left out where there are others.
        clusters: the cluster of each prompt at each layer, of a single model. Adds the colouring "cluster" and a table
            of clusters against labels. From layer to layer a cluster keeps its colour where its prompts do.
        start: the layer shown first; the last by default.
        variance: by model name, the share of each layer's variance that its plane holds, told under the map.

    Raises:
        InputError: for no prompts, numbers of layers or of prompts that differ, and values that are not finite.

    Example:
        >>> planes = np.random.default_rng(0).normal(size=(3, 4, 2))
        >>> html = prompt_map({"gpt2": planes}, [0, 1, 2], ["a", "b", "c", "d"], {"task": ["x", "x", "y", "y"]})
        >>> html.count("<script")
        2
    """
    _check_given(planes, layers, texts, colours)
    places = {name: np.asarray(xy, dtype=np.float64) for name, xy in planes.items()}
    called = {name: list(map(int, layers[name] if isinstance(layers, Mapping) else layers)) for name in planes}
    _check_planes(places, called, len(texts))
    for name, values in colours.items():
        if len(values) != len(texts):
            raise InputError(
                f"the colour {name!r} has {len(values)} values and there are {len(texts)} texts; give one per prompt"
            )
    found = None if clusters is None else _checked_clusters(np.asarray(clusters), called, len(texts), colours)
    first = _first(start, called)
    shares = _shares(variance or {}, called)
    data = {
        "n": len(texts),
        "texts": [shortened(text) for text in texts],
        "models": [
            {
                "name": clean(name),
                "layers": called[name],
                "start": first[name],
                "xy": [packed_plane(layer) for layer in xy],
                "spot": [bool((layer == layer[0]).all()) for layer in xy],
                "variance": shares.get(name),
            }
            for name, xy in places.items()
        ],
        "shared": len({tuple(own) for own in called.values()}) == 1,
        "colours": [{"name": clean(name), **_classes(values)} for name, values in _varied(colours).items()],
        "clusters": None if found is None else _slots(found),
    }
    return _fragment(data, len(texts), sum(map(len, called.values())))


def shortened(text: str) -> str:
    """As much of a text as the page holds, with an ellipsis where it is cut."""
    return clean(text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 1] + "…")


def clean(text: str) -> str:
    """Without halves of surrogate pairs, which no page can hold."""
    return str(text).encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def packed_plane(layer: Float[np.ndarray, "examples 2"]) -> str:
    """A plane in base64 of 16-bit integers, x and y in turn: 30,000 is half the frame's width, and 32,767 marks an axis
    of a prompt outside the frame, which stands where the line to it from the middle meets the edge."""
    low, high = np.quantile(layer, [0.02, 0.98], axis=0)
    placed = layer - (low + high) / 2
    reach = np.abs(placed).max(axis=1)
    half = min(float(reach.max()), 1.5 * float(np.quantile(reach, 0.98)) or math.inf) or 1.0
    outside = reach > half
    steps = np.round(placed / np.where(outside, reach, half)[:, None] * _STEPS)
    steps[outside] = np.where(np.abs(steps[outside]) == _STEPS, np.sign(steps[outside]) * _EDGE, steps[outside])
    return _base64(steps, "<i2")


def _check_given(
    planes: Mapping[str, np.ndarray],
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


def _check_planes(places: Mapping[str, np.ndarray], called: Mapping[str, Sequence[int]], n: int) -> None:
    for name, xy in places.items():
        if xy.ndim != 3 or xy.shape[2] != 2:
            raise InputError(f"the planes of {name!r} have the shape {list(xy.shape)}; expected [layers examples 2]")
        if not len(xy) or len(xy) != len(called[name]):
            raise InputError(
                f"the planes of {name!r} have {len(xy)} layers, and layers names {len(called[name])}; "
                "name each layer, at least one"
            )
        if xy.shape[1] != n:
            raise InputError(
                f"the planes of {name!r} have {xy.shape[1]} examples, and there are {n} texts; give a text per example"
            )
        if len(wrong := np.flatnonzero(~np.isfinite(xy).all(axis=(1, 2)))):
            raise InputError(
                f"the planes of {name!r} have values that are not finite at layer {called[name][wrong[0]]}; "
                "leave these layers or examples out"
            )


def _checked_clusters(
    clusters: np.ndarray, called: Mapping[str, Sequence[int]], n: int, colours: Mapping[str, Sequence[str]]
) -> np.ndarray:
    if len(called) != 1:
        raise InputError(
            f"clusters are of one model, and planes has {_names(called)}; leave clusters out, or map one model"
        )
    (own,) = called.values()
    if clusters.shape != (len(own), n):
        raise InputError(
            f"clusters have the shape {list(clusters.shape)}; expected [layers examples], here [{len(own)}, {n}]"
        )
    if not np.issubdtype(clusters.dtype, np.integer):
        raise InputError(f"clusters are of the type {clusters.dtype}; expected integers")
    if CLUSTER in colours:
        raise InputError(f"colours has a label {CLUSTER!r}, which clusters adds; rename the label")
    return clusters


def _first(start: int | None, called: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """By model, the place of the layer that is shown first."""
    for name, own in called.items():
        if start is not None and start not in own:
            raise InputError(
                f"start is layer {start}, and {name!r} has the layers {', '.join(map(str, own))}; give one of them"
            )
    return {name: len(own) - 1 if start is None else list(own).index(start) for name, own in called.items()}


def _shares(
    variance: Mapping[str, Sequence[float]], called: Mapping[str, Sequence[int]]
) -> dict[str, list[float | None]]:
    """By model, the shares with ``None`` for NaN."""
    if unknown := [name for name in variance if name not in called]:
        raise InputError(
            f"variance is given for {_names(unknown)}, and planes for {_names(called)}; give both by model"
        )
    for name, shares in variance.items():
        if len(shares) != len(called[name]):
            raise InputError(
                f"variance has {len(shares)} values for {name!r}, which has {len(called[name])} layers; give one each"
            )
    return {name: [round(float(x), 4) if math.isfinite(x) else None for x in s] for name, s in variance.items()}


def _varied(colours: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Those that tell some prompts from others; the first where none does."""
    found = {name: values for name, values in colours.items() if len(set(values)) > 1}
    return found or dict([next(iter(colours.items()))])


def _classes(values: Sequence[str]) -> dict[str, Any]:
    """A label's classes: numbers ascending, others the commonest first; and the class of each prompt."""
    texts = [clean(value) for value in values]
    counts = Counter(texts)
    numbers = {text: number for text in counts if (number := _number(text)) is not None}
    ordered = len(numbers) == len(counts)
    names = sorted(counts, key=lambda t: (numbers[t], t)) if ordered else sorted(counts, key=lambda t: (-counts[t], t))
    place = {text: i for i, text in enumerate(names)}
    return {
        "classes": [shortened(name) for name in names],
        "codes": _base64([place[text] for text in texts], "<u4"),
        "numbers": [numbers[name] for name in names] if ordered and len(names) > _NUMBERS else None,
    }


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _slots(clusters: np.ndarray) -> dict[str, Any]:
    """The clusters of each layer in slots, a slot being a colour: those that share most prompts with a cluster of the
    layer before have its slot (Hungarian method)."""
    from scipy.optimize import linear_sum_assignment

    names: list[list[str]] = []
    codes: list[str] = []
    before: np.ndarray | None = None
    for layer in clusters:
        ids, own = np.unique(layer, return_inverse=True)
        own = own.reshape(-1)
        if before is None:
            slot = np.arange(len(ids))
        else:
            shared = np.zeros((len(ids), max(int(before.max()) + 1, len(ids))), dtype=np.int64)
            np.add.at(shared, (own, before), 1)
            slot = linear_sum_assignment(-shared)[1]  # rows come in order
        before = slot[own]
        called = [""] * (int(slot.max()) + 1)
        for i, at in enumerate(slot):
            called[at] = str(ids[i])
        names.append(called)
        codes.append(_base64(before, "<u4"))
    return {"names": names, "codes": codes}


def _base64(values: Any, dtype: str) -> str:
    return base64.b64encode(np.asarray(values).astype(dtype).tobytes()).decode()


def _names(names: Any) -> str:
    return " and ".join(map(repr, names)) or "none"


def _fragment(data: Mapping[str, Any], n: int, n_layers: int) -> str:
    from jinja2.utils import htmlsafe_json_dumps  # json.dumps would let a prompt close the script element

    place = f"prompt-map-{uuid4().hex[:12]}"
    inside = htmlsafe_json_dumps(data, separators=(",", ":"), ensure_ascii=False)
    told = f"A map of {n:,} prompts at {n_layers} layers belongs here; it needs JavaScript, but no network."
    # A module runs after the whole page is read, so the order of maps does not matter.
    return f"""<div id="{place}" data-lm-suppress-shortcuts="true"><p>{escape(told)}</p></div>
{_code()}<script type="module">
{_function()}("{place}", {inside});
</script>
"""


@lru_cache(maxsize=1)
def _code() -> str:
    """Style and script. On a page of several maps the script is run once."""
    templates = files("mechclust.report") / "templates"
    style = (templates / "prompt_map.css").read_text(encoding="utf-8")
    return f"""<style>{style}</style>
<script>window.{_function()} ??= (() => {{
{_script()}return show; }})();</script>
"""


@lru_cache(maxsize=1)
def _script() -> str:
    templates = files("mechclust.report") / "templates"
    return "".join((templates / name).read_text(encoding="utf-8") for name in _SCRIPTS)


def _function() -> str:
    """The script's global name, with a digest: a notebook may hold the output of another version."""
    return f"mechclustPromptMap_{sha256(_script().encode()).hexdigest()[:8]}"
