from __future__ import annotations

import re

import pytest
import torch

from probes.functional import svcca
from tasks import InputError
from tests.probes.functional.test_cka import gaussians, related


def test_svcca() -> None:
    x, y = gaussians(2000, 4, 3)
    mixed = torch.cat([x[:, :2] @ gaussians(2, 2)[0], y[:, :1]], dim=1)  # two directions shared, one not
    assert float(svcca(x, mixed, variance=1)) == pytest.approx(2 / 3, abs=0.03)
    assert float(svcca(x, x @ gaussians(4, 4)[0], variance=1)) == pytest.approx(1)
    padded = torch.cat([1e-20 * x, torch.zeros(2000, 2)], dim=1)  # directions without variance do not count
    assert svcca(padded, x, variance=1).note == "4 and 4 directions"
    assert svcca(torch.ones(5, 2), x[:5]).note == "x: all examples are the same"
    assert float(svcca(*gaussians(30, 20, 20))) > 0.7  # what its docstring warns of


def test_what_is_refused() -> None:
    x, y = related(6, 2, 3)
    with pytest.raises(InputError, match=re.escape("variance is 1.5; expected a share above 0 and at most 1")):
        svcca(x, y, variance=1.5)
