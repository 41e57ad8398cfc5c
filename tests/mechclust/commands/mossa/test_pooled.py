"""Neighbours by task, against a loop over every pair of rows."""

import numpy as np
import pytest
import torch

from mechclust.commands.mossa.pooled import purity_by_task
from probes import residual, save_rows
from tasks import Batch
from tests.probes.conftest import FakeModel


def test_by_task_against_a_loop(tmp_path):
    draw = torch.Generator().manual_seed(0)
    tables = [torch.randn(30, 5, generator=draw) for _ in range(2)]
    tasks = torch.arange(30) % 3
    clusters = (tasks > 0).long()
    batch = Batch(torch.arange(30)[:, None], labels={"task": tasks, "cluster": clusters})
    store = save_rows(FakeModel(tables).eval(), [batch], tmp_path / "rows", at=residual(), labels=("task", "cluster"))
    purity = purity_by_task(store, {0: "a", 1: "b", 2: "c"}, 4)
    assert purity.coords["task"] == ["a", "b", "c"]
    for site, table in enumerate(tables):
        shares = []
        for i in range(30):
            distances = [(float((table[i] - table[j]).norm()), j) for j in range(30) if j != i]
            near = [j for _, j in sorted(distances)[:4]]
            shares.append(np.mean([bool(clusters[j] == clusters[i]) for j in near]))
        for task in range(3):
            of_task = [share for share, of in zip(shares, tasks.tolist(), strict=True) if of == task]
            assert float(purity["purity"][site, task]) == pytest.approx(np.mean(of_task))
    same = sum(bool(clusters[i] == clusters[j]) for i in range(30) for j in range(30) if i != j)
    assert float(purity["chance"]) == pytest.approx(same / (30 * 29))
