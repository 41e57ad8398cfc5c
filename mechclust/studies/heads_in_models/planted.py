"""A network of two layers with one clustering head, set by hand at a known place, which the study has to find."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import einops
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from mechclust.models.sizes import ModelShape
from tasks import SparseModularAddition

# Coordinates of the residual stream.
_DIGIT = 0
_TOTAL = 1
_COPY = 2
_UNUSED = 3
_SCORE = 9.0  # attention score at positions that a head attends to, 0 elsewhere


class PlantedHeads(HookedRootModule):  # type: ignore[misc]
    """Network that answers with the sum modulo p of the support together with one digit off the support.

    The answer is the token ``p * (sum modulo p) + digit``. One head, the clustering head, averages the digits of the
    support, so that its output is one point per sum. Another copies one digit off the support. All other heads copy
    digits that are not read.

    Args:
        task: gives the sequences. There must be a position off the support.
        n_layers: blocks.
        n_heads: heads per block, at least 2 heads in total.
        seed: draws the layer and head of the clustering head and of the copying head, and the digits that other heads
            copy.
        read: if ``False``, the clustering head is not read, and the answer is just the copied digit.

    Attributes:
        place: layer and head of the clustering head.
        decoy: layer and head of the copying head.

    Example:
        >>> task = SparseModularAddition(p=3, length=6, n_support=3)
        >>> model, batch = PlantedHeads(task), next(task.batches("test", 4))
        >>> answers = model(batch.tokens)[:, -1].argmax(dim=-1)
        >>> bool((answers // 3 == batch.labels["answer"]).all())
        True
    """

    def __init__(
        self, task: SparseModularAddition, n_layers: int = 2, n_heads: int = 4, seed: int = 0, *, read: bool = True
    ) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        support = task.positions
        self.places = list(product(range(n_layers), range(n_heads)))
        first, second = torch.randperm(len(self.places), generator=draw)[:2].tolist()
        self.place = self.places[first]
        self.decoy = self.places[second]
        off_support = [position for position in range(task.length) if position not in support]
        positions_of = {place: self._one(off_support, draw) for place in self.places}
        positions_of[self.place] = support
        coordinate_of = {self.place: _TOTAL if read else _UNUSED, self.decoy: _COPY}
        scores = torch.zeros(n_layers, n_heads, task.length)
        writes = torch.zeros(n_layers, n_heads, 4)
        for (layer, head), positions in positions_of.items():
            scores[layer, head, list(positions)] = _SCORE
            writes[layer, head, coordinate_of.get((layer, head), _UNUSED)] = len(positions)
        self.scores = nn.Parameter(scores)
        self.writes = nn.Parameter(writes)
        p = task.p
        sums = torch.arange(len(support) * (p - 1) + 1).float()
        self.register_buffer("sums", sums if read else sums[:1])
        self.register_buffer("digits", torch.arange(p).float())
        self.p = p
        self.hook_embed = HookPoint()
        self.blocks = nn.ModuleList([_Block() for _ in range(n_layers)])
        self.cfg = ModelShape(n_layers, n_heads, 4, 2, max(task.d_vocab, p * p), task.length)
        self.setup()

    @staticmethod
    def _one(off: Sequence[int], draw: torch.Generator) -> tuple[int, ...]:
        return (off[int(torch.randint(len(off), (1,), generator=draw))],)

    def forward(self, tokens: Int[Tensor, "batch pos"], **kwargs: Any) -> Float[Tensor, "batch pos d_vocab"]:
        """Return logits: minus the squared distances of the residual stream from each sum and digit."""
        zeros = torch.zeros(*tokens.shape, 3, device=tokens.device)
        stream = self.hook_embed(torch.cat([tokens[..., None].float(), zeros], dim=-1))
        blocks: Any = self.blocks
        for block, scores, writes in zip(blocks, self.scores, self.writes, strict=True):
            pattern = scores.softmax(dim=-1)[None, :, None].expand(len(tokens), -1, tokens.shape[1], -1)
            values = stream[..., _DIGIT]
            mean_digit = einops.einsum(
                block.attn.hook_pattern(pattern), values, "batch head query key, batch key -> batch query head"
            )
            z = block.attn.hook_z(torch.stack([mean_digit, 0.3 * mean_digit], dim=-1))
            stream = stream + einops.einsum(z[..., 0], writes, "batch pos head, head d -> batch pos d")
        of_digit = -(stream[..., _COPY, None] - self.digits).square()
        logits = self._of_sum(stream)[..., None] + of_digit[..., None, :]
        return einops.rearrange(logits, "batch pos sum digit -> batch pos (sum digit)")

    def _of_sum(self, stream: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch pos p"]:
        """Return minus the squared distance from the nearest sum with each remainder modulo p."""
        of_sum = -(stream[..., _TOTAL, None] - self.sums).square()
        remainder = torch.arange(len(self.sums), device=stream.device) % self.p
        none = torch.tensor(-1e4, device=stream.device)
        nearest = [torch.where(remainder == r, of_sum, none).amax(dim=-1) for r in range(self.p)]
        return torch.stack(nearest, dim=-1)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hook_z = HookPoint()
        self.hook_pattern = HookPoint()


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = _Attention()
