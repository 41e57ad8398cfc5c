"""Every example's row at each site, as tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import Float, Shaped
from torch import Tensor

from probes.engine.batches import Batches
from probes.engine.examples_digest import token_digests
from probes.engine.hooked_model import HookedModel
from probes.engine.probe import Probe
from probes.engine.readout import Readout, check_row_readout, last_token
from probes.engine.result import ProbeResult
from probes.engine.run import run
from probes.engine.sites import Sites, residual
from probes.engine.state import Rows
from tasks import Batch
from tasks.text.bos_token import Bos


class RowCollector(Probe):
    """Probe that keeps every example's rows and labels, and a digest of its tokens."""

    rows = Rows()

    def __init__(self, at: Sites, readout: Readout, labels: Sequence[str] = ()) -> None:
        super().__init__(at, check_row_readout(readout))
        self.labels = labels

    def update(self, activations: Mapping[str, Shaped[Tensor, "batch ..."]], batch: Batch) -> None:
        """Keep the rows of a batch."""
        for site, x in activations.items():
            self.rows.add(f"rows/{site}", batch.index, x.flatten(1))
        for name in self.labels:
            self.rows.add(f"labels/{name}", batch.index, batch.label(name, per="example"))
        self.rows.add("tokens", batch.index, token_digests(batch))

    def compute(self) -> ProbeResult:
        """Return a result without measures, since only the rows are needed."""
        return self.result({}, {})

    def by_site(self) -> dict[str, Float[Tensor, "example d"]]:
        """Return the rows so far by hook name, in the order of the examples' index."""
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
    probe = RowCollector(at, readout)
    run(model, batches, probe, tokenizer=tokenizer, bos=bos, tokens_per_batch=tokens_per_batch)
    return probe.by_site()
