"""Which standard role does each head play: previous token, sink, duplicate token, induction and others?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from einops import rearrange
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from probes.engine.hooked_model import HookPoints, Models
from probes.engine.probe import Probe
from probes.engine.result import ProbeResult
from probes.engine.role_readout import TESTED_ROLES as TESTED_ROLES
from probes.engine.role_readout import RoleReadout
from probes.engine.sites import Site, Sites, attention, check_attention_sites, check_site_heads
from probes.engine.state import Sum
from probes.functional.holm import holm_over_heads
from probes.functional.interval_from_sums import interval_from_sums
from probes.functional.permutation_test import permutation_p_value
from tasks import Batch
from tasks.settings import check_count

HEAD_ROLES = ("none", "previous", "first", "itself", "offset", "duplicate", "induction", "local")
LEAST_EXCESS = 0.2  # of attention over chance
LEAST_LOCALITY = 0.5  # attention reaches at most half as far as uniform attention
ALPHA = 0.05

_ROLES = HEAD_ROLES[1:]
_AXES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("role", "best_offset", "distance", "distance_uniform"), ("site", "head")),
    **dict.fromkeys(("score", "chance", "excess", "excess_low", "excess_high", "share"), ("site", "head", "role")),
    **dict.fromkeys(("p_value", "p_holm", "called"), ("site", "head", "role")),
    **dict.fromkeys(("score_by_offset", "chance_by_offset"), ("site", "head", "offset")),
}


class HeadRoles(Probe):
    """Score each head in the standard roles by its attention to their keys, and call those well above chance.

    A role is the keys to which a head attends from a query: the ``previous`` token; the ``first`` token, an attention
    sink; the token ``itself``; the token at a fixed ``offset`` of at least 2; ``duplicate``, earlier occurrences of the
    query's token; ``induction``, the tokens after these; ``local``, whatever is near. Measure natural text, and
    ``tasks.RepeatedTokens`` for induction.

    Measures (axes site, head, role):
        ``score``: mean attention to the role's keys over the queries that have some, averaged over examples. Queries
            that see one key do not count, nor does the first token as a previous token or at an offset. For ``local``:
            1 less ``distance`` as a share of ``distance_uniform``.
        ``chance``: the expected score if attention is uniform over the keys that a query sees, and for ``duplicate``
            and ``induction`` if the token ids of an example are permuted; 0 for ``local``.
        ``excess``, ``excess_low``, ``excess_high``: score less chance, with a 95% interval over examples (Student's t).
        ``share``: attention to the role's keys as a share of all, as in ``transformer_lens.head_detector``. All
            includes what a learned sink beside the keys takes (gpt-oss).
        ``p_value``, ``p_holm``: share of permutations of token ids with a score at least as high, and with Holm's
            correction over all heads and both roles; NaN for roles that do not depend on token ids.
        ``called``: 1 if ``excess_low`` is at least 0.2 (``local``: 0.5) and ``p_holm``, if there is one, at most 0.05.

    Other measures:
        ``role`` (site, head): place in ``HEAD_ROLES`` of the called role with the largest excess, 0 for none.
            ``local`` counts only if no other is called.
        ``best_offset`` (site, head): the offset of at least 2 with the largest excess, whose excess ``offset`` has.
        ``score_by_offset``, ``chance_by_offset`` (site, head, offset): of every offset from 0, the token itself.
        ``distance``, ``distance_uniform`` (site, head): mean distance in tokens from query to key, and under uniform
            attention.

    Memory: ``sites x heads x (4 max_offset + 2 permutations)`` numbers in the state. While a batch is measured, each of
    its examples takes as many again (in short texts, its patterns if they have fewer), and the attention of one layer
    is held (see ``attention``). Time: for each permutation and head, two additions for each pair of positions with
    equal tokens.

    Source: the shares are TransformerLens's; induction heads: Olsson et al., In-context Learning and Induction Heads,
    2022. The rule for calls is ours. It calls roles in untrained models only if their attention is far from uniform.

    Args:
        at: attention, or attention patterns.
        max_offset: the largest fixed offset.
        n_permutations: of token ids; ``None``: as many as Holm's correction over all heads needs, at least 999. 0: no
            p-values, so that ``called`` rests on the interval alone.
        exclude_bos: leave attention to the first token out of ``share``.
        exclude_current_token: leave attention of a query to itself out of ``share``.
        seed: for the permutations.

    Raises:
        InputError: for sites that are not attention, or a ``max_offset`` below 2.

    Example:
        >>> HeadRoles(max_offset=4)
        HeadRoles(at=attention(), max_offset=4, n_permutations=None, exclude_bos=False, \
exclude_current_token=False, seed=0)
    """

    readout: RoleReadout

    sums = Sum()
    distances = Sum()
    permuted = Sum()
    examples_with_role = Sum(torch.int64)
    examples_with_share = Sum(torch.int64)
    count = Sum(torch.int64)

    def __init__(
        self,
        at: Sites = attention(),
        max_offset: int = 8,
        n_permutations: int | None = None,
        exclude_bos: bool = False,
        exclude_current_token: bool = False,
        seed: int = 0,
    ) -> None:
        check_count(max_offset=(max_offset, 2), seed=(seed, 0))
        if n_permutations is not None:
            check_count(n_permutations=(n_permutations, 0))
        self.at = at
        self.max_offset = max_offset
        self.n_permutations = n_permutations
        self.exclude_bos = exclude_bos
        self.exclude_current_token = exclude_current_token
        self.seed = seed
        self.readout = RoleReadout(max_offset, n_permutations, exclude_bos, exclude_current_token, seed)

    def bind(self, model: Models) -> list[Site]:
        """Resolve the sites, and count them: the number of permutations depends on it."""
        sites = super().bind(model)
        self.readout = replace(self.readout, n_sites=len(sites))
        return sites

    def _sites_in(self, model: HookPoints) -> list[Site]:
        return check_attention_sites(super()._sites_in(model))

    # ---- state ----

    def update(self, activations: Mapping[str, Float[Tensor, "batch head column"]], batch: Batch) -> None:
        """Add each head's scores, summed over the examples of the batch."""
        check_site_heads(columns.transpose(0, 1) for columns in activations.values())
        for site, columns in activations.items():
            scores, _ = self.readout.split(columns)
            excess = scores.score - scores.chance
            statistics = torch.stack([scores.score, scores.chance, excess.square(), scores.share], dim=-1)
            self.sums.add(site, statistics.sum(dim=0))
            self.distances.add(site, scores.distance.sum(dim=0))
            self.examples_with_role.add(site, scores.is_defined[:, 0].sum(dim=0).long())
            self.examples_with_share.add(site, scores.has_share[..., 0].sum(dim=0).long())
        self.count.add("examples", len(batch))
        if self.n_permutations != 0:
            for site, by_draw in self.readout.permuted(activations, batch).items():
                self.permuted.add(site, by_draw)

    # ---- result ----

    def compute(self) -> ProbeResult:
        """Return scores, chance and roles over all examples so far."""
        sites = self.site_names
        n = int(self.count["examples"])
        by_place = self._means()
        values = self._by_role(by_place)
        values |= self._p_values(values["score"])
        values["called"] = _called(values)
        values = {"role": _roles(values), **values, **self._distances()}
        n_offsets = self.max_offset + 1
        values["score_by_offset"] = by_place["score"][..., :n_offsets]
        values["chance_by_offset"] = by_place["chance"][..., :n_offsets]
        coords = {
            "head": [str(head) for head in range(len(self.sums[sites[0]]))],
            "role": list(_ROLES),
            "offset": [str(offset) for offset in range(n_offsets)],
        }
        metadata = {"n": n, "categories": {"role": list(HEAD_ROLES)}}
        return self.result(
            values, {name: _AXES[name] for name in values}, coords, metadata=metadata, notes=self._notes(values, n)
        )

    def _means(self) -> dict[str, Float[Tensor, "site head place"]]:
        """Return means over examples by place: each offset, then the other roles."""
        by_site: dict[str, list[Float[Tensor, "head place"]]] = {}
        for site in self.site_names:
            score, chance, squares, share = self.sums[site].cpu().unbind(dim=-1)
            n = self.examples_with_role[site].cpu()
            n_share = self.examples_with_share[site].cpu()[:, None]
            ends = [
                interval_from_sums(score[:, i] - chance[:, i], squares[:, i], n_i) for i, n_i in enumerate(n.tolist())
            ]
            measures = {
                "score": score / n,
                "chance": chance / n,
                "excess": (score - chance) / n,
                "excess_low": torch.stack([low for low, _ in ends], dim=-1),
                "excess_high": torch.stack([high for _, high in ends], dim=-1),
                "share": share / n_share,
            }
            measures["share"][:, -1] = torch.nan  # of locality
            for name, values in measures.items():
                by_site.setdefault(name, []).append(values)
        return {name: torch.stack(tables) for name, tables in by_site.items()}

    def _by_role(
        self, by_place: Mapping[str, Float[Tensor, "site head place"]]
    ) -> dict[str, Shaped[Tensor, "site head ..."]]:
        """Return the measures by role; ``offset`` has the fixed offset with the largest excess."""
        n_offsets = self.max_offset + 1
        by_offset = by_place["excess"][..., 2:n_offsets].nan_to_num(nan=-torch.inf)
        best = 2 + by_offset.argmax(dim=-1, keepdim=True)
        values: dict[str, Shaped[Tensor, "site head ..."]] = {}
        for name, places in by_place.items():
            itself = places[..., :1]
            previous = places[..., 1:2]
            best_offset = places.gather(-1, best)
            first = places[..., n_offsets : n_offsets + 1]
            others = places[..., n_offsets + 1 :]
            values[name] = torch.cat([previous, first, itself, best_offset, others], dim=-1)
        values["best_offset"] = best[..., 0]
        return values

    def _p_values(self, score: Float[Tensor, "site head role"]) -> dict[str, Float[Tensor, "site head role"]]:
        """Return p-values of the roles that depend on token ids, with Holm's correction over heads and roles."""
        p_value = torch.full_like(score, torch.nan)
        p_holm = torch.full_like(score, torch.nan)
        tested = [_ROLES.index(role) for role in TESTED_ROLES]
        if len(self.permuted):
            n = torch.stack([self.examples_with_role[site].cpu() for site in self.site_names])[:, -3]  # of duplicates
            sums = torch.stack([self.permuted[site].cpu() for site in self.site_names])
            null = rearrange(sums / n[:, None, None, None], "site head role draw -> draw site head role")
            p = permutation_p_value(score[..., tested], null)
            by_test = holm_over_heads(rearrange(p, "site head role -> site (head role)"))
            p_value[..., tested] = p
            p_holm[..., tested] = by_test.reshape(p.shape)
        return {"p_value": p_value, "p_holm": p_holm}

    def _distances(self) -> dict[str, Float[Tensor, "site head"]]:
        n = torch.stack([self.examples_with_role[site].cpu() for site in self.site_names])[:, -1]  # of locality
        means = torch.stack([self.distances[site].cpu() for site in self.site_names]) / n[:, None, None]
        return {"distance": means[..., 0], "distance_uniform": means[..., 1]}

    def _notes(self, values: Mapping[str, Shaped[Tensor, "site head ..."]], n: int) -> list[str]:
        """Say why values are NaN, and which tests are missing."""
        notes = ["p_value and p_holm are NaN for roles that do not depend on token ids"]
        undefined = values["score"].isnan().all(dim=(0, 1)).tolist()
        without_key = [role for role, is_undefined in zip(_ROLES, undefined, strict=True) if is_undefined]
        if without_key:
            notes.append(f"no query has a key of {', '.join(without_key)}, so its scores are NaN")
        if n < 2:
            notes.append("there is one example, so no score has an interval and no role is called")
        else:
            lacks_interval = (values["excess_low"].isnan() & ~values["score"].isnan()).any(dim=(0, 1)).tolist()
            alone = [role for role, is_alone in zip(_ROLES, lacks_interval, strict=True) if is_alone]
            if alone:
                notes.append(f"one example only has a score of {', '.join(alone)}, so there is no interval and no call")
        if self.n_permutations == 0:
            notes.append("n_permutations is 0, so there are no p-values, and roles are called by their interval alone")
        elif has_too_few_permutations(self.n_permutations, values["role"].numel()):
            notes.append(
                f"n_permutations is {self.n_permutations}, too few for any p_holm of at most {ALPHA:g}, so "
                f"{' and '.join(TESTED_ROLES)} cannot be called"
            )
        if bool(values["share"][..., 0].isnan().any()):
            notes.append("a share is NaN where all attention is left out")
        return notes


def has_too_few_permutations(n_permutations: int | None, n_heads: int) -> bool:
    """Return whether so few permutations that Holm's correction over the tests of all heads leaves none to call.

    Example:
        >>> has_too_few_permutations(99, 16), has_too_few_permutations(999, 16), has_too_few_permutations(0, 16)
        (True, False, False)
    """
    if not n_permutations:
        return False
    return len(TESTED_ROLES) * n_heads / (n_permutations + 1) > ALPHA


def _called(values: Mapping[str, Shaped[Tensor, "site head role"]]) -> Int[Tensor, "site head role"]:
    """Return 1 where attention to a role's keys is above chance by enough."""
    least = torch.full((len(_ROLES),), LEAST_EXCESS, dtype=torch.float64)
    least[_ROLES.index("local")] = LEAST_LOCALITY
    rejected = values["p_holm"] > ALPHA  # not where there is no test
    return ((values["excess_low"] >= least) & ~rejected).long()


def _roles(values: Mapping[str, Shaped[Tensor, "site head role"]]) -> Int[Tensor, "site head"]:
    """Return the place in ``HEAD_ROLES`` of the called role with the largest excess; locality comes last."""
    excess = torch.where(values["called"] == 1, values["excess"], -torch.inf)
    specific = excess[..., :-1]
    none_or_local = torch.where(values["called"][..., -1] == 1, HEAD_ROLES.index("local"), 0)
    return torch.where(specific.amax(dim=-1) > -torch.inf, 1 + specific.argmax(dim=-1), none_or_local)
