"""Which inputs are the same to what follows a head? Its outputs are interchanged between examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

from probes.checks.bench import Bench, check_heads
from probes.checks.head_attribution import bench_of, head_attribution
from probes.clustering_head import ClusteringHead
from probes.engine.batches import Batches, each_batch
from probes.engine.hooks import HookedModel
from probes.engine.result import ProbeResult
from probes.engine.texts import TextTokenizer
from probes.functional.adjusted_rand import adjusted_rand_score
from probes.functional.clustering_head import within_ratio
from probes.functional.relabelling import enough_permutations, holm_over_heads, relabelling_p_values
from probes.functional.response_classes import response_classes, response_points
from probes.store.files import versions
from tasks import InputError
from tasks.errors import check_count
from tasks.text.beginning import Bos

HeadPlace = tuple[str, int]  # site and number

_PER_HEAD = ("changed", "classes", "stability", "within_ratio", "within_ratio_gaussian")
_WITHOUT_EFFECT = "all outputs lead to the same answers, so p-values are NaN"
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
    tokenizer: Any = None,
    bos: Bos = "model",
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
        tokenizer, bos: for texts, as in ``run``.

    Raises:
        InputError: as ``causal_checks`` and ``head_attribution``; for fewer than 2 recipients or more than there are
            examples, or a tolerance outside 0 to 1.

    Example:
        >>> # run(model, batches, probe)
        >>> # found = interchange(model, batches, probe, heads=4)
        >>> # found.sel("discovered", site="blocks.1.attn.hook_z", head="0")
    """
    reading = TextTokenizer({"": model}, tokenizer, bos)
    plan = _Plan.of(model, batches, probe, reading, heads, recipients, tolerance, permutations, seed)
    bench, labels, sites = plan.bench, list(plan.bench.labels.values()), probe.outputs
    chosen, shape = plan.chosen, plan.effect.shape
    values = {"effect": plan.effect}
    values |= {name: torch.full(shape, torch.nan, dtype=torch.float64) for name in _PER_HEAD}
    values |= {name: torch.full((*shape, len(labels)), torch.nan, dtype=torch.float64) for name in _PER_LABEL}
    values["discovered"] = torch.full((*shape, bench.n), -1)
    notes = [] if len(chosen) == values["effect"].numel() else ["heads that were not chosen are NaN"]
    notes += plan.too_few(heads)
    for site, head in chosen:
        at = sites.index(site), head
        found = _Interchanged.of(plan, [(site, head)])
        for name, value in found.per_head(plan).items():
            values[name][at] = value
        values["discovered"][at] = found.classes
        if found.without_effect:
            notes.append(f"{site} head {head}: {_WITHOUT_EFFECT}")
        for k, label in enumerate(labels):
            for name, value in found.per_label(plan, label).items():
                values[name][(*at, k)] = value
    if chosen:
        notes += _alone(bench.labels, values["changed_within"])
    values["p_holm"] = holm_over_heads(values["p_value"])
    axes: dict[str, tuple[str, ...]] = dict.fromkeys(("effect", *_PER_HEAD), ("site", "head"))
    axes |= dict.fromkeys(_PER_LABEL, ("site", "head", "equivalence"))
    axes["discovered"] = ("site", "head", "example")
    return ProbeResult(
        probe="interchange",
        values=values,
        axes=axes,
        coords={"site": sites, "head": [str(h) for h in range(shape[1])], **plan.coords},
        layers={site.name: site.layer for site in probe.sites if site.name in sites},
        metadata=plan.metadata(groups=len(chosen)) | reading.metadata,
        notes=notes,
    )


