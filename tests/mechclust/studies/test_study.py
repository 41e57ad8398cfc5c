"""A study from beginning to end, its folder, and going on with it."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from mechclust.models import load_model, read_metadata
from mechclust.report import Analysis, load_claims
from mechclust.studies import configure, get_study, list_studies, open_run, run_study, write_report
from mechclust.studies.study import from_dict, to_dict
from mechclust.studies.task_clusters.claims import load_curves
from mechclust.studies.task_clusters.study import Job, TaskClustersConfig
from probes import load_result
from tasks import InputError

STUDY = get_study("task-clusters")
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
            "claims.json", "config.json", "figures", "models", "report.html", "results",
        ]  # fmt: skip
        assert sorted(p.name for p in (out / "models").iterdir()) == sorted(JOBS)
        assert sorted(p.name for p in (out / "results").iterdir()) == sorted(JOBS)
        assert not [p for p in out.rglob("*") if p.name.endswith(".tmp")]

    @pytest.mark.parametrize("job", JOBS)
    def test_artefacts_of_a_job(self, smoke_run, job):
        results, steps = smoke_run[1] / "results" / job, SMOKE.training.checkpoint_steps
        splits = ("train_subset", "validation_subset")
        expected = {f"step-{s:06d}.{split}.ari.safetensors" for s in steps for split in splits}
        expected |= {f"step-{s:06d}.validation_subset.accuracy.safetensors" for s in steps}
        expected |= {"step-000020.validation_subset.ari-tsne.safetensors", "loss.safetensors"}
        if job == JOBS[0]:
            expected |= {f"step-{s:06d}.validation_subset.projection.safetensors" for s in (0, 4, 20)}
        assert {p.name for p in results.iterdir()} == expected
        for path in results.iterdir():
            assert load_result(path).values
        model = smoke_run[1] / "models" / job / "step-000020.safetensors"
        assert read_metadata(model)["metadata"] == {"step": 20}
        assert load_model(model).cfg.n_layers == 2

    def test_figures(self, smoke_run):
        figures = sorted((smoke_run[1] / "figures").iterdir())
        names = ["accuracy_and_loss", "ari_by_layer", "ari_over_training", "projection"]
        assert [p.name for p in figures] == [f"{name}.png" for name in names]
        assert sorted(panel.name for panel in smoke_run[0].panels) == names
        for path in figures:
            assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
            assert path.stat().st_size > 5_000

    def test_claims(self, smoke_run):
        analysis, out = smoke_run
        records = json.loads((out / "claims.json").read_text(), parse_constant=pytest.fail)
        assert [record["id"] for record in records] == [f"T{i}" for i in range(1, 11)]
        for record in records:
            assert record.keys() >= {
                "id", "statement", "source", "paper", "measured", "interval", "seeds", "bound", "holds",
            }  # fmt: skip
            assert isinstance(record["statement"], str)
            assert isinstance(record["source"], str)
            assert isinstance(record["bound"], str)
            assert record["paper"] is None
            assert isinstance(record["measured"], float)
            assert record["interval"] is None  # one seed
            assert record["seeds"] == 1
            assert record["holds"] is None  # not tested at this size
        assert load_claims(out / "claims.json") == list(analysis.claims)

    def test_configuration_is_kept_with_machine_and_versions(self, smoke_run):
        record = json.loads((smoke_run[1] / "config.json").read_text())
        assert record["study"] == "task-clusters"
        assert record["config"] == to_dict(SMOKE)
        assert {"date", "python", "machine", "versions"} <= record["machine"].keys()
        assert {"torch", "transformer-lens", "scikit-learn"} <= record["machine"]["versions"].keys()

    def test_report_needs_no_network(self, smoke_run):
        page = (smoke_run[1] / "report.html").read_text()
        assert page.count("data:image/png;base64,") == 4
        assert not re.findall(r"""(?:src|href)\s*=\s*["']?\s*(?:https?:)?//""", page)
        assert "url(http" not in page
        assert "not tested at this size" in page
        assert "Attention of run private-seed0" in page
        for claim in smoke_run[0].claims:
            assert f"<b>{claim.id}</b>" in page

    def test_curves_are_what_was_measured(self, smoke_run):
        out = smoke_run[1]
        curves = load_curves(SMOKE, out, Job("private", 0))
        assert curves.steps.tolist() == SMOKE.training.checkpoint_steps
        sites = ["hook_embed", "blocks.0.hook_resid_post", "blocks.1.hook_resid_post", "unembed.hook_in"]
        end = load_result(out / "results/private-seed0/step-000020.validation_subset.ari.safetensors")
        assert end.coords == {"site": sites, "label": ["task", "output"]}
        assert curves.ari["validation_subset"][-1].tolist() == end["ari"][:, 0].tolist()
        assert curves.output_ari[-1].tolist() == end["ari"][:, 1].tolist()
        assert curves.null[-1].tolist() == [[float(a), float(b)] for a, b in zip(
            end["null_low"][:, 0], end["null_high"][:, 0], strict=True
        )]  # fmt: skip
        assert len(curves.loss) == 20
        assert curves.tsne is not None

    def test_the_seed_of_a_run_is_the_seed_of_its_data_and_weights(self, smoke_run):
        record = read_metadata(smoke_run[1] / "models/private-seed0/step-000020.safetensors")
        assert record["config"]["seed"] == 0


