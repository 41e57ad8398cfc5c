"""What MOSSA reads is read as layer groups do, and the findings on it can fail one by one."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from mechclust.models import build_model, model_for
from mechclust.mossa.crossovers import crossover
from mechclust.studies import get_study
from mechclust.studies.planted_layers import PlantedConfig, plant_in
from mechclust.studies.planted_layers.alike import CONTROL_VIEWS, measure_alike, share_learnt
from mechclust.studies.planted_layers.control_findings import control_findings_of
from mechclust.studies.planted_layers.measure import SIMILARITY_MEASURES, WITHOUT_TOP
from mechclust.studies.planted_layers.reading import (
    TrioReading,
    reading_scores,
)
from mechclust.studies.planted_layers.results import PROMPTS
from mechclust.studies.planted_layers.trios import (
    ABOVE,
    BELOW,
    LONGER,
    SAME,
    Trio,
    control_spans,
    trios_of,
)
from mechclust.studies.planted_layers.tunings import jobs, tunings
from probes import CKA, RBFCKA, SVCCA, NDims, residual, run, token_at
from tasks import InputError, SkillSuite
from tests.mechclust.mossa.layer_groups_of_curves import layer_groups

PAPER = get_study("planted-layers").preset("paper")
SUITE = SkillSuite(n_eval=30)
SKILLS = ("copy-0", "swap-1")
AT = token_at("answer")
L, MARGIN = 8, PAPER.gain_margin


class TestPlan:
    def test_e_and_its_controls_are_trained_in_the_same_layers_and_crossed(self):
        assert control_spans(PAPER) == [(2, 3), (6, 7)]
        found = {trio.column: trio for trio in trios_of(PAPER) if trio.column != SAME}
        assert (found[BELOW].tuned, found[BELOW].controls, found[BELOW].shared) == ("multi-2-3", "6-7", 6)
        assert (found[ABOVE].tuned, found[ABOVE].controls, found[ABOVE].shared) == ("multi-6-7", "2-3", 6)
        assert [(t.tuned, t.controls, t.truth) for t in trios_of(PAPER) if t.column == SAME] == [
            ("multi-2-3", "2-3", (2, 3)),
            ("multi-6-7", "6-7", (6, 7)),
        ]

    def test_every_model_of_a_trio_is_trained_and_e_sees_each_task_as_often_as_its_control(self):
        plan = tunings(PAPER)
        skills = plan["multi-all"].skills
        assert len(skills) == PAPER.n_measured
        for trio in trios_of(PAPER):
            e, controls = plan[trio.tuned], [plan[f"control-{trio.controls}-{skill}"] for skill in skills]
            assert e.steps == (2 if trio.column == LONGER else 1) * sum(control.steps for control in controls)
            assert {control.order for control in controls} != {e.order}
        assert plan["control-rates-copy-0"].layer_decay == plan["multi-rates"].layer_decay == PAPER.layer_decay
        assert plan["control-all-copy-0"].settings(PAPER).freeze == PAPER.tuning.freeze
        frozen = plan["control-2-3-copy-0"].settings(PAPER).freeze
        assert {name for name in frozen if name.startswith("blocks")} == {f"blocks.{i}" for i in (0, 3, 4, 5, 6, 7)}

    def test_without_spans_for_controls_there_are_none(self):
        off = replace(PAPER, n_control_spans=0)
        assert trios_of(off) == []
        assert {job.kind for job in jobs(off)} == {"base", "tuned", "measure"}
        assert not [name for name in tunings(off) if name.startswith(("multi", "control"))]
        assert control_findings_of(off, []) == []

    def test_refusals(self):
        with pytest.raises(InputError) as refused:
            PlantedConfig(control_steps=20)
        assert str(refused.value) == (
            "control_steps is 20, and tuning.warmup 20; expected more steps than that, or the learning rate is "
            "never reached"
        )
        with pytest.raises(InputError, match="gain_margin is 0; expected above 0"):
            PlantedConfig(gain_margin=0)


def tiny(seed=0):
    return build_model(model_for(SUITE, n_layers=3, d_model=16, n_heads=2, init_std=0.25, seed=seed))


def prompts(skill):
    return SUITE.batches("test", tasks=[skill])


class TestMeasureAlike:
    def test_is_what_the_probes_say(self):
        model, controls = tiny(0), {skill: tiny(1 + k) for k, skill in enumerate(SKILLS)}
        found = measure_alike(model, controls, tiny(5), prompts, AT, n_few=8)
        at = residual([1, 2, 3])
        for k, (skill, control) in enumerate(controls.items()):
            probes = [CKA(at=at, readout=AT), RBFCKA(at=at, readout=AT), SVCCA(at=at, readout=AT)]
            probes.append(CKA(at=at, readout=AT, form="rows", remove_top=1))
            cka, rbf, svcca, less = run({"one": model, "other": control}, list(prompts(skill)), probes)
            expected = {
                "CKA": cka.sel("cka", label="all"),
                "debiased CKA": cka.sel("debiased_cka", label="all"),
                WITHOUT_TOP: less.sel("debiased_cka", label="all"),
                "RBF CKA": rbf.sel("debiased_rbf_cka", label="all"),
                "SVCCA": svcca.sel("svcca", label="all"),
            }
            assert list(expected) == list(SIMILARITY_MEASURES)
            for m, values in enumerate(expected.values()):
                measured = found["similarity"][0, CONTROL_VIEWS.index("residual"), m, k]
                assert measured.tolist() == pytest.approx(values.tolist(), abs=1e-8)
        dims = run(model, list(SUITE.batches("test", tasks=list(SKILLS))), NDims(at=at, readout=AT))
        assert found["n_dims"][0].tolist() == dims.sel("n_dims", label="all").tolist()
        assert found["n"].tolist() == [[30, 30], [8, 8]]

    def test_there_is_no_gain_below_the_first_layer_that_changed_in_both(self):
        base, model, control = tiny(), tiny(), tiny()
        with plant_in(model, [3], noise=0.5), plant_in(control, [2], noise=0.5):
            with_model, with_base = (
                measure_alike(each, {"copy-0": control}, base, prompts, AT)["similarity"] for each in (model, base)
            )
            crossed = measure_alike(control, {"copy-0": model}, base, prompts, AT)["similarity"]
        gain = with_model - with_base
        assert bool((with_base[..., 0] == 1).all())
        assert bool((with_base[:, 0, :, :, 1] < 1).all())
        assert bool((gain[..., :2] == 0).all())  # E is the base there
        assert bool((crossed[..., :2] <= 1).all())  # its control is the base there, to which the base is equal

    def test_of_the_same_input_only_blocks_that_changed_differ(self):
        base, control = tiny(), tiny()
        with plant_in(control, [2], noise=0.5):
            found = measure_alike(base, {"copy-0": control}, base, prompts, AT)["similarity"][0]
        same = found[CONTROL_VIEWS.index("same input"), :, 0]
        assert bool((same[:, [0, 2]] == 1).all())
        assert bool((same[:, 1] < 0.9999).all())

    def test_no_prompts(self):
        with pytest.raises(InputError, match="there are no prompts of 'copy-0' to measure; give at least one batch"):
            measure_alike(tiny(), {"copy-0": tiny()}, tiny(), lambda skill: [], AT)

    def test_what_was_learnt_is_the_share_of_right_answers(self):
        found = share_learnt({"E": (tiny(), SKILLS)}, SUITE)
        assert found.coords["answer"] == ["E.copy-0", "E.swap-1"]
        assert found["chance"].tolist() == [SUITE.chance("test")[skill] for skill in ("copy-0", "swap-1")]
        assert bool(((found["accuracy"] >= 0) & (found["accuracy"] <= 1)).all())


# ---- readings, constructed ----

SHAPE = (len(PROMPTS), len(CONTROL_VIEWS), len(SIMILARITY_MEASURES), L)


def reading(trio, gain, dims=None, spread=None):
    """Of one gain by layer, the same by all measures."""
    zero, gain = np.zeros(SHAPE), np.asarray(gain, dtype=float)
    full = np.arange(1.0, L + 1) if dims is None else np.asarray(dims, dtype=float)
    tuned = 0.5 + np.broadcast_to(gain, SHAPE)
    return TrioReading(
        trio, zero + 0.5, tuned, zero if spread is None else zero + spread, np.stack([full] * len(PROMPTS))
    )


class TestReading:
    TRIO = Trio(SAME, "multi-3-4", "3-4", (3, 4), 3)

    def scores(self, *args, **more):
        return {
            name: values[0, 0, 0] for name, values in reading_scores(reading(self.TRIO, *args, **more), 0.02).items()
        }

    def test_is_that_of_layer_groups(self):
        draw = np.random.default_rng(0)
        for _ in range(50):
            gain, dims, spread = draw.normal(0.02, 0.04, L), draw.integers(1, 60, L), draw.random(L) * 0.15
            found = self.scores(gain, dims, spread)
            base, tuned = np.full(L, 0.5), 0.5 + gain
            groups = layer_groups(base, tuned, spread, dims)
            assert found["shared layers"] == len(groups.shared)
            first = len(groups.shared) + 1
            assert found["shared"] == (
                abs(first - 3) if first <= L else 18 / 8
            )  # a random layer is off by 2 1 0 1 2 3 4 5
            end = groups.transition[-1] if groups.transition else None
            assert found["transition"] == (abs(end - 4) if end else 16 / 8)
            by_spread = layer_groups(base, tuned, spread).transition
            assert found["by spread"] == (abs(by_spread[-1] - 4) if by_spread else 16 / 8)
            crossing = crossover(base, tuned)
            assert found["crossing"] == (abs(crossing - 3) if crossing <= L else 18 / 8)

    def test_of_a_gain_where_it_was_planted_and_above(self):
        found = self.scores([0, 0, 0.1, 0.1, 0.1, 0, 0, 0])
        assert (found["onset"], found["end"], found["hit"], found["false"]) == (0, 1, 1, 1 / 6)

    def test_a_gap_leaves_no_score(self):
        found = self.scores([0, math.nan, 0.1, 0.1, 0, 0, 0, 0])
        assert all(map(math.isnan, found.values()))
