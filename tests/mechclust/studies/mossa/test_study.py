"""The MOSSA study: its models are the specification's, what it measures is theirs, its findings follow from it."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from mechclust.models import load_model
from mechclust.models.weights import get_weights
from mechclust.studies import get_study, run_study
from mechclust.studies.mossa.config import FROZEN, ModelJob, MossaConfig, jobs, result_path, suite_of
from mechclust.studies.mossa.results import groups_table, load_results
from mechclust.studies.mossa.run import block_sites, prompt_end_readout
from mechclust.training import TrainConfig
from mechclust.training.task_accuracy import accuracy
from probes import CKA, load_result, run
from probes.functional import linear_cka
from tasks import InputError, SkillSuite
from tests.mechclust.studies.damaged import check_made_whole
from tests.mechclust.studies.mossa.made import measured
from tests.mechclust.studies.recorded import check_judged_again

PAPER = MossaConfig()
STUDY = get_study("mossa")
SMALL = replace(
    STUDY.preset("smoke"),
    pretraining=TrainConfig(steps=1, batch_size=8),
    tuning=TrainConfig(steps=1, batch_size=8, layer_decay=0.5, freeze=FROZEN),
    control_steps=1,
)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """A run smaller than the smoke preset, from beginning to end: analysis, folder. Read only."""
    out = tmp_path_factory.mktemp("mossa") / "run"
    return run_study(STUDY, SMALL, out, workers=1), out


class TestJobs:
    def test_train_before_they_measure(self):
        kinds = {stage: {j.kind for j in jobs(PAPER) if j.stage == stage} for stage in (0, 1, 2)}
        assert kinds == {0: {"base"}, 1: {"tuned", "control"}, 2: {"measure", "describe"}}

    def test_are_one_base_one_tuned_and_a_control_a_skill_the_seen_ones_twice(self):
        own = [j for j in jobs(PAPER) if j.seed == 101]
        assert len(own) == len({j.name for j in own})
        count = {kind: sum(j.kind == kind for j in own) for kind in ("base", "tuned", "control", "measure")}
        assert count == {"base": 1, "tuned": 1, "control": 42, "measure": 1}
        for fields, number in (({}, 24), ({"controls": "seen"}, 18)):
            some = jobs(replace(PAPER, ceiling=False, **fields))
            assert sum(j.kind == "control" for j in some if j.seed == 101) == number

    def test_a_control_sees_its_skill_as_often_as_the_multi_task_model_does(self):
        for name in ("quick", "paper", "lora", "layer-decay"):
            config = STUDY.preset(name)
            assert config.control_steps * len(config.suite.seen) == config.tuning.steps
            assert config.suite.n_eval >= 10 * config.d_model  # so that C10 can be tested


class TestRun:
    def test_can_be_judged_again_from_its_record(self, smoke, tmp_path):
        check_judged_again(smoke[1], tmp_path)

    def test_writes_figures_findings_and_a_report(self, smoke):
        analysis, out = smoke
        assert [c.id for c in analysis.findings] == [f"C{i}" for i in (*range(1, 13), 14, 18, 19, 20)]
        assert {c.verdict for c in analysis.findings} == {"not tested"}
        for panel in analysis.panels:
            assert (out / "figures" / f"{panel.name}.png").stat().st_size > 5000
        named = {axis.get_title(): axis for panel in analysis.panels for axis in panel.figure.axes}
        assert named["interquartile range over seen tasks"].get_ylabel() == "CKA"
        assert named["interquartile range over seen tasks"].get_ylim()[0] == 0
        page = (out / "report.html").read_text()
        assert "partly by construction" in page
        assert "Layer groups by the fixed rule" in page
        assert "http://" not in page.replace("http://www.w3.org", "")

    def test_says_that_embeddings_do_not_change_only_if_they_are_frozen(self, smoke):
        results = STUDY.load(SMALL, smoke[1])
        for freeze, is_said in ((FROZEN, True), (("unembed",), False)):
            notes = " ".join(STUDY.report(replace(SMALL, tuning=replace(SMALL.tuning, freeze=freeze)), results).notes)
            assert ("does not change the embeddings" in notes) == is_said

    def test_keeps_models_and_no_training_state(self, smoke):
        _, out = smoke
        files = sorted(p.name for p in (out / "models" / "seed0").iterdir())
        skills = SMALL.suite.task_names
        expected = [
            "base",
            "tuned",
            *(f"control-{s}" for s in skills),
            *(f"control-{s}-again" for s in SMALL.suite.seen),
        ]
        assert files == sorted(f"{name}.safetensors" for name in expected)

    def test_embeddings_stay_those_of_the_base_and_blocks_do_not(self, smoke):
        _, out = smoke
        base, tuned, one, again = (
            load_model(out / "models" / "seed0" / f"{name}.safetensors")
            for name in ("base", "tuned", "control-copy-0", "control-copy-0-again")
        )
        from mechclust.models.weights import get_weights

        weights = [get_weights(model) for model in (base, tuned, one, again)]
        for name in ("embed.W_E", "pos_embed.W_pos", "unembed.W_U"):
            assert all(torch.equal(weights[0][name], other[name]) for other in weights)
        mlp = [w["blocks.1.mlp.W_in"] for w in weights]
        assert not any(torch.equal(mlp[i], mlp[j]) for i in range(4) for j in range(i))

    def test_similarities_are_those_of_the_saved_models(self, smoke):
        _, out = smoke
        suite, skill = suite_of(SMALL, 0), "swap-1"
        batch = next(suite.batches("test", tasks=[skill]))
        folder = out / "models" / "seed0"
        models = {"x": "tuned", "y": f"control-{skill}"}
        loaded = {k: load_model(folder / f"{name}.safetensors") for k, name in models.items()}
        kept = {}
        for name, model in loaded.items():
            _, cache = model.run_with_cache(batch.tokens)
            kept[name] = cache["blocks.1.hook_resid_post"][:, suite.answer_position]
        saved = load_result(result_path(out, 0, f"{skill}.tuned"))
        for measure, debiased in (("cka", False), ("debiased_cka", True)):
            value = float(linear_cka(kept["x"], kept["y"], debiased=debiased))
            assert float(saved.sel(measure, label="all")[1]) == pytest.approx(value, abs=1e-9)
        whole = run(loaded, batch, CKA(at=block_sites(SMALL), readout=prompt_end_readout()))
        assert torch.equal(saved["debiased_cka"], whole["debiased_cka"])

    def test_accuracy_is_that_of_the_saved_models(self, smoke):
        _, out = smoke
        found = load_results(SMALL, out, 0)
        suite = suite_of(SMALL, 0)
        model = load_model(out / "models" / "seed0" / "tuned.safetensors")
        expected = [accuracy(model, suite, "test", tasks=[name])[0] for name in suite.task_names]
        assert found.accuracy["tuned"].tolist() == expected
        assert found.seen.tolist() == [name in suite.seen for name in suite.task_names]
        assert found.identity < 1e-9

    @pytest.mark.parametrize("measure", ["itself", "rotated"])
    def test_an_identity_that_is_undefined_is_no_number(self, measure, smoke, tmp_path):
        copy = shutil.copytree(smoke[1], tmp_path / "run")
        identity = load_result(result_path(copy, 0, "identity"))
        identity[measure][0] = torch.nan
        identity.save(result_path(copy, 0, "identity"))
        assert np.isnan(load_results(SMALL, copy, 0).identity)

    @pytest.mark.slow
    def test_goes_on_where_it_was(self, smoke, undrawn, tmp_path):
        analysis, out = smoke
        copy = tmp_path / "run"
        shutil.copytree(out, copy)
        for path in (
            copy / "models" / "seed0" / "control-type-0.safetensors",
            result_path(copy, 0, "type-0.tuned"),
            result_path(copy, 0, "base.dims"),
        ):
            path.unlink()
        others = {p: p.stat().st_mtime_ns for p in copy.rglob("*.safetensors")}
        again = run_study(STUDY, SMALL, copy, workers=1)
        assert {p: p.stat().st_mtime_ns for p in others} == others
        assert repr(again.findings) == repr(analysis.findings)  # the same bits (NaN is not equal to itself)

    @pytest.mark.slow
    def test_leftovers_of_a_killed_run_are_in_nobodys_way(self, smoke, undrawn, tmp_path):
        """Killed while it wrote the training state, and killed between the model and the state's end."""
        _, out = smoke
        copy = tmp_path / "run"
        shutil.copytree(out, copy)
        models = copy / "models" / "seed0"
        (models / "control-type-0.safetensors").unlink()
        for name in ("control-type-0", "control-type-1"):
            (models / name).mkdir()
            (models / name / ".state.safetensors.7.tmp").write_bytes(b"half")
        run_study(STUDY, SMALL, copy, workers=1)
        assert [p for p in models.iterdir() if p.is_dir()] == []

    def test_dimensions_and_purity_are_of_the_seen_skills(self, smoke):
        _, out = smoke
        n = len(SMALL.suite.seen)
        dims, purity = (load_result(result_path(out, 0, f"tuned.{name}")) for name in ("dims", "purity"))
        assert int(dims.sel("n", label="all")) == n * SMALL.suite.n_eval
        assert purity.metadata["n"]["all"] == n * SMALL.n_purity

    def test_a_missing_measurement_is_named(self, smoke, tmp_path):
        _, out = smoke
        copy = tmp_path / "run"
        shutil.copytree(out, copy)
        result_path(copy, 0, "copy-1.base").unlink()
        with pytest.raises(InputError) as refused:
            load_results(SMALL, copy, 0)
        assert str(refused.value).endswith(
            "lacks results/seed0/copy-1.base.safetensors; start the study again with the same --out"
        )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"suite": SkillSuite(seed=1)}, "suite.seed is set by each run; leave it out"),
        ({"suite": SkillSuite(skills=("copy-0",))}, "suite.skills is set by each run; leave it out"),
        ({"suite": SkillSuite(n_eval=3)}, "suite.n_eval is 3; CKA needs at least 4 prompts per skill"),
        ({"control_steps": 0}, "control_steps is 0; expected at least 1"),
        ({"n_projected": 3}, "n_projected is 3; expected at least 4"),
        (
            {"n_neighbours": 20, "n_purity": 1},
            "n_neighbours is 20, of 18 prompts (n_purity of each seen skill); lower it",
        ),
        (
            {"control_steps": 20},
            "control_steps is 20, and tuning.warmup 20; expected more steps than that, or the learning rate is "
            "never reached",
        ),
        (
            {"pretraining": TrainConfig(steps=10, warmup=50)},
            "pretraining.steps is 10, and pretraining.warmup 50; expected more steps than that, or the learning rate "
            "is never reached",
        ),
        (
            {"tuning": TrainConfig(steps=20, warmup=20)},
            "tuning.steps is 20, and tuning.warmup 20; expected more steps than that, or the learning rate is never "
            "reached",
        ),
        (
            {"rank": 4, "tuning": TrainConfig(layer_decay=0.5)},
            "tuning.layer_decay is 0.5 and rank 4; use only one",
        ),
        ({"seeds": ()}, "seeds is empty; expected at least one seed, such as --seeds 0"),
    ],
)
def test_refusals(fields, message):
    with pytest.raises(InputError) as refused:
        MossaConfig(**fields)
    assert str(refused.value) == message