class TestGoingOn:
    def test_of_a_finished_run_measures_nothing_again(self, copy, smoke_run):
        before = times(copy)
        again = run_study(STUDY, SMOKE, copy, workers=1)
        after = times(copy)
        assert after.keys() == before.keys()
        measured = [p for p in before if p.relative_to(copy).parts[0] in ("models", "results", "config.json")]
        assert len(measured) > 40
        assert [str(p.relative_to(copy)) for p in measured if before[p] != after[p]] == []
        assert again.claims == smoke_run[0].claims

    def test_what_is_missing_is_made_again(self, copy, smoke_run, monkeypatch):
        """The end of one run is lost: only it is made again, with the same numbers."""
        lost = copy / "results/shared-seed0/step-000020.validation_subset.ari.safetensors"
        content = load_result(lost)
        lost.unlink()
        with pytest.raises(InputError, match="lacks the end of run shared-seed0; start the study again"):
            write_report(STUDY, SMOKE, copy)
        before = times(copy)
        run_study(STUDY, SMOKE, copy, workers=1)
        assert (load_result(lost)["ari"] == content["ari"]).all()
        after = times(copy)
        assert [p.name for p in before if "step-" in p.name and after[p] != before[p]] == []
        assert (copy / "claims.json").read_bytes() == (smoke_run[1] / "claims.json").read_bytes()

    def test_report_is_written_anew(self, copy, smoke_run):
        for name in ("claims.json", "report.html"):
            (copy / name).unlink()
        shutil.rmtree(copy / "figures")
        study, config = open_run(copy)
        assert config == SMOKE
        assert write_report(study, config, copy).claims == smoke_run[0].claims
        assert (copy / "claims.json").read_bytes() == (smoke_run[1] / "claims.json").read_bytes()
        assert (copy / "report.html").exists()
        assert len(list((copy / "figures").iterdir())) == 4


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
        monkeypatch.setattr("mechclust.studies.task_clusters.study.train", never)

    @pytest.mark.parametrize(
        ("changes", "difference"),
        [
            ({"seeds": (0, 1)}, "seeds = [0], not [0, 1]"),
            ({"training.lr": 0.5}, "training.lr = 0.001, not 0.5"),
            ({"task.n_symbols": 9}, "task.n_symbols = 20, not 9"),
            ({"tsne": False}, "tsne = True, not False"),
        ],
    )
    def test_other_settings_in_the_same_folder(self, copy, changes, difference):
        before = times(copy)
        with pytest.raises(InputError) as refused:
            run_study(STUDY, configure(SMOKE, **changes), copy, workers=1)
        assert str(refused.value) == (
            f"{str(copy)!r} holds another run ({difference}); choose another folder with --out, "
            "or the same settings to go on"
        )
        assert times(copy) == before

    def test_another_study_in_the_same_folder(self, copy):
        with pytest.raises(InputError, match=r"holds another run \(study task-clusters\); choose another folder"):
            run_study(replace(STUDY, name="other"), SMOKE, copy, workers=1)

    @pytest.mark.parametrize("content", ['{"model_type": "gpt2"}', "{", "[]", '{"study": "task-clusters"}'])
    def test_a_folder_with_somebody_elses_configuration(self, tmp_path, content):
        """Such as a model's folder: nothing in it is touched."""
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(InputError, match="choose another folder with --out"):
            run_study(STUDY, SMOKE, tmp_path, workers=1)
        assert (tmp_path / "config.json").read_text() == content

    def test_a_folder_that_cannot_be_written(self, tmp_path):
        (tmp_path / "file").write_text("")
        out = tmp_path / "file" / "run"
        with pytest.raises(InputError) as refused:
            run_study(STUDY, SMOKE, out, workers=1)
        assert str(refused.value) == (
            f"cannot write to {str(out)!r} (Not a directory); choose another folder with --out"
        )

    def test_unknown_study(self):
        with pytest.raises(InputError) as refused:
            get_study("task-cluster")
        assert str(refused.value) == (
            "no study 'task-cluster' (it has clustering-heads, mossa, task-clusters, topic-structure); "
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

    @pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", "3", '{"study": "task-clusters"}'])
    def test_opening_a_folder_without_a_run(self, tmp_path, content):
        if content is not None:
            (tmp_path / "config.json").write_text(content)
        with pytest.raises(InputError) as refused:
            open_run(tmp_path)
        assert str(refused.value) == (
            f"{str(tmp_path)!r} holds no run (no readable config.json); give the --out folder of a run"
        )

    def test_opening_a_run_of_an_unknown_study(self, copy):
        record = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps({**record, "study": "no-such"}))
        with pytest.raises(InputError, match="no study 'no-such'"):
            open_run(copy)

    def test_opening_a_run_with_a_field_that_we_do_not_know(self, copy):
        """As another version might leave it."""
        record = json.loads((copy / "config.json").read_text())
        record["config"]["temperature"] = 3
        (copy / "config.json").write_text(json.dumps(record))
        with pytest.raises(InputError, match="temperature"):
            open_run(copy)


