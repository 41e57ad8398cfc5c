"""Does the rest of a model read a head's clusters? Interventions on one head at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from probes.clustering_head import ClusteringHead
from probes.engine.attach import attach
from probes.engine.batches import Batches, each_batch
from probes.engine.hooks import HookedModel, device_of, evaluation_mode, forward, record
from probes.engine.result import ProbeResult
from probes.engine.texts import TextTokenizer
from probes.functional.clustering_head import integer_sum
from probes.store.files import versions
from tasks import Batch, InputError
from tasks.text.beginning import Bos

Correct = Callable[[Tensor, Batch], Tensor]
_CONSTANTS = 16  # answers tried as the constant one
_SAME = 0.01  # of the largest output: more than batch size and half precision change


def causal_checks(
    model: HookedModel,
    batches: Batches,
    probe: ClusteringHead,
    correct: Correct,
    *,
    heads: Sequence[tuple[str, int]] | None = None,
    influence: bool = True,
    seed: int = 0,
    tokenizer: Any = None,
    bos: Bos = "model",
) -> ProbeResult:
    """Replace a head's output and see whether the model's predictions follow its clusters.

    One head at a time, and only at the query position; every other head, position and earlier site is
    unchanged. The clusters are the classes of each equivalence label (of the given batches), and
    ``integer_sum``, those of the integer weights that ``probe`` found. Centroids, means and partners are those
    of the given batches, so the results hold for these; how examples are split into batches does not matter.

    Measures:
        ``accuracy``, ``majority_accuracy`` (no axes): of the model, and of the best constant answer, which is
            the chance level: the best of all tokens if there are at most 16, else of the 16 most frequent answers.
        ``ablated_accuracy`` (site, head): with the output replaced by its mean.
        ``centroid_accuracy`` (site, head, partition): with the centroid of the example's cluster.
        ``misplaced_accuracy`` (site, head, partition): with the centroid of a random other example's cluster,
            which should break a model that reads the clusters.
        ``swap_accuracy``, ``swap_agreement`` (site, head, partition): with the output for another, random
            member of the cluster: accuracy, and share of unchanged predictions. Examples alone in their
            cluster are left out.
        ``partition_clusters`` (site, head, partition): number of clusters.
        ``influence`` (site, head, position): change of the output when the token there is that of another
            example at the same position, ``E |z' - z|^2 / (2 Var z)``: 0: none; 1: all of the variance.
        ``spurious_shift``, ``permutation_shift`` (site, head): the same when all tokens off the support come
            from one other example, and when each example's tokens in the support are permuted.
        ``spurious_agreement``, ``permutation_agreement`` (no axes): share of the model's predictions that
            these leave unchanged.

    Cost: ``2 + positions + 1 + heads x (3 x partitions + 1)`` forward passes over the batches. Memory: the
    batches, and their examples' outputs at the query of all sites, twice; the logits of one batch.

    Args:
        model: the model ``probe`` was run on.
        batches: what to test on; each example with an index of its own.
        probe: a ``ClusteringHead`` that has been run; it defines the sites and the equivalence.
        correct: maps the model's logits and the batch to 1 where the answer is right, ``[batch]``, as
            ``task.accuracy`` does.
        heads: pairs of site and head to test; ``None`` for all. Others are NaN.
        influence: whether to measure ``influence``, which needs one pass per position.
        seed: for partners and permutations.
        tokenizer, bos: for texts, as in ``run``.

    Raises:
        InputError: for a probe that was not run, or was run on another model, an unknown head, fewer than 2
            examples, or logits and ``correct`` of the wrong shape; and whatever ``probe`` refuses.

    Example:
        >>> # probe = ClusteringHead("sum", support=task.positions, modulus=task.p)
        >>> # run(model, task.batches("test"), probe)
        >>> # causal_checks(model, task.batches("test"), probe, task.accuracy)["ablated_accuracy"]
    """
    if not len(probe.points):
        raise InputError("this ClusteringHead has not been run; call run(model, batches, probe) before causal_checks")
    probe.bind(model)
    reading = TextTokenizer({"": model}, tokenizer, bos)
    bench = Bench(model, list(each_batch(batches, {"": model}, reading=reading)), probe, correct)
    chosen = check_heads(heads, probe)
    draw = torch.Generator().manual_seed(seed)
    order, donors = (torch.randperm(bench.n, generator=draw) for _ in range(2))
    places = torch.rand(bench.n, len(probe.support or ()), generator=draw).argsort(dim=1)
    values, notes = _interventions(bench, chosen, order)
    donor = _partners(torch.zeros(bench.n, dtype=torch.int64), donors)
    values |= _resampled(bench, donor, places, influence, notes)
    axes: dict[str, tuple[str, ...]] = dict.fromkeys(values, ("site", "head"))
    axes |= {name: () for name in values if values[name].ndim == 0}
    axes |= {
        name: ("site", "head", "partition")
        for name in values
        if name.startswith(("centroid", "misplaced", "swap", "partition"))
    }
    axes["influence"] = ("site", "head", "position")
    return ProbeResult(
        probe="causal_checks",
        values=values,
        axes=axes,
        coords={
            "site": probe.outputs,
            "head": [str(h) for h in range(bench.n_heads)],
            "partition": bench.partitions,
            "position": [str(t) for t in range(values["influence"].shape[2])],
        },
        layers={site.name: site.layer for site in probe.sites if site.name in probe.outputs},
        metadata={"n": bench.n, "seed": seed, "clustering_head": repr(probe), "versions": versions()}
        | reading.metadata,
        notes=notes,
    )


def check_heads(heads: Sequence[tuple[str, int]] | None, probe: ClusteringHead) -> list[tuple[str, int]]:
    """The heads asked for, all where ``None``; refuses those that the probe did not measure."""
    there = [(site, h) for site in probe.outputs for h in range(probe.head_outputs(site)[1].shape[1])]
    if heads is None:
        return there
    if unknown := [head for head in heads if not _is_pair(head) or tuple(head) not in there]:
        raise InputError(
            f"no head {unknown[0]!r} in this probe; expected pairs of site and head from {there[0]} to {there[-1]}"
        )
    return list(dict.fromkeys((site, int(head)) for site, head in heads))


def _is_pair(given: object) -> bool:
    """Whether this is a site and a number."""
    return (
        isinstance(given, list | tuple)
        and len(given) == 2
        and isinstance(given[0], str)
        and isinstance(given[1], Integral)
        and not isinstance(given[1], bool)
    )


def _interventions(bench: Bench, chosen: list[tuple[str, int]], order: Tensor) -> tuple[dict[str, Tensor], list[str]]:
    """The measures of replaced outputs; ``order [n]`` is the random order in which cluster members pass theirs on."""
    sites = bench.probe.outputs
    names = ("centroid_accuracy", "misplaced_accuracy", "swap_accuracy", "swap_agreement", "partition_clusters")
    shape = (len(sites), bench.n_heads, len(bench.partitions))
    values = {name: torch.full(shape, torch.nan, dtype=torch.float64) for name in names}
    values["ablated_accuracy"] = torch.full(shape[:2], torch.nan, dtype=torch.float64)
    notes = [] if len(chosen) == shape[0] * shape[1] else ["heads that were not asked for are NaN"]
    for site, head in chosen:
        at, own = (sites.index(site), head), [(site, head)]
        points = bench.points[site][:, head].double()
        mean = points.mean(dim=0).expand_as(points)
        values["ablated_accuracy"][at] = bench.with_outputs(own, mean)[1].mean()
        for k, classes in enumerate(_partitions(bench, site, head)):
            if classes is None:
                notes.append(f"{site} head {head}: no integer weights, so integer_sum is NaN")
                continue
            count = classes.bincount()
            centroid = points.new_zeros(len(count), points.shape[1]).index_add_(0, classes, points) / count[:, None]
            values["partition_clusters"][(*at, k)] = len(count)
            values["centroid_accuracy"][(*at, k)] = bench.with_outputs(own, centroid[classes])[1].mean()
            other = _partners(torch.zeros_like(classes), order)
            values["misplaced_accuracy"][(*at, k)] = bench.with_outputs(own, centroid[classes[other]])[1].mean()
            several = count[classes] > 1
            if not bool(several.any()):
                notes.append(f"{site} head {head}: every example is alone in its cluster of {bench.partitions[k]!r}")
                continue
            answers, right = bench.with_outputs(own, points[_partners(classes, order)])
            values["swap_accuracy"][(*at, k)] = right[several].mean()
            values["swap_agreement"][(*at, k)] = (answers == bench.answers)[several].double().mean()
    values["accuracy"] = bench.right.mean()
    constants = list(range(bench.n_answers))
    if bench.n_answers > _CONSTANTS:
        answers, times = torch.unique(bench.answers, return_counts=True)
        constants = answers[times.argsort(descending=True, stable=True)[:_CONSTANTS]].tolist()
    values["majority_accuracy"] = torch.tensor(max(map(bench.constant, constants)), dtype=torch.float64)
    return values, notes


def _partitions(bench: Bench, site: str, head: int) -> list[Tensor | None]:
    """Clusters 0, 1, ... of each partition; ``None`` where the integer weights are undefined."""
    found: list[Tensor | None] = list(bench.labels.values())
    if bench.probe.modulus is not None:
        fit = bench.probe.integer_fit(site, head)
        assert bench.tokens is not None
        total = torch.unique(integer_sum(fit.rounded, bench.tokens), return_inverse=True)[1]
        found.append(None if bool(fit.deviation.isnan()) else total)
    return found


def _partners(classes: Tensor, order: Tensor) -> Tensor:
    """``[n]`` another member of each example's class, every member once: the next in ``order``, round and round."""
    members = order[torch.argsort(classes[order], stable=True)]  # class after class
    ends = torch.unique_consecutive(classes[members], return_counts=True)[1].cumsum(0) - 1
    following = torch.arange(1, len(members) + 1)
    following[ends] = torch.cat([ends.new_zeros(1), ends[:-1] + 1])
    partner = torch.empty_like(members)
    partner[members] = members[following]
    return partner


