"""Several heads at once: does the answer follow their outputs, and only the thing asked for?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from probes import ClusteringHead, HookedModel, ProbeResult, last_token, run
from probes.checks.bench import bench_of
from probes.engine.head_names import head_name
from tasks import Batch

Places = Sequence[tuple[int, int]]  # block and head
RELEVANT = "relevant donors"
RANDOM_HEADS = "relevant donors, other heads"
IRRELEVANT = "irrelevant donors"
DONORS = (RELEVANT, RANDOM_HEADS, IRRELEVANT)


def exchange_together(
    model: HookedModel, batch: Batch, heads: Places, shape: tuple[int, int], *, draws: int = 3, seed: int = 0
) -> ProbeResult:
    """Give each prompt another prompt's outputs of all these heads at once, at its last token.

    Donors differ in the thing asked for and in the other thing (``relevant donors``), or only in the other thing
    (``irrelevant donors``). The control uses the relevant donors with equally many other heads, drawn at random from
    the same blocks or, if they have too few others, from the nearest. Donors and control heads are drawn ``draws``
    times.

    Measures:
        ``carried`` (donors): share of answers that become the donor's. NaN for irrelevant donors, with the same answer.
        ``changed`` (donors): share of answers that differ from the answers without interchange.

    Both are NaN without heads, since an empty interchange says little of heads. The control is also NaN if most heads
    of the model are interchanged, because there are not as many others.

    Args:
        model: a model whose hooks can write.
        batch: prompts with the labels ``asked``, ``other`` and ``answer``.
        heads: pairs of block and head.
        shape: number of blocks and of heads per block.
        draws: number of draws of donors.
        seed: seed of the draws.
    """
    bench = bench_of(model, [batch], measured_probe(model, batch))
    asked = batch.label("asked").cpu()
    other = batch.label("other").cpu()
    answer = batch.label("answer").cpu()
    draw = torch.Generator().manual_seed(seed)
    carried = torch.zeros(len(DONORS), dtype=torch.float64)
    changed = torch.zeros(len(DONORS), dtype=torch.float64)
    for _ in range(draws if heads else 0):
        relevant = _donors((asked[:, None] != asked) & (other[:, None] != other), draw)
        irrelevant = _donors((asked[:, None] == asked) & (other[:, None] != other), draw)
        controls = other_heads(heads, shape, draw)
        for i, (donors, places) in enumerate(((relevant, heads), (relevant, controls), (irrelevant, heads))):
            sites = [(site_of(block), head) for block, head in places]
            after = bench.with_outputs(sites, bench.outputs(sites)[donors])[0] if sites else bench.answers
            carried[i] += ((after == answer[donors]) & (answer[donors] != bench.answers)).double().mean() / draws
            changed[i] += (after != bench.answers).double().mean() / draws
    notes = _undefined(carried, changed, heads, shape)
    return ProbeResult(
        "heads together",
        {"carried": carried, "changed": changed},
        {"carried": ("donors",), "changed": ("donors",)},
        {"donors": list(DONORS)},
        metadata={"n": len(batch), "heads": [head_name(*place) for place in heads], "draws": draws},
        notes=notes,
    )


def _undefined(
    carried: Float[Tensor, "donors"], changed: Float[Tensor, "donors"], heads: Places, shape: tuple[int, int]
) -> list[str]:
    """Put NaN for unmeasured values, and return notes with the reasons."""
    if not heads:
        carried[:] = torch.nan
        changed[:] = torch.nan
        return ["there are no heads to interchange, so carried and changed are NaN"]
    carried[DONORS.index(IRRELEVANT)] = torch.nan
    notes = ["carried is NaN for irrelevant donors, whose answer is the same"]
    n_layers, n_heads = shape
    if 2 * len(heads) > n_layers * n_heads:
        control = DONORS.index(RANDOM_HEADS)
        carried[control] = torch.nan
        changed[control] = torch.nan
        notes.append("there are not as many other heads, so their carried and changed are NaN")
    return notes


def _donors(allowed: Bool[Tensor, "prompt prompt"], draw: torch.Generator) -> Int[Tensor, "prompt"]:
    """Return one of the allowed donors of each prompt, at random."""
    return torch.multinomial(allowed.double(), 1, generator=draw)[:, 0]


def other_heads(heads: Places, shape: tuple[int, int], draw: torch.Generator) -> Places:
    """Return as many other heads, if there are any, in blocks as near as possible, at random within a block."""
    n_blocks, n_heads = shape
    places = list(product(range(n_blocks), range(n_heads)))
    free = [places[i] for i in torch.randperm(len(places), generator=draw).tolist() if places[i] not in heads]
    distance = np.abs(np.subtract.outer([block for block, _ in heads], [block for block, _ in free]))
    return [free[i] for i in linear_sum_assignment(distance)[1]]


def measured_probe(model: HookedModel, batch: Batch, labels: Sequence[str] = ()) -> ClusteringHead:
    """Return a probe that has measured the heads at the last token."""
    probe = ClusteringHead(tuple(labels), query=last_token(), permutations=0)
    run(model, [batch], probe)
    return probe


def site_of(block: int) -> str:
    """Return the hook point of the block's head outputs."""
    return f"blocks.{block}.attn.hook_z"
