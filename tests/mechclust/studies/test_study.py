"""A study from beginning to end, its folder, and going on with it."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from matplotlib.figure import Figure

from mechclust.evidence import Bound, Finding, mean_part
from mechclust.evidence.finding_tables import findings_in_tables
from mechclust.report import Analysis, Panel
from mechclust.studies import Study, configure, get_study, list_studies, open_run, record_run, report_run, run_study
from mechclust.studies.study import analyse_run, judge_run
from mechclust.studies.trainings import no_trainings
from probes import ProbeResult, load_result
from probes.store.files import read_json, write_json
from tasks import InputError
from tasks.settings import settings_from_json, settings_to_json

STUDY = get_study("task-clusters")
UNCHECKED = replace(STUDY, check=lambda config: None)  # refuses folders without measuring examples before
SMOKE = STUDY.preset("smoke")
JOBS = ["private-seed0", "instruction-seed0", "shared-seed0"]


@pytest.fixture
def copy(smoke_run, tmp_path):
    """A copy of the smoke run to work on, times of the files included."""
    return shutil.copytree(smoke_run[1], tmp_path / "run")


def times(folder):
    return {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


def never(*args, **kwargs):
    raise AssertionError("trained again")


class TestSmoke:
    def test_folder(self, smoke_run):
        out = smoke_run[1]
        assert sorted(p.name for p in out.iterdir()) == [
            *(".mechclust.lock", "config.json", "figures", "findings.csv", "findings.json", "mechclust.json", "models"),
            *("report.html", "results"),
        ]
        assert sorted(p.name for p in (out / "models").iterdir()) == sorted(JOBS)
        assert sorted(p.name for p in (out / "results").iterdir()) == sorted(JOBS)
        assert not [p for p in out.rglob("*") if p.name.endswith(".tmp")]

    def test_configuration_is_kept_with_machine_and_versions(self, smoke_run):
        record = json.loads((smoke_run[1] / "config.json").read_text())
        assert record["study"] == "task-clusters"
        assert record["config"] == settings_to_json(SMOKE)
        assert {"date", "python", "machine", "versions"} <= record["machine"].keys()
        assert {"torch", "transformer-lens", "scikit-learn"} <= record["machine"]["versions"].keys()

    def test_report_needs_no_network(self, smoke_run):
        page = (smoke_run[1] / "report.html").read_text()
        assert page.count("data:image/png;base64,") == 4
        assert not re.findall(r"""(?:src|href)\s*=\s*["']?\s*(?:https?:)?//""", page)
        assert "url(http" not in page
        assert "this size of the study cannot test it" in page
        for finding in findings_in_tables(smoke_run[0].findings):
            assert f"<b>{finding.id}</b>" in page


class TestGoingOn:
    def test_of_a_finished_run_measures_nothing_again(self, copy, smoke_run, undrawn):
        before = times(copy)
        again = run_study(UNCHECKED, SMOKE, copy, workers=1)
        after = times(copy)
        assert after.keys() == before.keys()
        measured = [p for p in before if p.relative_to(copy).parts[0] in ("models", "results", "config.json")]
        assert len(measured) > 40
        assert [str(p.relative_to(copy)) for p in measured if before[p] != after[p]] == []
        assert again.findings == smoke_run[0].findings

    def test_what_is_missing_is_made_again(self, copy, smoke_run, undrawn):
        """The end of one run is lost: only it is made again, with the other split, and with the same numbers."""
        lost = copy / "results/shared-seed0/step-000020.validation_subset.ari.safetensors"
        content = load_result(lost)
        lost.unlink()
        with pytest.raises(InputError, match=f"lacks results/shared-seed0/{lost.name}; start the study again"):
            report_run(STUDY, SMOKE, copy)
        before = times(copy)
        run_study(UNCHECKED, SMOKE, copy, workers=1)
        assert (load_result(lost)["ari"] == content["ari"]).all()
        after = times(copy)
        made_again = [p.name for p in before if "step-" in p.name and after[p] != before[p]]
        assert made_again == ["step-000020.train_subset.ari.safetensors"]
        assert (copy / "findings.json").read_bytes() == (smoke_run[1] / "findings.json").read_bytes()