def interchange_together(
    model: HookedModel,
    batches: Batches,
    probe: ClusteringHead,
    *,
    heads: Sequence[HeadPlace] | int = 16,
    recipients: int = 8,
    tolerance: float = 0.0,
    permutations: int = 999,
    seed: int = 0,
    tokenizer: Any = None,
    bos: Bos = "model",
) -> ProbeResult:
    """Replace the outputs of several heads at once, and find which examples the rest of the model then treats alike.

    In larger models, heads back each other up, so that a single one changes hardly any answer. Here the outputs of all
    these heads are put into a recipient together. Compare with other sets of as many heads: the more heads of a model
    are replaced, the more the answer is the donor's by construction.

    Measures (as in ``interchange``, for the set as a whole):
        ``changed``, ``classes``, ``stability``, ``within_ratio``, ``within_ratio_gaussian`` (no axes). The last two are
            of the outputs side by side, so that heads with larger outputs count for more.
        ``changed_within``, ``changed_between``, ``response_within_ratio``, ``agreement``, ``p_value`` (equivalence).
            There is one test per equivalence, so no correction.
        ``discovered`` (example): the class of each example.

    Cost: forward passes over the examples: 3 and one backward pass to choose heads (1 where they are given), and
    ``2 recipients`` whatever the number of heads.

    Args:
        model: the model ``probe`` was run on.
        batches: the examples; each with an index of its own.
        probe: a ``ClusteringHead`` that has been run; it defines the sites and the equivalence.
        heads: number of heads, those with the largest ``effect``, for which no label is needed; or pairs of site and
            head.
        recipients: number of recipients, drawn at random.
        tolerance: share of the recipients in which two examples of one class may lead to different answers.
        permutations: number of relabellings for ``p_value``.
        seed: for recipients, relabellings and Gaussian points.
        tokenizer, bos: for texts, as in ``run``.

    Raises:
        InputError: as ``interchange``; and if there are no heads: an empty list, or none with an effect.

    Example:
        >>> # run(model, batches, probe)
        >>> # found = interchange_together(model, batches, probe, heads=16)
        >>> # found["discovered"], found["agreement"]
    """
    check_count(permutations=(permutations, 1))
    if isinstance(heads, Sequence) and not heads:
        raise InputError("heads is empty; give at least one pair of site and head")
    reading = TextTokenizer({"": model}, tokenizer, bos)
    plan = _Plan.of(model, batches, probe, reading, heads, recipients, tolerance, permutations, seed)
    if not plan.chosen:
        raise InputError(
            "no head's output has an effect on the answers, to first order; name the heads to interchange: "
            "heads=[(site, head)]"
        )
    found = _Interchanged.of(plan, plan.chosen)
    labels = plan.bench.labels
    per_label = [found.per_label(plan, label) for label in labels.values()]
    per_head = {name: torch.tensor(value, dtype=torch.float64) for name, value in found.per_head(plan).items()}
    own = [name for name in _PER_LABEL if name != "p_holm"]
    values = {name: torch.tensor([of[name] for of in per_label], dtype=torch.float64) for name in own}
    axes: dict[str, tuple[str, ...]] = dict.fromkeys(_PER_HEAD, ())
    axes |= dict.fromkeys(own, ("equivalence",)) | {"discovered": ("example",)}
    notes = [f"these heads together: {_WITHOUT_EFFECT}"] if found.without_effect else []
    notes += plan.too_few(heads)
    if len(plan.chosen) == plan.effect.numel():
        notes.append("all heads were interchanged, which gives the donor's answer by construction")
    return ProbeResult(
        probe="interchange together",
        values=per_head | values | {"discovered": found.classes},
        axes=axes,
        coords=plan.coords,
        metadata=plan.metadata(groups=1) | {"heads": [[site, head] for site, head in plan.chosen]} | reading.metadata,
        notes=notes + _alone(labels, values["changed_within"]),
    )


def _alone(labels: Mapping[str, Tensor], changed_within: Tensor) -> list[str]:
    """Which labels (the last axis) have no class of two examples."""
    return [
        f"{name!r}: no recipient has another example of its class, so changed_within is NaN"
        for k, name in enumerate(labels)
        if bool(changed_within[..., k].isnan().all())
    ]