def _resampled(bench: Bench, donor: Tensor, places: Tensor, influence: bool, notes: list[str]) -> dict[str, Tensor]:
    """The measures of changed tokens; ``donor [n]`` is whose tokens come in, ``places [n support]`` a permutation."""
    nan = torch.full((len(bench.points), bench.n_heads), torch.nan, dtype=torch.float64)
    tokens, support = bench.tokens, bench.probe.support
    n_pos = 0 if tokens is None else tokens.shape[1]
    values = {"influence": nan[..., None].expand(-1, -1, n_pos).clone()}
    for what in ("spurious", "permutation"):
        values |= {f"{what}_shift": nan.clone(), f"{what}_agreement": nan[0, 0].clone()}
    if tokens is None:
        notes.append("the sequences differ in length, so influence, spurious_* and permutation_* are undefined")
        return values
    if bool(torch.stack([(x == x[:1]).all(dim=-1).all(dim=0) for x in bench.points.values()]).any()):
        notes.append("influence and shifts are NaN for a head whose output is the same for all examples")

    def changed(positions: list[int], to: Tensor) -> tuple[Tensor, Tensor]:
        """``[site head]`` change of the outputs, and the share of predictions that stay."""
        other = tokens.clone()
        other[:, positions] = to
        seen, answers, _ = bench.observe(other)
        shifts = []
        for site, points in bench.points.items():
            before, after = points.double(), seen.head_outputs(site)[1].double()
            variance = (before - before[:1]).var(dim=0).sum(dim=-1)
            shifts.append((after - before).square().sum(dim=-1).mean(dim=0) / (2 * variance))
        return torch.stack(shifts), (answers == bench.answers).double().mean()

    if influence:
        for t in range(n_pos):
            values["influence"][..., t] = changed([t], tokens[donor][:, [t]])[0]
    else:
        notes.append("influence was not asked for, so it is NaN")
    if support is None:
        notes.append("the probe has no support, so spurious_* and permutation_* are NaN")
        return values
    on = list(support)
    off = [t for t in range(n_pos) if t not in on]
    for what, positions, to in (
        ("spurious", off, tokens[donor][:, off]),
        ("permutation", on, tokens[:, on].gather(1, places)),
    ):
        values[f"{what}_shift"], values[f"{what}_agreement"] = changed(positions, to)
    return values