class TestExchanged:
    """Result files that were exchanged give other numbers: running and reporting refuse them alike."""

    @pytest.fixture(autouse=True)
    def no_training(self, monkeypatch):
        monkeypatch.setattr("mechclust.studies.task_clusters.run.train", never)

    def test_files_of_two_arms(self, copy):
        name = "step-000020.validation_subset.ari.safetensors"
        paths = [copy / "results" / arm / name for arm in ("private-seed0", "shared-seed0")]
        contents = [path.read_bytes() for path in paths]
        assert contents[0] != contents[1]
        for path, content in zip(paths, reversed(contents), strict=True):
            path.write_bytes(content)
        before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
        for call in (
            lambda: report_run(STUDY, SMOKE, copy),
            lambda: run_study(UNCHECKED, SMOKE, copy, workers=1),
            lambda: record_run(copy, copy.parent / "record"),
        ):
            with pytest.raises(InputError, match="is not what this run measured; delete it and run the study again"):
                call()
        assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before
        assert not (copy.parent / "record").exists()

    def test_a_file_of_another_run(self, copy):
        shutil.copy(
            copy / "results/private-seed0/step-000000.validation_subset.ari.safetensors",
            copy / "results/private-seed0/step-000007.validation_subset.ari.safetensors",
        )
        with pytest.raises(InputError, match=r"step-000007.* is not what this run measured"):
            report_run(STUDY, SMOKE, copy)

    def test_a_run_whose_measurements_are_listed_nowhere(self, copy):
        for name in ("mechclust.json", "report.html", "findings.json", "findings.csv"):
            (copy / name).unlink()
        shutil.rmtree(copy / "figures")
        with pytest.raises(InputError, match="is not finished; start the study again"):
            report_run(STUDY, SMOKE, copy)


class NumberedJob(NamedTuple):
    number: int
    stage: int


@dataclass(frozen=True)
class Leaf:
    rate: float = 0.1
    pair: tuple[int, int] = (1, 2)


@dataclass(frozen=True)
class Tree:
    seeds: tuple[int, ...] = (0,)
    leaf: Leaf = field(default_factory=Leaf)
    name: str | None = None


