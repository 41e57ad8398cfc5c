"""`mechclust sandbox`: a page, a film or a figure of one network."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from mechclust import ModelConfig, build_model, train
from mechclust.cli import main
from mechclust.commands.sandbox import View, open_sandbox, write_sandbox
from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
from mechclust.studies.clustering_heads.sandbox import sandbox_run
from mechclust.training import CheckpointCallback, Member, TrainConfig, train_ensemble
from probes.store.files import write_json
from tasks import InputError, InstructionFollowing, SparseModularAddition

DIGITS = SparseModularAddition(length=4, n_support=2, n_train=128, n_test=64)
INSTRUCTIONS = InstructionFollowing(n_tasks=2, n_symbols=8, n_eval=16)


def member(seed=0, **shape):
    return Member(PoolingTransformerConfig(n_ctx=4, **{"d_mlp": 4, "seed": seed, **shape}), DIGITS)


def write_prompts(path, *rows):
    path.write_text("".join(f"{json.dumps({'prompt': text, 'task': task})}\n" for text, task in rows))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Snapshots of seeds 4 and 7."""
    settings = TrainConfig(steps=16, batch_size=32, schedule="constant", clip=None, save_every=100)
    path = tmp_path_factory.mktemp("ensemble")
    train_ensemble([member(4), member(7)], settings, path, backend="vmap")
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
    assert refusal(tmp_path, "--out", tmp_path / "x.html", capsys=capsys) == (
        f"mechclust: {str(tmp_path)!r} holds nothing to show; give the --out of mechclust run clustering-heads, the "
        "out of train or train_ensemble, or a folder of checkpoints"
    )
    message = refusal(folder, "--out", tmp_path / "x.png", "--panels", "xii", capsys=capsys)
    assert message.startswith("mechclust: no panel 'xii' (there are token_embeddings, ")
    assert message.endswith("; did you mean 'xi'?")
    assert refusal(folder, "--out", tmp_path / "x.html", "--panels", "xi", capsys=capsys) == (
        "mechclust: a page has all panels; leave --panels out, or give --out a name that ends in .png, .mp4 or .gif"
    )
    assert "--epoch is for a figure" in refusal(folder, "--out", tmp_path / "x.gif", "--epoch", 1, capsys=capsys)
    assert not list(tmp_path.iterdir())


def test_several_snapshots_an_epoch(tmp_path):
    settings = TrainConfig(steps=4, batch_size=32, clip=None)
    found = train_ensemble([member()], settings, tmp_path, snapshot_every=2, backend="loop")
    with pytest.raises(
        InputError, match="has several snapshots per epoch; a sandbox shows one: train with snapshot_every"
    ):
        sandbox_run(found, 0)
    assert open_sandbox(tmp_path).kept == "3 of 3 steps kept"  # by the defaults of View


def test_a_transformer_of_two_dimensions(tmp_path):
    config = ModelConfig(d_vocab=INSTRUCTIONS.d_vocab, n_ctx=INSTRUCTIONS.n_ctx, n_layers=1, d_model=2, n_heads=1)
    train_ensemble([Member(config, INSTRUCTIONS)], TrainConfig(steps=2, batch_size=8), tmp_path, backend="loop")
    assert open_sandbox(tmp_path).kept == "2 of 2 steps kept"


def test_another_study(tmp_path):
    write_json(tmp_path / "config.json", {"study": "task-clusters", "config": {}, "machine": {}})
    with pytest.raises(
        InputError, match="holds a run of task-clusters; give one of clustering-heads, of train_ensemble, or a "
    ):
        open_sandbox(tmp_path)


# ---- models of any size ----


def test_an_ensemble_of_wider_networks_is_shown_in_planes(tmp_path, capsys):
    settings = TrainConfig(steps=8, batch_size=32, clip=None)
    train_ensemble([member(d_model=4, n_heads=2)], settings, tmp_path / "run", backend="loop")
    arguments = ["--panels", "residual_1", "output_L0H1", "--sequences", "8", "--label", "sum"]
    assert main(["sandbox", str(tmp_path / "run"), "--out", str(tmp_path / "figure.png"), *arguments]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'figure.png'}: seed 0; 3 of 3 steps kept\n"


