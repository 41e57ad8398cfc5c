"""The detector of clustering heads against bare forward passes."""

from __future__ import annotations

import torch

from tests.benchmarks.ratio import alternate


def detector() -> float:
    """The detector on all 4,096 sequences over the bare forward pass."""
    from mechclust import build_model
    from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
    from probes import ClusteringHead, run
    from tasks import SparseModularAddition

    task = SparseModularAddition()
    model, (batch,) = build_model(PoolingTransformerConfig()), list(task.batches("all", 4096))
    probe = ClusteringHead(("multiset", "sum"), support=task.positions, modulus=2)

    def bare() -> None:
        with torch.inference_mode():
            model(batch.tokens)

    return alternate(lambda: run(model, batch, probe), bare, rounds=10)
