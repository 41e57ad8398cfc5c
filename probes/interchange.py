"""Which inputs are the same to what follows a head? Its outputs are interchanged between examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from probes.batches import Batches, each_batch
from probes.causal_checks import Bench, check_heads
from probes.clustering_head import ClusteringHead
from probes.files import versions
from probes.functional.clustering_head import within_ratio
from probes.functional.relabelling import enough_permutations, holm_over_heads, relabelling_p_values
from probes.functional.response_classes import response_classes, response_points
from probes.functional.task_cluster_ari import adjusted_rand_score
from probes.head_attribution import bench_of, head_attribution
from probes.hooks import HookedModel
from probes.result import ProbeResult
from tasks import InputError
from tasks.errors import check_at_least

_PER_HEAD = ("changed", "classes", "stability", "within_ratio", "within_ratio_gaussian")
_PER_LABEL = ("changed_within", "changed_between", "response_within_ratio", "agreement", "p_value", "p_holm")


def interchange(
    model: HookedModel,
    batches: Batches,
    probe: ClusteringHead,
    *,
    heads: Sequence[tuple[str, int]] | int = 4,
    recipients: int = 8,
    tolerance: float = 0.0,
    permutations: int | None = None,
    seed: int = 0,
) -> ProbeResult:
    """Put one example's head output into others, and find which examples the rest of the model treats alike.

    Some examples are *recipients*. Every example's output of a head is put, one after the other, into each recipient at
    the query, and the model's answers are noted. Two examples are equivalent at that head where they lead to the same
    answer in every recipient. These *discovered* classes need no labels (``ClusteringHead(())``); where there are
    labels, the classes' agreement with them is measured, and whether answers follow the labels is tested by relabelling
    the donors.

    Measures:
        ``effect`` (site, head): of ``head_attribution``, by which heads are chosen; NaN where they were given.
        ``changed`` (site, head): share of interchanges that change the recipient's answer.
        ``changed_within``, ``changed_between`` (site, head, equivalence): the same for donors of the recipient's class,
            and for those of others. A clustering head has none of the first, and some of the second.
        ``response_within_ratio`` (site, head, equivalence): within-ratio of the donors' answers (each answer in each
            recipient an axis): 0 where donors of a class are the same. Chance is the probe's ``within_ratio_chance``.
        ``p_value``, ``p_holm`` (site, head, equivalence): of that ratio under relabelling, and with Holm's correction
            over **all** heads: one that was not chosen counts as a test with p = 1.
        ``classes`` (site, head): number of discovered classes. ``discovered`` (site, head, example): the class of each
            example, -1 where the head was not chosen.
        ``agreement`` (site, head, equivalence): adjusted Rand index of discovered classes and labels: 1 the same, 0 by
            chance.
        ``stability`` (site, head): adjusted Rand index of the classes from the first half of the recipients and from
            the second, with ``tolerance`` a share of either half; NaN where both are one class.
        ``within_ratio``, ``within_ratio_gaussian`` (site, head): of the head's outputs under the discovered classes;
            and the same for as many points of a normal distribution of the same mean and covariance, put into the
            same recipients. Answers split any cloud into classes; the real outputs are *clusters* if the first is well
            below the second.

    Examples that the model does not distinguish in any recipient are one class: where only the answer is read, classes
    are answers. Recipients that differ in what else the answer depends on make the classes finer. More recipients can
    only split classes.

    Cost: forward passes over the examples: 3 and one backward pass for all heads, then ``2 recipients`` for each head
    chosen (4 x 16 = 64 with the defaults; ``metadata["passes"]``).

    Args:
        model: the model ``probe`` was run on.
        batches: the examples; each with an index of its own. A few hundred are plenty.
        probe: a ``ClusteringHead`` that has been run; it defines the sites and the equivalence.
        heads: number of heads, those with the largest ``effect``; or pairs of site and head.
        recipients: number of recipients, drawn at random.
        tolerance: share of the recipients in which two examples of one class may lead to different answers. At 0
            classes are exact; above, they are found by complete linkage.
        permutations: number of relabellings; ``None``: as many as Holm's correction over all heads needs to reach
            significance.
        seed: for recipients, relabellings and Gaussian points.

    Raises:
        InputError: as ``causal_checks`` and ``head_attribution``; for fewer than 2 recipients or more than there are
            examples, or a tolerance outside 0 to 1.

    Example:
        >>> # run(model, batches, probe)
        >>> # found = interchange(model, batches, probe, heads=4)
        >>> # found.sel("discovered", site="blocks.1.attn.hook_z", head="0")
    """
    check_at_least(recipients=(recipients, 2), seed=(seed, 0))
    if isinstance(heads, int):
        check_at_least(heads=(heads, 1))
    if not 0 <= tolerance < 1:
        raise InputError(f"tolerance is {tolerance}; expected a share of the recipients, at least 0 and below 1")
    given = list(each_batch(batches, {"": model}))
    bench = bench_of(model, given, probe)
    if recipients > bench.n:
        raise InputError(f"recipients is {recipients}, more than the {bench.n} examples; give fewer")
    sites, n, labels = probe.outputs, bench.n, list(bench.labels.values())
    shape = (len(sites), bench.n_heads)
    if permutations is None:
        permutations = enough_permutations(shape[0] * shape[1])
    values = {name: torch.full(shape, torch.nan, dtype=torch.float64) for name in ("effect", *_PER_HEAD)}
    values |= {name: torch.full((*shape, len(labels)), torch.nan, dtype=torch.float64) for name in _PER_LABEL}
    values["discovered"] = torch.full((*shape, n), -1)
    if isinstance(heads, int):
        values["effect"] = head_attribution(model, given, probe, permutations=1, seed=seed)["effect"]
        chosen = _strongest(values["effect"], heads, sites)
    else:
        chosen = check_heads(heads, probe)
    draw = torch.Generator().manual_seed(seed)
    receiving = torch.randperm(n, generator=draw)[:recipients]
    noise = torch.randn(n, n, dtype=torch.float64, generator=draw)
    notes = [] if len(chosen) == values["effect"].numel() else ["heads that were not chosen are NaN"]
    for site, head in chosen:
        at = sites.index(site), head
        found = _Interchanged.of(bench, site, head, receiving, noise, tolerance)
        for name, value in found.per_head(bench.answers[receiving], receiving).items():
            values[name][at] = value
        values["discovered"][at] = found.classes
        if bool((found.answers == found.answers[:, :1]).all()):
            notes.append(f"{site} head {head}: all outputs lead to the same answers, so p-values are NaN")
        for k, label in enumerate(labels):
            per_label = found.per_label(bench.answers[receiving], receiving, label, permutations, seed)
            for name, value in per_label.items():
                values[name][(*at, k)] = value
    for k, name in enumerate(bench.labels):
        if chosen and bool(values["changed_within"][..., k].isnan().all()):
            notes.append(f"{name!r}: no recipient has another example of its class, so changed_within is NaN")
    values["p_holm"] = holm_over_heads(values["p_value"])
    axes: dict[str, tuple[str, ...]] = dict.fromkeys(("effect", *_PER_HEAD), ("site", "head"))
    axes |= dict.fromkeys(_PER_LABEL, ("site", "head", "equivalence"))
    axes["discovered"] = ("site", "head", "example")
    index = torch.cat([batch.index.cpu() for batch in bench.batches]).sort().values
    return ProbeResult(
        probe="interchange",
        values=values,
        axes=axes,
        coords={
            "site": sites,
            "head": [str(h) for h in range(shape[1])],
            "equivalence": probe.labels,
            "example": [str(i) for i in index.tolist()],
        },
        layers={site.name: site.layer for site in probe.sites if site.name in sites},
        metadata={
            "n": n,
            "seed": seed,
            "recipients": index[receiving].tolist(),
            "permutations": permutations,
            "passes": (3 if isinstance(heads, int) else 1) + 2 * recipients * len(chosen),
            "clustering_head": repr(probe),
            "versions": versions(),
        },
        notes=notes,
    )


def _strongest(effect: Tensor, heads: int, sites: Sequence[str]) -> list[tuple[str, int]]:
    """Those of the largest effect, and none without one."""
    order = effect.flatten().argsort(descending=True, stable=True)[:heads].tolist()
    return [(sites[i // effect.shape[1]], i % effect.shape[1]) for i in order if float(effect.flatten()[i]) > 0]


class _Interchanged(NamedTuple):
    """What became of the interchanges at one head.

    Attributes:
        points: ``[n d_head]`` outputs.
        answers: ``[recipient n]`` the model's, by donor.
        classes: ``[n]`` discovered.
        halves: the same from either half of the recipients.
        gaussian: ``[n d_head]`` points of a normal distribution, and beside them their classes ``[n]``.
    """

    points: Tensor
    answers: Tensor
    classes: Tensor
    halves: tuple[Tensor, Tensor]
    gaussian: tuple[Tensor, Tensor]

    @staticmethod
    def of(bench: Bench, site: str, head: int, recipients: Tensor, noise: Tensor, tolerance: float) -> _Interchanged:
        points = bench.points[site][:, head].double()
        answers = bench.responses(site, head, points, recipients)
        mean, half = points.mean(dim=0), len(recipients) // 2
        cloud = mean + noise @ (points - mean) / (len(points) - 1) ** 0.5
        of_cloud = bench.responses(site, head, cloud, recipients)
        return _Interchanged(
            points,
            answers,
            response_classes(answers, tolerance),
            (response_classes(answers[:half], tolerance), response_classes(answers[half:], tolerance)),
            (cloud, response_classes(of_cloud, tolerance)),
        )

    def per_head(self, before: Tensor, recipients: Tensor) -> dict[str, float]:
        """``before [recipient]``: the answers without interchange."""
        other = torch.arange(len(self.points)) != recipients[:, None]
        several = any(int(half.max()) > 0 for half in self.halves)
        return {
            "changed": float((self.answers != before[:, None])[other].double().mean()),
            "classes": float(self.classes.max()) + 1,
            "stability": adjusted_rand_score(self.halves[0], self.halves[1]) if several else torch.nan,
            "within_ratio": float(within_ratio(self.points, self.classes)),
            "within_ratio_gaussian": float(within_ratio(*self.gaussian)),
        }

    def per_label(
        self, before: Tensor, recipients: Tensor, label: Tensor, permutations: int, seed: int
    ) -> dict[str, float]:
        changed = (self.answers != before[:, None]).double()
        same = label[recipients][:, None] == label
        other = torch.arange(len(label)) != recipients[:, None]
        responses = response_points(self.answers)
        return {
            "changed_within": float(changed[same & other].mean()),  # NaN where a class has one example
            "changed_between": float(changed[~same].mean()),
            "response_within_ratio": float(within_ratio(responses, label)),
            "agreement": adjusted_rand_score(self.classes, label),
            "p_value": float(relabelling_p_values(responses[:, None], label, permutations, seed=seed)),
        }
