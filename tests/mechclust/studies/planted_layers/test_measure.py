"""Measures of change are those of the probes, and see what was planted where it was planted."""

from __future__ import annotations

import math

import pytest
import torch

from mechclust.models import build_model, load_pretrained, model_for
from mechclust.studies.planted_layers import change_of, measure_planted, patch_layers, plant_in
from mechclust.studies.planted_layers.measure import MEASURES, WITHOUT_TOP, next_token_loss
from mechclust.studies.planted_layers.rows import VIEWS
from probes import CKA, RBFCKA, SVCCA, NDims, residual, run, token_at
from tasks import Batch, InputError, SkillSuite
from tests.mechclust.models.families import FAMILIES, TOKENS

LLAMA, ELECTRA = FAMILIES["llama"], FAMILIES["electra"]
SUITE = SkillSuite(n_eval=30)
SKILLS = ["copy-0", "swap-1"]
AT = token_at("answer")


def tiny(seed=0):
    return build_model(model_for(SUITE, n_layers=4, d_model=16, n_heads=2, init_std=0.25, seed=seed))


@pytest.fixture(scope="module")
def planted():
    """A model with noise in layer 2 of 4, measured and patched against what it was."""
    base, tuned = tiny(), tiny()
    with plant_in(tuned, [2], noise=0.5):
        batches = list(SUITE.batches("test", tasks=SKILLS))
        return (
            measure_planted(base, tuned, batches, AT, n_few=8),
            patch_layers(base, tuned, batches, SUITE.loss),
        )


def table(result, view, prompts="all"):
    """``[measure task layer]``."""
    return result["change"][result.coords["prompts"].index(prompts), VIEWS.index(view)]


class TestMeasurePlanted:
    def test_residual_changes_are_those_of_the_probes(self):
        models = {"base": tiny(0), "tuned": tiny(1)}
        batches = list(SUITE.batches("test", tasks=SKILLS))
        found = table(measure_planted(models["base"], models["tuned"], batches, AT), "residual")
        at = residual([1, 2, 3, 4])
        shared = {"at": at, "readout": AT, "label": "task"}
        probes = [CKA(**shared), RBFCKA(**shared), SVCCA(**shared), CKA(**shared, form="rows", remove_top=1)]
        cka, rbf, svcca, less = run(models, batches, probes)
        dims = {name: run(model, batches, NDims(at=at, readout=AT, label="task")) for name, model in models.items()}
        tasks = [str(SUITE.task_names.index(skill)) for skill in SKILLS]
        for k, task in enumerate(tasks):
            n99 = [dims[name].sel("n_dims", label=task) for name in models]
            expected = {
                "CKA": 1 - cka.sel("cka", label=task),
                "debiased CKA": 1 - cka.sel("debiased_cka", label=task),
                WITHOUT_TOP: 1 - less.sel("debiased_cka", label=task),
                "RBF CKA": 1 - rbf.sel("debiased_rbf_cka", label=task),
                "SVCCA": 1 - svcca.sel("svcca", label=task),
                "n99": (n99[1] - n99[0]).abs(),
            }
            for name, values in expected.items():
                assert found[MEASURES.index(name), k].tolist() == pytest.approx(values.tolist(), abs=1e-9), name

    def test_what_is_below_the_change_is_zero_and_what_is_above_is_not(self, planted):
        for view in ("residual", "contribution"):
            found = table(planted[0], view)
            assert bool((found[..., 0] == 0).all())
            assert bool((found[MEASURES.index("debiased CKA")][..., 1:] > 0.001).all()), view

    def test_with_the_same_input_only_the_changed_block_differs(self, planted):
        found = table(planted[0], "same input")
        assert found[..., [0, 2, 3]].abs().max() < 1e-9
        assert bool((found[[MEASURES.index(m) for m in MEASURES if m != "n99"]][..., 1] > 0.001).all())

    def test_the_changed_block_has_the_same_input_anyway(self, planted):
        one, other = (table(planted[0], view)[..., 1] for view in ("contribution", "same input"))
        assert torch.allclose(one, other, atol=1e-9)

    def test_few_prompts_are_the_first_of_each_task(self, planted):
        base, tuned = tiny(), tiny()
        few = SUITE.batches("test", tasks=SKILLS)
        batches = [batch.select(slice(0, 8)) for skill in SKILLS for batch in SUITE.batches("test", tasks=[skill])]
        with plant_in(tuned, [2], noise=0.5):
            alone = measure_planted(base, tuned, batches, AT)
        assert next(few).tokens.shape[0] > 8
        assert torch.allclose(table(alone, "residual"), table(planted[0], "residual", "few"), atol=1e-6)
        assert planted[0]["n"].tolist() == [[30, 30], [8, 8]]

    def test_without_a_label_all_prompts_are_one_task(self):
        model = tiny()
        found = measure_planted(model, model, list(SUITE.batches("test", tasks=SKILLS)), AT, label=None)
        assert found["n"].tolist() == [[60]]
        assert found["change"].abs().max() == 0

    def test_the_order_of_batches_does_not_matter(self):
        base, tuned = tiny(0), tiny(1)
        batches = list(SUITE.batches("test", batch_size=7, tasks=SKILLS))
        one, other = (measure_planted(base, tuned, each, AT)["change"] for each in (batches, batches[::-1]))
        assert torch.allclose(one, other, atol=1e-6)

    def test_models_of_hugging_face_are_measured_alike(self):
        base, tuned = load_pretrained(LLAMA.build()), load_pretrained(LLAMA.build())
        tokens = torch.randint(2, 22, (20, 6), generator=torch.Generator().manual_seed(1))
        with plant_in(tuned, [2], noise=0.3):
            found = measure_planted(base, tuned, [Batch(tokens)], label=None)
            patched = patch_layers(base, tuned, [Batch(tokens)])
        same = table(found, "same input")[MEASURES.index("distance"), 0]
        assert same[[0, 2]].abs().max() < 1e-5
        assert same[1] > 0.05
        assert patched["restored"].tolist() == pytest.approx([0, 1, 1], abs=1e-4)

    def test_a_model_that_only_reads_has_no_same_input(self):
        base, tuned = load_pretrained(ELECTRA.build()), load_pretrained(ELECTRA.build())
        tokens = torch.randint(2, 22, (20, 6), generator=torch.Generator().manual_seed(1))
        with plant_in(tuned, [2], noise=0.3):
            found = measure_planted(base, tuned, [Batch(tokens)], label=None)
            patched = patch_layers(base, tuned, [Batch(tokens)])
        assert bool(table(found, "same input").isnan().all())
        assert found.notes == ["'same input' is NaN: the hooks of this model cannot write"]
        assert table(found, "residual")[MEASURES.index("distance"), 0, 0] == 0
        assert table(found, "residual")[MEASURES.index("distance"), 0, 1] > 0.01
        assert bool(patched["restored"].isnan().all())
        assert patched.notes == ["restored is NaN: the hooks of this model cannot write"]

    def test_refusals(self):
        shallow = build_model(model_for(SUITE, n_layers=1, d_model=16, n_heads=2))
        with pytest.raises(InputError) as refused:
            measure_planted(tiny(), shallow, SUITE.batches("test"), AT)
        assert str(refused.value) == "the models have 4 and 1 layers; give a model and one made of it"
        with pytest.raises(InputError, match="there are no prompts to measure; give at least one batch"):
            measure_planted(tiny(), tiny(), [], AT)
        with pytest.raises(InputError, match="there are no prompts to patch on; give at least one batch"):
            patch_layers(tiny(), tiny(), [])


