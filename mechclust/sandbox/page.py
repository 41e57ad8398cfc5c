"""The sandbox as one self-contained, interactive HTML page, drawn by plotly.js."""

from __future__ import annotations

import base64
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from mechclust.report.html import content_policy, template
from mechclust.sandbox.legend import legend_of
from mechclust.sandbox.run import Lines, SandboxRun
from mechclust.sandbox.style import cluster_colors, curves_of, line_color, run_colors, token_colors
from probes.store.files import write_atomic
from tasks import InputError

_PACKAGE = "mechclust.sandbox"
_SCRIPTS = ("sandbox_data.js", "sandbox_panels.js", "sandbox.js")  # in this order
_GAP = -(2**15)  # stands for NaN among 16-bit integers


def sandbox_page(run: SandboxRun, path: str | Path, *, max_bytes: int = 15_000_000) -> Path:
    """Write a page with every panel, a slider over epochs, and panels linked through the sequence under the pointer.

    The page needs no network and no other file. About 5 MB of it is plotly.js; a frame adds about 13 kB.

    Args:
        run: what ``record_sandbox`` or ``sandbox_run`` recorded.
        path: where to write it, atomically.
        max_bytes: larger pages are refused.

    Returns:
        The path.

    Raises:
        InputError: for fewer than two frames, a name that does not end in ``.html``, or a page too large.

    Example:
        >>> sandbox_page(run, "runs/heads/sandbox.html")  # doctest: +SKIP
        PosixPath('runs/heads/sandbox.html')
    """
    path = Path(path)
    if path.suffix != ".html":
        raise InputError(f"a sandbox page cannot be written to {str(path)!r}; give a name that ends in .html")
    if len(run.epochs) < 2:
        raise InputError(f"there is {len(run.epochs)} frame to show; a sandbox page needs at least 2")
    html = render_sandbox(run).encode(errors="backslashreplace")
    if len(html) > max_bytes:
        raise InputError(
            f"the page of {len(run.epochs)} {run.unit}s would take {len(html) / 1e6:.1f} MB, and max_bytes is "
            f"{max_bytes:,}; record fewer (max_frames), or raise max_bytes"
        )
    write_atomic(path, html)
    return path


def render_sandbox(run: SandboxRun) -> str:
    """The page's HTML."""
    from jinja2.utils import htmlsafe_json_dumps  # json.dumps would let a text close the script element
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    templates = files(_PACKAGE) / "templates"
    parts = "\n".join((templates / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    script = f'<script>\n(() => {{\n"use strict";\n{parts}\n}})();\n</script>'
    plotly = f"<script>{get_plotlyjs()}</script>"
    return template("sandbox", _PACKAGE).render(
        policy=content_policy(plotly, script, images="data: blob:"),
        title=run.title,
        style=Markup((templates / "sandbox.css").read_text(encoding="utf-8")),
        script=Markup(script),
        plotly=Markup(plotly),
        data=htmlsafe_json_dumps(page_data(run), separators=(",", ":")),
    )


def page_data(run: SandboxRun) -> dict[str, Any]:
    """What the page's script reads, as JSON; arrays in base64."""
    sequences, values = run.sequences, run.values
    planes = sorted({panel.points for panel in run.panels.values() if panel.kind == "plane"})
    heats = sorted({panel.points for panel in run.panels.values() if panel.kind == "heat"})
    kept: dict[str, Any] = {name: _plane(values[name]) for name in planes}
    kept |= {name: _small(values[name]) for name in {*heats, "probabilities", "biases"} & set(values)}
    if "cloud" in values:
        kept["cloud"] = _plane(values["cloud"])
    if "query" in values:
        kept["query"] = _plane(values["query"][:, None])
    if "votes" in values:
        kept["votes"] = _bytes(values["votes"])
    drawn: dict[str, Any] = {}
    if "class_map" in values:
        shades = 256 // len(run.answers)
        kept["class_map"] = _bytes(_map(run, shades))
        height, width = values["class_map"].shape[1:]
        drawn["map"] = {"width": width, "height": height, "shades": shades, "reach": run.map_half_height}
    if run.level_lines is not None:
        drawn["lines"] = _lines(run, run.level_lines)
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
        "arrays": kept,
        **drawn,
        "reach": {
            **{name: run.half_width(name) for name in planes if name != "simplex"},
            **{name: float(np.nanmax(values[name])) for name in heats},
        },
        "variance": {name: _finite(share.tolist()) for name, share in run.variance.items()},
        "curves": {
            "epochs": np.asarray(run.curves.epochs).tolist(),
            "panels": {
                panel.name: [
                    {"name": name, "color": line_color(i), "values": _finite(series)}
                    for i, (name, series) in enumerate(curves_of(run.curves, panel.curves).items())
                ]
                for panel in run.panels.values()
                if panel.kind == "curves"
            },
            "spikes": [{"epoch": epoch, "text": text} for epoch, text in run.curves.spikes],
            "small": [{"epoch": epoch, "text": text} for epoch, text in run.curves.small_spikes],
        },
    }


def _text(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _small(values: np.ndarray) -> dict[str, Any]:
    """``[frame ...]`` as 16-bit integers, each frame with its scale: half of float32's bytes, finer than a screen."""
    flat = values.reshape(len(values), -1).astype(np.float64)
    finite = np.isfinite(flat)
    scale = np.abs(np.where(finite, flat, 0)).max(axis=1) / (2**15 - 1)
    scale[scale == 0] = 1
    with np.errstate(invalid="ignore"):
        whole = np.where(finite, np.round(flat / scale[:, None]), _GAP)
    return {"size": flat.shape[1], "scale": _text(scale.astype("<f4")), "data": _text(whole.astype("<i2"))}


def _plane(points: np.ndarray) -> dict[str, Any]:
    """``[frame point 2]`` with all x of a frame before all y, as plotly wants them."""
    return _small(np.swapaxes(points, 1, 2))


def _bytes(values: np.ndarray) -> dict[str, Any]:
    return {"size": values.shape[1], "data": _text(values.astype(np.uint8))}


def _map(run: SandboxRun, shades: int) -> np.ndarray:
    """A byte a cell: the likeliest answer, and in so many shades how far it is from a guess."""
    cells = run.values["class_map"] * shades + np.round(np.nan_to_num(run.sureness) * (shades - 1))
    return cells.reshape(len(cells), -1)


def _lines(run: SandboxRun, level_lines: Lines) -> dict[str, Any]:
    """Level lines of all frames in one array, answer by answer, with a gap after each line."""
    gap = np.full((1, 2), np.nan)
    parts, ends = [gap], []
    for frame in level_lines:
        for answer in range(len(run.answers)):
            parts += [part for found, _, line in frame if found == answer for part in (line, gap)]
            ends.append(len(parts))
    lengths = np.cumsum([len(part) for part in parts])
    xy = _small(np.concatenate(parts).T[None])
    return {**xy, "ends": [int(lengths[end - 1]) for end in ends]}


def _finite(series: list[float]) -> list[float | None]:
    """JSON knows no NaN; six digits are more than a screen shows."""
    return [float(f"{x:.6g}") if np.isfinite(x) else None for x in series]
