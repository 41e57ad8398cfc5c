from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist, squareform

from probes.functional import neighbour_purity, neighbour_purity_chance
from tasks import InputError
from tests.probes.functional.test_cka import gaussians


def test_neighbour_purity_equals_a_loop() -> None:
    (x,) = gaussians(40, 3)
    labels = torch.arange(40) % 3
    x[:, 0] += 2 * labels
    distance = torch.from_numpy(squareform(pdist(x.numpy()))).fill_diagonal_(torch.inf)
    expected = (labels[distance.argsort(dim=1)[:, :5]] == labels[:, None]).double().mean()
    assert neighbour_purity(x + 1e5, labels, k=5) == pytest.approx(float(expected))
    shuffled = [neighbour_purity(x, labels[torch.randperm(40)], k=5) for _ in range(60)]
    assert np.mean(shuffled) == pytest.approx(neighbour_purity_chance(labels), abs=0.03)
    assert math.isnan(neighbour_purity_chance([3]))


def test_what_is_refused() -> None:
    (x,) = gaussians(6, 2)
    for call, message in (
        (lambda: neighbour_purity(x, torch.arange(5)), "x has 6 rows for 5 labels; give one label a row"),
        (lambda: neighbour_purity(x, torch.arange(6), k=6), "k is 6 for 6 examples; expected 1 to 5"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            call()