def test_a_seed_of_several_widths_is_refused(tmp_path):
    members = [member(3, d_mlp=width) for width in (4, 8)]
    train_ensemble(members, TrainConfig(steps=2, batch_size=32, schedule="constant", clip=None), tmp_path)
    with pytest.raises(InputError, match="has 2 networks of seed 3, which --seed does not tell apart; leave it out"):
        open_sandbox(tmp_path, 3, view=View())
    assert open_sandbox(tmp_path, view=View(sequences=2)).title == "seed 3"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run of ``train`` with checkpoints in it."""
    folder = tmp_path_factory.mktemp("trained")
    shape = {"n_layers": 2, "d_model": 16, "n_heads": 2}
    model = build_model(ModelConfig(d_vocab=INSTRUCTIONS.d_vocab, n_ctx=INSTRUCTIONS.n_ctx, **shape))
    kept = [CheckpointCallback(folder / "models", [0, 2, 4])]
    train(model, INSTRUCTIONS, TrainConfig(steps=4, batch_size=8), folder, kept)
    return folder


def test_checkpoints_of_a_training_run(trained):
    run = open_sandbox(trained / "models", view=View(layers=(2,), heads=("L1H0",), sequences=8))
    assert (run.title, run.epochs, run.kept) == (trained.name, [0, 2, 4], "3 of 3 steps kept")
    assert {"residual_2", "output_L1H0", "attention_L1H0"} <= set(run.panels)
    assert not {"residual_1", "output_L0H0"} & set(run.panels)
    assert run.sequences.cluster_names == ["task 0", "task 1"]
    assert set(run.sequences.token_names) <= set(INSTRUCTIONS.vocab)


def test_as_many_frames_are_kept_as_are_asked_for(tmp_path):
    settings = TrainConfig(steps=310, batch_size=8, schedule="constant", clip=None)
    train_ensemble([member()], settings, tmp_path, backend="loop", snapshot_every=1)
    run = open_sandbox(tmp_path, max_frames=305, view=View(sequences=2))
    assert (run.kept, len(run.epochs)) == ("305 of 311 steps kept", 305)


def test_more_sequences_than_a_batch_usually_has(trained, monkeypatch):
    monkeypatch.setattr("mechclust.commands.sandbox._BATCH_SIZE", 4)
    run = open_sandbox(trained / "models", view=View(layers=(2,), sequences=12))
    assert len(run.sequences.clusters) == 12


def test_the_out_of_a_training_run_leads_to_its_only_folder_of_checkpoints(trained, tmp_path):
    run = open_sandbox(trained, max_frames=2)
    assert (run.title, run.epochs, run.kept) == (trained.name, [0, 4], "2 of 3 steps kept")
    copy = shutil.copytree(trained, tmp_path / "run")
    shutil.copytree(copy / "models", copy / "other")
    with pytest.raises(InputError, match=r"holds several folders of checkpoints \(models, other\); give one of them"):
        open_sandbox(copy)


def test_an_ensemble_is_shown_though_a_folder_in_it_holds_checkpoints(folder, trained, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "run")
    shutil.copytree(trained / "models", copy / "models")
    assert open_sandbox(copy).epochs == open_sandbox(folder).epochs


def test_checkpoints_of_a_trainer(gpt2, tmp_path):
    for step in (10, 200):
        shutil.copytree(gpt2, tmp_path / f"checkpoint-{step}")
    rows = [("w1 w2", "one"), ("w3 w4 w5", "two"), ("w6", "one"), ("w7 w8", "two")]
    prompts = write_prompts(tmp_path / "prompts.jsonl", *rows)
    run = open_sandbox(tmp_path, view=View(prompts=prompts, heads=("L0H1",)))
    assert run.epochs == [10, 200]
    assert run.sequences.cluster_names == ["one", "two"]
    assert sorted(run.sequences.token_names) == [f"w{i}" for i in range(1, 9)]
    with pytest.raises(InputError, match="no beginning-of-sequence token, so --bos yes has none to add"):
        open_sandbox(tmp_path, view=View(prompts=prompts, bos="yes"))
    with pytest.raises(InputError, match=r"checkpoint-10' needs texts to read; give them with --prompts$"):
        open_sandbox(tmp_path)


def test_views_that_cannot_be_had(folder, trained, tmp_path, capsys):
    at = ("--out", tmp_path / "x.html")
    assert refusal(trained / "models", "--seed", 3, *at, capsys=capsys).endswith(
        "holds the checkpoints of one model; leave --seed out"
    )
    assert refusal(trained / "models", "--prompts", "p.jsonl", *at, capsys=capsys) == (
        "mechclust: --prompts is for checkpoints that read texts; this run was trained on 'instruction-following'"
    )
    for option, value in (("--bos", "yes"), ("--too-long", "truncate")):
        assert refusal(trained / "models", option, value, *at, capsys=capsys) == (
            f"mechclust: {option} is for texts, and this run was trained on 'instruction-following'; leave it out"
        )
    assert "no head 'L7H0' in this model" in refusal(folder, "--heads", "L7H0", *at, capsys=capsys)
    (tmp_path / "alone").mkdir()
    for step in (0, 2):
        name = f"step-{step:06d}.safetensors"
        shutil.copy(trained / "models" / name, tmp_path / "alone" / name)
    text = "has no state.safetensors that says which task was trained"
    assert text in refusal(tmp_path / "alone", *at, capsys=capsys)


def test_what_is_refused_before_a_model_is_run(folder, trained, tmp_path, capsys, monkeypatch):
    for run in ("mechclust.commands.sandbox.record_sandbox", "mechclust.commands.sandbox.sandbox_run"):
        monkeypatch.setattr(run, None)
    at = ("--out", tmp_path / "x.png", "--epoch", 7, "--label", "task")
    for run, near in (
        (trained / "models", "3 steps shown; the nearest is 4"),
        (folder, "5 steps shown; the nearest is 8"),
    ):
        assert refusal(run, *at, capsys=capsys) == f"mechclust: --epoch is 7, which is not among the {near}"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert "an .mp4 needs ffmpeg, and there is none" in refusal(folder, "--out", tmp_path / "x.mp4", capsys=capsys)


def test_a_series_that_cannot_be_shown(gpt2, tmp_path, capsys):
    for step in (10, 200):
        shutil.copytree(gpt2, tmp_path / f"checkpoint-{step}")
    rows = [("w1 w2", "one"), ("w3 w4 w5", "two"), ("w1 " * 2000, "one")]
    prompts = write_prompts(tmp_path / "prompts.jsonl", *rows)
    at = ("--out", tmp_path / "x.html", "--prompts", prompts)
    assert "has 2000 tokens" in refusal(tmp_path, *at, capsys=capsys)
    for option in ("--split", "--position"):
        assert f"leave {option} out" in refusal(tmp_path, *at, option, "x", capsys=capsys)
    write_prompts(prompts, *rows[:2])
    assert "no label ''" in refusal(tmp_path, *at, "--label", "", capsys=capsys)
    (tmp_path / "checkpoint-200-merged").mkdir()
    (tmp_path / "checkpoint-final").mkdir()
    run = open_sandbox(tmp_path, view=View(prompts=prompts))
    assert run.epochs == [10, 200]
    assert run.title.endswith("(without checkpoint-200-merged, checkpoint-final: not checkpoint- and a step)")
    weights = load_file(tmp_path / "checkpoint-200" / "model.safetensors")
    broken = {name: torch.full_like(weight, torch.nan) for name, weight in weights.items()}
    save_file(broken, tmp_path / "checkpoint-200" / "model.safetensors", {"format": "pt"})
    assert "step 200 has NaN or infinity" in refusal(tmp_path, *at, capsys=capsys)
    assert not (tmp_path / "x.html").exists()


def test_a_model_with_rotary_positions_has_no_panel_of_them_and_a_prompt_of_any_length(tmp_path, write_checkpoint):
    for step in (1, 2):
        write_checkpoint(tmp_path / f"checkpoint-{step}", "llama", max_position_embeddings=5000, num_hidden_layers=1)
    prompts = write_prompts(tmp_path / "prompts.jsonl", ("w1 " * 4100, "one"), ("w3 w4 w5", "two"))
    run = open_sandbox(tmp_path, view=View(prompts=prompts))
    assert "position_embeddings" not in run.panels
    assert "token_embeddings" in run.panels
