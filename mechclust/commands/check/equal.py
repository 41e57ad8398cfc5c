"""Does the hooked model agree with plain Hugging Face on a checkpoint and tokens?

The bound. Two passes that add in another order differ by rounding alone. Each block rounds its contribution to the
residual stream a few times, each time by at most eps / 2 of its size and in either direction. Differences therefore
grow like the root of the number of blocks: sqrt(n_layers + 1) eps, times a factor for the few roundings per block and
for norms and sharp attention, which enlarge them. The factor is 4 in half precision, where a larger one would hide
faults, with .1 as the limit, and 100 in float32, where a fault is far above that: 2e-5 for 2 blocks, 7e-5 for 32. An
adapter doubles it in half precision, since merging rounds the weights once more.

Logits are compared relative to the largest, states relative to the length of the state at that place, and attention as
it is, since it is a share already.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import einops
import torch
from jaxtyping import Bool, Shaped
from torch import Tensor

from mechclust.commands.check.batches import relative_distance
from mechclust.commands.check.inputs import CheckedModel, Values, dtypes_of
from mechclust.commands.check.reference import Reference, ReferenceCase, ReferenceValues
from mechclust.commands.check.result import NotTried
from mechclust.report.text import counted
from tasks.errors import error_line

_FACTOR = {torch.float32: 100.0, torch.float64: 100.0}
_HALF_FACTOR = 4.0
_HALF_MERGED_FACTOR = 8.0
_LARGEST_BOUND = 0.1
_ADAPTER_LOST = (
    "the adapter is not in what is measured (it may sit on a fused projection, which TransformerLens copies), and a "
    "comparison with the base would find that nothing changed; merge it (peft: merge_and_unload), save the model, and "
    "check that"
)
_READ_WITH_HUGGING_FACE = (
    "try another version of TransformerLens, or read its states with load_pretrained(..., attention='sdpa'), where "
    "Hugging Face computes them"
)

_RealTokens = Bool[Tensor, "batch pos"]


class _Difference(NamedTuple):
    """Distance of a model from Hugging Face at one place: relative, as said in this file's head."""

    where: str
    distance: float


class _Compared(NamedTuple):
    """A model and Hugging Face on one batch.

    Attributes:
        is_padded: whether the batch is padded on the right.
        differences: from the embedding upwards; the output is last.
        output: the model's, at real tokens.
    """

    is_padded: bool
    differences: list[_Difference]
    output: Shaped[Tensor, "..."]

    def beyond(self, bound: float) -> list[_Difference]:
        """Return the differences that are larger than a bound."""
        return [difference for difference in self.differences if difference.distance > bound]


def allowed_rounding(dtype: torch.dtype, n_layers: int, *, merged: bool = False) -> float:
    """Return the largest difference that is rounding; see the head of this file.

    Args:
        dtype: dtype of the values.
        n_layers: number of blocks.
        merged: whether an adapter is in the weights.

    Example:
        >>> dtypes = {torch.float32: 2, torch.float16: 2, torch.bfloat16: 12}
        >>> " ".join(f"{allowed_rounding(dtype, n_layers):.1g}" for dtype, n_layers in dtypes.items())
        '2e-05 0.007 0.1'
    """
    factor = _FACTOR.get(dtype, _HALF_MERGED_FACTOR if merged else _HALF_FACTOR)
    return min(factor * torch.finfo(dtype).eps * float(n_layers + 1) ** 0.5, _LARGEST_BOUND)


def bound_of(reference: Reference) -> float:
    """Return the largest difference from Hugging Face that is rounding."""
    return allowed_rounding(reference.dtype, reference.cases[0].values.n_layers, merged=bool(reference.base_outputs))


