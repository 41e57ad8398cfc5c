"""A file is replaced or deleted only if the manifest lists it, it is unchanged, and it lies in the folder."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from mechclust.report import Analysis, Panel, write_report_page
from mechclust.report.folder import check_folder, open_folder
from mechclust.report.manifest import read_manifest, write_manifest
from probes import ProbeResult
from probes.store.files import write_atomic
from tasks import InputError

ABOUT = {"title": "T", "source": "S", "config": {}, "command": "topics"}
RESULT = ProbeResult("Counted", {"n": torch.tensor(3)}, {"n": ()}, {})


def panel(name: str) -> Panel:
    from matplotlib.figure import Figure

    return Panel(name, Figure(figsize=(2, 1)), "")


def report(out: Path, *figures: str, **more: object) -> Path:
    return write_report_page(out, **ABOUT, analysis=Analysis(panels=[panel(name) for name in figures]), **more)


def files_of(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refused(out: Path, *figures: str) -> str:
    """The sentence that refuses a report, which changed nothing."""
    before = files_of(out)
    with pytest.raises(InputError) as error:
        report(out, *figures)
    assert files_of(out) == before
    return str(error.value)


@pytest.mark.parametrize("name", ["report.html", "figures/mine.png", "mine.csv", "rows/mine.safetensors"])
def test_a_folder_with_files_of_others_is_refused(tmp_path, name):
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    assert "mechclust.json" in refused(tmp_path / "out")


def test_notes_hidden_files_and_empty_folders_are_welcome(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "figures").mkdir()
    (tmp_path / ".gitignore").write_text("*")
    hidden = tmp_path / "rows" / ".ipynb_checkpoints" / "mine.csv"
    hidden.parent.mkdir(parents=True)
    hidden.write_text("mine")
    assert report(tmp_path).exists()


@pytest.mark.parametrize("name", ["report.html", "figures/one.png", "results/n.safetensors", "layers.csv"])
@pytest.mark.parametrize("become", ["a file", "a folder"])
def test_a_file_that_was_changed_is_neither_replaced_nor_deleted(tmp_path, name, become):
    report(tmp_path, "one", results={"n": RESULT}, tables={"layers": pd.DataFrame({"layer": [0]})})
    (tmp_path / name).unlink()
    if become == "a file":
        (tmp_path / name).write_text("mine")
    else:
        (tmp_path / name).mkdir()
        (tmp_path / name / "inside").write_text("mine")
    assert repr(str(tmp_path / name)) in refused(tmp_path)
    assert repr(str(tmp_path / name)) in refused(tmp_path, "one")


def test_what_an_earlier_report_had_is_deleted_and_other_files_stay(tmp_path):
    table = pd.DataFrame({"layer": [0]})
    report(tmp_path, "one", "two", results={"a/n": RESULT}, tables={"layers": table}, print_figures=True)
    (tmp_path / "figures" / "mine.pdf").write_text("mine")
    report(tmp_path, "two")
    assert sorted(files_of(tmp_path)) == [*("figures/mine.pdf", "figures/two.png", "mechclust.json", "report.html")]
    assert not (tmp_path / "results").exists()


def test_a_file_that_stands_where_a_new_one_is_to_be_is_not_overwritten(tmp_path):
    report(tmp_path, "one")
    (tmp_path / "figures" / "two.png").write_text("mine")
    assert "figures/two.png" in refused(tmp_path, "one", "two")


@pytest.mark.parametrize("linked", ["figures", "results", "rows"])
def test_a_link_out_of_the_folder_is_refused(tmp_path, linked):
    """What is behind it has the very files that the manifest lists."""
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    report(out, "one", results={"n": RESULT})
    if (out / linked).exists():
        (out / linked).rename(elsewhere)
    else:
        elsewhere.mkdir()
        (elsewhere / "mine").write_text("mine")
    (out / linked).symlink_to(elsewhere)
    before = files_of(elsewhere)
    assert repr(str(out / linked)) in refused(out)
    assert files_of(elsewhere) == before != {}


def test_a_link_to_a_file_elsewhere_is_refused(tmp_path):
    report(tmp_path / "out")
    page = tmp_path / "out" / "report.html"
    page.rename(tmp_path / "mine.html")
    page.symlink_to(tmp_path / "mine.html")
    assert repr(str(page)) in refused(tmp_path / "out")
    assert page.is_symlink()


def test_a_link_to_itself_is_refused(tmp_path):
    report(tmp_path / "out")
    page = tmp_path / "out" / "report.html"
    page.unlink()
    page.symlink_to(page)
    with pytest.raises(InputError, match="is a link out of the folder"):
        check_folder(tmp_path / "out", "topics")


def test_a_link_within_the_folder_stays(tmp_path):
    report(tmp_path)
    (tmp_path / "newest.html").symlink_to("report.html")
    report(tmp_path)
    assert (tmp_path / "newest.html").is_symlink()


def test_a_damaged_manifest_names_the_way_out_of_its_caller(tmp_path):
    report(tmp_path)
    (tmp_path / "mechclust.json").write_text("{")
    with pytest.raises(InputError, match="or give another folder with --record"):
        check_folder(tmp_path, "topics", "give another folder with --record")


def test_the_folder_itself_may_be_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    report(tmp_path / "out", "one")
    report(tmp_path / "out")
    assert sorted(files_of(tmp_path / "disk")) == ["mechclust.json", "report.html"]


@pytest.mark.parametrize("name", ["../mine.html", "figures/../../mine.html"])
def test_a_manifest_that_lists_a_file_elsewhere_deletes_nothing(tmp_path, name):
    out, mine = tmp_path / "out", tmp_path / "mine.html"
    page = report(out, "one")
    mine.write_bytes(page.read_bytes())
    manifest = read_manifest(out)
    manifest.files[name] = manifest.files["report.html"]
    write_manifest(out, manifest)
    assert "mine.html" in refused(out)
    assert mine.exists()


def test_a_report_that_was_interrupted_goes_on(tmp_path, monkeypatch):
    """Whichever of the old and the new content a file has."""
    report(tmp_path, "one")

    def stop(path: Path, data: bytes) -> None:
        if path.suffix == ".html":
            raise KeyboardInterrupt
        write_atomic(path, data)

    monkeypatch.setattr("mechclust.report.folder.write_atomic", stop)
    with pytest.raises(KeyboardInterrupt):
        write_report_page(tmp_path, **{**ABOUT, "title": "Other"}, analysis=Analysis(panels=[panel("two")]))
    monkeypatch.undo()
    assert "Other" not in (tmp_path / "report.html").read_text()
    assert "<h1>T</h1>" in report(tmp_path, "one").read_text()
    assert not (tmp_path / "figures" / "two.png").exists()


class TestRuns:
    @pytest.mark.parametrize("name", ["report.html", "findings.json", "figures/mine.png", "rows/mine.txt"])
    def test_a_folder_with_files_of_others_is_refused(self, tmp_path, name):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
        with pytest.raises(InputError):
            open_folder(tmp_path, "toy", {"seed": 0})
        assert files_of(tmp_path) == {name: b"mine"}

    @pytest.mark.parametrize("name", ["report.html", "findings.json", "figures/mine.png"])
    def test_files_that_were_put_into_a_run_are_refused(self, tmp_path, name):
        open_folder(tmp_path, "toy", {"seed": 0})
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
        with pytest.raises(InputError, match=r"is not listed in mechclust\.json"):
            check_folder(tmp_path, "run toy")
        with pytest.raises(InputError):
            open_folder(tmp_path, "toy", {"seed": 0})
        assert (tmp_path / name).read_text() == "mine"
