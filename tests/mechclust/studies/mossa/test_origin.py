"""The method's origin: models of several domains and of one each, alike as an independent computation says."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mechclust.models import load_model
from mechclust.studies import get_study, run_study
from mechclust.studies.mossa.config import MossaConfig, OriginConfig, suite_of
from mechclust.studies.mossa.origin.corpus import DomainCorpus
from mechclust.studies.mossa.origin.findings import origin_findings
from mechclust.studies.mossa.origin.jobs import Cell, OriginJob, origin_jobs
from mechclust.studies.mossa.origin.results import OriginResults, cells_table, load_origin_results
from mechclust.studies.mossa.origin.run import training_of
from mechclust.training import TrainConfig
from mechclust.training.task_accuracy import accuracy
from probes import load_result
from tasks import InputError, SkillSuite, Task
from tests.mechclust.studies.damaged import check_made_whole
from tests.mechclust.studies.recorded import check_judged_again

STUDY = get_study("mossa")
PRESET = STUDY.preset("origin")
DOMAINS = ("copy", "type")
TINY = MossaConfig(
    experiment="origin",
    origin=OriginConfig(
        domains=DOMAINS,
        width=8,
        widths=(4, 8),
        examples=40,
        sizes=(0.5, 1.0),
        training=TrainConfig(steps=6, batch_size=8),
    ),
    seeds=(0,),
    suite=SkillSuite(n_eval=10),
    n_layers=2,
    n_heads=2,
    test_findings=False,
)
REFERENCE = Cell(8, 1.0)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A run from beginning to end: analysis, folder. Read only."""
    out = tmp_path_factory.mktemp("origin") / "run"
    return run_study(STUDY, TINY, out, workers=1), out


class TestJobs:
    def test_every_width_once_and_every_size_at_the_references_width(self):
        cells = {job.cell for job in origin_jobs(PRESET)}
        widths, sizes = PRESET.origin.widths, PRESET.origin.sizes
        assert cells == {Cell(w, 1.0) for w in widths} | {Cell(64, s) for s in sizes}

    def test_each_cell_has_one_model_of_all_domains_two_controls_a_domain_and_a_comparison(self):
        of_one = [job for job in origin_jobs(PRESET) if job.seed == 41 and job.cell == Cell(32, 1.0)]
        counts = {kind: sum(job.kind == kind for job in of_one) for kind in ("experimental", "control", "compare")}
        assert counts == {"experimental": 1, "control": 10, "compare": 1}
        assert len({job.model_path(Path("run")) for job in of_one if job.kind != "compare"}) == 11

    def test_a_control_has_its_share_of_the_steps_and_a_narrower_model_a_higher_rate(self):
        training = PRESET.origin.training
        for kind, steps in (("experimental", training.steps), ("control", training.steps / 5)):
            found = training_of(PRESET, OriginJob(kind, 41, Cell(16, 1.0), "copy"))
            assert (found.steps, found.lr) == (steps, pytest.approx(4 * training.lr))
        assert training_of(PRESET, OriginJob("experimental", 41, Cell(64, 0.1))) == training

    def test_comparisons_wait_for_models(self):
        assert {(job.kind, STUDY.stage(job)) for job in STUDY.jobs(TINY)} == {
            ("experimental", 0),
            ("control", 0),
            ("compare", 1),
        }

    def test_the_other_presets_know_nothing_of_it(self):
        assert {type(job).__name__ for job in STUDY.jobs(STUDY.preset("smoke"))} == {"ModelJob"}


