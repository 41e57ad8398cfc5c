"""Interventions on one head: exact numbers where the network is known, and nothing else is touched."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mechclust.models import build_model
from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
from probes import ClusteringHead, ProbeResult, causal_checks, head_output, interchange, load_result, run, token_at
from probes.checks.bench import Bench
from probes.checks.causal_checks import _partners
from tasks import Batch, InputError, InstructionFollowing, SparseModularAddition
from tests.probes.planted_heads import TASK, Z, everything, ideal_head, solved_network


def ready(model: Any, batches: Any, *arguments: Any, **more: Any) -> ClusteringHead:
    probe = ClusteringHead(*arguments, **more)
    run(model, batches, probe)
    return probe


@pytest.fixture(scope="module")
def solved() -> Any:
    return solved_network()


@pytest.fixture(scope="module")
def probe(solved: Any) -> ClusteringHead:
    return ready(solved, everything(), ("multiset", "answer"), TASK.positions, 2)


@pytest.fixture(scope="module")
def result(solved: Any, probe: ClusteringHead) -> ProbeResult:
    return causal_checks(solved, TASK.batches("all", 1000), probe, TASK.accuracy)


# ---- the solved network ----


def test_a_solved_network_reads_its_clusters(result: ProbeResult) -> None:
    assert float(result["accuracy"]) == 1
    assert float(result["majority_accuracy"]) == float(result["ablated_accuracy"]) == 0.5
    assert result.coords["partition"] == ["multiset", "answer", "integer_sum"]
    assert result["partition_clusters"].tolist() == [[[6, 2, 6]]]
    # clusters of the same sum are points; both answers' centroids are the middle, and so give one answer
    assert result["centroid_accuracy"].tolist() == [[[1, 0.5, 1]]]
    assert result["swap_accuracy"].tolist() == result["swap_agreement"].tolist() == [[[1, 1, 1]]]
    assert result.notes == []


def test_influence_is_a_fifth_a_support_token_and_none_off_it(result: ProbeResult) -> None:
    """The output is the sum of five independent digits: each has a fifth of the variance, the rest nothing."""
    influence = result["influence"][0, 0]
    assert influence[:5].sum().item() == pytest.approx(1, abs=0.06)
    assert influence[:5].tolist() == pytest.approx([0.2] * 5, abs=0.02)
    assert influence[5:].max() < 1e-9
    assert result["spurious_shift"].item() < 1e-9
    assert result["permutation_shift"].item() < 1e-12
    assert float(result["spurious_agreement"]) == float(result["permutation_agreement"]) == 1


def test_what_tokens_do_together_is_exact(solved: Any, probe: ClusteringHead) -> None:
    """Influence of one token by hand, with the partners the function drew: a changed digit moves the sum by one."""
    found = causal_checks(solved, everything(), probe, TASK.accuracy, seed=5)
    draw = torch.Generator().manual_seed(5)
    _, order = (torch.randperm(4096, generator=draw) for _ in range(2))
    donor = _partners(torch.zeros(4096, dtype=torch.int64), order)
    tokens = everything().tokens
    changed = (tokens[donor] != tokens).double().mean(dim=0)
    variance = 4096 / 4095 * 5 / 4
    assert found["influence"][0, 0, :5].tolist() == pytest.approx((changed / (2 * variance))[:5].tolist(), rel=1e-4)


def test_a_head_that_ignores_order_and_spurious_tokens_only_partly() -> None:
    """At beta 0 all positions count alike: 7/12 of the variance is spurious; permuting changes nothing."""
    model = ideal_head(0)
    found = causal_checks(model, everything(), ready(model, everything(), "sum", TASK.positions, 2), TASK.accuracy)
    assert found["influence"][0, 0].tolist() == pytest.approx([1 / 12] * 12, abs=0.01)
    assert float(found["spurious_shift"]) == pytest.approx(7 / 12, abs=0.03)
    assert float(found["permutation_shift"]) < 1e-12


def test_permutation_matters_to_a_head_with_two_signs() -> None:
    """One digit of the support is read with the other sign (its position's value is turned by hand)."""
    model = ideal_head(8)
    with torch.no_grad():  # position 0 shifts by one digit: 0 and 1 there are 1 and 0 elsewhere, in the output
        model.embed.W_E.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]]))
        model.pos_embed.W_pos[1:5, 1] = torch.tensor([1.0, 1.0, 1.0, 0.2])
    found = causal_checks(model, everything(), ready(model, everything(), "sum", TASK.positions, 2), TASK.accuracy)
    assert float(found["permutation_shift"]) > 0.01


