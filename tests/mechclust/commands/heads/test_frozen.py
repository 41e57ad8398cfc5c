"""What the command concludes from roles made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from mechclust.commands.heads.config import HeadsConfig
from mechclust.commands.heads.inputs import NATURAL_TEXT, REPEATED
from mechclust.commands.heads.measurements import ModelRoles
from mechclust.commands.heads.result import HeadsResult
from probes import ProbeResult
from probes.head_roles import HEAD_ROLES
from tests.frozen import check_frozen, made_probe, said_by

SITES = [f"blocks.{i}.attn.hook_pattern" for i in (0, 1, 3)]
MEASURES = ("score", "chance", "excess", "excess_low", "excess_high", "share", "p_value", "p_holm", "called")
OTHERS = ("role", "best_offset", "distance", "distance_uniform")
HEADS = list("01234")
TOKENIZATION = {"tokenizer": "BertTokenizer", "bos": "model", "chat": False, "adds": "none"}


def roles(seed: int, n: int, played: float = 0.6) -> ProbeResult:
    """Three layers of five heads, of which a share plays a role."""
    draw = np.random.default_rng(seed)
    coords = {"site": SITES, "head": HEADS, "role": list(HEAD_ROLES[1:])}
    axes = {**dict.fromkeys(MEASURES, ("site", "head", "role")), **dict.fromkeys(OTHERS, ("site", "head"))}
    layers = dict(zip(SITES, (0, 1, 3), strict=True))
    made = made_probe("HeadRoles", coords, draw, axes, layers, {"n": n, "model": f"model {seed}"})
    role = np.where(draw.random((3, 5)) < played, draw.integers(1, len(HEAD_ROLES), (3, 5)), 0)
    made.values["role"][:] = torch.from_numpy(role)
    made.values["best_offset"][:] = torch.from_numpy(draw.integers(1, 9, (3, 5)))
    made.values["excess_low"][:] = made.values["excess"] - 0.1
    made.notes.append(f"{seed % 2} heads attend to nothing")
    return made


def result(untrained: int, played: float = 0.6, *, text: bool = True) -> HeadsResult:
    texts = (REPEATED, NATURAL_TEXT) if text else (REPEATED,)
    models = [
        ModelRoles({name: roles(10 * copy + i, 30 + i, played) for i, name in enumerate(texts)}, {})
        for copy in range(untrained + 1)
    ]
    config = HeadsConfig(n_sequences=7, periods=(12, 19), max_length=33, untrained=untrained)
    return HeadsResult("tiny", config, models[0], models[1:], TOKENIZATION, ["3 documents hold no word."])


def of_two_copies() -> dict[str, Any]:
    found = result(2)
    return {**said_by(found), "roles": found.by_role(), "heads": found.by_head(), "strongest": found.strongest(2)}


def of_no_copies() -> dict[str, Any]:
    return said_by(result(0, played=0.15, text=False))


def of_no_roles() -> dict[str, Any]:
    return said_by(result(1, played=0.0))


CASES = {"heads": of_two_copies, "heads alone": of_no_copies, "heads without roles": of_no_roles}


@pytest.mark.parametrize("name", CASES)
def test_conclusions_are_the_recorded_ones(name: str) -> None:
    check_frozen(name, CASES[name])
