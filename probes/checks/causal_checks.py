"""Check by interventions on one head at a time whether the rest of a model reads the head's clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from probes.checks.bench import Bench, Correct, HeadPlace, bench_of
from probes.clustering_head import ClusteringHead
from probes.engine.batches import Batches
from probes.engine.hooked_model import HookedModel
from probes.engine.result import ProbeResult
from probes.engine.text_tokenizer import TextTokenizer
from probes.functional.integer_weights import integer_sum
from tasks.text.bos_token import Bos

_MAX_CONSTANT_ANSWERS = 16  # tried for the best constant answer
_BY_PARTITION = (
    "centroid_accuracy",
    "misplaced_accuracy",
    "swap_accuracy",
    "swap_agreement",
    "partition_clusters",
)
_AXES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_BY_PARTITION, ("site", "head", "partition")),
    "ablated_accuracy": ("site", "head"),
    "accuracy": (),
    "majority_accuracy": (),
    "influence": ("site", "head", "position"),
    "spurious_shift": ("site", "head"),
    "spurious_agreement": (),
    "permutation_shift": ("site", "head"),
    "permutation_agreement": (),
}


def causal_checks(
    model: HookedModel,
    batches: Batches,
    probe: ClusteringHead,
    correct: Correct,
    *,
    heads: Sequence[HeadPlace] | None = None,
    influence: bool = True,
    seed: int = 0,
    tokenizer: Any = None,
    bos: Bos = "model",
) -> ProbeResult:
    """Replace a head's output, and measure whether predictions follow its clusters.

    One head at a time, and only at the query position. Every other head, position and earlier site is unchanged. The
    clusters are the classes of each equivalence label (of the given batches), and ``integer_sum``, the integer sums of
    the weights that ``probe`` found. Centroids, means and partners come from the given batches, so the results hold for
    these. How examples are split into batches does not matter.

    Measures:
        ``accuracy``, ``majority_accuracy`` (no axes): accuracy of the model, and of the best constant answer, which is
            the chance level. It is the best of all tokens if there are at most 16, else of the 16 most frequent
            answers.
        ``ablated_accuracy`` (site, head): accuracy with the output replaced by its mean.
        ``centroid_accuracy`` (site, head, partition): accuracy with the centroid of the example's cluster.
        ``misplaced_accuracy`` (site, head, partition): accuracy with the centroid of a random other example's cluster,
            which should break a model that reads the clusters.
        ``swap_accuracy``, ``swap_agreement`` (site, head, partition): accuracy, and share of unchanged predictions,
            with the output for another random member of the cluster. Examples alone in their cluster are left out.
        ``partition_clusters`` (site, head, partition): number of clusters.
        ``influence`` (site, head, position): change of the output when the token there is taken from another example at
            this position, ``E |z' - z|^2 / (2 Var z)``. 0: none. 1: all of the variance.
        ``spurious_shift``, ``permutation_shift`` (site, head): this change when all tokens off the support come from
            one other example, and when each example's tokens in the support are permuted.
        ``spurious_agreement``, ``permutation_agreement`` (no axes): share of the model's predictions that
            these leave unchanged.

    Cost: ``2 + positions + 1 + heads x (3 x partitions + 1)`` forward passes over the batches. Memory: the batches,
    their examples' outputs at the query of all sites, twice, and the logits of one batch.

    Args:
        model: the model ``probe`` was run on.
        batches: the examples to test on, each with its own index.
        probe: a ``ClusteringHead`` that has been run. It defines the sites and the equivalence.
        correct: maps the model's logits and the batch to 1 for a right answer and 0 for others, ``[batch]``, as
            ``task.accuracy`` does.
        heads: pairs of site and head to test. ``None`` for all. Others are NaN.
        influence: whether to measure ``influence``, which needs one pass per position.
        seed: for partners and permutations.
        tokenizer, bos: for texts, as in ``run``.

    Raises:
        InputError: for a probe that was not run, or was run on another model, an unknown head, fewer than 2 examples,
            or logits and ``correct`` of the wrong shape. Also for all that ``probe`` refuses.

    Example:
        >>> # probe = ClusteringHead("sum", support=task.positions, modulus=task.p)
        >>> # run(model, task.batches("test"), probe)
        >>> # causal_checks(model, task.batches("test"), probe, task.accuracy)["ablated_accuracy"]
    """
    reading = TextTokenizer({"": model}, tokenizer, bos)
    bench = bench_of(model, batches, probe, reading, correct)
    chosen = bench.chosen_heads(heads)
    draw = torch.Generator().manual_seed(seed)
    order, donors = (torch.randperm(bench.n, generator=draw) for _ in range(2))
    permutation = torch.rand(bench.n, len(probe.support or ()), generator=draw).argsort(dim=1)
    values, notes = _interventions(bench, chosen, order)
    donor = _partners(torch.zeros(bench.n, dtype=torch.int64), donors)
    resampled, resampled_notes = _resampled(bench, donor, permutation, influence)
    values |= resampled
    n_positions = values["influence"].shape[2]
    return bench.result(
        "causal_checks",
        values,
        axes={name: _AXES[name] for name in values},
        coords={"partition": bench.partitions, "position": [str(position) for position in range(n_positions)]},
        metadata={"seed": seed},
        notes=notes + resampled_notes,
    )


# ---- other outputs of a head ----


def _interventions(
    bench: Bench, chosen: list[HeadPlace], order: Int[Tensor, "n"]
) -> tuple[dict[str, Float64[Tensor, "..."]], list[str]]:
    """Return the measures of replaced outputs, and notes.

    Args:
        bench: the examples.
        chosen: heads to replace.
        order: the random order in which the members of a cluster pass on their outputs.
    """
    sites = bench.probe.outputs
    shape = (len(sites), bench.n_heads)
    values = {name: _nan(*shape, len(bench.partitions)) for name in _BY_PARTITION}
    values["ablated_accuracy"] = _nan(*shape)
    notes = [] if len(chosen) == shape[0] * shape[1] else ["heads that were not asked for are NaN"]
    for site, head in chosen:
        i = sites.index(site)
        points = bench.points[site][:, head].double()
        mean = points.mean(dim=0).expand_as(points)
        values["ablated_accuracy"][i, head] = bench.with_outputs([(site, head)], mean)[1].mean()
        for k, classes in enumerate(_partitions(bench, site, head)):
            if classes is None:
                notes.append(f"{site} head {head}: no integer weights, so integer_sum is NaN")
                continue
            measured = _measures_of_partition(bench, (site, head), classes, order)
            for name, value in measured.items():
                values[name][i, head, k] = value
            if "swap_accuracy" not in measured:
                notes.append(f"{site} head {head}: every example is alone in its cluster of {bench.partitions[k]!r}")
    values["accuracy"] = bench.right.mean()
    values["majority_accuracy"] = torch.tensor(_best_constant_accuracy(bench), dtype=torch.float64)
    return values, notes


def _nan(*shape: int) -> Float64[Tensor, "..."]:
    return torch.full(shape, torch.nan, dtype=torch.float64)


def _measures_of_partition(
    bench: Bench, head: HeadPlace, classes: Int[Tensor, "n"], order: Int[Tensor, "n"]
) -> dict[str, float]:
    """Return the measures of one head and one partition, without swaps if every example is alone in its cluster."""
    points = bench.outputs([head]).double()
    count = classes.bincount()
    centroid = points.new_zeros(len(count), points.shape[1]).index_add_(0, classes, points) / count[:, None]
    other = _partners(torch.zeros_like(classes), order)
    measures = {
        "partition_clusters": float(len(count)),
        "centroid_accuracy": float(bench.with_outputs([head], centroid[classes])[1].mean()),
        "misplaced_accuracy": float(bench.with_outputs([head], centroid[classes[other]])[1].mean()),
    }
    has_partner = count[classes] > 1
    if bool(has_partner.any()):
        answers, right = bench.with_outputs([head], points[_partners(classes, order)])
        measures["swap_accuracy"] = float(right[has_partner].mean())
        measures["swap_agreement"] = float((answers == bench.answers)[has_partner].double().mean())
    return measures


def _partitions(bench: Bench, site: str, head: int) -> list[Int[Tensor, "n"] | None]:
    """Return clusters 0, 1, ... of each partition, or ``None`` if the integer weights are undefined."""
    partitions: list[Int[Tensor, "n"] | None] = list(bench.labels.values())
    if bench.probe.modulus is not None:
        fit = bench.probe.integer_fit(site, head)
        assert bench.tokens is not None
        classes = torch.unique(integer_sum(fit.rounded, bench.tokens), return_inverse=True)[1]
        partitions.append(None if bool(fit.deviation.isnan()) else classes)
    return partitions


def _partners(classes: Int[Tensor, "n"], order: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
    """Return another member of each example's class: the next in ``order``, and the first for the last.

    Every member is the partner of one example.
    """
    members = order[torch.argsort(classes[order], stable=True)]  # class after class
    ends = torch.unique_consecutive(classes[members], return_counts=True)[1].cumsum(0) - 1
    following = torch.arange(1, len(members) + 1)
    following[ends] = torch.cat([ends.new_zeros(1), ends[:-1] + 1])
    partner = torch.empty_like(members)
    partner[members] = members[following]
    return partner


def _best_constant_accuracy(bench: Bench) -> float:
    """Return the accuracy of the best constant answer, of all or of the most frequent answers."""
    constants = list(range(bench.n_answers))
    if bench.n_answers > _MAX_CONSTANT_ANSWERS:
        answers, times = torch.unique(bench.answers, return_counts=True)
        constants = answers[times.argsort(descending=True, stable=True)[:_MAX_CONSTANT_ANSWERS]].tolist()
    return max(bench.constant(answer) for answer in constants)


# ---- other tokens ----


def _resampled(
    bench: Bench, donor: Int[Tensor, "n"], permutation: Int[Tensor, "n support"], influence: bool
) -> tuple[dict[str, Float64[Tensor, "..."]], list[str]]:
    """Return the measures of changed tokens, and notes.

    Args:
        bench: the examples.
        donor: the example from which each example gets tokens.
        permutation: permutation of each example's tokens in the support.
        influence: whether to change one position after another.
    """
    notes = []
    tokens = bench.tokens
    n_pos = 0 if tokens is None else tokens.shape[1]
    shape = (len(bench.points), bench.n_heads)
    values = {"influence": _nan(*shape, n_pos)}
    for what in ("spurious", "permutation"):
        values[f"{what}_shift"] = _nan(*shape)
        values[f"{what}_agreement"] = _nan()
    if tokens is None:
        return values, ["the sequences differ in length, so influence, spurious_* and permutation_* are undefined"]
    if _has_constant_head(bench):
        notes.append("influence and shifts are NaN for a head whose output is the same for all examples")
    if influence:
        for position in range(n_pos):
            shift, _ = _with_tokens(bench, [position], tokens[donor][:, [position]])
            values["influence"][..., position] = shift
    else:
        notes.append("influence was not asked for, so it is NaN")
    if bench.probe.support is None:
        return values, [*notes, "the probe has no support, so spurious_* and permutation_* are NaN"]
    support = list(bench.probe.support)
    others = [position for position in range(n_pos) if position not in support]
    spurious = _with_tokens(bench, others, tokens[donor][:, others])
    permuted = _with_tokens(bench, support, tokens[:, support].gather(1, permutation))
    values["spurious_shift"], values["spurious_agreement"] = spurious
    values["permutation_shift"], values["permutation_agreement"] = permuted
    return values, notes


def _has_constant_head(bench: Bench) -> bool:
    """Return whether a head's output is constant over all examples."""
    is_constant = [(points == points[:1]).all(dim=-1).all(dim=0) for points in bench.points.values()]
    return bool(torch.stack(is_constant).any())


def _with_tokens(
    bench: Bench, positions: list[int], replacement: Int[Tensor, "n position"]
) -> tuple[Float[Tensor, "site head"], Float[Tensor, ""]]:
    """Return each head's change of output with other tokens at some positions, and the share of unchanged answers."""
    assert bench.tokens is not None
    tokens = bench.tokens.clone()
    tokens[:, positions] = replacement
    seen, answers, _ = bench.observe(tokens)
    shifts = []
    for site, points in bench.points.items():
        before = points.double()
        after = seen.head_outputs(site)[1].double()
        variance = (before - before[:1]).var(dim=0).sum(dim=-1)
        shifts.append((after - before).square().sum(dim=-1).mean(dim=0) / (2 * variance))
    return torch.stack(shifts), (answers == bench.answers).double().mean()
