"""The MOSSA study: its models are the specification's, what it measures is theirs, its claims follow from it."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from mechclust.models import load_model, read_metadata
from mechclust.report.claims import lacking_severity
from mechclust.studies import get_study, run_study
from mechclust.studies.mossa.claims import claims_of
from mechclust.studies.mossa.config import ModelJob, MossaConfig, jobs, result_path, suite_of
from mechclust.studies.mossa.results import SeedResults, groups_table, load_results, medians_table
from mechclust.studies.mossa.run import readout, sites
from mechclust.training import TrainConfig
from mechclust.training.callbacks import accuracy
from probes import CKA, load_result, run
from probes.functional import linear_cka
from probes.identity import fingerprint
from tasks import InputError, SkillSuite
from tests.mechclust.studies.damaged import check_made_whole

PAPER = MossaConfig()
STUDY = get_study("mossa")
SMOKE = STUDY.preset("smoke")


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """The smoke preset from beginning to end: analysis, folder. Read only."""
    out = tmp_path_factory.mktemp("mossa") / "run"
    return run_study(STUDY, SMOKE, out, workers=1), out


class TestJobs:
    def test_train_before_they_measure(self):
        kinds = {stage: {j.kind for j in jobs(PAPER) if STUDY.stage(j) == stage} for stage in (0, 1, 2)}
        assert kinds == {0: {"base"}, 1: {"tuned", "control"}, 2: {"measure", "describe"}}

    def test_are_one_base_one_tuned_and_a_control_a_skill_the_seen_ones_twice(self):
        own = [j for j in jobs(PAPER) if j.seed == 31]
        assert len(own) == len({j.name for j in own})
        count = {kind: sum(j.kind == kind for j in own) for kind in ("base", "tuned", "control", "measure")}
        assert count == {"base": 1, "tuned": 1, "control": 36, "measure": 1}
        assert sum(j.kind == "control" for j in jobs(replace(PAPER, ceiling=False)) if j.seed == 31) == 24

    def test_a_control_sees_its_skill_as_often_as_the_multi_task_model_does(self):
        for name in ("quick", "paper"):
            config = STUDY.preset(name)
            assert config.control_steps * len(config.suite.seen) == config.tuning.steps
            assert config.suite.n_eval >= 10 * config.d_model  # so that C10 can be tested


class TestRun:
    def test_writes_figures_claims_and_a_report(self, smoke):
        analysis, out = smoke
        assert [c.id for c in analysis.claims] == [f"C{i}" for i in range(1, 12)]
        assert {c.verdict for c in analysis.claims} == {"not tested"}
        assert lacking_severity(analysis.claims) == []
        for panel in analysis.panels:
            assert (out / "figures" / f"{panel.name}.png").stat().st_size > 5000
        page = (out / "report.html").read_text()
        assert "partly by construction" in page
        assert "Layer groups by the rule" in page
        assert "http://" not in page.replace("http://www.w3.org", "")

    def test_keeps_models_and_no_training_state(self, smoke):
        _, out = smoke
        files = sorted(p.name for p in (out / "models" / "seed0").iterdir())
        skills = SMOKE.suite.task_names
        expected = [
            "base",
            "tuned",
            *(f"control-{s}" for s in skills),
            *(f"control-{s}-again" for s in SMOKE.suite.seen),
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
        suite, skill = suite_of(SMOKE, 0), "swap-1"
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
        whole = run(loaded, batch, CKA(at=sites(SMOKE), readout=readout()))
        assert torch.equal(saved["debiased_cka"], whole["debiased_cka"])

    def test_accuracy_is_that_of_the_saved_models(self, smoke):
        _, out = smoke
        found = load_results(SMOKE, out, 0)
        suite = suite_of(SMOKE, 0)
        model = load_model(out / "models" / "seed0" / "tuned.safetensors")
        expected = [accuracy(model, suite, "test", tasks=[name])[0] for name in suite.task_names]
        assert found.accuracy["tuned"].tolist() == expected
        assert found.seen.tolist() == [name in suite.seen for name in suite.task_names]
        assert found.identity < 1e-9

    def test_goes_on_where_it_was(self, smoke, tmp_path):
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
        again = run_study(STUDY, SMOKE, copy, workers=1)
        assert {p: p.stat().st_mtime_ns for p in others} == others
        assert repr(again.claims) == repr(analysis.claims)  # the same bits (NaN is not equal to itself)

    def test_leftovers_of_a_killed_run_are_in_nobodys_way(self, smoke, tmp_path):
        """Killed while it wrote the training state, and killed between the model and the state's end."""
        _, out = smoke
        copy = tmp_path / "run"
        shutil.copytree(out, copy)
        models = copy / "models" / "seed0"
        (models / "control-type-0.safetensors").unlink()
        for name in ("control-type-0", "control-type-1"):
            (models / name).mkdir()
            (models / name / ".state.safetensors.7.tmp").write_bytes(b"half")
        run_study(STUDY, SMOKE, copy, workers=1)
        assert [p for p in models.iterdir() if p.is_dir()] == []

    def test_a_model_that_is_another_is_measured_anew(self, smoke, tmp_path):
        copy = shutil.copytree(smoke[1], tmp_path / "run")
        models = copy / "models" / "seed0"
        shutil.copy(models / "control-type-1.safetensors", models / "control-type-0.safetensors")
        kept = {p: p.stat().st_mtime_ns for p in copy.rglob("*.safetensors") if "type-0" not in p.name}
        with pytest.warns(UserWarning, match="was measured on another model") as warned:
            STUDY.run_job(SMOKE, ModelJob("measure", 0), copy)
        assert "type-0.base.safetensors" in str(warned[0].message)
        control = fingerprint(load_model(models / "control-type-1.safetensors"))
        for kind in ("base", "tuned", "accuracy"):
            assert load_result(result_path(copy, 0, f"type-0.{kind}")).metadata["model"]["control"] == control
        assert {p: p.stat().st_mtime_ns for p in kept} == kept

    def test_a_model_tuned_from_another_base_is_trained_anew(self, smoke, tmp_path):
        copy = shutil.copytree(smoke[1], tmp_path / "run")
        models, job = copy / "models" / "seed0", ModelJob("control", 0, "type-0")
        shutil.copy(models / "tuned.safetensors", models / "base.safetensors")
        with pytest.warns(UserWarning, match=r"control-type-0\.safetensors' was tuned from another base"):
            STUDY.run_job(SMOKE, job, copy)
        base = fingerprint(load_model(models / "tuned.safetensors"))
        assert read_metadata(job.model_path(copy))["metadata"]["base"] == base
        times = job.model_path(copy).stat().st_mtime_ns
        STUDY.run_job(SMOKE, job, copy)  # and no second time
        assert job.model_path(copy).stat().st_mtime_ns == times

    def test_dimensions_and_purity_are_of_the_seen_skills(self, smoke):
        _, out = smoke
        n = len(SMOKE.suite.seen)
        dims, purity = (load_result(result_path(out, 0, f"tuned.{name}")) for name in ("dims", "purity"))
        assert int(dims.sel("n", label="all")) == n * SMOKE.suite.n_eval
        assert purity.metadata["n"]["all"] == n * SMOKE.n_purity

    def test_a_missing_measurement_is_named(self, smoke, tmp_path):
        _, out = smoke
        copy = tmp_path / "run"
        shutil.copytree(out, copy)
        result_path(copy, 0, "copy-1.base").unlink()
        with pytest.raises(InputError) as refused:
            load_results(SMOKE, copy, 0)
        assert str(refused.value).endswith(
            "lacks results/seed0/copy-1.base.safetensors; start the study again with the same --out"
        )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"suite": SkillSuite(seed=1)}, "suite.seed is set by each run; leave it out"),
        ({"suite": SkillSuite(skills=("copy-0",))}, "suite.skills is set by each run; leave it out"),
        ({"suite": SkillSuite(n_eval=3)}, "suite.n_eval is 3; CKA needs at least 4 prompts of every skill"),
        ({"control_steps": 0}, "control_steps is 0; expected at least 1"),
        ({"n_projected": 3}, "n_projected is 3; expected at least 4"),
        (
            {"n_neighbours": 20, "n_purity": 1},
            "n_neighbours is 20, of 12 prompts (n_purity of each seen skill); lower it",
        ),
        (
            {"control_steps": 50},
            "control_steps is 50, and tuning.warmup 50; expected more steps than that, or the controls never reach "
            "their learning rate",
        ),
        ({"seeds": ()}, "seeds is empty; expected at least one seed, such as --seeds 0"),
    ],
)
def test_refusals(fields, message):
    with pytest.raises(InputError) as refused:
        MossaConfig(**fields)
    assert str(refused.value) == message


