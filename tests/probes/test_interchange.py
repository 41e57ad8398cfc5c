"""Heads in any model: a planted one is found among others, and its equivalence without labels."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from probes import (
    ClusteringHead,
    ProbeResult,
    causal_checks,
    head_attribution,
    interchange,
    interchange_together,
    load_result,
    run,
)
from probes.checks.bench import bench_of
from probes.checks.head_attribution import Attribution
from probes.functional import response_classes
from probes.functional.response_classes import response_points
from tasks import Batch, InputError
from tests.probes.test_attention import LargestTensor
from tests.probes.test_causal_checks import ready
from tests.probes.two_layer_heads import COPY, PLANTED, SUPPORT, ThreeCopies, TwoLayerHeads, sequences

LABELS = ("sum", "copied")
SITES = ["blocks.0.attn.hook_z", "blocks.1.attn.hook_z"]


@pytest.fixture(scope="module")
def planted() -> tuple[Any, Batch, ClusteringHead]:
    """Of three symbols, measured by both labels; read only."""
    model, batch = TwoLayerHeads(3), sequences(3)
    return model, batch, ready(model, batch, LABELS)


@pytest.fixture(scope="module")
def found(planted: tuple[Any, Batch, ClusteringHead]) -> ProbeResult:
    model, batch, probe = planted
    return interchange(model, batch.split(100), probe, heads=2, recipients=8)


@pytest.fixture(scope="module")
def binary() -> tuple[Any, Batch, ClusteringHead]:
    """Of two symbols, measured by its sum; read only."""
    model, batch = TwoLayerHeads(2), sequences(2)
    return model, batch, ready(model, batch, "sum")


# ---- without labels ----


def test_discovered_classes_need_no_labels(planted: Any, found: ProbeResult, tmp_path: Any) -> None:
    model, batch, _ = planted
    bare = replace(batch, labels={})
    probe = ClusteringHead((), permutations=None)
    result = run(model, bare, probe)
    assert int(result["verdict"].max()) == 0
    assert str(result)
    assert result["within_ratio"].shape == (*result["variance"].shape, 0)
    assert "p_value" not in result
    unlabelled = interchange(model, bare.split(100), probe, heads=2, recipients=8)
    for name in ("effect", "changed", "classes", "stability", "discovered", "within_ratio", "within_ratio_gaussian"):
        torch.testing.assert_close(unlabelled[name], found[name], equal_nan=True)
    assert unlabelled.coords["equivalence"] == []
    assert not any("equivalence" in note or "class" in note for note in unlabelled.notes)
    unlabelled.save(tmp_path / "found.safetensors")
    again = load_result(tmp_path / "found.safetensors")
    assert again.coords == unlabelled.coords
    torch.testing.assert_close(again.values, unlabelled.values, equal_nan=True)
    assert set(unlabelled.to_dataframe()["measure"]) >= {"changed", "classes"}
    checks = causal_checks(model, bare, probe, lambda logits, own: own.index * 0.0 + 1, heads=[(SITES[1], 0)])
    assert float(checks["accuracy"]) == 1
    attributed = head_attribution(model, bare, probe)
    torch.testing.assert_close(attributed["effect"], found["effect"])


# ---- the planted head ----


def test_relabelling_finds_each_head_by_what_it_clusters(planted: Any) -> None:
    model, batch, _ = planted
    result = run(model, batch, ClusteringHead(LABELS, SUPPORT, model.p, permutations=None))
    significant = (result["p_holm"] <= 0.05).nonzero().tolist()  # site, head, equivalence
    assert significant == [[0, 1, 1], [1, 0, 0]]
    assert result["p_value"][1, 0, 0] == 0.001
    assert result["p_holm"][1, 0, 0] == pytest.approx(0.004)
    assert result["within_ratio"][1, 0, 0] < 1e-3


def test_attribution_says_what_is_read(planted: Any) -> None:
    model, batch, probe = planted
    result = head_attribution(model, batch.split(77), probe)
    assert (result["effect"] > 0).tolist() == [[False, True], [True, False]]
    assert [(h.layer, h.head) for h in result.top_heads("effect")][:2] == [(1, 0), (0, 1)]
    assert (result["p_holm"] <= 0.05).nonzero().tolist() == [[0, 1, 1], [1, 0, 0]]
    assert result["read_within_ratio"][1, 0, 0] < 1e-3
    assert result["p_value"][0, 0].isnan().all()
    # exact in a linear model: a sum that is larger by one is two logits nearer to the next answer
    total = batch.labels["sum"].double()
    expected = 2 * (total[:, None] - total).abs().sum() / (len(batch) * (len(batch) - 1))
    assert float(result["effect"][1, 0]) == pytest.approx(float(expected), rel=0.02)
    assert (
        result.notes[0] == f"{SITES[0]} head 0: nothing of its output is read to first order, so its p-values are NaN"
    )


def test_interchange_finds_the_planted_head_and_no_other(found: ProbeResult) -> None:
    assert (found["p_holm"] <= 0.05).nonzero().tolist() == [[0, 1, 1], [1, 0, 0]]
    at = {"site": PLANTED[0], "head": str(PLANTED[1])}
    assert float(found.sel("p_holm", **at, equivalence="sum")) == pytest.approx(0.004)
    assert float(found.sel("changed_within", **at, equivalence="sum")) == 0
    assert float(found.sel("changed_between", **at, equivalence="sum")) == 1
    assert float(found.sel("response_within_ratio", **at, equivalence="sum")) == 0
    assert float(found.sel("response_within_ratio", **at, equivalence="copied")) > 0.9
    assert found["effect"].isfinite().all()
    assert not any("asked for" in note for note in found.notes)
    assert found["changed"].isnan().tolist() == [[True, False], [False, True]]


def test_the_discovered_equivalence_is_the_planted_one(found: ProbeResult, planted: Any) -> None:
    _, batch, _ = planted
    for (site, head), label in ((PLANTED, "sum"), (COPY, "copied")):
        classes = found.sel("discovered", site=site, head=str(head))
        pairs = torch.unique(torch.stack([classes, batch.labels[label]]), dim=1)
        n = len(torch.unique(batch.labels[label]))
        assert pairs.shape[1] == n == int(found.sel("classes", site=site, head=str(head)))
        assert float(found.sel("agreement", site=site, head=str(head), equivalence=label)) == 1
        assert float(found.sel("stability", site=site, head=str(head))) == 1
    assert abs(float(found.sel("agreement", site=PLANTED[0], head="0", equivalence="copied"))) < 0.05
    assert (found["discovered"][0, 0] == -1).all()


def test_clusters_are_tighter_than_a_cloud_cut_into_classes(found: ProbeResult) -> None:
    """Sums are points; of a Gaussian's units each has the variance 1/12."""
    assert found["within_ratio"][1, 0] < 1e-3
    assert 0.01 < found["within_ratio_gaussian"][1, 0] < 0.1


