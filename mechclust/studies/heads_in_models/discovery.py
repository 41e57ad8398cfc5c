"""The equivalence that several heads of a pretrained model have together, discovered without labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from mechclust.studies.heads_in_models.heads import Heads
from mechclust.studies.heads_in_models.together import Places, measured, other_heads, site_of
from probes import HookedModel, ProbeResult, interchange_together
from probes.store.files import versions
from tasks import Batch

FOLLOWING = "alike for the thing asked"  # chosen by labels; the other sets need none
_PER_SET = ("changed", "classes", "stability", "within_ratio", "within_ratio_gaussian")
_PER_LABEL = ("changed_within", "changed_between", "response_within_ratio", "agreement", "p_value")


def largest(n: int) -> str:
    """The name of the set of the ``n`` heads with the largest effect."""
    return f"largest effect, {n}"


def others(n: int) -> str:
    """The name of its control: as many other heads."""
    return f"other heads, {n}"


def sets_of(sizes: Sequence[int]) -> list[str]:
    """The names of all sets."""
    return [*(name(n) for n in sizes for name in (largest, others)), FOLLOWING]


def head_sets(heads: Heads, following: Places, sizes: Sequence[int], seed: int) -> dict[str, Places]:
    """Which heads are interchanged together.

    Args:
        heads: of the model at this ending.
        following: heads that are alike for the thing asked, chosen by labels.
        sizes: how many of those with the largest effect.
        seed: draws the control: as many other heads of the same blocks or, where these have too few, the nearest.

    Returns:
        Pairs of block and head, by the names of ``sets_of``. A control with too few heads left is empty.
    """
    n_blocks, n_heads = heads.values["effect"].shape
    draw = torch.Generator().manual_seed(seed)
    sets: dict[str, Places] = {}
    for n in sizes:
        chosen = [divmod(i, n_heads) for i in sorted(heads.strongest(n))]
        left = other_heads(chosen, (n_blocks, n_heads), draw)
        sets |= {largest(n): chosen, others(n): left if len(left) == len(chosen) else []}
    return {**sets, FOLLOWING: following}


def discover_together(
    model: HookedModel,
    batch: Batch,
    labels: Sequence[str],
    sets: Mapping[str, Places],
    *,
    recipients: int,
    tolerance: float,
    seed: int = 0,
) -> ProbeResult:
    """``interchange_together`` of every set at the last token, as one result.

    Measures: those of ``interchange_together``, with a first axis ``set``.

    Args:
        model: a model whose hooks can write.
        batch: the prompts.
        labels: equivalences with which the discovered classes are compared.
        sets: pairs of block and head by name; an empty set is NaN.
        recipients: as in ``interchange_together``.
        tolerance: the same.
        seed: the same.

    Raises:
        InputError: as ``interchange_together``.
    """
    probe = measured(model, batch, labels)
    values = {name: torch.full((len(sets),), torch.nan, dtype=torch.float64) for name in _PER_SET}
    values |= {name: torch.full((len(sets), len(labels)), torch.nan, dtype=torch.float64) for name in _PER_LABEL}
    values["discovered"] = torch.full((len(sets), len(batch)), -1)
    notes = []
    for i, (name, places) in enumerate(sets.items()):
        if not places:
            notes.append(f"{name}: there are no such heads, so its measures are NaN")
            continue
        heads = [(site_of(block), head) for block, head in places]
        found = interchange_together(
            model, [batch], probe, heads=heads, recipients=recipients, tolerance=tolerance, seed=seed
        )
        for measure in values:
            values[measure][i] = found[measure]
        notes += [f"{name}: {note}" for note in found.notes]
    axes: dict[str, tuple[str, ...]] = dict.fromkeys(_PER_SET, ("set",))
    axes |= dict.fromkeys(_PER_LABEL, ("set", "equivalence")) | {"discovered": ("set", "example")}
    return ProbeResult(
        "discovery together",
        values,
        axes,
        {"set": list(sets), "equivalence": list(labels), "example": [str(i) for i in range(len(batch))]},
        metadata={
            "n": len(batch),
            "recipients": recipients,
            "tolerance": tolerance,
            "seed": seed,
            "versions": versions(),
            "heads": {name: [f"L{block}H{head}" for block, head in places] for name, places in sets.items()},
        },
        notes=notes,
    )
