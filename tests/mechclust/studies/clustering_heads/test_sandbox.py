"""The sandbox's data, figures, films and page, from a network trained for a few steps."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import shutil
import sys
from html import unescape
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from mechclust.models import ModelConfig
from mechclust.sandbox import Curves, sandbox_figure, sandbox_film, sandbox_page
from mechclust.sandbox import figure as figure_module
from mechclust.sandbox.frames import choose_frames
from mechclust.sandbox.page import _packed, render_sandbox_page
from mechclust.sandbox.panels import sandbox_panel_grid
from mechclust.studies.clustering_heads import loss_spikes
from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
from mechclust.studies.clustering_heads.results import TrainedNetwork
from mechclust.studies.clustering_heads.sandbox import sandbox_run
from mechclust.studies.clustering_heads.sandbox.panels import PANELS
from mechclust.studies.clustering_heads.sandbox.sequences import probe_sequences
from mechclust.training import Member, TrainConfig, train_ensemble
from tasks import InputError, InstructionFollowing, SparseModularAddition

HOSTILE = "</script><img src=x onerror=window.__pwned=1>$x"
PLAIN = {"schedule": "constant", "optimizer": "adam", "weight_decay": 0.0, "clip": None}


def trained(folder, task=None, **shape):
    task = task or SparseModularAddition(n_train=64, n_test=96, support=(1, 3, 4), length=6)
    config = PoolingTransformerConfig(n_ctx=task.length, d_vocab=task.n_embeddings, **shape)
    settings = TrainConfig(steps=24, batch_size=32, lr=0.05, **PLAIN)
    members = [Member(dataclasses.replace(config, seed=seed), task) for seed in (0, 1)]
    return train_ensemble(members, settings, folder, backend="loop")


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("run"))


def curves(n, **more):
    falling = np.geomspace(0.7, 1e-3, n)
    return Curves(
        epochs=range(n),
        panels={
            "loss": {"train": falling, "test": falling},
            "accuracy": {"train": falling, "test": falling},
            "gradient_norms": {"embeddings": falling, "attention": falling * 2, HOSTILE: falling * 3},
            "within_ratio": {"within / total": falling},
            "spikes": {"min |ξ|": np.where(np.arange(n) == 3, np.nan, falling), "margin": falling / 2},
        },
        **{"spikes": [(4, HOSTILE)], **more},
    )


@pytest.fixture(scope="module")
def run(snapshots):
    return sandbox_run(snapshots, 1, max_frames=9, curves=curves(13), title=HOSTILE)


# ---- data ----


def test_the_values_are_those_at_the_hooks(run, snapshots):
    tokens = torch.from_numpy(run.sequences.tokens)
    names = {
        "attention": "blocks.0.attn.hook_pattern",
        "xi": "blocks.0.hook_resid_mid",
        "xi_normalized": "blocks.0.ln2.hook_normalized",
        "mlp_out": "blocks.0.hook_mlp_out",
        "output": "blocks.0.hook_resid_post",
    }
    pairs = {
        "sums": "blocks.0.hook_resid_pre",
        "normalized": "blocks.0.ln1.hook_normalized",
        "values": "blocks.0.attn.hook_v",
    }
    for frame in (0, 4, len(run.epochs) - 1):
        model = snapshots.model(1, 2 * run.epochs[frame])  # two steps an epoch
        kept = {}

        def keeper(name, kept=kept):
            return lambda x, hook: kept.update({name: x})

        hooks = [(name, keeper(name)) for name in (*names.values(), *pairs.values())]
        with torch.no_grad(), model.hooks(fwd_hooks=hooks):
            logits = model(tokens)
        for name, site in names.items():
            np.testing.assert_allclose(run.values[name][frame], kept[site].reshape(len(tokens), -1), atol=1e-6)
        for name, site in pairs.items():
            place = tokens * tokens.shape[1] + torch.arange(tokens.shape[1])
            found = torch.from_numpy(run.values[name][frame])[place]
            torch.testing.assert_close(found, kept[site].reshape(found.shape), atol=1e-6, rtol=1e-5)
        np.testing.assert_allclose(run.values["probabilities"][frame], logits.softmax(-1), atol=1e-6)
        np.testing.assert_array_equal(run.values["query"][frame], model.blocks[0].attn.query.detach()[0])
        np.testing.assert_array_equal(run.values["receptors"][frame], model.blocks[0].mlp.W_in.detach().T)
        test = next(snapshots.tasks[1].batches("test"))
        with torch.no_grad(), model.hooks(fwd_hooks=hooks):
            model(test.tokens)
        np.testing.assert_allclose(run.values["cloud"][frame], kept["blocks.0.hook_resid_mid"][:, 0], atol=1e-6)


def test_the_class_map_and_the_level_lines_are_what_the_network_answers(run, snapshots):
    reach, frame = run.map_half_height, 6
    height, width = run.values["class_map"].shape[1:]
    model = snapshots.model(1, 2 * run.epochs[frame])
    for row, column in ((0, 0), (height // 2, 3), (7, width - 1)):
        at = torch.tensor(
            [((column + 0.5) / width * 2 - 1) * reach * width / height, ((row + 0.5) / height * 2 - 1) * reach]
        )
        hook = ("blocks.0.hook_resid_mid", lambda x, hook, at=at: at.float().expand_as(x))
        with torch.no_grad(), model.hooks(fwd_hooks=[hook]):
            p = model(torch.zeros(1, 6, dtype=torch.int64))[0].softmax(-1)
        assert run.values["class_map"][frame, row, column] == p.argmax()
        assert run.values["confidence"][frame, row, column] == pytest.approx(p.max().item(), abs=1e-5)
        guess = 1 / len(run.answers)
        sure = (p.max().item() - guess) / (1 - guess)
        assert run.sureness[frame, row, column] == pytest.approx(sure, abs=1e-4)
    assert run.level_lines[frame]
    for answer, level, line in run.level_lines[frame]:
        logits = torch.from_numpy(line).float() @ model.embed.W_E.detach().T
        assert logits.softmax(-1)[:, answer].numpy() == pytest.approx(level, abs=0.03)


def test_loss_and_accuracy_are_measured_where_no_curves_are_given(snapshots):
    run = sandbox_run(snapshots, 0, max_frames=5)
    assert run.epochs[0] == 0
    assert run.epochs[-1] == 12
    assert list(run.curves.epochs) == run.epochs
    assert run.curves.panels.keys() == {"loss", "accuracy"}
    assert run.title == "seed 0"
    model, batch = snapshots.model(0), next(snapshots.tasks[0].batches("test"))
    with torch.no_grad():
        logits = model(batch.tokens)
    assert run.curves.panels["loss"]["test"][-1] == pytest.approx(
        snapshots.tasks[0].loss(logits, batch).item(), rel=1e-5
    )
    accuracy = snapshots.tasks[0].accuracy(logits, batch).mean().item()
    assert run.curves.panels["accuracy"]["test"][-1] == pytest.approx(accuracy)


@pytest.mark.parametrize(
    "task", [SparseModularAddition(), SparseModularAddition(p=3, n_embeddings=3, support=(0, 5, 7))]
)
def test_probe_sequences_have_every_sum_and_several_fillings(task):
    found = probe_sequences(task)
    support, k = list(task.positions), len(task.positions)
    inside = found.tokens[:, support]
    assert sorted(set(inside.sum(axis=1).tolist())) == list(range(k * (task.p - 1) + 1))
    np.testing.assert_array_equal(found.answers, inside.sum(axis=1) % task.p)
    assert len(np.unique(found.tokens, axis=0)) == len(found.tokens)
    for prefix in np.unique(inside, axis=0):
        assert (inside == prefix).all(axis=1).sum() == 4
    for i, j in ((0, 1), (5, 20)):
        assert (found.clusters[i] == found.clusters[j]) == (sorted(inside[i]) == sorted(inside[j]))
    assert [found.cluster_answers[c] for c in found.clusters] == found.answers.tolist()


def test_fillings_that_coincide_are_shown_once():
    """With one position off the support, four fillings are two: 0 and p - 1."""
    task = SparseModularAddition(length=4, n_support=3, n_train=8, n_test=8)
    found = probe_sequences(task)
    (spurious,) = set(range(4)) - set(task.positions)
    prefixes = [tuple(row) for row in found.tokens[:, list(task.positions)].tolist()]
    assert len(prefixes) == 2 * len(set(prefixes))
    assert found.tokens[:, spurious].tolist() == [0, 1] * len(set(prefixes))
    assert list(dict.fromkeys(prefixes)) == prefixes[::2]


def test_large_moduli_are_thinned_out():
    assert len(probe_sequences(SparseModularAddition(p=11, n_embeddings=11)).tokens) < 100


# ---- frames ----


def test_frames_are_those_around_spikes_and_others_evenly_spaced():
    kept = choose_frames(range(1000), 100, around=[700])
    assert len(kept) == 100
    assert kept == sorted(set(kept))
    assert {0, 999, *range(698, 706)} <= set(kept)
    assert np.diff(kept).max() < 20
    for n in (2, 3, 10, 49):
        kept = choose_frames(range(50), n)
        assert len(kept) == n
        assert (kept[0], kept[-1]) == (0, 49)
    assert choose_frames(range(50), 50) == list(range(50))
    assert len(choose_frames(range(50), 6, around=range(50))) == 6


def test_frames_that_cannot_be_chosen():
    with pytest.raises(
        InputError, match=r"^there is 1 epoch to show; a sandbox needs at least 2: keep more snapshots in training$"
    ):
        choose_frames([0], 10)
    with pytest.raises(InputError, match=r"^max_frames is 1; expected at least 2, the first and the last$"):
        choose_frames(range(5), 1)


def test_a_spike_is_kept(run):
    assert {3, 4, 5} <= set(run.epochs)
    assert run.kept == "9 of 13 epochs kept"
    assert repr(run).endswith("epochs 0-12, 9 of 13 epochs kept)")


# ---- figures ----


def test_a_figure_has_the_panels_asked_for(run):
    figure = sandbox_figure(run, 4, ["xi", "class_map", "loss"])
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles == [PANELS[name].title for name in ("xi", "class_map", "loss")]
    drawn = figure.axes[0].collections[-1].get_offsets()
    np.testing.assert_allclose(drawn, run.values["xi"][run.frame(4)])
    assert any(line.get_xdata()[0] == 4 for line in figure.axes[2].lines if len(set(line.get_xdata())) == 1)
    assert "epoch 4 of 12" in figure.get_suptitle()
    figure.draw_without_rendering()


def test_all_panels_are_drawn_and_their_ticks_are_even(run):
    figure = sandbox_figure(run, 12)
    assert len(figure.axes) == len(PANELS) == 20
    figure.draw_without_rendering()
    axis = figure.axes[list(PANELS).index("xi_normalized")]
    corner = axis.transData.transform([[0, 0], [1, 1]])
    assert np.diff(corner[:, 0]) == pytest.approx(np.diff(corner[:, 1]), rel=1e-3)  # a circle is round


def test_a_grid_is_drawn_as_given(run):
    figure = sandbox_figure(run, 0, [["xi", "loss"], ["attention"]])
    xi, loss, attention = (axis.get_subplotspec() for axis in figure.axes)
    assert (xi.rowspan.start, loss.colspan.start, attention.rowspan.start, attention.colspan.start) == (0, 1, 1, 0)


def test_what_was_not_measured_is_said(snapshots):
    run = sandbox_run(snapshots, 0, max_frames=3)
    figure = sandbox_figure(run, 0, ["gradient_norms", "within_ratio", "spikes", "loss"])
    assert [text.get_text() for axis in figure.axes for text in axis.texts] == ["not measured"] * 3


def test_panels_that_are_not_there(run):
    with pytest.raises(
        InputError, match=r"^no panel 'class map' \(there are token_embeddings, .*\); did you mean 'class_map'\?$"
    ):
        sandbox_panel_grid(["class map"], PANELS)
    with pytest.raises(InputError, match=r"^panels has 'xi' twice; give it once$"):
        sandbox_figure(run, 0, ["xi", "xi"])
    with pytest.raises(InputError, match=r"^panels is empty; expected names such as token_embeddings, "):
        sandbox_figure(run, 0, [])
    with pytest.raises(
        InputError, match=r"^epoch 99 is not among those shown \(9 of 13 epochs kept\); the nearest is 12$"
    ):
        sandbox_figure(run, 99)


# ---- films ----


def test_a_gif_has_a_frame_an_epoch(run, tmp_path):
    path = sandbox_film(
        run, tmp_path / "new" / "run.gif", panels=["xi", "accuracy"], fps=10, epochs=run.epochs[:4], dpi=40
    )
    with Image.open(path) as film:
        assert film.n_frames == 4
        assert film.info["duration"] == 100
        first = np.asarray(film.convert("L"))
        film.seek(3)
        assert (np.asarray(film.convert("L")) != first).any()
    assert [file.name for file in path.parent.iterdir()] == ["run.gif"]


@pytest.mark.slow
def test_the_title_of_a_film_stays_above_the_panels(run, tmp_path):
    path = sandbox_film(run, tmp_path / "run.gif", epochs=run.epochs[:3], dpi=60)
    with Image.open(path) as film:
        for frame in range(3):
            film.seek(frame)
            inked = np.flatnonzero((np.asarray(film.convert("L"))[:40] < 128).any(axis=1))
            height = int(np.argmax(np.diff(inked) > 1)) + 1
            assert height < 12, inked  # rows of pixels from the top of the title: one line, nothing overlaps it


def test_an_mp4_has_a_frame_an_epoch(run, tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    path = sandbox_film(run, tmp_path / "run.mp4", panels=[["class_map"], ["loss"]], epochs=run.epochs[:5], dpi=41)
    frames, seconds = ffmpeg.count_frames_and_secs(str(path))
    assert frames == 5
    assert seconds == pytest.approx(5 / 12, abs=0.1)


def test_no_half_film_is_left(run, tmp_path, monkeypatch):
    path = tmp_path / "run.gif"
    path.write_bytes(b"before")
    calls = []

    def failing(*args):
        calls.append(args)
        if len(calls) > 2:
            raise RuntimeError("stop")

    monkeypatch.setattr(figure_module, "draw_panel", failing)
    with pytest.raises(RuntimeError, match="stop"):
        sandbox_film(run, path, panels=["xi"], dpi=30)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("run.gif", b"before")]


def test_films_that_cannot_be_made(run, tmp_path, monkeypatch):
    with pytest.raises(
        InputError, match=r"^a film cannot be written to '.*run\.avi'; give a name that ends in \.gif or \.mp4$"
    ):
        sandbox_film(run, tmp_path / "run.avi")
    with pytest.raises(InputError, match=r"^epochs has 1; a film needs at least 2, or sandbox_figure shows one$"):
        sandbox_film(run, tmp_path / "run.gif", epochs=[0])
    with pytest.raises(InputError, match=r"^fps is 0; expected at least 1$"):
        sandbox_film(run, tmp_path / "run.gif", fps=0)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    text = (
        r"^an \.mp4 needs ffmpeg, and there is none: pip install 'mechclust\[film\]', "
        r"or give a name that ends in \.gif$"
    )
    with pytest.raises(InputError, match=text):
        sandbox_film(run, tmp_path / "run.mp4", panels=["xi"])
    assert not list(tmp_path.iterdir())


# ---- page ----


def test_a_page_is_one_file_that_refers_to_no_other(run, tmp_path):
    path = sandbox_page(run, tmp_path / "sandbox.html")
    html = path.read_text(encoding="utf-8")
    assert not re.search(r"<(link|script|img|iframe)[^>]*(src|href)=.(?!data:)", html)
    assert "default-src 'none'" in unescape(html)
    assert html.count("</script>") == 3
    assert html.count("<img") == 0
    assert re.search(r"<h1>(.*?)</h1>", html)[1] == "&lt;/script&gt;&lt;img src=x onerror=window.__pwned=1&gt;$x"
    data = json.loads(unescape(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1]))
    assert data["epochs"] == run.epochs
    assert [panel["name"] for panel in data["panels"]] == list(PANELS)
    assert data["curves"]["spikes"] == [{"epoch": 4, "text": HOSTILE}]
    assert [series["name"] for series in data["curves"]["panels"]["spikes"]] == ["min |ξ|", "margin"]
    assert data["curves"]["panels"]["spikes"][0]["values"][3] is None


def test_300_frames_of_the_usual_network_stay_below_15_mb(tmp_path):
    snapshots = trained(tmp_path, SparseModularAddition(n_train=64, n_test=400))
    few, many = (len(render_sandbox_page(sandbox_run(snapshots, 0, max_frames=n))) for n in (3, 13))
    a_frame = (many - few) / 10
    assert few + 297 * a_frame < 15e6
    assert a_frame < 30e3


def test_packed_numbers_come_back():
    values = np.random.default_rng(0).normal(size=(4, 30)) * np.array([[1e-4], [1.0], [1e4], [0.0]])
    values[1, 3] = np.nan
    packed = _packed(values)
    scale = np.frombuffer(base64.b64decode(packed["scale"]), "<f4")
    whole = np.frombuffer(base64.b64decode(packed["data"]), "<i2").reshape(4, 30)
    assert whole[1, 3] == -(2**15)
    back = np.where(whole == -(2**15), np.nan, whole * scale[:, None])
    np.testing.assert_allclose(back, values, atol=1e-4 * np.nanmax(np.abs(values), axis=1).max(), rtol=1)
    for a, b in zip(back, values, strict=True):  # each frame has a scale of its own
        np.testing.assert_allclose(a, b, atol=2e-5 * np.nanmax(np.abs(b)))


def test_pages_that_cannot_be_made(run, tmp_path):
    with pytest.raises(
        InputError, match=r"^a sandbox page cannot be written to '.*page\.pdf'; give a name that ends in \.html$"
    ):
        sandbox_page(run, tmp_path / "page.pdf")
    text = (
        r"^the page of 9 epochs would take 5\.\d MB, and max_bytes is 1,000,000; "
        r"record fewer \(max_frames, --max-frames\), or raise max_bytes$"
    )
    with pytest.raises(InputError, match=text):
        sandbox_page(run, tmp_path / "page.html", max_bytes=1_000_000)
    one = dataclasses.replace(run, epochs=run.epochs[:1])
    with pytest.raises(InputError, match=r"^there is 1 frame to show; a sandbox page needs at least 2$"):
        sandbox_page(one, tmp_path / "page.html")
    many = dataclasses.replace(run, answers=list(map(str, range(129))))
    with pytest.raises(
        InputError, match=r"^there are 129 answers, and a page's class map has colours for 128; write a"
    ):
        sandbox_page(many, tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


# ---- runs that cannot be shown ----


def test_networks_that_cannot_be_drawn(tmp_path):
    wide = trained(tmp_path / "wide", d_model=4, n_heads=2)
    text = (
        r"^the network has d_model 4 and n_heads 2; a sandbox draws d_model 2 and n_heads 1, as points in a plane: "
        r"train one of that size$"
    )
    with pytest.raises(InputError, match=text):
        sandbox_run(wide, 0)
    with pytest.raises(InputError, match=r"^there is no member 2 in '.*wide' \(it has 0 to 1\)$"):
        sandbox_run(wide, 2)
    other = trained(tmp_path / "other")
    other.configs = [ModelConfig(d_vocab=8, n_ctx=4, n_layers=1, d_model=8, n_heads=1)]
    other.tasks = [InstructionFollowing()]
    with pytest.raises(
        InputError, match=r"^this run trained a Model on '.*'; a sandbox shows a PoolingTransformer on '"
    ):
        sandbox_run(other, 0)


def test_curves_that_do_not_fit():
    with pytest.raises(
        InputError, match=r"^epochs has shape \(2,\); expected \[n\] increasing numbers, one for each value of a"
    ):
        Curves(epochs=[1, 1])
    with pytest.raises(
        InputError, match=r"^gradient_norms\['all'\] has shape \(1,\) for 3 epochs; expected one number per epoch$"
    ):
        Curves([0, 1, 2], {"gradient_norms": {"all": [1]}})
    with pytest.raises(
        InputError, match=r"^a spike is at epoch 7, but the curves go from 0 to 2 without it; give spikes by epoch$"
    ):
        Curves(epochs=[0, 1, 2], spikes=[(7, "")])


def test_rises_below_the_floor_of_spikes_are_found():
    loss = np.full(60, 6e-5)
    loss[20], loss[40:42] = 0.11, 6e-4  # one spike, one rise that stays below 1e-3
    network = SimpleNamespace(curve=lambda name: loss, spikes=loss_spikes(loss))
    assert [spike.epoch for spike in network.spikes] == [20]
    assert [spike.epoch for spike in TrainedNetwork.small_spikes.func(network)] == [40]
