"""Examples in a fixed order, a model's predictions for them, and predictions with other head outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Float64, Int, Shaped
from torch import Tensor

from probes.clustering_head import ClusteringHead
from probes.engine.attach import attach
from probes.engine.batches import Batches, each_batch
from probes.engine.devices import device_of
from probes.engine.hooked_model import HookedModel, evaluation_mode, forward
from probes.engine.readout import at_position
from probes.engine.record import record
from probes.engine.result import ProbeResult
from probes.engine.state import AnyTensor
from probes.engine.text_tokenizer import TextTokenizer
from probes.store.versions import package_versions
from tasks import Batch, InputError

Correct: TypeAlias = Callable[[Float[Tensor, "..."], Batch], Shaped[Tensor, "..."]]
HeadPlace: TypeAlias = tuple[str, int]  # site and number
Judged: TypeAlias = tuple[Int[Tensor, "n"], Float64[Tensor, "n"]]  # predictions, and 1 for each that is right
_RELATIVE_TOLERANCE = 0.01  # share of the largest output, above the effect of batch size and half precision


class Bench:
    """The given examples in the order of their index, and the model's predictions for them.

    Attributes:
        n: number of examples.
        index: their indices, ascending, ``[n]``.
        points: head outputs at the query by site, ``[n head d_head]``.
        n_heads: heads at each site.
        answers: the model's predictions, ``[n]``.
        right: 1 for each prediction that is right, ``[n]``.
        labels: classes 0, 1, ... by equivalence label, ``[n]``.
        units: the unit of each example, ``[n]``. ``None`` if examples are independent.
        partitions: names of the partitions: the labels, and ``"integer_sum"`` if the probe has a modulus.
        tokens: ``[n pos]``. ``None`` if the sequences differ in length.
        n_answers: size of the vocabulary.
    """

    def __init__(
        self,
        model: HookedModel,
        batches: list[Batch],
        probe: ClusteringHead,
        correct: Correct,
        reading: TextTokenizer | None = None,
    ) -> None:
        self.model = model
        self._reading = reading
        self.probe = probe
        self.correct = correct
        self.batches = [batch.to(device_of(model)) for batch in batches if len(batch)]
        self.n = sum(len(batch) for batch in self.batches)
        if self.n < 2:
            raise InputError(f"there are {self.n} examples; give at least 2, so that one output can replace another")
        index = torch.cat([batch.index.cpu() for batch in self.batches])
        order = torch.argsort(index, stable=True)
        self.index = index[order]
        rank = torch.empty_like(order)
        rank[order] = torch.arange(self.n)
        self.rows = torch.split(rank, [len(batch) for batch in self.batches])
        self.tokens = None
        if _has_one_length(self.batches):
            self.tokens = torch.cat([batch.tokens.cpu() for batch in self.batches])[order]
        self._logit_shapes: list[torch.Size] = []
        seen, self.answers, self.right = self.observe()
        self.n_answers = self._logit_shapes[-1][-1]
        self.points = {site: seen.head_outputs(site)[1] for site in probe.outputs}
        self.n_heads = next(iter(self.points.values())).shape[1]
        self.labels = {name: torch.unique(seen.classes.get(name)[1], return_inverse=True)[1] for name in probe.labels}
        self.units = seen.unit_of_examples
        self.partitions = [*probe.labels]
        if probe.modulus is not None:
            self.partitions.append("integer_sum")
        self._check_model()

    def _check_model(self) -> None:
        """Refuse another model than ``probe`` was run on, if its state shows that."""
        for site in self.points:
            if self._is_other_model(site):
                raise InputError(
                    "this ClusteringHead holds another model's state (the same examples give different outputs at "
                    f"{site!r}); run it on this model first"
                )

    def _is_other_model(self, site: str) -> bool:
        points = self.points[site]
        kept_index, kept = self.probe.head_outputs(site)
        if kept.shape[1:] != points.shape[1:]:
            return True
        if self.probe.modulus is None:
            return False
        digits = self.probe.digits.get("digits")[1]
        is_kept = torch.isin(self.index, kept_index)
        is_given = torch.isin(kept_index, self.index)
        assert self.tokens is not None  # a support refuses padding
        same = (self.tokens[is_kept] == digits[is_given]).all(dim=1)
        change = (points[is_kept][same].double() - kept[is_given][same].double()).abs()
        return bool((change > _RELATIVE_TOLERANCE * kept.double().abs().max()).any())

    def observe(
        self, tokens: Int[Tensor, "n pos"] | None = None
    ) -> tuple[ClusteringHead, Int[Tensor, "n"], Float64[Tensor, "n"]]:
        """Return a probe fed with all examples, predictions, and 1 for each that is right.

        Args:
            tokens: tokens to put in place of the examples'.
        """
        seen = self.probe.clone()
        seen.max_rows = None
        answers, right = self._empty()
        with torch.inference_mode(), evaluation_mode(self.model), attach(self.model, seen) as attached:
            for batch, rows in zip(self.batches, self.rows, strict=True):
                if tokens is not None:
                    batch = replace(batch, tokens=tokens[rows].to(batch.tokens))
                with attached.on(batch):
                    logits = forward(self.model, batch)
                answers[rows], right[rows] = self._judge(logits, batch)
                if tokens is None:
                    self._logit_shapes.append(logits.shape)
        return seen, answers, right

    def with_outputs(self, heads: Sequence[HeadPlace], points: Float[Tensor, "n width"]) -> Judged:
        """Return predictions, and 1 for each that is right, with other outputs of these heads at the query.

        Args:
            heads: are replaced all at once.
            points: the outputs for each example, concatenated in the order of ``heads``.
        """
        answers, right = self._empty()
        with self._replacing(heads) as replacement:
            for batch, rows in zip(self.batches, self.rows, strict=True):
                replacement.set(batch, points[rows])
                answers[rows], right[rows] = self._judge(forward(self.model, batch), batch)
        return answers, right

    def _empty(self) -> Judged:
        return torch.empty(self.n, dtype=torch.int64), torch.empty(self.n, dtype=torch.float64)

    def outputs(self, heads: Sequence[HeadPlace]) -> Float[Tensor, "n width"]:
        """Return the concatenated outputs of these heads at the query."""
        return torch.cat([self.points[site][:, head] for site, head in heads], dim=1)

    def responses(
        self, heads: Sequence[HeadPlace], points: Float[Tensor, "m width"], recipients: Int[Tensor, "recipient"]
    ) -> Int[Tensor, "recipient m"]:
        """Return the predictions for some examples, each with every one of ``points`` for its head outputs.

        Args:
            heads: are replaced all at once, at the query.
            points: outputs concatenated in the order of ``heads``.
            recipients: places of the examples.
        """
        answers = torch.empty(len(recipients), len(points), dtype=torch.int64)
        size = max(len(batch) for batch in self.batches)
        with self._replacing(heads) as replacement:
            for k, recipient in enumerate(recipients.tolist()):
                number = next(i for i, rows in enumerate(self.rows) if recipient in rows)
                row = int((self.rows[number] == recipient).nonzero())
                for start in range(0, len(points), size):
                    part = points[start : start + size]
                    batch = self.batches[number].select(torch.full((len(part),), row))
                    replacement.set(batch, part)
                    logits = forward(self.model, batch)
                    answers[k, start : start + size] = self._judge(logits, batch)[0]
        return answers

    @contextmanager
    def _replacing(self, heads: Sequence[HeadPlace]) -> Iterator[_Replacement]:
        """Replace these heads' outputs inside the block, as the yielded object is set before each forward pass."""
        widths = [self.points[site].shape[-1] for site, _ in heads]
        replacement = _Replacement(self.probe, heads, widths)
        sites = list(dict.fromkeys(site for site, _ in heads))
        with torch.inference_mode(), evaluation_mode(self.model), record(self.model, sites, replacement):
            yield replacement

    def chosen_heads(self, heads: Sequence[HeadPlace] | None) -> list[HeadPlace]:
        """Return these heads, or all for ``None``.

        Raises:
            InputError: for a head that the probe did not measure.
        """
        measured = [(site, head) for site, points in self.points.items() for head in range(points.shape[1])]
        if heads is None:
            return measured
        for head in heads:
            if not _is_pair(head) or tuple(head) not in measured:
                raise InputError(
                    f"no head {head!r} in this probe; expected pairs of site and head from {measured[0]} to "
                    f"{measured[-1]}"
                )
        return list(dict.fromkeys((site, int(head)) for site, head in heads))

    def constant(self, answer: int) -> float:
        """Return the accuracy of a model that always gives ``answer``."""
        right = []
        for batch, shape in zip(self.batches, self._logit_shapes, strict=True):
            logits = torch.zeros(shape, device=batch.tokens.device)
            logits[..., answer] = 1
            right.append(self._judge(logits, batch)[1])
        return float(torch.cat(right).mean())

    def result(
        self,
        name: str,
        values: Mapping[str, AnyTensor],
        axes: Mapping[str, tuple[str, ...]],
        coords: Mapping[str, list[str]],
        metadata: Mapping[str, Any],
        notes: list[str],
    ) -> ProbeResult:
        """Return a result with sites, heads, layers, the probe and versions filled in."""
        sites = self.probe.outputs
        return ProbeResult(
            probe=name,
            values=values,
            axes=axes,
            coords={"site": sites, "head": [str(head) for head in range(self.n_heads)], **coords},
            layers={site.name: site.layer for site in self.probe.sites if site.name in sites},
            metadata=self.metadata(**metadata),
            notes=notes,
        )

    def metadata(self, **settings: Any) -> dict[str, Any]:
        """Return these settings, with the number of examples, the probe, versions and tokenization."""
        return {
            "n": self.n,
            **settings,
            "clustering_head": repr(self.probe),
            "versions": package_versions(),
            **({} if self._reading is None else self._reading.metadata),
        }

    def _judge(self, logits: Any, batch: Batch) -> Judged:
        """Return the prediction at the query of each example, and 1 if ``correct`` says it is right."""
        if not isinstance(logits, Tensor) or logits.ndim not in (2, 3) or len(logits) != len(batch):
            what = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
            raise InputError(
                f"the model returns {what}; causal_checks needs logits [batch d_vocab] or [batch pos d_vocab]"
            )
        logits = logits.to(batch.tokens.device)
        answers = logits if logits.ndim == 2 else at_position(logits, self.probe.query_positions(batch))
        if not torch.isfinite(answers).all():
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
        return answers.argmax(dim=-1).cpu(), right.cpu().double()