def test_a_head_without_clusters_is_told_by_its_cloud() -> None:
    """The same model with noise where the clusters were: answers cut it into classes no better than a Gaussian."""
    model, batch = TwoLayerHeads(2), sequences(2)
    noise = 1 + 0.5 * torch.randn(256, 1, generator=torch.Generator().manual_seed(0))

    def blur(z: torch.Tensor, hook: Any) -> torch.Tensor:
        if len(z) < 256 or len(torch.unique(z[:, -1, 0, 0])) == 1:  # recipients keep what is put in
            return z
        z = z.clone()
        z[:, :, 0] = noise[:, None] * torch.tensor([0.5, 0.15])
        return z

    model.add_hook(PLANTED[0], blur, is_permanent=True)
    result = interchange(model, batch, ready(model, batch, LABELS), heads=[PLANTED], recipients=4)
    assert result["p_holm"][1, 0].min() > 0.05
    assert result["within_ratio"][1, 0] == pytest.approx(float(result["within_ratio_gaussian"][1, 0]), rel=0.5)
    assert result["effect"].isnan().all()


@pytest.mark.parametrize(("measure", "heads"), [(interchange, 1), (interchange_together, 2)])
def test_tens_of_passes(planted: Any, measure: Any, heads: int) -> None:
    """Together, they do not grow with the number of heads."""
    model, batch, probe = planted
    seen = [0]
    hook = model.register_forward_pre_hook(lambda m, args: seen.__setitem__(0, seen[0] + len(args[0])))
    result = measure(model, batch, probe, heads=heads, recipients=5)
    hook.remove()
    assert seen[0] == result.metadata["passes"] * len(batch) == 13 * len(batch)


