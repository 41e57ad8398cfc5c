"""Every draw of a probe depends on its seed: k-means, relabellings, shuffles and halves."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from probes import (
    CKA,
    DistanceMatchedTopicAttention,
    HeadRoles,
    LinearDecodability,
    NeighbourPurity,
    Probe,
    TaskClusterARI,
    TopicAttention,
    TopicEmbedding,
    last_token,
    residual,
    run,
)
from tasks import Batch

TOPICS = torch.arange(21) % 3
TOKENS = torch.randint(9, (40, 8), generator=torch.Generator().manual_seed(0))
BATCH = Batch(TOKENS, labels={"task": TOKENS[:, -1] % 4})


@pytest.mark.parametrize(
    ("probe", "settings", "drawn"),
    [
        (CKA, {"n_resamples": 5}, "debiased_cka_low"),
        (CKA, {"n_permutations": 5}, "cka_null_high"),
        (DistanceMatchedTopicAttention, {"topics": TOPICS}, "overall_ratio_resampled"),
        (HeadRoles, {"n_permutations": 9}, "p_value"),
        (LinearDecodability, {"n_shuffles": 0}, "accuracy"),
        (LinearDecodability, {"n_shuffles": 9}, "null"),
        (NeighbourPurity, {"n_permutations": 9}, "null_high"),
        (TaskClusterARI, {"n_init": 1, "n_permutations": 0, "keep_clusters": True}, "cluster"),
        (TaskClusterARI, {"n_clusters": 40, "n_permutations": 9}, "null_mean"),
        (TaskClusterARI, {"n_clusters": 40, "n_resamples": 5, "keep_halves": True}, "ari_halves"),
        (TopicAttention, {"topics": TOPICS, "n_permutations": 9}, "ratio_null_low"),
        (TopicAttention, {"topics": TOPICS, "n_permutations": 0, "n_resamples": 9}, "ratio_low"),
        (TopicEmbedding, {"topics": TOPICS, "n_permutations": 9}, "ratio_null_low"),
    ],
)
def test_another_seed_draws_otherwise(probe: type[Probe], settings: dict[str, Any], drawn: str, model: Any) -> None:
    if probe is TaskClusterARI:
        settings = {
            "readout": last_token(),
            "at": "hook_embed" if "n_clusters" in settings else residual(1),
            **settings,
        }
    first, again, other = (run(model, BATCH, probe(**settings, seed=seed))[drawn].nan_to_num() for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