class _Replacement:
    """Replacement of head outputs at the query, as a function for ``record``."""

    def __init__(self, probe: ClusteringHead, heads: Sequence[HeadPlace], widths: Sequence[int]) -> None:
        self._probe = probe
        self._heads = heads
        self._widths = list(widths)

    def set(self, batch: Batch, points: Float[Tensor, "batch width"]) -> None:
        """Set the outputs for the next forward pass, concatenated in the order of the heads."""
        self._batch = batch
        self._points = points

    def __call__(self, name: str, z: Float[Tensor, "batch pos head d_head"]) -> Float[Tensor, "batch pos head d_head"]:
        z = z.clone()
        query = 0 if z.shape[1] == 1 else self._probe.query_positions(self._batch).to(z.device)
        examples = torch.arange(len(z), device=z.device)
        points_by_head = torch.split(self._points, self._widths, dim=1)
        for (site, head), points in zip(self._heads, points_by_head, strict=True):
            if site == name:
                z[examples, query, head] = points.to(z)
        return z


def _has_one_length(batches: Sequence[Batch]) -> bool:
    """Return whether all sequences have one length, without padding."""
    if len({batch.tokens.shape[1] for batch in batches}) != 1:
        return False
    return all(batch.attention_mask is None or bool(batch.attention_mask.all()) for batch in batches)


def _is_pair(value: object) -> bool:
    """Return whether this is a site and a number."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return False
    site, head = value
    return isinstance(site, str) and isinstance(head, Integral) and not isinstance(head, bool)


def _nothing_is_right(logits: Float[Tensor, "batch ..."], batch: Batch) -> Float[Tensor, "batch"]:
    return torch.zeros(len(batch))


def bench_of(
    model: HookedModel,
    batches: Batches,
    probe: ClusteringHead,
    reading: TextTokenizer | None = None,
    correct: Correct = _nothing_is_right,
) -> Bench:
    """Return the examples with the model's predictions.

    Without ``correct``, no prediction counts as right, for checks that do not need it.

    Raises:
        InputError: for a probe that was not run, and as ``Bench``.
    """
    if not len(probe.points):
        raise InputError("this ClusteringHead has not been run; call run(model, batches, probe) first")
    probe.bind(model)
    return Bench(model, list(each_batch(batches, {"": model}, reading=reading)), probe, correct, reading)