def test_each_arm_differs_from_the_main_one_in_one_thing():
    arms = {name: STUDY.preset(name) for name in ("lora", "layer-decay", "equal-steps")}
    assert (arms["lora"].rank, arms["layer-decay"].tuning.layer_decay) == (8, 0.5)
    assert arms["equal-steps"].control_steps == arms["equal-steps"].tuning.steps
    for arm in arms.values():
        assert set(arm.seeds) < set(PAPER.seeds)  # their bases are the main arm's
        assert (arm.pretraining, arm.suite, arm.n_layers, arm.d_model) == (
            PAPER.pretraining, PAPER.suite, PAPER.n_layers, PAPER.d_model,
        )  # fmt: skip


class TestArms:
    def test_low_rank_changes_queries_and_values_alone(self, tmp_path):
        config = replace(SMALL, rank=2, tuning=replace(SMALL.tuning, layer_decay=1.0, lr=1e-2), controls="seen")
        for job in (ModelJob("base", 0), ModelJob("control", 0, "copy-0")):
            STUDY.run_job(config, job, tmp_path)
        base, control = (
            get_weights(load_model(ModelJob(kind, 0, skill).model_path(tmp_path)))
            for kind, skill in (("base", ""), ("control", "copy-0"))
        )
        changed = {name.split(".", 2)[-1] for name in base if not torch.equal(base[name], control[name])}
        assert changed == {"attn.W_Q", "attn.W_V"}
        change = (control["blocks.1.attn.W_V"] - base["blocks.1.attn.W_V"]).transpose(0, 1).reshape(16, 16)
        assert int(torch.linalg.matrix_rank(change, tol=1e-6)) == 2
        times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
        STUDY.run_job(config, ModelJob("control", 0, "copy-0"), tmp_path)
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")} == times

    @pytest.mark.slow
    def test_without_controls_of_held_out_skills(self, tmp_path):
        config = replace(SMALL, controls="seen", ceiling=False)
        analysis = run_study(STUDY, config, tmp_path / "run", workers=1)
        found = load_results(config, tmp_path / "run", 0)
        assert found.names == tuple(name for name in SMALL.suite.task_names if name in SMALL.suite.seen)
        assert found.seen.all()
        accuracies = load_result(result_path(tmp_path / "run", 0, "accuracy"))
        for name, value in zip(found.names, found.accuracy["tuned"], strict=True):
            assert value == accuracies["accuracy"][1, accuracies.coords["task"].index(name)]
        assert {c.verdict for c in analysis.findings} == {"not tested"}

    @pytest.mark.slow
    def test_held_out_skills_turn_with_the_seed(self, smoke, undrawn, tmp_path):
        config = replace(SMALL, seeds=(0, 1))
        run_study(STUDY, config, shutil.copytree(smoke[1], tmp_path / "run"), workers=1)
        one, other = (load_results(config, tmp_path / "run", seed) for seed in (0, 1))
        assert one.seen.tolist() == [name in SMALL.suite.seen for name in SMALL.suite.task_names]
        assert other.seen.tolist() == [not seen for seen in one.seen]  # of two arguments the other one
        again = {path.name for path in (tmp_path / "run" / "models" / "seed1").glob("*-again.safetensors")}
        assert again == {f"control-{n}-again.safetensors" for n, s in zip(other.names, other.seen, strict=True) if s}


def test_over_four_seeds_each_skill_is_held_out_once():
    held = [set(SkillSuite().task_names) - set(suite_of(PAPER, seed).seen) for seed in range(100, 104)]
    assert all(len(each) == 6 for each in held)
    assert len(set.union(*held)) == 24


def test_without_held_out_tasks_there_are_no_groups_of_them():
    without = replace(measured(), seen=np.ones(24, dtype=bool), ceiling=None)
    assert groups_table((3,), [without]).iloc[0, 2] == "no controls"


@pytest.mark.slow
def test_what_is_lost_or_damaged_is_made_again(smoke, tmp_path):
    check_made_whole(STUDY, SMALL, shutil.copytree(smoke[1], tmp_path / "run"))