class TestCorpus:
    SUITE = SkillSuite(n_eval=3)

    def test_less_data_are_the_beginning_of_more_and_a_controls_are_the_other_models(self):
        all_of = DomainCorpus(self.SUITE, DOMAINS, 1500).examples
        few = DomainCorpus(self.SUITE, ("type",), 30).examples
        of_type = all_of.select(slice(1500, 3000))
        assert set(of_type.labels["cluster"].tolist()) == {3}
        assert torch.equal(of_type.tokens[:30], few.tokens)

    def test_an_epoch_sees_every_example_once_also_where_batches_do_not_divide_it(self):
        corpus = DomainCorpus(self.SUITE, ("copy", "swap"), 5)
        drawn = torch.cat([corpus.train_batch(step, 4).tokens for step in range(5)])  # two epochs of ten
        for epoch in (drawn[:10], drawn[10:]):
            assert sorted(epoch.tolist()) == sorted(corpus.examples.tokens.tolist())
        assert drawn[:10].tolist() != drawn[10:].tolist()

    def test_another_order_has_the_same_examples(self):
        one, other = (DomainCorpus(self.SUITE, DOMAINS, 8, order=order) for order in (0, 1))
        assert torch.equal(one.examples.tokens, other.examples.tokens)
        assert not torch.equal(one.train_batch(0, 24).tokens, other.train_batch(0, 24).tokens)

    def test_domains_do_not_share_their_prompts(self):
        examples = DomainCorpus(self.SUITE, ("copy", "swap"), 50).examples
        data = examples.tokens[:, 3:11]
        assert not torch.equal(data[:50], data[50:])

    def test_comes_back_from_its_configuration(self):
        corpus = DomainCorpus(replace(self.SUITE, seed=3), DOMAINS, 8, order=1)
        assert Task.from_config(corpus.to_config()) == corpus

    def test_its_splits_hold_all_arguments_of_its_domains(self):
        corpus = DomainCorpus(self.SUITE, ("type", "copy"), 8)
        names = [self.SUITE.task_names[i] for b in corpus.batches("test") for i in b.labels["task"].unique()]
        assert names == [f"{domain}-{k}" for domain in ("type", "copy") for k in range(4)]


def svcca_by_hand(x: np.ndarray, y: np.ndarray) -> float:
    """From the covariances' eigenvectors, by the definition: correlations of least-squares predictions."""
    kept = []
    for rows in (x, y):
        centred = rows - rows.mean(axis=0)
        values, vectors = np.linalg.eigh(centred.T @ centred)
        values, vectors = values[::-1], vectors[:, ::-1]
        k = int(np.searchsorted(np.cumsum(values) / values.sum(), 0.99)) + 1
        kept.append(centred @ vectors[:, :k])
    a, b = kept
    inverse_a, inverse_b = np.linalg.inv(a.T @ a), np.linalg.inv(b.T @ b)
    squares = np.linalg.eigvals(inverse_a @ a.T @ b @ inverse_b @ b.T @ a).real
    squares = np.sort(squares)[::-1][: min(a.shape[1], b.shape[1])]
    return float(np.sqrt(squares.clip(0)).mean())


