"""The keys of roles: against loops over queries, with padding on either side."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from jaxtyping import Int

from probes.engine.attention import EagerAttention
from probes.functional.head_roles import first_role_keys, keys_at_offset, permuted_role_attention

TOKENS = torch.randint(4, (6, 11), generator=torch.Generator().manual_seed(0))
REAL = torch.ones(6, 11, dtype=torch.bool)
REAL[1, 7:] = False
REAL[2, :3] = False
REAL[3, 1:] = False


def by_hand(tokens: list[int], real: list[bool], query: int, role: str, offset: int = 2) -> list[int]:
    """A query's keys in descending order."""
    if not real[query]:
        return []
    first = real.index(True)
    earlier = [key for key in range(first, query) if tokens[key] == tokens[query]]
    keys = {
        "first": [first],
        "offset": [query - offset],
        "duplicate": earlier,
        "induction": [key + 1 for key in earlier],
    }[role]
    return sorted((key for key in keys if key >= first), reverse=True)


def role_keys(tokens: Int[torch.Tensor, "batch pos"], role: str) -> Int[torch.Tensor, "batch pos slot"]:
    """The keys of every query, without padding in the tokens; -1 in slots of queries with fewer keys."""
    n = tokens.shape[1]
    keys = [[by_hand(row, [True] * n, query, role) for query in range(n)] for row in tokens.tolist()]
    return torch.tensor([[slots + [-1] * (n - len(slots)) for slots in of_example] for of_example in keys])


@pytest.mark.parametrize(("role", "offset"), [("first", 0), *(("offset", offset) for offset in (0, 1, 3, 20))])
def test_keys_of_every_query(role: str, offset: int) -> None:
    keys = first_role_keys(REAL) if role == "first" else keys_at_offset(REAL, offset)
    for example, of_example in enumerate(keys.tolist()):
        for query, key in enumerate(of_example):
            expected = by_hand(TOKENS[example].tolist(), REAL[example].tolist(), query, role, offset)
            assert [key] == (expected or [-1])


def test_attention_to_keys_is_that_of_the_pattern_and_0_without_a_key() -> None:
    pattern = torch.rand(6, 2, 11, 11)
    keys = role_keys(TOKENS, "induction")
    attention = EagerAttention(pattern).at(keys)
    for example, head, query, slot in torch.cartesian_prod(*map(torch.arange, attention.shape)).tolist():
        key = int(keys[example, query, slot])
        expected = 0.0 if key < 0 else float(pattern[example, head, query, key])
        assert float(attention[example, head, query, slot]) == expected


@pytest.mark.parametrize("queries_at_once", [1, 4, 11])
def test_permuted_sums_are_those_of_each_permutation(queries_at_once: int) -> None:
    pattern = torch.rand(2, 11, 11).tril()
    draw = np.random.default_rng([3, 5])
    expected = []
    for order in draw.permuted(np.broadcast_to(np.arange(11), (7, 11)), axis=1):
        tokens = torch.empty(11, dtype=torch.int64)
        tokens[torch.from_numpy(order)] = TOKENS[0]
        both = [role_keys(tokens[None], role) for role in ("duplicate", "induction")]
        sums = [EagerAttention(pattern[None]).at(keys)[0].double().sum(dim=(1, 2)) for keys in both]
        expected.append(torch.stack(sums, dim=1) / (11 - len(TOKENS[0].unique())))
    rows_of = {"layer": lambda queries: pattern[:, queries]}
    sums = permuted_role_attention(rows_of, TOKENS[0], 7, [3, 5], queries_at_once)
    torch.testing.assert_close(sums["layer"], torch.stack(expected, dim=2), rtol=0, atol=1e-12)


def test_permuted_sums_are_0_if_no_token_occurs_twice() -> None:
    sums = permuted_role_attention(
        {"layer": lambda queries: torch.ones(2, len(queries), 4)}, torch.arange(4), 3, [0], 2
    )
    assert torch.equal(sums["layer"], torch.zeros(2, 2, 3, dtype=torch.float64))
