"""How far a model's activations are from where its answer changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from probes.files import versions
from probes.functional.norm_jacobian import boundary_distance
from probes.hooks import HookedModel, device_of, evaluation_mode, forward
from probes.result import ProbeResult
from probes.run import each_batch
from probes.sites import resolve
from tasks import Batch, InputError


def distance_to_boundary(
    model: HookedModel,
    batches: Batch | Iterable[Batch],
    at: str = "blocks.0.hook_resid_mid",
    equivalence: str | None = None,
) -> ProbeResult:
    """First-order distance of activations from the decision boundary of the model that reads them.

    The classifier is the model's own part after ``at``: the activation is replaced by a point, and the
    logits (``[batch d_vocab]``, or those of the last token) answer. What is replaced is the last token,
    or the only position of a model that has pooled its sequence; other positions stay as they are.

    Measures (axis example, or cluster):
        ``distance``: to the nearest point where another row of the vocabulary wins, see
            ``probes.functional.boundary_distance``; in units of the activation.
        ``relative``: the same divided by the length of the activation.

    Dropout is off; hooks, gradients, mode and random state are left as they were. Cost: one forward
    pass a batch, and one backward pass a row of the vocabulary: for small vocabularies. Memory: with
    ``equivalence``, also one example a cluster.

    Args:
        model: anything with TransformerLens's hook protocol whose rest after ``at`` treats examples
            independently.
        batches: a batch or an iterable of batches; every example with an index of its own.
        at: the hook point, ``[batch pos d]``.
        equivalence: a label; its clusters' centroids are measured instead of the examples. Where other
            positions matter, they are those of the cluster's first example (by index).

    Raises:
        InputError: for no examples, more than one hook point, one that is not ``[batch pos d]`` or whose
            replacement would not reach all that follows, or a label that is missing or per token.

    Example:
        >>> # result = distance_to_boundary(model, task.batches("all"), equivalence="multiset")
        >>> # result["relative"].min()  # a cluster that is about to change its class
    """
    sites = resolve(model, at)
    if len(sites) != 1:
        raise InputError(f"at gives {len(sites)} hook points; expected one, such as 'blocks.0.hook_resid_mid'")
    reader = _Reader(model, sites[0].name)
    source = each_batch(batches)
    with evaluation_mode(model), torch.no_grad():
        found = _examples(reader, source) if equivalence is None else _clusters(reader, source, equivalence)
    names, distance, length = found
    values = {"distance": distance, "relative": distance / length}
    axis = "example" if equivalence is None else "cluster"
    n_bad = int((~values["relative"].isfinite()).sum())
    return ProbeResult(
        probe="distance_to_boundary",
        values=values,
        axes=dict.fromkeys(values, (axis,)),
        coords={axis: [str(name) for name in names]},
        metadata={"versions": versions(), "site": sites[0].name, "equivalence": equivalence},
        notes=[_WHY.format(n_bad, axis)] if n_bad else [],
    )


_WHY = (
    "{} distances (axis {}) are not finite: no gradient leads to another class (infinite), two classes are alike "
    "or the activation is 0 (NaN)"
)


class _Reader:
    """The activations at one hook point, and what the model answers with others there."""

    def __init__(self, model: HookedModel, site: str) -> None:
        hooks, norm = model.hook_dict, site.replace("hook_resid_mid", "ln2.hook_in")
        if norm != site and hooks.get(norm) is hooks[site]:
            raise InputError(
                f"{site!r} is another name of {norm!r} in this model (TransformerLens 4), so what replaces it reaches "
                f"the feed-forward layer but not the residual stream; use {site.replace('mid', 'pre')!r} or "
                f"{site.replace('mid', 'post')!r}"
            )
        self.model, self.site = model, site
        self.dtype = torch.float32

    def activations(self, batch: Batch) -> Float[Tensor, "batch d"]:
        seen: list[Tensor] = []
        self._forward(batch, lambda activation, hook: seen.append(activation))  # gives None: leaves it as it is
        if len(seen) != 1 or seen[0].ndim != 3:
            what = f"gives shape {tuple(seen[0].shape)}" if seen else "did not fire in this forward pass"
            raise InputError(f"{self.site!r} {what}; expected one activation [batch pos d], such as a residual stream")
        self.dtype = seen[0].dtype
        rows = torch.arange(len(batch), device=seen[0].device)
        return seen[0][rows, self._position(seen[0], batch)]

    def logits(self, batch: Batch, x: Float[Tensor, "batch d"]) -> Float[Tensor, "batch d_vocab"]:
        def replace(activation: Tensor, hook: Any) -> Tensor:
            places = torch.arange(activation.shape[1], device=activation.device)
            chosen = places == self._position(activation, batch)[:, None]
            return torch.where(chosen[..., None], x[:, None], activation)

        logits: Tensor = self._forward(batch, replace)
        rows = torch.arange(len(batch), device=logits.device)
        return logits if logits.ndim == 2 else logits[rows, batch.last_positions()]

    def distances(self, batch: Batch, x: Float[Tensor, "batch d"]) -> Float[Tensor, "batch"]:
        return boundary_distance(lambda points: self.logits(batch, points), x).double().cpu()

    def _forward(self, batch: Batch, hook: Any) -> Any:
        with self.model.hooks(fwd_hooks=[(self.site, hook)]):
            return forward(self.model, batch)

    @staticmethod
    def _position(activation: Tensor, batch: Batch) -> Tensor:
        last = batch.last_positions()
        return last if activation.shape[1] > 1 else torch.zeros_like(last)


_Found = tuple[list[int], Tensor, Tensor]  # names, distances, lengths


def _examples(reader: _Reader, batches: Iterable[Batch]) -> _Found:
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for batch in batches:
        moved = batch.to(device_of(reader.model))
        x = reader.activations(moved)
        parts.append((batch.index.cpu(), reader.distances(moved, x), _lengths(x)))
    return _joined(parts)


def _clusters(reader: _Reader, batches: Iterable[Batch], label: str) -> _Found:
    sums: dict[int, Tensor] = {}
    counts: dict[int, int] = {}
    first: dict[int, Batch] = {}
    for batch in batches:
        moved = batch.to(device_of(reader.model))
        cluster = moved.label(label)
        if cluster.ndim != 1:
            raise InputError(f"label {label!r} is per token; distance_to_boundary needs one value per example")
        x = reader.activations(moved)
        for name in torch.unique(cluster).tolist():
            rows = torch.nonzero(cluster == name)[:, 0]
            sums[name] = sums.get(name, 0) + x[rows].double().sum(dim=0)
            counts[name] = counts.get(name, 0) + len(rows)
            earliest = rows[moved.index[rows].argmin()]
            if name not in first or moved.index[earliest] < first[name].index[0]:
                part = moved.select(earliest[None])
                first[name] = Batch(part.tokens, part.attention_mask, index=part.index)
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    alike: dict[tuple[int, bool], list[int]] = {}  # batches of their own may have lengths of their own
    for name, example in first.items():
        alike.setdefault((example.tokens.shape[1], example.attention_mask is None), []).append(name)
    for names in alike.values():
        joined = Batch.concat([first[name] for name in names])
        x = torch.stack([sums[name] / counts[name] for name in names]).to(reader.dtype)
        parts.append((torch.tensor(names), reader.distances(joined, x), _lengths(x)))
    return _joined(parts)


def _lengths(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, dtype=torch.float64).cpu()


def _joined(parts: list[tuple[Tensor, Tensor, Tensor]]) -> _Found:
    if not sum(len(names) for names, _, _ in parts):
        raise InputError("there are no examples to measure; give at least one non-empty batch")
    names, distances, lengths = (torch.cat(column) for column in zip(*parts, strict=True))
    order = torch.argsort(names)
    return names[order].tolist(), distances[order], lengths[order]