class TestRun:
    def test_can_be_judged_again_from_its_record(self, tiny, tmp_path):
        check_judged_again(tiny[1], tmp_path)

    def test_writes_figures_findings_and_a_report(self, tiny):
        analysis, out = tiny
        assert [c.id for c in analysis.findings] == [f"O{i}" for i in range(1, 8)]
        assert {c.verdict for c in analysis.findings} == {"not tested"}
        for panel in analysis.panels:
            assert (out / "figures" / f"{panel.name}.png").stat().st_size > 5000
        assert "Layer 1 stands in for" in (out / "report.html").read_text()

    def test_keeps_the_models_of_every_cell_and_no_training_state(self, tiny):
        _, out = tiny
        names = {"experimental", *(f"control-{d}" for d in DOMAINS), *(f"control-{d}-again" for d in DOMAINS)}
        for cell in ("width4-data1", "width8-data1", "width8-data0.5"):
            there = sorted(path.name for path in (out / "models" / "seed0" / cell).iterdir())
            assert there == sorted(f"{name}.safetensors" for name in names)

    def test_no_two_models_of_a_cell_begin_alike(self, tiny):
        _, out = tiny
        models = [load_model(path) for path in (out / "models").glob("*/width8-data1/*.safetensors")]
        assert len({model.mechclust_config.seed for model in models}) == len(models) == 5

    def test_similarities_are_those_of_the_saved_models(self, tiny):
        _, out = tiny
        suite, folder = suite_of(TINY, 0), out / "models" / "seed0" / "width8-data1"
        prompts = list(suite.batches("test", tasks=[f"type-{k}" for k in range(4)]))
        states = {}
        for name in ("experimental", "control-type", "control-copy", "control-type-again"):
            model = load_model(folder / f"{name}.safetensors")
            caches = [model.run_with_cache(b.tokens)[1]["blocks.1.hook_resid_post"] for b in prompts]
            states[name] = torch.cat(caches)[:, suite.answer_position].double().numpy()
        found, i, place = load_origin_results(TINY, out, 0), DOMAINS.index("type"), 1
        m = found.at_reference
        whole = states["experimental"]
        assert found.own[m, i, place] == pytest.approx(svcca_by_hand(whole, states["control-type"]), abs=1e-6)
        own, other = (svcca_by_hand(whole, states[f"control-{domain}"]) for domain in ("type", "copy"))
        assert found.svcca[m, i, 0, place] == pytest.approx(other, abs=1e-6)
        assert abs(own - other) > 1e-4
        again = svcca_by_hand(states["control-type"], states["control-type-again"])
        assert found.ceiling[m, i, place] == pytest.approx(again, abs=1e-6)

    def test_accuracy_is_that_of_the_saved_models(self, tiny):
        _, out = tiny
        found, suite, folder = load_origin_results(TINY, out, 0), suite_of(TINY, 0), out / "models" / "seed0"
        for model, name in enumerate(("experimental", "control-type")):
            loaded = load_model(folder / "width4-data1" / f"{name}.safetensors")
            right = [accuracy(loaded, suite, "test", tasks=[f"type-{k}"])[0] for k in range(4)]
            assert found.accuracy[0, 1, model] == pytest.approx(np.mean(right))

    def test_goes_on_where_it_was_with_the_same_bits(self, tiny, undrawn, tmp_path):
        analysis, out = tiny
        copy = shutil.copytree(out, tmp_path / "run")
        gone = [
            OriginJob("control", 0, REFERENCE, "type").model_path(copy),
            OriginJob("compare", 0, Cell(4, 1.0)).result_path(copy),
        ]
        before = {path: path.read_bytes() for path in gone}
        for path in gone:
            path.unlink()
        others = {p: p.stat().st_mtime_ns for p in copy.rglob("*.safetensors")}
        again = run_study(STUDY, TINY, copy, workers=1)
        assert {p: p.stat().st_mtime_ns for p in others} == others
        assert {path: path.read_bytes() for path in gone} == before
        assert repr(again.findings) == repr(analysis.findings)

    @pytest.mark.slow
    def test_what_is_lost_or_damaged_is_made_again(self, tiny, tmp_path):
        check_made_whole(STUDY, TINY, shutil.copytree(tiny[1], tmp_path / "run"))

    def test_a_control_that_is_another_is_measured_anew(self, tiny, tmp_path):
        copy = shutil.copytree(tiny[1], tmp_path / "run")
        of_type, of_copy = (OriginJob("control", 0, REFERENCE, domain).model_path(copy) for domain in ("type", "copy"))
        shutil.copy(of_copy, of_type)
        job = OriginJob("compare", 0, REFERENCE)
        with pytest.warns(UserWarning, match="was measured on another model"):
            STUDY.run_job(TINY, job, copy)
        values = load_result(job.result_path(copy))["svcca"]
        assert torch.equal(values[:, 0], values[:, 1])

    def test_a_missing_measurement_is_named(self, tiny, tmp_path):
        copy = shutil.copytree(tiny[1], tmp_path / "run")
        OriginJob("compare", 0, REFERENCE).result_path(copy).unlink()
        with pytest.raises(InputError) as refused:
            load_origin_results(TINY, copy, 0)
        assert str(refused.value).endswith(
            "lacks results/seed0/width8-data1.safetensors; start the study again with the same --out"
        )

    def test_without_second_controls_there_is_no_ceiling(self, tmp_path):
        config = replace(TINY, origin=replace(TINY.origin, ceiling=False, widths=(8,), sizes=(1.0,)), seeds=(0,))
        run_study(STUDY, config, tmp_path / "run", workers=1)
        found = load_origin_results(config, tmp_path / "run", 0)
        assert np.isnan(found.ceiling).all()
        assert np.isfinite(found.own).all()


