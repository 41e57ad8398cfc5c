"""The heads of one model: geometry of their outputs, effect on predictions, and interchanges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Shaped
from torch import Tensor

from probes import ClusteringHead, HookedModel, ProbeResult, Readout, head_attribution, interchange, last_token, run
from probes.checks.bench import Correct
from probes.engine.devices import device_of
from probes.engine.hooked_model import evaluation_mode, forward
from tasks import Batch

_OF_PROBE = ("within_ratio", "p_holm", "within_ratio_chance")
_OF_INTERCHANGE = ("changed_within", "changed_between", "agreement")


def measure_heads(
    model: HookedModel,
    batches: Sequence[Batch],
    labels: Sequence[str],
    correct: Correct,
    *,
    tested: int,
    recipients: int,
    tolerance: float,
    query: Readout = last_token(),
    seed: int = 0,
) -> ProbeResult:
    """Run ``ClusteringHead``, ``head_attribution`` and ``interchange`` on one model, as one result.

    Only the measures are kept that the rules for heads use. The probe's ``p_holm`` becomes ``output_p_holm``, and the
    interchanges' becomes ``causal_p_holm``. ``accuracy`` is measured on these examples.

    Args:
        model: the model.
        batches: examples.
        labels: equivalences.
        correct: function of logits and batch, 1 if the answer is right.
        tested: number of heads that are interchanged, chosen by the largest effect.
        recipients: number of recipients of interchanges.
        tolerance: tolerance of discovered classes.
        query: the position that is measured.
        seed: for recipients and relabellings.
    """
    probe = ClusteringHead(tuple(labels), query=query, permutations=None)
    geometry = run(model, batches, probe)
    attributed = head_attribution(model, batches, probe, permutations=1, seed=seed)
    swapped = interchange(model, batches, probe, heads=tested, recipients=recipients, tolerance=tolerance, seed=seed)
    output_names = {name: name for name in _OF_PROBE} | {"p_holm": "output_p_holm"}
    causal_names = {name: name for name in _OF_INTERCHANGE} | {"p_holm": "causal_p_holm"}
    renamed = [
        (geometry, output_names),
        (attributed, {"effect": "effect"}),
        (swapped, causal_names),
    ]
    values: dict[str, Shaped[Tensor, "..."]] = {}
    axes: dict[str, tuple[str, ...]] = {}
    for result, names in renamed:
        for name, new in names.items():
            values[new] = result[name]
            axes[new] = result.axes[name]
    values["accuracy"] = torch.tensor(_accuracy(model, batches, correct), dtype=torch.float64)
    axes["accuracy"] = ()
    notes = list(dict.fromkeys([*geometry.notes, *swapped.notes]))
    return replace(swapped, probe="heads in models", values=values, axes=axes, notes=notes)


def _accuracy(model: HookedModel, batches: Sequence[Batch], correct: Correct) -> float:
    with torch.inference_mode(), evaluation_mode(model):
        moved = [batch.to(device_of(model)) for batch in batches]
        right = [correct(forward(model, batch), batch).double().cpu() for batch in moved]
    return float(torch.cat(right).mean())
