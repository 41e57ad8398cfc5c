"""A flipped byte in any kind of file that we write is found when it is read, in one sentence."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mechclust import ModelConfig, build_model
from mechclust.cli import main
from mechclust.evidence import Bound, Finding, load_findings, mean_part
from mechclust.evidence.findings import findings_bytes
from mechclust.models import load_model, save_model
from mechclust.models.saved_model import read_saved_model_metadata
from mechclust.report.folder import check_folder, claim_folder, open_folder
from mechclust.report.run_record import read_run_record
from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
from mechclust.training import Member, Snapshots, TrainConfig, train, train_ensemble
from probes import CKA, ProbeResult, RowStore, attach, load_result, residual, save_rows
from probes.store.safetensors_files import is_whole_file
from tasks import Batch, InputError, SparseModularAddition

MODEL = ModelConfig(d_vocab=9, n_ctx=4, n_layers=1, d_model=8, n_heads=2)
TASK = SparseModularAddition(length=5, n_support=2, n_train=70, n_test=8)
POOLING = PoolingTransformerConfig(n_ctx=5, d_mlp=4)
TRAINING = TrainConfig(
    steps=6, batch_size=16, lr=1e-2, schedule="constant", optimizer="adam", weight_decay=0.0, clip=None, save_every=3
)
FINDING = Finding(id="T1", statement="ä statement", source="ours", parts=(mean_part("", [0.4, 0.6], Bound(">=", 0.1)),))


def train_again(folder: Path) -> None:
    """Goes on from the state of a run that is finished."""
    train(build_model(POOLING), TASK, TRAINING, folder / "trained")


def take_all(folder: Path) -> None:
    store = RowStore(folder / "rows")
    store.take(store.index, [f"rows/{site}" for site in store.sites])


def read_snapshots(folder: Path) -> None:
    snapshots = Snapshots(folder / "ensemble")
    assert (len(snapshots.configs), len(snapshots.tasks)) == (2, 2)
    for step in snapshots.steps:
        snapshots.at(step)
    snapshots.of(0)
    snapshots.losses()


def command_there(folder: Path) -> None:
    check_folder(folder / "report", "compare")


KINDS: dict[str, Callable[[Path], object]] = {
    "model.safetensors": lambda folder: load_model(folder / "model.safetensors"),
    "result.safetensors": lambda folder: load_result(folder / "result.safetensors"),
    "probe.safetensors": lambda folder: CKA(residual()).load_state(folder / "probe.safetensors"),
    "trained/state.safetensors": train_again,
    "ensemble/snapshots-00000000.safetensors": read_snapshots,
    "ensemble/snapshots-00000003.safetensors": read_snapshots,
    "rows/rows.json": take_all,
    "rows/shard-00000/shard.json": take_all,
    "rows/shard-00000/index.safetensors": take_all,
    "rows/shard-00000/hook_embed.safetensors": take_all,
    "run/config.json": lambda folder: read_run_record(folder / "run", "give another folder with --out"),
    "report/mechclust.json": command_there,
    "findings.json": lambda folder: load_findings(folder / "findings.json"),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of every kind."""
    folder: Path = tmp_path_factory.mktemp("written")
    model, tokens = build_model(MODEL), torch.arange(32).reshape(8, 4) % 9
    save_model(model, folder / "model.safetensors", step=3)
    ProbeResult("Demo", {"ari": torch.tensor([0.1, 0.2])}, {"ari": ("i",)}, {"i": ["a", "b"]}).save(
        folder / "result.safetensors"
    )
    with attach(model, probe := CKA(residual())) as attached, attached.on(Batch(tokens)):
        model(tokens)
    probe.save_state(folder / "probe.safetensors")
    train_again(folder)
    members = [Member(replace(POOLING, seed=seed), replace(TASK, seed=seed)) for seed in (0, 1)]
    train_ensemble(members, TRAINING, folder / "ensemble", backend="vmap", snapshot_every=2)
    save_rows(model, [Batch(tokens)], folder / "rows")
    open_folder(folder / "run", "task-clusters", {"seeds": [1, 2]})
    (folder / "report").mkdir()
    claim_folder(folder / "report", "compare")
    (folder / "findings.json").write_bytes(findings_bytes([FINDING, FINDING]))
    for read in KINDS.values():
        read(folder)
    return folder


@pytest.mark.parametrize("name", KINDS)
def test_a_flipped_byte_is_found(written: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(written, tmp_path / "copy")
    path, read, draw = folder / name, KINDS[name], random.Random(name)
    whole = path.read_bytes()
    assert is_whole_file(path)
    begin = 8 + int.from_bytes(whole[:8], "little") if path.suffix == ".safetensors" else len(whole)
    places = [0, 7, 8, len(whole) - 1, *draw.sample(range(8, begin), 8)]
    places += draw.sample(range(begin, len(whole)), min(8, len(whole) - begin))
    for place in places:
        data = bytearray(whole)
        data[place] ^= 1 << draw.choice((0, 1, 2, 3, 4, 7))  # bit 5: capital letters in numbers, as 1E-5
        path.write_bytes(data)
        with pytest.raises(InputError) as refused:
            read(folder)
        assert "\n" not in (said := str(refused.value))
        assert "; " in said, said  # the way out
        assert not is_whole_file(path)
    path.write_bytes(whole)
    read(folder)


def test_every_kind_is_here(written: Path) -> None:
    """No file is read that has no checksum."""
    kinds = {path.relative_to(written).as_posix() for path in written.rglob("*") if path.is_file()}
    checked = {*KINDS, *(f"rows/shard-00000/{site}.safetensors" for site in RowStore(written / "rows").sites)}
    assert {name for name in kinds - checked if not name.endswith(".lock")} == {"ensemble/state.safetensors"}
    assert all(is_whole_file(written / name) for name in kinds if not name.endswith(".lock"))


def test_not_compared_when_told_so(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    data = bytearray((written / "model.safetensors").read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match="its checksum does not match"):
        read_saved_model_metadata(path)
    monkeypatch.setenv("MECHCLUST_VERIFY", "0")
    assert read_saved_model_metadata(path)["metadata"] == {"step": 3}
    load_model(path)


def test_a_command_that_does_not_verify(
    finished: tuple[str, Path],
    undrawn: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A result whose last bit is another: refused, and taken with ``MECHCLUST_VERIFY=0``."""
    out = shutil.copytree(finished[1], tmp_path / "run")
    path = min(out.rglob("*.ari.safetensors"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert main(["report", str(out)]) == 2
    assert capfd.readouterr().err == (
        f"mechclust: {str(path)!r} is damaged (its checksum does not match); delete it and run the same command again "
        "to recreate it\n"
    )
    monkeypatch.setenv("MECHCLUST_VERIFY", "0")
    assert main(["report", str(out)]) == 0


def test_results_that_were_exchanged(
    finished: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Both files are whole, so without their checksums nothing tells but where they say that they belong."""
    out = shutil.copytree(finished[1], tmp_path / "run")
    ari = min(out.rglob("*.ari.safetensors"))
    loss = min(out.rglob("loss.safetensors"))
    kept = ari.read_bytes()
    ari.write_bytes(loss.read_bytes())
    loss.write_bytes(kept)
    monkeypatch.setenv("MECHCLUST_VERIFY", "0")
    assert main(["report", str(out)]) == 2
    (sentence,) = capfd.readouterr().err.splitlines()
    assert sentence.startswith(f"mechclust: {str(loss)!r} holds '{ari.parent.name}/{ari.name}', which is not")
