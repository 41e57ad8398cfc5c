"""Figures of probes' results, of every layout, from values made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from probes import ProbeResult
from probes.head_roles import HEAD_ROLES
from tests.frozen import check_frozen
from tests.probes.test_plots import LAYERS, PATTERNS, STREAM, curves, heads


def drawn(result: ProbeResult, name: str, **at: str) -> Figure:
    """The figure that a result draws of a measure."""
    return np.ravel(result.plot(name, **at))[0].figure


def plots() -> dict[str, Any]:
    matrix = torch.arange(6.0).reshape(3, 2, 1)
    coords = {"site": STREAM, "other_site": STREAM[:2], "label": ["(all)"]}
    pairs = ProbeResult("CKA", {"cka": matrix}, {"cka": ("site", "other_site", "label")}, coords, LAYERS)
    roles = torch.tensor([[0, 1, 2], [2, 0, len(HEAD_ROLES) - 1]])
    of_heads = {"site": PATTERNS, "head": ["0", "1", "2"]}
    layers = dict(zip(PATTERNS, [0, 1], strict=True))
    names = {"categories": {"role": list(HEAD_ROLES)}}
    named = ProbeResult("HeadRoles", {"role": roles}, {"role": ("site", "head")}, of_heads, layers, names)
    steps = torch.tensor([[3.0, 2.0], [1.0, torch.nan], [0.5, 4.0]])
    of_steps = {"step": ["0", "10", "100"], "site": STREAM[:2]}
    trained = ProbeResult("N", {"norm": steps}, {"norm": ("step", "site")}, of_steps, LAYERS)
    deep = [f"blocks.{i}.hook_resid_post" for i in range(40)]
    square = torch.arange(1600.0).reshape(40, 40)
    between = ProbeResult(
        "CKA",
        {"cka": square},
        {"cka": ("site", "other_site")},
        {"site": deep, "other_site": deep},
        {name: layer for layer, name in enumerate(deep)},
    )
    ends = {"ari_low": torch.zeros(3, 2), "ari_high": torch.ones(3, 2)}
    return {
        "figure curves": drawn(curves(**ends), "ari"),
        "figure one curve": drawn(curves(), "ari", label="task"),
        "figure heads": drawn(heads(), "ratio"),
        "figure panels": drawn(heads(), "sum"),
        "figure pairs": drawn(pairs, "cka"),
        "figure deep pairs": drawn(between, "cka"),
        "figure roles": drawn(named, "role"),
        "figure steps": drawn(trained, "norm"),
    }


CASES = {"plots of probes": plots}


@pytest.mark.parametrize("name", CASES)
def test_figures_are_the_recorded_ones(name: str) -> None:
    check_frozen(name, CASES[name])