# ---- several heads at once ----


def test_heads_together_are_equivalent_for_what_they_carry_together(planted: Any) -> None:
    model, batch, _ = planted
    total = batch.labels["sum"] + batch.labels["copied"]
    labelled = replace(batch, labels={**batch.labels, "total": total})
    probe = ready(model, labelled, ("total", "sum"))
    result = interchange_together(model, labelled.split(100), probe, heads=[PLANTED, COPY], recipients=6)
    assert result["agreement"][0] == 1
    assert result["agreement"][1] < 0.9
    assert int(result["classes"]) == len(torch.unique(total))
    assert float(result["changed_within"][0]) == 0
    assert float(result["changed_between"][0]) == 1
    assert float(result["stability"]) == 1
    assert result["p_value"][0] == 0.001
    assert result.metadata["heads"] == [list(PLANTED), list(COPY)]
    chosen = interchange_together(model, labelled, probe, heads=2, recipients=6)
    assert sorted(chosen.metadata["heads"]) == sorted(result.metadata["heads"])
    assert torch.equal(chosen["discovered"], result["discovered"])


def test_a_single_head_is_the_same_together(planted: Any, found: ProbeResult) -> None:
    model, batch, probe = planted
    alone = interchange_together(model, batch, probe, heads=[PLANTED, PLANTED], recipients=8, permutations=99)
    assert alone.metadata["heads"] == [list(PLANTED)]
    for name in ("changed", "classes", "stability", "within_ratio", "within_ratio_gaussian", "agreement", "discovered"):
        torch.testing.assert_close(alone[name], found[name][1, 0], msg=name)


def test_heads_that_back_each_other_up_are_found_together_only() -> None:
    model, batch = ThreeCopies(), sequences(2)
    batch = replace(batch, labels={"copied": batch.tokens[:, -1]})
    probe = ready(model, batch, "copied")
    heads = [(SITES[0], head) for head in range(3)]
    single = interchange(model, batch, probe, heads=heads, recipients=8)
    assert single["changed"].tolist() == [[0, 0, 0]]
    assert single["classes"].tolist() == [[1, 1, 1]]
    together = interchange_together(model, batch, probe, heads=heads[:2], recipients=8)
    assert float(together["agreement"]) == 1
    assert float(together["changed_between"]) == 1
    assert int(together["classes"]) == 2


def test_heads_together_that_nothing_reads() -> None:
    model, batch = TwoLayerHeads(2), sequences(2)
    result = interchange_together(model, batch, ready(model, batch, "sum"), heads=[(SITES[1], 1), (SITES[0], 0)])
    assert float(result["changed"]) == 0
    assert result["p_value"].isnan().all()
    assert result.notes == ["these heads together: all outputs lead to the same answers, so p-values are NaN"]


# ---- oracles ----


