"""The task-cluster study from beginning to end."""

from __future__ import annotations

import json
import shutil

import pytest

from mechclust.evidence import load_findings
from mechclust.models import load_model, read_saved_model_metadata
from mechclust.studies import get_study
from mechclust.studies.study import Job
from mechclust.studies.task_clusters import TaskClustersConfig
from mechclust.studies.task_clusters.results import load_results
from mechclust.studies.task_clusters.run import trainings
from mechclust.training import load_results_by_step
from probes import load_result
from tasks import InputError, InstructionFollowing
from tests.mechclust.studies.damaged import check_made_whole
from tests.mechclust.studies.recorded import check_judged_again

STUDY = get_study("task-clusters")
SMOKE = STUDY.preset("smoke")
JOBS = ["private-seed0", "instruction-seed0", "shared-seed0"]


class TestSmoke:
    def test_can_be_judged_again_from_its_record(self, smoke_run, tmp_path):
        check_judged_again(smoke_run[1], tmp_path)

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
        assert read_saved_model_metadata(model)["metadata"] == {"step": 20}
        assert load_model(model).cfg.n_layers == 2

    def test_figures(self, smoke_run):
        figures = sorted((smoke_run[1] / "figures").glob("*.png"))
        names = ["accuracy_and_loss", "ari_by_layer", "ari_over_training", "projection"]
        assert [p.name for p in figures] == [f"{name}.png" for name in names]
        assert sorted(panel.name for panel in smoke_run[0].panels) == names
        for path in figures:
            assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
            assert path.stat().st_size > 5_000

    def test_findings(self, smoke_run):
        analysis, out = smoke_run
        records = json.loads((out / "findings.json").read_text(), parse_constant=pytest.fail)
        assert [record["id"] for record in records] == [f"T{i}" for i in range(1, 11)]
        assert {record["verdict"] for record in records} == {"not tested"}
        assert {record["not_tested"] for record in records} == {"this size of the study cannot test it"}
        for record in records:
            for part in record["parts"]:
                assert len(part["values"]) == 1
                assert part["interval"] is None  # one seed
        assert load_findings(out / "findings.json") == list(analysis.findings)

    def test_the_headline_is_what_was_measured(self, smoke_run):
        analysis, out = smoke_run
        after = load_results_by_step(out / "results" / "private-seed0", "validation_subset.ari")[20]
        assert f"{float(after.sel('ari', label='task')[2]):z.2f} after training" in analysis.headline
        assert len(analysis.headline.split()) <= 25
        assert analysis.headline in (out / "report.html").read_text(encoding="utf-8")

    def test_curves_are_what_was_measured(self, smoke_run):
        out = smoke_run[1]
        curves = load_results(SMOKE, out, Job("private", 0))
        assert curves.steps.tolist() == SMOKE.training.checkpoint_steps
        sites = ["hook_embed", "blocks.0.hook_resid_post", "blocks.1.hook_resid_post", "unembed.hook_in"]
        end = load_result(out / "results/private-seed0/step-000020.validation_subset.ari.safetensors")
        assert end.coords == {"site": sites, "label": ["task", "output"]}
        assert curves.ari["validation_subset"][-1].tolist() == end["ari"][:, 0].tolist()
        assert curves.output_ari[-1].tolist() == end["ari"][:, 1].tolist()
        for i, name in enumerate(("null_low", "null_high", "null_mean")):
            assert curves.null[-1, :, i].tolist() == end[name][:, 0].tolist()
        assert curves.null[:, 0, 0] == pytest.approx(curves.ari["validation_subset"][:, 0])  # layer 0 is x itself
        assert len(curves.loss) == 20
        assert curves.tsne is not None

    def test_the_seed_of_a_run_is_the_seed_of_its_data_and_weights(self, smoke_run):
        record = read_saved_model_metadata(smoke_run[1] / "models/private-seed0/step-000020.safetensors")
        assert record["config"]["seed"] == 0


class TestPresets:
    def test_private_outputs_do_not_overlap(self):
        with pytest.raises(InputError, match=r"^task.overlap is set by each run, from seeds and arms; leave it out$"):
            TaskClustersConfig(task=InstructionFollowing(overlap=1.0), arms=("private",))

    @pytest.mark.parametrize("name", ["n_layers", "shared_outputs"])
    def test_one_layer_has_no_rise_and_one_output_no_clusters(self, name):
        with pytest.raises(InputError, match=rf"^{name} is 1; expected at least 2$"):
            TaskClustersConfig(**{name: 1})

    def test_tied_is_an_option(self):
        (training,) = trainings(TaskClustersConfig(arms=("private",), tied=True))
        assert training.model.tied

    def test_have_a_job_a_seed_and_arm(self):
        config = TaskClustersConfig(seeds=(0, 3), arms=("private", "shared"))
        jobs = STUDY.jobs(config)
        assert [(j.arm, j.seed) for j in jobs] == [("private", 0), ("shared", 0), ("private", 3), ("shared", 3)]
        assert len({j.name for j in jobs}) == 4


@pytest.mark.slow
def test_what_is_lost_or_damaged_is_made_again(smoke_run, tmp_path):
    check_made_whole(STUDY, SMOKE, shutil.copytree(smoke_run[1], tmp_path / "run"))