def equals_hugging_face(checked: CheckedModel, reference: Reference | str, note: str = "") -> tuple[bool, str]:
    """Check that logits, states and attention are Hugging Face's, also with padding.

    Args:
        checked: the model.
        reference: Hugging Face's values, or why they are not known.
        note: a caveat on the reference.
    """
    if isinstance(reference, str):
        raise NotTried(reference)
    bound = bound_of(reference)
    comparisons, refused = _compare_cases(checked, reference.cases)
    wrong = _first_wrong(comparisons, bound)
    if wrong is not None:
        return False, _failure(wrong, bound, checked, reference, "with the adapter" if reference.base_outputs else "")
    adapter = ""
    if reference.base_outputs:
        effect = _adapter_effect(reference, comparisons[0])
        if effect.is_lost:
            return False, (
                f"with the adapter: the output is the base's, {effect.size:.2g} of its length away; {_ADAPTER_LOST}"
            )
        adapter = _effect_text(effect, reference)
    equal = _success(comparisons, bound, reference)
    return True, f"{equal}{''.join(refused)}{adapter}{note}"


def read_only_equals(checked: CheckedModel, reference: Reference | str) -> tuple[bool, str]:
    """Check the model as ``clusters`` and ``compare`` read it: without TransformerLens, with the fastest attention.

    Args:
        checked: the model as they load it.
        reference: Hugging Face's values, or why they are not known.
    """
    if isinstance(reference, str):
        raise NotTried(reference)
    bound = bound_of(reference)
    comparisons, refused = _compare_cases(checked, reference.cases)
    wrong = _first_wrong(comparisons, bound)
    if wrong is not None:
        return False, _failure(wrong, bound, checked, reference, "read-only, as clusters and compare read it")
    equal = _success(comparisons, bound, reference)
    return True, f"as clusters and compare read it: {equal}{''.join(refused)}"


def _compare_cases(checked: CheckedModel, cases: list[ReferenceCase]) -> tuple[list[_Compared], list[str]]:
    """Compare every case. A padded batch that the model refuses gives no wrong numbers, so it becomes a remark."""
    comparisons = [_compare(checked, cases[0])]
    refused = []
    for case in cases[1:]:
        try:
            comparisons.append(_compare(checked, case))
        except Exception as error:  # of the model: anything
            refused.append(f"; padded on the right: refused ({error_line(error)})")
    return comparisons, refused


def _compare(checked: CheckedModel, case: ReferenceCase) -> _Compared:
    """Compare one pass with Hugging Face's."""
    n_layers = case.values.n_layers
    names = {0: "blocks.0.hook_resid_pre", **{i + 1: f"blocks.{i}.hook_resid_post" for i in range(n_layers)}}
    patterns = [_pattern_name(layer) for layer in range(1, n_layers + 1)]
    known = [name for name in ("hook_embed", *names.values(), *patterns) if name in checked.model.hook_dict]
    fired, output = checked.watched(case.batch, known)
    output = output.detach().cpu()
    mask = case.batch.attention_mask
    real = torch.ones_like(case.batch.tokens, dtype=torch.bool) if mask is None else mask
    activations = {name: values[0] for name, values in fired.items() if len(values) == 1}
    inside = _inside_differences(activations, names, case.values, real)
    return _Compared(
        is_padded=case.is_padded,
        differences=[*inside, _output_difference(output, case.values, real)],
        output=output[real] if output.shape[:2] == real.shape else output,
    )


def _pattern_name(layer: int) -> str:
    return f"blocks.{layer - 1}.attn.hook_pattern"


def _inside_differences(
    activations: dict[str, Values], names: dict[int, str], expected: ReferenceValues, real: _RealTokens
) -> Iterator[_Difference]:
    """Yield the differences of the embedding, and of attention and state of each block, upwards."""
    if "hook_embed" in activations:
        embedding = activations["hook_embed"]
        nearest = min(_state_distance(embedding, state, real) for state in expected.embeddings)
        yield _Difference("the embedding", nearest)
    for layer, name in names.items():
        pattern = _pattern_name(layer)
        if layer - 1 in expected.patterns and pattern in activations:
            distance = _pattern_distance(activations[pattern], expected.patterns[layer - 1], real)
            yield _Difference(f"the attention of block {layer - 1}", distance)
        if layer in expected.states and name in activations:
            where = f"block {layer - 1}" if layer else "the embedding"
            yield _Difference(where, _state_distance(activations[name], expected.states[layer], real))


