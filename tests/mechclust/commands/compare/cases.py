"""Prompts of a few tasks, a model with another second block, and results made up by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from mechclust.commands.compare import CompareConfig, CompareResult
from probes import ProbeResult

TASKS = ("a", "b", "c")


def records(tasks=TASKS, n=12):
    """The last word is the task's, as a common suffix would be."""
    return [{"prompt": f"w{i % 4} w{4 + i // 4} w{10 + k}", "task": t} for k, t in enumerate(tasks) for i in range(n)]


def write_prompts(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def shake(model):
    """Another second block: layers 0 and 1 stay as they were."""
    draw = torch.Generator().manual_seed(0)
    for weight in model.transformer.h[1].parameters():
        weight += 0.5 * torch.randn(weight.shape, generator=draw)


def found(change, low, high, *, tasks=None, together=None, n=None):
    """A result with these changes ``[layer task]`` and ends of intervals, NaN where there are none.

    ``together``: ``[layer]`` change, low and high of all prompts together, none by default.
    """
    change, low, high = (np.array(x, dtype=float) for x in (change, low, high))
    depth, many = change.shape
    tasks, n = tasks or list("abcdefgh"[:many]), n or [30] * many
    together = np.zeros((depth, 3)) if together is None else np.array(together, dtype=float)
    values = {
        name: torch.from_numpy(1 - np.concatenate([together[:, i : i + 1], x], axis=1))
        for i, (name, x) in enumerate(
            {"debiased_cka": change, "debiased_cka_high": low, "debiased_cka_low": high}.items()
        )
    }
    values |= {"cka": values["debiased_cka"], "n": torch.tensor([sum(n), *n])}
    sites = ["hook_embed", *(f"blocks.{i}.hook_resid_post" for i in range(depth - 1))]
    cka = ProbeResult(
        "CKA",
        values,
        {name: ("label",) if name == "n" else ("site", "label") for name in values},
        {"site": sites, "label": ["(all)", *tasks]},
        {site: i for i, site in enumerate(sites)},
        {"d": {f"{model}/{site}": 16 for model in ("tuned", "base") for site in sites}},
    )
    return CompareResult(base="base", tuned="tuned", config=CompareConfig(Path("prompts.jsonl")), tasks=tasks, cka=cka)
