"""A model and examples to intervene on. Behind ``probes.causal_checks``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from probes.clustering_head import ClusteringHead
from probes.hooks import HookedModel, device_of, evaluation_mode, forward
from probes.run import attach
from tasks import Batch, InputError

Correct = Callable[[Tensor, Batch], Tensor]
_SAME = 0.01  # of the largest output: more than batch size and half precision change


class Bench:
    """The given examples in the order of their index, and what the model makes of them.

    Attributes:
        n: number of examples.
        points: head outputs at the query, ``[n head d_head]`` by site.
        n_heads: heads a site.
        answers: ``[n]`` the model's predictions.
        right: ``[n]`` whether they are right.
        labels: ``[n]`` classes 0, 1, ... by equivalence label.
        tokens: ``[n pos]``, or ``None`` where the sequences differ in length.
    """

    def __init__(self, model: HookedModel, batches: list[Batch], probe: ClusteringHead, correct: Correct) -> None:
        self.model, self.probe, self.correct = model, probe, correct
        self.batches = [batch.to(device_of(model)) for batch in batches if len(batch)]
        self.n = sum(map(len, self.batches))
        if self.n < 2:
            raise InputError(
                f"causal_checks was given {self.n} examples; give at least 2, to put one's output for another's"
            )
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
                    "this ClusteringHead holds state of another model (the same examples give other outputs at "
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

    def with_output(self, site: str, head: int, points: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions, and which are right, with ``points [n d_head]`` for the head's output at the query."""
        answers, right = torch.empty(self.n, dtype=torch.int64), torch.empty(self.n, dtype=torch.float64)
        now: list[tuple[Tensor, Tensor]] = []

        def put(z: Tensor, hook: Any) -> Tensor:
            rows, where = now[-1]
            z = z.clone()
            z[torch.arange(len(z), device=z.device), 0 if z.shape[1] == 1 else where, head] = points[rows].to(z)
            return z

        with torch.inference_mode(), evaluation_mode(self.model), self.model.hooks(fwd_hooks=[(site, put)]):
            for batch, rows in zip(self.batches, self.rows, strict=True):
                now.append((rows, self.probe.query_positions(batch)))
                answers[rows], right[rows] = self._judge(forward(self.model, batch), batch)
        return answers, right

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
                f"the model gives {what}; causal_checks needs logits [batch d_vocab] or [batch pos d_vocab]"
            )
        last = logits
        if logits.ndim == 3:
            last = logits[torch.arange(len(logits), device=logits.device), self.probe.query_positions(batch)]
        right = self.correct(logits, batch)
        if right.shape != (len(batch),):
            raise InputError(
                f"correct gives shape {tuple(right.shape)} for {len(batch)} examples; "
                "expected one value per example [batch], as task.accuracy gives"
            )
        return last.argmax(dim=-1).cpu(), right.cpu().double()
