"""Which heads does a prediction depend on? Gradient times difference, for all heads from one backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from probes.checks.bench import Bench
from probes.clustering_head import ClusteringHead
from probes.engine.batches import Batches, each_batch
from probes.engine.hooks import HookedModel, evaluation_mode, forward, record
from probes.engine.result import ProbeResult
from probes.engine.texts import TextTokenizer
from probes.functional.clustering_head import within_ratio
from probes.functional.relabelling import enough_permutations, holm_over_heads, relabelling_p_values
from probes.store.files import versions
from tasks import Batch, InputError
from tasks.errors import check_at_least
from tasks.text.beginning import Bos


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
    """Estimate, for every head and every pair of examples, how one's output would change the other's prediction.

    With ``g_i`` the gradient of example ``i``'s margin (the logit of the model's answer minus the next best) with
    respect to a head's output at the query, replacing it by the output ``z_j`` of another example changes the margin by
    about ``g_i (z_j - z_i)``. One forward and one backward pass give that for all heads and pairs. It shows where to
    look, but proves nothing: ``interchange`` then carries out the interchanges for a few heads.

    Measures:
        ``effect`` (site, head): mean over all pairs of the absolute change of the margin, in logits.
        ``flips`` (site, head): share of the pairs whose change is larger than the margin, so that the answer would
            change.
        ``read_within_ratio`` (site, head, equivalence): within-ratio of the outputs as they are read, ``G z`` with
            the examples' gradients as rows of ``G``: differences that do not affect any prediction count for nothing.
            Chance is the probe's ``within_ratio_chance``.
        ``p_value``, ``p_holm`` (site, head, equivalence): of ``read_within_ratio`` under relabelling, and with Holm's
            correction over all heads.
        ``margin`` (no axes): mean of the examples' margins.

    To first order only: where a prediction is saturated (a threshold far away) the gradient is 0 and a head that
    matters is missed; ``effect`` does not see it either.

    Cost: two forward passes and one backward pass; examples x examples products per head; the relabellings. Memory: the
    graph of one batch, and all examples' outputs and gradients at the query of all sites.

    Args:
        model: the model ``probe`` was run on.
        batches: what to measure on; each example with an index of its own.
        probe: a ``ClusteringHead`` that has been run; it defines the sites and the equivalence.
        permutations: number of relabellings; ``None``: as many as Holm's correction over all heads needs to reach
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
    found = Attribution.of(bench)
    sites, n = probe.outputs, bench.n
    shape = (len(sites), bench.n_heads)
    if permutations is None:
        permutations = enough_permutations(shape[0] * shape[1])
    check_at_least(permutations=(permutations, 1))
    labels = list(bench.labels.values())
    effect, flips = (torch.zeros(shape, dtype=torch.float64) for _ in range(2))
    ratios, p = (torch.full((*shape, len(labels)), torch.nan, dtype=torch.float64) for _ in range(2))
    for s, site in enumerate(sites):
        read = []
        for h in range(bench.n_heads):
            points, gradient = bench.points[site][:, h].double(), found.gradients[site][:, h].double()
            change = gradient @ points.T
            change = change - change.diagonal()[:, None]
            effect[s, h] = change.abs().sum() / (n * (n - 1))
            flips[s, h] = (change < -found.margins[:, None]).sum() / (n * (n - 1))
            read.append(points @ torch.linalg.qr(gradient, mode="r").R.T)
            for k, label in enumerate(labels):
                ratios[s, h, k] = within_ratio(read[-1], label)
        for k, label in enumerate(labels):
            p[s, :, k] = relabelling_p_values(
                torch.stack(read, dim=1), label, permutations, units=bench.units, seed=seed
            )
    values = {"effect": effect, "flips": flips, "read_within_ratio": ratios, "p_value": p}
    values["p_holm"] = holm_over_heads(p)
    values["margin"] = found.margins.mean()
    axes: dict[str, tuple[str, ...]] = dict.fromkeys(values, ("site", "head", "equivalence"))
    axes |= {"effect": ("site", "head"), "flips": ("site", "head"), "margin": ()}
    return ProbeResult(
        probe="head_attribution",
        values=values,
        axes=axes,
        coords={"site": sites, "head": [str(h) for h in range(bench.n_heads)], "equivalence": probe.labels},
        layers={site.name: site.layer for site in probe.sites if site.name in sites},
        metadata={
            "n": n,
            "seed": seed,
            "permutations": permutations,
            "clustering_head": repr(probe),
            "versions": versions(),
        }
        | reading.metadata,
        notes=[
            f"{sites[s]} head {h}: nothing of its output is read to first order, so its p-values are NaN"
            for s, h in (effect == 0).nonzero().tolist()
        ],
    )


def bench_of(
    model: HookedModel, batches: Batches, probe: ClusteringHead, reading: TextTokenizer | None = None
) -> Bench:
    """The examples and what the model makes of them, where nothing is right or wrong."""
    if not len(probe.points):
        raise InputError("this ClusteringHead has not been run; call run(model, batches, probe) first")
    probe.bind(model)
    given = list(each_batch(batches, {"": model}, reading=reading))
    return Bench(model, given, probe, lambda logits, batch: batch.index * 0.0)


class Attribution(NamedTuple):
    """Gradients of the examples' margins.

    Attributes:
        margins: ``[n]`` the logit of the model's answer minus the next best.
        gradients: ``[n head d_head]`` by site, with respect to the head's output at the query.
    """

    margins: Tensor
    gradients: dict[str, Tensor]

    @staticmethod
    def of(bench: Bench) -> Attribution:
        """One forward and one backward pass over the examples of ``bench``."""
        margins = torch.empty(bench.n, dtype=torch.float64)
        gradients = {site: torch.zeros_like(points) for site, points in bench.points.items()}
        for batch, rows in zip(bench.batches, bench.rows, strict=True):
            outputs, margin = _forward(bench, batch)
            margins[rows] = margin.detach().cpu().double()
            found: Sequence[Tensor | None] = [None]
            if margin.requires_grad:
                found = torch.autograd.grad(margin.sum(), list(outputs.values()), allow_unused=True)
            if all(gradient is None for gradient in found):
                raise InputError(
                    "no gradient leads from the model's logits to its head outputs; give a model that torch runs with "
                    "gradients, or name the heads to check: interchange(..., heads=[(site, head)])"
                )
            where = bench.probe.query_positions(batch)
            for site, gradient in zip(outputs, found, strict=True):
                if gradient is not None:  # what nothing depends on has none
                    at = 0 if gradient.shape[1] == 1 else where.to(gradient.device)
                    here = torch.arange(len(gradient), device=gradient.device)
                    gradients[site][rows] = gradient[here, at].to(gradients[site])
        return Attribution(margins, gradients)


def _forward(bench: Bench, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
    """Head outputs by site, in the graph of the margins ``[batch]``."""
    outputs: dict[str, Tensor] = {}

    def keep(name: str, z: Tensor) -> Tensor:
        outputs[name] = z if z.requires_grad else z.detach().requires_grad_(True)
        return outputs[name]  # also where it is z: a bridge hands out a copy in another layout

    with torch.enable_grad(), evaluation_mode(bench.model), record(bench.model, bench.probe.outputs, keep):
        logits = forward(bench.model, batch)
    if logits.ndim == 3:
        rows = torch.arange(len(logits), device=logits.device)
        logits = logits[rows, bench.probe.query_positions(batch).to(logits.device)]
    best = logits.topk(2, dim=-1).values
    return outputs, best[:, 0] - best[:, 1]
