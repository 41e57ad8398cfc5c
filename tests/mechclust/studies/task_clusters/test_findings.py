"""The findings on curves made by hand: values, and where they hold or fail."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr

from mechclust.evidence import Bound, Finding, check_part
from mechclust.studies.study import Job, check_findings
from mechclust.studies.task_clusters import TaskClustersConfig
from mechclust.studies.task_clusters.config import task_of
from mechclust.studies.task_clusters.findings import findings_of
from mechclust.studies.task_clusters.results import RunResults, headline
from mechclust.training import TrainConfig
from tasks import InputError, InstructionFollowing

N = 6  # layers; sites are 0 to 6 and the final norm
CONFIG = TaskClustersConfig(
    seeds=(0, 1, 2),
    arms=("private", "instruction", "shared", "five", "expressions"),
    task=InstructionFollowing(n_tasks=6, variants=8, n_eval_tasks=4, n_eval=60),
    training=TrainConfig(steps=100, n_checkpoints=6),
    n_layers=N,
    d_model=8,
    n_heads=2,
)
STEPS = np.array([0, 1, 6, 16, 40, 67, 100])
SHAPE = (len(STEPS), N + 2)
VALIDATION = "validation_subset"
TRAIN = "train_subset"
IDS = [*(f"T{i}" for i in range(1, 11)), "T25", "T26"]
CHECKS = {"T1", "T5", "T8"}

Change = Callable[[RunResults], RunResults]


def random_run(arm: str, seed: int) -> RunResults:
    """A run in which every seed, checkpoint and site has a value of its own."""
    draw = np.random.default_rng([seed, *map(ord, arm)])
    return RunResults(
        steps=STEPS,
        ari={VALIDATION: draw.random(SHAPE), TRAIN: draw.random(SHAPE)},
        output_ari=draw.random(SHAPE),
        null=draw.random((*SHAPE, 3)),
        tsne=draw.random(N + 2),
        accuracy=draw.random(len(STEPS)),
        loss=draw.random(100),
    )


def ideal_run(arm: str, seed: int) -> RunResults:
    """A run in which every finding holds and no control does: layers rise to .9, or to .25 with shared outputs."""
    progress = np.array([0.0, 0.1, 0.4, 0.7, 0.9, 0.97, 1.0])
    ends = np.array([0.06, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.85])
    if arm == "shared":
        ends = 0.25 * ends
    ari = 0.05 + progress[:, None] * (ends - 0.05) + 0.002 * seed
    ari[:, 0] = 0.06 + 0.002 * seed
    train = ari + 0.02 + 0.001 * seed
    train[0] = ari[0] + 0.3  # so that untrained networks do not agree
    return RunResults(
        steps=STEPS,
        ari={VALIDATION: ari, TRAIN: train},
        output_ari=np.linspace(-0.1, 0.95, len(STEPS))[:, None] * np.ones(N + 2),
        null=np.broadcast_to([-0.03, 0.04, 0.0], (*SHAPE, 3)).copy(),
        tsne=None,
        accuracy=np.linspace(0.1, 0.99 + 0.001 * seed, len(STEPS)),
        loss=np.linspace(3, 1, 100),
    )


def runs(
    make: Callable[[str, int], RunResults] = ideal_run, config: TaskClustersConfig = CONFIG, **changes: Change
) -> dict[Job, RunResults]:
    """A run of every job, those of an arm put through ``changes[arm]``."""
    made = {}
    for seed in config.seeds:
        for arm in config.arms:
            run = make(arm, seed)
            made[Job(arm, seed)] = changes[arm](run) if arm in changes else run
    return made


def judged(config: TaskClustersConfig = CONFIG, **changes: Change) -> dict[str, Finding]:
    return {finding.id: finding for finding in findings_of(config, runs(config=config, **changes))}


def edited(split: str = VALIDATION, **values: float) -> Change:
    """Set task-ARI: names are ``s{checkpoint}l{layer}``, ``A`` for all, ``E`` for the last checkpoint."""

    def change(run: RunResults) -> RunResults:
        ari = {name: curves.copy() for name, curves in run.ari.items()}
        for where, value in values.items():
            step, layer = where[1:].split("l")
            rows = {"A": slice(None), "E": -1}.get(step, int(step) if step.isdigit() else None)
            ari[split][rows, slice(None) if layer == "A" else int(layer)] = value
        return replace(run, ari=ari)

    return change


def with_accuracy(value: float) -> Change:
    def change(run: RunResults) -> RunResults:
        return replace(run, accuracy=np.full(len(STEPS), value + run.accuracy[-1] - 0.99))

    return change


def with_output_ari(value: float) -> Change:
    def change(run: RunResults) -> RunResults:
        output_ari = run.output_ari.copy()
        output_ari[-1] = value
        return replace(run, output_ari=output_ari)

    return change


# ---- values ----


def test_values_are_those_of_the_seeds_arms_layers_and_steps_that_a_finding_names() -> None:
    of_jobs = runs(random_run)
    private, unseen, shared, five, expressions = (
        [of_jobs[Job(arm, seed)] for seed in CONFIG.seeds] for arm in CONFIG.arms
    )
    order = np.random.default_rng(0).permutation(7)

    def top(run: RunResults) -> np.ndarray:
        ari = run.ari[VALIDATION]
        return ari[:, 5] if ari[6, 5] > ari[6, 6] else ari[:, 6]

    def grows(of_arm: list[RunResults]) -> list[list[float]]:
        return [[top(run)[6] for run in of_arm], [top(run)[6] - 5 * top(run)[0] for run in of_arm]]

    def rises(checkpoints: np.ndarray) -> list[list[float]]:
        curves = [top(run)[checkpoints] for run in private]
        rank = [float(spearmanr(STEPS, curve).statistic) for curve in curves]
        return [rank, [abs(curve[6] - curve[5]) for curve in curves]]  # step 67 begins the last third

    def climbs(step: int) -> list[list[float]]:
        layers = [run.ari[VALIDATION][step] for run in private]
        rank = [float(spearmanr(range(7), of[:7]).statistic) for of in layers]
        return [rank, [of[6] - of[1] for of in layers]]

    def beyond(step: int) -> list[list[float]]:
        return [[max(run.ari[VALIDATION][step] - run.null[step, :, 2]) for run in private]]

    def agree(step: int) -> list[list[float]]:
        return [[abs(run.ari[VALIDATION][step, 6] - run.ari[TRAIN][step, 6]) for run in private]]

    def by_output(step: int) -> list[list[float]]:
        return [[run.output_ari[step, 6] - run.ari[VALIDATION][step, 6] for run in shared]]

    expected = {
        "T2": (grows(private), grows(shared)),
        "T3": (rises(np.arange(7)), rises(order)),
        "T4": (climbs(6), climbs(0)),
        "T6": (agree(6), agree(0)),
        "T7": (beyond(0), beyond(6)),
        "T9": (by_output(6), by_output(0)),
        "T10": (grows(unseen), grows(shared)),
        "T25": (grows(five), grows(shared)),
        "T26": (grows(expressions), grows(shared)),
    }
    findings = {finding.id: finding for finding in findings_of(CONFIG, of_jobs)}
    assert list(findings) == IDS
    for id, (parts, control_parts) in expected.items():
        control = findings[id].control
        assert control is not None
        assert np.allclose([part.values for part in findings[id].parts], parts, atol=1e-12), id
        assert np.allclose([part.values for part in control.parts], control_parts, atol=1e-12), id
    layer_0 = [run.ari[VALIDATION][:, 0] for run in private]
    of_input = [task_of(CONFIG, Job("private", seed)).input_only_accuracy() for seed in CONFIG.seeds]
    assert findings["T1"].parts == (check_part("", [run.accuracy[6] for run in private], Bound(">=", 0.95)),)
    assert findings["T5"].parts == (
        check_part("range", [max(of) - min(of) for of in layer_0], Bound("<=", 0.05)),
        check_part("maximum", [max(of) for of in layer_0], Bound("<=", 0.15)),
    )
    assert findings["T8"].parts == (check_part("", of_input, Bound("<=", 3 / 4)),)
    low, high = (np.mean([run.null[-1, N - 1 : N + 1, end] for run in private]) for end in (0, 1))
    assert f"{low:.3f} to {high:.3f}" in findings["T2"].note
    after, before = (np.mean([run.ari[VALIDATION][step, 6] for run in private]) for step in (6, 0))
    chance = max(run.null[6, 6, 1] for run in private)
    said = headline(CONFIG, of_jobs)
    assert f"{after:.2f} after training, {before:.2f} before (means over seeds)" in said
    assert f"by chance at most {chance:.2f} in any seed" in said


# ---- verdicts ----


def test_every_finding_holds_on_ideal_runs_and_no_control_does() -> None:
    findings = judged()
    assert {id: finding.verdict for id, finding in findings.items()} == dict.fromkeys(IDS, "holds")
    assert {id for id, finding in findings.items() if finding.control is None} == CHECKS
    assert {id for id, finding in findings.items() if finding.shown == "headline"} == {"T2", "T10"}


def test_findings_fail_on_curves_that_contradict_them() -> None:
    findings = judged(shared=with_output_ari(0.2))
    assert {id: finding.verdict for id, finding in findings.items() if finding.verdict != "holds"} == {
        "T9": "does not hold"
    }


def test_x_must_not_name_the_task() -> None:
    """Each task maps one input of many."""
    task = InstructionFollowing(n_tasks=4, variants=8, n_inputs=40, n_mappings=1, n_eval=60)
    finding = judged(replace(CONFIG, task=replace(task, n_eval_tasks=4), seeds=(0, 2)))["T8"]
    assert finding.measured is not None
    assert finding.measured > 0.75
    assert finding.verdict == "does not hold"


def test_a_check_is_of_the_worst_seed_and_a_finding_of_all_of_them() -> None:
    of_jobs = runs()
    of_jobs[Job("private", 1)] = with_accuracy(0.9)(edited(s0l5=0.4, s0l6=0.4)(of_jobs[Job("private", 1)]))
    findings = {finding.id: finding for finding in findings_of(CONFIG, of_jobs)}
    assert findings["T1"].measured == pytest.approx(0.901)
    assert findings["T1"].verdict == "does not hold"
    assert findings["T2"].verdict == "undecided"
    assert findings["T10"].verdict == "holds"


# ---- edges ----


def test_flat_curves_hold_no_finding_about_growth_and_raise_no_warning() -> None:
    flat = edited(sAlA=0.06)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        findings = judged(private=flat, instruction=flat)
    assert [findings[id].verdict for id in ("T2", "T4", "T10")] == 3 * ["does not hold"]
    assert findings["T3"].verdict == "undecided"  # a flat curve has no rank
    assert (findings["T3"].measured, findings["T4"].measured, findings["T3"].interval) == (None, None, None)


@pytest.mark.filterwarnings("ignore:An input array is constant")
def test_the_top_layer_is_the_better_of_the_two_at_the_end() -> None:
    assert judged(private=edited(sAl6=0.1))["T2"].measured == pytest.approx(0.802)
    assert judged(private=edited(s0l5=0.95))["T2"].measured == pytest.approx(0.902)
    assert judged(private=edited(sAl5=0.1, sAl6=0.1))["T2"].verdict == "does not hold"


def test_the_final_norm_is_no_layer() -> None:
    findings = judged(private=edited(sEl7=0.0), instruction=edited(sEl7=0.0))
    assert {finding.verdict for finding in findings.values()} == {"holds"}


def test_the_control_of_two_checkpoints_has_them_the_other_way_round() -> None:
    ends = [0, -1]

    def shorter(run: RunResults) -> RunResults:
        ari = {split: values[ends] for split, values in run.ari.items()}
        whole = {"output_ari": run.output_ari[ends], "null": run.null[ends], "accuracy": run.accuracy[ends]}
        return replace(run, steps=STEPS[ends], ari=ari, **whole)

    config = replace(CONFIG, arms=("private",))
    found = findings_of(config, {Job("private", i): shorter(ideal_run("private", i)) for i in CONFIG.seeds})
    (rise,) = [finding for finding in found if finding.id == "T3"]
    assert rise.control is not None
    assert (rise.parts[0].measured, rise.control.parts[0].measured) == (pytest.approx(1), pytest.approx(-1))


def test_a_change_before_the_last_third_is_not_late() -> None:
    finding = judged(private=edited(s4l6=0.5))["T3"]
    assert finding.verdict == "holds"
    assert finding.parts[1].measured == pytest.approx(0.0255, abs=5e-5)


@pytest.mark.parametrize("start", [0.0, -0.01])
def test_a_start_at_or_below_zero_divides_nothing(start: float) -> None:
    finding = judged(private=edited(s0l5=start, s0l6=start))["T2"]
    assert finding.verdict == "holds"
    assert finding.parts[1].measured == pytest.approx(0.902 - 5 * start)


def test_an_undefined_start_is_not_growth() -> None:
    assert judged(private=edited(s0l5=np.nan, s0l6=np.nan))["T2"].verdict == "undecided"


@pytest.mark.parametrize("arms", [("private",), ("private", "shared"), ("private", "instruction")])
def test_a_missing_arm_is_not_tested(arms: tuple[str, ...]) -> None:
    findings = judged(replace(CONFIG, arms=arms))
    assert list(findings) == IDS[:10]
    for id, arm in (("T9", "shared"), ("T10", "instruction")):
        assert findings[id].verdict == ("holds" if arm in arms else "not tested")
        assert findings[id].why_not == ("" if arm in arms else f"needs the arm '{arm}'")
    assert findings["T2"].verdict == "holds"
    assert (findings["T2"].control is None) == ("shared" not in arms)
    check_findings(list(findings.values()))


class TestConfig:
    def test_refusals(self):
        with pytest.raises(InputError, match=r"^n_permutations is 0; expected at least 1$"):
            TaskClustersConfig(n_permutations=0)
        with pytest.raises(InputError, match=r"^seeds is empty; expected at least one seed, such as --seeds 0$"):
            replace(CONFIG, seeds=())
        with pytest.raises(
            InputError,
            match=r"^arms is 'public'; expected 'private', 'instruction', 'shared', "
            r"'five' or 'expressions'$",
        ):
            replace(CONFIG, arms=("private", "public"))
        with pytest.raises(InputError, match=r"^arms lacks 'private', the primary arm that the findings are about"):
            replace(CONFIG, arms=("shared",))

    def test_the_task_of_each_arm(self):
        tasks = {arm: task_of(CONFIG, Job(arm, 5)) for arm in CONFIG.arms}
        assert {t.seed for t in tasks.values()} == {5}
        assert {a: (t.outputs, t.split_by, t.n_outputs, t.n_distributions) for a, t in tasks.items()} == {
            "private": ("private", "instance", 2, 1),
            "instruction": ("private", "instruction", 2, 1),
            "shared": ("shared", "instance", 10, 1),
            "five": ("private", "instance", 5, 1),
            "expressions": ("private", "instance", 2, 3),
        }
