"""Two layers of two heads with weights by hand: one clustering head, one that copies a digit, two that nobody reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from tasks import Batch

LENGTH, SUPPORT, COPIED = 8, (0, 1, 2, 3, 4), 7
DIGIT, ONE, TOTAL, OTHER, JUNK = range(5)  # the residual stream's coordinates
PLANTED, COPY = ("blocks.1.attn.hook_z", 0), ("blocks.0.attn.hook_z", 1)
STEEP = 9.0  # how much more a head's scores are where it looks


class TwoLayerHeads(HookedRootModule):  # type: ignore[misc]
    """Answers the sum of the support and one copied digit: ``logit_k = 2 k u - k^2``, largest at ``k`` nearest to u.

    Blocks.1 head 0, the clustering head, averages the digits of the support, up to a leak; blocks.0 head 1 copies
    the last digit. Blocks.0 head 0 copies digit 5 to where nothing reads but blocks.1 head 1, which nothing reads.
    """

    def __init__(self, p: int) -> None:
        super().__init__()
        self.p, answers = p, len(SUPPORT) * (p - 1) + p
        self.anchor = torch.nn.Parameter(torch.zeros(1))  # the model's device
        k = torch.arange(answers).float()
        self.unembed = torch.zeros(5, answers)
        self.unembed[TOTAL] = self.unembed[OTHER] = 2 * k
        self.unembed[ONE] = -(k**2)
        self.blocks = torch.nn.ModuleList([_Block(), _Block()])
        self.setup()

    def forward(self, tokens: Tensor) -> Tensor:
        stream = torch.zeros(*tokens.shape, 5)
        stream[..., DIGIT], stream[..., ONE] = tokens.float(), 1
        looks = [
            [((5,), DIGIT, JUNK, 1), ((COPIED,), DIGIT, OTHER, 1)],
            [(SUPPORT, DIGIT, TOTAL, 5), ((2,), JUNK, JUNK, 1)],
        ]  # positions, what is read, where it is written, times what
        for block, heads in zip(self.blocks, looks, strict=True):
            scores = torch.zeros(len(heads), LENGTH)
            for h, (positions, *_) in enumerate(heads):
                scores[h, list(positions)] = STEEP
            pattern = scores.softmax(-1)[None, :, None].expand(len(tokens), -1, LENGTH, -1)
            pattern = block.attn.hook_pattern(pattern)
            values = torch.stack([stream[..., source] for _, source, _, _ in heads], dim=2)
            z = torch.einsum("bhqk,bkh->bqh", pattern, values)
            z = block.attn.hook_z(torch.stack([z, 0.3 * z], dim=-1))  # [batch pos head 2]
            stream = stream.clone()
            for h, (_, _, to, factor) in enumerate(heads):
                stream[..., to] = stream[..., to] + factor * z[:, :, h, 0]
        return stream @ self.unembed


class ThreeCopies(HookedRootModule):  # type: ignore[misc]
    """Answers the last digit, which each of three heads copies: the answer is that of most heads."""

    def __init__(self) -> None:
        super().__init__()
        self.anchor = torch.nn.Parameter(torch.zeros(1))  # the model's device
        self.blocks = torch.nn.ModuleList([_Block()])
        self.setup()

    def forward(self, tokens: Tensor) -> Tensor:
        (block,) = self.blocks
        n = tokens.shape[1]
        pattern = block.attn.hook_pattern(torch.eye(n).expand(len(tokens), 3, n, n))
        z = torch.einsum("bhqk,bk->bqh", pattern, tokens.float())
        votes = block.attn.hook_z(torch.stack([z, 0.3 * z], dim=-1))[..., 0].round().clamp(0, 1).long()
        return torch.nn.functional.one_hot(votes, 2).float().sum(dim=2)


class _Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hook_z, self.hook_pattern = HookPoint(), HookPoint()


class _Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = _Attention()


def sequences(p: int, n: int = 256, **more: Any) -> Batch:
    """All sequences for ``p = 2``, else ``n`` random ones."""
    if p == 2:
        tokens = torch.cartesian_prod(*[torch.arange(2)] * LENGTH)
    else:
        tokens = torch.randint(p, (n, LENGTH), generator=torch.Generator().manual_seed(p))
    labels = {"sum": tokens[:, list(SUPPORT)].sum(dim=1), "copied": tokens[:, COPIED]}
    return Batch(tokens, labels={**labels, **more})
