"""What the command concludes from measures made by hand, at every layer and task another number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mechclust.commands.compare import CompareConfig, CompareResult
from probes import ProbeResult
from tests.frozen import check_frozen, made_probe, said_by

ALL = "(all)"
TASKS = ["add", "copy", "sort", "sum", "swap", "type", "word", "yes", "zip"]
SITES = ["hook_embed", *(f"blocks.{i}.hook_resid_post" for i in range(6))]
LAYERS = {site: i for i, site in enumerate(SITES)}
MODELS = ("tuned", "base")
WIDTHS = {f"{model}/{site}": 16 + i + 10 * (model == "base") for model in MODELS for i, site in enumerate(SITES)}
TOKENIZATION = {"tokenizer": "GPT2Tokenizer", "bos": "model", "chat": True, "adds": "none"}


def cka(draw: np.random.Generator, sites: list[str], tasks: list[str], scale: float) -> ProbeResult:
    """Similarities that fall with depth, and with the task's number; intervals get wider with it."""
    labels = [ALL, *tasks]
    coords = {"site": sites, "label": labels}
    names = ("cka", "debiased_cka", "debiased_cka_low", "debiased_cka_high", "debiased_cka_null_high")
    made = made_probe(
        "CKA", coords, draw, {**dict.fromkeys(names, ("site", "label")), "n": ("label",)}, LAYERS, {"d": WIDTHS}
    )
    steep = torch.from_numpy(draw.uniform(0.6, 1.4, (len(sites), len(labels))))
    depth = torch.arange(len(sites), dtype=torch.float64)[:, None]
    change = scale * depth * steep * torch.arange(1, len(labels) + 1) / len(labels)
    width = 0.004 * torch.arange(1, len(labels) + 1)
    made.values["debiased_cka"][:] = 1 - change
    made.values["debiased_cka_low"][:] = 1 - change - width
    made.values["debiased_cka_high"][:] = 1 - change + width
    made.values["debiased_cka_null_high"][:] *= 0.2
    made.values["n"][:] = 20 + torch.arange(len(labels))
    return made


def without_top(draw: np.random.Generator) -> ProbeResult:
    coords = {"site": SITES, "label": TASKS}
    made = made_probe("CKA", coords, draw, {"debiased_cka": ("site", "label"), "n": ("label",)}, LAYERS)
    made.values["n"][:] = 8 + torch.arange(len(TASKS))
    return made


def patching(draw: np.random.Generator, tasks: list[str]) -> ProbeResult:
    names = [f"{name}{end}" for name in ("restored", "rise") for end in ("", "_low", "_high")]
    axes = {**dict.fromkeys([*names, "chance"], ("site", "label")), "divergence": ("label",), "n": ("label",)}
    made = made_probe("Patching", {"site": SITES, "label": [ALL, *tasks]}, draw, axes, LAYERS)
    for name in ("restored", "rise"):
        value = made.values[name]
        value[:] = value * torch.tensor([0.0, 0.01, 0.3, 0.02, 0.5, 0.001, -0.1])[:, None]
        made.values[f"{name}_low"][:] = value - 0.02
        made.values[f"{name}_high"][:] = value + 0.03
    return made


def compared(seed: int, scale: float = 0.02, **fields: Any) -> CompareResult:
    draw = np.random.default_rng(seed)
    given = {"config": CompareConfig(Path("prompts.jsonl")), "tasks": TASKS}
    given |= {"cka": cka(draw, SITES, TASKS, scale), "tokenization": TOKENIZATION}
    return CompareResult("base", "tuned", **{**given, **fields})


def of_everything() -> dict[str, Any]:
    draw = np.random.default_rng(1)
    blocks = cka(draw, SITES[1:], TASKS, 0.015)
    patched = patching(draw, TASKS)
    draw.random((len(SITES) + 1) * len(TASKS))  # the record was made with one more measure here
    return said_by(
        compared(
            0,
            blocks=blocks,
            patching=patched,
            without_top_pc=without_top(draw),
            notes=("3 prompts were left out",),
        )
    )


def of_blocks() -> dict[str, Any]:
    """Blocks without patching; where an interval or a similarity is missing, and one task stands out."""
    draw = np.random.default_rng(2)
    result = compared(3, scale=0.004, blocks=cka(draw, SITES[1:], TASKS, 0.01), why_no_patching="there is no output")
    result.cka.values["debiased_cka_low"][2:4, 3] = torch.nan
    result.cka.values["debiased_cka_high"][2:4, 3] = torch.nan
    for name in ("debiased_cka", "debiased_cka_low", "debiased_cka_high"):
        result.cka.values[name][1, 5] = torch.nan
        result.cka.values[name][:, 9] -= 0.2
    return said_by(result)


def of_unchanged() -> dict[str, Any]:
    return said_by(compared(4, scale=0.0001, why_no_blocks="the models differ in their blocks"))


CASES = {
    "compare": of_everything,
    "compare blocks": of_blocks,
    "compare unchanged": of_unchanged,
}


@pytest.mark.parametrize("name", CASES)
def test_conclusions_are_the_recorded_ones(name: str) -> None:
    check_frozen(name, CASES[name])
