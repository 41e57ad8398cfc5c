"""Arrays in, index and chance level out: the same numbers as the probe's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from jaxtyping import Float, Int

from probes import TaskClusterARI, last_token, run
from probes.functional import task_cluster_ari
from tasks import Batch, InputError

N = 60


def states(seed: int = 0) -> tuple[Float[torch.Tensor, "row dim"], Int[torch.Tensor, "row"]]:
    """Rows of three classes that overlap."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(N) % 3
    return torch.randn(N, 5, generator=draw) + 1.5 * torch.eye(3, 5)[labels], labels


@pytest.mark.parametrize("units", [None, torch.arange(N) % 30])
def test_the_numbers_are_those_of_the_probe(fake_model, units) -> None:
    rows, labels = states()
    batch = Batch(torch.arange(N)[:, None], labels={"task": labels, "unit": torch.arange(N) % 30})
    probe = TaskClusterARI(
        at="hook_embed", readout=last_token(), units=None if units is None else "unit", n_init=2, n_permutations=199
    )
    expected = run(fake_model(rows), batch, probe)
    result = task_cluster_ari(rows, labels, units=units, n_init=2, n_permutations=199)
    for name in ("ari", "null_low", "null_high", "p_value"):
        assert getattr(result, name) == expected[name].item(), name


def test_arrays_of_any_kind_are_taken() -> None:
    rows, labels = states()
    expected = task_cluster_ari(rows, labels, n_permutations=99)
    names = [("plural", "rhyme", "colour")[k] for k in labels]
    for x, y in ((rows.numpy(), labels.numpy()), (rows.double(), names), (rows.numpy().tolist(), np.array(names))):
        result = task_cluster_ari(x, y, n_permutations=99)
        assert result[:4] == pytest.approx(expected[:4], abs=0.02)


def test_few_permutations_have_no_p_value() -> None:
    rows = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    assert math.isnan(task_cluster_ari(rows, [0, 0, 1, 1]).p_value)


@pytest.mark.parametrize(
    ("rows", "labels", "settings", "message"),
    [
        (torch.zeros(4, 2), [0, 1, 0], {}, "rows has 4 rows and labels 3; give both for the same rows"),
        (
            torch.zeros(4, 2),
            [0, 1, 0, 1],
            {"units": [1, 2]},
            "rows has 4 rows and units 2; give both for",
        ),
        (torch.zeros(4), [0, 1, 0, 1], {}, r"rows has shape \(4,\); expected real numbers \[row dim\]"),
        (torch.full((4, 2), math.nan), [0, 1, 0, 1], {}, "rows has NaN or infinity in row 0"),
        (torch.zeros(4, 2), [1, 1, 1, 1], {}, "one class only"),
        (torch.zeros(4, 2), [0, 1, 0, 1], {"n_clusters": 5}, "expected 2 to 4"),
        (torch.zeros(0, 2), [], {}, r"rows has shape \(0, 2\)"),
    ],
)
def test_what_cannot_be_measured_is_refused(rows, labels, settings, message) -> None:
    with pytest.raises(InputError, match=message):
        task_cluster_ari(rows, labels, **settings)
