"""Find the base layer that a tuned layer is most similar to, if the models have different layers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import chain
from pathlib import Path

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from mechclust.commands.compare.config import CompareConfig
from mechclust.commands.parts import MeasurementPart, part_path
from mechclust.commands.sampling import draw_prompts
from probes import ProbeResult, RowStore, residual, resolve
from probes.functional.best_pair import best_pairs

BEST_PAIR_PROMPTS = 1000
"""Most prompts of a label: the cost of re-pairings grows with its square."""
_MEASURES = ("best", "p_value", "adjusted", "difference", "low", "high", "elsewhere")


def same_depth(n_tuned: int, n_base: int) -> list[int]:
    """Return, for each tuned layer, the base layer at its relative depth.

    Example:
        >>> same_depth(4, 3)
        [0, 1, 1, 2]
    """
    step = (n_base - 1) / max(n_tuned - 1, 1)
    return [round(layer * step) for layer in range(n_tuned)]


def best_pair_part(
    label: str, index: Int[Tensor, "prompts"], config: CompareConfig, pair: Mapping[str, RowStore], folder: Path
) -> MeasurementPart:
    """Return the part that finds the most similar base layers over some prompts.

    Args:
        label: name of these prompts.
        index: index of the prompts.
        config: gives the pairings, the half-samples and the seed.
        pair: hidden states of both models.
        folder: folder of parts.
    """
    numbers = [config.n_permutations, config.n_resamples, config.seed, BEST_PAIR_PROMPTS, config.unit_label]
    models = [[store.model, repr(store.dtype)] for store in pair.values()]
    prompts = chain.from_iterable((store.index, store.tokens) for store in pair.values())
    path = part_path(folder, "best_pair", [label, numbers, models, config.states], [index, *prompts])
    return MeasurementPart(path, f"best_pair of {label}", partial(measure_best_pairs, label, index, config, pair))


def measure_best_pairs(
    label: str, index: Int[Tensor, "prompts"], config: CompareConfig, pair: Mapping[str, RowStore]
) -> ProbeResult:
    """Find the most similar base layer of each tuned layer, over some prompts, see ``BestPairs``.

    Args:
        label: name of these prompts.
        index: index of the prompts.
        config: gives the pairings, at least twenty for each tuned layer, the half-samples and the seed.
        pair: hidden states of both models.
    """
    index = draw_prompts(index, BEST_PAIR_PROMPTS)
    tuned_sites = resolve(pair["tuned"], residual())
    tuned = [_column(pair["tuned"], index, f"rows/{site.name}").flatten(1) for site in tuned_sites]
    base = [_column(pair["base"], index, f"rows/{site.name}").flatten(1) for site in resolve(pair["base"], residual())]
    units = None if config.unit_label is None else _column(pair["tuned"], index, f"labels/{config.unit_label}")
    pairs = best_pairs(
        tuned,
        base,
        same_depth(len(tuned), len(base)),
        n_permutations=max(config.n_permutations, 20 * len(tuned)),
        n_resamples=config.n_resamples,
        units=units,
        seed=config.seed,
    )
    values = {name: torch.as_tensor(getattr(pairs, name)).double()[:, None] for name in _MEASURES}
    return ProbeResult(
        "BestPair",
        {**values, "n": torch.tensor([len(index)])},
        {**dict.fromkeys(values, ("site", "label")), "n": ("label",)},
        {"site": [site.name for site in tuned_sites], "label": [label]},
        {site.name: site.layer for site in tuned_sites},
    )


def _column(store: RowStore, index: Int[Tensor, "n"], name: str) -> Shaped[Tensor, "n *d"]:
    return store.take(index, [name])[name]
