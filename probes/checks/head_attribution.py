"""Find the heads on which predictions depend: gradient times difference, for all heads from one backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probes.checks.bench import Bench, bench_of
from probes.clustering_head import ClusteringHead
from probes.engine.batches import Batches
from probes.engine.hooked_model import HookedModel, evaluation_mode, forward
from probes.engine.readout import at_position
from probes.engine.record import record
from probes.engine.result import ProbeResult
from probes.engine.text_tokenizer import TextTokenizer
from probes.functional.holm import holm_over_heads
from probes.functional.permutation_test import enough_permutations
from probes.functional.relabelling import relabelling_p_values
from probes.functional.within_ratio import within_ratio
from tasks import Batch, InputError
from tasks.settings import check_count
from tasks.text.bos_token import Bos

_AXES: dict[str, tuple[str, ...]] = {
    "effect": ("site", "head"),
    "flips": ("site", "head"),
    "read_within_ratio": ("site", "head", "equivalence"),
    "p_value": ("site", "head", "equivalence"),
    "p_holm": ("site", "head", "equivalence"),
    "margin": (),
}


def head_attribution(
    model: HookedModel,
    batches: Batches,
    probe: ClusteringHead,
    *,
    permutations: int | None = None,
    seed: int = 0,
    tokenizer: Any = None,
    bos: Bos = "model",
) -> ProbeResult:
    """Estimate for every head how its output for one example would change another example's prediction.

    The margin is the logit of the model's answer minus the next best, and ``g_i`` its gradient for example ``i`` with
    respect to a head's output at the query. Replacing this output by ``z_j`` of another example changes the margin by
    about ``g_i (z_j - z_i)``. One forward and one backward pass give that for all heads and pairs. It is a guide, not a
    proof: ``interchange`` then carries out the interchanges for a few heads.

    Measures:
        ``effect`` (site, head): mean over all pairs of the absolute change of the margin, in logits.
        ``flips`` (site, head): share of the pairs whose change is larger than the margin, which would change the
            answer.
        ``read_within_ratio`` (site, head, equivalence): within-ratio of the outputs as they are read, ``G z`` with the
            examples' gradients as rows of ``G``. Differences without effect on any prediction do not count. Chance is
            the probe's ``within_ratio_chance``.
        ``p_value``, ``p_holm`` (site, head, equivalence): p-value of ``read_within_ratio`` under relabelling, and with
            Holm's correction over all heads.
        ``margin`` (no axes): mean of the examples' margins.

    To first order only: if a prediction is saturated (a threshold far away), the gradient is 0 and a head that matters
    is missed, by ``effect`` too.

    Cost: two forward passes, one backward pass, examples x examples products per head, and the relabellings. Memory:
    the graph of one batch, and all examples' outputs and gradients at the query of all sites.

    Args:
        model: the model ``probe`` was run on.
        batches: the examples to measure on, each with its own index.
        probe: a ``ClusteringHead`` that has been run. It defines the sites and the equivalence.
        permutations: number of relabellings. ``None``: as many as Holm's correction over all heads needs to reach
            significance.
        seed: for the relabellings.
        tokenizer, bos: for texts, as in ``run``.

    Raises:
        InputError: as ``causal_checks``, and for a model whose logits have no gradient to its head outputs.

    Example:
        >>> # run(model, batches, probe)
        >>> # head_attribution(model, batches, probe).top_heads("effect")
    """
    reading = TextTokenizer({"": model}, tokenizer, bos)
    bench = bench_of(model, batches, probe, reading)
    attribution = Attribution.from_bench(bench)
    if permutations is None:
        permutations = enough_permutations(len(probe.outputs) * bench.n_heads)
    check_count(permutations=(permutations, 1))
    by_site = [_measures_of_site(bench, attribution, site, permutations, seed) for site in probe.outputs]
    values = {name: torch.stack([measures[name] for measures in by_site]) for name in by_site[0]}
    values["p_holm"] = holm_over_heads(values["p_value"])
    values["margin"] = attribution.margins.mean()
    return bench.result(
        "head_attribution",
        values,
        axes={name: _AXES[name] for name in values},
        coords={"equivalence": probe.labels},
        metadata={"seed": seed, "permutations": permutations},
        notes=_notes_on_unread_heads(values["effect"], probe.outputs),
    )


def _measures_of_site(
    bench: Bench, attribution: Attribution, site: str, permutations: int, seed: int
) -> dict[str, Float64[Tensor, "head *equivalence"]]:
    """Return the measures of each head at a site."""
    n_pairs = bench.n * (bench.n - 1)
    effect = torch.zeros(bench.n_heads, dtype=torch.float64)
    flips = torch.zeros_like(effect)
    ratio = torch.full((bench.n_heads, len(bench.labels)), torch.nan, dtype=torch.float64)
    p_value = torch.full_like(ratio, torch.nan)
    read = []
    for head in range(bench.n_heads):
        points = bench.points[site][:, head].double()
        gradient = attribution.gradients[site][:, head].double()
        change = gradient @ points.T
        change = change - change.diagonal()[:, None]
        effect[head] = change.abs().sum() / n_pairs
        flips[head] = (change < -attribution.margins[:, None]).sum() / n_pairs
        read.append(points @ torch.linalg.qr(gradient, mode="r").R.T)
    for k, label in enumerate(bench.labels.values()):
        ratio[:, k] = torch.stack([within_ratio(points, label) for points in read])
        p_value[:, k] = relabelling_p_values(
            torch.stack(read, dim=1), label, permutations, units=bench.units, seed=seed
        )
    return {"effect": effect, "flips": flips, "read_within_ratio": ratio, "p_value": p_value}


def _notes_on_unread_heads(effect: Float64[Tensor, "site head"], sites: Sequence[str]) -> list[str]:
    return [
        f"{sites[i]} head {head}: nothing of its output is read to first order, so its p-values are NaN"
        for i, head in (effect == 0).nonzero().tolist()
    ]


class Attribution(NamedTuple):
    """Gradients of the examples' margins.

    Attributes:
        margins: the logit of the model's answer minus the next best.
        gradients: by site, with respect to the head outputs at the query.
    """

    margins: Float64[Tensor, "n"]
    gradients: dict[str, Float[Tensor, "n head d_head"]]

    @staticmethod
    def from_bench(bench: Bench) -> Attribution:
        """Return the gradients from one forward and one backward pass over the examples."""
        margins = torch.empty(bench.n, dtype=torch.float64)
        gradients = {site: torch.zeros_like(points) for site, points in bench.points.items()}
        for batch, rows in zip(bench.batches, bench.rows, strict=True):
            outputs, margin = _margins(bench, batch)
            margins[rows] = margin.detach().cpu().double()
            query = bench.probe.query_positions(batch)
            for site, gradient in _gradients(margin, outputs).items():
                gradients[site][rows] = at_position(gradient, query).to(gradients[site])
        return Attribution(margins, gradients)


def _gradients(
    margin: Float[Tensor, "batch"], outputs: dict[str, Float[Tensor, "batch pos head d_head"]]
) -> dict[str, Float[Tensor, "batch pos head d_head"]]:
    """Return the gradient with respect to the outputs at each site on which the margins depend."""
    by_site: dict[str, Tensor | None] = dict.fromkeys(outputs)
    if margin.requires_grad:
        gradients = torch.autograd.grad(margin.sum(), list(outputs.values()), allow_unused=True)
        by_site = dict(zip(outputs, gradients, strict=True))
    used = {site: gradient for site, gradient in by_site.items() if gradient is not None}
    if not used:
        raise InputError(
            "no gradient leads from the model's logits to its head outputs; give a model that torch runs with "
            "gradients, or name the heads to check: interchange(..., heads=[(site, head)])"
        )
    return used


def _margins(
    bench: Bench, batch: Batch
) -> tuple[dict[str, Float[Tensor, "batch pos head d_head"]], Float[Tensor, "batch"]]:
    """Return head outputs by site, and the margins computed from them, with gradients."""
    outputs: dict[str, Tensor] = {}
    keep = partial(_keep_with_gradient, outputs)
    with torch.enable_grad(), evaluation_mode(bench.model), record(bench.model, bench.probe.outputs, keep):
        logits = forward(bench.model, batch)
    if logits.ndim == 3:
        logits = at_position(logits, bench.probe.query_positions(batch))
    best = logits.topk(2, dim=-1).values
    return outputs, best[:, 0] - best[:, 1]


def _keep_with_gradient(
    outputs: dict[str, Float[Tensor, "..."]], name: str, z: Float[Tensor, "batch pos head d_head"]
) -> Float[Tensor, "batch pos head d_head"]:
    outputs[name] = z if z.requires_grad else z.detach().requires_grad_(True)
    return outputs[name]  # also for z: a bridge returns a copy in another layout
