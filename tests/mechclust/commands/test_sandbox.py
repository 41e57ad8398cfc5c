"""`mechclust sandbox`: a page, a film or a figure of one network."""

from __future__ import annotations

import pytest

from mechclust.cli import main
from mechclust.commands.sandbox import open_sandbox, write_sandbox
from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
from mechclust.training import Member, TrainConfig, train_ensemble
from probes.files import write_json
from tasks import InputError, SparseModularAddition


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Snapshots of seeds 4 and 7."""
    members = [
        Member(PoolingTransformerConfig(n_ctx=4, d_mlp=4, seed=seed), SparseModularAddition(length=4, n_support=2))
        for seed in (4, 7)
    ]
    settings = TrainConfig(steps=256, batch_size=32, schedule="constant", clip=None, save_every=100)
    path = tmp_path_factory.mktemp("ensemble")
    train_ensemble(members, settings, path, backend="vmap")
    return path


def refusal(*arguments, capsys):
    assert main(["sandbox", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err.strip()


@pytest.mark.parametrize(("seed", "title"), [(None, "seed 4"), (7, "seed 7")])
def test_opens_a_seed_of_an_ensemble(folder, seed, title):
    run = open_sandbox(folder, seed)
    assert (run.title, run.epochs, run.kept) == (title, [0, 1, 2, 3, 4], "5 of 5 epochs kept")


def test_writes_what_the_ending_says(folder, tmp_path, capsys):
    for name, start in (("page.html", b"<!doctype html>"), ("figure.png", b"\x89PNG"), ("film.gif", b"GIF8")):
        arguments = [] if name == "page.html" else ["--panels", "xi", "loss"]
        assert main(["sandbox", str(folder), "--out", str(tmp_path / name), "--max-frames", "2", *arguments]) == 0
        assert (tmp_path / name).read_bytes().lower().startswith(start.lower())
        assert capsys.readouterr().out == f"{tmp_path / name}: seed 4; 2 of 5 epochs kept\n"


def test_a_figure_of_an_epoch(folder, tmp_path):
    run = open_sandbox(folder)
    first, last = (write_sandbox(run, tmp_path / f"{e}.png", epoch=e, panels=("xi",)) for e in (0, 4))
    assert first.read_bytes() != last.read_bytes()


def test_refusals(folder, tmp_path, capsys):
    assert refusal(folder, "--out", "film.avi", capsys=capsys) == (
        "mechclust: --out is 'film.avi'; expected a name that ends in .html, .mp4, .gif, .png"
    )
    assert refusal(folder, "--seed", 5, "--out", tmp_path / "x.html", capsys=capsys) == (
        f"mechclust: {str(folder)!r} has no network of seed 5 (it has 4, 7)"
    )
    assert "holds no snapshots; give the folder" in refusal(tmp_path, "--out", tmp_path / "x.html", capsys=capsys)
    message = refusal(folder, "--out", tmp_path / "x.png", "--panels", "xii", capsys=capsys)
    assert message.startswith("mechclust: no panel 'xii' (there are token_embeddings, ")
    assert message.endswith("; did you mean 'xi'?")
    assert refusal(folder, "--out", tmp_path / "x.html", "--panels", "xi", capsys=capsys) == (
        "mechclust: a page has all panels; leave --panels out, or give --out a name that ends in .png, .mp4 or .gif"
    )
    assert "--epoch is for a figure" in refusal(folder, "--out", tmp_path / "x.gif", "--epoch", 1, capsys=capsys)
    assert not list(tmp_path.iterdir())


def test_several_snapshots_an_epoch(tmp_path):
    member = Member(PoolingTransformerConfig(n_ctx=4, d_mlp=4), SparseModularAddition(length=4, n_support=2))
    train_ensemble([member], TrainConfig(steps=4, batch_size=32, clip=None), tmp_path, snapshot_every=2, backend="loop")
    with pytest.raises(
        InputError, match="has several snapshots an epoch; a sandbox shows one: train with snapshot_every"
    ):
        open_sandbox(tmp_path)


def test_another_study(tmp_path):
    write_json(tmp_path / "config.json", {"study": "task-clusters", "config": {}, "machine": {}})
    with pytest.raises(
        InputError, match="holds a run of task-clusters; give one of clustering-heads, or of train_ensemble"
    ):
        open_sandbox(tmp_path)
