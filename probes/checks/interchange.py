"""Find inputs that the model does not distinguish after a head: interchange head outputs between examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from probes.checks.bench import Bench, HeadPlace, bench_of
from probes.checks.head_attribution import head_attribution
from probes.clustering_head import ClusteringHead
from probes.engine.batches import Batches, each_batch
from probes.engine.hooked_model import HookedModel
from probes.engine.result import ProbeResult
from probes.engine.text_tokenizer import TextTokenizer
from probes.functional.adjusted_rand import adjusted_rand_score
from probes.functional.holm import holm_over_heads
from probes.functional.permutation_test import enough_permutations
from probes.functional.relabelling import relabelling_p_values
from probes.functional.response_classes import response_classes, response_points
from probes.functional.within_ratio import within_ratio
from tasks import InputError
from tasks.settings import check_count
from tasks.text.bos_token import Bos

_WITHOUT_LABEL = ("changed", "classes", "stability", "within_ratio", "within_ratio_gaussian")
_BY_LABEL = ("changed_within", "changed_between", "response_within_ratio", "agreement", "p_value")
_WITHOUT_EFFECT = "all outputs lead to the same answers, so p-values are NaN"


def interchange(
    model: HookedModel,
    batches: Batches,
    probe: ClusteringHead,
    *,
    heads: Sequence[HeadPlace] | int = 4,
    recipients: int = 8,
    tolerance: float = 0.0,
    permutations: int | None = None,
    seed: int = 0,
    tokenizer: Any = None,
    bos: Bos = "model",
) -> ProbeResult:
    """Put one example's head output into others, and find which examples the rest of the model treats alike.

    Some examples are *recipients*. Every example's output of a head is put, one after the other, into each recipient at
    the query, and the model's answers are noted. Two examples are equivalent at that head if they lead to equal answers
    in every recipient. These *discovered* classes need no labels (``ClusteringHead(())``). If there are labels, the
    classes' agreement with them is measured, and relabelling of the donors tests whether answers depend on labels.

    Measures:
        ``effect`` (site, head): the measure of ``head_attribution``, by which heads are chosen. NaN if they were given.
        ``changed`` (site, head): share of interchanges that change the recipient's answer.
        ``changed_within``, ``changed_between`` (site, head, equivalence): the share for donors of the recipient's
            class, and for donors of other classes. A clustering head has a share of 0 for the first, and above 0 for
            the second.
        ``response_within_ratio`` (site, head, equivalence): within-ratio of the donors' answers (each answer in each
            recipient an axis): 0 if donors of a class agree. Chance is the probe's ``within_ratio_chance``.
        ``p_value``, ``p_holm`` (site, head, equivalence): p-value of that ratio under relabelling, and with Holm's
            correction over **all** heads. A head that was not chosen counts as a test with p = 1.
        ``classes`` (site, head): number of discovered classes. ``discovered`` (site, head, example): the class of each
            example, or -1 if the head was not chosen.
        ``agreement`` (site, head, equivalence): adjusted Rand index of discovered classes and labels: 1 identical, 0 by
            chance.
        ``stability`` (site, head): adjusted Rand index of the classes from the first half of the recipients and from
            the second, with ``tolerance`` a share of either half. NaN if both are one class.
        ``within_ratio``, ``within_ratio_gaussian`` (site, head): within-ratio of the head's outputs under the
            discovered classes. For comparison, also of as many points of a normal distribution with equal mean and
            covariance, put into these recipients. Answers split any cloud into classes. The real outputs are *clusters*
            if the first is well below the second.

    Examples that the model does not distinguish in any recipient are one class: if only the answer is read, classes are
    answers. Recipients that differ in other causes of the answer make the classes finer. More recipients can only split
    classes.

    Cost: forward passes over the examples: 3 and one backward pass for all heads, then ``2 recipients`` for each head
    chosen (``metadata["passes"]``, 3 + 4 x 16 = 67 with the defaults).

    Args:
        model: the model ``probe`` was run on.
        batches: the examples, each with its own index. A few hundred are plenty.
        probe: a ``ClusteringHead`` that has been run. It defines the sites and the equivalence.
        heads: number of heads, taken by the largest ``effect``, or pairs of site and head.
        recipients: number of recipients, drawn at random.
        tolerance: share of the recipients in which two examples of one class may lead to different answers. At 0
            classes are exact. Above, they are found by complete linkage.
        permutations: number of relabellings. ``None``: as many as Holm's correction over all heads needs to reach
            significance.
        seed: for recipients, relabellings and Gaussian points.
        tokenizer, bos: for texts, as in ``run``.

    Raises:
        InputError: as ``causal_checks`` and ``head_attribution``. Also for fewer than 2 recipients or more than there
            are examples, or a tolerance outside 0 to 1.

    Example:
        >>> # run(model, batches, probe)
        >>> # result = interchange(model, batches, probe, heads=4)
        >>> # result.sel("discovered", site="blocks.1.attn.hook_z", head="0")
    """
    reading = TextTokenizer({"": model}, tokenizer, bos)
    plan = _Plan.from_settings(model, batches, probe, reading, heads, recipients, tolerance, permutations, seed)
    notes = [] if len(plan.chosen) == plan.effect.numel() else ["heads that were not chosen are NaN"]
    notes += plan.notes_on_number(heads)
    values, head_notes = _one_by_one(plan)
    return plan.bench.result(
        "interchange",
        values,
        axes={
            **dict.fromkeys(("effect", *_WITHOUT_LABEL), ("site", "head")),
            **dict.fromkeys((*_BY_LABEL, "p_holm"), ("site", "head", "equivalence")),
            "discovered": ("site", "head", "example"),
        },
        coords=plan.coords,
        metadata=plan.settings(groups=len(plan.chosen)),
        notes=notes + head_notes,
    )


def _one_by_one(plan: _Plan) -> tuple[dict[str, Float64[Tensor, "..."] | Int[Tensor, "..."]], list[str]]:
    """Interchange the outputs of one head after another, and return the measures and notes of ``interchange``."""
    values = _empty_values(plan)
    notes = []
    for site, head in plan.chosen:
        i = plan.bench.probe.outputs.index(site)
        exchange = _Interchanged.from_plan(plan, [(site, head)])
        for name, value in exchange.measures(plan).items():
            values[name][i, head] = value
        if exchange.is_without_effect:
            notes.append(f"{site} head {head}: {_WITHOUT_EFFECT}")
    if plan.chosen:
        notes += _notes_on_single_examples(plan.bench.labels, values["changed_within"])
    values["p_holm"] = holm_over_heads(values["p_value"])
    return values, notes


def _empty_values(plan: _Plan) -> dict[str, Float64[Tensor, "..."] | Int[Tensor, "..."]]:
    """Return the measures of ``interchange`` with the effect only, NaN for all others."""
    shape = plan.effect.shape
    values: dict[str, Tensor] = {"effect": plan.effect}
    for name in _WITHOUT_LABEL:
        values[name] = torch.full(shape, torch.nan, dtype=torch.float64)
    for name in (*_BY_LABEL, "p_holm"):
        values[name] = torch.full((*shape, len(plan.bench.labels)), torch.nan, dtype=torch.float64)
    values["discovered"] = torch.full((*shape, plan.bench.n), -1)
    return values


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
            of the concatenated outputs, so that heads with larger outputs count for more.
        ``changed_within``, ``changed_between``, ``response_within_ratio``, ``agreement``, ``p_value`` (equivalence).
            There is one test per equivalence, so no correction.
        ``discovered`` (example): the class of each example.

    Cost: forward passes over the examples: 3 and one backward pass to choose heads (1 if they are given), and
    ``2 recipients`` whatever the number of heads.

    Args:
        model: the model ``probe`` was run on.
        batches: the examples, each with its own index.
        probe: a ``ClusteringHead`` that has been run. It defines the sites and the equivalence.
        heads: number of heads, taken by the largest ``effect``, which needs no label, or pairs of site and head.
        recipients: number of recipients, drawn at random.
        tolerance: share of the recipients in which two examples of one class may lead to different answers.
        permutations: number of relabellings for ``p_value``.
        seed: for recipients, relabellings and Gaussian points.
        tokenizer, bos: for texts, as in ``run``.

    Raises:
        InputError: as ``interchange``, and if there are no heads: an empty list, or none with an effect.

    Example:
        >>> # run(model, batches, probe)
        >>> # result = interchange_together(model, batches, probe, heads=16)
        >>> # result["discovered"], result["agreement"]
    """
    check_count(permutations=(permutations, 1))
    if isinstance(heads, Sequence) and not heads:
        raise InputError("heads is empty; give at least one pair of site and head")
    reading = TextTokenizer({"": model}, tokenizer, bos)
    plan = _Plan.from_settings(model, batches, probe, reading, heads, recipients, tolerance, permutations, seed)
    if not plan.chosen:
        raise InputError(
            "no head's output has an effect on the answers, to first order; name the heads to interchange: "
            "heads=[(site, head)]"
        )
    exchange = _Interchanged.from_plan(plan, plan.chosen)
    values = exchange.measures(plan)
    notes = exchange.notes_together(plan, heads)
    notes += _notes_on_single_examples(plan.bench.labels, values["changed_within"])
    return ProbeResult(
        probe="interchange together",
        values=values,
        axes={
            **dict.fromkeys(_WITHOUT_LABEL, ()),
            **dict.fromkeys(_BY_LABEL, ("equivalence",)),
            "discovered": ("example",),
        },
        coords=plan.coords,
        metadata=plan.bench.metadata(**plan.settings(groups=1), heads=[[site, head] for site, head in plan.chosen]),
        notes=notes,
    )


