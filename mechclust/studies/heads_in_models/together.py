"""Several heads at once: does the answer follow their outputs, and only what is asked?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from probes import ClusteringHead, HookedModel, ProbeResult, last_token, run
from probes.checks.bench import bench_of
from tasks import Batch

Places = Sequence[tuple[int, int]]  # block and head
RELEVANT, RANDOM_HEADS, IRRELEVANT = "relevant donors", "relevant donors, other heads", "irrelevant donors"
DONORS = (RELEVANT, RANDOM_HEADS, IRRELEVANT)


def exchange_together(
    model: HookedModel, batch: Batch, heads: Places, shape: tuple[int, int], *, draws: int = 3, seed: int = 0
) -> ProbeResult:
    """Give each prompt another prompt's outputs of all these heads at once, at its last token.

    Donors differ in what is asked for and in the other thing (``relevant donors``), or only in the other thing
    (``irrelevant donors``). The control is the same relevant donors with equally many other heads, drawn at random from
    the same blocks or, where these have too few others, from the nearest. Donors and control heads are drawn ``draws``
    times.

    Measures:
        ``carried`` (donors): share of answers that become the donor's; NaN for irrelevant donors, which have the same.
        ``changed`` (donors): share of answers that differ from those without interchange.

    Both are NaN without heads: nothing is interchanged, which says nothing of heads; and for the control if most heads
    of the model are among them, because there are not as many others.

    Args:
        model: a model whose hooks can write.
        batch: prompts with the labels ``asked``, ``other`` and ``answer``.
        heads: pairs of block and head.
        shape: number of blocks and of heads per block.
        draws: number of draws of donors.
        seed: seed of the draws.
    """
    bench = bench_of(model, [batch], measured(model, batch))
    asked, other, answer = (batch.label(name).cpu() for name in ("asked", "other", "answer"))
    draw = torch.Generator().manual_seed(seed)
    carried, changed = (torch.zeros(len(DONORS), dtype=torch.float64) for _ in range(2))
    for _ in range(draws if heads else 0):
        relevant = _donors((asked[:, None] != asked) & (other[:, None] != other), draw)
        irrelevant = _donors((asked[:, None] == asked) & (other[:, None] != other), draw)
        controls = other_heads(heads, shape, draw)
        for i, (donors, which) in enumerate(((relevant, heads), (relevant, controls), (irrelevant, heads))):
            sites = [(site_of(block), head) for block, head in which]
            after = bench.with_outputs(sites, bench.outputs(sites)[donors])[0] if sites else bench.answers
            carried[i] += ((after == answer[donors]) & (answer[donors] != bench.answers)).double().mean() / draws
            changed[i] += (after != bench.answers).double().mean() / draws
    carried[-1] = torch.nan
    notes = ["carried is NaN for irrelevant donors, whose answer is the same"]
    if 2 * len(heads) > shape[0] * shape[1]:
        carried[1], changed[1] = torch.nan, torch.nan
        notes.append("there are not as many other heads, so their carried and changed are NaN")
    if not heads:
        carried[:], changed[:] = torch.nan, torch.nan
        notes = ["there are no heads to interchange, so carried and changed are NaN"]
    return ProbeResult(
        "heads together",
        {"carried": carried, "changed": changed},
        {"carried": ("donors",), "changed": ("donors",)},
        {"donors": list(DONORS)},
        metadata={"n": len(batch), "heads": [f"L{block}H{head}" for block, head in heads], "draws": draws},
        notes=notes,
    )


def _donors(allowed: Tensor, draw: torch.Generator) -> Tensor:
    """For each prompt, one of its allowed donors, at random."""
    return torch.multinomial(allowed.double(), 1, generator=draw)[:, 0]


def other_heads(heads: Places, shape: tuple[int, int], draw: torch.Generator) -> Places:
    """Equally many other heads if there are, in blocks as near as possible, at random within a block."""
    n_blocks, n_heads = shape
    every = [(block, head) for block in range(n_blocks) for head in range(n_heads)]
    free = [every[i] for i in torch.randperm(len(every), generator=draw).tolist() if every[i] not in heads]
    distance = np.abs(np.subtract.outer([block for block, _ in heads], [block for block, _ in free]))
    return [free[i] for i in linear_sum_assignment(distance)[1]]


def measured(model: HookedModel, batch: Batch, labels: Sequence[str] = ()) -> ClusteringHead:
    """A probe that has measured the heads at the last token."""
    probe = ClusteringHead(tuple(labels), query=last_token(), permutations=0)
    run(model, [batch], probe)
    return probe


def site_of(block: int) -> str:
    """The hook point of the block's head outputs."""
    return f"blocks.{block}.attn.hook_z"