# ---- findings, on constructed measurements ----

CELLS = (Cell(16, 1.0), Cell(32, 1.0), Cell(64, 1.0), Cell(128, 1.0), Cell(64, 0.1), Cell(64, 0.5), Cell(64, 2.0))
N_DOMAINS, N_LAYERS = 5, 4


def measured(draw: int = 0, **changes: float) -> OriginResults:
    """A seed that carries every finding; ``changes`` are slopes at the last layer, and what stands at the reference."""
    values = {"own": 0.1, "others": 0.0, "first": 0.02, "data": 0.03, "ceiling": 0.04, "excess": 0.2, "below": 0.05}
    values |= changes
    noise = np.random.default_rng(draw)
    widths, sizes = (np.log2([getattr(c, name) for c in CELLS]) for name in ("width", "size"))
    widths -= np.log2(64)
    levels = {  # [cell] at the last layer
        "own": 0.6 + values["own"] * widths + values["data"] * sizes,
        "others": 0.6 - values["excess"] + values["others"] * widths - 0.01 * sizes,
    }
    svcca = np.zeros((len(CELLS), N_DOMAINS, N_DOMAINS, N_LAYERS))
    svcca[..., -1] = levels["others"][:, None, None]
    svcca[:, range(N_DOMAINS), range(N_DOMAINS), -1] = levels["own"][:, None]
    svcca[..., 0] = 0.8 + values["first"] * widths[:, None, None]
    svcca[:, range(N_DOMAINS), range(N_DOMAINS), 0] += values["below"]
    svcca += noise.normal(0, 1e-3, svcca.shape)
    chance = np.full((len(CELLS), N_DOMAINS, N_LAYERS), 0.1) + 0.02 * widths[:, None, None]
    ceiling = np.full_like(chance, 0.0)
    ceiling[..., -1] = 0.9 + values["ceiling"] * widths[:, None]
    accuracy = np.full((len(CELLS), N_DOMAINS, 2), values.get("accuracy", 0.95))
    return OriginResults(CELLS, Cell(64, 1.0), svcca, chance, ceiling, np.full_like(chance, 9), accuracy)


def noisy(seed: int) -> OriginResults:
    """A seed of random numbers, in which no two cells, domains, controls or layers are alike."""
    rng = np.random.default_rng(seed)
    m = measured()
    accuracy = 0.9 + 0.1 * rng.random(m.accuracy.shape)
    arrays = {name: rng.random(getattr(m, name).shape) for name in ("svcca", "chance", "ceiling")}
    return replace(m, accuracy=accuracy, **arrays)


def judged(config: MossaConfig = PRESET, **changes: float):
    return {c.id: c for c in origin_findings(config, [measured(draw, **changes) for draw in range(5)])}