class TestRefusals:
    @pytest.fixture(autouse=True)
    def no_training(self, monkeypatch):
        """Bad input is refused before work starts."""
        monkeypatch.setattr("mechclust.studies.task_clusters.run.train", never)

    @pytest.mark.parametrize(
        ("changes", "difference"),
        [
            ({"seeds": (1, 0)}, "seeds = [0], not [1, 0]; seeds can only be added after these"),
            ({"seeds": (0, 1), "training.lr": 0.5}, "training.lr = 0.001, not 0.5"),  # seeds could be added
        ],
    )
    def test_other_settings_in_the_same_folder(self, copy, changes, difference):
        before = times(copy)
        with pytest.raises(InputError) as refused:
            run_study(UNCHECKED, configure(SMOKE, **changes), copy, workers=1)
        assert str(refused.value) == (
            f"{str(copy)!r} holds another run ({difference}); choose another folder with --out, "
            "or the same settings to continue"
        )
        assert times(copy) == before

    def test_settings_that_are_no_numbers(self, tmp_path):
        study = get_study("cluster-factors")
        with pytest.raises(InputError, match="lr is inf; expected a finite number"):
            run_study(study, configure(study.preset("smoke"), **{"training.lr": math.inf}), tmp_path / "out", workers=1)
        assert not (tmp_path / "out").exists()

    def test_another_study_in_the_same_folder(self, copy):
        with pytest.raises(InputError, match=r"holds another run \(study task-clusters\); choose another folder"):
            run_study(replace(UNCHECKED, name="other"), SMOKE, copy, workers=1)

    def test_a_folder_with_somebody_elses_configuration(self, tmp_path):
        """Such as a model's folder: nothing in it is touched."""
        content = '{"model_type": "gpt2"}'
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(InputError, match="choose another folder with --out"):
            run_study(UNCHECKED, SMOKE, tmp_path, workers=1)
        assert (tmp_path / "config.json").read_text() == content

    def test_a_folder_that_cannot_be_written(self, tmp_path):
        (tmp_path / "file").write_text("")
        out = tmp_path / "file" / "run"
        with pytest.raises(InputError) as refused:
            run_study(UNCHECKED, SMOKE, out, workers=1)
        assert str(refused.value) == (
            f"cannot write to {str(out)!r} (Not a directory); choose another folder with --out"
        )

    def test_unknown_study(self):
        with pytest.raises(InputError) as refused:
            get_study("task-cluster")
        assert str(refused.value) == (
            "no study 'task-cluster' (it has cluster-factors, clustering-heads, heads-in-models, induction-heads, "
            "mossa, planted-layers, task-clusters, topic-structure); "
            "did you mean 'task-clusters'?"
        )

    def test_unknown_preset(self):
        with pytest.raises(InputError) as refused:
            STUDY.preset("fast")
        assert str(refused.value) == "task-clusters has no preset 'fast' (it has smoke, quick, paper, gpt2)"
        with pytest.raises(InputError, match=r"; did you mean 'smoke'\?$"):
            STUDY.preset("smokes")

    def test_unknown_field(self):
        with pytest.raises(InputError, match=r"^TaskClustersConfig has no field 'sedes' .*; did you mean 'seeds'\?$"):
            configure(SMOKE, sedes=(1,))
        with pytest.raises(InputError, match=r"^TrainConfig has no field 'step' .*; did you mean 'steps'\?$"):
            configure(SMOKE, **{"training.step": 3})

    @pytest.mark.parametrize("content", [None, "{", "3"])
    def test_opening_a_folder_without_a_run(self, tmp_path, content):
        if content is not None:
            (tmp_path / "config.json").write_text(content)
        with pytest.raises(InputError) as refused:
            open_run(tmp_path)
        assert str(refused.value) == (
            f"{str(tmp_path)!r} holds no run (no readable config.json); give the --out folder of a run"
        )

    def test_opening_a_run_of_an_unknown_study(self, copy):
        write_json(copy / "config.json", {**read_json(copy / "config.json"), "study": "no-such"})
        with pytest.raises(InputError, match="no study 'no-such'"):
            open_run(copy)

    def test_a_run_whose_configuration_does_not_say_the_machine(self, copy):
        """Its checksum is right: it was written by something else."""
        write_json(copy / "config.json", {**read_json(copy / "config.json"), "machine": "here"})
        before = times(copy)
        said = f"{str(copy)!r} holds no run (no readable config.json); "
        for call, way in (
            (lambda: run_study(UNCHECKED, SMOKE, copy, workers=1), "choose another folder with --out"),
            (lambda: report_run(STUDY, SMOKE, copy), "give the --out folder of a run"),
            (lambda: open_run(copy), "give the --out folder of a run"),
        ):
            with pytest.raises(InputError) as refused:
                call()
            assert str(refused.value) == said + way
        after = times(copy)
        assert [path for path in before if after.get(path) != before[path]] == []

    def test_opening_a_run_with_a_field_that_we_do_not_know(self, copy):
        """As another version might leave it."""
        record = read_json(copy / "config.json")
        record["config"]["temperature"] = 3
        write_json(copy / "config.json", record)
        with pytest.raises(InputError, match="temperature"):
            open_run(copy)


@pytest.mark.parametrize("study", list_studies(), ids=lambda study: study.name)
def test_presets_survive_json(study):
    first, *_ = study.presets.values()
    assert [settings_from_json(first, settings_to_json(config)) for config in study.presets.values()] == [
        *study.presets.values()
    ]


