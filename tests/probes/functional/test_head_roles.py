"""The keys of roles: against loops over queries, with padding on either side."""

from __future__ import annotations

import pytest
import torch

from probes.functional import role_keys
from probes.functional.head_roles import attention_to_keys
from tasks import InputError

TOKENS = torch.randint(4, (6, 11), generator=torch.Generator().manual_seed(0))
REAL = torch.ones(6, 11, dtype=torch.bool)
REAL[1, 7:] = False
REAL[2, :3] = False
REAL[3, 1:] = False


def by_hand(example: int, query: int, role: str, offset: int) -> list[int]:
    """A query's keys in descending order."""
    tokens, real = TOKENS[example].tolist(), REAL[example].tolist()
    if not real[query]:
        return []
    first = real.index(True)
    earlier = [key for key in range(first, query) if tokens[key] == tokens[query]]
    keys = {
        "first": [first],
        "itself": [query],
        "previous": [query - 1],
        "offset": [query - offset],
        "duplicate": earlier,
        "induction": [key + 1 for key in earlier],
    }[role]
    return sorted((key for key in keys if key >= first), reverse=True)


@pytest.mark.parametrize("offset", [0, 3, 20])
@pytest.mark.parametrize("role", ["previous", "first", "itself", "offset", "duplicate", "induction"])
def test_keys_of_every_query(role: str, offset: int) -> None:
    keys = role_keys(torch.where(REAL, TOKENS, -1), role, offset)
    for example, of_example in enumerate(keys.tolist()):
        for query, slots in enumerate(of_example):
            expected = by_hand(example, query, role, offset)
            assert slots == expected + [-1] * (len(slots) - len(expected))


def test_attention_to_keys_is_that_of_the_pattern_and_0_without_a_key() -> None:
    pattern = torch.rand(6, 2, 11, 11)
    keys = role_keys(TOKENS, "induction")
    attention = attention_to_keys(pattern, keys)
    for example, head, query, slot in torch.cartesian_prod(*map(torch.arange, attention.shape)).tolist():
        key = int(keys[example, query, slot])
        expected = 0.0 if key < 0 else float(pattern[example, head, query, key])
        assert float(attention[example, head, query, slot]) == expected


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="role is 'next'; expected 'previous', "):
        role_keys(TOKENS, "next")
    with pytest.raises(InputError, match="offset is -1; expected at least 0"):
        role_keys(TOKENS, "offset", -1)
