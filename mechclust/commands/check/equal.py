"""Does the hooked model compute what plain Hugging Face computes for the same checkpoint and tokens?

The bound. Two passes that do the same sums in another order differ by rounding alone. Each block rounds what it adds to
the residual stream a few times, each time by at most eps / 2 of its size and in either direction, so that differences
grow like the root of the number of blocks: sqrt(n_layers + 1) eps, times a factor for the few roundings per block and
for norms and sharp attention, which enlarge them. The factor is 4 in half precision, where a larger one would hide
faults, with .1 as the limit, and 100 in float32, where a fault is far above that: 2e-5 for 2 blocks, 7e-5 for 32. An
adapter doubles it in half precision, since merging rounds the weights once more.

Logits are compared relative to the largest, states relative to the length of the state at the same place, and attention
as it is, since it is a share already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from mechclust.commands.check.batches import relative
from mechclust.commands.check.inputs import CheckedModel, counted, dtypes_of
from mechclust.commands.check.reference import AS_IT_IS, FROM_THE_MASK, Reference, ReferenceCase, ReferenceValues
from mechclust.commands.check.result import NotTried
from tasks.errors import first_line

_FACTOR = {torch.float32: 100.0, torch.float64: 100.0}
_HALF, _HALF_MERGED = 4.0, 8.0
_AT_MOST = 0.1


class Difference(NamedTuple):
    """How far a model is from Hugging Face at one place: relative, as said in this file's head."""

    where: str
    off: float


class Compared(NamedTuple):
    """A model and Hugging Face on one batch.

    Attributes:
        padded: ``""``, ``"right"`` or ``"left"``.
        positions: the way of counting positions with which the outputs are nearest.
        others: how far the output is with the other way, if there is one.
        differences: from the embedding upwards; the output is last.
        output: the model's, at real tokens.
    """

    padded: str
    positions: str
    others: dict[str, float]
    differences: list[Difference]
    output: Tensor


def allowed(dtype: torch.dtype, n_layers: int, *, merged: bool = False) -> float:
    """The largest difference that is rounding; see the head of this file. ``merged``: an adapter is in the weights.

    Example:
        >>> f"{allowed(torch.float32, 2):.1g} {allowed(torch.float16, 2):.1g} {allowed(torch.bfloat16, 12):.1g}"
        '2e-05 0.007 0.1'
    """
    bound = _FACTOR.get(dtype, _HALF_MERGED if merged else _HALF) * torch.finfo(dtype).eps * float(n_layers + 1) ** 0.5
    return min(bound, _AT_MOST)


def equals_hugging_face(
    checked: CheckedModel,
    reference: Reference | str,
    note: str = "",
    swap: Callable[[bool], None] | None = None,
) -> tuple[bool, str]:
    """Logits, states and attention are Hugging Face's, with and without padding, with and without the adapter.

    Args:
        checked: the model.
        reference: what Hugging Face gives, or why that is not known.
        note: what else must be known of the reference.
        swap: takes the adapter out (``False``) or puts it in again (``True``); ``None`` where it stays.
    """
    if isinstance(reference, str):
        raise NotTried(reference)
    n_layers = reference.cases[0].found[AS_IT_IS].n_layers
    bound = allowed(reference.dtype, n_layers, merged=bool(reference.base))
    found, refused = _all_compared(checked, reference.cases)
    if wrong := _first_wrong(found, bound):
        return False, _said(wrong, bound, checked, reference, "with the adapter" if reference.base else "")
    adapter = ""
    if reference.base:
        moved = _moved(reference, found[0])
        if moved.dropped:
            return (
                False,
                f"with the adapter: the output is the base's, {moved.effect:.2g} of its length away; {_DROPPED}",
            )
        adapter = _in_words(moved, reference)
        if swap is not None:
            with _taken_out(swap):
                bare, _ = _all_compared(checked, reference.base)
            if wrong := _first_wrong(bare, bound):
                return False, _said(wrong, bound, checked, reference, "without the adapter")
            again = _compared(checked, reference.cases[0])
            if not torch.equal(again.output, found[0].output):
                return False, (
                    "after the adapter was taken out and put in again the output differs by up to "
                    f"{float((again.output - found[0].output).abs().max()):.2g}: swapping adapters changes the model; "
                    "load it again for each adapter"
                )
            found += bare
    return True, _well(found, bound, reference, swap is not None) + "".join(refused) + adapter + note


