"""The study of task or output from beginning to end, and what it runs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from mechclust.evidence import load_findings
from mechclust.models.weights import get_weights
from mechclust.studies.cluster_factors import ClusterFactorsConfig
from mechclust.studies.cluster_factors.config import (
    ARMS,
    CONSTANT,
    OVERLAPS,
    PRIVATE,
    PRIVATE_WIDE,
    SHARED,
    TWO,
    jobs,
    measured_steps,
    network_shape,
    overlap_arm,
    task_of,
    training_of,
)
from mechclust.studies.cluster_factors.measurements import probes_of
from mechclust.studies.cluster_factors.results import load
from mechclust.studies.cluster_factors.run import _without_answer, build_network
from mechclust.studies.cluster_factors.study import STUDY, _notes
from mechclust.studies.study import Job, run_study
from mechclust.training import TrainConfig
from probes import load_result
from tasks import InputError, InstructionFollowing
from tests.mechclust.studies.cluster_factors.test_findings import IDS
from tests.mechclust.studies.damaged import check_made_whole
from tests.mechclust.studies.recorded import check_judged_again

PAPER = STUDY.preset("paper")
SMALL = replace(
    STUDY.preset("smoke"),
    arms=(PRIVATE, SHARED, TWO),
    training=TrainConfig(steps=4, batch_size=16, n_checkpoints=3),
    first_measured=3,
    early_step=3,
    n_permutations=9,
)
LAST = f"step-{SMALL.training.steps:06d}.validation_subset"


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """A run smaller than the smoke preset, from beginning to end: analysis, folder. Read only."""
    out = tmp_path_factory.mktemp("factors") / "run"
    return run_study(STUDY, SMALL, out, workers=1), out


class TestPlan:
    def test_overlaps_go_from_none_to_all_in_five_steps(self):
        assert np.allclose(np.diff(OVERLAPS), 0.2)
        assert [task_of(PAPER, Job(overlap_arm(o), 1)).overlap for o in OVERLAPS] == list(OVERLAPS)
        assert (overlap_arm(0), overlap_arm(1)) == (PRIVATE, SHARED)

    def test_arms_differ_from_the_settings_in_one_thing(self):
        assert len({job.name for job in jobs(PAPER)}) == len(ARMS) * 10
        assert network_shape(PAPER, PRIVATE_WIDE) == {"n_layers": 6, "d_model": 128, "n_heads": 8}
        constant = training_of(PAPER, CONSTANT)
        assert replace(constant, schedule="cosine", lr=PAPER.training.lr) == PAPER.training
        rates = [np.mean([t.lr_at(step) for step in range(t.steps)]) for t in (constant, PAPER.training)]
        assert rates[0] == pytest.approx(rates[1], rel=1e-2)

    def test_what_an_output_tells_is_not_asked_for(self):
        assert "x-task-given-output" not in probes_of(PAPER, PRIVATE)
        assert "x-task-given-output" in probes_of(PAPER, SHARED)
        assert "x-output-given-task" not in probes_of(PAPER, "outputs-1")

    def test_networks_of_a_seed_begin_alike(self):
        one, other = (get_weights(build_network(SMALL, Job(arm, 0))) for arm in (PRIVATE, SHARED))
        assert torch.equal(one["embed.W_E"][:25], other["embed.W_E"][:25])  # padding, symbols and inputs
        assert not torch.equal(
            one["blocks.0.attn.W_Q"], get_weights(build_network(SMALL, Job(PRIVATE, 1)))["blocks.0.attn.W_Q"]
        )

    def test_measured_steps(self):
        assert measured_steps(PAPER)[0] == 0
        assert measured_steps(PAPER)[-1] == PAPER.training.steps
        assert PAPER.early_step in measured_steps(PAPER)


class TestRun:
    def test_can_be_judged_again_from_its_record(self, smoke, tmp_path):
        check_judged_again(smoke[1], tmp_path)

    def test_leaves_everything_it_promises(self, smoke):
        analysis, out = smoke
        for job in jobs(SMALL):
            held = {path.name for path in (out / "results" / job.name).glob("*.safetensors")}
            expected = {f"step-{step:06d}.validation_subset.accuracy" for step in SMALL.training.checkpoint_steps}
            for step, name in product(measured_steps(SMALL), probes_of(SMALL, job.arm)):
                expected.add(f"step-{step:06d}.validation_subset.{name}")
            expected |= {"swap"}
            assert held == {f"{name}.safetensors" for name in expected}
        assert [finding.id for finding in analysis.findings] == IDS
        assert {finding.verdict for finding in analysis.findings} == {"not tested"}
        assert [finding.parts for finding in load_findings(out / "findings.json")] == [
            finding.parts for finding in analysis.findings
        ]
        names = ["phases", "ari_by_layer", "within_the_other", "ari_over_training", "swaps", "accuracy"]
        assert [p.name for p in analysis.panels] == names
        for panel in analysis.panels:
            assert (out / "figures" / f"{panel.name}.png").stat().st_size > 5000

    def test_what_only_needs_a_p_value_has_it_by_the_formula(self, smoke):
        """No p-value from relabellings is below one over their number plus one."""
        folder = smoke[1] / "results" / jobs(SMALL)[0].name
        by_formula, drawn = (load_result(folder / f"{LAST}.{name}.safetensors")["p_value"] for name in ("x-input", "x"))
        assert by_formula.max() < 1e-6
        assert drawn.min() >= 1 / (SMALL.n_permutations + 1)

    def test_only_the_step_that_was_chosen_on_a_seed_is_said_to_be(self, smoke):
        assert SMALL.early_step != PAPER.early_step
        assert not any("chosen on seed 0" in note for note in smoke[0].notes)
        assert any("Step 100 of the migration was chosen on seed 0" in note for note in _notes(PAPER))

    def test_curves_are_what_was_measured(self, smoke):
        job = Job(SHARED, 0)
        found = load(SMALL, smoke[1])[job.arm]
        folder = smoke[1] / "results" / job.name
        assert found.steps.tolist() == measured_steps(SMALL)
        last = load_result(folder / f"{LAST}.x.safetensors")
        assert found.ari["x output"][0, -1].tolist() == last.sel("ari", label="output").tolist()
        assert found.null["x task"][0, -1, :, 0].tolist() == last.sel("null_low", label="task").tolist()
        assert found.null["x task"][0, -1, :, 1].tolist() == last.sel("null_high", label="task").tolist()
        within = load_result(folder / f"{LAST}.x-task-given-output.safetensors")
        assert found.ari["x task|output"][0, -1].tolist() == within.sel("ari", label="task").tolist()
        linear = load_result(folder / f"{LAST}.x-linear.safetensors")
        assert found.linear[0, -1].tolist() == linear.sel("accuracy", label="task").tolist()
        swap = load_result(folder / "swap.safetensors")
        assert found.became[0].tolist() == swap["became"].tolist()

    def test_a_lost_measurement_is_named(self, smoke, tmp_path):
        copy = shutil.copytree(smoke[1], tmp_path / "run")
        (copy / "results" / "overlap-0-seed0" / "swap.safetensors").unlink()
        with pytest.raises(InputError) as refused:
            STUDY.load(SMALL, copy)
        assert str(refused.value).endswith(
            "lacks results/overlap-0-seed0/swap.safetensors; start the study again with the same --out"
        )

    @pytest.mark.slow
    def test_what_is_lost_or_damaged_is_made_again(self, smoke, tmp_path):
        check_made_whole(STUDY, SMALL, shutil.copytree(smoke[1], tmp_path / "run"))

    def test_a_network_alone_that_is_lost_is_made_again(self, smoke, tmp_path):
        out = shutil.copytree(smoke[1], tmp_path / "run")
        (model,) = (out / "models" / "overlap-0-seed0").glob("step-*.safetensors")
        data = model.read_bytes()
        model.unlink()
        STUDY.run_job(SMALL, Job(PRIVATE, 0), out)
        assert model.read_bytes() == data

    def test_no_state_of_an_answer_is_measured(self):
        task = InstructionFollowing(n_tasks=3, variants=8)
        (batch,) = task.batches("validation")
        held = _without_answer(batch)
        assert torch.equal(held.lengths(), batch.lengths() - 1)
        assert torch.equal(held.last_positions(), batch.position("input"))
        assert sorted(held.positions) == ["input", "instruction_end"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"task": InstructionFollowing(seed=1)},
            "task.seed is set by each run, from seeds and arms; leave it out",
        ),
        (
            {"task": InstructionFollowing(loss_on="output")},
            "task.loss_on is set by each run, from seeds and arms; leave it out",
        ),
        (
            {"arms": (PRIVATE, SHARED, "overlap-2")},
            f"arms is 'overlap-2'; expected {', '.join(map(repr, [*ARMS][:-1]))} or {[*ARMS][-1]!r}",
        ),
        ({"arms": (PRIVATE, TWO)}, "arms lacks 'overlap-1', the arm that all others are compared with; add it"),
        ({"clear": 1.0}, "clear is 1.0; expected below 1"),
        (
            {"training": replace(PAPER.training, schedule="late-drop")},
            "training.schedule is 'late-drop'; expected 'cosine', with which 'outputs-2-constant-rate' is compared",
        ),
        (
            {"early_step": 99},
            "early_step is 99; expected one of the measured checkpoints 46, 100, 215, 464, 667",
        ),
        (
            {"first_measured": 700},
            "first_measured is 700; expected less, or more training.n_checkpoints, so that a checkpoint before the end "
            "is measured",
        ),
        (
            {"task": InstructionFollowing(n_outputs=2)},
            "overlap is 0.2 of 2 outputs; expected steps of 1/2, so that a whole number of them is shared",
        ),
        ({"seeds": ()}, "seeds is empty; expected at least one seed, such as --seeds 0"),
    ],
)
def test_refusals(fields, message):
    with pytest.raises(InputError) as refused:
        ClusterFactorsConfig(**fields)
    assert str(refused.value) == message
