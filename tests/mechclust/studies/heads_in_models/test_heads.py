"""Planted heads, prompts and the rule that calls a head, each against what is known by construction."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mechclust.studies.heads_in_models import HeadsInModelsConfig, WordPrompts
from mechclust.studies.heads_in_models.config import OFF
from mechclust.studies.heads_in_models.discovery import control_heads, discover_together, head_sets, largest_heads
from mechclust.studies.heads_in_models.heads import Heads, heads_from
from mechclust.studies.heads_in_models.measure import measure_heads
from mechclust.studies.heads_in_models.planted import PlantedHeads
from mechclust.studies.heads_in_models.results import discovered_agreement
from mechclust.studies.heads_in_models.run import examples_of
from mechclust.studies.heads_in_models.together import (
    IRRELEVANT,
    RANDOM_HEADS,
    RELEVANT,
    exchange_together,
    other_heads,
)
from probes import ClusteringHead, causal_checks, head_attribution, run
from tasks import Batch, InputError, InstructionFollowing, SparseModularAddition

LABELS = ("sum", OFF, "multiset", "answer")
CONFIG = HeadsInModelsConfig(n_measured=120)


def task_of(p: int) -> SparseModularAddition:
    return SparseModularAddition(p=p, length=7, n_support=3, n_embeddings=p, n_test=120)


def heads_of(model: Any, task: SparseModularAddition) -> Heads:
    """What the study keeps of a model."""
    found = measure_heads(
        model,
        examples_of(CONFIG, task),
        LABELS,
        lambda logits, batch: batch.index * 0.0,
        tested=8,
        recipients=6,
        tolerance=0.0,
    )
    return heads_from(found, LABELS)


# ---- the planted head ----


@pytest.mark.parametrize("p", [2, 4])
def test_the_planted_network_adds_and_copies(p: int) -> None:
    task = task_of(p)
    for seed in range(4):
        model, tokens = PlantedHeads(task, seed=seed), task.batches("test", 120)
        batch = next(tokens)
        answers = model(batch.tokens)[:, -1].argmax(dim=-1)
        assert torch.equal(answers // p, batch.tokens[:, :3].sum(dim=1) % p)
        copied = [bool((answers % p == batch.tokens[:, t]).all()) for t in range(7)]
        assert sum(copied[3:]) == 1
        assert not any(copied[:3])


def test_places_turn_with_the_seed_and_are_not_the_decoys() -> None:
    models = [PlantedHeads(task_of(2), seed=seed) for seed in range(20)]
    assert len({model.place for model in models}) >= 6
    assert all(model.place != model.decoy for model in models)


@pytest.mark.parametrize(("p", "seed"), [(2, 0), (3, 1), (4, 2)])
def test_exactly_the_planted_head_is_called(p: int, seed: int) -> None:
    task = task_of(p)
    model = PlantedHeads(task, seed=seed)
    heads = heads_of(model, task)
    assert [tuple(at) for at in np.argwhere(heads.called(CONFIG, "sum")).tolist()] == [model.place]
    assert not heads.called(CONFIG, OFF).any()
    assert heads.labelled("agreement", "answer")[model.place] == 1
    assert heads.strongest(2) == {layer * 4 + head for layer, head in (model.place, model.decoy)}


def test_where_nothing_reads_it_none_is_called_however_well_it_clusters() -> None:
    task = task_of(3)
    model = PlantedHeads(task, seed=1, read=False)
    heads = heads_of(model, task)
    assert heads.ratio("sum")[model.place] < 0.01
    assert not heads.called(CONFIG, "sum").any()


def test_attribution_and_the_full_causal_check_agree_on_the_planted_head() -> None:
    task = task_of(3)
    model = PlantedHeads(task, seed=1)
    batches = examples_of(CONFIG, task)
    probe = ClusteringHead(LABELS)
    run(model, batches, probe)
    effect = head_attribution(model, batches, probe, permutations=1)["effect"]
    causal = causal_checks(
        model, batches, probe, lambda logits, b: (logits[:, -1].argmax(-1) // 3 == b.label("answer")).double()
    )
    hurt = causal["accuracy"] - causal["ablated_accuracy"]
    assert [tuple(at) for at in (hurt > 0.2).nonzero().tolist()] == [model.place]
    assert float(effect[model.place]) > 0.5
    site, head = probe.outputs[model.place[0]], str(model.place[1])
    assert float(causal.sel("swap_agreement", site=site, head=head, partition="sum")) == 1
    assert float(causal.sel("swap_agreement", site=site, head=head, partition=OFF)) < 0.6
    read = {model.place, model.decoy}
    assert {tuple(at) for at in (effect > 0).nonzero().tolist()} == read


# ---- several heads at once ----


def asked_batch(model: Any, task: SparseModularAddition) -> Batch:
    """Asked: the sum modulo p, the planted head's; other: the copied digit, the decoy's."""
    batch = next(task.batches("test", 120))
    answers = model(batch.tokens)[:, -1].argmax(dim=-1)
    return Batch(batch.tokens, labels={"asked": answers // task.p, "other": answers % task.p, "answer": answers})


def test_heads_interchanged_together_carry_what_they_hold() -> None:
    model = PlantedHeads(task_of(3), seed=0)
    batch = asked_batch(model, task_of(3))
    both = exchange_together(model, batch, [model.place, model.decoy], (2, 4))
    assert float(both.sel("carried", donors=RELEVANT)) == 1
    assert (both.metadata["n"], both.metadata["draws"], len(both.metadata["heads"])) == (120, 3, 2)
    alone = exchange_together(model, batch, [model.place], (2, 4))
    assert float(alone.sel("carried", donors=RELEVANT)) == 0  # the digit is not the donor's
    assert float(alone.sel("changed", donors=RELEVANT)) == 1
    assert float(alone.sel("changed", donors=IRRELEVANT)) == 0
    assert model.place[0] != model.decoy[0]  # so that no control head is read
    assert float(alone.sel("changed", donors=RANDOM_HEADS)) == 0
    none = exchange_together(model, batch, [], (2, 4))
    assert bool(none["changed"].isnan().all())
    assert none.notes == ["there are no heads to interchange, so carried and changed are NaN"]


def test_sets_of_heads_discover_what_they_carry_together() -> None:
    model, labels = PlantedHeads(task_of(3), seed=0), ("asked", "other", "answer")
    batch = asked_batch(model, task_of(3))
    sets = {"sum": [model.place], "both": [model.place, model.decoy], "none": []}
    found = discover_together(model, batch, labels, sets, recipients=8, tolerance=0)
    assert found["agreement"][0, 0] == 1
    assert found["agreement"][0, 1].abs() < 0.1
    assert found["agreement"][1, 2] == 1
    assert bool(found["agreement"][2].isnan().all())
    assert found.notes == ["none: there are no such heads, so its measures are NaN"]
    values = discovered_agreement(found)
    assert values["agreement asked, sum"] == 1
    assert all(np.isnan(values[name]) for name in values if name.endswith(", none"))
    unread = discover_together(model, batch, labels, {"unread": [(1, 3)]}, recipients=3, tolerance=0)
    assert [note.split(": ")[:2] for note in unread.notes] == [["unread", "these heads together"]]
    values = discovered_agreement(unread)
    assert values["compactness, unread"] == 0


def test_sets_are_the_strongest_heads_and_as_many_others() -> None:
    effect = np.arange(8.0).reshape(2, 4)
    heads = Heads(("asked",), {"effect": effect}, np.ones(1), 1.0)
    assert heads.strongest(8) == {*range(1, 8)}  # an effect of 0 is none
    sets = head_sets(heads, (1, 3, 6), seed=0)
    assert list(sets) == [*(name(n) for n in (1, 3, 6) for name in (largest_heads, control_heads))]
    assert sets[largest_heads(1)] == [(1, 3)]
    assert sets[largest_heads(3)] == [(1, 1), (1, 2), (1, 3)]
    assert (1, 0) in sets[control_heads(3)]  # the only one left in that block
    assert not {*sets[control_heads(3)]} & {*sets[largest_heads(3)]}
    assert len({*sets[control_heads(3)]}) == 3
    assert sets[control_heads(6)] == []


def test_control_heads_are_as_many_and_as_near_as_there_are() -> None:
    draw = torch.Generator().manual_seed(0)
    heads = [(1, 0), (1, 1), (1, 2), (3, 0)]
    counts: dict[int, int] = {}
    for _ in range(20):
        others = other_heads(heads, (4, 4), draw)
        assert len({*others} - {*heads}) == len(heads)
        blocks = sorted(block for block, _ in others)
        assert blocks.count(1) == 1  # the only one left there
        assert blocks.count(3) == 1
        for block in {0, 2} & {*blocks}:
            counts[block] = counts.get(block, 0) + blocks.count(block)
    assert sum(counts.values()) == 40
    assert len({tuple(sorted(other_heads([(0, 0)], (2, 4), draw))) for _ in range(40)}) == 3


def test_without_enough_other_heads_there_is_no_control() -> None:
    model = PlantedHeads(task_of(3), seed=0)
    most = [(block, head) for block in range(2) for head in range(4)][:5]
    found = exchange_together(model, asked_batch(model, task_of(3)), most, (2, 4))
    assert bool(found.sel("changed", donors=RANDOM_HEADS).isnan())
    assert not bool(found.sel("changed", donors=RELEVANT).isnan())
    assert found.notes[1] == "there are not as many other heads, so their carried and changed are NaN"
    half = exchange_together(model, asked_batch(model, task_of(3)), most[:4], (2, 4))
    assert not bool(half.sel("changed", donors=RANDOM_HEADS).isnan())


def test_donors_are_drawn_from_the_seed() -> None:
    """Of labels at random, so that what a donor carries differs from draw to draw."""
    model = PlantedHeads(task_of(3), seed=0)
    batch = asked_batch(model, task_of(3))
    labels = {**batch.labels, **{name: torch.randint(3, (120,)) for name in ("asked", "other")}}
    given = Batch(batch.tokens, labels=labels), [model.place, model.decoy], (2, 4)
    one, again, other = (exchange_together(model, *given, draws=1, seed=seed) for seed in (0, 0, 1))
    for measure in ("carried", "changed"):
        torch.testing.assert_close(one[measure], again[measure], equal_nan=True)
        assert 0 < float(one.sel(measure, donors=RELEVANT)) < 1
    assert not torch.equal(one["changed"], other["changed"])


# ---- the rule ----


def constructed(**changes: float) -> Heads:
    """One head that is called, unless something is changed."""
    values = {"within_ratio": 0.1, "changed_within": 0.1, "changed_between": 0.4, "causal_p_holm": 0.01, **changes}
    return Heads(("sum", OFF), {k: np.full((1, 1, 2), v) for k, v in values.items()}, np.array([0.9, 0.9]), 1.0)


@pytest.mark.parametrize(
    ("changes", "called"),
    [
        ({}, True),
        ({"within_ratio": 0.45, "changed_within": 0.2, "causal_p_holm": 0.05}, True),  # at the bounds
        ({"within_ratio": 0.46}, False),
        ({"changed_within": 0.21}, False),
        ({"changed_between": 0.0, "changed_within": 0.0, "causal_p_holm": np.nan}, False),
        ({"causal_p_holm": 0.06}, False),
    ],
)
def test_every_condition_of_the_rule_counts(changes: dict[str, float], called: bool) -> None:
    assert bool(constructed(**changes).called(CONFIG, "sum").all()) is called


# ---- prompts ----


def words(texts: Any) -> list[list[int]]:
    """A token for every word or sign, the same in all texts."""
    return [[sum(map(ord, word)) * 7 + len(word) for word in re.findall(r"\w+|[^\w\s]", text)] for text in texts]


@pytest.mark.parametrize("order", ["first", "second"])
def test_the_answer_is_what_followed_the_name_before(order: Any) -> None:
    prompts = WordPrompts(n_words=3, seed=4)
    batch, texts = prompts.batch(words, order), prompts.texts(order)
    assert len(batch) == len(set(texts)) == 9
    for text, answer in zip(texts, batch.labels["answer"].tolist(), strict=True):
        said = re.findall(r"\w+", text)
        assert words([said[said.index(said[-1]) + 1]]) == [[answer]]
    pairs = torch.stack([batch.labels["asked"], batch.labels["other"]], dim=1)
    assert len(torch.unique(pairs, dim=0)) == 9  # every pair once: neither label tells the other
    assert len(torch.unique(torch.stack([batch.labels["asked"], batch.labels["answer"]]), dim=1).T) == 3


def test_both_ends_have_the_same_words_and_the_other_label() -> None:
    prompts = WordPrompts(n_words=3)
    first, second = (prompts.batch(words, order) for order in ("first", "second"))
    assert all(b.startswith(a) for a, b in zip(prompts.texts("first"), prompts.texts("second"), strict=True))
    assert torch.equal(first.labels["asked"], second.labels["other"])
    assert torch.equal(first.labels["other"], second.labels["asked"])


def test_seeds_draw_other_words() -> None:
    assert len({WordPrompts(seed=seed).texts("first")[0] for seed in range(10)}) == 10


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_words": 1}, "n_words is 1; expected at least 2"),
        ({"names": ("Anna", "Anna")}, "names has 1 different words; expected at least 2"),
        ({"nouns": ("a", "b", "c")}, "nouns has 3 different words; expected at least 10"),
    ],
)
def test_refusals_of_prompts(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        WordPrompts(**fields)


def test_a_tokenizer_that_cannot_tell_the_things_apart_is_refused() -> None:
    with pytest.raises(InputError, match=r"^the tokenizer begins several of .* with the same token, or with none"):
        WordPrompts(n_words=2).batch(lambda texts: [[len(text.split())] * len(text.split()) for text in texts], "first")


# ---- settings ----


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seeds": ()}, "seeds is empty; expected at least one seed, such as --seeds 0"),
        ({"moduli": (2, 2)}, "moduli is (2, 2); expected at least one modulus, each once, such as 2 3 4"),
        (
            {"addition": SparseModularAddition(seed=3)},
            "addition.seed is set by each run, from moduli and seeds; leave it out",
        ),
        ({"share": 1.0}, "share is 1.0; expected below 1"),
        ({"n_layers": 1}, "n_layers is 1; expected at least 2"),
        ({"word_seeds": ()}, "word_seeds is empty; expected at least one seed, such as --word-seeds 0"),
        ({"together": (16, 4)}, "together is (16, 4); expected numbers of heads that grow, such as 4 16 64"),
        (
            {"together_recipients": 26},
            "together_recipients is 26, more than the 25 prompts; give fewer, or more n_words",
        ),
        (
            {"addition": SparseModularAddition(length=5, n_support=3)},
            "addition has 3 of 5 digits in its support; expected at most half, since equally many digits off it "
            "serve as a control",
        ),
    ],
)
def test_refusals_of_settings(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refused:
        replace(CONFIG, **fields)
    assert str(refused.value) == message


@pytest.mark.parametrize("n_measured", [32, 100, 10_000])
def test_held_out_examples_are_of_every_task(n_measured: int) -> None:
    task = InstructionFollowing(n_tasks=8, variants=40, n_eval=150)
    batches = examples_of(HeadsInModelsConfig(n_measured=n_measured), task)
    (whole,) = task.batches("validation_subset", task.n_eval)
    counts = torch.cat([batch.labels["task"] for batch in batches]).bincount(minlength=8)
    n = min(n_measured, len(whole))
    assert int(counts.sum()) == n
    expected = whole.labels["task"].bincount(minlength=8) * n / len(whole)
    assert float((counts - expected).abs().max()) <= 1.5