def read_only_equals(checked: CheckedModel, reference: Reference | str) -> tuple[bool, str]:
    """``clusters`` and ``compare`` read a model without TransformerLens, with the fastest attention: as exactly?

    Args:
        checked: the model as they load it.
        reference: what Hugging Face gives, or why that is not known.
    """
    if isinstance(reference, str):
        raise NotTried(reference)
    bound = allowed(reference.dtype, reference.cases[0].found[AS_IT_IS].n_layers, merged=bool(reference.base))
    found, refused = _all_compared(checked, reference.cases)
    if wrong := _first_wrong(found, bound):
        return False, _said(wrong, bound, checked, reference, "read-only, as clusters and compare read it")
    return True, "as clusters and compare read it: " + _well(found, bound, reference, False) + "".join(refused)


def _all_compared(checked: CheckedModel, cases: list[ReferenceCase]) -> tuple[list[Compared], list[str]]:
    """And what is said of padded batches that the model refuses: it does not give wrong numbers then."""
    found, refused = [_compared(checked, cases[0])], []
    for case in cases[1:]:
        try:
            found.append(_compared(checked, case))
        except Exception as error:  # of the model: anything
            refused.append(f"; padded on the {case.padded}: refused ({first_line(error)})")
    return found, refused


def _compared(checked: CheckedModel, case: ReferenceCase) -> Compared:
    """One pass, compared with each of Hugging Face's."""
    layers = next(iter(case.found.values())).n_layers
    posts = {i + 1: f"blocks.{i}.hook_resid_post" for i in range(layers)}
    names = {0: "blocks.0.hook_resid_pre", **posts}
    patterns = [f"blocks.{i}.attn.hook_pattern" for i in range(layers)]
    every = [name for name in ("hook_embed", *names.values(), *patterns) if name in checked.model.hook_dict]
    seen, output = checked.watched(case.batch, every)
    ours = {name: values[0] for name, values in seen.items() if len(values) == 1}
    mask = case.batch.attention_mask
    real = torch.ones_like(case.batch.tokens, dtype=torch.bool) if mask is None else mask
    output = output.detach().cpu()
    ways = {way: _output_off(output, values, real) for way, values in case.found.items()}
    best = min(ways, key=lambda way: ways[way].off)
    values = case.found[best]
    found = []
    if "hook_embed" in ours:
        least = min(_state_off(ours["hook_embed"], theirs, real) for theirs in values.embeddings)
        found.append(Difference("the embedding", least))
    for layer, name in names.items():
        if layer and layer <= len(values.patterns) and patterns[layer - 1] in ours:
            off = _pattern_off(ours[patterns[layer - 1]], values.patterns[layer - 1], real)
            found.append(Difference(f"the attention of block {layer - 1}", off))
        if layer in values.states and name in ours:
            where = f"block {layer - 1}" if layer else "the embedding"
            found.append(Difference(where, _state_off(ours[name], values.states[layer], real)))
    found.append(ways[best])
    others = {way: other.off for way, other in ways.items() if way != best}
    at_real = output[real] if output.shape[:2] == real.shape else output
    return Compared(case.padded, best, others, found, at_real)


def _output_off(output: Tensor, values: ReferenceValues, real: Tensor) -> Difference:
    """How far the output is from logits, or from the last hidden state where that is what the model gives."""
    found = {"the logits": values.outputs[0], "the last hidden state": values.outputs[-1]}
    if len(values.outputs) == 1:
        del found["the logits"]
    fit = {what: theirs for what, theirs in found.items() if theirs.shape == output.shape}
    if not fit:
        return Difference(f"the output, which has shape {list(output.shape)}", torch.inf)
    offs = {what: _largest_off(output, theirs, real) for what, theirs in fit.items()}
    what = min(offs, key=lambda name: offs[name])
    return Difference(what, offs[what])