def test_the_headline_counts_the_findings_that_are_judged(tmp_path):
    """Those of the report are replaced, since this size of the study cannot test them."""
    finding = TestDefects.FINDING
    study = replace(
        STUDY,
        load=lambda config, out: None,
        findings=lambda config, results: [finding],
        report=lambda config, results: Analysis([finding]),
    )
    analysis = analyse_run(study, replace(SMOKE, test_findings=False), tmp_path)
    assert analysis.headline == "No finding was tested: this size of the study cannot test it."


def test_findings_of_a_size_that_cannot_test_them_are_not_tested(tmp_path):
    def findings(config, results):
        part = mean_part("", [1.4, 1.5, 1.6], Bound("<", 9))
        small = Finding(id="A1", statement="small", source="ours", parts=(part,), note="nothing to compare with")
        return [small, replace(small, id="A2", not_tested="needs an arm")]

    study = replace(STUDY, findings=findings, load=lambda config, out: None)
    judged = judge_run(study, replace(SMOKE, test_findings=False), tmp_path)
    assert [finding.why_not for finding in judged] == ["this size of the study cannot test it", "needs an arm"]
    assert judged[0].measured == pytest.approx(1.5)
    judged = judge_run(study, replace(SMOKE, test_findings=True), tmp_path)
    assert [finding.verdict for finding in judged] == ["holds", "not tested"]


def test_a_study_of_another_kind(tmp_path, monkeypatch):
    """Jobs make artefacts, the study reads them: nothing in the machinery knows the task-cluster study."""
    made = []

    def job(config, job, out):
        (out / f"{job.number}.txt").write_text(str(job.number * config.leaf.rate))
        made.append(job.number)

    study = Study(
        name="toy",
        title="Toy",
        source="nowhere",
        presets={"only": Tree()},
        trainings=no_trainings,
        jobs=lambda c: [NumberedJob(3, stage=1), NumberedJob(1, stage=0), NumberedJob(2, stage=0)],
        run_job=job,
        trained_models=STUDY.trained_models,
        load=lambda config, out: (out / "2.txt").read_text(),
        findings=lambda config, text: [replace(TestDefects.FINDING, statement=text)],
        report=lambda config, text: Analysis(notes=[text], headline="one is small"),
    )
    monkeypatch.setattr("mechclust.studies.registry.get_study", lambda name: study)
    analysis = run_study(study, study.preset("only"), tmp_path / "run", workers=1)
    assert made == [1, 2, 3]
    assert analysis.notes[:1] == ["0.2"]
    assert analysis.headline == "one is small"
    assert [finding.statement for finding in analysis.findings] == ["0.2"]
    assert "0.2" in Path(tmp_path / "run" / "report.html").read_text()
    assert open_run(tmp_path / "run") == (study, Tree())
    assert os.listdir(tmp_path / "run" / "figures") == [] if (tmp_path / "run" / "figures").exists() else True


