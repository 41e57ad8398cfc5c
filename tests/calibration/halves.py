"""How often intervals from random halves of the units miss the value that was planted."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes import ProbeResult, TopicAttention
from probes.functional.adjusted_rand import adjusted_rand_score
from probes.functional.cka import centred_and_compacted, cka_halves_terms, cka_of_draws
from probes.functional.halves import interval_from_halves
from probes.functional.kmeans import kmeans, kmeans_of_halves
from tasks import Batch
from tests.calibration.topic_attention import N_TOPICS, SITE, WORDS_PER_TOPIC, draw_documents
from tests.calibration.units import cka_between_units

D = 16
CLASSES = 4
HALVES = 50
MEAN_OVER = 400  # samples, for values without a formula
_PROMPTS = 3  # of a template


# ---- change of the adjusted Rand index ----


def index_change_missed(seed: int, n_templates: int, distances: tuple[float, float]) -> bool:
    """Return whether the interval of the change of an index misses its mean over samples.

    Args:
        seed: of the sample.
        n_templates: of each of four classes.
        distances: of the classes' means from the origin, in standard deviations of the states, before and after.
    """
    draw = torch.Generator().manual_seed(seed)
    unit = torch.arange(CLASSES * n_templates).repeat_interleave(_PROMPTS).numpy()
    indices = []
    of_halves = []
    for rows in _clustered_states(draw, unit, distances):
        classes = unit % CLASSES
        clusters = kmeans(rows, CLASSES, n_init=2, seed=seed).labels
        halves = kmeans_of_halves(rows, clusters, HALVES, unit, seed)
        indices.append(adjusted_rand_score(classes, clusters))
        of_halves.append(np.array([adjusted_rand_score(classes[half], of_half) for half, of_half in halves]))
    change = np.array(indices[1] - indices[0])
    return _misses(change, of_halves[1] - of_halves[0], CLASSES * n_templates, _mean_change(n_templates, distances))


def _clustered_states(
    draw: torch.Generator, unit: Int[np.ndarray, "n"], distances: tuple[float, float]
) -> list[Float[np.ndarray, "n d"]]:
    """Return states before and after, which share half of their noise."""
    shared = torch.randn(len(unit), D, generator=draw)
    states = []
    for distance in distances:
        of_template = torch.randn(int(unit.max()) + 1, D, generator=draw)[unit]
        noise = (shared + torch.randn(len(unit), D, generator=draw)) / math.sqrt(2)
        rows = distance * torch.eye(CLASSES, D)[unit % CLASSES] + 0.5 * of_template + noise
        states.append(rows.float().numpy())
    return states


@cache
def _mean_change(n_templates: int, distances: tuple[float, float]) -> float:
    unit = np.arange(CLASSES * n_templates).repeat(_PROMPTS)
    changes = []
    for seed in range(MEAN_OVER):
        states = _clustered_states(torch.Generator().manual_seed(10**9 + seed), unit, distances)
        before, after = (
            adjusted_rand_score(unit % CLASSES, kmeans(rows, CLASSES, n_init=2, seed=seed).labels) for rows in states
        )
        changes.append(after - before)
    return float(np.mean(changes))


# ---- gain of CKA ----


def gain_missed(seed: int, n_units: int, prompts: int, shares: tuple[float, float]) -> bool:
    """Return whether the interval of a difference of two CKAs with one control misses the difference of the shares.

    A model's states are the control's in ``sqrt(share)``, and noise in the rest, so that CKA of infinitely many prompts
    is the share.

    Args:
        seed: of the sample.
        n_units: templates.
        prompts: of each template.
        shares: of the base and of the tuned model.
    """
    draw = torch.Generator().manual_seed(seed)
    unit = torch.arange(n_units).repeat_interleave(prompts)
    control = _states(draw, unit)
    values = []
    of_halves = []
    for share in shares:
        rows = math.sqrt(share) * control + math.sqrt(1 - share) * _states(draw, unit)
        x, y = centred_and_compacted(rows), centred_and_compacted(control)
        terms = [cka_halves_terms(a, b, HALVES, seed, units=unit) for a, b in ((x, y), (x, x), (y, y))]
        values.append(cka_between_units(rows, control, unit))
        of_halves.append(cka_of_draws(*terms, debiased=True).numpy())
    return _misses(np.array(values[1] - values[0]), of_halves[1] - of_halves[0], n_units, shares[1] - shares[0])


def _states(draw: torch.Generator, unit: Int[Tensor, "n"]) -> Float[Tensor, "n d"]:
    """Return states of variance 1, of which templates explain a fifth."""
    of_template = torch.randn(int(unit.max()) + 1, D, generator=draw, dtype=torch.float64)[unit]
    noise = torch.randn(len(unit), D, generator=draw, dtype=torch.float64)
    return math.sqrt(0.2) * of_template + math.sqrt(0.8) * noise


# ---- ratios of attention ----


def ratio_missed(seed: int, n_documents: int, windows: int, *, heads: int = 1, same: float = 0.5) -> bool:
    """Return whether the interval of a ratio of attention misses the ratio in many documents.

    With several heads, which are alike, it is the interval of the highest.

    Args:
        seed: of the sample.
        n_documents: documents.
        windows: of each document, which attend to its topics alike.
        heads: number of heads.
        same: added to the scores of words of one topic.
    """
    result = _attention(seed, n_documents, windows, heads, same)
    name = "ratio" if heads == 1 else "highest_ratio"
    low, high = (float(result[f"{name}_{end}"].flatten()) for end in ("low", "high"))
    return not low <= _ratio(windows, same) <= high


def _attention(seed: int, n_documents: int, windows: int, heads: int, same: float) -> ProbeResult:
    generator = torch.Generator().manual_seed(seed)
    words = draw_documents(((n_documents * windows, 20, 3),), generator)
    document = torch.arange(n_documents * windows) % n_documents
    topic = words // WORDS_PER_TOPIC
    is_same = (topic[:, :, None] == topic[:, None, :])[:, None]
    strength = same + 0.5 * torch.randn(n_documents, heads, generator=generator)[document]
    noise = 0.5 * torch.randn(len(words), heads, 20, 20, generator=generator)
    pattern = (noise + strength[:, :, None, None] * is_same).softmax(dim=-1)
    topics = torch.arange(N_TOPICS * WORDS_PER_TOPIC) // WORDS_PER_TOPIC
    probe = TopicAttention(topics, at=SITE, n_permutations=0, seed=seed, n_resamples=HALVES, units="document")
    probe.bind(SimpleNamespace(hook_dict={SITE: None}))
    probe.observe({SITE: pattern}, Batch(words, labels={"document": document}))
    return probe.compute()


@cache
def _ratio(windows: int, same: float) -> float:
    ratios = [_attention(10**6 + seed, 4000 // windows, windows, 1, same)["ratio"] for seed in range(5)]
    return float(torch.stack(ratios).mean())


def _misses(value: Float[np.ndarray, ""], halves: Float[np.ndarray, "half"], n_units: int, planted: float) -> bool:
    low, high = interval_from_halves(value, halves, n_units)
    return not low <= planted <= high


CASES: dict[str, Callable[[int], bool]] = {
    "change of ARI, 16 templates x 3, no change": partial(index_change_missed, n_templates=4, distances=(2.5, 2.5)),
    "change of ARI, 16 templates x 3, weak to strong": partial(
        index_change_missed, n_templates=4, distances=(1.0, 3.5)
    ),
    "gain of CKA, 16 templates x 5, none": partial(gain_missed, n_units=16, prompts=5, shares=(0.5, 0.5)),
    "gain of CKA, 16 templates x 5, .3 to .8": partial(gain_missed, n_units=16, prompts=5, shares=(0.3, 0.8)),
    "gain of CKA, 50 prompts, .3 to .8": partial(gain_missed, n_units=50, prompts=1, shares=(0.3, 0.8)),
    "attention ratio, 12 documents": partial(ratio_missed, n_documents=12, windows=1),
    "attention ratio, 40 documents": partial(ratio_missed, n_documents=40, windows=1),
    "attention ratio, 40 documents in 4 windows each": partial(ratio_missed, n_documents=40, windows=4),
    "attention ratio, the highest of 16 heads, 40 documents": partial(
        ratio_missed, n_documents=40, windows=1, heads=16
    ),
}


def false_positive_rate(draws: int, seed: int, case: str) -> tuple[int, int]:
    """Return how many intervals miss the planted value, and how many there are."""
    misses = sum(CASES[case](seed * 1_000_003 % 2**31 + draw) for draw in range(draws))
    return misses, draws