def _largest_off(value: Tensor, theirs: Tensor, real: Tensor) -> float:
    """The largest difference at real tokens as a share of the largest value; NaN counts as infinite."""
    at = real if value.shape[:2] == real.shape else torch.ones(value.shape[0], dtype=torch.bool)
    mine, reference = value[at].double(), theirs[at].double()
    far = (mine - reference).abs().max()
    return float(torch.nan_to_num(torch.where(far == 0, far, far / reference.abs().max()), nan=torch.inf))


def _state_off(value: Tensor, theirs: Tensor, real: Tensor) -> float:
    if value.shape != theirs.shape or value.shape[:2] != real.shape:
        return torch.inf
    return relative(value[real], theirs[real])


def _pattern_off(value: Tensor, theirs: Tensor, real: Tensor) -> float:
    """At queries that are real tokens."""
    if value.shape != theirs.shape:
        return torch.inf
    far = (value.double() - theirs.double()).abs().amax(dim=(1, 3))
    return float(torch.nan_to_num(far[real], nan=torch.inf).max())


class _Moved(NamedTuple):
    """Distances between outputs as shares of the length of the one with the adapter: the adapter's effect, and how far
    the model is from Hugging Face's output with the adapter, and from the base's.

    Over all values at once, where rounding averages out: even where the bound for each is wide, a model without its
    adapter is several times nearer to the base than to what it should be.
    """

    effect: float
    to_tuned: float
    to_base: float
    eps: float

    @property
    def dropped(self) -> bool:
        return self.effect > 4 * self.eps and self.to_tuned > 4 * self.to_base


def _moved(reference: Reference, found: Compared) -> _Moved:
    with_it, without = (case[0].found[AS_IT_IS].outputs for case in (reference.cases, reference.base))
    mine = found.output.double().flatten()
    fit = [(a, b) for a, b in zip(with_it, without, strict=True) if a.numel() == mine.numel()]
    if not fit:  # of another shape, which is said elsewhere
        return _Moved(0.0, 0.0, 0.0, 1.0)
    tuned, base = (x.double().flatten() for x in fit[0])
    length = tuned.norm()
    return _Moved(
        effect=float((tuned - base).norm() / length),
        to_tuned=float((mine - tuned).norm() / length),
        to_base=float((mine - base).norm() / length),
        eps=torch.finfo(reference.dtype).eps,
    )


def _in_words(moved: _Moved, reference: Reference) -> str:
    if moved.effect == 0:
        return "; the adapter changes no logit here: it is new, or not for these modules"
    said = f"; the adapter moves the output by {moved.effect:.2g} of its length"
    if moved.effect > 4 * moved.to_tuned:
        return said
    return f"{said}, which rounding in {_named(reference.dtype)} hides: check in float32 too"


@contextmanager
def _taken_out(swap: Callable[[bool], None]) -> Iterator[None]:
    swap(False)
    try:
        yield
    finally:
        swap(True)


def _first_wrong(found: list[Compared], bound: float) -> Compared | None:
    return next((one for one in found if max(d.off for d in one.differences) > bound), None)


_DROPPED = (
    "the adapter is not in what is measured (it may sit on a fused projection, which TransformerLens copies), and a "
    "comparison with the base would find that nothing changed; merge it (peft: merge_and_unload), save the model, and "
    "check that"
)


