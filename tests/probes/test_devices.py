"""Every probe measures a model on a GPU as it does on the CPU: to the bit on the simulated GPU.

A real GPU rounds otherwise, which k-means and permutations may magnify: there the values have the same shapes, and
the measures that are sums agree.
"""

from __future__ import annotations

import pytest
import torch

from mechclust.models import ModelConfig, build_model
from probes import LogitLens, list_probes, run
from tests.probes.test_two_devices import MAKE, padded
from tests.probes.two_devices import same

PROBES = {**MAKE, "LogitLens": LogitLens}
SUMS = ("CKA", "SVCCA", "RBFCKA", "NDims", "NormJacobian", "AttentionEntropy", "HeadRoles", "LogitLens")


def model_on(device):
    return build_model(ModelConfig(d_vocab=12, n_ctx=16, n_layers=2, d_model=8, n_heads=2, init_std=0.3)).to(device)


def test_every_probe_is_here():
    assert {probe.name for probe in list_probes() if probe.package.startswith("mechclust ")} == PROBES.keys()


@pytest.mark.parametrize("device", ["simulated cuda", "cuda"], indirect=True)
@pytest.mark.parametrize("name", PROBES)
def test_values_are_those_of_the_cpu(name, device, request):
    expected = run(model_on("cpu"), padded().split(7), PROBES[name]())
    result = run(model_on(device), padded().split(7), PROBES[name]())
    assert result.coords == expected.coords
    assert {value.device.type for value in result.values.values()} == {"cpu"}
    if request.node.callspec.params["device"] != "cuda":
        assert same(result.values, expected.values)
    for measure in expected.values if name in SUMS else ():
        torch.testing.assert_close(result[measure], expected[measure], rtol=1e-3, atol=1e-3, equal_nan=True)
