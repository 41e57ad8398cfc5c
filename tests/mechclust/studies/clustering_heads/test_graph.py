"""The network as a graph: edges are its weights, in one figure and in a film."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from PIL import Image

from mechclust.studies.clustering_heads.attention import mean_attention
from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
from mechclust.studies.clustering_heads.graph import graph_film, network_graph
from mechclust.training import Member, TrainConfig, train_ensemble
from tasks import InputError, SparseModularAddition

TASK = SparseModularAddition(length=5, n_support=2, n_train=32, n_test=16)


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory):
    config = TrainConfig(steps=6, batch_size=16, lr=0.05, optimizer="adam", schedule="constant", clip=None)
    member = Member(PoolingTransformerConfig(n_ctx=5, d_mlp=4, seed=2), TASK)
    return train_ensemble([member], config, tmp_path_factory.mktemp("g"), backend="vmap")


def test_edges_are_the_weights(snapshots):
    model = snapshots.model(0, 4)
    (axis,) = network_graph(snapshots, 0, 2).axes
    attention, w_in, w_out, embedding = (x for x in axis.collections if isinstance(x, LineCollection))
    for lines, name in ((w_in, "blocks.0.mlp.W_in"), (w_out, "blocks.0.mlp.W_out"), (embedding, "embed.W_E")):
        values = np.sort(np.abs(model.state_dict()[name].numpy()).ravel())
        widths = np.sort(np.asarray(lines.get_linewidths()))
        assert widths / widths.max() == pytest.approx(values / values.max(), abs=1e-5)
        reds = sum(color[0] > color[2] for color in map(to_rgb, lines.get_color()))
        assert reds == int((model.state_dict()[name] < 0).sum())
    assert len(attention.get_linewidths()) == 5 * 2


def test_epochs_share_one_scale(snapshots):
    axes = network_graph(snapshots, 0, 0, 2, 3).axes
    assert [axis.get_title() for axis in axes] == ["seed 2: epoch 0", "seed 2: epoch 2", "seed 2: epoch 3", ""]
    weights = np.abs([snapshots.model(0, step).state_dict()["embed.W_E"].numpy() for step in (0, 4, 6)])
    for axis, values in zip(axes, weights, strict=False):
        lines = [x for x in axis.collections if isinstance(x, LineCollection)][-1]
        assert max(lines.get_linewidths()) == pytest.approx(3.5 * values.max() / weights.max(), rel=1e-5)


def test_attention_is_that_of_the_model(snapshots):
    found = mean_attention(snapshots, 0, [0, 3])
    (batch,) = TASK.batches("all", 4096)
    for place, step in enumerate((0, 6)):
        seen = []
        model = snapshots.model(0, step)
        with model.hooks(
            fwd_hooks=[("blocks.0.attn.hook_pattern", lambda x, hook, seen=seen: seen.append(x.detach()))]
        ):
            model(batch.tokens)
        assert found[place].tolist() == pytest.approx(seen[0].mean(dim=(0, 1, 2)).tolist(), abs=1e-6)


def test_a_film_has_a_frame_per_epoch(snapshots, tmp_path):
    with Image.open(graph_film(snapshots, 0, tmp_path / "film.gif", dpi=30)) as film:
        assert film.n_frames == 4


def test_what_is_refused(snapshots, tmp_path):
    with pytest.raises(InputError, match="has no snapshot of epoch 9; expected epochs it has"):
        network_graph(snapshots, 0, 9)
    with pytest.raises(InputError, match="no epochs are given; expected at least one"):
        network_graph(snapshots, 0)
    with pytest.raises(InputError, match="epochs has 1; a film needs at least 2, or network_graph shows one"):
        graph_film(snapshots, 0, tmp_path / "film.gif", epochs=[0])
    with pytest.raises(InputError, match=r"a film cannot be written to '.*film.avi'; give a name that ends in"):
        graph_film(snapshots, 0, tmp_path / "film.avi")