class TestFindings:
    def test_hold_where_everything_agrees(self):
        found = judged()
        assert {c.verdict for c in found.values()} == {"holds"}
        assert found["O1"].measured == pytest.approx(0.1 - 0.02, abs=2e-3)
        assert found["O2"].measured == pytest.approx(0.1 - 0.02, abs=2e-3)
        assert found["O3"].measured == pytest.approx(0.2, abs=2e-3)
        assert found["O4"].measured == pytest.approx(0.1, abs=2e-3)
        assert found["O5"].measured == pytest.approx(0.2 - 0.05, abs=2e-3)
        assert found["O6"].measured == pytest.approx(0.03, abs=2e-3)
        assert found["O7"].measured == pytest.approx(0.04 - 0.1, abs=2e-3)

    @pytest.mark.parametrize(
        ("changes", "broken"),
        [
            ({"own": 0.01, "first": -0.1, "others": -0.1, "ceiling": -0.1}, {"O1"}),
            ({"first": 0.2}, {"O2"}),
            ({"excess": -0.1, "below": -0.3}, {"O3"}),
            ({"others": 0.2}, {"O4"}),
            ({"below": 0.3}, {"O5"}),
            ({"data": -0.03}, {"O6"}),
            ({"ceiling": 0.2}, {"O7"}),
        ],
        ids=str,
    )
    def test_fail_one_by_one(self, changes, broken):
        found = judged(**changes)
        assert {name for name, c in found.items() if c.verdict == "does not hold"} == broken

    def test_the_control_is_the_next_domains(self):
        seeds = [noisy(seed) for seed in range(3)]
        found = {c.id: c for c in origin_findings(PRESET, seeds)}
        after = [1, 2, 3, 4, 0]
        excess = []
        for m in seeds:
            table = m.svcca[2, :, :, -1]
            others = [[c for c in range(N_DOMAINS) if c != after[d]] for d in range(N_DOMAINS)]
            excess.append(np.mean([table[d, after[d]] - table[d, others[d]].mean() for d in range(N_DOMAINS)]))
        assert found["O3"].control.parts[0].values == pytest.approx(excess)
        own = [m.svcca[:, range(N_DOMAINS), after, -1] - m.chance[..., -1] for m in seeds]  # [cell domain]
        slopes = [np.polyfit(np.log2([16, 32, 64, 128]), curve.mean(axis=1)[:4], 1)[0] for curve in own]
        assert found["O1"].control.parts[0].values == pytest.approx(slopes)

    def test_values_are_those_of_every_seed(self):
        seeds = [noisy(seed) for seed in range(3)]
        found = {c.id: c.parts[0].values for c in origin_findings(PRESET, seeds)}
        for k, m in enumerate(seeds):
            own = np.array([[m.svcca[i, d, d] for d in range(N_DOMAINS)] for i in range(len(CELLS))])
            others = (m.svcca.sum(axis=2) - own) / (N_DOMAINS - 1)

            def slope(table, layer, cells=(0, 1, 2, 3), x=(4, 5, 6, 7)):
                return np.polyfit(x, table[list(cells), :, layer].mean(axis=1), 1)[0]

            above = own - m.chance
            expected = {
                "O1": slope(above, -1),
                "O2": slope(above, -1) - slope(above, 0),
                "O3": (own - others)[2, :, -1].mean(),
                "O4": slope(own - others, -1),
                "O5": (own - others)[2, :, -1].mean() - (own - others)[2, :, 0].mean(),
                "O6": slope(above, -1, (4, 5, 2, 6), np.log2([0.1, 0.5, 1, 2])),
                "O7": slope(m.ceiling - own, -1),
            }
            assert {id: values[k] for id, values in found.items()} == pytest.approx(expected)

    def test_what_holds_for_the_next_domains_control_too_is_not_specific(self):
        """E becomes as similar to every control as to the domain's own."""
        found = judged(others=0.1)
        assert {id for id, c in found.items() if c.verdict == "not specific"} >= {"O1", "O2", "O7"}
        assert judged()["O3"].control.verdict == "does not hold"

    def test_are_not_tested_on_what_was_not_learnt(self):
        found = {c.id: c for c in origin_findings(PRESET, [measured(accuracy=0.7)])}
        assert {c.verdict for c in found.values()} == {"not tested"}
        assert found["O3"].why_not == (
            "at the reference, E or its controls answer 0.70 correctly; expected 0.8: not learnt"
        )

    def test_are_not_tested_if_only_the_controls_did_not_learn(self):
        m = measured()
        m.accuracy[..., 1] = 0.7
        found = origin_findings(PRESET, [measured(), m])
        assert {c.why_not for c in found} == {
            "at the reference, E or its controls answer 0.70 correctly; expected 0.8: not learnt"
        }

    def test_without_second_controls_o7_is_not_tested(self):
        found = judged(replace(PRESET, origin=replace(PRESET.origin, ceiling=False)))
        assert {name for name, c in found.items() if c.verdict == "not tested"} == {"O7"}


