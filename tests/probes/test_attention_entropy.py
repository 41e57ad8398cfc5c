"""Entropy of attention: against SciPy on patterns caught by hand, closed forms, and the clustering head's."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from probes import AttentionEntropy, ClusteringHead, attention_pattern, last_token, mean, residual, run
from probes.extend import check_probe
from probes.functional import attention_entropy
from tasks import Batch, InputError
from tests.probes.recorded import recorded_patterns

SITES = [f"blocks.{layer}.attn.hook_pattern" for layer in range(2)]


def per_example(model: Any, batch: Batch, where: slice) -> tuple[np.ndarray, np.ndarray]:
    """``[example block head]`` mean entropy over the queries of each example, and that of uniform causal attention."""
    found, uniform = [], []
    for tokens, length in zip(batch.tokens, batch.lengths(), strict=True):
        patterns = recorded_patterns(model, Batch(tokens[None, :length])).values()
        found.append([stats.entropy(p[0].double(), axis=-1)[:, where].mean(-1) for p in patterns])
        uniform.append(np.log(np.arange(1, int(length) + 1))[where].mean())
    return np.array(found), np.array(uniform)


@pytest.mark.parametrize(("query", "where"), [(None, slice(None)), (last_token(), slice(-1, None))], ids=str)
def test_it_is_scipys_entropy_without_padding(model: Any, batch: Batch, query: Any, where: slice) -> None:
    result = run(model, batch, AttentionEntropy(query=query))
    entropy, uniform = per_example(model, batch, where)
    n = len(batch)
    np.testing.assert_allclose(result["entropy"], entropy.mean(0), rtol=1e-5)
    np.testing.assert_allclose(result["entropy_uniform"], np.full((2, 2), uniform.mean()), rtol=1e-9)
    np.testing.assert_allclose(result["share"], entropy.mean(0) / uniform.mean(), rtol=1e-5)
    interval = stats.t.interval(0.95, n - 1, entropy.mean(0), stats.sem(entropy, axis=0))
    np.testing.assert_allclose([result["entropy_low"], result["entropy_high"]], interval, rtol=1e-4)
    assert (result.coords["site"], result.coords["head"], result.metadata["n"]) == (SITES, ["0", "1"], n)


def test_a_model_that_looks_ahead_may_see_all_real_keys(tiny_model: Any, batch: Batch, tl_major: int) -> None:
    lengths = batch.lengths()
    if tl_major == 3:  # which refuses padding here
        lengths = lengths.min().expand(len(lengths))
        batch = Batch(batch.tokens[:, : lengths[0]])
    result = run(tiny_model(attention="bidirectional"), batch, AttentionEntropy())
    expected = np.log(lengths.numpy()).mean()
    np.testing.assert_allclose(result["entropy_uniform"], np.full((2, 2), expected), rtol=1e-9)
    assert bool((result["share"] < 1).all())


def test_uniform_attention_has_share_one_and_one_key_none(tiny_model: Any, batch: Batch) -> None:
    model = tiny_model()
    for name, weight in model.named_parameters():
        if re.search(r"\.attn\.(.*\.)?(q|k|qkv|W_Q|W_K|c_attn)\b", name):
            with torch.no_grad():
                weight.zero_()
    result = run(model, batch, AttentionEntropy())
    torch.testing.assert_close(result["share"], torch.ones(2, 2, dtype=torch.float64), rtol=1e-5, atol=0)
    alone = run(model, batch.tokens[:3, :1], AttentionEntropy())
    assert alone["entropy"].tolist() == [[0, 0], [0, 0]]
    assert bool(alone["share"].isnan().all())
    assert alone.notes == ["every query sees one key only, so share is NaN"]
    assert run(model, batch.tokens[:1], AttentionEntropy()).notes == [
        "there is one example, so entropy has no interval"
    ]


def test_it_is_the_clustering_heads_entropy_at_one_query(model: Any, batch: Batch) -> None:
    own, head = run(model, batch, [AttentionEntropy(query=last_token()), ClusteringHead("task")])
    torch.testing.assert_close(own["entropy"], head["entropy"], rtol=1e-12, atol=0)


def test_closed_forms() -> None:
    rows = torch.tensor([[1.0, 0, 0, 0], [0.25, 0.25, 0.25, 0.25], [torch.nan, 0, 0, 1]])
    assert attention_entropy(rows)[:2].tolist() == [0, pytest.approx(np.log(4))]
    assert bool(attention_entropy(rows)[2].isnan())


def test_the_contract(model: Any, batch: Batch) -> None:
    check_probe(AttentionEntropy(), model, batch)
    check_probe(AttentionEntropy(attention_pattern(0), last_token()), model, batch)


def test_what_it_refuses(model: Any, batch: Batch) -> None:
    with pytest.raises(InputError, match=re.escape("query is mean(); expected one position per example")):
        AttentionEntropy(query=mean())
    with pytest.raises(InputError, match=re.escape("'hook_embed' is not an attention pattern (attn.hook_pattern)")):
        run(model, batch, AttentionEntropy(at=residual()))
