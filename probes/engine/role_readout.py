"""Reduce the attention of a layer to statistics of its heads' roles, for ``HeadRoles``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probes.engine.attention import Attention, AttentionReadout, EagerAttention, attention_pairs_by_word
from probes.functional.arrays import exact_dtype
from probes.functional.head_roles import RowsOfExample, first_role_keys, keys_at_offset, permuted_role_attention
from probes.functional.permutation_test import enough_permutations
from tasks import Batch
from tasks.settings import check_count

TESTED_ROLES = ("duplicate", "induction")  # by permuting token ids
OTHER_PLACES = ("first", "duplicate", "induction", "local")  # after the offsets from 0
_LEAST_SHARE = 1e-6  # of all attention, of which shares are taken: the rest is rounding
_MAX_NUMBERS_AT_ONCE = 2**25  # in a block of rows whose token ids are permuted: 256 MiB


class _RoleStatistics(NamedTuple):
    """Scores of a site's heads in each example.

    Places are each offset from 0, then ``first``, ``duplicate``, ``induction`` and ``local``.

    Attributes:
        score: mean attention to a place's keys, over the queries that have some. Locality is 1 less the mean distance
            of attention, relative to uniform attention's. 0 where it is not defined.
        chance: the score if attention ignores the place: uniform over the keys that a query sees, or with the token ids
            permuted; 0 for locality, and where the score is not defined.
        share: attention to a place's keys as a share of all that is not left out; 0 for locality, and if all is left
            out.
        is_defined: 1 where an example has a score: a query with a choice of keys, and some at the place.
        distance: mean distance in tokens between query and key, and under uniform attention; 0 where locality is not
            defined.
        has_share: 0 if all attention is left out, else 1.
    """

    score: Float[Tensor, "batch head place"]
    chance: Float[Tensor, "batch head place"]
    share: Float[Tensor, "batch head place"]
    is_defined: Float[Tensor, "batch head place"]
    distance: Float[Tensor, "batch head 2"]
    has_share: Float[Tensor, "batch head 1"]


@dataclass(frozen=True)
class RoleReadout(AttentionReadout):
    """Reduces attention to the scores of heads in each role, and the sums that their p-values need.

    The columns are those of ``_RoleStatistics``, then either sums over pairs with permuted token ids, or the attention
    pattern, of which such sums are taken later: whichever has fewer numbers.

    Attributes:
        max_offset: the largest fixed offset.
        n_permutations: of token ids; ``None``: as many as Holm's correction over all heads needs.
        exclude_bos: leave attention to the first token out of shares.
        exclude_current_token: leave attention of a query to itself out of shares.
        seed: for the permutations.
        n_sites: number of sites of the probe.
    """

    max_offset: int
    n_permutations: int | None
    exclude_bos: bool
    exclude_current_token: bool
    seed: int
    n_sites: int = 1

    def read(self, attention: Attention, batch: Batch) -> Float[Tensor, "batch head column"]:
        """Return the columns, in float64."""
        statistics = torch.cat(self._measure(attention, batch), dim=2)
        n_heads, n_pos = attention.shape[1:3]
        n_draws = self._n_draws(n_heads)
        if n_draws == 0:
            return statistics
        if self._keeps_pattern(n_pos, n_draws):
            kept = attention.pattern()
        else:
            kept = torch.stack(
                [self._permuted_at_site(attention, batch, example, n_draws) for example in range(len(batch))]
            )
        return torch.cat([statistics, kept.flatten(2).to(statistics.dtype)], dim=2)

    def split(
        self, columns: Float[Tensor, "batch head column"]
    ) -> tuple[_RoleStatistics, Float[Tensor, "batch head kept"]]:
        """Return the statistics, and what is kept for permutations: a pattern, or its sums."""
        n = self.max_offset + 1 + len(OTHER_PLACES)
        *statistics, kept = columns.tensor_split([n, 2 * n, 3 * n, 4 * n, 4 * n + 2, 4 * n + 3], dim=2)
        return _RoleStatistics(*statistics), kept

    def permuted(
        self, activations: Mapping[str, Float[Tensor, "batch head column"]], batch: Batch
    ) -> dict[str, Float[Tensor, "head 2 draw"]]:
        """Return the scores of duplicates and induction with permuted token ids, summed over the batch, by site.

        Args:
            activations: columns by site, each of as many heads.
            batch: the examples.
        """
        sums: dict[str, Float[Tensor, "head 2 draw"]] = {}
        for example in range(len(batch)):
            for site, of_example in self._permuted_example(activations, batch, example).items():
                sums[site] = of_example + sums.get(site, 0)
        return sums

    def _permuted_example(
        self, activations: Mapping[str, Float[Tensor, "batch head column"]], batch: Batch, example: int
    ) -> dict[str, Float[Tensor, "head 2 draw"]]:
        """Return the scores of one example with permuted token ids. All sites share the permutations."""
        n_pos = batch.tokens.shape[1]
        kept = {site: self.split(columns)[1][example] for site, columns in activations.items()}
        n_draws = self._n_draws(len(next(iter(kept.values()))))
        if not self._keeps_pattern(n_pos, n_draws):
            return {site: rearrange(sums, "h (role draw) -> h role draw", draw=n_draws) for site, sums in kept.items()}
        rows_of = {}
        for site, pattern in kept.items():
            attention = EagerAttention(rearrange(pattern, "head (query key) -> 1 head query key", key=n_pos))
            rows_of[site] = partial(_rows, attention, _positions(batch, example))
        return self._permuted_sums(rows_of, batch, example, n_draws, n_pos)

    def _permuted_at_site(
        self, attention: Attention, batch: Batch, example: int, n_draws: int
    ) -> Float[Tensor, "head 2 draw"]:
        """Return the scores of one example at one site with permuted token ids."""
        n_heads, n_pos = attention.shape[1:3]
        rows_of = {"site": partial(_rows, attention.example(example), _positions(batch, example))}
        queries_at_once = max(1, _MAX_NUMBERS_AT_ONCE // (n_heads * n_pos))
        return self._permuted_sums(rows_of, batch, example, n_draws, queries_at_once)["site"]

    def _permuted_sums(
        self, rows_of: Mapping[str, RowsOfExample], batch: Batch, example: int, n_draws: int, queries_at_once: int
    ) -> dict[str, Float[Tensor, "head 2 draw"]]:
        tokens = batch.tokens[example, _positions(batch, example)]
        index = int(batch.index[example])
        check_count(index=(index, 0))
        return permuted_role_attention(rows_of, tokens, n_draws, [self.seed, index], queries_at_once)

    def _n_draws(self, n_heads: int) -> int:
        """Return the number of permutations, with so many heads at each site."""
        if self.n_permutations is not None:
            return self.n_permutations
        return enough_permutations(len(TESTED_ROLES) * self.n_sites * n_heads)

    @staticmethod
    def _keeps_pattern(n_pos: int, n_draws: int) -> bool:
        """Return whether a pattern has fewer numbers than its sums."""
        return n_pos**2 <= len(TESTED_ROLES) * n_draws

    # ---- scores ----

    def _measure(self, attention: Attention, batch: Batch) -> _RoleStatistics:
        """Return the statistics of each example. NaN in attention is not hidden."""
        texts = _RoleTexts.from_batch(batch, self.max_offset, attention)
        at_fixed = attention.at(texts.fixed).to(exact_dtype(attention.device))
        repeated = self._repeated(attention, texts)
        earlier, distances = attention.reach(texts.real)

        n_queries = [texts.is_scored.sum(dim=1), repeated.n_queries, texts.has_choice.sum(dim=1, keepdim=True)]
        n_queries_at = torch.cat(n_queries, dim=1)[:, None]  # [batch 1 place]
        is_defined = n_queries_at > 0
        per_query = 1 / n_queries_at.clamp(min=1).to(at_fixed.dtype)
        score = torch.cat([_summed(at_fixed, texts.is_scored), repeated.attention], dim=2) * per_query[..., :-1]
        chance = _chance(at_fixed, earlier, repeated, texts) * per_query[..., :-1]
        share, has_share = self._share(at_fixed, repeated, texts)
        distance = _distance(distances, texts) * per_query[..., -1:]
        locality = 1 - distance[..., :1] / torch.where(is_defined[..., -1:], distance[..., 1:], 1)
        zero = torch.zeros_like(locality)
        return _RoleStatistics(
            score=torch.where(is_defined, torch.cat([score, locality], dim=2), 0),
            chance=torch.where(is_defined, torch.cat([chance, zero], dim=2), 0),
            share=torch.cat([share, zero], dim=2),
            is_defined=is_defined.expand(-1, score.shape[1], -1).to(score.dtype),
            distance=distance,
            has_share=has_share.to(score.dtype),
        )

    def _share(
        self, at_fixed: Float[Tensor, "batch head query place"], repeated: _Repeated, texts: _RoleTexts
    ) -> tuple[Float[Tensor, "batch head _"], Bool[Tensor, "batch head 1"]]:
        """Return attention to each place's keys but locality's as a share of all, and whether not all is left out.

        The attention of a query sums to 1, so that all attention is the number of queries. A learned sink beside the
        keys (gpt-oss) counts as a part of it.
        """
        n_queries = texts.real.sum(dim=1)[:, None]
        total = n_queries - self._left_out(at_fixed, texts)
        has_share = (total > _LEAST_SHARE * n_queries)[..., None]
        left_out = self._is_left_out(texts.fixed, texts.position[:, None], texts.first[..., None])
        in_share = (texts.fixed >= 0) & ~left_out
        attention = torch.cat([_summed(at_fixed, in_share), repeated.attention_in_share], dim=2)
        return torch.where(has_share, attention / total[..., None], 0), has_share

    def _is_left_out(
        self, keys: Int[Tensor, "*#shape"], queries: Int[Tensor, "*#shape"], first: Int[Tensor, "*#shape"]
    ) -> Bool[Tensor, "*#shape"]:
        """Return which keys are left out of shares; broadcasts."""
        return (self.exclude_bos & (keys == first)) | (self.exclude_current_token & (keys == queries))

    def _left_out(
        self, at_fixed: Float[Tensor, "batch head query place"], texts: _RoleTexts
    ) -> Float[Tensor, "batch head"]:
        """Return the attention that is left out of shares."""
        left_out = torch.zeros_like(at_fixed[..., 0])
        if self.exclude_current_token:
            left_out += at_fixed[..., 0]
        if self.exclude_bos:
            is_first = self.exclude_current_token & (texts.position == texts.first)  # left out already
            left_out += torch.where(is_first[:, None], 0, at_fixed[..., -1])
        return left_out.sum(dim=2)

    def _repeated(self, attention: Attention, texts: _RoleTexts) -> _Repeated:
        """Return attention to earlier occurrences of each query's token, and to the tokens after these."""
        batch, n_heads, n_pos = attention.shape[:3]
        device = attention.device
        to_all = torch.zeros(batch, n_heads, 2, dtype=exact_dtype(device), device=device)
        in_share = torch.zeros_like(to_all)
        n_queries = torch.zeros(batch, 2, dtype=torch.int64, device=device)
        n_pairs = torch.zeros(batch, dtype=torch.int64, device=device)
        for example, words in enumerate(torch.where(texts.real, texts.tokens, -1)):
            layer = attention.example(example)
            for queries, places, is_same in attention_pairs_by_word(words):
                is_earlier = is_same & (places < queries[:, None])
                n_pairs[example] += is_earlier.sum()
                for shift in (0, 1):
                    keys = (places + shift).clamp(max=n_pos - 1)
                    is_key = is_earlier & texts.real[example, keys]
                    left_out = self._is_left_out(keys, queries[:, None], texts.first[example, queries, None])
                    rows = torch.where(is_key, layer.rows(queries, keys)[0], 0).to(to_all.dtype)
                    to_all[example, :, shift] += rows.sum(dim=(1, 2))
                    in_share[example, :, shift] += torch.where(left_out, 0, rows).sum(dim=(1, 2))
                    n_queries[example, shift] += is_key.any(dim=1).sum()
        return _Repeated(to_all, in_share, n_queries, n_pairs)


