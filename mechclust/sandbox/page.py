"""Write the sandbox as one self-contained, interactive HTML page, drawn by plotly.js."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from einops import rearrange
from jaxtyping import Float, Shaped

from mechclust.report.html import html_template
from mechclust.sandbox.colors import cluster_colors, run_colors, sandbox_line_color, token_colors
from mechclust.sandbox.legend import legend_of
from mechclust.sandbox.run import Lines, SandboxRun
from mechclust.web.scripts import script_content_policy, script_numbers, script_text, scripts_with_kit
from probes.store.files import write_atomic
from tasks import InputError

_PACKAGE = "mechclust.sandbox"
_SCRIPTS = ("sandbox_data.js", "sandbox_panels.js", "sandbox.js")  # in this order
_MOST_MAPPED = 128  # answers of a class map, whose cells are a byte each with at least two shades
_GAP = -(2**15)  # represents NaN among 16-bit integers


def sandbox_page(run: SandboxRun, path: str | Path, *, max_bytes: int = 15_000_000) -> Path:
    """Write a page with every panel, a slider over epochs, and panels linked through the sequence under the pointer.

    The page needs no network and no other file. About 5 MB of it is plotly.js. A frame adds 7 kB or more.

    Args:
        run: a run from ``record_sandbox`` or ``sandbox_run``.
        path: where to write it, atomically.
        max_bytes: larger pages are refused.

    Returns:
        The path.

    Raises:
        InputError: for fewer than two frames, a name that does not end in ``.html``, more answers than a class map has
            colours for, or a page too large.

    Example:
        >>> sandbox_page(run, "runs/heads/sandbox.html")  # doctest: +SKIP
        PosixPath('runs/heads/sandbox.html')
    """
    path = Path(path)
    if path.suffix != ".html":
        raise InputError(f"a sandbox page cannot be written to {str(path)!r}; give a name that ends in .html")
    if len(run.epochs) < 2:
        raise InputError(f"there is {len(run.epochs)} frame to show; a sandbox page needs at least 2")
    if "class_map" in run.values and len(run.answers) > _MOST_MAPPED:
        raise InputError(
            f"there are {len(run.answers)} answers, and a page's class map has colours for {_MOST_MAPPED}; write a "
            "film (.mp4, .gif) or a figure (.png)"
        )
    html = render_sandbox_page(run).encode(errors="backslashreplace")
    if len(html) > max_bytes:
        raise InputError(
            f"the page of {len(run.epochs)} {run.unit}s would take {len(html) / 1e6:.1f} MB, and max_bytes is "
            f"{max_bytes:,}; record fewer (max_frames, --max-frames), or raise max_bytes"
        )
    write_atomic(path, html)
    return path


def render_sandbox_page(run: SandboxRun) -> str:
    """Return the page's HTML."""
    from jinja2.utils import htmlsafe_json_dumps  # json.dumps would let a text close the script element
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    script = f'<script>\n(() => {{\n"use strict";\n{scripts_with_kit(_PACKAGE, *_SCRIPTS)}\n}})();\n</script>'
    plotly = f"<script>{get_plotlyjs()}</script>"
    return html_template("sandbox", _PACKAGE).render(
        policy=script_content_policy(plotly, script, images="data: blob:"),
        title=run.title,
        style=Markup(script_text(_PACKAGE, "sandbox.css")),
        script=Markup(script),
        plotly=Markup(plotly),
        data=htmlsafe_json_dumps(_page_data(run), separators=(",", ":")),
    )


def _page_data(run: SandboxRun) -> dict[str, Any]:
    """Return the data of the page's script, as JSON with arrays in base64."""
    sequences = run.sequences
    return {
        "panels": [asdict(panel) for panel in run.panels.values()],
        "epochs": run.epochs,
        "last": run.epochs[-1],
        "kept": run.kept,
        "unit": run.unit,
        "digits": run.n_digits,
        "length": run.length,
        "support": list(run.support),
        "corners": run.corners if run.answers else [],
        "tokens": sequences.tokens.tolist(),
        "tokenNames": list(sequences.token_names),
        "answers": None if sequences.answers is None else sequences.answers.tolist(),
        "notes": list(sequences.notes),
        "clusters": sequences.clusters.tolist(),
        "clusterNames": list(sequences.cluster_names),
        "clusterColors": cluster_colors(run),
        "answerNames": list(run.answers),
        "answerColors": run_colors(run),
        "tokenColors": token_colors(run.n_digits),
        "cloudAnswers": [] if run.cloud_answers is None else run.cloud_answers.tolist(),
        "legend": [asdict(key) for key in legend_of(run, list(run.panels.values()))],
        **_arrays(run),
        "variance": {name: _finite(share.tolist()) for name, share in run.variance.items()},
        "curves": _curves(run),
    }


