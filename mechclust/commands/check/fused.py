"""Is attention that is measured from queries and keys, without patterns, the attention that Hugging Face computes?"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechclust.commands.check.equal import bound_of
from mechclust.commands.check.inputs import CheckedModel
from mechclust.commands.check.reference import Reference, ReferenceCase
from mechclust.commands.check.result import NotTried
from mechclust.report.text import counted
from probes.engine.attention import Attention, EagerAttention
from probes.engine.record import record
from probes.engine.sites import attention, resolve
from tasks import InputError

_CLASSES = 3  # of keys, drawn at random
_KEYS = 4  # of each query, drawn at random


class _Drawn(NamedTuple):
    """Draw keys to sum attention over: keys by class, and a few keys of each query."""

    labels: Int[Tensor, "batch key"]
    keys: Int[Tensor, "batch query place"]


def fused_attention_equals(checked: CheckedModel, reference: Reference | str) -> tuple[bool, str]:
    """Check that attention to classes of keys and to single keys equals Hugging Face's eager patterns.

    Args:
        checked: the model as probes of attention read it, with PyTorch's kernel.
        reference: Hugging Face's values, or why they are not known.
    """
    if isinstance(reference, str):
        raise NotTried(reference)
    patterns = reference.cases[0].values.patterns
    sites = {site: block for site, block in _blocks_by_site(checked).items() if block in patterns}
    if not sites:
        raise NotTried(
            "Hugging Face gives no attention patterns to compare with; a model in memory gives them only if loaded "
            "with attn_implementation='eager'"
        )
    bound = bound_of(reference)
    distances: dict[tuple[str, bool], float] = {}
    for case in reference.cases:
        distances |= {(site, case.is_padded): x for site, x in _distances(checked, case, sites).items()}
    worst = max(distances, key=distances.__getitem__)
    largest = distances[worst]
    dtype = str(reference.dtype).removeprefix("torch.")
    if largest > bound:
        site, is_padded = worst
        where = f"{site!r}, padded on the right" if is_padded else repr(site)
        return False, (
            f"attention from queries and keys differs from Hugging Face's by up to {largest:.2g} at {where} (allowed "
            f"{bound:.2g} in {dtype}); measure with attention='eager'"
        )
    return True, (
        f"attention of {counted(len(sites), 'block')} from queries and keys, without patterns: within {largest:.2g} of "
        f"Hugging Face's eager attention (allowed {bound:.2g} in {dtype})"
    )


def _blocks_by_site(checked: CheckedModel) -> dict[str, int]:
    """Return the hook points of attention from queries and keys, with their blocks.

    Raises:
        NotTried: if the model has none.
    """
    try:
        sites = {site.name: site.layer for site in resolve(checked.model, attention())}
    except InputError as error:
        raise NotTried(str(error).partition(": ")[2]) from None
    if not all(site.endswith("hook_attention") for site in sites):
        raise NotTried("its attention is eager, so that probes read patterns")
    return sites


def _distances(checked: CheckedModel, case: ReferenceCase, sites: dict[str, int]) -> dict[str, float]:
    """Return the largest difference at each site."""
    batch = case.batch
    random = checked.random("fused attention")
    labels = torch.from_numpy(random.integers(_CLASSES, size=batch.tokens.shape))
    keys = torch.from_numpy(random.integers(batch.tokens.shape[1], size=(*batch.tokens.shape, _KEYS)))
    drawn = _Drawn(labels, keys)
    sums: dict[str, Float[Tensor, "batch head query sum"]] = {}
    try:
        with record(checked.model, list(sites), partial(_keep, sums, drawn)):
            checked.output(batch)
    except InputError:  # padding that the model refuses gives no wrong numbers
        if not case.is_padded:
            raise
        return {}
    real = batch.token_mask()[:, None, :, None]
    distances = {}
    for site, block in sites.items():
        expected = _sums(EagerAttention(case.values.patterns[block]), drawn)
        difference = torch.where(real, sums[site] - expected, 0).abs()
        distances[site] = float(torch.nan_to_num(difference, nan=torch.inf).max())
    return distances


def _keep(
    sums: dict[str, Float[Tensor, "batch head query sum"]], drawn: _Drawn, site: str, activation: Attention
) -> None:
    sums[site] = _sums(activation, drawn)


def _sums(layer: Attention, drawn: _Drawn) -> Float[Tensor, "batch head query sum"]:
    """Return attention to each class, and to each single key, on the CPU."""
    mass = layer.mass(drawn.labels.to(layer.device), _CLASSES)
    at = layer.at(drawn.keys.to(layer.device))
    return torch.cat([mass.cpu().double(), at.cpu().double()], dim=3)
