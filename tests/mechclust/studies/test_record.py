"""What a repository keeps of a run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mechclust.cli import main
from mechclust.evidence import load_findings
from mechclust.report.archive import pack_folder, unpack_folder
from mechclust.studies import Study, get_study, record_run, run_study
from mechclust.studies.record import judge_again
from probes.store.files import read_json, write_json
from tasks import InputError
from tasks.settings import configure, settings_to_json

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def toy(install: Callable[..., None]) -> Study:
    install(toy="other_studies:STUDY")
    return get_study("toy")


@pytest.fixture
def run_folder(toy: Study, tmp_path: Path) -> Path:
    """A run with settings of its own."""
    config = configure(toy.preset("quick"), corpus="/home/me/texts/corpus.txt", **{"training.fast": True})
    run_study(toy, config, tmp_path / "run", workers=1)
    return tmp_path / "run"


def files_of(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


class TestRecord:
    def test_has_settings_findings_and_named_figures(self, run_folder: Path, tmp_path: Path) -> None:
        record_run(run_folder, tmp_path / "kept", figures=["values"])
        kept = files_of(tmp_path / "kept")
        assert sorted(kept) == [
            *("config.json", "figures/values.png", "findings.csv", "findings.json", "mechclust.json", "results.tar.xz"),
        ]
        assert kept["findings.json"] == (run_folder / "findings.json").read_bytes()
        assert kept["figures/values.png"] == (run_folder / "figures" / "values.png").read_bytes()
        unpack_folder(tmp_path / "kept" / "results.tar.xz", tmp_path / "unpacked")
        assert sorted(files_of(tmp_path / "unpacked")) == ["results/0.txt", "results/1.txt"]

    def test_has_no_path_of_this_machine(self, run_folder: Path, tmp_path: Path) -> None:
        record_run(run_folder, tmp_path / "kept")
        record = read_json(tmp_path / "kept" / "config.json")
        expected = read_json(run_folder / "config.json")
        assert expected["config"]["corpus"] == "/home/me/texts/corpus.txt"
        expected["config"]["corpus"] = "corpus.txt"
        assert record == expected

    def test_a_second_time_replaces_the_first(self, run_folder: Path, toy: Study, tmp_path: Path) -> None:
        record_run(run_folder, tmp_path / "kept", figures=["values"])
        run_study(toy, toy.preset("smoke"), tmp_path / "other", workers=1)
        mine = [tmp_path / "kept" / name for name in ("sandbox.png", "figures/mine.png", "figures/mine.pdf")]
        for path in mine:
            path.write_text("a picture of mine")
        record_run(tmp_path / "other", tmp_path / "kept")
        assert [path.read_text() for path in mine] == ["a picture of mine"] * 3
        assert read_json(tmp_path / "kept" / "config.json")["config"] == settings_to_json(toy.preset("smoke"))
        assert [len(finding.parts[0].values) for finding in load_findings(tmp_path / "kept")] == [1]

    def test_the_command_line_does_it(
        self, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["report", str(run_folder), "--record", str(tmp_path / "kept"), "--figures", "again"]) == 0
        assert "values are small" in capsys.readouterr().out
        assert (tmp_path / "kept" / "results.tar.xz").exists()
        assert [path.name for path in (tmp_path / "kept" / "figures").iterdir()] == ["again.png"]


class TestRefusals:
    def refused(self, run_folder: Path, folder: Path) -> str:
        before = files_of(folder) if folder.is_dir() else {}
        with pytest.raises(InputError) as refused:
            record_run(run_folder, folder)
        assert before == (files_of(folder) if folder.is_dir() else {})
        return str(refused.value)

    def test_figures_that_are_not_there_or_not_kept(
        self, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        kept = str(tmp_path / "kept")
        assert main(["report", str(run_folder), "--record", kept, "--figures", "valuse"]) == 2
        assert "no figure 'valuse' (it has values, again); did you mean 'values'?" in capsys.readouterr().err
        assert not (tmp_path / "kept").exists()
        assert main(["report", str(run_folder), "--figures", "values"]) == 2
        assert "add --record FOLDER" in capsys.readouterr().err

    def test_results_of_another_study(self, run_folder: Path, tmp_path: Path) -> None:
        kept = tmp_path / "kept"
        record_run(run_folder, kept, figures=["values"])
        write_json(kept / "config.json", {**read_json(kept / "config.json"), "study": "mossa"})
        assert self.refused(run_folder, kept) == (
            f"{str(kept)!r} holds the results of mossa, not of toy; choose another folder with --record"
        )

    @pytest.mark.parametrize("name", ["findings.json", "config.json"])
    def test_results_of_nobody_knows_which_study(self, run_folder: Path, tmp_path: Path, name: str) -> None:
        (tmp_path / "kept").mkdir()
        (tmp_path / "kept" / name).write_text('{"model_type": "gpt2"}')
        assert "holds no run (no readable config.json); choose another folder with --record" in self.refused(
            run_folder, tmp_path / "kept"
        )

    @pytest.mark.parametrize(
        "name", ["command.txt", "results.tar.xz", "figures/mine.png", "figures/mine.pdf", "history.json"]
    )
    def test_a_folder_that_is_no_record(self, run_folder: Path, tmp_path: Path, name: str) -> None:
        path = tmp_path / "mine" / name
        path.parent.mkdir(parents=True)
        path.write_text("mine")
        assert repr(str(tmp_path / "mine")) in self.refused(run_folder, tmp_path / "mine")

    @pytest.mark.parametrize("name", ["results.tar.xz", "figures/values.png", "config.json"])
    def test_a_record_with_a_changed_file(self, run_folder: Path, tmp_path: Path, name: str) -> None:
        kept = tmp_path / "kept"
        record_run(run_folder, kept, figures=["values"])
        if name == "config.json":  # of the same study
            write_json(kept / name, {**read_json(kept / name), "machine": {}})
        else:
            (kept / name).write_text("mine")
        assert repr(str(kept / name)) in self.refused(run_folder, kept)

    def test_a_record_whose_figures_are_a_link(self, run_folder: Path, tmp_path: Path) -> None:
        kept, elsewhere = tmp_path / "kept", tmp_path / "elsewhere"
        record_run(run_folder, kept, figures=["values"])
        (kept / "figures").rename(elsewhere)
        (kept / "figures").symlink_to(elsewhere)
        before = files_of(elsewhere)
        assert repr(str(kept / "figures")) in self.refused(run_folder, kept)
        assert files_of(elsewhere) == before

    @pytest.mark.parametrize("name", ["results", "figures", "record", "a/record"])
    def test_a_folder_in_the_run(self, run_folder: Path, name: str) -> None:
        before = files_of(run_folder)
        assert repr(str(run_folder / name)) in self.refused(run_folder, run_folder / name)
        assert files_of(run_folder) == before

    def test_a_link_to_the_runs_results(self, run_folder: Path, tmp_path: Path) -> None:
        (tmp_path / "kept").symlink_to(run_folder / "results")
        before = files_of(run_folder)
        self.refused(run_folder, tmp_path / "kept")
        assert files_of(run_folder) == before

    def test_the_runs_own_folder(self, run_folder: Path) -> None:
        assert self.refused(run_folder, run_folder) == (
            f"{str(run_folder)!r} is the folder of a run; choose another folder with --record"
        )

    def test_a_folder_that_cannot_be_written(self, run_folder: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        assert self.refused(run_folder, tmp_path / "file" / "kept") == (
            f"cannot write to {str(tmp_path / 'file' / 'kept')!r} (Not a directory); "
            "choose another folder with --record"
        )

    def test_no_run(self, tmp_path: Path) -> None:
        assert self.refused(tmp_path / "none", tmp_path / "kept").endswith("give the --out folder of a run")
        assert not (tmp_path / "kept").exists()


class TestJudgingAgain:
    """From a record alone, long after the run's folder is gone."""

    @pytest.fixture
    def record(self, run_folder: Path, tmp_path: Path) -> Path:
        record_run(run_folder, tmp_path / "kept")
        shutil.rmtree(run_folder)
        return tmp_path / "kept"

    def test_gives_the_runs_findings_and_leaves_the_rest(
        self, record: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = files_of(record)
        (record / "findings.json").unlink()
        assert main(["report", str(record)]) == 0
        shown = capsys.readouterr().out
        assert "values are small" in shown
        assert shown.endswith(f"\nfindings: {record / 'findings.json'}\n")
        assert files_of(record) == before

    def test_refuses_findings_that_were_changed(self, record: Path) -> None:
        (record / "findings.json").write_text("mine")
        with pytest.raises(
            InputError, match=r"findings\.json.*; move it away, or judge a copy of the folder without it$"
        ):
            judge_again(record)
        assert (record / "findings.json").read_text() == "mine"

    def test_keeps_the_history(self, record: Path) -> None:
        earlier = {"finding": "Q1", "run": "before", "seeds": 3, "verdict": "does not hold", "changed": ""}
        (record / "history.json").write_text(json.dumps([earlier]))
        (finding,) = judge_again(record)
        assert [run.run for run in finding.history] == ["before"]

    def test_a_history_that_is_none_is_named(self, record: Path) -> None:
        (record / "history.json").write_text("[1]")
        with pytest.raises(
            InputError, match=r"history\.json' is not a list of earlier verdicts.*; expected objects with"
        ):
            judge_again(record)

    def test_equal_measurements_make_an_equal_archive(self, tmp_path: Path) -> None:
        for name in ("one", "two"):
            (tmp_path / name / "results" / "job").mkdir(parents=True)
            for file in sorted(("b", "a", ".a.tmp"), reverse=name == "two"):
                (tmp_path / name / "results" / "job" / file).write_text(file * 1000)
            (tmp_path / f"{name}.tar.xz").write_bytes(pack_folder(tmp_path / name / "results"))
        assert (tmp_path / "one.tar.xz").read_bytes() == (tmp_path / "two.tar.xz").read_bytes()
        unpack_folder(tmp_path / "one.tar.xz", tmp_path / "again")
        assert files_of(tmp_path / "again") == {"results/job/a": b"a" * 1000, "results/job/b": b"b" * 1000}

    @pytest.mark.parametrize("spoilt", ["cut", "other"])
    def test_a_damaged_archive_is_refused(self, record: Path, spoilt: str, capsys: pytest.CaptureFixture[str]) -> None:
        archive, before = record / "results.tar.xz", (record / "findings.json").read_bytes()
        archive.write_bytes(archive.read_bytes()[:-50] if spoilt == "cut" else b"no archive")
        assert main(["report", str(record)]) == 2
        assert f"{str(archive)!r} is damaged or not an archive of results (" in capsys.readouterr().err
        assert (record / "findings.json").read_bytes() == before

    def test_measurements_that_are_missing_are_named(self, record: Path, tmp_path: Path) -> None:
        unpack_folder(record / "results.tar.xz", tmp_path)
        (tmp_path / "results" / "1.txt").unlink()
        (record / "results.tar.xz").write_bytes(pack_folder(tmp_path / "results"))
        with pytest.raises(InputError) as refused:
            judge_again(record)
        assert str(refused.value) == (
            f"{str(record / 'results.tar.xz')!r} lacks results/1.txt; "
            "record the run again with mechclust report RUN --record FOLDER"
        )

    def test_a_record_of_before_measurements_were_kept(self, record: Path) -> None:
        (record / "results.tar.xz").unlink()
        with pytest.raises(InputError) as refused:
            judge_again(record)
        assert str(refused.value) == (
            f"{str(record)!r} has no results.tar.xz; record the run again with mechclust report RUN --record FOLDER"
        )
