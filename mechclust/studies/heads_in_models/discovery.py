"""The equivalence that several heads of a pretrained model have together, discovered without labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Shaped
from torch import Tensor

from mechclust.studies.heads_in_models.heads import Heads
from mechclust.studies.heads_in_models.together import Places, measured_probe, other_heads, site_of
from probes import HookedModel, ProbeResult, interchange_together
from probes.engine.head_names import head_name
from probes.store.versions import package_versions
from tasks import Batch

FOLLOWING = "alike for the thing asked"  # chosen by labels, which the other sets do not need
_MEASURES_OF_SET = ("changed", "classes", "stability", "within_ratio", "within_ratio_gaussian")
_MEASURES_OF_LABEL = ("changed_within", "changed_between", "response_within_ratio", "agreement", "p_value")


def largest_heads(n: int) -> str:
    """Return the name of the set of the ``n`` heads with the largest effect."""
    return f"largest effect, {n}"


def control_heads(n: int) -> str:
    """Return the name of the control of ``largest_heads(n)``: as many other heads."""
    return f"other heads, {n}"


def head_sets(heads: Heads, following: Places, sizes: Sequence[int], seed: int) -> dict[str, Places]:
    """Return which heads are interchanged together.

    Args:
        heads: heads of the model at this ending.
        following: heads that are alike for the thing asked, chosen by labels.
        sizes: numbers of heads with the largest effect.
        seed: draws the control: as many other heads, from the same blocks or, if they have too few, from the nearest.

    Returns:
        Pairs of block and head, by the names of ``largest_heads``, ``control_heads`` and ``FOLLOWING``. A control with
        too few heads left is empty.
    """
    n_blocks, n_heads = heads.values["effect"].shape
    draw = torch.Generator().manual_seed(seed)
    sets: dict[str, Places] = {}
    for n in sizes:
        chosen = [divmod(i, n_heads) for i in sorted(heads.strongest(n))]
        left = other_heads(chosen, (n_blocks, n_heads), draw)
        sets |= {largest_heads(n): chosen, control_heads(n): left if len(left) == len(chosen) else []}
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
    """Run ``interchange_together`` on every set at the last token, as one result.

    Measures: the measures of ``interchange_together``, with a first axis ``set``.

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
    values = _undefined(len(sets), len(labels), len(batch))
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
    axes |= dict.fromkeys(_MEASURES_OF_LABEL, ("set", "equivalence")) | {"discovered": ("set", "example")}
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
            "versions": package_versions(),
            "heads": {name: [head_name(*place) for place in places] for name, places in sets.items()},
        },
        notes=notes,
    )


def _undefined(n_sets: int, n_labels: int, n_examples: int) -> dict[str, Shaped[Tensor, "set ..."]]:
    """Return the measures of sets that are all empty."""
    values = {name: torch.full((n_sets,), torch.nan, dtype=torch.float64) for name in _MEASURES_OF_SET}
    values |= {name: torch.full((n_sets, n_labels), torch.nan, dtype=torch.float64) for name in _MEASURES_OF_LABEL}
    values["discovered"] = torch.full((n_sets, n_examples), -1)
    return values