class _Repeated(NamedTuple):
    """Attention to earlier occurrences of tokens, and to the tokens after these, summed over queries.

    Attributes:
        attention: to earlier occurrences, and to the tokens after these.
        attention_in_share: that which is not left out of shares.
        n_queries: number of queries that have such keys.
        n_pairs: number of pairs of positions with equal tokens.
    """

    attention: Float[Tensor, "batch head 2"]
    attention_in_share: Float[Tensor, "batch head 2"]
    n_queries: Int[Tensor, "batch 2"]
    n_pairs: Int[Tensor, "batch"]


@dataclass(frozen=True)
class _RoleTexts:
    """Texts of a batch: the keys at fixed places from each query, and the attention to them if it is uniform.

    Attributes:
        tokens: ids.
        real: false at padding.
        looks_ahead: which examples have weight on later keys, so that queries see all keys.
        fixed: each query's key at each offset from 0, then the first key; -1 for none.
    """

    tokens: Int[Tensor, "batch query"]
    real: Bool[Tensor, "batch query"]
    looks_ahead: Bool[Tensor, "batch"]
    fixed: Int[Tensor, "batch query place"]

    @classmethod
    def from_batch(cls, batch: Batch, max_offset: int, attention: Attention) -> _RoleTexts:
        """Return the texts of a batch, with offsets of up to ``max_offset``."""
        real = batch.token_mask()
        keys = [keys_at_offset(real, offset) for offset in range(max_offset + 1)]
        return cls(batch.tokens, real, attention.looks_ahead(real), torch.stack([*keys, first_role_keys(real)], dim=-1))

    @property
    def position(self) -> Int[Tensor, "query"]:
        """Positions of the queries."""
        return torch.arange(self.real.shape[1], device=self.real.device)

    @property
    def first(self) -> Int[Tensor, "batch query"]:
        """The first key of each query."""
        return self.fixed[..., -1]

    @cached_property
    def n_visible(self) -> Int[Tensor, "batch query"]:
        """Number of keys that each query sees: those up to and including it, or all."""
        n_visible = torch.where(self.looks_ahead[:, None], self.real.sum(dim=1, keepdim=True), self.real.cumsum(dim=1))
        return torch.where(self.real, n_visible, 0)

    @cached_property
    def has_choice(self) -> Bool[Tensor, "batch query"]:
        """Which queries see more than one key. Scores are means over these."""
        return self.n_visible > 1

    @cached_property
    def is_scored(self) -> Bool[Tensor, "batch query place"]:
        """Which keys are scored. The first token is not at an offset: attention to it is a role of its own."""
        is_scored = (self.fixed >= 0) & self.has_choice[..., None]
        is_scored[..., 1:-1] &= self.fixed[..., 1:-1] != self.first[..., None]
        return is_scored

    @property
    def uniform_attention(self) -> Float[Tensor, "batch place"]:
        """Uniform attention to the keys that are scored, summed over queries."""
        return (self.is_scored.to(exact_dtype(self.real.device)) / self.n_visible.clamp(min=1)[..., None]).sum(dim=1)

    @property
    def uniform_distance(self) -> Float[Tensor, "batch"]:
        """Mean distance of the keys that a query sees, summed over the queries that have a choice.

        From a query at position p, n earlier keys are together ``n p`` less the sum of their positions away, and n
        later ones that sum less ``n p``.
        """
        n_earlier = self.real.cumsum(dim=1)  # with the query, whose distance is 0
        sum_earlier = (self.real * self.position).cumsum(dim=1)
        to_earlier = self.position * n_earlier - sum_earlier
        n_later = n_earlier[:, -1:] - n_earlier
        to_later = sum_earlier[:, -1:] - sum_earlier - self.position * n_later
        distances = to_earlier + torch.where(self.looks_ahead[:, None], to_later, 0)
        means = distances.to(exact_dtype(self.real.device)) / self.n_visible.clamp(min=1)
        return torch.where(self.has_choice, means, 0).sum(dim=1)

    def share_of_pairs(self, n_pairs: Int[Tensor, "batch"]) -> Float[Tensor, "batch"]:
        """Return the share of all pairs of positions that so many are."""
        n = self.real.sum(dim=1).to(exact_dtype(self.real.device))
        return n_pairs / (n * (n - 1) / 2).clamp(min=1)


