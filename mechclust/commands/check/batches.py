"""Do an example's values repeat, alone, in a batch, and with padding?"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechclust.commands.check.inputs import EXAMPLES, CheckedModel
from mechclust.commands.check.result import NotTried
from mechclust.report.text import counted
from tasks import Batch
from tasks.errors import error_line

_N_ALONE = 4  # examples that are also measured alone
_MAX_ON_PADDING = 1e-6  # attention from a real token to padding
_ONE_LENGTH = "give batches of sequences of one length"


def check_repeats(checked: CheckedModel) -> tuple[bool, str]:
    """Check that a repeated batch gives equal values and output, to the bit, also with another batch in between."""
    first = {**checked.seen, "output": checked.standard_output}
    checked.output(checked.batch("between", 2))
    second = {**checked.values(checked.standard), "output": checked.output(checked.standard)}
    for name, value in first.items():
        if not torch.equal(value, second[name]):
            difference = float((value - second[name]).abs().max())
            return False, (
                f"{name!r} gives different values the second time, by up to {difference:.2g}: the forward pass is "
                "random or keeps state, so no number can be reproduced; turn its dropout or state off for evaluation"
            )
    points = counted(len(checked.seen), "hook point")
    return True, f"{points} and the output give the same bits before and after another batch"


def check_same_alone(checked: CheckedModel) -> tuple[bool, str]:
    """Check that an example's residual stream is equal alone and in a batch, within rounding."""
    largest = 0.0
    where = checked.working("residual")[0]
    for row in range(_N_ALONE):
        values = checked.values(checked.standard.select(slice(row, row + 1)), "residual")
        for name, value in values.items():
            difference = relative_distance(checked.seen[name][row : row + 1], value)
            if difference > largest:
                largest = difference
                where = name
    return _within_rounding(
        checked,
        largest,
        where,
        f"{_N_ALONE} examples alone and in a batch of {EXAMPLES}",
        "an example's state depends on its neighbours in the batch (batch norms, routing with a capacity), so results "
        "depend on the batch size; measure with batches of one",
    )


class _Unpadded(NamedTuple):
    """Sequences of different lengths, and their residual streams without padding."""

    tokens: Int[Tensor, "example pos"]
    lengths: list[int]
    streams: list[dict[str, Float[Tensor, "1 _ d"]]]


def check_padding(checked: CheckedModel) -> tuple[bool, str]:
    """Check that nobody attends to padding on the right, and that states are those without it, within rounding."""
    if checked.length < 2:
        raise NotTried("this model reads one token at a time")
    checked.working("residual")
    unpadded = _without_padding(checked)
    try:
        on_the_right, on_padding = _padded(checked, unpadded)
    except Exception as error:
        raise NotTried(f"padded batches are refused ({error_line(error)}); {_ONE_LENGTH}") from None
    if on_padding > _MAX_ON_PADDING:
        return False, (
            f"up to {on_padding:.2g} of attention goes to padding although it is masked, so that states depend on how "
            f"far a batch was padded; {_ONE_LENGTH}"
        )
    return _within_rounding(
        checked,
        on_the_right,
        "residual()",
        f"{len(unpadded.lengths)} examples padded on the right and without padding",
        f"padding changes what is measured; {_ONE_LENGTH}",
    )


def _without_padding(checked: CheckedModel) -> _Unpadded:
    lengths = sorted({max(1, checked.length - shorter) for shorter in (0, 1, 3, 5)}, reverse=True)
    tokens = checked.batch("padding", len(lengths)).tokens
    try:
        streams = [checked.values(Batch(row[None, :n]), "residual") for row, n in zip(tokens, lengths, strict=True)]
    except Exception as error:
        raise NotTried(f"sequences of other lengths are refused ({error_line(error)})") from None
    return _Unpadded(tokens, lengths, streams)


def _padded(checked: CheckedModel, unpadded: _Unpadded) -> tuple[float, float]:
    """Return the largest relative difference at real tokens, and the largest attention from these to padding."""
    size = unpadded.tokens.shape[1]
    mask = torch.arange(size) < torch.tensor(unpadded.lengths)[:, None]
    tokens = unpadded.tokens.masked_fill(~mask, checked.pad_id)
    values = checked.values(Batch(tokens, mask), "residual", "attention_pattern")
    differences = []
    for row, (n, stream) in enumerate(zip(unpadded.lengths, unpadded.streams, strict=True)):
        for name, expected in stream.items():
            value = values[name][row : row + 1]
            differences.append(relative_distance(value[:, :n] if value.shape[1] == size else value, expected))
    patterns = [values[name] for name in checked.sites.get("attention_pattern", ())]
    return max(differences), max((_on_padding(pattern, mask) for pattern in patterns), default=0.0)


def _on_padding(pattern: Float[Tensor, "example head query key"], mask: Bool[Tensor, "example key"]) -> float:
    """Return the largest attention from a real token to padding; if queries are pooled, all of them are real."""
    to_padding = pattern.masked_fill(mask[:, None, None], 0).sum(-1)
    if pattern.shape[2] == pattern.shape[3]:
        to_padding = to_padding.masked_fill(~mask[:, None], 0)
    return float(to_padding.max())


def relative_distance(value: Float[Tensor, "*place d"], reference: Float[Tensor, "*place d"]) -> float:
    """Return the largest distance of two vectors at one place, as a share of the reference's length.

    NaN counts as infinite.
    """
    distance = (value.double() - reference.double()).norm(dim=-1)
    share = torch.where(distance == 0, 0.0, distance / reference.double().norm(dim=-1))
    return float(torch.nan_to_num(share, nan=torch.inf).max())


def _allowed(checked: CheckedModel) -> float:
    """Return the difference that rounding explains.

    Sums of another order differ by some hundred roundings in a deep model; in half precision by a tenth at most.
    """
    dtypes = [parameter.dtype for parameter in checked.model.parameters()]
    dtypes += [value.dtype for value in checked.seen.values()]
    roundings = [torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point and dtype.itemsize > 1]
    return min(1000 * max(roundings, default=torch.finfo(torch.float32).eps), 0.1)


def _within_rounding(
    checked: CheckedModel, largest: float, where: str, compared: str, otherwise: str
) -> tuple[bool, str]:
    allowed = _allowed(checked)
    difference = f"{compared} differ by {largest:.2g} of a state's length"
    if largest <= allowed:
        return True, f"{difference} (allowed {allowed:.2g})"
    return False, f"{difference} ({where}; allowed {allowed:.2g}): {otherwise}"
