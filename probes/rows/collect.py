"""Every example's row at each site, as tensors."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from probes.engine.batches import Batches
from probes.engine.hooked_model import HookedModel
from probes.engine.readout import Readout, last_token
from probes.engine.run import run
from probes.engine.sites import Sites, residual
from probes.rows.kept_rows import KeptRows
from tasks.text.bos_token import Bos


def collect_rows(
    model: HookedModel,
    batches: Batches,
    at: Sites = residual(),
    readout: Readout = last_token(),
    *,
    tokenizer: Any = None,
    bos: Bos = "model",
    tokens_per_batch: int = 4096,
) -> dict[str, Float[Tensor, "example d"]]:
    """Return every example's row at each site, by hook name, ordered by example index, on the CPU.

    Measures like ``run``: dropout off, hooks removed, model unchanged. Memory: ``examples x sites x d`` in the model's
    dtype. ``save_rows`` keeps them on disk instead.

    Args:
        model: anything with TransformerLens's hook protocol.
        batches: as ``run`` takes them, with a different index for every example.
        at: where to measure.
        readout: which position.
        tokenizer: for texts, as in ``run``.
        bos: for texts, as in ``run``.
        tokens_per_batch: as in ``run``.

    Raises:
        InputError: for a readout that keeps every position, and if ``run`` raises it.

    Example:
        >>> # rows = collect_rows(model, batches, at=residual(3), readout=last_token())
        >>> # rows["blocks.2.hook_resid_post"].shape  # [n d_model]
    """
    probe = KeptRows(at, readout)
    run(model, batches, probe, tokenizer=tokenizer, bos=bos, tokens_per_batch=tokens_per_batch)
    return probe.by_site()
