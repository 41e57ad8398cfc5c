"""Curves and results that were made by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mechclust.commands.history.config import HistoryConfig
from mechclust.commands.history.curves import Curve
from mechclust.commands.history.integrity import Defect
from mechclust.commands.history.result import HistoryResult
from mechclust.commands.history.series import Checkpoint
from mechclust.models.resolved import ResolvedModel


def made_curve(p, name="clusters", layers=None, **fields):
    """A curve with these p-values, ``[checkpoint layer]``; all its values differ."""
    n, width = p.shape
    numbers = np.arange(p.size, dtype=float).reshape(p.shape)
    layers = list(range(width)) if layers is None else layers
    given = {
        "value": 0.1 + 0.017 * numbers,
        "low": -0.05 - 0.001 * numbers,
        "high": 0.05 + 0.002 * numbers,
        "n": [30] * n,
    }
    given |= dict.fromkeys(("value_low", "value_high"), np.full(p.shape, np.nan))
    return Curve(name=name, sites=[f"site{i}" for i in layers], layers=layers, p=p, **(given | fields))


def made_result(curves, flagged=()):
    """A result with these curves, whose ``flagged`` checkpoints have the last one's weights."""
    n = len(curves[0].value)
    return HistoryResult(
        model="made",
        config=HistoryConfig(Path("prompts.jsonl")),
        series=[Checkpoint(f"step{i}", i, ResolvedModel(f"made@step{i}")) for i in range(n)],
        findings=[Defect("last", tuple(flagged), "stale")] if flagged else [],
        results={},
        curves={curve.name: curve for curve in curves},
        planes=None,
        attention=[{}] * n,
        words={},
        input_notes=[],
        starts_random=True,
    )


def rows(result, what):
    """Where and value of the readings whose quantity or event begins so."""
    return [(reading.where, reading.value) for reading in result.readings if reading.what.startswith(what)]
