"""Made-up measurements of the published experiments in which every finding holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from mechclust.studies.topic_structure import TopicStructureConfig, theory_gap
from mechclust.studies.topic_structure.arms import (
    ATTENTION,
    DECAYED,
    EVERYTHING,
    RELEASED,
    arms,
    attention_arm,
    seeds_of,
)
from mechclust.studies.topic_structure.attention_table import TABLE, bucket_means
from mechclust.studies.topic_structure.config import ROWS
from mechclust.studies.topic_structure.labelling import RANDOM, RIGHT, SHIFTED, topics_by_labelling
from mechclust.studies.topic_structure.results import THEORY_G, TrainedRun
from probes import ProbeResult
from tasks import TopicDocuments

PAPER = TopicStructureConfig()
GAP = theory_gap(TopicDocuments())


def blocks(gap, separation, distance=0.3) -> ProbeResult:
    """Return topic blocks whose two matrices differ: W_V has a hundredth more of everything."""
    found = {"gap": gap, "separation": separation, "distance": distance}
    values = {name: torch.tensor([value, 1.01 * value], dtype=torch.float64) for name, value in found.items()}
    return ProbeResult("topic_blocks", values, dict.fromkeys(values, ("matrix",)), {"matrix": ["W_E^T W_E", "W_V"]})


def attention(means) -> ProbeResult:
    mean = torch.as_tensor(np.asarray(means, dtype=float))
    values = {"overall_mean": mean, "overall_ratio": mean[1] / mean[2]}
    axes = {"overall_mean": ("bucket",), "overall_ratio": ()}
    return ProbeResult("TopicAttention", values, axes, {"bucket": list("abc")})


def curves(early, moves=True):
    """Return distances whose early weight has covered ``early`` of its way when attention has covered a tenth."""
    steps = np.linspace(0, 1, 101)
    late = steps if moves else 0.01 * steps
    return {"W_V": np.interp(steps, [0, 0.1, 1], [0, early, 1]), "W_K": late, "W_Q": late}


def way(own=0.02) -> ProbeResult:
    values = {name: torch.tensor([1.0, x]) for name, x in (("closed", 0.3), ("own", own), ("other", 0.4))}
    return ProbeResult("WayToMinimiser", values, dict.fromkeys(values, ("step",)), {"step": ["0", "9"]})


def effects(growth, random=0.0, start=0.1) -> ProbeResult:
    """Return separations that have grown by so much at the end, with right and with random labels."""
    values = {RIGHT: [start, start + 9.0, start + growth], RANDOM: [-start, -start - 9.0, -start + random]}
    tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}
    return ProbeResult("TopicEffects", tensors, dict.fromkeys(tensors, ("step",)), {"step": ["0", "500", "20000"]})


def noise_of(name, seed):
    return float(np.random.default_rng([seed, *map(ord, name)]).normal(0, 0.01))


def early_of(name, seed):
    """Return the share that a cell of E3 shows."""
    return (0.2 if "default" in name else 0.9) + noise_of(name, seed)


def g_of(name, seed):
    """Return the g of a network of E4a theory, which rises with tau and T."""
    total, tau = (int(part.lstrip("Ttau")) for part in name.split()[-2:])
    return THEORY_G[tau] * (1 if total == 10 else 1.7) * (1 + noise_of(name, seed))


def words(first, whole) -> ProbeResult:
    """Return attention by buckets of the right labels, on first tokens and on whole documents, once for each pair."""
    topic = TopicDocuments().token_topics
    own = torch.eye(len(topic), dtype=torch.bool)
    same = topic[:, None] == topic
    tables = [torch.where(own, o, torch.where(same, s, d)) for o, s, d in (first, whole)]
    by_pair = ("length", "query", "key")
    values = {"sum": torch.stack(tables), "pairs": torch.ones(2, len(topic), len(topic))}
    tokens = list(map(str, range(len(topic))))
    coords = {"length": ["100", "152"], "query": tokens, "key": tokens}
    return ProbeResult("WordAttention", values, dict.fromkeys(values, by_pair), coords)


def before_the_shift(published):
    """Return the attention by right labels that has published means by shifted labels."""
    shifted = topics_by_labelling(TopicDocuments())[SHIFTED]
    parts = [bucket_means(words(basis, basis), shifted)[0] for basis in ((0.0, 1.0, 0.0), (0.0, 0.0, 1.0))]
    same_topic, different = np.linalg.solve(np.stack(parts, axis=1)[1:], published[1:])
    return published[0], same_topic, different


def of_row(row, noise):
    """Return attention that shows the published row with shifted labels, and nearly with right ones on first tokens."""
    published = TABLE[list(ROWS).index(row)] * np.exp(noise)
    middle = np.sqrt(published[1] * published[2])
    return words((1.5 * published[0], middle * 1.8**0.5, middle / 1.8**0.5), before_the_shift(published))


def made(config, name, seed) -> TrainedRun:
    arm, noise = arms(config)[name], noise_of(name, seed)
    run = TrainedRun(
        start=blocks(0.1 * GAP, -0.1),
        end=blocks(GAP * (1 + noise), 0.05 + noise),
        changes={},
        attention={},
        width=104,
        way=way(0.02 + noise / 10) if name == DECAYED else None,
    )
    if arm.experiment == EVERYTHING:
        return replace(run, effects=effects(1 + noise, noise))
    if arm.experiment in ("E3", RELEASED):
        moved = curves(early_of(name, seed))
        return replace(run, changes=moved, norms={weight: 1 + values for weight, values in moved.items()})
    if arm.experiment == ATTENTION:
        return replace(run, words=of_row(next(row for row in ROWS if attention_arm(row) == name), noise))
    if arm.experiment == "E4a theory":
        g = g_of(name, seed)
        steps = {0: attention([0.01, 0.01, 0.01]), config.steps: attention([g * 0.01, g * 0.01, 0.01])}
        return replace(run, attention=steps)
    return run


def minimisers(config, power=-0.2, shrink=-0.6):
    """Return minimisers whose distances fall with documents and length. Powers may differ by length."""
    documents = np.array(config.optimum_documents) / 1000
    lengths = np.array(config.optimum_lengths) / 100
    powers = np.broadcast_to(power, len(lengths))
    found = []
    for place in range(len(config.seeds)):
        far = documents[None, :] ** powers[:, None] * lengths[:, None] ** shrink * (1 + 0.1 * place)
        values = {"distance": 0.3 * far, "population": 0.1 * far[:, -1]}
        axes = {"distance": ("length", "documents"), "population": ("length",)}
        coords = {"length": [str(x) for x in lengths], "documents": [str(x) for x in documents]}
        tensors = {name: torch.as_tensor(value) for name, value in values.items()}
        found.append(ProbeResult("minimiser", tensors, axes, coords))
    return found


def constructed(config=PAPER):
    return {name: [made(config, name, seed) for seed in seeds_of(config, name)] for name in arms(config)}