# ---- claims, on constructed measurements ----

NAMES = SkillSuite().task_names
SEEN = np.array([name in SkillSuite().seen for name in NAMES])
ENCODED = np.array([name.startswith(("copy", "swap")) for name in NAMES])
LAYERS = 8


def curves(median, spread, rows):
    """``[task layer]`` with this median and interquartile range, exactly, over an even number of tasks."""
    place = np.linspace(-1, 1, rows)
    low, high = np.quantile(place, (0.25, 0.75))
    return np.asarray(median)[None] + place[:, None] / (high - low) * np.asarray(spread)[None]


def measured(**changes) -> SeedResults:
    """A seed that carries every claim, like the paper's figures squeezed into 8 layers."""
    values = {
        "pre": [1.0, 0.98, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5],
        "pre_spread": [0.01, 0.05, 0.1, 0.2, 0.3, 0.3, 0.3, 0.3],
        "tuned": [0.99, 0.94, 0.93, 0.96, 0.96, 0.95, 0.94, 0.9],
        "tuned_spread": [0.02, 0.08, 0.1, 0.06, 0.03, 0.04, 0.06, 0.06],
        "unseen_tuned": [0.99, 0.94, 0.9, 0.85, 0.85, 0.8, 0.75, 0.7],
        "unseen_tuned_spread": [0.02, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.5],
        "dims": ([10, 10, 12, 12, 12, 12, 12, 12], [10, 10, 12, 16, 30, 30, 30, 30]),
        "zero_shot": 0.4,
        "encoded_gain": -0.05,
        "purer": 0.3,
        "bias": 0.01,
        "identity": 1e-14,
        **changes,
    }
    cka = {kind: np.zeros((24, LAYERS)) for kind in ("base", "tuned")}
    for tasks, tuned in ((SEEN, "tuned"), (~SEEN, "unseen_tuned")):
        rows = int(tasks.sum())
        cka["base"][tasks] = curves(values["pre"], values["pre_spread"], rows)
        cka["tuned"][tasks] = curves(values[tuned], values[f"{tuned}_spread"], rows)
    # the order of tasks decides nothing but C7: tuned falls from task to task by as much as asked
    gain = cka["tuned"][SEEN] - cka["base"][SEEN]
    order = np.argsort(gain[:, LAYERS // 2 :].mean(axis=1))
    wanted = np.argsort(np.argsort(np.where(ENCODED[SEEN], values["encoded_gain"], 0.0), kind="stable"))
    for kind in ("base", "tuned"):
        cka[kind][SEEN] = cka[kind][SEEN][order][wanted]
    flat = np.full(LAYERS, 0.4)
    chance = np.full(24, 0.1)
    return SeedResults(
        cka=cka,
        biased={kind: table + values["bias"] for kind, table in cka.items()},
        ceiling=np.full((12, LAYERS), 0.99),
        dims=dict(zip(("base", "tuned"), map(np.array, values["dims"]), strict=True)),
        purity={"base": flat, "tuned": flat + values["purer"]},
        purity_chance=0.16,
        accuracy={"base": chance, "tuned": chance + values["zero_shot"], "control": np.ones(24)},
        chance=chance,
        seen=SEEN,
        encoded=ENCODED,
        cluster=np.arange(24) // 4,
        identity=values["identity"],
    )


def verdicts(*found, **config):
    """Of two seeds that are alike, where one is given: their interval is their mean."""
    seeds = found if len(found) > 1 else 2 * found
    return {c.id: c.verdict for c in claims_of(replace(PAPER, **config), seeds)}


class TestClaims:
    def test_hold_where_everything_agrees(self):
        assert set(verdicts(measured(), measured()).values()) == {"holds"}
        assert str(measured().groups) == "shared 1-3, transition 4-5, refinement 6-8"

    @pytest.mark.parametrize(
        ("changes", "broken"),
        [
            ({"identity": 1e-8}, {"C1"}),
            ({"pre_spread": [0.16] + [0.3] * 7}, {"C3"}),
            ({"tuned": [0.99, 0.94, 0.93, 0.96, 0.96, 0.95, 0.94, 0.69]}, {"C4"}),
            ({"tuned": [1.0, 0.99, 0.96, 0.96, 0.96, 0.95, 0.94, 0.9]}, {"C5"}),
            ({"tuned_spread": [0.02, 0.08, 0.1, 0.09, 0.06, 0.06, 0.06, 0.06]}, {"C6"}),
            ({"encoded_gain": 0.05}, {"C7"}),
            ({"dims": ([10, 10, 13, 12, 12, 12, 12, 12], [10, 10, 12, 16, 30, 30, 30, 30])}, {"C8"}),
            ({"dims": ([10, 11, 12, 12, 12, 12, 12, 12], [10, 10, 12, 16, 30, 30, 30, 30])}, set()),
            ({"unseen_tuned": [0.99, 0.94, 0.93, 0.96, 0.9, 0.9, 0.9, 0.9]}, {"C9"}),
            ({"unseen_tuned_spread": [0.02, 0.1, 0.15, 0.2, 0.09, 0.4, 0.5, 0.5]}, {"C9"}),
            ({"bias": 0.021}, {"C10"}),
            ({"purer": -0.01}, {"C11"}),
        ],
        ids=str,
    )
    def test_fail_one_by_one(self, changes, broken):
        found = verdicts(measured(**changes))
        assert {name for name, verdict in found.items() if verdict == "does not hold"} == broken

    def test_c2_wants_a_fall_with_depth(self):
        flat = measured(pre=[0.5] * 8)
        assert verdicts(flat)["C2"] == "undecided"  # a flat curve has no rank
        assert verdicts(measured(pre=[0.5, 0.6, 0.7, 0.6, 0.5, 0.6, 0.7, 0.6]))["C2"] == "does not hold"

    def test_c4_wants_every_later_layer_above(self):
        dips = measured(tuned=[0.99, 0.94, 0.93, 0.96, 0.79, 0.95, 0.94, 0.9])
        assert len(dips.groups.shared) == 3  # one exception does not move the shared layers
        assert verdicts(dips)["C4"] == "does not hold"

    def test_c9_is_not_tested_without_zero_shot_skill(self):
        assert verdicts(measured(zero_shot=0.04))["C9"] == "not tested"
        assert verdicts(measured(zero_shot=0.06))["C9"] == "holds"

    def test_c10_is_not_tested_with_few_examples(self):
        assert verdicts(measured(), suite=SkillSuite(n_eval=639))["C10"] == "not tested"

    def test_without_a_transition_no_layer_narrows(self):
        nothing = measured(tuned=[0.9, 0.9, 0.9, 0.85, 0.75, 0.65, 0.55, 0.45])
        found = verdicts(nothing)
        assert (found["C4"], found["C6"]) == ("does not hold", "undecided")

    def test_a_suite_without_held_out_skills_leaves_c9_untested(self):
        everything = replace(measured(), seen=np.ones(24, dtype=bool))
        found = verdicts(everything)
        assert found["C9"] == "not tested"

    def test_c9_says_where_the_curves_cross(self):
        notes = {c.id: c.note for c in claims_of(PAPER, [measured(), measured(unseen_tuned=[0.4] * 8)])}
        assert "crossing at layer (held out against seen) 5 against 4, never against 4" in notes["C9"]

    def test_smoke_tests_nothing(self):
        assert set(verdicts(measured(), test_claims=False).values()) == {"not tested"}


def test_presets_fit_the_specification():
    assert list(STUDY.presets) == ["smoke", "quick", "paper", "origin"]
    assert PAPER.seeds == (30, 31, 32)
    assert (PAPER.n_layers, PAPER.d_model, PAPER.n_heads) == (8, 64, 4)
    assert PAPER.pretraining == TrainConfig(steps=1500, batch_size=64, lr=2e-3, warmup=50)
    assert PAPER.tuning.layer_decay == 0.5
    assert {j.kind for j in jobs(PAPER)} == {"base", "tuned", "control", "measure", "describe"}
    assert ModelJob("control", 3, "copy-0", again=True).name == "control-copy-0-again-seed3"


def test_tables_of_the_report():
    found = [measured(), measured(tuned=[0.5] * 8)]
    groups, medians = groups_table((3, 4), found), medians_table(found)
    assert groups["seen"].tolist() == [str(m.groups) for m in found]
    assert groups["seed"].tolist() == [3, 4]
    assert medians[["tasks", "model"]].to_numpy().tolist() == [
        *([which, model] for which in ("seen", "held out", "held out, not encoded") for model in ("pre", "tuned")),
        ["seen", "ceiling"],
    ]
    assert medians.loc[1, [f"L{i + 1}" for i in range(LAYERS)]].tolist() == pytest.approx(
        np.mean([m.median("tuned") for m in found], axis=0)
    )


def test_what_is_lost_or_damaged_is_made_again(smoke, tmp_path):
    check_made_whole(STUDY, SMOKE, shutil.copytree(smoke[1], tmp_path / "run"))
