"""Two layers of attention heads with weights by hand, each of which plays a role; and heads with random weights."""

from __future__ import annotations

import torch
from torch import Tensor
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

N_SYMBOLS, LENGTH = 30, 40
WIDTH = N_SYMBOLS + LENGTH + N_SYMBOLS
TOKEN = slice(0, N_SYMBOLS)  # of the residual stream: the token, its position, and the token before it
POSITION = slice(N_SYMBOLS, N_SYMBOLS + LENGTH)
BEFORE = slice(N_SYMBOLS + LENGTH, WIDTH)
PLANTED = (
    ("previous", "first", "itself", "offset", "duplicate", "local", "none", "none"),
    ("induction", "induction", "previous", "offset", "duplicate", "none", "none", "none"),
)


class PlantedRoles(HookedRootModule):  # type: ignore[misc]
    """Attention only: ``scores = x W_QK x``, plus noise. The first head copies each token to the one after it."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        self.offsets = torch.randint(2, 8, (2, 8), generator=draw)
        weights = torch.stack([self._weights(layer, head, draw) for layer in range(2) for head in range(8)])
        self.w_qk = torch.nn.Parameter(weights.reshape(2, 8, WIDTH, WIDTH))
        self.blocks = torch.nn.ModuleList([_Block(), _Block()])
        self.setup()

    def _weights(self, layer: int, head: int, draw: torch.Generator) -> Tensor:
        """Return one head's ``W_QK``."""
        role = PLANTED[layer][head]
        strength = 3 + 4 * torch.rand((), generator=draw)
        weights = 0.7 * torch.randn(WIDTH, WIDTH, generator=draw)
        if role == "none":
            return 2 * weights
        places = torch.arange(LENGTH)
        apart = places[:, None] - places
        offset = {"previous": 1, "itself": 0, "offset": int(self.offsets[layer, head])}.get(role)
        if offset is not None:
            weights[POSITION, POSITION] += strength * (apart == offset)
        elif role == "first":
            weights[POSITION, POSITION] += strength * (places == 0)
        elif role == "local":
            weights[POSITION, POSITION] -= 0.4 * apart.abs()
        elif role == "duplicate":
            weights[TOKEN, TOKEN] += strength * torch.eye(N_SYMBOLS)
            weights[POSITION, POSITION] -= 2 * strength * torch.eye(LENGTH)
        else:
            weights[TOKEN, BEFORE] += strength * torch.eye(N_SYMBOLS)
        return weights

    def forward(self, tokens: Tensor) -> Tensor:
        n = tokens.shape[1]
        stream = torch.zeros(*tokens.shape, WIDTH)
        stream[..., TOKEN] = torch.nn.functional.one_hot(tokens, N_SYMBOLS).float()
        stream[..., POSITION] = torch.eye(LENGTH)[:n]
        later = torch.ones(n, n, dtype=torch.bool).triu(1)
        for block, w_qk in zip(self.blocks, self.w_qk, strict=True):
            scores = torch.einsum("bqd,hde,bke->bhqk", stream, w_qk, stream)
            pattern = block.attn.hook_pattern(scores.masked_fill(later, -torch.inf).softmax(dim=-1))
            stream = stream.clone()
            stream[..., BEFORE] = pattern[:, 0] @ stream[..., TOKEN]
        return stream


class _Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hook_pattern = HookPoint()


class _Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = _Attention()