def test_p_values_are_uniform_under_relabelling() -> None:
    """Fifty labels at random, every head that is read."""
    draw = torch.Generator().manual_seed(4)
    batch = sequences(3, 60)
    random = {f"r{i}": torch.randint(3, (60,), generator=draw) for i in range(50)}
    batch = Batch(batch.tokens, labels=random)
    model = TwoLayerHeads(3)
    probe = ready(model, batch, tuple(random), permutations=99)
    for result in (probe.compute(), head_attribution(model, batch, probe, permutations=99)):
        for s, h in ((1, 0), (0, 1)):
            assert kstest(result["p_value"][s, h].numpy(), "uniform").pvalue > 1e-3
        assert (result["p_holm"][1, 0] <= 0.05).double().mean() < 0.08
    causal = interchange(model, batch, probe, heads=[PLANTED], recipients=4, permutations=99)
    assert kstest(causal["p_value"][1, 0].numpy(), "uniform").pvalue > 1e-3


def test_gradients_are_those_of_the_margin(model: Any, batch: Batch) -> None:
    """By differences, through both layers, in a transformer with padded batches."""
    bench = bench_of(model, list(batch.split(5)), ready(model, batch, "task"))
    found = Attribution.from_bench(bench)
    where, rows = batch.last_positions(), torch.arange(len(batch))

    def best(site: str, shift: torch.Tensor) -> torch.Tensor:
        def put(z: torch.Tensor, hook: Any) -> torch.Tensor:
            z = z.clone()
            z[rows, where, 1] += shift
            return z

        with torch.no_grad(), model.hooks(fwd_hooks=[(site, put)]):
            logits = model(batch.tokens, attention_mask=batch.attention_mask.long())[rows, where]  # type: ignore
        return logits.topk(3).values.float()

    def margins(site: str, shift: torch.Tensor) -> torch.Tensor:
        return best(site, shift) @ torch.tensor([1.0, -1.0, 0.0])

    smooth = (best(SITES[0], torch.zeros(4)).diff(dim=1) < -0.02).all(dim=1)  # nobody overtakes anybody
    assert int(smooth.sum()) >= 6
    for site in SITES:
        direction = torch.tensor([1.0, -0.5, 0.2, 0.7])
        slope = (margins(site, 5e-3 * direction) - margins(site, -5e-3 * direction)) / 1e-2
        given = found.gradients[site][:, 1] @ direction
        torch.testing.assert_close(given[smooth], slope[smooth], rtol=0.02, atol=4e-3)
        assert float(slope.abs().max()) > 0.01
    torch.testing.assert_close(found.margins.float(), margins(SITES[0], torch.zeros(4)), rtol=1e-4, atol=1e-5)


def test_responses_of_several_heads_by_hand(model: Any, batch: Batch) -> None:
    """Two heads of one layer, the second first, and one of the other; each gets its own part of the points."""
    bench = bench_of(model, list(batch.split(5)), ready(model, batch, "task"))
    heads = [(SITES[1], 1), (SITES[0], 0), (SITES[1], 0)]
    outputs = torch.stack([bench.points[site][:, head] for site, head in heads], dim=1)
    torch.testing.assert_close(bench.outputs(heads), outputs.flatten(1))
    points = 5 * torch.randn(6, 12, generator=torch.Generator().manual_seed(1))
    found = bench.responses(heads, points, torch.tensor([3, 10]))
    for k, i in enumerate((3, 10)):
        one = batch.select(slice(i, i + 1))
        place = int(one.last_positions())
        for j, point in enumerate(points):

            def put(
                z: torch.Tensor, hook: Any, own: str, place: int = place, point: torch.Tensor = point
            ) -> torch.Tensor:
                z = z.clone()
                for part, (site, head) in zip(point.reshape(3, 4), heads, strict=True):
                    if site == own:
                        z[0, place, head] = part
                return z

            with torch.no_grad(), model.hooks(fwd_hooks=[(site, partial(put, own=site)) for site in SITES]):
                logits = model(one.tokens, attention_mask=one.attention_mask.long())  # type: ignore[union-attr]
            assert int(logits[0, place].argmax()) == int(found[k, j])
    assert len(torch.unique(found)) > 1


