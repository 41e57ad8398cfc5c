"""Heads made by hand: every seed, layer, head and label has a value of its own, and chosen heads are called."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from mechclust.studies import get_study
from mechclust.studies.heads_in_models import HeadsInModelsConfig
from mechclust.studies.heads_in_models.config import PROMPTS, arms, labels_of, subjects_of
from mechclust.studies.heads_in_models.discovery import control_heads, largest_heads
from mechclust.studies.heads_in_models.heads import Heads
from mechclust.studies.heads_in_models.results import Results
from mechclust.studies.heads_in_models.together import DONORS
from mechclust.studies.study import Job
from probes import ProbeResult

PAPER: HeadsInModelsConfig = replace(get_study("heads-in-models").preset("paper"), model="a-model")
CONFIG = replace(PAPER, seeds=(5, 6, 7), word_seeds=(1, 2), together=(1, 2), n_tested=3)
IN_EARLIER_RECORDS = "alike for the thing asked"  # a set of heads
N_LAYERS = 3
N_HEADS = 4


def made_heads(arm: str, seed: int, subject: int = 0) -> Heads:
    """Heads of which about half are called for each label."""
    labels = labels_of(arm)
    draw = np.random.default_rng([seed, subject, *map(ord, arm)])
    shape = (N_LAYERS, N_HEADS, len(labels))
    called = draw.random(shape) < 0.5
    values = {
        "within_ratio": np.where(called, 0.4, 0.9) * draw.uniform(0.8, 1, shape),
        "changed_within": 0.2 * draw.random(shape),
        "changed_between": draw.uniform(0.4, 1, shape),
        "causal_p_holm": np.where(draw.random(shape) < 0.8, 0.01, 0.5),
        "output_p_holm": np.where(draw.random(shape) < 0.8, 0.01, 0.5),
        "agreement": draw.random(shape),
        "effect": draw.normal(0.5, 1, shape[:2]),
    }
    is_prompt = arm == PROMPTS
    return Heads(
        labels=labels,
        values=values,
        chance=draw.uniform(0.8, 1, len(labels)),
        accuracy=float(draw.random()),
        clusters=draw.random((N_LAYERS + 1, 2)),
        carried=dict(zip(DONORS, draw.random(3), strict=True)) if is_prompt else {},
        changed=dict(zip(DONORS, draw.random(3), strict=True)) if is_prompt else {},
        discovery=made_discovery(draw) if is_prompt else None,
    )


def made_discovery(draw: np.random.Generator) -> ProbeResult:
    sets = [largest_heads(1), control_heads(1), largest_heads(2), control_heads(2), IN_EARLIER_RECORDS]
    per_set = ("changed", "within_ratio", "within_ratio_gaussian")
    values = {name: torch.from_numpy(draw.random(len(sets))) for name in per_set}
    values["agreement"] = torch.from_numpy(draw.random((len(sets), 2)))
    axes = {**dict.fromkeys(per_set, ("set",)), "agreement": ("set", "equivalence")}
    return ProbeResult("discovery together", values, axes, {"set": sets, "equivalence": ["asked", "other"]})


def made_models() -> Results:
    """The heads of every model of every job."""
    found = {}
    for arm in arms(CONFIG):
        for seed in CONFIG.word_seeds if arm == PROMPTS else CONFIG.seeds:
            heads = {subject: made_heads(arm, seed, i) for i, subject in enumerate(subjects_of(arm))}
            found[Job(arm, seed)] = heads
    return found
