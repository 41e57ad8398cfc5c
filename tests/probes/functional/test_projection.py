"""Rows in two dimensions, by either engine."""

from __future__ import annotations

import re
from importlib.machinery import ModuleSpec
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float

from probes import Projection
from probes.functional.projection import open_tsne_2d, project_2d
from tasks import InputError
from tests.probes.functional.test_cka import gaussians


def clusters(n: int, d: int) -> Float[np.ndarray, "row dim"]:
    """Three, of equal size."""
    return (gaussians(n, d)[0] + 10 * gaussians(3, d, seed=1)[0][torch.arange(n) % 3]).float().numpy()


@pytest.mark.parametrize("project", [project_2d, open_tsne_2d])
def test_clusters_stay_together(project: Any) -> None:
    rows = clusters(120, 80)
    numpy_state = np.random.get_state()[1].copy()
    torch_state = torch.get_rng_state()
    xy = project(rows)
    assert xy.shape == (120, 2)
    near = np.linalg.norm(xy[:, None] - xy[None], axis=2) + 1e9 * np.eye(120)
    assert (near.argmin(1) % 3 == np.arange(120) % 3).all()
    assert np.array_equal(project(rows), xy)
    assert np.array_equal(np.random.get_state()[1], numpy_state)
    assert torch.equal(torch.get_rng_state(), torch_state)


def test_scikit_learn_s_is_as_it_was() -> None:
    from sklearn.manifold import TSNE

    rows = clusters(60, 80)
    expected = TSNE(n_components=2, perplexity=59 / 3, init="pca", random_state=3).fit_transform(rows)
    assert np.allclose(project_2d(rows, seed=3), expected, atol=1e-3)


def test_open_tsne_sees_fifty_components(monkeypatch: Any) -> None:
    seen = []

    class Engine:
        def __init__(self, **settings: Any) -> None:
            assert (settings["perplexity"], settings["random_state"], settings["n_jobs"]) == (30, 4, 1)

        def fit(self, rows: Float[np.ndarray, "row dim"]) -> Float[np.ndarray, "row 2"]:
            seen.append(rows.shape)
            return rows[:, :2]

    monkeypatch.setattr("openTSNE.TSNE", Engine)
    for shape in ((100, 80), (100, 50), (100, 20)):
        open_tsne_2d(clusters(*shape), seed=4)
    assert seen == [(100, 50), (100, 50), (100, 20)]


def test_without_open_tsne(monkeypatch: Any) -> None:
    import importlib.util

    find = importlib.util.find_spec

    def missing(name: str, *args: Any) -> ModuleSpec | None:
        return None if name == "openTSNE" else find(name, *args)

    monkeypatch.setattr("probes.functional.projection.find_spec", missing)
    message = (
        "method is 'opentsne', which needs openTSNE; install it with: pip install 'mechclust[tsne]', or choose 'tsne'"
    )
    for call in (lambda: Projection(method="opentsne"), lambda: open_tsne_2d(clusters(60, 3))):
        with pytest.raises(InputError, match=re.escape(message)):
            call()
