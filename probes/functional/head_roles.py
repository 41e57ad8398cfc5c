"""Roles of attention heads: which keys each role points to from a query, and how much attention goes there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import embedding_bag

from probes.functional.arrays import Array, computed_in_torch
from tasks.errors import check_choice, check_count

KEY_ROLES = ("previous", "first", "itself", "offset", "duplicate", "induction")
_MAX_NUMBERS_AT_ONCE = 2**22  # in the largest intermediate tensor


@computed_in_torch()
def role_keys(tokens: Int[Array, "batch pos"], role: str, offset: int = 2) -> Int[Array, "batch pos slot"]:
    """Return, for each query, the positions of the keys that a role points to.

    Takes tensors, NumPy arrays or lists, and returns the same kind (arrays for lists).

    Cost: ``n log n``, and ``n`` for each earlier occurrence of the most frequent token.

    Args:
        tokens: ids; negative: padding, on either side, which is neither query nor key.
        role: ``"previous"`` token; ``"first"`` token, where attention sinks; the token ``"itself"``; the token at a
            fixed ``"offset"`` before the query; ``"duplicate"``: earlier occurrences of the query's token;
            ``"induction"``: the tokens after these.
        offset: of the role ``"offset"``, in tokens before the query.

    Returns:
        Positions in descending order; -1 in the slots of queries that have fewer keys.

    Raises:
        InputError: for an unknown role or a negative offset.

    Example:
        >>> tokens = torch.tensor([[7, 8, 7, 8, 7]])
        >>> role_keys(tokens, "duplicate")[0].tolist()
        [[-1, -1], [-1, -1], [0, -1], [1, -1], [2, 0]]
        >>> role_keys(tokens, "induction")[0].tolist()
        [[-1, -1], [-1, -1], [1, -1], [2, -1], [3, 1]]
    """
    check_choice(role=(role, KEY_ROLES))
    check_count(offset=(offset, 0))
    real = tokens >= 0
    if role == "first":
        return _first_keys(real)[..., None]
    if role in ("duplicate", "induction"):
        earlier = _earlier_occurrences(tokens, real)
        return earlier if role == "duplicate" else _followers(earlier, real)
    distance = {"previous": 1, "itself": 0, "offset": offset}[role]
    return _keys_at_offset(real, distance)[..., None]


def attention_to_keys(
    pattern: Float[Tensor, "batch head query key"], keys: Int[Tensor, "batch query slot"]
) -> Float[Tensor, "batch head query slot"]:
    """Return the attention of each query to some keys of its own; 0 in slots without a key, which are negative.

    Example:
        >>> pattern = torch.tensor([[[[1.0, 0.0], [0.25, 0.75]]]])
        >>> attention_to_keys(pattern, role_keys(torch.tensor([[5, 6]]), "previous")).flatten().tolist()
        [0.0, 0.25]
    """
    by_head = keys[:, None].expand(-1, pattern.shape[1], -1, -1)
    return torch.where(by_head >= 0, pattern.gather(-1, by_head.clamp(min=0)), 0)


def _first_keys(real: Bool[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
    first = real.int().argmax(dim=1, keepdim=True).expand(real.shape)
    return torch.where(real, first, -1)


def _keys_at_offset(real: Bool[Tensor, "batch pos"], offset: int) -> Int[Tensor, "batch pos"]:
    keys = torch.arange(real.shape[1], device=real.device) - offset
    is_key = real[:, keys.clamp(min=0)] & (keys >= 0)
    return torch.where(real & is_key, keys, -1)


def _earlier_occurrences(
    tokens: Int[Tensor, "batch pos"], real: Bool[Tensor, "batch pos"]
) -> Int[Tensor, "batch pos slot"]:
    """Follow every token back from one occurrence to the one before it."""
    tokens = torch.where(real, tokens, -1)  # padding is a token of its own
    order = tokens.argsort(dim=1, stable=True)
    in_order = tokens.gather(1, order)
    before = torch.full_like(order, -1)
    before[:, 1:] = torch.where(in_order[:, 1:] == in_order[:, :-1], order[:, :-1], -1)
    last = torch.where(real, torch.empty_like(order).scatter_(1, order, before), -1)
    slots = [last]
    while bool((slots[-1] >= 0).any()):
        slots.append(torch.where(slots[-1] >= 0, last.gather(1, slots[-1].clamp(min=0)), -1))
    return torch.stack(slots[: max(1, len(slots) - 1)], dim=-1)


def _followers(keys: Int[Tensor, "batch pos slot"], real: Bool[Tensor, "batch pos"]) -> Int[Tensor, "batch pos slot"]:
    """Return the positions after these."""
    after = (keys + 1).clamp(max=real.shape[1] - 1)
    is_real = real.gather(1, after.flatten(1)).reshape(keys.shape)
    return torch.where((keys >= 0) & is_real, after, -1)


# ---- scores ----


@dataclass(frozen=True)
class RoleScores:
    """Scores of the heads of a site, by example and role.

    Attributes:
        score: mean attention to a role's keys, over the queries that have some; NaN in examples without such a query.
            Locality is 1 less the mean distance of attention, as a share of that of uniform attention.
        chance: the same if attention ignores the role: uniform over the keys that a query sees, or with the token ids
            permuted; 0 for locality.
        distance: mean distance in tokens between query and key, and that of uniform attention.
    """

    score: Float[Tensor, "batch head role"]
    chance: Float[Tensor, "batch head role"]
    distance: Float[Tensor, "batch head 2"]


@dataclass(frozen=True)
class RoleKeys:
    """The keys of every role in a batch, which are the same at all sites.

    Attributes:
        keys: by role; ``"0"`` to the largest offset, then ``"first"``, ``"duplicate"`` and ``"induction"``.
        real: false at padding.
    """

    keys: Mapping[str, Int[Tensor, "batch query _"]]
    real: Bool[Tensor, "batch query"]

    @classmethod
    def from_tokens(
        cls, tokens: Int[Tensor, "batch query"], real: Bool[Tensor, "batch query"], max_offset: int
    ) -> RoleKeys:
        """Return the keys of every role, with fixed offsets of up to ``max_offset``."""
        keys = {str(offset): _keys_at_offset(real, offset)[..., None] for offset in range(max_offset + 1)}
        keys["first"] = _first_keys(real)[..., None]
        keys["duplicate"] = _earlier_occurrences(tokens, real)
        keys["induction"] = _followers(keys["duplicate"], real)
        return cls(keys, real)

    def scores(self, pattern: Float[Tensor, "batch head query query"]) -> RoleScores:
        """Return the scores of a site's heads in the order of ``keys``, then locality.

        A query that sees itself only has no choice, so it does not count. Nor does the first token at a fixed offset:
        attention to it is a role of its own.
        """
        sees = _visible_keys(pattern, self.real)
        n_visible = sees.sum(dim=-1)
        scores = []
        chances = []
        for role, keys in self.keys.items():
            is_aim = (keys >= 0) & (n_visible > 1)[..., None]
            if role.isdigit() and role != "0":
                is_aim &= keys != self.keys["first"]
            counts = is_aim.any(dim=-1)
            attention = attention_to_keys(pattern, keys).double() * is_aim[:, None]
            scores.append(_mean_over_queries(attention.sum(dim=-1), counts))
            if role in ("duplicate", "induction"):
                chance = self._permuted_sum(role, pattern) / counts.sum(dim=1, keepdim=True)
            else:
                chance = _mean_over_queries((is_aim.sum(dim=-1) / n_visible)[:, None], counts)
            chances.append(torch.where(scores[-1].isnan(), torch.nan, chance))
        distance = self._distances(pattern, sees)
        scores.append(1 - distance[..., 0] / distance[..., 1])
        chances.append(torch.where(scores[-1].isnan(), torch.nan, 0.0))
        return RoleScores(torch.stack(scores, dim=-1), torch.stack(chances, dim=-1), distance)

    def _permuted_sum(self, role: str, pattern: Float[Tensor, "batch head query query"]) -> Float[Tensor, "batch head"]:
        """Return the expected attention to a role's keys, summed over queries, if the token ids are permuted.

        Any two positions are then equally likely to hold the same token.
        """
        n = self.real.sum(dim=1)
        n_pairs = (self.keys["duplicate"] >= 0).sum(dim=(1, 2))
        share_of_pairs = n_pairs / (n * (n - 1) / 2).clamp(min=1)
        may_aim = self.real[:, :, None] & self.real[:, None, :]
        if role == "duplicate":
            may_aim = may_aim.tril(-1)
        else:  # the token after an earlier one is not the first, and may be the query itself
            position = torch.arange(self.real.shape[1], device=n.device)
            may_aim = may_aim.tril() & (position != self.keys["first"])
        return (pattern.double() * may_aim[:, None]).sum(dim=(-2, -1)) * share_of_pairs[:, None]

    def _distances(
        self, pattern: Float[Tensor, "batch head query query"], sees: Bool[Tensor, "batch query query"]
    ) -> Float[Tensor, "batch head 2"]:
        """Return the mean distance of attention, and of uniform attention."""
        position = torch.arange(self.real.shape[1], device=self.real.device)
        apart = sees * (position[:, None] - position).abs()
        n_visible = sees.sum(dim=-1)
        by_query = einsum(pattern.double(), apart.double(), "batch head query key, batch query key -> batch head query")
        measured = _mean_over_queries(by_query, n_visible > 1)
        uniform = _mean_over_queries((apart.sum(dim=-1) / n_visible)[:, None], n_visible > 1)
        return torch.stack([measured, uniform.expand_as(measured)], dim=-1)

    def shares(
        self,
        pattern: Float[Tensor, "batch head query query"],
        *,
        exclude_bos: bool = False,
        exclude_current_token: bool = False,
    ) -> Float[Tensor, "batch head role"]:
        """Return the attention to each role's keys as a share of all, in the order of ``keys``, then NaN for locality.

        Source: ``transformer_lens.head_detector`` with ``error_measure="mul"``, which has the same two settings.

        Args:
            pattern: attention weights.
            exclude_bos: leave out attention to the first token.
            exclude_current_token: leave out attention of a query to itself.
        """
        left_out = []
        if exclude_bos:
            left_out.append(self.keys["first"])
        if exclude_current_token:
            left_out.append(torch.where(exclude_bos & (self.keys["0"] == self.keys["first"]), -1, self.keys["0"]))
        total = self.real.sum(dim=1)[:, None].double()
        for keys in left_out:
            total = total - attention_to_keys(pattern, keys).double().sum(dim=(-2, -1))
        shares = []
        for keys in self.keys.values():
            counted = keys
            for other in left_out:
                counted = torch.where(counted == other, -1, counted)
            shares.append(attention_to_keys(pattern, counted).double().sum(dim=(-2, -1)) / total)
        shares.append(torch.full_like(shares[0], torch.nan))
        return torch.stack(shares, dim=-1)


def _visible_keys(
    pattern: Float[Tensor, "batch head query query"], real: Bool[Tensor, "batch query"]
) -> Bool[Tensor, "batch query query"]:
    """Return the keys that each query sees: those before it, and all if the example has weight on later ones."""
    causal = torch.ones(real.shape[1], real.shape[1], dtype=torch.bool, device=real.device).tril()
    both_real = real[:, :, None] & real[:, None, :]
    looks_ahead = (pattern * (both_real & ~causal)[:, None]).flatten(1).sum(dim=1) > 0
    return both_real & (causal | looks_ahead[:, None, None])


def _mean_over_queries(
    x: Float[Tensor, "batch head query"], counts: Bool[Tensor, "batch query"]
) -> Float[Tensor, "batch head"]:
    """Return the mean over the queries that count; NaN where none does."""
    total = torch.where(counts[:, None], x, 0).sum(dim=-1)
    return total / counts.sum(dim=1, keepdim=True)


# ---- token ids permuted ----


def permuted_sums(
    patterns: Mapping[str, Float[Tensor, "head query query"]],
    tokens: Int[Tensor, "query"],
    n_permutations: int,
    draw: np.random.Generator,
) -> dict[str, Float[Tensor, "head 2 draw"]]:
    """Return the attention to duplicates and to the tokens after them, averaged over queries, with token ids permuted.

    The attention of one example stays as it is, and its token ids change places. The same permutations serve all sites.
    The number of queries with an earlier occurrence of their token is the same in all of them.

    Time: ``n_permutations x heads`` additions for each pair of positions with the same token. Memory: 4 million numbers
    at once, and the result.

    Args:
        patterns: attention of one example without padding, by site.
        tokens: its ids.
        n_permutations: number of draws.
        draw: of permutations.

    Returns:
        Float64, for duplicates and for induction; NaN if no token occurs twice.
    """
    n = len(tokens)
    first, second = (tokens[:, None] == tokens).triu(1).nonzero().unbind(dim=1)  # pairs with the same token
    if not len(first):
        undefined = torch.full((2, n_permutations), torch.nan, dtype=torch.float64, device=tokens.device)
        return {site: undefined.expand(len(pattern), -1, -1) for site, pattern in patterns.items()}
    n_repeated = n - len(torch.unique(tokens))
    tables = {site: rearrange(pattern.double(), "head q k -> (q k) head") for site, pattern in patterns.items()}
    sums: dict[str, list[Float[Tensor, "head 2 _"]]] = {site: [] for site in patterns}
    at_once = max(1, _MAX_NUMBERS_AT_ONCE // max(n, len(first)))
    for start in range(0, n_permutations, at_once):
        size = min(at_once, n_permutations - start)
        orders = torch.from_numpy(draw.permuted(np.broadcast_to(np.arange(n), (size, n)), axis=1)).to(tokens.device)
        query = torch.maximum(orders[:, first], orders[:, second])
        key = torch.minimum(orders[:, first], orders[:, second])
        cells = (n * query + key).flatten()
        starts = torch.arange(0, len(cells), len(first), device=tokens.device)
        for site, table in tables.items():
            of_both = [embedding_bag(of_role, table, starts, mode="sum") for of_role in (cells, cells + 1)]
            sums[site].append(rearrange(of_both, "role draw head -> head role draw") / n_repeated)
    return {site: torch.cat(parts, dim=-1) for site, parts in sums.items()}