def _output_difference(output: Values, expected: ReferenceValues, real: _RealTokens) -> _Difference:
    """Return how far the output is from logits, or from the last hidden state of a model without logits."""
    names = ["the logits", "the last hidden state"][-len(expected.outputs) :]
    distances = {
        name: _largest_distance(output, value, real)
        for name, value in zip(names, expected.outputs, strict=True)
        if value.shape == output.shape
    }
    if not distances:
        return _Difference(f"the output, which has shape {list(output.shape)}", torch.inf)
    nearest = min(distances, key=distances.__getitem__)
    return _Difference(nearest, distances[nearest])


def _largest_distance(value: Shaped[Tensor, "*shape"], expected: Shaped[Tensor, "*shape"], real: _RealTokens) -> float:
    """Return the largest difference at real tokens as a share of the largest value; NaN counts as infinite."""
    compared = real if value.shape[:2] == real.shape else torch.ones(value.shape[0], dtype=torch.bool)
    reference = expected[compared].double()
    largest = (value[compared].double() - reference).abs().max()
    share = torch.where(largest == 0, largest, largest / reference.abs().max())
    return float(torch.nan_to_num(share, nan=torch.inf))


def _state_distance(value: Values, expected: Values, real: _RealTokens) -> float:
    if value.shape != expected.shape or value.shape[:2] != real.shape:
        return torch.inf
    return relative_distance(value[real], expected[real])


def _pattern_distance(value: Values, expected: Values, real: _RealTokens) -> float:
    """Return the largest difference at queries that are real tokens."""
    if value.shape != expected.shape:
        return torch.inf
    by_query = einops.reduce((value.double() - expected.double()).abs(), "batch head query key -> batch query", "max")
    return float(torch.nan_to_num(by_query[real], nan=torch.inf).max())


class _AdapterEffect(NamedTuple):
    """Distances between outputs, as shares of the length of the output with the adapter.

    Over all values at once, where rounding averages out: even where the bound for each is wide, a model without its
    adapter is several times nearer to the base than to what it should be.

    Attributes:
        size: between Hugging Face's outputs with the adapter and without it.
        to_tuned: between the model and Hugging Face with the adapter.
        to_base: between the model and the base.
        eps: rounding of one value.
    """

    size: float
    to_tuned: float
    to_base: float
    eps: float

    @property
    def is_lost(self) -> bool:
        """Whether the model computes without its adapter."""
        return self.size > 4 * self.eps and self.to_tuned > 4 * self.to_base


def _adapter_effect(reference: Reference, compared: _Compared) -> _AdapterEffect:
    output = compared.output.double().flatten()
    outputs = zip(reference.cases[0].values.outputs, reference.base_outputs, strict=True)
    fitting = [(tuned, base) for tuned, base in outputs if tuned.numel() == output.numel()]
    if not fitting:  # of another shape, which is said elsewhere
        return _AdapterEffect(0.0, 0.0, 0.0, 1.0)
    tuned, base = (value.double().flatten() for value in fitting[0])
    length = tuned.norm()
    return _AdapterEffect(
        size=float((tuned - base).norm() / length),
        to_tuned=float((output - tuned).norm() / length),
        to_base=float((output - base).norm() / length),
        eps=torch.finfo(reference.dtype).eps,
    )


def _effect_text(effect: _AdapterEffect, reference: Reference) -> str:
    if effect.size == 0:
        return "; the adapter changes no logit here: it is new, or not for these modules"
    text = f"; the adapter moves the output by {effect.size:.2g} of its length"
    if effect.size > 4 * effect.to_tuned:
        return text
    return f"{text}, which rounding in {_named(reference.dtype)} hides: check in float32 too"


