"""Which base layer a tuned layer is most similar to, where the models do not have the same layers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mechclust.commands.compare.config import CompareConfig
from mechclust.commands.compare.draw import drawn
from probes import ProbeResult, RowStore, residual, resolve
from probes.functional.best_pair import best_pairs

BEST_PAIR_PROMPTS = 1000
"""Most prompts of a label: the cost of re-pairings grows with its square."""
_MEASURES = ("best", "p_value", "adjusted", "difference", "low", "high", "elsewhere")


def same_depth(n_tuned: int, n_base: int) -> list[int]:
    """Return, for each tuned layer, the base layer at the same relative depth.

    Example:
        >>> same_depth(4, 3)
        [0, 1, 1, 2]
    """
    step = (n_base - 1) / max(n_tuned - 1, 1)
    return [round(layer * step) for layer in range(n_tuned)]


def measure_best_pairs(label: str, index: Tensor, config: CompareConfig, pair: Mapping[str, RowStore]) -> ProbeResult:
    """Find the most similar base layer of each tuned layer, over some prompts, see ``BestPairs``.

    Args:
        label: what the prompts are called.
        index: of the prompts.
        config: gives the pairings, at least twenty for each tuned layer, the half-samples and the seed.
        pair: hidden states of both models.
    """
    chosen = drawn(index, BEST_PAIR_PROMPTS)
    sites = {name: [site.name for site in resolve(store, residual())] for name, store in pair.items()}
    rows = {name: [_rows(store, chosen, site) for site in sites[name]] for name, store in pair.items()}
    found = best_pairs(
        rows["tuned"],
        rows["base"],
        same_depth(len(rows["tuned"]), len(rows["base"])),
        n_permutations=max(config.n_permutations, 20 * len(rows["tuned"])),
        n_resamples=config.n_resamples,
        units=_units(pair["tuned"], chosen, config.unit_label),
        seed=config.seed,
    )
    values = {name: torch.as_tensor(getattr(found, name)).double()[:, None] for name in _MEASURES}
    return ProbeResult(
        "BestPair",
        {**values, "n": torch.tensor([len(chosen)])},
        {**dict.fromkeys(values, ("site", "label")), "n": ("label",)},
        {"site": sites["tuned"], "label": [label]},
        {site.name: site.layer for site in resolve(pair["tuned"], residual())},
    )


def _units(store: RowStore, index: Tensor, label: str | None) -> Tensor | None:
    return None if label is None else store.take(index, [f"labels/{label}"])[f"labels/{label}"]


def _rows(store: RowStore, index: Tensor, site: str) -> Tensor:
    return store.take(index, [f"rows/{site}"])[f"rows/{site}"].flatten(1)