def _positions(batch: Batch, example: int) -> Int[Tensor, "pos"]:
    """Return the positions of an example's tokens without padding."""
    return batch.token_mask()[example].nonzero().flatten()


def _rows(
    attention: Attention, positions: Int[Tensor, "pos"], queries: Int[Tensor, "query"]
) -> Float[Tensor, "head query pos"]:
    """Return the attention of some of an example's tokens to all, without padding."""
    return attention.rows(positions[queries], positions)[0]


def _summed(
    attention: Float[Tensor, "batch head query place"], chosen: Bool[Tensor, "batch query place"]
) -> Float[Tensor, "batch head place"]:
    """Sum attention over the queries that are chosen at a place."""
    return torch.einsum("bhqp,bqp->bhp", attention, chosen.to(attention.dtype))


def _chance(
    at_fixed: Float[Tensor, "batch head query place"],
    earlier: Float[Tensor, "batch head query"],
    repeated: _Repeated,
    texts: _RoleTexts,
) -> Float[Tensor, "batch head _"]:
    """Return attention that ignores the places, but locality's, summed over queries.

    With token ids permuted, any two positions are equally likely to hold equal tokens. The token after an earlier one
    is not the first, and may be the query itself.
    """
    to_earlier = torch.where(texts.real[:, None], earlier, 0).sum(dim=2)
    from_second = to_earlier + at_fixed[..., 0].sum(dim=2) - at_fixed[..., -1].sum(dim=2)
    permuted = torch.stack([to_earlier, from_second], dim=2) * texts.share_of_pairs(repeated.n_pairs)[:, None, None]
    uniform = texts.uniform_attention[:, None].expand(-1, to_earlier.shape[1], -1)
    return torch.cat([uniform, permuted], dim=2)


def _distance(distances: Float[Tensor, "batch head query"], texts: _RoleTexts) -> Float[Tensor, "batch head 2"]:
    """Return the distances of attention and of uniform attention, summed over the queries that have a choice."""
    summed = torch.where(texts.has_choice[:, None], distances, 0).sum(dim=2)
    return torch.stack([summed, texts.uniform_distance[:, None].expand_as(summed)], dim=2)