class Bench:
    """The given examples in the order of their index, and what the model makes of them.

    Attributes:
        n: number of examples.
        points: head outputs at the query, ``[n head d_head]`` by site.
        n_heads: heads a site.
        answers: ``[n]`` the model's predictions.
        right: ``[n]`` whether they are right.
        labels: ``[n]`` classes 0, 1, ... by equivalence label.
        units: ``[n]`` which examples belong together, or ``None``.
        tokens: ``[n pos]``, or ``None`` where the sequences differ in length.
    """

    def __init__(self, model: HookedModel, batches: list[Batch], probe: ClusteringHead, correct: Correct) -> None:
        self.model, self.probe, self.correct = model, probe, correct
        self.batches = [batch.to(device_of(model)) for batch in batches if len(batch)]
        self.n = sum(map(len, self.batches))
        if self.n < 2:
            raise InputError(f"there are {self.n} examples; give at least 2, so that one output can replace another")
        index = torch.cat([batch.index.cpu() for batch in self.batches])
        order = torch.argsort(index, stable=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(self.n)
        self.rows = torch.split(rank, [len(batch) for batch in self.batches])
        whole = all(batch.attention_mask is None or bool(batch.attention_mask.all()) for batch in self.batches)
        whole &= len({batch.tokens.shape[1] for batch in self.batches}) == 1
        self.tokens = torch.cat([batch.tokens.cpu() for batch in self.batches])[order] if whole else None
        self.shapes: list[torch.Size] = []  # of the logits
        seen, self.answers, self.right = self.observe()
        self.points = {site: seen.head_outputs(site)[1] for site in probe.outputs}
        self.n_heads = next(iter(self.points.values())).shape[1]
        self.labels = {name: torch.unique(seen.classes.get(name)[1], return_inverse=True)[1] for name in probe.labels}
        self.units = seen.unit_of_examples
        self.partitions = [*probe.labels, *(["integer_sum"] if probe.modulus is not None else [])]
        self._check_model(index[order])

    def _check_model(self, index: Tensor) -> None:
        """Refuse another model than ``probe`` was run on, as far as its state can tell."""
        for site, points in self.points.items():
            kept_index, kept = self.probe.head_outputs(site)
            other = kept.shape[1:] != points.shape[1:]
            if not other and self.probe.modulus is not None:
                digits = self.probe.digits.get("digits")[1]
                ours, theirs = torch.isin(index, kept_index), torch.isin(kept_index, index)
                assert self.tokens is not None  # a support refuses padding
                same = (self.tokens[ours] == digits[theirs]).all(dim=1)
                change = (points[ours][same].double() - kept[theirs][same].double()).abs()
                other = bool((change > _SAME * kept.double().abs().max()).any())
            if other:
                raise InputError(
                    "this ClusteringHead holds another model's state (the same examples give different outputs at "
                    f"{site!r}); run it on this model first"
                )

    def observe(self, tokens: Tensor | None = None) -> tuple[ClusteringHead, Tensor, Tensor]:
        """A probe fed with all examples, with other ``tokens [n pos]`` where given; predictions; which are right."""
        seen = self.probe.clone()
        seen.max_rows = None
        answers, right = torch.empty(self.n, dtype=torch.int64), torch.empty(self.n, dtype=torch.float64)
        with torch.inference_mode(), evaluation_mode(self.model), attach(self.model, seen) as attached:
            for batch, rows in zip(self.batches, self.rows, strict=True):
                given = batch if tokens is None else replace(batch, tokens=tokens[rows].to(batch.tokens))
                with attached.on(given):
                    logits = forward(self.model, given)
                answers[rows], right[rows] = self._judge(logits, given)
                if tokens is None:
                    self.shapes.append(logits.shape)
        return seen, answers, right

    def with_outputs(self, heads: Sequence[tuple[str, int]], points: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions, and which are right, with ``points [n (head d_head)]``, one row per example, for the outputs of
        these heads at the query, all at once."""
        answers, right = torch.empty(self.n, dtype=torch.int64), torch.empty(self.n, dtype=torch.float64)
        with self._replacing(heads) as give:
            for batch, rows in zip(self.batches, self.rows, strict=True):
                give(batch, points[rows])
                answers[rows], right[rows] = self._judge(forward(self.model, batch), batch)
        return answers, right

    def outputs(self, heads: Sequence[tuple[str, int]]) -> Tensor:
        """``[n (head d_head)]`` outputs of these heads at the query, side by side."""
        return torch.cat([self.points[site][:, head] for site, head in heads], dim=1)

    def responses(self, heads: Sequence[tuple[str, int]], points: Tensor, recipients: Tensor) -> Tensor:
        """``[recipient m]`` predictions for the examples ``recipients``, each with every one of
        ``points [m (head d_head)]`` for the outputs of these heads at the query, all at once."""
        found = torch.empty(len(recipients), len(points), dtype=torch.int64)
        with self._replacing(heads) as give:
            for k, recipient in enumerate(recipients.tolist()):
                which = next(i for i, rows in enumerate(self.rows) if recipient in rows)
                row = int((self.rows[which] == recipient).nonzero())
                size = max(map(len, self.batches))
                for start in range(0, len(points), size):
                    part = points[start : start + size]
                    batch = self.batches[which].select(torch.full((len(part),), row))
                    give(batch, part)
                    logits = forward(self.model, batch)
                    found[k, start : start + size] = self._judge(logits, batch)[0]
        return found

    @contextmanager
    def _replacing(self, heads: Sequence[tuple[str, int]]) -> Iterator[Callable[[Batch, Tensor], None]]:
        """Inside, these heads' outputs at the query are replaced. The function given takes the next batch and its
        ``points [batch (head d_head)]``, side by side in the order of ``heads``."""
        now: list[tuple[Batch, Tensor]] = []
        widths = [self.points[site].shape[-1] for site, _ in heads]

        def put(name: str, z: Tensor) -> Tensor:
            ((batch, points),) = now
            z = z.clone()
            at = 0 if z.shape[1] == 1 else self.probe.query_positions(batch).to(z.device)
            for (site, head), own in zip(heads, torch.split(points, widths, dim=1), strict=True):
                if site == name:
                    z[torch.arange(len(z), device=z.device), at, head] = own.to(z)
            return z

        sites = list(dict.fromkeys(site for site, _ in heads))

        def give(batch: Batch, points: Tensor) -> None:
            now[:] = [(batch, points)]

        with torch.inference_mode(), evaluation_mode(self.model), record(self.model, sites, put):
            yield give

    @property
    def n_answers(self) -> int:
        """Rows of the vocabulary."""
        return self.shapes[-1][-1]

    def constant(self, answer: int) -> float:
        """Accuracy of a model that always gives ``answer``."""
        right = []
        for batch, shape in zip(self.batches, self.shapes, strict=True):
            logits = torch.zeros(shape, device=batch.tokens.device)
            logits[..., answer] = 1
            right.append(self._judge(logits, batch)[1])
        return float(torch.cat(right).mean())

    def _judge(self, logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Prediction at the query of each example, and whether ``correct`` says it is right."""
        if not isinstance(logits, Tensor) or logits.ndim not in (2, 3) or len(logits) != len(batch):
            what = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
            raise InputError(
                f"the model returns {what}; causal_checks needs logits [batch d_vocab] or [batch pos d_vocab]"
            )
        last = logits = logits.to(batch.tokens.device)
        if logits.ndim == 3:
            last = logits[torch.arange(len(logits), device=logits.device), self.probe.query_positions(batch)]
        if not torch.isfinite(last).all():
            raise InputError(
                "the model's logits are NaN or infinite at the query, so no prediction can be judged; "
                "check the weights after the heads"
            )
        right = self.correct(logits, batch)
        if right.shape != (len(batch),):
            raise InputError(
                f"correct returns shape {tuple(right.shape)} for {len(batch)} examples; "
                "expected one value per example [batch], as task.accuracy gives"
            )
        return last.argmax(dim=-1).cpu(), right.cpu().double()