def test_response_classes_with_and_without_tolerance() -> None:
    answers = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 1, 1, 1], [0, 0, 1, 1, 2], [3, 3, 3, 4, 3]])
    assert response_classes(answers).tolist() == [0, 0, 1, 2, 3]
    assert response_classes(answers, 0.25).tolist() in ([0, 0, 1, 1, 2], [0, 0, 1, 2, 1])
    assert response_classes(answers, 0.5).tolist() == [0, 0, 1, 1, 1]
    points = response_points(answers)
    half = torch.cdist(points, points).square() / 2
    assert torch.allclose(half, (answers[:, :, None] != answers[:, None]).sum(dim=0).double())


def test_response_classes_take_memory_for_one_recipient_at_a_time() -> None:
    answers = torch.arange(60) % 3 + torch.zeros(40, 1, dtype=torch.int64)
    with LargestTensor() as largest:
        assert response_classes(answers, 0.1).tolist() == (torch.arange(60) % 3).tolist()
    assert largest.numbers <= 2 * 60**2  # of 4 bytes


# ---- manners ----


def test_results_depend_on_the_seed_alone(planted: Any, found: ProbeResult) -> None:
    model, batch, probe = planted
    state = torch.get_rng_state()
    again = interchange(model, list(batch.split(37))[::-1], probe, heads=2, recipients=8)
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in found.values.items():
        torch.testing.assert_close(again[name], value, rtol=1e-5, atol=1e-7, equal_nan=True, msg=name)


def test_hooks_and_gradients_are_left_as_they_were(model: Any, batch: Batch, hooks_of: Any) -> None:
    before = hooks_of(model)
    result = interchange(model, batch, ready(model, batch, ("task", "output")), heads=2, recipients=3, permutations=20)
    assert hooks_of(model) == before
    assert all(parameter.grad is None for parameter in model.parameters())
    assert result["agreement"].shape == (2, 2, 2)
    assert int(result["changed"].isfinite().sum()) == 2
    assert result.notes[0] == "heads that were not chosen are NaN"


def test_classes_of_one_example_are_told() -> None:
    model, batch = TwoLayerHeads(2), sequences(2)
    alone = replace(batch, labels={"alone": torch.arange(len(batch))})
    result = interchange(model, alone, ready(model, alone, "alone"), heads=[(SITES[0], 0)], recipients=2)
    assert bool(result["changed_within"].isnan().all())
    assert "'alone': no recipient has another example of its class, so changed_within is NaN" in result.notes


def test_a_head_that_nothing_reads_is_one_class() -> None:
    model, batch = TwoLayerHeads(2), sequences(2)
    probe = ready(model, batch, "sum")
    result = interchange(model, batch, probe, heads=[(SITES[1], 1)], recipients=2)
    assert float(result["classes"][1, 1]) == 1
    assert float(result["changed"][1, 1]) == 0
    assert result["p_value"][1, 1].isnan()
    assert result["stability"][1, 1].isnan()
    assert result.notes == [
        "heads that were not chosen are NaN",
        f"{SITES[1]} head 1: all outputs lead to the same answers, so p-values are NaN",
    ]
    checks = causal_checks(model, batch, probe, lambda logits, b: b.index * 0.0, heads=[(SITES[1], 1)])
    assert float(checks["swap_agreement"][1, 1]) == 1


