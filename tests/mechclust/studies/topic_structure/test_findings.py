"""The findings on made-up measurements: each has the value counted by hand, can fail, and can be not specific."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch

from mechclust.studies.topic_structure.arms import DECAYED, Cell, attention_arm, released_arm, stage_cells
from mechclust.studies.topic_structure.attention_table import (
    TABLE,
    TOPIC_COLUMNS,
    attention_means,
    attention_table,
    bucket_means,
    distance_of,
    distance_values,
    implied_table,
)
from mechclust.studies.topic_structure.config import ROWS
from mechclust.studies.topic_structure.findings import findings_of
from mechclust.studies.topic_structure.labelling import RANDOM, RIGHT, SHIFTED, topics_by_labelling
from mechclust.studies.topic_structure.results import THEORY_G, shares_of, topic_block
from mechclust.studies.topic_structure.stage_figures import stages_figure
from probes import ProbeResult
from tasks import InputError, TopicDocuments
from tests.mechclust.studies.topic_structure.made_runs import (
    GAP,
    PAPER,
    blocks,
    constructed,
    curves,
    early_of,
    g_of,
    minimisers,
    noise_of,
)

SEEDS = PAPER.seeds
RUNS = constructed()
HEADLINES = ["P1b", "P4f", "P5"]
PAGE = ["P1a", "P2b", "P2c", "P3b", "P4", "P5a", "P5h"]
TABLE_ONLY = ["P4b", "P5g", "P6", "P8b"]
NEAR = [cell.arm for cell in stage_cells(PAPER) if cell.init == "near-zero"]
DEFAULT = [cell.arm for cell in stage_cells(PAPER) if cell.init == "default"]


def judged(runs=RUNS, optima=None, config=PAPER):
    return {finding.id: finding for finding in findings_of(config, runs, optima or minimisers(config))}


def altered(names, **change):
    """Return the made runs with those of some arms changed in every seed."""
    return RUNS | {name: [replace(run, **change) for run in RUNS[name]] for name in names}


def altered_in(seed, name, runs=RUNS, **change):
    """Return the runs with that of one seed and arm changed."""
    return runs | {name: [replace(run, **change) if place == seed else run for place, run in enumerate(runs[name])]}


def by_seed(finding, part=0):
    return pytest.approx(finding.parts[part].values, rel=1e-6)


class TestFindings:
    def test_hold_where_everything_is_as_predicted_and_on_no_control(self):
        found = judged()
        assert {id: finding.verdict for id, finding in found.items() if finding.verdict != "holds"} == {}
        assert sorted([*HEADLINES, *PAGE, *TABLE_ONLY]) == list(found)
        assert [id for id, finding in found.items() if finding.shown == "headline"] == HEADLINES
        assert [id for id, finding in found.items() if finding.shown == "page"] == PAGE
        assert {id for id, finding in found.items() if finding.kind == "check"} == {"P2b", "P2c"}
        assert {id for id, finding in found.items() if finding.control is None} == {"P2b", "P2c"}

    def test_are_not_tested_by_short_runs(self):
        changes = {"everything_steps": 2000, "decay_steps": 3000, "attention_steps": 2000}
        short = replace(PAPER, **changes, optimum_lengths=(100, 400))
        found = judged(constructed(short), config=short)
        assert {id for id, f in found.items() if f.verdict == "not tested"} == {
            *("P2b", "P2c", "P3b", "P5", "P5a", "P5g", "P5h"),
        }

    @pytest.mark.parametrize(
        ("changes", "ids"),
        [
            ({"optimum_lengths": (100, 400, 1600)}, {"P2b"}),
            ({"optimum_documents": (1000, 10_000)}, {"P2b"}),
            ({"steps": 800}, {"P4", "P4b", "P4f", "P8b"}),
        ],
    )
    def test_are_not_tested_where_chance_or_the_start_would_decide(self, changes, ids):
        short = replace(PAPER, **changes)
        found = judged(constructed(short), config=short)
        assert {id for id, finding in found.items() if finding.verdict == "not tested"} == ids

    @pytest.mark.parametrize(
        "changes",
        [
            {"documents": TopicDocuments(lengths=(50, 75))},
            {"documents": TopicDocuments(concentration=0.2)},
            {"documents": TopicDocuments(n_documents=40)},
            {"documents": TopicDocuments(exact_shares=True)},
            {"documents": TopicDocuments(masking="fresh")},
            {"text": (500, 50)},
        ],
    )
    def test_compare_no_other_documents_with_the_published_table(self, changes):
        found = judged(config=replace(PAPER, **changes))
        assert {id for id, finding in found.items() if finding.verdict == "not tested"} == {"P5", "P5a", "P5g", "P5h"}

    def test_of_one_seed_say_nothing_of_a_jackknife(self):
        one = replace(PAPER, table_seeds=(30,))
        assert judged(constructed(one), config=one)["P5"].note == ""
        assert judged()["P5"].note.startswith("corrected for bias by a jackknife over seeds, without correction 0.0")

    def test_fail_where_an_arm_contradicts(self):
        found = judged(altered(["E2"], end=blocks(GAP, -0.01)))
        assert {id for id, finding in found.items() if finding.verdict == "does not hold"} == {"P1b"}


class TestValues:
    """Counted by hand, with seeds, arms, lengths and steps that all differ."""

    def test_the_gap_is_that_of_the_end_and_the_controls_that_of_the_start(self):
        found = judged()
        gaps = {arm: [GAP * (1 + noise_of(arm, seed)) for seed in SEEDS] for arm in ("E1", "E2")}
        assert gaps["E1"] == by_seed(found["P1a"])
        assert [1.01 * gap for gap in gaps["E2"]] == by_seed(found["P1b"])
        assert [0.05 + noise_of("E1", seed) for seed in SEEDS] == by_seed(found["P1a"], part=1)
        control = found["P1b"].control.parts
        assert [part.measured for part in control] == pytest.approx([0.101 * GAP, -0.101])
        assert found["P1a"].paper == pytest.approx(0.1156, abs=1e-4)

    def test_the_growth_of_separation_is_that_of_the_end(self):
        found = judged()["P3b"]
        for part, (loss, row) in enumerate(product(("cross-entropy", "squared"), ("Adam .003", "SGD .03"))):
            noise = [noise_of(f"E1b {loss} {row}", seed) for seed in PAPER.everything_seeds]
            assert found.parts[part].name == f"{row}, {loss}"
            assert [1 + value for value in noise] == by_seed(found, part)
            assert found.control.parts[part].values == pytest.approx(noise)

    def test_the_lowest_and_the_highest_cell_are_sought_in_every_seed(self):
        found = judged()
        by_optimizer = {name: [arm for arm in NEAR if f" {name} " in arm] for name in ("SGD", "Adam")}
        for part, names in enumerate(by_optimizer.values()):
            assert [min(early_of(name, seed) for name in names) for seed in SEEDS] == by_seed(found["P4"], part)
        assert [max(early_of(name, seed) for name in DEFAULT) for seed in SEEDS] == by_seed(found["P4b"])
        control = found["P4b"].control.parts[0].values
        assert control == pytest.approx([max(early_of(name, seed) for name in NEAR) for seed in SEEDS])

    def test_weights_are_exchanged_in_the_control_of_two_stages(self):
        steps = np.linspace(0, 1, 11)
        changes = {"W_V": steps, "W_K": np.minimum(4 * steps, 1), "W_Q": np.minimum(2 * steps, 1)}
        runs = altered(NEAR, changes={name: 10 * curve for name, curve in changes.items()}, norms={})
        found = judged(runs)["P4"]
        assert [part.measured for part in found.parts] == pytest.approx([0.1, 0.1])
        assert [part.measured for part in found.control.parts] == pytest.approx([0.4, 0.4])

    def test_distances_are_those_of_most_documents(self):
        powers = [-0.2, -0.2, -0.2, -0.25]
        found = judged(optima=minimisers(PAPER, powers, shrink=-0.6))["P2b"]
        far = [0.3 * 100**power * length**-0.6 for power, length in zip(powers, (1, 4, 16, 64), strict=True)]
        assert [far[-1] * (1 + 0.1 * place) for place in range(5)] == by_seed(found)
        assert found.measured == pytest.approx(1.4 * far[-1])  # of a check the worst
        slope = np.polyfit(np.log([100, 400, 1600, 6400]), np.log(far), 1)[0]
        assert found.parts[1].measured == pytest.approx(slope)

    def test_the_trained_network_is_judged_at_its_end(self):
        assert [0.02 + noise_of(DECAYED, seed) / 10 for seed in SEEDS] == by_seed(judged()["P2c"])
        assert "from the minimiser of other documents 0.400, from the closed form 0.300" in judged()["P2c"].note

    def test_g_is_that_of_the_last_step(self):
        taus, totals = PAPER.topics_per_document, PAPER.topics
        g = np.array([[[g_of(f"E4a theory T{n} tau{tau}", s) for tau in taus] for n in totals] for s in SEEDS])
        found = judged()
        assert list(np.diff(g, axis=2).min(axis=(1, 2))) == by_seed(found["P6"])
        assert list((g[:, 1] - g[:, 0]).min(axis=1)) == by_seed(found["P6"], part=1)
        far = [max(abs(g[s, 0, k] / THEORY_G[taus[k]] - 1) for k in range(4)) for s in range(5)]
        assert far == by_seed(found["P8b"])

    @pytest.mark.parametrize("other", [{"correct_share": 0.2}, {"random_share": 0.02}])
    def test_g_is_not_compared_with_the_optimum_of_other_documents(self, other):
        assert "P8b" not in judged(config=replace(PAPER, documents=replace(PAPER.documents, **other)))

    def test_the_arms_of_g_change_places_in_the_control(self):
        order = np.random.default_rng(0).permutation(8)
        names = [f"E4a theory T{n} tau{tau}" for n in PAPER.topics for tau in PAPER.topics_per_document]
        g = np.array([[g_of(names[place], seed) for place in order] for seed in SEEDS])
        least = [min(np.diff(of_seed[:4]).min(), np.diff(of_seed[4:]).min()) for of_seed in g]
        assert judged()["P6"].control.parts[0].values == pytest.approx(least)

    def test_two_arms_of_g_change_places_too(self):
        quick = replace(PAPER, topics=(10,), topics_per_document=(2, 5))
        found = judged(constructed(quick), config=quick)["P8b"]
        assert found.verdict == "holds"
        g = {tau: np.array([g_of(f"E4a theory T10 tau{tau}", seed) for seed in SEEDS]) for tau in (2, 5)}
        off = [np.abs(g[5] / THEORY_G[2] - 1), np.abs(g[2] / THEORY_G[5] - 1)]
        assert found.control.parts[0].values == pytest.approx(np.max(off, axis=0), rel=1e-6)

    def test_blocks_are_of_the_start_or_the_end_and_of_one_matrix(self):
        (run, *_) = altered(["E1"], start=blocks(1, 0), end=blocks(2, 0))["E1"]
        assert topic_block([run], "gap", "W_E^T W_E", start=True) == pytest.approx([1])
        assert topic_block([run], "gap", "W_V") == pytest.approx([2.02])


class TestStages:
    def test_cells_in_which_attention_does_not_move_are_left_out(self):
        still = Cell("near-zero", "SGD", "squared", 1.0).arm
        gone = Cell("near-zero", "SGD", "cross-entropy", 30.0).arm
        lost = {name: np.full(101, np.nan) for name in ("W_V", "W_K", "W_Q")}
        runs = altered([still], changes=curves(0.0, moves=False)) | {
            gone: [replace(run, changes=lost) for run in RUNS[gone]]
        }
        known, share = shares_of(PAPER, runs)
        out = np.isnan(share).all(axis=0)
        assert [cell.arm for cell, left in zip(known, out, strict=True) if left] == [gone, still]
        found = judged(runs)
        assert found["P4"].verdict == "holds"
        assert [part.name for part in found["P4"].parts] == ["SGD, lowest of 6", "Adam, lowest of 4"]
        drawn = stages_figure(PAPER, runs)
        assert [axis.get_title() for axis in drawn.axes][:2] == ["SGD, cross-entropy", "SGD, squared"]
        (legend,) = drawn.legends
        said = [text.get_text() for text in legend.get_texts()]
        assert said[2:] == ["training diverged in some seed", "attention hardly moved in some seed"]

    def test_one_number_of_topics_has_no_rise_with_it(self):
        one = replace(PAPER, topics=(10,))
        found = judged(config=one)
        assert [part.name for part in found["P6"].parts] == ["smallest rise from one tau to the next"]

    def test_one_number_of_topics_in_a_document_has_no_rise(self):
        found = judged(config=replace(PAPER, topics_per_document=(2,)))["P6"]
        assert (found.verdict, found.parts[0].values) == ("not tested", ())

    def test_a_cell_without_a_share_in_one_seed_is_left_out_in_all(self):
        low = Cell("near-zero", "SGD", "squared", 30.0).arm
        runs = altered([low], changes=curves(0.3))
        assert judged(runs)["P4"].verdict == "does not hold"
        assert judged(altered_in(2, low, runs, changes=curves(0.3, moves=False)))["P4"].verdict == "holds"

    def test_the_network_as_released_is_judged_at_every_rate(self):
        found = judged()["P4f"]
        assert [part.name for part in found.parts] == ["rate 0.5", "rate 1", "rate 2"]
        for part, rate in enumerate(PAPER.released_rates):
            assert [early_of(released_arm(rate), seed) for seed in PAPER.released_seeds] == by_seed(found, part)
        still = altered([released_arm(0.5)], changes=curves(0.0, moves=False))
        assert [part.name for part in judged(still)["P4f"].parts] == ["rate 1", "rate 2"]
        assert "at rate 0.5 (8 of 8 seeds)" in judged(still)["P4f"].note
        nowhere = altered(list(map(released_arm, PAPER.released_rates)), changes=curves(0.0, moves=False))
        assert judged(nowhere)["P4f"].verdict == "not tested"

    def test_nothing_is_tested_where_attention_moves_nowhere(self):
        found = judged(altered(DEFAULT, changes=curves(0.0, moves=False)))["P4b"]
        assert (found.verdict, found.why_not) == ("not tested", "attention moved in none of its cells")


def with_words(change, row="SGD .03"):
    """Return the made runs with the attention of one row of E4 changed in every seed."""
    return altered_each(attention_arm(row), change)


def altered_each(name, change):
    return RUNS | {name: [replace(run, words=change(run.words)) for run in RUNS[name]]}


def scaled(result, factor):
    return replace(result, values={**result.values, "sum": factor * result["sum"]})


class TestAttention:
    def test_labels_are_right_shifted_by_the_special_tokens_or_random(self):
        labels = {name: topics.tolist() for name, topics in topics_by_labelling(TopicDocuments()).items()}
        assert labels[RIGHT] == [-1] * 4 + [word // 10 for word in range(100)]
        assert labels[SHIFTED] == [-1] * 4 + [(word + 4) // 10 for word in range(96)] + [-1] * 4
        assert sorted(labels[RANDOM]) == sorted(labels[RIGHT])
        assert labels[RANDOM][:4] == [-1] * 4
        assert sum(a == b for a, b in zip(labels[RANDOM], labels[RIGHT], strict=True)) < 50

    def test_means_are_over_all_pairs_of_tokens_with_a_topic(self):
        draw = torch.Generator().manual_seed(0)
        sums = torch.rand(2, 5, 5, generator=draw)
        pairs = torch.randint(1, 9, (2, 5, 5), generator=draw).float()
        axes = dict.fromkeys(("sum", "pairs"), ("length", "query", "key"))
        tokens = list("abcde")
        result = ProbeResult(
            "WordAttention",
            {"sum": sums, "pairs": pairs},
            axes,
            {"length": ["1", "2"], "query": tokens, "key": tokens},
        )
        topics = [-1, 0, 0, 1, 1]
        expected = np.zeros((2, 3, 2))
        for length, q, k in product(range(2), range(1, 5), range(1, 5)):
            bucket = 0 if q == k else 1 if topics[q] == topics[k] else 2
            expected[length, bucket] += float(sums[length, q, k]), float(pairs[length, q, k])
        found = bucket_means(result, torch.tensor(topics))
        np.testing.assert_allclose(found, expected[..., 0] / expected[..., 1], rtol=1e-6)

    def test_a_row_without_attention_between_tokens_is_named(self):
        lost = attention_arm("SGD .03")
        with pytest.raises(InputError, match=r"SGD \.03"):
            attention_means(PAPER, RUNS | {lost: [replace(run, words=None) for run in RUNS[lost]]})

    def test_the_distance_is_of_means_over_seeds(self):
        means = np.stack([TABLE * 1.2, TABLE * 0.8])
        assert distance_of(means, TOPIC_COLUMNS) == pytest.approx(0)
        values = distance_values(means, TOPIC_COLUMNS)
        assert list(values) == pytest.approx([-np.log(1 / 0.8), -np.log(1.2)])  # 2 x 0 - distance of the other seed
        assert list(distance_values(means[:1], TOPIC_COLUMNS)) == pytest.approx([np.log(1.2)])

    def test_topic_columns_and_the_same_word_are_judged_apart(self):
        own = torch.eye(104, dtype=torch.bool)

        def other_words(result):
            return replace(result, values={**result.values, "sum": torch.where(own, 3.0, 1.0) * result["sum"]})

        runs = RUNS
        for row in ROWS:
            runs = runs | {attention_arm(row): with_words(other_words, row)[attention_arm(row)]}
        found = judged(runs)
        assert {id for id in ("P5", "P5a", "P5g", "P5h") if found[id].verdict == "does not hold"} == {"P5g"}

    def test_fail_where_one_row_is_far_or_attends_uniformly(self):
        assert judged(with_words(partial(scaled, factor=2)))["P5"].verdict == "does not hold"

        def even(result):
            return replace(result, values={**result.values, "sum": torch.full_like(result["sum"], 0.008)})

        assert judged(with_words(even))["P5a"].verdict == "does not hold"

    def test_not_specific_if_random_labels_show_the_table_too(self):
        def anything(result):
            return replace(result, values={**result.values, "sum": torch.zeros_like(result["sum"]) + 0.0084})

        runs = {name: altered_each(name, anything)[name] for name in map(attention_arm, ROWS)}
        found = judged(RUNS | runs)["P5"]
        assert found.parts[0].measured == pytest.approx(found.control.parts[0].measured)

    def test_tables_begin_with_the_published_one_and_say_what_it_implies(self):
        table = attention_table(attention_means(PAPER, RUNS))
        assert len(table) == 5 + 3 * 2 * 5
        assert table.iloc[0].tolist() == ["published", "", "Adam .003", "0.00759", "0.01080", "0.00689", "1.57"]
        implied = implied_table(PAPER, RUNS).iloc[0]
        to_words = 0.00759 + 9 * 0.0108 + 90 * 0.00689  # each pair occurs once
        assert float(implied["to words, whole documents"]) == pytest.approx(to_words, abs=1e-3)
        pairs = 96, 30 + 9 * 90, 96 * 96 - 96 - 30 - 9 * 90
        left = 100 - np.dot(pairs, TABLE[0])
        assert float(implied["to the rest, whole documents"]) == pytest.approx(left / (100**2 - 96**2), abs=1e-4)
