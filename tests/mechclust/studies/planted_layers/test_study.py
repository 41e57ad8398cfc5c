"""The study of planted layers: its models are changed where it says, its scores are of what was measured."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from mechclust.models import load_model
from mechclust.models.weights import get_weights
from mechclust.studies import get_study, run_study
from mechclust.studies.planted_layers import PlantedConfig
from mechclust.studies.planted_layers.config import (
    ALL,
    FALSE,
    FROZEN,
    NOISE_NULL,
    NONE,
    NULLS,
    ORDER,
    ORDER_NULL,
    RATES,
    ROUNDED,
    TRAINED,
    noisy_column,
    pairs_of,
    result_path,
    spans_of,
)
from mechclust.studies.planted_layers.measure import MEASURES
from mechclust.studies.planted_layers.results import (
    ROW_VIEWS,
    Row,
    load_results,
)
from mechclust.studies.planted_layers.tunings import jobs
from mechclust.training import TrainConfig
from probes import load_result
from tasks import InputError, SkillSuite
from tests.mechclust.models.families import FAMILIES
from tests.mechclust.studies.recorded import check_judged_again

STUDY = get_study("planted-layers")
PAPER = STUDY.preset("paper")
SMALL = replace(
    STUDY.preset("smoke"),
    pretraining=TrainConfig(steps=1, batch_size=8),
    tuning=TrainConfig(steps=1, batch_size=8, freeze=FROZEN),
    control_steps=1,
)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """A run smaller than the smoke preset, from beginning to end: analysis, folder. Read only."""
    out = tmp_path_factory.mktemp("planted") / "run"
    return run_study(STUDY, SMALL, out, workers=1), out


def weights(out, name):
    return get_weights(load_model(out / "models" / "seed0" / f"{name}.safetensors"))


class TestPlan:
    def test_spans_leave_room_above_and_below(self):
        assert spans_of(PAPER, 8) == [(2, 3), (4, 5), (6, 7)]
        for n in range(4, 40):
            assert all(1 <= a <= b <= n and (a, b) != (1, n) for a, b in spans_of(PAPER, n)), n
        assert spans_of(replace(PAPER, spans=((1, 2),)), 8) == [(1, 2)]
        with pytest.raises(InputError, match="spans has 1 to 1, and the model layers 1 to 1"):
            spans_of(PAPER, 1)

    def test_few_prompts_are_fewer_than_dimensions_and_many_are_ten_times_as_many(self):
        assert PAPER.n_few < PAPER.d_model
        assert PAPER.suite.n_eval >= 10 * PAPER.d_model

    def test_pairs_have_names_of_their_own_and_a_null(self):
        pairs = pairs_of(PAPER, 8)
        assert len({pair.name for pair in pairs}) == len(pairs)
        assert {pair.column for pair in pairs} == {
            *NULLS,
            *FALSE,
            TRAINED,
            ALL,
            RATES,
            noisy_column(0.03),
            noisy_column(0.3),
        }
        assert {pair.null for pair in pairs if pair.column not in NULLS} == set(NULLS)
        (rounded,) = (pair for pair in pairs if pair.column == ROUNDED)
        assert rounded.null == NOISE_NULL  # another order of the data changes far more, so nothing would be called
        (fresh,) = (pair for pair in pairs if pair.column == ORDER)
        assert fresh.tuned not in [m for pair in pairs if pair.column == ORDER_NULL for m in (pair.base, pair.tuned)]

    def test_a_given_model_is_not_trained(self):
        config = replace(PAPER, model="somewhere", prompts="prompts.jsonl")
        assert {job.kind for job in jobs(config)} == {"measure"}
        assert {pair.column for pair in pairs_of(config, 12)} == {
            NOISE_NULL, ALL, NONE, ORDER, ROUNDED, noisy_column(0.03), noisy_column(0.3),
        }  # fmt: skip
        assert {made.source for pair in pairs_of(config, 12) for made in (pair.base, pair.tuned)} == {"base"}


class TestRun:
    def test_can_be_judged_again_from_its_record(self, smoke, tmp_path):
        check_judged_again(smoke[1], tmp_path)

    def test_writes_figures_tables_findings_and_a_report(self, smoke):
        analysis, out = smoke
        assert [c.id for c in analysis.findings] == [
            *(f"P{i}" for i in (1, 2, 3, 18, 4, 5, 6, 19, 7, 8, 10, 9)), "K1", "K2",
            *(f"P{i}" for i in range(11, 18)), "K3",
        ]  # fmt: skip
        assert {c.verdict for c in analysis.findings} == {"not tested"}
        for panel in analysis.panels:
            assert (out / "figures" / f"{panel.name}.png").stat().st_size > 5000
        page = (out / "report.html").read_text()
        assert "Every measure, in numbers" in page
        captions = {panel.name: panel.caption for panel in analysis.panels}
        n = f"{SMALL.suite.n_eval} prompts per task"
        assert captions["curves"].endswith(f" {n}; patching: {SMALL.n_patched}.")
        assert captions["gains"].endswith(f" {n}.")
        assert captions["calls"].endswith(f" {n}, or {SMALL.n_few} with few prompts; patching: {SMALL.n_patched}.")
        assert "over seeds" not in captions["auc"]  # of one seed

    def test_only_the_planted_layers_were_trained(self, smoke):
        base, tuned = weights(smoke[1], "base"), weights(smoke[1], "trained-2-2")
        changed = {name for name in base if not torch.equal(base[name], tuned[name])}
        assert changed
        assert all(name.startswith("blocks.1.") for name in changed)
        order = weights(smoke[1], "order-0")
        changed = {name.split(".")[1] for name in base if not torch.equal(base[name], order[name])}
        assert changed == {"0", "1", "2"}

    def test_models_of_trios_change_where_the_plan_says(self, smoke):
        names = ("base", "multi-2-2", "control-2-2-copy-0", "control-rates-copy-0")
        base, multi, control, rates = (weights(smoke[1], name) for name in names)
        for found, layers in ((multi, {"1"}), (control, {"1"}), (rates, {"0", "1", "2"})):
            changed = {name for name in base if not torch.equal(base[name], found[name])}
            assert {name.split(".")[1] for name in changed} == layers
            assert all(name.startswith("blocks.") for name in changed)
        assert any(not torch.equal(multi[name], control[name]) for name in base)

    def test_orders_steps_and_rates_are_other_models(self, smoke):
        names = ["order-0", "order-1", "order-2", "steps", "rates"]
        found = [weights(smoke[1], name)["blocks.0.mlp.W_in"] for name in names]
        assert not any(torch.equal(found[i], found[j]) for i in range(5) for j in range(i))

    def test_a_model_and_itself_do_not_differ(self, smoke):
        found = load_results(SMALL, smoke[1], 0)
        assert np.abs(found.curves[NONE.replace(" ", "-")]).max() == 0

    def test_below_a_plant_nothing_differs_and_patching_restores_nothing(self, smoke):
        found = load_results(SMALL, smoke[1], 0)
        for name in ("trained-2-2", "noise-0.3-2-2"):
            assert np.abs(found.curves[name][..., 0]).max() == 0
            assert found.restored[name][0] == pytest.approx(0, abs=1e-3)
            assert found.restored[name][1:] == pytest.approx(1, abs=1e-3)

    def test_curves_are_medians_over_tasks_and_thresholds_of_the_null(self, smoke):
        _, out = smoke
        found = load_results(SMALL, out, 0)
        raw = load_result(result_path(out, 0, "trained-2-2.change"))["change"].numpy()
        (pair,) = found.of(TRAINED)
        row, at = Row("contribution", "SVCCA"), MEASURES.index("SVCCA")
        assert np.allclose(found.curve(pair, row), np.median(raw[0, 1, at], axis=0))
        assert np.allclose(found.curve(pair, Row("rise of residual", "CKA")).cumsum(), np.median(raw[0, 0, 0], axis=0))
        null = load_result(result_path(out, 0, "null-0.change"))["change"].numpy()
        expected = SMALL.margin * np.maximum(np.median(null[0, 1, at], axis=0), 0)
        assert np.allclose(found.threshold(pair, row), expected)

    @pytest.mark.slow
    def test_goes_on_where_it_was(self, smoke, undrawn, tmp_path):
        analysis, out = smoke
        copy = shutil.copytree(out, tmp_path / "run")
        lost = [copy / "models" / "seed0" / "steps.safetensors", result_path(copy, 0, "trained-2-2.change")]
        before = [path.read_bytes() for path in lost]
        for path in lost:
            path.unlink()
        others = {p: p.stat().st_mtime_ns for p in copy.rglob("*.safetensors")}
        again = run_study(STUDY, SMALL, copy, workers=1)
        assert {p: p.stat().st_mtime_ns for p in others} == others
        assert lost[0].read_bytes() == before[0]
        assert repr(again.findings) == repr(analysis.findings)

    def test_a_missing_measurement_is_named(self, smoke, tmp_path):
        copy = shutil.copytree(smoke[1], tmp_path / "run")
        result_path(copy, 0, "bfloat16.change").unlink()
        with pytest.raises(InputError) as refused:
            load_results(SMALL, copy, 0)
        assert str(refused.value).endswith(
            "lacks results/seed0/bfloat16.change.safetensors; start the study again with the same --out"
        )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "electra"])
def test_a_given_model_is_planted_in_and_measured(kind, tmp_path):
    folder = FAMILIES[kind].write(tmp_path / kind)
    draw = np.random.default_rng(0)
    lines = [
        {"prompt": " ".join(f"w{i}" for i in draw.integers(0, 20, 5 + k % 3)), "task": "ab"[k % 2]} for k in range(24)
    ]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(map(json.dumps, lines)))
    config = replace(SMALL, model=str(folder), prompts=str(prompts), n_few=5, noise=(0.1, 0.5))
    run_study(STUDY, config, tmp_path / "run", workers=1)
    found = load_results(config, tmp_path / "run", 0)
    for noise in ("0.1", "0.5"):
        curve = found.curves[f"noise-{noise}-2-2"]
        assert np.abs(curve[:, 0, :, 0]).max() == 0
        distance = curve[0, 0, MEASURES.index("distance")]
        assert distance[1] > 0.01
    assert not (tmp_path / "run" / "models").exists()
    same = found.curves["noise-0.5-2-2"][0, ROW_VIEWS.index("same input"), MEASURES.index("distance")]
    if kind == "llama":
        assert found.restored["noise-0.5-2-2"] == pytest.approx([0, 1, 1], abs=1e-3)
        assert same[1] > 0.01
        assert max(same[0], same[2]) < 1e-5
    else:
        assert np.isnan(found.restored["noise-0.5-2-2"]).all()
        assert np.isnan(same).all()
    assert load_result(result_path(tmp_path / "run", 0, "no-change.change"))["n"].tolist() == [[12, 12], [5, 5]]


@pytest.mark.parametrize(
    ("fields", "n_prompts", "message"),
    [
        ({"prompts": "rihgt.jsonl"}, 20, "no prompts file 'rihgt.jsonl'"),
        ({}, 13, "has 6 prompts of 'b', and n_few is 6; expected more, or lower n_few"),
        ({"spans": ((2, 4),)}, 20, "spans has 2 to 4, and the model layers 1 to 3"),
    ],
)
def test_what_a_given_model_and_its_prompts_lack_is_refused_before_anything_is_written(
    fields, n_prompts, message, tmp_path
):
    folder = FAMILIES["llama"].write(tmp_path / "llama")
    lines = [{"prompt": f"w{k}", "task": "ab"[k % 2]} for k in range(n_prompts)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    config = replace(SMALL, model=str(folder), **{"prompts": str(tmp_path / "prompts.jsonl"), **fields})
    with pytest.raises(InputError, match=re.escape(message)):
        run_study(STUDY, config, tmp_path / "run", workers=1)
    assert not (tmp_path / "run").exists()


def test_other_prompts_for_added_seeds_are_refused(tmp_path):
    folder = FAMILIES["llama"].write(tmp_path / "llama")
    lines = [{"prompt": f"w{k} w{k // 2}", "task": "ab"[k % 2]} for k in range(16)]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(map(json.dumps, lines)))
    config = replace(SMALL, model=str(folder), prompts=str(prompts), seeds=(0, 1))
    first, second = jobs(config)
    STUDY.run_job(config, first, tmp_path)
    prompts.write_text("\n".join(map(json.dumps, [{"prompt": "w9", "task": "a"}, *lines])))
    with pytest.raises(InputError, match="was changed since seed 0 was measured; restore it, or choose another folder"):
        STUDY.run_job(config, second, tmp_path)
    assert not list(tmp_path.glob("results/seed1/*"))
    prompts.write_text("\n".join(map(json.dumps, lines)))
    STUDY.run_job(config, first, tmp_path)


def test_a_long_prompt_keeps_its_first_token_and_its_end(tmp_path):
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    folder, words = FAMILIES["llama"].write(tmp_path / "llama"), [f"w{i % 20}" for i in range(500)]
    plain = AutoTokenizer.from_pretrained(folder)
    plain.backend_tokenizer.post_processor = TemplateProcessing("<pad> $A", None, [("<pad>", plain.pad_token_id)])
    plain.save_pretrained(folder)
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": " ".join(words), "task": "a"}))
    config = replace(SMALL, model=str(folder), prompts=str(tmp_path / "prompts.jsonl"))
    ((given, batches),) = [model.load() for model in STUDY.trained_models(config, tmp_path / "run")]
    (batch,) = batches
    tokenizer, n_ctx = given.tokenizer, given.cfg.n_ctx
    assert n_ctx < 500
    whole = tokenizer(" ".join(words))["input_ids"]
    assert (len(whole), whole[0]) == (501, tokenizer.pad_token_id)
    assert batch.tokens[0].tolist() == [whole[0], *whole[-(n_ctx - 1) :]]


def test_a_prompt_longer_than_a_batch_is_measured_in_a_batch_of_its_own(tmp_path, monkeypatch):
    folder = FAMILIES["llama"].write(tmp_path / "llama")
    monkeypatch.setattr("mechclust.studies.planted_layers.run._TOKENS_PER_BATCH", 8)
    lines = [{"prompt": " ".join(["w1"] * n), "task": "a"} for n in (12, 4, 4)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    config = replace(SMALL, model=str(folder), prompts=str(tmp_path / "prompts.jsonl"))
    ((_, batches),) = [model.load() for model in STUDY.trained_models(config, tmp_path / "run")]
    assert [tuple(batch.tokens.shape) for batch in batches] == [(1, 12), (2, 4)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"suite": SkillSuite(seed=1)}, "suite.seed is set by each run; leave it out"),
        ({"model": "here"}, "model is given and prompts is not; give both, or neither for the miniature"),
        ({"prompts": "here"}, "prompts is given and model is not; give both, or neither for the miniature"),
        ({"n_few": 3}, "n_few is 3; expected at least 4"),
        ({"n_few": 640}, "n_few is 640, and suite.n_eval 640; expected fewer than these"),
        ({"n_measured": 13}, "n_measured is 13, of 12 seen skills; expected no more than these"),
        ({"margin": 0.5}, "margin is 0.5; expected at least 1"),
        (
            {"tuning": replace(PAPER.tuning, freeze=("blocks.3",))},
            "tuning.freeze is blocks.3; expected embed, pos_embed, unembed, ln_final, since the study sets which "
            "blocks are trained",
        ),
        (
            {"tuning": replace(PAPER.tuning, freeze=())},
            "tuning.freeze is empty; expected embed, pos_embed, unembed, ln_final, since the study sets which blocks "
            "are trained",
        ),
        (
            {"tuning": replace(PAPER.tuning, layer_decay=0.5)},
            "tuning.layer_decay is 0.5; expected 1, since only models with rates by layer have others, by layer_decay",
        ),
        (
            {"pretraining": TrainConfig(steps=10, warmup=50)},
            "pretraining.steps is 10, and pretraining.warmup 50; expected more steps than that, or the learning rate "
            "is never reached",
        ),
        ({"layer_decay": 1.0}, "layer_decay is 1.0; expected below 1"),
        ({"noise": (0.3, 0.1)}, "noise is 0.3, 0.1; expected relative norms above 0, the smallest first"),
        (
            {"noise": (0.3, 0.3000001)},
            "two of noise have the same first six digits; expected norms that differ in these",
        ),
        ({"spans": ((6, 7), (2, 3))}, "spans has 6 to 7, 2 to 3; expected different spans, the lowest first"),
        ({"spans": ((2, 3), (2, 3))}, "spans has 2 to 3, 2 to 3; expected different spans, the lowest first"),
        ({"noise": ()}, "noise is empty; expected relative norms above 0, the smallest first"),
        (
            {"spans": ((2, 9),)},
            "spans has 2 to 9, and the model layers 1 to 8; expected a first and a last layer among these, and not all "
            "of them",
        ),
        (
            {"spans": ((1, 8),)},
            "spans has 1 to 8, and the model layers 1 to 8; expected a first and a last layer among these, and not all "
            "of them",
        ),
        ({"seeds": ()}, "seeds is empty; expected at least one seed, such as --seeds 0"),
    ],
)
def test_refusals(fields, message):
    with pytest.raises(InputError) as refused:
        PlantedConfig(**fields)
    assert str(refused.value) == message
