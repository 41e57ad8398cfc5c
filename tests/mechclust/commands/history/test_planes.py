"""Hidden states of all checkpoints in the planes of the last one, against numpy's singular values."""

from __future__ import annotations

import numpy as np
import pytest

from probes import RowStore


def states(store, places, site):
    """``[prompt d]`` hidden states, centred, with a mean square distance of 1 from their middle."""
    found = store.take(store.index[places], [f"rows/{site}"])[f"rows/{site}"].double().numpy()
    away = found - found.mean(axis=0)
    return away / np.sqrt((away**2).sum(axis=1).mean())


def leading(x):
    """``[d 2]``."""
    return np.linalg.svd(x)[2][:2].T


@pytest.fixture(scope="module")
def stored(walked):
    """The planes, and the hidden states that they show, by checkpoint; of layer 2."""
    result, out, _ = walked
    folders = {path.name.rpartition("-")[0]: path for path in (out / "checkpoints").iterdir()}
    stores = [RowStore(folders[name] / "rows") for name in result.names]
    return result.planes, [states(store, list(result.planes.places), "blocks.1.hook_resid_post") for store in stores]


def test_all_checkpoints_are_in_the_last_ones_plane(stored):
    planes, found = stored
    directions = leading(found[-1])
    signs = np.sign((planes.xy[-1, 0] * (found[-1] @ directions)).sum(axis=0))  # a direction has no sign
    assert planes.xy.shape == (5, 1, 12, 2)
    for i, x in enumerate(found):
        assert planes.xy[i, 0] == pytest.approx(x @ directions * signs, abs=1e-6)
        assert planes.variance[i, 0] == pytest.approx(((x @ directions) ** 2).sum(axis=1).mean(), abs=1e-6)


def test_planes_of_their_own_would_be_others(stored):
    planes, found = stored
    for i, x in enumerate(found[:-1]):
        own = ((x @ leading(x)) ** 2).sum(axis=1).mean()
        assert own > planes.variance[i, 0] + 0.01  # the share of the variance that its own plane would hold
    spectrum = np.linalg.svd(found[-1])[1]
    assert planes.variance[-1, 0] == pytest.approx((spectrum[:2] ** 2).sum() / (spectrum**2).sum(), abs=1e-6)


def test_the_prompts_shown_are_those_of_the_file(stored, quick):
    planes, _ = stored
    given = quick.read_prompts()
    assert len(set(planes.places)) == quick.map_prompts == 12
    assert list(planes.layers) == [2]
    assert list(planes.texts) == [given.prompts[i] for i in planes.places]
    assert planes.labels["task"] == [given.labels["task"][i] for i in planes.places]
