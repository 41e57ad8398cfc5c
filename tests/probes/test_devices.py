"""Every probe measures a model on a GPU as it does on the CPU: to the bit on the simulated GPU.

A real GPU rounds otherwise, which k-means and permutations may magnify: there the values have the same shapes, and
the measures that are sums agree.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache

import pytest
import torch

from mechclust.models import ModelConfig, build_model
from probes import LogitLens, list_probes, run
from tests.probes.test_two_devices import MAKE, padded
from tests.probes.two_devices import same, simulated_cuda

PROBES = {**MAKE, "LogitLens": LogitLens}
SUMS = ("CKA", "SVCCA", "RBFCKA", "NDims", "NormJacobian", "AttentionEntropy", "HeadRoles", "LogitLens")


@cache
def results_on(device):
    """Every probe's result, of one run on a device: ``cpu``, ``cuda``, or ``simulated cuda``."""
    with simulated_cuda() if device.startswith("simulated") else nullcontext():
        config = ModelConfig(d_vocab=12, n_ctx=16, n_layers=2, d_model=8, n_heads=2, init_std=0.3)
        model = build_model(config).to(device.split()[-1])
        found = run(model, padded(12).split(7), [make() for make in PROBES.values()])
    return dict(zip(PROBES, found, strict=True))


def test_every_probe_is_here():
    assert {probe.name for probe in list_probes() if probe.package.startswith("mechclust ")} == PROBES.keys()


@pytest.mark.parametrize("device", ["simulated cuda", "cuda"])
@pytest.mark.parametrize("name", PROBES)
def test_values_are_those_of_the_cpu(name, device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    expected = results_on("cpu")[name]
    result = results_on(device)[name]
    assert result.coords == expected.coords
    assert {value.device.type for value in result.values.values()} == {"cpu"}
    if device != "cuda":
        assert same(result.values, expected.values)
    for measure in expected.values if name in SUMS else ():
        torch.testing.assert_close(result[measure], expected[measure], rtol=1e-3, atol=1e-3, equal_nan=True)