class TestConfigure:
    def test_nested(self):
        changed = configure(Tree(), **{"leaf.rate": 0.5, "seeds": (1, 2), "leaf.pair": (3, 4)})
        assert changed == Tree(seeds=(1, 2), leaf=Leaf(0.5, (3, 4)))
        assert Tree() == Tree(seeds=(0,), leaf=Leaf())

    def test_nothing(self):
        assert configure(Tree()) == Tree()

    def test_values_are_checked(self):
        with pytest.raises(InputError, match="steps is 0; expected at least 1"):
            configure(SMOKE, **{"training.steps": 0})

    def test_round_trip_through_json(self):
        tree = Tree(seeds=(4, 5), leaf=Leaf(0.3, (7, 8)), name="x")
        assert from_dict(Tree(), json.loads(json.dumps(to_dict(tree)))) == tree
        for config in STUDY.presets.values():
            assert from_dict(SMOKE, to_dict(config)) == config


class TestPresets:
    def test_are_those_that_are_promised(self):
        assert list(STUDY.presets) == ["smoke", "quick", "paper", "gpt2"]
        names = ["clustering-heads", "mossa", "task-clusters", "topic-structure"]
        assert [study.name for study in list_studies()] == names
        quick, paper, large = (STUDY.preset(name) for name in ("quick", "paper", "gpt2"))
        assert (quick.task.n_tasks, quick.d_model) == (20, 64)
        assert (paper.task.n_tasks, paper.d_model, len(paper.seeds), paper.n_layers) == (50, 128, 3, 6)
        assert paper.arms == ("private", "instruction", "shared")
        assert (large.d_model, large.n_heads) == (768, 12)
        assert [STUDY.preset(name).test_claims for name in STUDY.presets] == [False, True, True, True]

    def test_have_a_job_a_seed_and_arm(self):
        config = TaskClustersConfig(seeds=(0, 3), arms=("private", "shared"))
        jobs = STUDY.jobs(config)
        assert [(j.arm, j.seed) for j in jobs] == [("private", 0), ("shared", 0), ("private", 3), ("shared", 3)]
        assert len({j.name for j in jobs}) == 4


def test_a_study_of_another_kind(tmp_path, monkeypatch):
    """Jobs make artefacts, the analysis reads them: nothing in the machinery knows the task-cluster study."""
    made = []

    def job(config, n, out):
        (out / f"{n}.txt").write_text(str(n * config.leaf.rate))
        made.append(n)

    def analyse(config, out):
        return Analysis(claims=(), notes=[(out / "2.txt").read_text()])

    study = replace(
        STUDY,
        name="toy",
        title="Toy",
        presets={"only": Tree()},
        jobs=lambda c: [3, 1, 2],
        run_job=job,
        analyse=analyse,
        stage=lambda n: n // 3,  # 3 comes after 1 and 2
    )
    monkeypatch.setattr("mechclust.studies.registry.get_study", lambda name: study)
    analysis = run_study(study, study.preset("only"), tmp_path / "run", workers=1)
    assert made == [1, 2, 3]
    assert analysis.notes == ["0.2"]
    assert "0.2" in Path(tmp_path / "run" / "report.html").read_text()
    assert open_run(tmp_path / "run") == (study, Tree())
    assert os.listdir(tmp_path / "run" / "figures") == [] if (tmp_path / "run" / "figures").exists() else True