def _notes_on_single_examples(
    labels: Mapping[str, Int[Tensor, "n"]], changed_within: Float64[Tensor, "... equivalence"]
) -> list[str]:
    """Return a note on each label without a recipient whose class has another example."""
    return [
        f"{name!r}: no recipient has another example of its class, so changed_within is NaN"
        for k, name in enumerate(labels)
        if bool(changed_within[..., k].isnan().all())
    ]


class _Plan(NamedTuple):
    """The interchanges to make: examples, heads, recipients.

    Attributes:
        bench: the examples, and the model's predictions.
        effect: by which heads were chosen. NaN if they were given.
        chosen: the heads.
        recipients: places in ``bench``.
        noise: noise of a normal distribution.
        tolerance: tolerance of discovered classes.
        permutations: relabellings of each test.
        seed: seed of relabellings.
        passes: forward passes before the first interchange.
    """

    bench: Bench
    effect: Float64[Tensor, "site head"]
    chosen: list[HeadPlace]
    recipients: Int[Tensor, "recipient"]
    noise: Float64[Tensor, "n n"]
    tolerance: float
    permutations: int
    seed: int
    passes: int

    @staticmethod
    def from_settings(
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
        """Check the settings of ``interchange``, choose heads, and draw recipients and noise."""
        _check_settings(heads, recipients, tolerance, permutations, seed)
        batch_list = list(each_batch(batches, {"": model}, reading=reading))
        bench = bench_of(model, batch_list, probe, reading)
        if recipients > bench.n:
            raise InputError(f"recipients is {recipients}, more than the {bench.n} examples; give fewer")
        if isinstance(heads, Sequence):
            chosen = bench.chosen_heads(heads)
            effect = torch.full((len(probe.outputs), bench.n_heads), torch.nan, dtype=torch.float64)
            passes = 1
        else:
            effect = head_attribution(model, batch_list, probe, permutations=1, seed=seed)["effect"]
            chosen = _strongest(effect, heads, probe.outputs)
            passes = 3
        draw = torch.Generator().manual_seed(int(seed))
        return _Plan(
            bench=bench,
            effect=effect,
            chosen=chosen,
            recipients=torch.randperm(bench.n, generator=draw)[:recipients],
            noise=torch.randn(bench.n, bench.n, dtype=torch.float64, generator=draw),
            tolerance=tolerance,
            permutations=enough_permutations(effect.numel()) if permutations is None else permutations,
            seed=int(seed),
            passes=passes,
        )

    @property
    def is_other(self) -> Bool[Tensor, "recipient n"]:
        """Whether a donor is another example than the recipient."""
        return torch.arange(self.bench.n) != self.recipients[:, None]

    @property
    def coords(self) -> dict[str, list[str]]:
        """Names along the axes of labels and of examples."""
        return {"equivalence": self.bench.probe.labels, "example": [str(i) for i in self.bench.index.tolist()]}

    def notes_on_number(self, heads: Sequence[HeadPlace] | int) -> list[str]:
        """Return a note if fewer heads were chosen than requested."""
        if isinstance(heads, Sequence) or len(self.chosen) >= heads:
            return []
        return [f"{len(self.chosen)} of the {heads} heads asked for: no other has an effect, to first order"]

    def settings(self, *, groups: int) -> dict[str, Any]:
        """Return the settings of so many groups of heads, interchanged one after the other, for the metadata."""
        return {
            "seed": self.seed,
            "recipients": self.bench.index[self.recipients].tolist(),
            "tolerance": float(self.tolerance),
            "permutations": self.permutations,
            "passes": self.passes + 2 * len(self.recipients) * groups,
        }


def _check_settings(
    heads: Sequence[HeadPlace] | int, recipients: int, tolerance: float, permutations: int | None, seed: int
) -> None:
    check_count(recipients=(recipients, 2), seed=(seed, 0))
    if not isinstance(heads, Sequence):
        if not isinstance(heads, Integral):
            raise InputError(f"heads is {heads!r}; expected a number of heads or a list of pairs of site and head")
        check_count(heads=(heads, 1))
    if permutations is not None:
        check_count(permutations=(permutations, 1))
    if not isinstance(tolerance, Real) or not 0 <= tolerance < 1:
        raise InputError(f"tolerance is {tolerance}; expected a share of the recipients, at least 0 and below 1")


def _strongest(effect: Float64[Tensor, "site head"], number: int, sites: Sequence[str]) -> list[HeadPlace]:
    """Return the heads of the largest effect, and none without one."""
    flat = effect.flatten()
    n_heads = effect.shape[1]
    order = flat.argsort(descending=True, stable=True)[:number].tolist()
    return [(sites[i // n_heads], i % n_heads) for i in order if float(flat[i]) > 0]


class _Interchanged(NamedTuple):
    """The interchanges of one head, or of several at once.

    Attributes:
        points: concatenated outputs.
        answers: the model's answers, by donor.
        classes: discovered classes.
        halves: classes from either half of the recipients.
        cloud: points of a normal distribution with the mean and covariance of ``points``.
        cloud_classes: classes discovered when these are put into the recipients.
    """

    points: Float64[Tensor, "n width"]
    answers: Int[Tensor, "recipient n"]
    classes: Int[Tensor, "n"]
    halves: tuple[Int[Tensor, "n"], Int[Tensor, "n"]]
    cloud: Float64[Tensor, "n width"]
    cloud_classes: Int[Tensor, "n"]

    @staticmethod
    def from_plan(plan: _Plan, heads: Sequence[HeadPlace]) -> _Interchanged:
        """Interchange the outputs of these heads, all at once."""
        points = plan.bench.outputs(heads).double()
        mean = points.mean(dim=0)
        cloud = mean + plan.noise @ (points - mean) / (len(points) - 1) ** 0.5
        answers = plan.bench.responses(heads, points, plan.recipients)
        cloud_answers = plan.bench.responses(heads, cloud, plan.recipients)
        half = len(plan.recipients) // 2
        return _Interchanged(
            points=points,
            answers=answers,
            classes=response_classes(answers, plan.tolerance),
            halves=(
                response_classes(answers[:half], plan.tolerance),
                response_classes(answers[half:], plan.tolerance),
            ),
            cloud=cloud,
            cloud_classes=response_classes(cloud_answers, plan.tolerance),
        )

    @property
    def is_without_effect(self) -> bool:
        """Whether each recipient's answer does not depend on the donor."""
        return bool((self.answers == self.answers[:, :1]).all())

    def _changes_answer(self, plan: _Plan) -> Float64[Tensor, "recipient n"]:
        """Return 1 for each interchange that changes the recipient's answer, and 0 for others."""
        before = plan.bench.answers[plan.recipients]
        return (self.answers != before[:, None]).double()

    def measures(self, plan: _Plan) -> dict[str, Float64[Tensor, "*equivalence"] | Int[Tensor, "n"]]:
        """Return every measure of the interchanged heads, with an axis for labels if it depends on them."""
        has_two_classes = any(int(half.max()) > 0 for half in self.halves)
        without_label = {
            "changed": float(self._changes_answer(plan)[plan.is_other].mean()),
            "classes": float(self.classes.max()) + 1,
            "stability": adjusted_rand_score(*self.halves) if has_two_classes else torch.nan,
            "within_ratio": float(within_ratio(self.points, self.classes)),
            "within_ratio_gaussian": float(within_ratio(self.cloud, self.cloud_classes)),
        }
        values = {name: torch.tensor(value, dtype=torch.float64) for name, value in without_label.items()}
        by_label = [self.measures_of_label(plan, label) for label in plan.bench.labels.values()]
        for name in _BY_LABEL:
            values[name] = torch.tensor([measures[name] for measures in by_label], dtype=torch.float64)
        return {**values, "discovered": self.classes}

    def notes_together(self, plan: _Plan, heads: Sequence[HeadPlace] | int) -> list[str]:
        """Return notes on several heads that were interchanged at once."""
        notes = [f"these heads together: {_WITHOUT_EFFECT}"] if self.is_without_effect else []
        notes += plan.notes_on_number(heads)
        if len(plan.chosen) == plan.effect.numel():
            notes.append("all heads were interchanged, which gives the donor's answer by construction")
        return notes

    def measures_of_label(self, plan: _Plan, label: Int[Tensor, "n"]) -> dict[str, float]:
        """Return the measures of one label."""
        changes_answer = self._changes_answer(plan)
        is_same_class = label[plan.recipients][:, None] == label
        responses = response_points(self.answers)
        p = relabelling_p_values(responses[:, None], label, plan.permutations, units=plan.bench.units, seed=plan.seed)
        return {
            "changed_within": float(changes_answer[is_same_class & plan.is_other].mean()),  # NaN for lone examples
            "changed_between": float(changes_answer[~is_same_class].mean()),
            "response_within_ratio": float(within_ratio(responses, label)),
            "agreement": adjusted_rand_score(self.classes, label),
            "p_value": float(p),
        }