def test_answers_that_differ_by_less_than_the_tolerance_are_tested(model: Any, batch: Batch) -> None:
    heads = [(site, head) for site in SITES for head in range(2)]
    result = interchange(model, batch, ready(model, batch, "task"), heads=heads, recipients=8, tolerance=0.9)
    merged = (result["classes"] == 1) & (result["changed"] > 0)
    assert bool(merged.any())
    assert not result["p_value"][merged].isnan().any()
    same = "all outputs lead to the same answers"
    told = {note.split(":")[0] for note in result.notes if same in note}
    assert told == {f"{SITES[i]} head {h}" for i, h in (result["changed"] == 0).nonzero().tolist()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipients": 1}, "recipients is 1"),
        ({"recipients": 999}, "recipients is 999, more than the 256 examples; give fewer"),
        ({"tolerance": 1.0}, "tolerance is 1.0; expected a share of the recipients, at least 0 and below 1"),
        ({"heads": 0}, "heads is 0"),
        ({"heads": [("blocks.0.attn.hook_z", 7)]}, "no head ('blocks.0.attn.hook_z', 7) in this probe"),
        ({"heads": 2.5}, "heads is 2.5; expected a number of heads or a list of pairs of site and head"),
        ({"heads": [("blocks.0.attn.hook_z", 0.0)]}, "no head ('blocks.0.attn.hook_z', 0.0) in this probe"),
        ({"heads": ("blocks.0.attn.hook_z", 0)}, "no head 'blocks.0.attn.hook_z' in this probe; expected pairs"),
        ({"tolerance": None}, "tolerance is None; expected a share of the recipients, at least 0 and below 1"),
        ({"heads": [5]}, "no head 5 in this probe; expected pairs of site and head from ('blocks.0.attn.hook_z', 0)"),
        ({"recipients": 2.5}, "recipients is 2.5; expected an integer of at least 2"),
        ({"permutations": 0}, "permutations is 0"),
    ],
)
@pytest.mark.parametrize("measure", [interchange, interchange_together])
def test_what_is_refused_of_interchange(
    binary: tuple[Any, Batch, ClusteringHead], measure: Any, changes: dict[str, Any], message: str
) -> None:
    model, batch, probe = binary
    with pytest.raises(InputError, match=re.escape(message)):
        measure(model, batch, probe, **changes)


def test_no_heads_together_are_refused() -> None:
    model, batch = TwoLayerHeads(2), sequences(2)
    for measure in (interchange, interchange_together):
        with pytest.raises(InputError, match="this ClusteringHead has not been run"):
            measure(model, batch, ClusteringHead("sum"))
    with pytest.raises(InputError, match="heads is empty; give at least one pair of site and head"):
        interchange_together(model, batch, ready(model, batch, "sum"), heads=[])
    with pytest.raises(InputError, match="permutations is None; expected an integer of at least 1"):
        interchange_together(model, batch, ready(model, batch, "sum"), permutations=None)  # type: ignore[arg-type]
    flat = ThreeCopies()  # rounding has no gradient
    with pytest.raises(InputError, match=re.escape("name the heads")):
        interchange_together(flat, batch, ready(flat, batch, "sum"), heads=2)


def test_together_without_labels_and_with_fewer_heads_than_asked_for(planted: Any) -> None:
    model, batch, _ = planted
    bare = replace(batch, labels={})
    result = interchange_together(model, bare, ready(model, bare, ()), heads=np.int64(9), recipients=4)  # type: ignore
    assert result["agreement"].shape == (0,)
    assert int(result["classes"]) > 2
    assert result.notes == ["2 of the 9 heads asked for: no other has an effect, to first order"]
    assert result.metadata["tolerance"] == 0
    single = interchange(model, bare, ready(model, bare, ()), heads=3, recipients=4, seed=np.int64(0))
    assert single.notes == [
        "heads that were not chosen are NaN",
        "2 of the 3 heads asked for: no other has an effect, to first order",
    ]
    every = [(site, head) for site in SITES for head in range(2)]
    whole = interchange_together(model, bare, ready(model, bare, ()), heads=every, recipients=2)
    assert whole.notes == ["all heads were interchanged, which gives the donor's answer by construction"]


def test_a_model_without_gradients_is_refused() -> None:
    class Closed(TwoLayerHeads):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return super().forward(tokens).detach()

    model, batch = Closed(2), sequences(2)
    probe = ready(model, batch, "sum")
    with pytest.raises(InputError, match="no gradient leads from the model's logits to its head outputs; give a model"):
        head_attribution(model, batch, probe)
    assert interchange(model, batch, probe, heads=[PLANTED], recipients=2)["classes"][1, 0] == 6