def _arrays(run: SandboxRun) -> dict[str, Any]:
    """Return the points and numbers of planes, heat maps and backgrounds, and the ranges of their axes."""
    values = run.values
    planes = sorted({panel.points for panel in run.panels.values() if panel.kind == "plane"})
    heats = sorted({panel.points for panel in run.panels.values() if panel.kind == "heat"})
    arrays: dict[str, Any] = {name: _plane(values[name]) for name in planes}
    arrays |= {name: _packed(values[name]) for name in {*heats, "probabilities", "predicted", "biases"} & set(values)}
    if "cloud" in values:
        arrays["cloud"] = _plane(values["cloud"])
    if "query" in values:
        arrays["query"] = _plane(values["query"][:, None])
    if "votes" in values:
        arrays["votes"] = _bytes(values["votes"])
    ranges = {name: run.half_width(name) for name in planes if name != "simplex"}
    ranges |= {name: float(np.nanmax(values[name])) for name in heats}
    data: dict[str, Any] = {"arrays": arrays, "reach": ranges}
    if "class_map" in values:
        shades = 256 // len(run.answers)
        arrays["class_map"] = _bytes(_map(run, shades))
        height, width = values["class_map"].shape[1:]
        data["map"] = {"width": width, "height": height, "shades": shades, "reach": run.map_half_height}
    if run.level_lines is not None:
        data["lines"] = _lines(run, run.level_lines)
    return data


def _curves(run: SandboxRun) -> dict[str, Any]:
    panels: dict[str, list[dict[str, Any]]] = {}
    for panel in run.panels.values():
        if panel.kind == "curves":
            curves = enumerate(run.curves.panels.get(panel.name, {}).items())
            panels[panel.name] = [
                {"name": name, "color": sandbox_line_color(i), "values": _finite(np.asarray(series).tolist())}
                for i, (name, series) in curves
            ]
    return {
        "epochs": np.asarray(run.curves.epochs).tolist(),
        "panels": panels,
        "spikes": [{"epoch": epoch, "text": text} for epoch, text in run.curves.spikes],
        "small": [{"epoch": epoch, "text": text} for epoch, text in run.curves.small_spikes],
    }


def _packed(values: Shaped[np.ndarray, "frame ..."]) -> dict[str, Any]:
    """Return values as 16-bit integers, each frame with its scale: half of float32's bytes, finer than a screen."""
    flat = values.reshape(len(values), -1).astype(np.float64)
    finite = np.isfinite(flat)
    scale = np.abs(np.where(finite, flat, 0)).max(axis=1) / (2**15 - 1)
    scale[scale == 0] = 1
    with np.errstate(invalid="ignore"):
        integers = np.where(finite, np.round(flat / scale[:, None]), _GAP)
    return {
        "size": flat.shape[1],
        "scale": script_numbers(scale, "<f4"),
        "data": script_numbers(integers, "<i2"),
    }


def _plane(points: Float[np.ndarray, "frame point 2"]) -> dict[str, Any]:
    """Return points with all x of a frame before all y, as plotly reads them."""
    return _packed(rearrange(points, "frame point xy -> frame xy point"))


def _bytes(values: Shaped[np.ndarray, "frame n"]) -> dict[str, Any]:
    return {"size": values.shape[1], "data": script_numbers(values, "u1")}


def _map(run: SandboxRun, shades: int) -> Float[np.ndarray, "frame cell"]:
    """Return a byte for each cell: the likeliest answer, in one of so many shades by its certainty."""
    cells = run.values["class_map"] * shades + np.round(np.nan_to_num(run.sureness) * (shades - 1))
    return cells.reshape(len(cells), -1)


def _lines(run: SandboxRun, level_lines: Lines) -> dict[str, Any]:
    """Return level lines of all frames in one array, answer by answer, with a gap after each line."""
    gap = np.full((1, 2), np.nan)
    parts = [gap]
    ends = []
    for frame in level_lines:
        for answer in range(len(run.answers)):
            for line_answer, _, line in frame:
                if line_answer == answer:
                    parts += [line, gap]
            ends.append(len(parts))
    lengths = np.cumsum([len(part) for part in parts])
    xy = _packed(np.concatenate(parts).T[None])
    return {**xy, "ends": [int(lengths[end - 1]) for end in ends]}


def _finite(series: list[float]) -> list[float | None]:
    """Return numbers with six digits, and ``None`` for NaN, which JSON does not have."""
    return [float(f"{x:.6g}") if np.isfinite(x) else None for x in series]