class _Plan(NamedTuple):
    """What is interchanged: examples, heads, recipients.

    Attributes:
        bench: the examples, and what the model makes of them.
        effect: ``[site head]`` by which heads were chosen; NaN where they were given.
        chosen: the heads.
        recipients: ``[recipient]`` places in ``bench``.
        noise: ``[n n]`` of a normal distribution.
        tolerance: of discovered classes.
        permutations: relabellings of each test.
        seed: for relabellings.
        passes: forward passes before the first interchange.
    """

    bench: Bench
    effect: Tensor
    chosen: list[HeadPlace]
    recipients: Tensor
    noise: Tensor
    tolerance: float
    permutations: int
    seed: int
    passes: int

    @staticmethod
    def of(
        model: HookedModel,
        batches: Batches,
        probe: ClusteringHead,
        reading: TextTokenizer,
        heads: Sequence[HeadPlace] | int,
        recipients: int,
        tolerance: float,
        permutations: int | None,
        seed: int,
    ) -> _Plan:
        check_count(recipients=(recipients, 2), seed=(seed, 0))
        if not isinstance(heads, Sequence):
            if not isinstance(heads, Integral):
                raise InputError(f"heads is {heads!r}; expected a number of heads or a list of pairs of site and head")
            check_count(heads=(heads, 1))
        if permutations is not None:
            check_count(permutations=(permutations, 1))
        if not isinstance(tolerance, Real) or not 0 <= tolerance < 1:
            raise InputError(f"tolerance is {tolerance}; expected a share of the recipients, at least 0 and below 1")
        given = list(each_batch(batches, {"": model}, reading=reading))
        bench = bench_of(model, given, probe)
        if recipients > bench.n:
            raise InputError(f"recipients is {recipients}, more than the {bench.n} examples; give fewer")
        sites = probe.outputs
        effect = torch.full((len(sites), bench.n_heads), torch.nan, dtype=torch.float64)
        if isinstance(heads, Sequence):
            chosen = check_heads(heads, probe)
        else:
            effect = head_attribution(model, given, probe, permutations=1, seed=seed)["effect"]
            chosen = _strongest(effect, heads, sites)
        if permutations is None:
            permutations = enough_permutations(effect.numel())
        seed = int(seed)
        draw = torch.Generator().manual_seed(seed)
        receiving = torch.randperm(bench.n, generator=draw)[:recipients]
        noise = torch.randn(bench.n, bench.n, dtype=torch.float64, generator=draw)
        passes = 1 if isinstance(heads, Sequence) else 3
        return _Plan(bench, effect, chosen, receiving, noise, tolerance, permutations, seed, passes)

    @property
    def before(self) -> Tensor:
        """``[recipient]`` the answers without interchange."""
        return self.bench.answers[self.recipients]

    @property
    def examples(self) -> Tensor:
        """``[n]`` their index."""
        return torch.cat([batch.index.cpu() for batch in self.bench.batches]).sort().values

    @property
    def coords(self) -> dict[str, list[str]]:
        return {"equivalence": self.bench.probe.labels, "example": [str(i) for i in self.examples.tolist()]}

    def too_few(self, heads: Sequence[HeadPlace] | int) -> list[str]:
        """Whether fewer heads were chosen than asked for."""
        if isinstance(heads, Sequence) or len(self.chosen) >= heads:
            return []
        return [f"{len(self.chosen)} of the {heads} heads asked for: no other has an effect, to first order"]

    def metadata(self, *, groups: int) -> dict[str, Any]:
        """With the passes of so many groups of heads that were interchanged, one after the other."""
        return {
            "n": self.bench.n,
            "seed": self.seed,
            "recipients": self.examples[self.recipients].tolist(),
            "tolerance": float(self.tolerance),
            "permutations": self.permutations,
            "passes": self.passes + 2 * len(self.recipients) * groups,
            "clustering_head": repr(self.bench.probe),
            "versions": versions(),
        }


def _strongest(effect: Tensor, heads: int, sites: Sequence[str]) -> list[tuple[str, int]]:
    """Those of the largest effect, and none without one."""
    order = effect.flatten().argsort(descending=True, stable=True)[:heads].tolist()
    return [(sites[i // effect.shape[1]], i % effect.shape[1]) for i in order if float(effect.flatten()[i]) > 0]


class _Interchanged(NamedTuple):
    """What became of the interchanges at one head, or at several at once.

    Attributes:
        points: ``[n d_head]`` outputs, side by side.
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
    def of(plan: _Plan, heads: Sequence[HeadPlace]) -> _Interchanged:
        points = plan.bench.outputs(heads).double()
        answers = plan.bench.responses(heads, points, plan.recipients)
        mean, half = points.mean(dim=0), len(plan.recipients) // 2
        cloud = mean + plan.noise @ (points - mean) / (len(points) - 1) ** 0.5
        of_cloud = plan.bench.responses(heads, cloud, plan.recipients)
        return _Interchanged(
            points,
            answers,
            response_classes(answers, plan.tolerance),
            (response_classes(answers[:half], plan.tolerance), response_classes(answers[half:], plan.tolerance)),
            (cloud, response_classes(of_cloud, plan.tolerance)),
        )

    @property
    def without_effect(self) -> bool:
        """Whether each recipient's answer is the same for all donors."""
        return bool((self.answers == self.answers[:, :1]).all())

    def per_head(self, plan: _Plan) -> dict[str, float]:
        """What needs no label."""
        other = torch.arange(len(self.points)) != plan.recipients[:, None]
        several = any(int(half.max()) > 0 for half in self.halves)
        return {
            "changed": float((self.answers != plan.before[:, None])[other].double().mean()),
            "classes": float(self.classes.max()) + 1,
            "stability": adjusted_rand_score(self.halves[0], self.halves[1]) if several else torch.nan,
            "within_ratio": float(within_ratio(self.points, self.classes)),
            "within_ratio_gaussian": float(within_ratio(*self.gaussian)),
        }

    def per_label(self, plan: _Plan, label: Tensor) -> dict[str, float]:
        changed = (self.answers != plan.before[:, None]).double()
        same = label[plan.recipients][:, None] == label
        other = torch.arange(len(label)) != plan.recipients[:, None]
        responses = response_points(self.answers)
        p = relabelling_p_values(responses[:, None], label, plan.permutations, units=plan.bench.units, seed=plan.seed)
        return {
            "changed_within": float(changed[same & other].mean()),  # NaN where a class has one example
            "changed_between": float(changed[~same].mean()),
            "response_within_ratio": float(within_ratio(responses, label)),
            "agreement": adjusted_rand_score(self.classes, label),
            "p_value": float(p),
        }
