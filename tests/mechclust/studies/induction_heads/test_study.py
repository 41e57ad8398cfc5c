"""The induction-head study from beginning to end."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from mechclust.models import ModelConfig, build_model, load_model
from mechclust.models.weights import get_weights, set_weights
from mechclust.report.analysis import Analysis
from mechclust.studies import get_study, run_study
from mechclust.studies.induction_heads import InductionHeadsConfig
from mechclust.studies.induction_heads.run import measure_ablations
from probes import HookedModel, load_result
from tasks import InputError, RepeatedTokens
from tests.mechclust.studies.damaged import check_made_whole
from tests.mechclust.studies.recorded import check_judged_again

STUDY = get_study("induction-heads")
SMOKE = STUDY.preset("smoke")


@pytest.fixture(scope="module")
def smoke_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Analysis, Path]:
    out = tmp_path_factory.mktemp("smoke") / "run"
    return run_study(STUDY, SMOKE, out, workers=1), out


def test_can_be_judged_again_from_its_record(smoke_run: tuple[Analysis, Path], tmp_path: Path) -> None:
    check_judged_again(smoke_run[1], tmp_path)


def test_artefacts(smoke_run: tuple[Analysis, Path]) -> None:
    analysis, out = smoke_run
    for name, n_layers in (("two-layers-seed0", 2), ("one-layer-seed0", 1)):
        results = out / "results" / name
        roles = [f"step-{step:06d}.test.roles.safetensors" for step in (0, 10, 20)]
        assert sorted(path.name for path in results.iterdir()) == ["ablations.safetensors", "loss.safetensors", *roles]
        assert load_result(results / roles[0])["excess"].shape == (n_layers, 2, 7)
        model = load_model(out / "models" / name / "step-000020.safetensors")
        assert model.cfg.n_layers == n_layers
        assert not any("mlp" in weight for weight in model.state_dict())
    assert [panel.name for panel in analysis.panels] == ["over_training", "ablations"]
    assert {finding.verdict for finding in analysis.findings} == {"not tested"}
    assert analysis.headline.startswith("No induction head formed: the strongest scores ")


def test_what_is_lost_or_damaged_is_made_again(smoke_run: tuple[Analysis, Path], tmp_path: Path) -> None:
    check_made_whole(STUDY, SMOKE, shutil.copytree(smoke_run[1], tmp_path / "run"))


def model_with_idle_head(task: RepeatedTokens) -> HookedModel:
    """A network of which head 1 of layer 0 writes nothing."""
    model = build_model(
        ModelConfig(task.d_vocab, task.n_ctx, n_layers=2, d_model=8, n_heads=2, attn_only=True, init_std=0.5)
    )
    weights = {name: weight.clone() for name, weight in get_weights(model).items()}
    weights["blocks.0.attn.W_O"][1] = 0
    set_weights(model, weights)
    return model


def test_ablating_a_head_that_writes_nothing_changes_nothing() -> None:
    task = SMOKE.task
    result = measure_ablations(model_with_idle_head(task), task)
    alone = result["alone"]
    assert abs(float(alone[0, 1])) < 1e-6
    assert alone.abs()[0, 0] > 1e-4
    assert float(result["together"][0]) == pytest.approx(float(alone[0, 0]), abs=1e-6)


def test_presets() -> None:
    assert list(STUDY.presets) == ["smoke", "quick", "paper"]
    assert STUDY.preset("paper").seeds == tuple(range(100, 108))
    with pytest.raises(InputError, match=r"^task.seed is set by each run, from seeds; leave it out$"):
        replace(SMOKE, task=RepeatedTokens(seed=3))
    assert InductionHeadsConfig() == STUDY.preset("paper")


def test_sizes_at_which_an_ablation_has_one_possible_outcome_are_refused() -> None:
    """A single head is all heads of its layer, and the mean over a single sequence is that sequence."""
    with pytest.raises(InputError, match=r"^n_heads is 1; expected at least 2$"):
        replace(SMOKE, n_heads=1)
    with pytest.raises(InputError, match=r"^task.n_test is 1; expected at least 2, since an ablated output is a mean"):
        replace(SMOKE, task=replace(SMOKE.task, n_test=1))