def _first_wrong(comparisons: list[_Compared], bound: float) -> _Compared | None:
    return next((compared for compared in comparisons if compared.beyond(bound)), None)


def _failure(wrong: _Compared, bound: float, checked: CheckedModel, reference: Reference, adapter: str) -> str:
    """Say by how much the model differs, where that begins, what it may mean, and the way out."""
    first = wrong.beyond(bound)[0]
    output = wrong.differences[-1]
    padded = "padded on the right" if wrong.is_padded else ""
    circumstances = ", ".join(filter(None, [padded, adapter]))
    start = f"{circumstances}: " if circumstances else ""
    limit = f"allowed {bound:.2g} in {_named(reference.dtype)}"
    if output.distance <= bound:
        return (
            f"{start}{output.where} of {reference.model} {_within(output.distance)}, but hook points show other states "
            f"than Hugging Face's, from {first.where} on ({first.distance:.2g} away; {limit}): they are not where "
            f"their names say, so layers would be confused; {_READ_WITH_HUGGING_FACE}"
        )
    amount = f"{output.distance:.2g} of the largest away"
    if output.distance == torch.inf:
        amount = "not a number or of another shape"
    where = f"it begins in {first.where} ({first.distance:.2g})"
    if first is output:
        where = "all states agree, so it is the final norm or the head"
    return (
        f"{start}{output.where} {'are' if 'logits' in output.where else 'is'} {amount} from those of "
        f"{reference.model} ({limit}), and {where}: {_meaning(wrong, checked, reference, adapter)}"
    )


def _meaning(wrong: _Compared, checked: CheckedModel, reference: Reference, adapter: str) -> str:
    if not wrong.is_padded and adapter == "with the adapter" and _adapter_effect(reference, wrong).is_lost:
        return f"these are the base's values: {_ADAPTER_LOST}"
    dtypes = dtypes_of(checked.model)
    if dtypes != reference.weights:
        return (
            f"the weights here are {dtypes}, and Hugging Face's {reference.weights}: the model was loaded in another "
            "dtype than was asked for; load it again with dtype=..., and check that"
        )
    if wrong.is_padded:
        return (
            "padding changes what this model computes, and not what Hugging Face computes; give batches of sequences "
            "of one length"
        )
    return f"numbers from it are not those of this checkpoint; {_READ_WITH_HUGGING_FACE}"


def _success(comparisons: list[_Compared], bound: float, reference: Reference) -> str:
    """Name the equal values, and their tolerance."""
    output = _largest([compared.differences[-1] for compared in comparisons])
    below = list(chain.from_iterable(compared.differences[:-1] for compared in comparisons))
    attention = [difference for difference in below if difference.where.startswith("the attention")]
    states = [difference for difference in below if difference not in attention]
    inside = _inside_text("states", "layer", states) + _inside_text("attention", "block", attention)
    padding = "; without padding"
    if any(compared.is_padded for compared in comparisons):
        padding += ", padded on the right"
    adapter = ", with the adapter (unmerged by peft)" if reference.base_outputs else ""
    largest = " of the largest" if output.distance else ""
    return (
        f"{output.where} of {reference.model} {_within(output.distance)}{largest}{inside}{padding}{adapter} "
        f"(allowed {bound:.2g} in {_named(reference.dtype)})"
    )


def _largest(differences: list[_Difference]) -> _Difference:
    distances = [difference.distance for difference in differences]
    return differences[distances.index(max(distances))]


def _inside_text(values: str, unit: str, differences: list[_Difference]) -> str:
    """Give the tolerance within which states or attention are equal; ``""`` if none were compared."""
    if not differences:
        return ""
    places = {difference.where for difference in differences}
    return f"; {values} of {counted(len(places), unit)} {_within(_largest(differences).distance)}"


def _within(distance: float) -> str:
    return f"within {distance:.2g}" if distance else "to the bit"


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