class TestResults:
    def test_slopes_are_those_of_numpy(self):
        m, curve = measured(), np.random.default_rng(1).normal(size=len(CELLS))
        widths, sizes = np.log2([16, 32, 64, 128]), np.log2([0.1, 0.5, 1, 2])
        assert m.per_doubling(curve, "widths") == pytest.approx(np.polyfit(widths, curve[:4], 1)[0])
        assert m.per_doubling(curve, "sizes") == pytest.approx(np.polyfit(sizes, curve[[4, 5, 2, 6]], 1)[0])

    def test_of_a_single_cell_there_is_no_slope(self):
        m = replace(measured(), cells=CELLS[2:3])
        assert np.isnan(m.per_doubling(np.ones(1), "widths"))

    def test_others_are_the_controls_of_other_domains(self):
        m = measured(3)
        expected = [np.mean([m.svcca[2, d, c, -1] for c in range(N_DOMAINS) if c != d]) for d in range(N_DOMAINS)]
        assert m.others[2, :, -1] == pytest.approx(expected)
        assert m.own[2, :, -1].tolist() == [m.svcca[2, d, d, -1] for d in range(N_DOMAINS)]

    def test_table_has_a_row_for_each_cell_and_layer(self):
        found = [measured(0), measured(1)]
        table = cells_table(found)
        assert len(table) == len(CELLS) * N_LAYERS
        row = table[(table.width == 64) & (table.data == 0.5) & (table.layer == 4)].iloc[0]
        assert row["own control"] == pytest.approx(np.mean([m.own[5, :, 3] for m in found]))


def test_preset_fits_the_specification():
    origin = PRESET.origin
    assert (len(origin.domains), origin.sizes) == (5, (0.1, 0.5, 1.0, 2.0))
    assert len(PRESET.seeds) == 5
    assert origin.control_steps * len(origin.domains) == origin.training.steps
    # SVCCA of unrelated rows is near 0 where there are ten times as many as directions
    assert PRESET.suite.n_eval * PRESET.suite.n_arguments >= 10 * max(origin.widths)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"domains": ("copy", "sort")},
            "origin.domains has 'sort'; expected some of copy, swap, translate, type, classify, sentiment",
        ),
        ({"domains": ("copy",)}, "origin.domains has 1; expected at least 2, since one leaves nothing to compare"),
        ({"domains": ("copy", "type", "copy")}, "origin.domains has 'copy' twice; give it once"),
        ({"widths": (16, 32)}, "origin.widths lacks origin.width (64), the reference; add it"),
        ({"sizes": (0.5, 2.0)}, "origin.sizes lacks 1, the reference; add it"),
        ({"sizes": (0.0001, 1.0)}, "origin.sizes has 0.0001, 0.2 of 2000 examples; give more"),
        (
            {"training": TrainConfig(steps=100, warmup=20)},
            "origin.training.steps for each of 5 controls is 20, and origin.training.warmup 20; expected more steps "
            "than that, or the learning rate is never reached",
        ),
        ({"examples": 0}, "origin.examples is 0; expected at least 1"),
    ],
)
def test_refusals(fields, message):
    with pytest.raises(InputError) as refused:
        OriginConfig(**fields)
    assert str(refused.value) == message


def test_widths_that_heads_do_not_divide_are_refused():
    with pytest.raises(InputError) as refused:
        replace(PRESET, n_heads=3)
    assert str(refused.value) == "origin.widths[0] is 16; expected a multiple of n_heads (3)"


def test_an_unknown_experiment_is_refused():
    with pytest.raises(InputError) as refused:
        MossaConfig(experiment="orign")
    assert str(refused.value) == "experiment is 'orign'; expected 'tuning' or 'origin'"
