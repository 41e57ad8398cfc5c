"""Does an example give the same values again, alone, in a batch, and with padding?"""

from __future__ import annotations

import torch
from torch import Tensor

from mechclust.commands.check.inputs import EXAMPLES, CheckedModel
from mechclust.commands.check.result import NotTried
from tasks import Batch
from tasks.errors import first_line

_ALONE = 4


def repeats(checked: CheckedModel) -> tuple[bool, str]:
    """The same batch gives the same values, to the bit, also with another batch in between."""
    first = checked.seen
    checked.output(checked.batch("between", 2))
    second = checked.values(checked.standard)
    for name, value in first.items():
        if not torch.equal(value, second[name]):
            return False, (
                f"{name!r} gives different values the second time, by up to "
                f"{float((value - second[name]).abs().max()):.2g}: the forward pass is random or keeps state, "
                "so no number can be reproduced; "
                "turn its dropout or state off for evaluation"
            )
    return True, f"{len(first)} hook points give the same bits before and after another batch"


def alone(checked: CheckedModel) -> tuple[bool, str]:
    """An example gives the same residual stream alone and in a batch, within rounding."""
    largest, where = 0.0, checked.working("residual")[0]
    for row in range(_ALONE):
        one = checked.values(checked.standard.select(slice(row, row + 1)), "residual")
        for name, value in one.items():
            if (off := relative(checked.seen[name][row : row + 1], value)) > largest:
                largest, where = off, name
    return _within(
        checked,
        largest,
        where,
        f"{_ALONE} examples alone and in a batch of {EXAMPLES}",
        "an example's state depends on its neighbours in the batch (batch norms, routing with a capacity), so results "
        "depend on the batch size; measure with batches of one",
    )


def padding(checked: CheckedModel) -> tuple[bool, str]:
    """With padding on the right nobody attends to it, and states are those without padding, within rounding."""
    if checked.length < 2:
        raise NotTried("this model reads one token at a time")
    checked.working("residual")
    lengths = sorted({max(1, checked.length - k) for k in (0, 1, 3, 5)}, reverse=True)
    tokens = checked.batch("padding", len(lengths)).tokens
    try:
        rows = [checked.values(Batch(row[None, :n]), "residual") for row, n in zip(tokens, lengths, strict=True)]
    except Exception as error:
        raise NotTried(f"sequences of other lengths are refused ({first_line(error)})") from None
    try:
        right, on_padding = _padded(checked, rows, tokens, lengths, left=False)
    except Exception as error:
        raise NotTried(
            f"padded batches are refused ({first_line(error)}); give batches of sequences of one length"
        ) from None
    if on_padding > 1e-6:
        return False, (
            f"up to {on_padding:.2g} of attention goes to padding although it is masked, so that states depend on how "
            "far a batch was padded; give batches of sequences of one length"
        )
    passed, detail = _within(
        checked,
        right,
        "residual()",
        f"{len(lengths)} examples padded on the right and without padding",
        "padding changes what is measured; give batches of sequences of one length",
    )
    return passed, detail + (_on_the_left(checked, rows, tokens, lengths) if passed else "")


def _on_the_left(checked: CheckedModel, rows: list[dict[str, Tensor]], tokens: Tensor, lengths: list[int]) -> str:
    """What happens there. Nothing here pads on the left, so it is only told."""
    try:
        off, _ = _padded(checked, rows, tokens, lengths, left=True)
    except Exception as error:
        return f"; padded on the left: refused ({first_line(error)})"
    if off <= _allowed(checked):
        return f"; on the left {off:.2g}"
    return (
        f"; on the left {off:.2g}: this model counts positions from the padding, so pad your own batches on the right"
    )


def _padded(
    checked: CheckedModel, rows: list[dict[str, Tensor]], tokens: Tensor, lengths: list[int], *, left: bool
) -> tuple[float, float]:
    """Largest relative difference at real tokens, and largest attention from these to padding."""
    size = tokens.shape[1]
    places = [slice(size - n, size) if left else slice(0, n) for n in lengths]
    mask, filled = torch.zeros(tokens.shape, dtype=torch.bool), torch.full_like(tokens, checked.pad_id)
    for row, (n, place) in enumerate(zip(lengths, places, strict=True)):
        mask[row, place], filled[row, place] = True, tokens[row, :n]
    values = checked.values(Batch(filled, mask), "residual", "attention_pattern")
    patterns = [values[name] for name in checked.sites.get("attention_pattern", ())]
    off = max(
        relative(values[k][i : i + 1, places[i] if values[k].shape[1] == size else slice(None)], row[k])
        for i, row in enumerate(rows)
        for k in row
    )
    hidden = ~mask
    spilt = [
        float((pattern[i][:, place if pattern.shape[2] == size else slice(None)][..., hidden[i]]).sum(-1).max())
        for pattern in patterns
        for i, place in enumerate(places)
    ]
    return off, max(spilt, default=0.0)


def relative(value: Tensor, reference: Tensor) -> float:
    """Largest distance of two vectors at one place, as a share of the reference's length; NaN counts as infinite."""
    far = (value.double() - reference.double()).norm(dim=-1)
    share = torch.where(far == 0, 0.0, far / reference.double().norm(dim=-1))
    return float(torch.nan_to_num(share, nan=torch.inf).max())


def _allowed(checked: CheckedModel) -> float:
    """Sums of another order differ by some hundred roundings in a deep model; in half precision by a tenth at most."""
    dtypes = [p.dtype for p in checked.model.parameters()] + [x.dtype for x in checked.seen.values()]
    full = [torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point and dtype.itemsize > 1]
    return min(1000 * max(full, default=torch.finfo(torch.float32).eps), 0.1)


def _within(checked: CheckedModel, largest: float, where: str, what: str, otherwise: str) -> tuple[bool, str]:
    found = f"{what} differ by {largest:.2g} of a state's length"
    if (allowed := _allowed(checked)) >= largest:
        return True, f"{found} (allowed {allowed:.2g})"
    return False, f"{found} ({where}; allowed {allowed:.2g}): {otherwise}"
