"""How widely does each head attend?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from probes.engine.attention import Attention, AttentionReadout
from probes.engine.hooked_model import HookPoints
from probes.engine.probe import Probe
from probes.engine.readout import Readout, check_row_readout, mean
from probes.engine.result import ProbeResult
from probes.engine.sites import Site, Sites, attention, check_attention_sites, check_site_heads
from probes.engine.state import Sum
from probes.functional.interval_from_sums import interval_from_sums
from tasks import Batch, InputError


class AttentionEntropy(Probe):
    """Mean entropy of attention per head: 0 if a query attends to one key, ``log(n)`` if evenly to ``n`` keys.

    Entropies are averaged over the queries of each example, then over examples. Padding counts neither as
    query nor as key. If part of the attention goes to a learned sink beside the keys (gpt-oss), the entropy is
    ``-sum p log p`` over the keys alone, whose weights sum to less than 1: 0 then means that the sink takes all, too.

    Measures (axes site, head):
        ``entropy``: mean entropy in nats.
        ``entropy_low``, ``entropy_high``: 95% interval of that mean over examples (Student's t); NaN for one example.
        ``entropy_uniform``: entropy of uniform attention over the keys that a query can see, the maximum. Keys after
            the query count if the example has any weight on such keys.
        ``share``: ``entropy`` divided by ``entropy_uniform``; NaN if every query sees only one key.

    With small random weights attention is almost uniform, so that an untrained model has a share near 1.

    Memory: three numbers per site and head, for any number of examples, and one layer's attention while it is measured
    (see ``attention``).

    Args:
        at: attention, or attention patterns.
        query: the query position, such as ``last_token()``; ``None``: all positions.

    Raises:
        InputError: for sites that are not attention, or a query that is not one position.

    Example:
        >>> AttentionEntropy()
        AttentionEntropy(at=attention(), query=None)
    """

    entropies = Sum()
    count = Sum(torch.int64)

    def __init__(self, at: Sites = attention(), query: Readout | None = None) -> None:
        if query is not None and check_row_readout(query) == mean():
            raise InputError("query is mean(); expected one position per example: last_token(), or None for all")
        self.at = at
        self.query = query
        self.readout = AttentionEntropyReadout(query)

    def _sites_in(self, model: HookPoints) -> list[Site]:
        return check_attention_sites(super()._sites_in(model))

    def update(self, activations: Mapping[str, Float[Tensor, "batch head 2"]], batch: Batch) -> None:
        """Add each head's entropy, summed over the batch."""
        for site, entropies in activations.items():
            entropy, uniform = entropies.double().unbind(dim=-1)
            sums = torch.stack([entropy, uniform, entropy.square()], dim=-1)
            self.entropies.add(site, sums.sum(dim=0))
        self.count.add("examples", len(batch))

    def compute(self) -> ProbeResult:
        """Return the means over all examples so far, with intervals."""
        n = int(self.count["examples"])
        sums = [self.entropies[site].cpu() for site in self.site_names]
        check_site_heads(sums)
        total, uniform, squares = torch.stack(sums).unbind(dim=-1)
        low, high = interval_from_sums(total, squares, n)
        values = {
            "entropy": total / n,
            "entropy_low": low,
            "entropy_high": high,
            "entropy_uniform": uniform / n,
            "share": torch.where(uniform == 0, torch.nan, total / uniform),
        }
        notes = []
        if n < 2:
            notes.append("there is one example, so entropy has no interval")
        if bool((uniform == 0).any()):
            notes.append("every query sees one key only, so share is NaN")
        coords = {"head": [str(head) for head in range(total.shape[1])]}
        return self.result(values, dict.fromkeys(values, ("site", "head")), coords, metadata={"n": n}, notes=notes)


@dataclass(frozen=True)
class AttentionEntropyReadout(AttentionReadout):
    """Reduces attention to each head's entropy and the entropy of uniform attention, averaged over an example's
    queries.

    Attributes:
        query: the query position; ``None``: all.
    """

    query: Readout | None

    def read(self, attention: Attention, batch: Batch) -> Float[Tensor, "batch head 2"]:
        """Return the mean entropy and the mean uniform entropy, in nats."""
        real = batch.token_mask()
        weights = self._query_weights(real, batch)
        entropy = torch.where(real[:, None], attention.entropy(), 0).double()  # that of padding means nothing
        entropy = torch.einsum("bhq,bq->bh", entropy, weights)
        uniform = (_uniform_entropy(real, attention.looks_ahead(real)) * weights).sum(dim=1)[:, None]
        return torch.stack([entropy, uniform.expand_as(entropy)], dim=-1)

    def _query_weights(self, real: Bool[Tensor, "batch query"], batch: Batch) -> Float[Tensor, "batch query"]:
        """Return the weight of each query in its example's mean."""
        if self.query is None:
            weights = real.double()
        else:
            n, length = real.shape
            positions = self.query(torch.arange(length, device=real.device).expand(n, -1), batch)
            weights = torch.nn.functional.one_hot(positions, length).double()
        return weights / weights.sum(dim=1, keepdim=True)


def _uniform_entropy(
    real: Bool[Tensor, "batch key"], looks_ahead: Bool[Tensor, "batch"]
) -> Float[Tensor, "batch query"]:
    """Return the entropy of uniform attention over the keys that each query can see."""
    up_to_query = real.cumsum(dim=1)
    n_keys = torch.where(looks_ahead[:, None], real.sum(dim=1, keepdim=True), up_to_query)
    return torch.log(n_keys.clamp(min=1).double())
