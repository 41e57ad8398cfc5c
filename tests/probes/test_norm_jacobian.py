"""How sharply the norm behind a site acts: against norms taken by hand, and the contract."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch

from probes import NormJacobian, all_tokens, mean, run, token_at
from probes.extend import check_probe
from tasks import Batch, InputError, SparseModularAddition
from tests.probes.recorded import recorded

MID = "blocks.0.hook_resid_mid"


@pytest.fixture(scope="module")
def addition() -> SparseModularAddition:
    return SparseModularAddition(length=6, n_support=3, n_train=32, n_test=16)


@pytest.fixture
def pooling() -> Any:
    from mechclust.models import build_model
    from mechclust.studies.clustering_heads.config import PoolingTransformerConfig

    return build_model(PoolingTransformerConfig(n_ctx=6, seed=2))


def test_the_pooled_position_is_measured(addition: Any, pooling: Any) -> None:
    result = run(pooling, addition.batches("all", 10), NormJacobian())
    # Batches of the same size, because the last bits of a forward pass depend on it.
    states = torch.cat([recorded(pooling, batch, [MID])[MID][:, 0] for batch in addition.batches("all", 10)])
    norms = states.double().norm(dim=-1).numpy()
    assert result["smallest_norm"].tolist() == [norms.min()]
    assert result["median_norm"].tolist() == [np.median(norms)]
    assert result["jacobian"].tolist() == pytest.approx([math.sqrt(2) / norms.min()], rel=1e-12)
    assert result.axes == dict.fromkeys(("smallest_norm", "median_norm", "jacobian"), ("site",))
    assert (result.coords, result.layers) == ({"site": [MID]}, {MID: 1})
    assert result.metadata["n"] == 64


def test_the_last_token_or_the_one_asked_for_is_measured(model: Any, batch: Batch) -> None:
    sites = [MID, "blocks.1.hook_resid_mid"]
    at = {site: x.double().norm(dim=-1) for site, x in recorded(model, batch, sites).items()}
    rows = torch.arange(len(batch))
    for readout, positions in ((None, batch.last_positions()), (token_at("input"), batch.position("input"))):
        probe = NormJacobian(sites) if readout is None else NormJacobian(sites, readout)
        result = run(model, batch, probe)
        expected = torch.stack([at[site][rows, positions].min() for site in sites])
        torch.testing.assert_close(result["smallest_norm"], expected, rtol=1e-5, atol=0)
        torch.testing.assert_close(result["jacobian"], math.sqrt(8) / expected, rtol=1e-5, atol=0)


def test_heads_are_measured_together(addition: Any) -> None:
    from mechclust.models import build_model
    from mechclust.studies.clustering_heads.config import PoolingTransformerConfig

    model = build_model(PoolingTransformerConfig(n_ctx=6, d_model=4, n_heads=2))
    result = run(model, addition.batches("all"), NormJacobian([MID, "blocks.0.attn.hook_z"]))
    assert result["jacobian"][0] == result["jacobian"][1]


def test_zero_has_an_infinite_jacobian_and_a_note(addition: Any, pooling: Any) -> None:
    with torch.no_grad():
        pooling.blocks[0].attn.W_V.zero_()
    result = run(pooling, addition.batches("all"), NormJacobian([MID, "blocks.0.hook_resid_post"]))
    assert result["smallest_norm"][0] == 0
    assert result["jacobian"].isinf().tolist() == [True, False]
    assert result.notes == [f"an activation at {MID} is 0: the norm has no derivative there"]


@pytest.mark.parametrize("readout", [None, mean()], ids=str)
def test_the_contract_on_the_pooling_transformer(readout: Any, addition: Any, pooling: Any) -> None:
    """The mean over positions needs no mask here, and so takes the pooled position too."""
    (batch,) = addition.batches("test", 16)
    check_probe(NormJacobian() if readout is None else NormJacobian(readout=readout), pooling, batch)


def test_the_contract_on_a_transformer(model: Any, batch: Batch) -> None:
    check_probe(NormJacobian([MID, "blocks.1.hook_resid_mid"]), model, batch)


def test_what_the_norm_jacobian_refuses(addition: Any, pooling: Any) -> None:
    with pytest.raises(InputError, match=re.escape("readout all_tokens() keeps every position; choose last_token()")):
        NormJacobian(readout=all_tokens())
    with pytest.raises(InputError, match=re.escape("no hook point 'blocks.0.hook_resid_midd' in this")):
        run(pooling, addition.batches("test"), NormJacobian("blocks.0.hook_resid_midd"))