def _said(wrong: Compared, bound: float, checked: CheckedModel, reference: Reference, adapter: str) -> str:
    """By how much, where it begins, what it may mean, and the way out."""
    begins, output = next(d for d in wrong.differences if d.off > bound), wrong.differences[-1]
    circumstances = ", ".join(part for part in (f"padded on the {wrong.padded}" * bool(wrong.padded), adapter) if part)
    start = f"{circumstances}: " if circumstances else ""
    limit = f"allowed {bound:.2g} in {_named(reference.dtype)}"
    if output.off <= bound:
        return (
            f"{start}{output.where} of {reference.model} {_within(output.off)}, but hook points show other states "
            f"than Hugging Face's, from {begins.where} on ({begins.off:.2g} away; {limit}): they are not where "
            f"their names say, so layers would be confused; {_READ_ONLY}"
        )
    amount = "not a number or of another shape" if output.off == torch.inf else f"{output.off:.2g} of the largest away"
    where = f"it begins in {begins.where} ({begins.off:.2g})"
    if begins is output:
        where = "all states agree, so it is the final norm or the head"
    return (
        f"{start}{output.where} {'are' if 'logits' in output.where else 'is'} {amount} from those of "
        f"{reference.model} ({limit}), and {where}: {_meaning(wrong, checked, reference, adapter)}"
    )


_READ_ONLY = (
    "try another version of TransformerLens, or read its states with load_pretrained(..., attention='sdpa'), where "
    "Hugging Face computes them"
)


def _meaning(wrong: Compared, checked: CheckedModel, reference: Reference, adapter: str) -> str:
    if not wrong.padded and adapter == "with the adapter" and _moved(reference, wrong).dropped:
        return f"these are the base's values: {_DROPPED}"
    if (ours := dtypes_of(checked.model)) != reference.weights:
        return (
            f"the weights here are {ours}, and Hugging Face's {reference.weights}: the model was loaded in another "
            "dtype than was asked for; load it again with dtype=..., and check that"
        )
    if wrong.padded:
        other = "right" if wrong.padded == "left" else "left"
        return (
            "padding changes what this model computes, and not what Hugging Face computes; pad on the "
            f"{other}, or give batches of sequences of one length"
        )
    return f"numbers from it are not those of this checkpoint; {_READ_ONLY}"


def _well(found: list[Compared], bound: float, reference: Reference, both: bool) -> str:
    """What was found equal, and within what."""
    output = max((one.differences[-1] for one in found), key=lambda d: d.off)
    below = [d for one in found for d in one.differences[:-1]]
    attention = [d for d in below if d.where.startswith("the attention")]
    states = [d for d in below if d not in attention]
    inside = [
        f"; {what} of {counted(len({d.where for d in some}), unit)} {_within(max(d.off for d in some))}"
        for what, unit, some in (("states", "layer", states), ("attention", "block", attention))
        if some
    ]
    sides = [one.padded for one in found[: len(reference.cases)] if one.padded]
    padding = ", ".join(["; without padding", *(f"padded on the {side}" for side in sides)])
    adapters = ""
    if reference.base:
        adapters = ", with the adapter (unmerged by peft)" + (" and without it" if both else "")
    largest = " of the largest" if output.off else ""
    return (
        f"{output.where} of {reference.model} {_within(output.off)}{largest}{''.join(inside)}{padding}{adapters} "
        f"(allowed {bound:.2g} in {_named(reference.dtype)}){_on_the_left(found, bound)}"
    )


def _on_the_left(found: list[Compared], bound: float) -> str:
    """Which of Hugging Face's two ways to count positions the model has, where that matters."""
    left = next((one for one in found if one.padded == "left"), None)
    if left is None or max(left.others.values(), default=0.0) <= bound:
        return ""
    (off,) = left.others.values()
    if left.positions == FROM_THE_MASK:
        return (
            "; on the left positions are counted from the first real token, as by generate (Hugging Face's bare "
            f"forward pass counts padding too, and is {off:.2g} away)"
        )
    return (
        "; on the left positions are counted with the padding, as by Hugging Face's bare forward pass (counted as by "
        f"generate the output is {off:.2g} away), so pad your own batches on the right"
    )


def _within(off: float) -> str:
    return f"within {off:.2g}" if off else "to the bit"


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
