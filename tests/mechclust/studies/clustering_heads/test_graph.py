"""The network as a graph: edges are its weights, in one figure and in a film."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from PIL import Image

from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
from mechclust.studies.clustering_heads.effects import edge_effects, fewest_edges, nodes_on_edges
from mechclust.studies.clustering_heads.graph import SHARE, graph_film, network_graph
from mechclust.training import Member, TrainConfig, train_ensemble
from tasks import InputError, SparseModularAddition

TASK = SparseModularAddition(length=5, n_support=2, n_train=32, n_test=16)


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory):
    config = TrainConfig(steps=6, batch_size=16, lr=0.05, optimizer="adam", schedule="constant", clip=None)
    member = Member(PoolingTransformerConfig(n_ctx=5, d_mlp=4, seed=2), TASK)
    return train_ensemble([member], config, tmp_path_factory.mktemp("g"), backend="vmap")


def by_hand(model):
    """What every edge adds to the node where it ends, sequence by sequence, from the network's equations."""
    (batch,) = TASK.batches("all", 4096)
    w = {name: value.double() for name, value in model.state_dict().items()}
    embedded = w["embed.W_E"][batch.tokens] + w["pos_embed.W_pos"]
    z = embedded / (embedded.square().mean(-1, keepdim=True).sqrt() + 1e-5)
    attention = (z @ w["blocks.0.attn.query"][0] / 2**0.5).softmax(dim=-1)
    into = attention[..., None] * (z @ w["blocks.0.attn.W_V"].T)
    xi = into.sum(dim=1)
    read = xi / (xi.square().mean(-1, keepdim=True).sqrt() + 1e-5)
    neurons = torch.nn.functional.gelu(read @ w["blocks.0.mlp.W_in"] + w["blocks.0.mlp.b_in"])
    output = xi + neurons @ w["blocks.0.mlp.W_out"] + w["blocks.0.mlp.b_out"]
    return [
        into,
        read[:, :, None] * w["blocks.0.mlp.W_in"],
        neurons[:, :, None] * w["blocks.0.mlp.W_out"],
        output[:, :, None] * w["embed.W_E"][:2].T,  # of p = 2, two rows are answers
    ]


@pytest.mark.parametrize("place", [0, 3])
def test_effects_are_spreads_of_what_an_edge_adds(snapshots, place):
    found = edge_effects(snapshots, 0, place)
    added = by_hand(snapshots.model(0, snapshots.steps[place]))
    for layer, values in zip(found, added, strict=True):
        assert np.abs(layer) == pytest.approx(values.std(dim=0).numpy(), rel=1e-4)
    weights = snapshots.model(0, snapshots.steps[place]).state_dict()
    assert (np.sign(found[1]) == np.sign(weights["blocks.0.mlp.W_in"].numpy())).all()
    (batch,) = TASK.batches("all", 4096)
    ones = batch.tokens[:, 2] == 1
    more = added[0][ones, 2].mean(dim=0) - added[0][~ones, 2].mean(dim=0)
    assert (np.sign(found[0][2]) == more.sign().numpy()).all()


def test_fewest_edges_carry_the_share_and_lead_on():
    layers = [np.array([[5.0, 3.0, 9.0], [-4.0, 0.1, 9.0]]), np.array([[2.0, -2.0], [3.0, 0.1], [0.2, 0.3]])]
    first, last = fewest_edges(layers, 0.9)
    assert last.tolist() == [[True, True], [True, False], [False, False]]  # 17 of 17.14
    assert first.tolist() == [[True, True, False], [True, False, False]]  # the third node leads nowhere
    assert fewest_edges(layers, 0.5)[1].sum() == 1  # 9 of 17.14
    assert [nodes.tolist() for nodes in nodes_on_edges([first, last])] == [
        [True, True],
        [True, True, False],
        2 * [True],
    ]


def lines_of(axis):
    return [lines for lines in axis.collections if isinstance(lines, LineCollection)]


def test_the_graph_draws_kept_edges_on_one_scale(snapshots):
    axes = network_graph(snapshots, 0, 0, 3).axes
    effects = [edge_effects(snapshots, 0, place) for place in (0, 3)]
    kept = [fewest_edges(layers, SHARE) for layers in effects]
    for axis, layers, edges, epoch in zip(axes, effects, kept, (0, 3), strict=True):
        count = sum(int(layer.sum()) for layer in edges)
        assert axis.get_title() == f"seed 2: epoch {epoch}, {count} of 30 edges"
        for place, lines in enumerate(lines_of(axis)):
            largest = max(np.abs(of_epoch[place]).max() for of_epoch in effects)
            widths = np.sort(np.asarray(lines.get_linewidths()))
            assert widths == pytest.approx(
                np.sort(np.abs(layers[place] * edges[place]).ravel()) * 4 / largest, abs=1e-9
            )
            reds = [color[0] > color[2] for color in map(to_rgb, lines.get_color())]
            assert sum(reds) == int(((layers[place] * edges[place]) < 0).sum())


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
