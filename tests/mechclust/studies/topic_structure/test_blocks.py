"""Block means of a matrix over words, against the double loop."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mechclust.studies.topic_structure.blocks import topic_blocks
from tasks import InputError

SINGLE = st.lists(st.integers(-1, 3), min_size=2, max_size=9).filter(lambda t: len({x for x in t if x >= 0}) >= 2)


@settings(max_examples=30, deadline=None)
@given(SINGLE, st.integers(0, 10**6))
def test_blocks_equal_the_double_loop(topics: list, seed: int) -> None:
    matrix = torch.randn(len(topics), len(topics), generator=torch.Generator().manual_seed(seed))
    found, kinds = topic_blocks(matrix, torch.tensor(topics)), sorted({t for t in topics if t >= 0})
    kept: dict[tuple, list[float]] = {}
    for i, one in enumerate(topics):
        for j, other in enumerate(topics):
            if one < 0 or other < 0:
                continue
            for key in [
                (one, other),
                ("same" if one == other else "different",),
                *[("off",)] * (one == other and i != j),
            ]:
                kept.setdefault(key, []).append(float(matrix[i, j]))
    means = {key: np.mean(values) for key, values in kept.items()}
    np.testing.assert_allclose(found.means, [[means[a, b] for b in kinds] for a in kinds], rtol=1e-9, atol=1e-12)
    assert found.same == pytest.approx(means["same",], abs=1e-12)
    assert found.different == pytest.approx(means["different",], abs=1e-12)
    assert found.same_off_diagonal == pytest.approx(means.get(("off",), np.nan), abs=1e-12, nan_ok=True)
    every = [float(matrix[i, j]) for i, a in enumerate(topics) for j, b in enumerate(topics) if a >= 0 <= b and i != j]
    effect = (means.get(("off",), np.nan) - means["different",]) / np.std(every)
    assert found.effect == pytest.approx(effect, abs=1e-9, nan_ok=True)
    assert found.gap == pytest.approx(means["same",] - means["different",], abs=1e-12)
    least = min(means[a, a] for a in kinds) - max(means[a, b] for a in kinds for b in kinds if a != b)
    assert found.separation == pytest.approx(least, abs=1e-12)


def test_equal_entries_have_no_effect() -> None:
    assert math.isnan(topic_blocks(torch.eye(4), torch.tensor([0, 0, 1, 1])).effect)


def test_a_matrix_of_another_size_is_refused() -> None:
    with pytest.raises(InputError, match=re.escape("the matrix has shape (3, 3); expected 2 words both ways")):
        topic_blocks(torch.eye(3), torch.tensor([0, 1]))