class TestPatchLayers:
    def test_nothing_is_restored_below_the_change_and_all_from_it_on(self, planted):
        assert planted[1]["restored"].tolist() == pytest.approx([0, 1, 1, 1], abs=1e-4)

    def test_losses_are_those_of_the_models(self, planted):
        model, total = tiny(), 0.0
        batches = list(SUITE.batches("test", tasks=SKILLS))
        with torch.no_grad():
            total = sum(
                len(b) * float(SUITE.loss(model(b.tokens, attention_mask=b.attention_mask.long()), b)) for b in batches
            )
        assert float(planted[1]["loss"][0]) == pytest.approx(total / 60, rel=1e-5)

    def test_models_of_one_loss_restore_nothing_that_can_be_told(self):
        model = tiny()
        found = patch_layers(model, model, SUITE.batches("test", tasks=SKILLS), SUITE.loss)
        assert bool(found["restored"].isnan().all())
        assert found.notes == ["restored is NaN: both models have the same loss"]


class TestChangeOf:
    def test_is_nothing_between_equal_rows(self):
        x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
        assert change_of(x, x.clone()) == dict.fromkeys(MEASURES, 0.0)

    def test_rows_that_are_all_the_same_have_no_change_by_similarity(self):
        found = change_of(torch.ones(10, 3), torch.ones(10, 3))
        assert all(math.isnan(found[name]) for name in ("CKA", "debiased CKA", "SVCCA", "distance"))

    def test_distance_sees_a_rotation_and_cka_does_not(self):
        draw = torch.Generator().manual_seed(0)
        x = torch.randn(200, 4, generator=draw)
        turn = torch.linalg.qr(torch.randn(4, 4, generator=draw))[0]
        found = change_of(x, x @ turn)
        assert found["CKA"] == pytest.approx(0, abs=1e-6)
        assert found["distance"] > 0.5


def test_next_token_loss_is_hugging_faces():
    theirs = LLAMA.build()
    with torch.no_grad():
        logits, whole = theirs(TOKENS).logits, float(theirs(TOKENS, labels=TOKENS).loss)
    assert float(next_token_loss(logits, Batch(TOKENS))) == pytest.approx(whole, rel=1e-5)
    mask = torch.ones_like(TOKENS)
    mask[0, 4:] = 0
    labels = TOKENS.masked_fill(mask == 0, -100)
    prompts = zip(logits[:, :-1], labels[:, 1:], strict=True)
    expected = [float(torch.nn.functional.cross_entropy(*prompt)) for prompt in prompts]
    assert expected[0] != pytest.approx(expected[1], rel=1e-2)
    found = float(next_token_loss(logits, Batch(TOKENS, attention_mask=mask)))
    assert found == pytest.approx(sum(expected) / len(expected), rel=1e-5)  # whatever the batches
