"""Numbers, tables and figures of heads that were made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mechclust.studies.heads_in_models import figures
from mechclust.studies.heads_in_models.config import INSTRUCTIONS, OFF, PLANTED, PROMPTS, UNREAD, addition_arm, arms
from mechclust.studies.heads_in_models.discovery import control_heads, largest_heads
from mechclust.studies.heads_in_models.heads import Heads, switching_heads
from mechclust.studies.heads_in_models.prompts import ORDERS
from mechclust.studies.heads_in_models.results import (
    CALLS,
    Results,
    by_subject,
    called_table,
    data_of,
    measure_key,
    rise_where_called,
)
from mechclust.studies.heads_in_models.together import DONORS, RELEVANT
from mechclust.studies.study import Job
from tests.mechclust.studies.heads_in_models.made import CONFIG, N_HEADS, N_LAYERS, made_heads, made_models

ADDITION = addition_arm(3)


@pytest.fixture(scope="module")
def models() -> Results:
    return made_models()


def is_called(heads: Heads, layer: int, head: int, label: int) -> bool:
    """The rule, written out for one head."""
    values = {name: value[layer, head, label] for name, value in heads.values.items() if value.ndim == 3}
    clusters = values["within_ratio"] / heads.chance[label] <= CONFIG.share
    keeps = values["changed_within"] <= CONFIG.share * values["changed_between"]
    return bool(clusters and keeps and values["causal_p_holm"] <= CONFIG.level)


def count_called(heads: Heads, layer: int, label: int) -> int:
    return sum(is_called(heads, layer, head, label) for head in range(N_HEADS))


# ---- numbers ----


def test_every_network_has_its_own_numbers(models: Results) -> None:
    data = data_of(CONFIG, models)
    for i, seed in enumerate(CONFIG.seeds):
        heads = models[Job(ADDITION, seed)]["trained"]
        by_layer = [count_called(heads, layer, 0) for layer in range(N_LAYERS)]
        expected = {
            "accuracy": heads.accuracy,
            "any": sum(by_layer) > 0,
            "any control": sum(count_called(heads, layer, 1) for layer in range(N_LAYERS)) > 0,
            "first layer": by_layer[0] > 0,
            "last layer": by_layer[-1] > 0,
            "called in last layer": by_layer[-1],
            "best ratio": heads.values["within_ratio"][..., 0].min() / heads.chance[0],
            "best ratio control": heads.values["within_ratio"][..., 1].min() / heads.chance[1],
            "agreement answer": heads.values["agreement"][..., 3].max(),
            f"agreement {OFF}": heads.values["agreement"][..., 1].max(),
        }
        for measure, value in expected.items():
            assert data[measure_key(ADDITION, "trained", measure)][i] == pytest.approx(float(value)), measure
    calls = data[measure_key(ADDITION, "trained", "called in last layer")]
    assert len(set(calls)) > 1  # so that an order of seeds is noticed


def test_instructions_have_curves_by_layer_and_counts_by_block(models: Results) -> None:
    data = data_of(CONFIG, models)
    for i, seed in enumerate(CONFIG.seeds):
        heads = models[Job(INSTRUCTIONS, seed)]["untrained"]
        assert heads.clusters is not None
        assert data[measure_key(INSTRUCTIONS, "untrained", "task-ARI")][i].tolist() == heads.clusters[:, 0].tolist()
        counts = [count_called(heads, layer, 0) for layer in range(N_LAYERS)]
        assert data[measure_key(INSTRUCTIONS, "untrained", "heads called")][i].tolist() == counts


def test_a_label_for_which_no_head_is_called_has_no_counts(models: Results) -> None:
    heads = replace(made_heads(ADDITION, 5), uncalled=frozenset({"sum"}))
    data = data_of(CONFIG, {Job(ADDITION, 5): {"trained": heads}})
    assert np.isnan([data[measure_key(ADDITION, "trained", measure)][0] for measure in CALLS]).all()
    assert np.isfinite(data[measure_key(ADDITION, "trained", "best ratio")]).all()


def test_a_planted_head_is_found_exactly_if_it_alone_is_called() -> None:
    heads = made_heads(PLANTED, 5)
    called = [(layer, head) for layer in range(N_LAYERS) for head in range(N_HEADS) if is_called(heads, layer, head, 0)]
    assert len(called) > 1
    values = {name: value.copy() for name, value in heads.values.items()}
    for place in called[1:]:
        values["causal_p_holm"][*place, 0] = 1.0
    for changed, place, exact in ((heads.values, called[0], 0), (values, called[0], 1), (values, called[1], 0)):
        planted = replace(heads, values=changed, place=place)
        data = data_of(CONFIG, {Job(PLANTED, 5): {UNREAD: planted}})
        assert data[measure_key(PLANTED, UNREAD, "exact")].tolist() == [exact]


def test_prompts_have_the_heads_that_serve_both_endings(models: Results) -> None:
    data = data_of(CONFIG, models)
    for i, seed in enumerate(CONFIG.word_seeds):
        for kind in ("pretrained", "random"):
            ends = [models[Job(PROMPTS, seed)][f"{kind}-{order}"] for order in ORDERS]
            strongest = [set(np.argsort(-heads.values["effect"].ravel())[:3].tolist()) for heads in ends]
            assert data[measure_key(PROMPTS, kind, "common")][i] == len(strongest[0] & strongest[1]) / 3
            for measure, follows, ignores in (("switching", 0, 1), ("switching other", 1, 0)):
                number = 0
                for place in np.ndindex(N_LAYERS, N_HEADS):
                    number += all(
                        heads.values["output_p_holm"][*place, follows] <= CONFIG.level
                        and heads.values["within_ratio"][*place, follows] / heads.chance[follows] <= CONFIG.share
                        and heads.values["within_ratio"][*place, ignores] / heads.chance[ignores] > CONFIG.share
                        for heads in ends
                    )
                assert data[measure_key(PROMPTS, kind, measure)][i] == number
    first = models[Job(PROMPTS, 2)]["pretrained-first"]
    assert first.discovery is not None
    carried = data[measure_key(PROMPTS, "pretrained-first", f"carried, {RELEVANT}")]
    assert carried[1] == first.carried[RELEVANT]
    of_set = {
        name: float(first.discovery.sel(name, set=control_heads(2)))
        for name in ("within_ratio", "within_ratio_gaussian")
    }
    compact = data[measure_key(PROMPTS, "pretrained-first", f"compactness, {control_heads(2)}")]
    assert compact[1] == pytest.approx(of_set["within_ratio"] - of_set["within_ratio_gaussian"])
    agreement = data[measure_key(PROMPTS, "pretrained-first", f"agreement other, {largest_heads(1)}")]
    assert agreement[1] == float(first.discovery.sel("agreement", set=largest_heads(1), equivalence="other"))


def test_a_rise_where_heads_are_called_is_a_mean_over_equal_blocks() -> None:
    ari = np.array([0.0, 0.1, 0.4, 0.6])
    assert rise_where_called(ari, np.array([0, 2, 0])) == pytest.approx(0.3 - 0.15)
    assert rise_where_called(ari, np.array([1, 0, 1])) == pytest.approx(0.15 - 0.3)  # no equal block is preferred
    assert rise_where_called(ari, np.zeros(3)) == 0
    assert rise_where_called(ari, np.ones(3)) == 0


# ---- the table ----


def test_the_table_counts_heads_by_block_in_the_mean_network(models: Results) -> None:
    table = called_table(CONFIG, models).set_index(["part", "model", "label"])
    assert len(table) == 2 * 4 + 3 * 2 * 4 + 2 * 3 + 4 * 2  # models and labels of each arm
    for arm, subject, label, name in (
        (ADDITION, "trained", 0, "sum"),
        (ADDITION, "untrained", 1, OFF),
        (INSTRUCTIONS, "trained", 2, "output"),
    ):
        counts = [
            [count_called(models[Job(arm, seed)][subject], layer, label) for layer in range(N_LAYERS)]
            for seed in CONFIG.seeds
        ]
        row = table.loc[(arm, subject, name)]
        for layer in range(N_LAYERS):
            assert row[f"block {layer}"] == pytest.approx(sum(of[layer] for of in counts) / 3)
        assert row["all blocks"] == pytest.approx(sum(map(sum, counts)) / 3)
        assert len({tuple(of) for of in counts}) > 1
    of_draws = [models[Job(PROMPTS, seed)]["random-second"] for seed in CONFIG.word_seeds]
    total = sum(count_called(heads, layer, 0) for heads in of_draws for layer in range(N_LAYERS))
    assert table.loc[(PROMPTS, "random-second", "asked")]["all blocks"] == total / 2


def test_the_table_has_no_count_for_a_label_that_attention_clusters(models: Results) -> None:
    refused = {
        job: {
            subject: replace(heads, uncalled=frozenset({"sum"})) if job.arm == ADDITION else heads
            for subject, heads in of_job.items()
        }
        for job, of_job in models.items()
    }
    table = called_table(CONFIG, refused).set_index(["part", "model", "label"])
    assert np.isnan(table.loc[(ADDITION, "trained", "sum")]["all blocks"])
    assert np.isfinite(table.loc[(ADDITION, "trained", OFF)]["all blocks"])


# ---- figures ----


def test_addition_has_a_dot_for_each_head_filled_if_it_is_called(models: Results) -> None:
    of_arms = {f"p = {p}": by_subject(CONFIG, models, addition_arm(p)) for p in CONFIG.moduli}
    figure = figures.addition_figure(CONFIG, of_arms)
    axis = figure.axes[1]  # above, p = 3
    dots = {tuple(dot) for of in axis.collections for dot in np.round(of.get_offsets(), 9).tolist()}
    filled = set()
    for of in axis.collections:
        if len(of.get_facecolor()):
            filled |= {tuple(dot) for dot in np.round(of.get_offsets(), 9).tolist()}
    for seed in CONFIG.seeds:
        heads = models[Job(ADDITION, seed)]["trained"]
        for layer, head in np.ndindex(N_LAYERS, N_HEADS):
            x = layer + (head - 1.5) * 0.7 / 4
            dot = (round(x, 9), round(float(heads.values["within_ratio"][layer, head, 0] / heads.chance[0]), 9))
            assert dot in dots
            assert (dot in filled) == is_called(heads, layer, head, 0)


def test_prompts_show_means_over_draws_and_endings(models: Results) -> None:
    of_models = by_subject(CONFIG, models, PROMPTS)
    figure = figures.prompts_figure(CONFIG, of_models)
    image, alike, causal, together = figure.axes[:4]
    ends = [models[Job(PROMPTS, seed)][f"pretrained-{order}"] for seed in CONFIG.word_seeds for order in ORDERS]
    effect = sum(heads.values["effect"] for heads in ends) / len(ends)
    assert np.allclose(image.images[0].get_array(), effect.T)
    dots = {tuple(dot) for of in alike.collections for dot in np.round(of.get_offsets(), 9).tolist()}
    for seed in CONFIG.word_seeds:
        first, second = (models[Job(PROMPTS, seed)][f"random-{order}"].ratio("asked") for order in ORDERS)
        assert {tuple(dot) for dot in np.round(np.stack([first.ravel(), second.ravel()], 1), 9).tolist()} <= dots
    shares = {tuple(dot) for of in causal.collections for dot in np.round(of.get_offsets(), 9).tolist()}
    for heads in ends:
        assert {(i, round(heads.changed[donors], 9)) for i, donors in enumerate(DONORS)} <= shares
    lines = [np.asarray(line.get_ydata()) for line in together.lines]
    bands = [band.get_datalim(together.transData) for band in together.collections]
    for kind, name in (("pretrained", largest_heads), ("pretrained", control_heads), ("random", largest_heads)):
        of_draws = [discovered_by_hand(models, kind, [set_index(name(n)) for n in (1, 2)], seed) for seed in (1, 2)]
        assert any(len(line) == 2 and np.allclose(line, sum(of_draws) / 2) for line in lines)
        lowest_and_highest = (np.min(of_draws), np.max(of_draws))
        assert any(np.allclose((band.y0, band.y1), lowest_and_highest) for band in bands)


def discovered_by_hand(models: Results, kind: str, sets: list[int], seed: int) -> np.ndarray:
    """The agreement of discovered classes with the thing asked for, mean of both endings, for each set of heads."""
    ends = [models[Job(PROMPTS, seed)][f"{kind}-{order}"].discovery for order in ORDERS]
    return np.mean([end["agreement"].numpy()[sets, 0] for end in ends], axis=0)


def set_index(name: str) -> int:
    return [largest_heads(1), control_heads(1), largest_heads(2), control_heads(2)].index(name)


def test_instructions_show_the_mean_clusters_by_layer(models: Results) -> None:
    figure = figures.instructions_figure(CONFIG, by_subject(CONFIG, models, INSTRUCTIONS))
    lines = [np.asarray(line.get_ydata()) for line in figure.axes[0].lines]
    for subject in ("trained", "untrained"):
        of_seeds = [models[Job(INSTRUCTIONS, seed)][subject].clusters for seed in CONFIG.seeds]
        for label in range(2):
            assert any(np.allclose(line, sum(of_seeds)[:, label] / 3) for line in lines)


def test_switching_heads_must_follow_the_thing_asked_at_every_ending(models: Results) -> None:
    ends = [models[Job(PROMPTS, 1)][f"pretrained-{order}"] for order in ORDERS]
    both = switching_heads(CONFIG, ends)
    alone = [switching_heads(CONFIG, [heads]) for heads in ends]
    assert np.array_equal(both, alone[0] & alone[1])
    assert (alone[0] != alone[1]).any()


def test_arms_that_were_not_run_have_no_subjects(models: Results) -> None:
    assert by_subject(replace(CONFIG, model=None), models, PROMPTS) == {}
    assert list(by_subject(CONFIG, models, PROMPTS)) == [
        "pretrained-first", "pretrained-second", "random-first", "random-second",
    ]  # fmt: skip
    assert arms(CONFIG)[-1] == PROMPTS
