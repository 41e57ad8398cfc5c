"""An attention view as a file, so that a page can be made without the model."""

from __future__ import annotations

import json
from pathlib import Path

from mechclust.attention import AttentionView, attention_view_from_patterns
from probes.store.safetensors_files import read_safetensors, write_safetensors
from tasks import InputError

VIEW_FORMAT = "mechclust-attention-view-1"


def save_view(path: Path, view: AttentionView) -> None:
    """Write a view of one model, whole or not at all."""
    about = {
        "str_tokens": view.str_tokens,
        "names": view.names,
        "causal": view.causal,
        "labels": view.labels,
        "values": view.values,
    }
    write_safetensors(path, {"patterns": view.patterns}, {"format": VIEW_FORMAT, "about": json.dumps(about)})


def load_view(path: Path) -> AttentionView | None:
    """Read the view that ``save_view`` wrote, or return ``None`` if there is no file.

    Raises:
        InputError: for a damaged file, or another.
    """
    if not path.exists():
        return None
    tensors, header = read_safetensors(path)
    if header.get("format") != VIEW_FORMAT:
        raise InputError(f"{str(path)!r} is not an attention view (its format is {header.get('format')}); remove it")
    about = json.loads(header["about"])
    return attention_view_from_patterns(
        tensors["patterns"],
        about["str_tokens"],
        about["names"],
        causal=about["causal"],
        labels=about["labels"] or None,
        values=about["values"] or None,
    )
