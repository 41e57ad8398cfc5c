"""Roles of attention heads: which keys each role points to from a query, and how much attention goes there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

_MAX_NUMBERS_AT_ONCE = 2**20  # in the largest intermediate tensor, which a cache should hold

# The attention of some queries to all keys of one example.
RowsOfExample: TypeAlias = Callable[[Int[Tensor, "query"]], Float[Tensor, "head query key"]]


def first_role_keys(real: Bool[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
    """Return the first real position for each query that is real, and -1 for others."""
    first = real.int().argmax(dim=1, keepdim=True).expand(real.shape)
    return torch.where(real, first, -1)


def keys_at_offset(real: Bool[Tensor, "batch pos"], offset: int) -> Int[Tensor, "batch pos"]:
    """Return the position at an offset before each query, and -1 where one of the two is not real."""
    keys = torch.arange(real.shape[1], device=real.device) - offset
    is_key = real[:, keys.clamp(min=0)] & (keys >= 0)
    return torch.where(real & is_key, keys, -1)


# ---- token ids permuted ----


def permuted_role_attention(
    rows_of: Mapping[str, RowsOfExample],
    tokens: Int[Tensor, "query"],
    n_permutations: int,
    seed: Sequence[int],
    queries_at_once: int,
) -> dict[str, Float[Tensor, "head 2 draw"]]:
    """Return the attention to duplicates and to the tokens after them, averaged over queries, with token ids permuted.

    The attention of one example stays as it is, and its token ids change places. All sites share the permutations. The
    number of queries with an earlier occurrence of their token is equal in all of them.

    Time: ``n_permutations x heads`` additions for each pair of positions with equal tokens. Memory: the attention of
    a block in float64, a million numbers, and the result.

    Args:
        rows_of: by site, a function that returns attention of some queries to all keys of one example without padding.
        tokens: its ids.
        n_permutations: number of draws.
        seed: of the permutations.
        queries_at_once: queries in a block.

    Returns:
        Float64, for duplicates and for induction; 0 if no token occurs twice.
    """
    n = len(tokens)
    distinct, codes, counts = torch.unique(tokens, return_inverse=True, return_counts=True)
    n_repeated = max(1, n - len(distinct))
    n_pairs = int((counts * (counts - 1)).sum()) // 2
    sums: dict[str, Float[Tensor, "head 2 draw"]] = {}
    for start in range(0, n, queries_at_once):
        queries = torch.arange(start, min(start + queries_at_once, n), device=tokens.device)
        tables = {}
        for site, rows in rows_of.items():
            table = rearrange(rows(queries), "head q k -> (q k) head")
            tables[site] = table.to(torch.float64, memory_format=torch.contiguous_format)
        at_once = _MAX_NUMBERS_AT_ONCE // max(n, n_pairs * max(table.shape[1] for table in tables.values()))
        of_block: dict[str, list[Float[Tensor, "head 2 _"]]] = {site: [] for site in tables}
        for cells, ends in _permuted_pairs(
            codes, queries, n_permutations, max(1, at_once), np.random.default_rng(seed)
        ):
            for site, table in tables.items():
                of_both = [_segment_sums(table, of_role, ends) for of_role in (cells, cells + 1)]
                of_block[site].append(rearrange(of_both, "role draw head -> head role draw"))
        for site, parts in of_block.items():
            sums[site] = torch.cat(parts, dim=-1) / n_repeated + sums.get(site, 0)
    return sums


def _segment_sums(
    table: Float[Tensor, "cell head"], cells: Int[Tensor, "place"], ends: Int[Tensor, "end"]
) -> Float[Tensor, "_ head"]:
    """Return the sum of the table's rows in each segment of places."""
    if not len(cells):
        return table.new_zeros(len(ends) - 1, table.shape[1])
    return torch.segment_reduce(table.index_select(0, cells), "sum", offsets=ends, axis=0)


def _permuted_pairs(
    codes: Int[Tensor, "pos"],
    queries: Int[Tensor, "query"],
    n_permutations: int,
    at_once: int,
    draw: np.random.Generator,
) -> Iterator[tuple[Int[Tensor, "cell"], Int[Tensor, "end"]]]:
    """Yield pairs of positions that hold equal tokens in a few permutations, and where each one's pairs end, after 0.

    A pair is its place in the table of a block of queries and all keys. Pairs of other queries are left out.

    Args:
        codes: tokens, numbered from 0.
        queries: in the block.
        n_permutations: number of draws.
        at_once: number of draws in a part.
        draw: of permutations.
    """
    n = len(codes)
    in_order = codes.sort().values
    first = torch.searchsorted(in_order, in_order)  # of each token's places, in the order of tokens
    n_earlier = torch.arange(n, device=codes.device) - first
    for start in range(0, n_permutations, at_once):
        size = min(at_once, n_permutations - start)
        orders = torch.from_numpy(draw.permuted(np.broadcast_to(np.arange(n), (size, n)), axis=1)).to(codes.device)
        position = (n * codes + orders).sort(dim=1).values - n * in_order  # by token, then as they stand in the text
        which, place = ((position >= queries[0]) & (position <= queries[-1])).nonzero().unbind(dim=1)
        counts = n_earlier[place]
        ends = counts.cumsum(dim=0)
        total = int(ends[-1]) if len(ends) else 0
        number = torch.arange(total, device=codes.device)
        begin = n * which + first[place] - (ends - counts)  # less the number of the query's first pair
        key = position.flatten()[number + begin.repeat_interleave(counts, output_size=total)]
        row = n * (position[which, place] - queries[0])
        of_draw = counts.new_zeros(size).index_add_(0, which, counts)
        yield key + row.repeat_interleave(counts, output_size=total), pad(of_draw.cumsum(dim=0), (1, 0))