class TestDefects:
    """A study that is not complete is refused when it is made, before it runs, or when it is judged."""

    PARTS = (mean_part("", [1.0, 2.0], Bound("<", 9)),)
    FINDING = Finding(id="Q1", statement="small", source="ours", parts=PARTS, note="nothing to compare with")

    @pytest.fixture
    def study(self):
        """A study of one job, which counts how often it ran."""

        def job(config, name, out):
            (out / "results").mkdir(exist_ok=True)
            with (out / "results" / "n.txt").open("a") as file:
                file.write("x")

        return replace(
            STUDY,
            presets={"only": Tree()},
            check=lambda config: None,
            trainings=no_trainings,
            jobs=lambda config: ["once"],
            run_job=job,
            trained_models=lambda config, out: [],
            load=lambda config, out: (out / "results" / "n.txt").read_text(),
            findings=lambda config, text: [self.FINDING],
            report=lambda config, text: Analysis(),
        )

    @pytest.mark.parametrize("name", ["jobs", "load", "findings", "report", "trainings"])
    def test_what_is_no_function_is_refused_at_import(self, study, name):
        with pytest.raises(InputError, match=rf"^{name} of study 'task-clusters' is None; give a function$"):
            replace(study, **{name: None})

    @pytest.mark.parametrize(
        ("presets", "names"),
        [({}, "empty"), ({"one": Leaf()}, "Leaf"), ({"one": Tree(), "two": SMOKE}, "TaskClustersConfig, Tree")],
    )
    def test_presets_that_no_run_could_have_are_refused_at_import(self, study, presets, names):
        with pytest.raises(InputError, match=rf"^presets of study 'task-clusters' are {names}; give one dataclass"):
            replace(study, presets=presets)

    def test_no_jobs_are_refused_before_anything_is_written(self, study, tmp_path):
        with pytest.raises(InputError, match=r"^study 'task-clusters' has no jobs with these settings"):
            run_study(replace(study, jobs=lambda config: []), Tree(), tmp_path / "run", workers=1)
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize(
        ("config", "reason"),
        [
            (replace(Tree(), seeds=(4, 0, 4)), "seeds has 4 twice; give it once"),
            ("only", "the settings of task-clusters are a str; expected a Tree, as in its presets"),
        ],
    )
    def test_settings_that_are_no_runs_of_their_own_are_refused(self, study, tmp_path, config, reason):
        """One seed twice would be two runs that agree, and narrow the interval of a finding."""
        with pytest.raises(InputError, match=f"^{reason}$"):
            run_study(study, config, tmp_path / "run", workers=1)
        assert not (tmp_path / "run").exists()

    def test_findings_may_be_yielded(self, study, tmp_path):
        yielding = replace(study, findings=lambda config, text: iter([self.FINDING]))
        assert run_study(yielding, Tree(), tmp_path, workers=1).findings == [self.FINDING]

    @pytest.mark.parametrize(
        ("findings", "reason"),
        [
            ([replace(FINDING, note="")], "finding 'Q1' has no control; add one, or say in its note why there is none"),
            ([FINDING, FINDING], "findings has 'Q1' twice; give it once"),
        ],
    )
    def test_findings_are_refused_and_nothing_measured_is_lost(self, study, tmp_path, findings, reason):
        with pytest.raises(InputError) as refused:
            run_study(replace(study, findings=lambda config, text: findings), Tree(), tmp_path, workers=1)
        assert str(refused.value) == reason
        assert not (tmp_path / "findings.json").exists()
        assert report_run(study, Tree(), tmp_path).findings == [self.FINDING]
        assert (tmp_path / "results" / "n.txt").read_text() == "x"

    def test_a_check_and_what_was_not_measured_need_no_control(self, study, tmp_path):
        check = replace(self.FINDING, kind="check", note="")
        absent = replace(self.FINDING, id="Q2", parts=(mean_part("", [], Bound("<", 9)),), note="")
        run_study(replace(study, findings=lambda config, text: [check, absent]), Tree(), tmp_path, workers=1)

    def test_a_figure_of_no_measure_says_that_all_is_kept(self, study, tmp_path):
        result = ProbeResult("Demo", {"ari": torch.tensor(0.5)}, {"ari": ()}, {})
        drawn = replace(study, report=lambda config, text: Analysis(panels=[result["cka"]]))
        with pytest.raises(KeyError, match="no measure 'cka'") as failed:
            run_study(drawn, Tree(), tmp_path, workers=1)
        assert f"mechclust report {tmp_path}" in failed.value.__notes__[0]
        assert report_run(study, Tree(), tmp_path).panels == ()
        assert (tmp_path / "results" / "n.txt").read_text() == "x"

    def test_two_figures_of_one_name_are_refused(self, study, tmp_path):
        panel = Panel("values", Figure(figsize=(2, 1)), "values")
        twice = replace(study, report=lambda config, text: Analysis(panels=[panel, panel]))
        with pytest.raises(InputError, match=r"^figures has 'values' twice; give it once"):
            run_study(twice, Tree(), tmp_path, workers=1)
