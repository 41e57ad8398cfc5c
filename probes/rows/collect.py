"""Every example's row at each site, as tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from probes.engine.batches import Batches
from probes.engine.hooks import HookedModel
from probes.engine.identity import token_digests
from probes.engine.probe import Probe
from probes.engine.readout import Readout, check_row_readout, last_token
from probes.engine.result import ProbeResult
from probes.engine.run import run
from probes.engine.sites import Sites, residual
from probes.engine.state import Rows
from tasks import Batch
from tasks.text.beginning import Bos


class Gather(Probe):
    """Keeps rows, labels and what the tokens were."""

    rows = Rows()

    def __init__(self, at: Sites, readout: Readout, labels: Sequence[str] = ()) -> None:
        super().__init__(at, check_row_readout(readout))
        self.labels = labels

    def update(self, activations: Mapping[str, Tensor], batch: Batch) -> None:
        for site, x in activations.items():
            self.rows.add(f"rows/{site}", batch.index, x.flatten(1))
        for name in self.labels:
            self.rows.add(f"labels/{name}", batch.index, batch.label(name, per="example"))
        self.rows.add("tokens", batch.index, token_digests(batch))

    def compute(self) -> ProbeResult:
        return self.result({}, {})

    def by_site(self) -> dict[str, Tensor]:
        """By hook name ``[n d]``, the rows so far, in the order of the examples' index."""
        return {site: self.rows.get(f"rows/{site}")[1] for site in self.site_names}


def collect_rows(
    model: HookedModel,
    batches: Batches,
    at: Sites = residual(),
    readout: Readout = last_token(),
    *,
    tokenizer: Any = None,
    bos: Bos = "model",
    tokens_per_batch: int = 4096,
) -> dict[str, Tensor]:
    """Every example's row at each site, by hook name ``[n d]``, ordered by example index, on the CPU.

    As ``run`` measures: dropout off, hooks removed, nothing of the model changed. Memory: ``examples x sites x d`` in
    the model's dtype; ``save_rows`` keeps them on disk instead.

    Args:
        model: anything with TransformerLens's hook protocol.
        batches: as ``run`` takes them; every example with an index of its own.
        at: where to measure.
        readout: which position.
        tokenizer: for texts, as in ``run``.
        bos: for texts, as in ``run``.
        tokens_per_batch: as in ``run``.

    Raises:
        InputError: for a readout that keeps every position, and where ``run`` raises it.

    Example:
        >>> # rows = collect_rows(model, batches, at=residual(3), readout=last_token())
        >>> # rows["blocks.2.hook_resid_post"].shape  # [n d_model]
    """
    probe = Gather(at, readout)
    run(model, batches, probe, tokenizer=tokenizer, bos=bos, tokens_per_batch=tokens_per_batch)
    return probe.by_site()
