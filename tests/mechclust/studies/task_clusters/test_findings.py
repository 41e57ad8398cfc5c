"""The findings T1 to T10 of spec 1, on curves where each holds and on curves where it does not."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from mechclust.studies.study import Job
from mechclust.studies.task_clusters import TaskClustersConfig
from mechclust.studies.task_clusters.config import task_of
from mechclust.studies.task_clusters.findings import findings_of
from mechclust.studies.task_clusters.results import RunResults
from mechclust.training import TrainConfig
from tasks import InputError, InstructionFollowing

N = 6  # layers; sites are 0 to 6 and the final norm
CONFIG = TaskClustersConfig(
    seeds=(0, 1),
    task=InstructionFollowing(n_tasks=6, variants=8, n_eval_tasks=4, n_eval=60),
    training=TrainConfig(steps=100, n_checkpoints=6),
    n_layers=N,
    d_model=8,
    n_heads=2,
)
STEPS = np.array([0, 1, 6, 16, 40, 67, 100])
VALIDATION, TRAIN = "validation_subset", "train_subset"
IDS = [f"T{i}" for i in range(1, 11)]


def ideal(shared=False, seed=0):
    """A run in which every finding holds: top layers rise to .9 and stay, layer 0 stays at .06."""
    progress = np.array([0.0, 0.1, 0.4, 0.7, 0.9, 0.97, 1.0])
    ends = np.array([0.06, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.85])
    ari = 0.05 + progress[:, None] * (ends - 0.05)
    ari[:, 0] = 0.06
    if shared:
        ari = np.minimum(ari, 0.2)  # little clusters by task
    shape = (len(STEPS), N + 2)
    return RunResults(
        steps=STEPS,
        ari={VALIDATION: ari.copy(), TRAIN: ari + 0.02},
        output_ari=np.outer(progress, np.full(N + 2, 0.95 if shared else 0.3)),
        null=np.broadcast_to([-0.03, 0.04, 0.0], (*shape, 3)).copy(),
        tsne=None,
        accuracy=np.linspace(0.1, 0.99 + 0.001 * seed, len(STEPS)),
        loss=np.linspace(3, 1, 100),
    )


def runs(config=CONFIG, **changes):
    """Ideal curves for every job, those of an arm put through ``changes[arm]``."""
    made = {}
    for seed in config.seeds:
        for arm in config.arms:
            made[Job(arm, seed)] = changes.get(arm, lambda curves: curves)(ideal(shared=arm == "shared", seed=seed))
    return made


def judged(config=CONFIG, **changes):
    return {c.id: c for c in findings_of(config, runs(config, **changes))}


def edited(name=VALIDATION, **edit):
    """Sets task-ARI: keys are ``s{checkpoint}l{layer}`` with ``A`` for all, ``E`` for the last."""

    def change(curves):
        ari = {k: v.copy() for k, v in curves.ari.items()}
        for where, value in edit.items():
            step, layer = where[1:].split("l")
            rows = {"A": slice(None), "E": -1}.get(step, int(step) if step.isdigit() else None)
            ari[name][rows, slice(None) if layer == "A" else int(layer)] = value
        return replace(curves, ari=ari)

    return change


class TestIdeal:
    def test_every_finding_holds(self):
        findings = judged()
        assert list(findings) == IDS
        others = {id: f.verdict for id, f in findings.items() if f.verdict != "holds"}
        assert others == {"T6": "not specific"}  # untrained networks agree on both splits, too
        assert {len(part.values) for f in findings.values() for part in f.parts} == {2}
        assert {id for id, f in findings.items() if f.kind == "check"} == {"T1", "T5", "T8"}

    def test_measures(self):
        findings = judged()
        assert findings["T1"].measured == pytest.approx(0.99)  # the worst seed
        assert findings["T2"].measured == pytest.approx(0.9)
        assert findings["T3"].measured == pytest.approx(1.0)
        assert findings["T4"].measured == pytest.approx(1.0)
        assert findings["T5"].measured == pytest.approx(0.0)
        assert findings["T6"].measured == pytest.approx(0.02)
        assert findings["T7"].measured == pytest.approx(0.06)
        assert findings["T9"].measured == pytest.approx(0.95 - 0.2)
        assert findings["T10"].measured == pytest.approx(0.9)
        assert findings["T2"].parts[1].measured == pytest.approx(0.65)

    def test_bounds_are_those_of_the_specification(self):
        bounds = {id: [f"{part.name} {part.bound}".strip() for part in f.parts] for id, f in judged().items()}
        grows = ["end >= 0.5", "end - 5 x start >= 0"]
        assert bounds == {
            "T1": [">= 0.95"],
            "T2": grows,
            "T3": ["Spearman > 0.8", "late change < 0.1"],
            "T4": ["Spearman > 0.8", f"layer {N} - layer 1 >= 0.2"],
            "T5": ["range <= 0.05", "maximum <= 0.15"],
            "T6": ["<= 0.1"],
            "T7": ["<= 0.1"],
            "T8": ["<= 0.75"],
            "T9": ["> 0"],
            "T10": grows,
        }

    def test_chance_stands_in_the_note(self):
        findings = judged()
        assert "-0.030 to 0.040" in findings["T2"].note
        assert findings["T8"].note == "chance: 0.25"


def accuracy(value):
    """Sets the accuracy, with the difference between seeds as it is."""
    return lambda curves: replace(curves, accuracy=np.full(len(STEPS), value + curves.accuracy[-1] - 0.99))


def output_ari(value):
    return lambda curves: replace(curves, output_ari=np.full_like(curves.output_ari, value))


FAILING = {
    "T1": ("private", accuracy(0.94)),
    "T2 end": ("private", edited(sEl5=0.49, sEl6=0.48, sAl4=0.1)),
    "T2 ratio": ("private", edited(s0l5=0.3, s0l6=0.3)),
    "T3 does not rise": ("private", edited(s0l6=0.95, s1l6=0.94, s2l6=0.93, s3l6=0.92, s4l6=0.91)),
    "T3 does not saturate": ("private", edited(s5l6=0.79)),
    "T4 falls": ("private", edited(sEl1=0.7, sEl2=0.6, sEl3=0.5, sEl4=0.4)),
    "T4 climbs too little": ("private", edited(sEl1=0.71, sEl2=0.72, sEl3=0.73, sEl4=0.74, sEl0=0.06)),
    "T5 moves": ("private", edited(s3l0=0.12)),
    "T5 is high": ("private", edited(sAl0=0.16)),
    "T6": ("private", edited(TRAIN, sEl6=1.01)),
    "T7": ("private", edited(s0l3=0.11)),
    "T9": ("shared", output_ari(0.1)),
    "T10 end": ("instruction", edited(sEl5=0.49, sEl6=0.48)),
    "T10 ratio": ("instruction", edited(s0l5=0.3, s0l6=0.3)),
}


class TestEachCanFail:
    @pytest.mark.parametrize("name", FAILING)
    def test_on_curves_that_contradict_it(self, name):
        arm, change = FAILING[name]
        findings = judged(**{arm: change})
        assert findings[name.split()[0]].verdict == "does not hold"

    @pytest.mark.parametrize("id", ["T1", "T9", "T10"])
    def test_and_alone(self, id):
        changes = dict(FAILING[k] for k in FAILING if k.split()[0] == id)
        found = judged(**changes)
        assert [k for k, f in found.items() if f.verdict not in ("holds", "not specific")] == [id]

    def test_t8_when_x_gives_the_task_away(self):
        """Each task maps one input of many: x names the task."""
        task = InstructionFollowing(n_tasks=4, variants=8, n_inputs=40, n_mappings=1, n_eval=60)
        config = replace(CONFIG, task=replace(task, n_eval_tasks=4), seeds=(0, 2))
        findings = judged(config)
        assert findings["T8"].measured > 0.75
        assert findings["T8"].verdict == "does not hold"

    def test_by_one_seed_of_two_nothing_is_decided(self):
        curves = runs()
        curves[Job("private", 1)] = accuracy(0.9)(curves[Job("private", 1)])
        findings = {c.id: c for c in findings_of(CONFIG, curves)}
        assert findings["T1"].parts[0].values == pytest.approx((0.99, 0.901))
        assert findings["T1"].verdict == "does not hold"  # a check, by its worst seed
        assert findings["T2"].verdict == "holds"


def by_task(curves):
    """As networks whose tasks have private outputs."""
    return replace(ideal(), output_ari=curves.output_ari)


class TestControls:
    def test_networks_that_cluster_by_task_with_shared_outputs_make_it_unspecific(self):
        assert judged(shared=by_task)["T2"].verdict == "not specific"
        found = judged()["T2"]
        assert (found.verdict, found.control.parts[0].measured) == ("holds", pytest.approx(0.2))

    def test_untrained_networks_that_do_the_same_make_it_unspecific(self):
        climbing_before = edited(s0l1=0.1, s0l2=0.2, s0l3=0.3, s0l4=0.4, s0l5=0.5, s0l6=0.6)
        assert judged(private=climbing_before)["T4"].verdict == "not specific"
        by_output_before = judged(shared=output_ari(0.95))["T9"]
        assert by_output_before.verdict == "not specific"

    def test_are_of_the_first_checkpoint(self):
        found = judged(private=edited(s0l3=0.3, s0l6=0.2))
        assert found["T4"].control.parts[1].measured == pytest.approx(0.2 - 0.05)
        assert found["T7"].control.parts[0].measured == pytest.approx(0.9)


class TestFlat:
    def test_curves_hold_no_finding_about_growth_and_raise_no_warning(self):
        flat = edited(sAlA=0.06)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            findings = judged(private=flat, instruction=flat)
        assert [findings[k].verdict for k in ("T2", "T4", "T10")] == 3 * ["does not hold"]
        assert findings["T3"].verdict == "undecided"  # a flat curve has no rank
        assert [findings[k].verdict for k in ("T1", "T5")] == 2 * ["holds"]
        assert findings["T7"].verdict == "not specific"  # nor do they cluster after it

    @pytest.mark.filterwarnings("ignore:An input array is constant")
    def test_rank_correlation_of_a_constant_is_not_measured(self):
        findings = judged(private=edited(sAlA=0.06))
        assert (findings["T3"].measured, findings["T4"].measured) == (None, None)
        assert findings["T3"].interval is None


class TestDetails:
    @pytest.mark.filterwarnings("ignore:An input array is constant")
    def test_top_layer_is_the_better_of_the_two(self):
        """Layer 5 carries T2 where layer 6 falls; a lower layer does not."""
        assert judged(private=edited(sAl6=0.1))["T2"].measured == pytest.approx(0.8)
        assert judged(private=edited(sAl5=0.1, sAl6=0.1))["T2"].verdict == "does not hold"

    def test_final_norm_is_no_layer(self):
        findings = judged(private=edited(sEl7=0.0), instruction=edited(sEl7=0.0))
        assert {f.verdict for f in findings.values()} == {"holds", "not specific"}

    def test_final_norm_counts_before_training(self):
        assert judged(private=edited(s0l7=0.2))["T7"].verdict == "does not hold"

    def test_late_change_is_over_the_last_third(self):
        """What moves before two thirds of the way is no late change."""
        early = judged(private=edited(s4l6=0.5))["T3"]
        assert early.verdict == "holds"
        assert early.parts[1].measured == pytest.approx(0.0255, abs=5e-5)

    @pytest.mark.parametrize("start", [0.0, -0.01])
    def test_a_start_at_or_below_zero_divides_nothing(self, start):
        findings = judged(private=edited(s0l5=start, s0l6=start))
        assert findings["T2"].verdict == "holds"
        assert findings["T2"].parts[1].measured == pytest.approx(0.9 - 5 * start)

    def test_one_seed_near_zero_does_not_carry_the_ratio(self):
        """Growth is a difference, so that a start near nothing is no growth without end."""
        curves = runs(private=edited(s0l5=0.4, s0l6=0.4))
        curves[Job("private", 1)] = edited(s0l5=1e-9, s0l6=1e-9)(ideal())
        findings = {c.id: c for c in findings_of(CONFIG, curves)}
        assert findings["T2"].verdict == "undecided"

    def test_nan_at_the_start_is_not_growth(self):
        findings = judged(private=edited(s0l5=np.nan, s0l6=np.nan))
        assert findings["T2"].verdict == "undecided"

    @pytest.mark.parametrize("arms", [("private",), ("private", "shared"), ("private", "instruction")])
    def test_a_missing_arm_is_not_tested(self, arms):
        findings = judged(replace(CONFIG, arms=arms))
        for id, needed in (("T9", "shared"), ("T10", "instruction")):
            assert findings[id].verdict == ("holds" if needed in arms else "not tested")
        assert (findings["T2"].control is None) == ("shared" not in arms)
        assert list(findings) == IDS

    def test_a_size_that_cannot_test_says_so(self):
        findings = judged(replace(CONFIG, test_findings=False))
        assert {c.verdict for c in findings.values()} == {"not tested"}
        assert findings["T1"].measured == pytest.approx(0.99)


class TestConfig:
    def test_refusals(self):
        with pytest.raises(InputError, match=r"^seeds is empty; expected at least one seed, such as --seeds 0$"):
            replace(CONFIG, seeds=())
        with pytest.raises(InputError, match=r"^no arm 'public' \(there are private, instruction, shared\)$"):
            replace(CONFIG, arms=("private", "public"))
        with pytest.raises(InputError, match=r"^arms lacks 'private', the primary arm that the findings are about"):
            replace(CONFIG, arms=("shared",))

    def test_the_task_of_each_arm(self):
        tasks = {arm: task_of(CONFIG, Job(arm, 5)) for arm in CONFIG.arms}
        assert {t.seed for t in tasks.values()} == {5}
        assert {a: (t.outputs, t.split_by, t.n_outputs) for a, t in tasks.items()} == {
            "private": ("private", "instance", 2),
            "instruction": ("private", "instruction", 2),
            "shared": ("shared", "instance", 10),
        }
