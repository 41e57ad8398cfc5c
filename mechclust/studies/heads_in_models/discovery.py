"""The equivalence that several heads of a pretrained model have together, discovered without labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from mechclust.studies.heads_in_models.heads import Heads
from mechclust.studies.heads_in_models.together import Places, measured_probe, other_heads, site_of
from probes import HookedModel, ProbeResult, interchange_together
from probes.engine.head_names import head_name
from probes.store.versions import package_versions
from tasks import Batch

_MEASURES_OF_SET = ("changed", "within_ratio", "within_ratio_gaussian")
_AGREEMENT = "agreement"


def largest_heads(n: int) -> str:
    """Return the name of the set of the ``n`` heads with the largest effect."""
    return f"largest effect, {n}"


def control_heads(n: int) -> str:
    """Return the name of the control of ``largest_heads(n)``: as many other heads."""
    return f"other heads, {n}"


def head_sets(heads: Heads, sizes: Sequence[int], seed: int) -> dict[str, Places]:
    """Return which heads are interchanged together.

    Args:
        heads: heads of the model at this ending.
        sizes: numbers of heads with the largest effect.
        seed: draws the control: as many other heads, from the same blocks or, if they have too few, from the nearest.

    Returns:
        Pairs of block and head, by the names of ``largest_heads`` and ``control_heads``. A control with too few heads
        left is empty.
    """
    n_blocks, n_heads = heads.values["effect"].shape
    draw = torch.Generator().manual_seed(seed)
    sets: dict[str, Places] = {}
    for n in sizes:
        chosen = [divmod(i, n_heads) for i in sorted(heads.strongest(n))]
        left = other_heads(chosen, (n_blocks, n_heads), draw)
        sets |= {largest_heads(n): chosen, control_heads(n): left if len(left) == len(chosen) else []}
    return sets


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
    """Run ``interchange_together`` on every set at the last token, as one result.

    Of its measures, ``changed``, ``agreement`` and both within-ratios are kept, with a first axis ``set``.

    Args:
        model: a model whose hooks can write.
        batch: the prompts.
        labels: equivalences with which the discovered classes are compared.
        sets: pairs of block and head by name. An empty set is NaN.
        recipients: as in ``interchange_together``.
        tolerance: as in ``interchange_together``.
        seed: as in ``interchange_together``.

    Raises:
        InputError: as ``interchange_together``.
    """
    probe = measured_probe(model, batch, labels)
    values = {name: torch.full((len(sets),), torch.nan, dtype=torch.float64) for name in _MEASURES_OF_SET}
    values[_AGREEMENT] = torch.full((len(sets), len(labels)), torch.nan, dtype=torch.float64)
    notes = []
    for i, (name, places) in enumerate(sets.items()):
        if not places:
            notes.append(f"{name}: there are no such heads, so its measures are NaN")
            continue
        heads = [(site_of(block), head) for block, head in places]
        interchanged = interchange_together(
            model, [batch], probe, heads=heads, recipients=recipients, tolerance=tolerance, seed=seed
        )
        for measure in values:
            values[measure][i] = interchanged[measure]
        notes += [f"{name}: {note}" for note in interchanged.notes]
    axes: dict[str, tuple[str, ...]] = dict.fromkeys(_MEASURES_OF_SET, ("set",))
    axes[_AGREEMENT] = ("set", "equivalence")
    return ProbeResult(
        "discovery together",
        values,
        axes,
        {"set": list(sets), "equivalence": list(labels)},
        metadata={
            "n": len(batch),
            "recipients": recipients,
            "tolerance": tolerance,
            "seed": seed,
            "versions": package_versions(),
            "heads": {name: [head_name(*place) for place in places] for name, places in sets.items()},
        },
        notes=notes,
    )