@pytest.mark.parametrize("many", [1, 2])
def test_the_ablated_output_is_the_mean(solved: Any, many: int) -> None:
    """One-sided data: the mean is near one cluster, and the answer is that cluster's."""
    sums = everything().labels["sum"]
    rows = torch.cat([(sums == many).nonzero()[:, 0], (sums == many + 3).nonzero()[:3, 0]])
    batch = everything().select(rows)
    found = causal_checks(solved, batch, ready(solved, batch, "sum"), TASK.accuracy)
    share = float((batch.labels["answer"] == many % 2).double().mean())
    assert float(found["ablated_accuracy"]) == float(found["majority_accuracy"]) == pytest.approx(share)


def test_swapping_across_classes_that_are_not_clusters_is_seen(solved: Any) -> None:
    """Two sums in one class: members hand on the other's answer."""
    batch = everything()
    pairs = Batch(batch.tokens, labels={**batch.labels, "pair": batch.labels["sum"] // 2}, index=batch.index)
    found = causal_checks(solved, pairs, ready(solved, pairs, "pair"), TASK.accuracy)
    sizes = torch.tensor([[1, 5], [10, 10], [5, 1]]).double()  # of the two sums of each pair, times 128
    share = sizes / sizes.sum(dim=1, keepdim=True)
    stays = float((share.square().sum(dim=1) * sizes.sum(dim=1)).sum() / 32)
    assert float(found["swap_agreement"]) == pytest.approx(stays, abs=0.03)
    assert float(found["swap_accuracy"]) == float(found["swap_agreement"])  # all were right before
    assert found.coords["partition"] == ["pair"]


# ---- draws ----


def test_partners_are_others_of_the_class_each_once() -> None:
    g = torch.Generator().manual_seed(0)
    classes = torch.randint(7, (50,), generator=g)
    classes[7] = 9  # alone
    order = torch.randperm(50, generator=g)
    partner = _partners(classes, order)
    assert sorted(partner.tolist()) == list(range(50))
    assert torch.equal(classes[partner], classes)
    count = Counter(classes.tolist())
    assert [int(p) == i for i, p in enumerate(partner)] == [count[int(c)] == 1 for c in classes]


def test_results_depend_on_the_seed_alone(solved: Any, probe: ClusteringHead, result: ProbeResult) -> None:
    torch.manual_seed(123)
    state = torch.get_rng_state()
    backwards = list(TASK.batches("all", 700))[::-1]
    again = causal_checks(solved, backwards, probe, TASK.accuracy)
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in result.values.items():
        torch.testing.assert_close(again[name], value, rtol=1e-6, atol=1e-12, msg=name)
    other = causal_checks(solved, everything(), probe, TASK.accuracy, seed=1)
    assert not torch.equal(other["influence"], result["influence"])


# ---- nothing else changes ----


def test_only_the_head_at_the_query_changes(model: Any, batch: Batch) -> None:
    """Recorded in front, at the head and behind it: only its part of the attention output at the query moves."""
    probe = ready(model, batch, "task")
    bench = Bench(model, [batch], probe, lambda logits, given: given.index * 0)
    site, head, where = "blocks.0.attn.hook_z", 1, batch.last_positions()

    upstream = [
        "hook_embed",
        "blocks.0.hook_resid_pre",
        *(f"blocks.0.attn.hook_{k}" for k in ("q", "k", "v", "attn_scores", "pattern")),
    ]
    downstream = ["blocks.0.hook_resid_post", "blocks.1.attn.hook_z", "blocks.1.hook_resid_post"]

    def recorded(change: bool) -> dict[str, torch.Tensor]:
        kept: dict[str, torch.Tensor] = {}
        names = [*upstream, site, "blocks.0.hook_attn_out", *downstream]
        with model.hooks(fwd_hooks=[(n, lambda x, hook, n=n: kept.__setitem__(n, x)) for n in names]):
            if change:
                bench.with_outputs([(site, head)], torch.full((12, 4), 3.0))
            else:
                with torch.no_grad():
                    model(batch.tokens, attention_mask=batch.attention_mask.long())  # type: ignore[union-attr]
        return kept

    before, after = recorded(False), recorded(True)
    # z too: the recorder holds the tensor from before the change, which was not made in place
    for name in (*upstream, site):
        assert torch.equal(before[name], after[name]), name
    rows = torch.arange(12)
    difference = after["blocks.0.hook_attn_out"] - before["blocks.0.hook_attn_out"]
    changed = torch.zeros(difference.shape[:2], dtype=torch.bool)
    changed[rows, where] = True
    assert torch.equal(difference.abs().sum(-1) > 0, changed)
    put = before[site][rows, where].clone()
    put[:, head] = 3.0  # and the other head's output as it was
    moved = torch.einsum("bhd,hde->be", put - before[site][rows, where], model.blocks[0].attn.W_O.detach())
    torch.testing.assert_close(difference[rows, where], moved, rtol=1e-4, atol=1e-5)
    for name in downstream:
        assert not torch.equal(before[name], after[name]), name


def test_hooks_mode_and_weights_stay(model: Any, batch: Batch, task: InstructionFollowing, hooks_of: Any) -> None:
    probe = ready(model, batch, "task")
    before = hooks_of(model), {n: m.training for n, m in model.named_modules()}, model(batch.tokens).detach()
    causal_checks(model, batch, probe, task.accuracy)
    assert (hooks_of(model), {n: m.training for n, m in model.named_modules()}) == before[:2]
    assert torch.equal(model(batch.tokens), before[2])

    class Planned(Exception):
        pass

    training: list[bool] = []

    def failing(logits: torch.Tensor, given: Batch) -> torch.Tensor:
        training.append(model.training)
        if len(training) > 1:  # the second pass is the first with a replaced output
            raise Planned
        return given.index.float()

    model.train()
    try:
        with pytest.raises(Planned):
            causal_checks(model, batch, probe, failing)
        assert model.training
        assert training == [False, False]
        assert hooks_of(model) == before[0]
    finally:
        model.eval()


# ---- any model ----


def test_two_layers_of_two_heads_on_padded_batches(model: Any, batch: Batch, task: InstructionFollowing) -> None:
    probe = ready(model, batch, ("task", "output"))
    found = causal_checks(model, batch.split(5), probe, task.accuracy)
    assert found["ablated_accuracy"].shape == (2, 2)
    assert found["swap_agreement"].shape == (2, 2, 2)
    assert found["influence"].shape == (2, 2, 0)
    assert bool(found["centroid_accuracy"].isfinite().all())
    assert found.notes == [
        "the sequences differ in length, so influence, spurious_* and permutation_* are undefined",
    ]
    assert list(found.layers.items()) == [("blocks.0.attn.hook_z", 0), ("blocks.1.attn.hook_z", 1)]
    frame = found.to_dataframe()
    assert len(frame) == sum(v.numel() for v in found.values.values())


def test_influence_in_a_causal_transformer(tiny_model: Any, tmp_path: Any) -> None:
    model, task = tiny_model(init_std=1.0), SparseModularAddition(length=6, n_support=2, n_test=64)
    batch = next(task.batches("test"))
    found = causal_checks(model, batch, ready(model, batch, "sum", (0, 3), 2), task.accuracy)
    assert found["influence"].shape == (2, 2, 6)
    assert bool((found["influence"] > 0).all())  # the query sees every position
    early = Batch(batch.tokens, labels=batch.labels, positions={"second": torch.full((64,), 1)})
    probe = ready(model, early, "sum", query=token_at("second"))
    seen = causal_checks(model, early, probe, lambda logits, given: given.labels["answer"])
    assert bool((seen["influence"][..., 2:] == 0).all())  # causal: the second token does not see later ones
    assert bool((seen["influence"][..., :2] > 0).all())
    assert bool(seen["spurious_shift"].isnan().all())
    assert seen.notes == ["the probe has no support, so spurious_* and permutation_* are NaN"]
    seen.save(tmp_path / "r.safetensors")
    assert torch.equal(load_result(tmp_path / "r.safetensors")["influence"], seen["influence"])


def test_agreement_is_of_predictions_right_or_wrong(tiny_model: Any, batch: Batch) -> None:
    model = tiny_model(init_std=1.0)
    found = causal_checks(model, batch, ready(model, batch, "task"), lambda logits, given: given.index * 0)
    assert bool((found["swap_accuracy"] == 0).all())
    assert 0 < float(found["swap_agreement"].min()) < 1


def test_heads_can_be_chosen_and_do_not_depend_on_the_choice(model: Any, batch: Batch, task: Any) -> None:
    probe = ready(model, batch, "task")
    whole = causal_checks(model, batch, probe, task.accuracy)
    one = causal_checks(model, batch, probe, task.accuracy, heads=[("blocks.1.attn.hook_z", 0)], influence=False)
    assert torch.equal(one["swap_agreement"][1, 0], whole["swap_agreement"][1, 0])
    assert torch.equal(one["ablated_accuracy"][1, 0], whole["ablated_accuracy"][1, 0])
    assert int(one["ablated_accuracy"].isnan().sum()) == 3
    assert one.notes[0] == "heads that were not asked for are NaN"


def test_a_probe_with_a_cap_is_checked_on_all_examples(solved: Any) -> None:
    probe = ready(solved, everything(), "sum", TASK.positions, 2, max_rows=300)
    found = causal_checks(solved, everything(), probe, TASK.accuracy, influence=False)
    assert found.metadata["n"] == 4096
    assert found["centroid_accuracy"].tolist() == [[[1, 1]]]
    assert found.notes == ["influence was not asked for, so it is NaN"]
    assert probe.max_rows == 300


def test_other_examples_than_the_probes(solved: Any) -> None:
    """The clusters of the integer weights are found on one split and tested on another, whose indices are the same."""
    probe = ready(solved, TASK.batches("train"), "sum", TASK.positions, 2)
    found = causal_checks(solved, TASK.batches("test"), probe, TASK.accuracy, influence=False)
    assert found["centroid_accuracy"].tolist() == found["swap_agreement"].tolist() == [[[1, 1]]]


def test_undefined_is_nan_with_a_note() -> None:
    model = ideal_head(2)
    with torch.no_grad():
        model.blocks[0].attn.W_V.zero_()
    batch = everything().select(torch.arange(0, 4096, 16))
    alone = Batch(batch.tokens, labels={**batch.labels, "own": batch.index}, index=batch.index)
    found = causal_checks(model, alone, ready(model, alone, ("sum", "own"), TASK.positions, 2), TASK.accuracy)
    assert found["swap_agreement"][0, 0].isnan().tolist() == [False, True, True]
    assert found["influence"].isnan().all()
    assert found.notes == [
        f"{Z} head 0: every example is alone in its cluster of 'own'",
        f"{Z} head 0: no integer weights, so integer_sum is NaN",
        "influence and shifts are NaN for a head whose output is the same for all examples",
    ]


# ---- refusals ----


def test_what_is_refused(solved: Any, probe: ClusteringHead, model: Any, batch: Batch) -> None:
    right = TASK.accuracy
    cases: list[tuple[Any, str]] = [
        (
            lambda: causal_checks(solved, everything(), ClusteringHead("sum"), right),
            "this ClusteringHead has not been run; call run(model, batches, probe) first",
        ),
        (
            lambda: causal_checks(solved, everything().select(slice(0, 1)), probe, right),
            "there are 1 examples; give at least 2, so that one output can replace another",
        ),
        (
            lambda: causal_checks(model, batch, probe, right),
            "this ClusteringHead holds state from 2 sites of a model of another shape; call reset() or use a new probe",
        ),
        (
            lambda: causal_checks(build_model(PoolingTransformerConfig()), everything(), probe, right),
            "this ClusteringHead holds another model's state (the same examples give different outputs at "
            "'blocks.0.attn.hook_z'); run it on this model first",
        ),
        (
            lambda: causal_checks(build_model(PoolingTransformerConfig(d_model=4)), everything(), probe, right),
            "this ClusteringHead holds another model's state (the same examples",
        ),
        (
            lambda: causal_checks(solved, everything(), probe, right, heads=[(Z, 1)]),
            "no head ('blocks.0.attn.hook_z', 1) in this probe; expected pairs of site and head from",
        ),
        (
            lambda: causal_checks(solved, everything(), probe, lambda logits, given: right(logits, given).mean()),
            "correct returns shape () for 4096 examples; expected one value per example [batch], as task.accuracy",
        ),
        (
            lambda: causal_checks(solved, [everything(), everything()], probe, right),
            "example index 0 was given twice",
        ),
    ]
    for call, message in cases:
        with pytest.raises(InputError, match=re.escape(message)):
            call()


class Changed(torch.nn.Module):
    """A hooked model whose logits are changed after its last hook point."""

    def __init__(self, model: Any, change: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.change = model, change
        self.hook_dict, self.hooks = model.hook_dict, model.hooks

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.change(self.inner(*args, **kwargs))


def test_logits_that_are_no_numbers_are_refused(model: Any, batch: Batch, task: InstructionFollowing) -> None:
    probe, broken = ready(model, batch, "task", at=head_output(1)), Changed(model, lambda logits: logits * torch.nan)
    message = "the model's logits are NaN or infinite at the query, so no prediction can be judged; check the weights"
    with pytest.raises(InputError, match=message):
        causal_checks(broken, batch, probe, task.accuracy)
    with pytest.raises(InputError, match=message):
        interchange(broken, batch, probe, heads=[("blocks.1.attn.hook_z", 0)], recipients=2)


def test_a_model_without_logits_is_refused(model: Any, batch: Batch, task: InstructionFollowing) -> None:
    probe = ready(model, batch, "task", at=head_output(1))
    message = "the model returns a tuple; causal_checks needs logits [batch d_vocab] or [batch pos d_vocab]"
    with pytest.raises(InputError, match=re.escape(message)):
        causal_checks(Changed(model, lambda logits: (logits,)), batch, probe, task.accuracy)


def test_a_read_only_hook_point_says_so(solved: Any, probe: ClusteringHead, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose hooks refuse a returned value: its message is what the user reads."""
    point = solved.hook_dict[Z]
    original = point.register_forward_hook

    def refuse(hook: Any, **options: Any) -> Any:
        def read(*arguments: Any) -> None:
            if hook(*arguments) is not None:
                raise InputError(f"a hook at {Z!r} returned a value, but this hook point is read-only")

        return original(read, **options)

    monkeypatch.setattr(point, "register_forward_hook", refuse)
    with pytest.raises(InputError, match="returned a value, but this hook point is read-only"):
        causal_checks(solved, everything(), probe, TASK.accuracy)
