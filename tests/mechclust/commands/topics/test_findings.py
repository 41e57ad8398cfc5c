"""P7 and its kin: true of what was published, false of what is not so, untested where encoders are missing."""

from __future__ import annotations

import numpy as np
import pytest

from mechclust.commands.topics import judge_folder
from mechclust.commands.topics.curves import Curve, mean_of
from mechclust.commands.topics.findings import findings_of
from mechclust.commands.topics.published import PUBLISHED, THRESHOLDS, published_ratio
from mechclust.commands.topics.spread import interval_of_mean
from mechclust.commands.topics.vectors import drawn_of
from mechclust.evidence.intervals import mean_interval
from tests.mechclust.commands.refusals import refusal
from tests.mechclust.commands.topics.cases import ROWS, as_published, attention_of, published_curve


def judged(results):
    return {finding.id: finding for finding in findings_of(results)}


def verdicts(results):
    return {id: finding.verdict for id, finding in judged(results).items()}


def copies_of(rows, ratios):
    """Return measurements of encoders with random weights that all have these ratios."""
    return [attention_of(ratios, ROWS[row], row, twin=0, noise=0.0005) for row in rows]


class TestP7:
    def test_what_was_published_holds(self):
        found = judged(as_published())
        assert found["P7"].verdict == "holds"
        assert {part.name for part in found["P7"].parts} == {
            *(f"{row}, least {what}" for row in ROWS for what in ("ratio", "fall")),
            "ELECTRA - highest other, least",
            "random BERT, largest distance from 1",
        }
        assert [found[id].verdict for id in ("S1", "S2")] == ["holds", "holds"]
        assert [found[id].shown for id in ("P7", "P7b", "S1", "S2")] == ["page", "table", "page", "table"]

    def test_values_are_the_least_over_thresholds_of_every_topic_model(self):
        """The lead of ELECTRA is over the highest of the others at each threshold."""
        results = as_published()
        found = {part.name: part for part in judged(results)["P7"].parts}
        ratios = {row: results[place]["overall_ratio"].numpy()[:, :3] for place, row in enumerate(ROWS)}
        assert found["BERT, least ratio"].values == pytest.approx(ratios["BERT"].min(axis=1).tolist())
        falls = [min(a - b, b - c) for a, b, c in ratios["BART"]]
        assert found["BART, least fall"].values == pytest.approx(falls)
        others = np.max([ratios[row] for row in ROWS if row != "ELECTRA"], axis=0)
        lead = (ratios["ELECTRA"] - others).min(axis=1)
        assert found["ELECTRA - highest other, least"].values == pytest.approx(lead.tolist())

    @pytest.mark.parametrize(
        "changed",
        [
            {"BART": np.full(6, 0.97)},
            {"ALBERT": published_curve("ALBERT")[[2, 1, 0, 5, 4, 3]]},
            {"ELECTRA": published_curve("ELECTRA") / 1.7},
            {"random": np.full(6, 1.01)},
        ],
        ids=["no topics", "rises", "ELECTRA is not highest", "random weights off"],
    )
    def test_does_not_hold_where_it_is_false(self, changed):
        assert verdicts(as_published(**changed))["P7"] == "does not hold"

    def test_the_tables_are_judged_apart(self):
        ratios = published_curve("BERT")
        found = verdicts(as_published(BERT=np.array([*ratios[:3], 0.97, 0.96, 0.95])))
        assert (found["P7"], found["P7b"]) == ("holds", "does not hold")

    def test_its_control_is_random_weights_of_every_encoder(self):
        others = [row for row in ROWS if row != "BERT"]
        assert judged(as_published())["P7"].control is None  # only BERT has a copy
        flat = judged([*as_published(), *copies_of(others, np.full(6, 1.0))])["P7"]
        assert (flat.verdict, flat.control.verdict) == ("holds", "does not hold")
        assert flat.control.parts[0].measured == pytest.approx(1, abs=0.01)

    def test_its_control_with_unequal_numbers_of_copies_takes_as_many_of_each(self):
        others = [row for row in ROWS if row != "BERT"]
        several = [
            attention_of(np.full(6, ratio), ROWS[row], row, twin=i, noise=0.0005)
            for row in others
            for i, ratio in enumerate((1.0, 1.001))
        ]
        third = attention_of(np.full(6, 1.3), "e", "ELECTRA", twin=2)
        equal, more = (judged([*as_published(), *each])["P7"].control for each in (several, [*several, third]))
        assert [part.values for part in more.parts] == [part.values for part in equal.parts]

    def test_encoders_that_are_missing(self):
        results = [r for r in as_published() if r.metadata["published"] not in ("ALBERT", "ELECTRA")]
        found = judged(results)["P7"]
        assert found.verdict == "not tested"
        assert found.not_tested == "there is no ALBERT and ELECTRA among the models"
        assert found.measured == pytest.approx(1.22, abs=0.01)  # numbers stay

    def test_no_random_copy_of_bert(self):
        found = judged([r for r in as_published() if r.metadata["twin"] is None])
        assert found["P7"].not_tested == "there is no random BERT among the models"
        assert found["S1"].not_tested == "no model has a copy with random weights"


class TestAboveRandomWeights:
    high, low = np.full(6, 1.3), np.full(6, 1.1)

    def test_the_lowest_threshold_of_every_topic_model_counts(self):
        trained = attention_of([1.3, 1.2, 1.4, 1, 1, 1], "x", noise=0.01)
        twins = [attention_of([1.1, 1.1, 1.15, 2, 2, 2], "x", twin=i, noise=0.01) for i in range(2)]
        found = judged([trained, *twins])["S1"]
        mean = np.mean([twin["overall_ratio"].numpy() for twin in twins], axis=0)
        excess = trained["overall_ratio"].numpy() - mean
        assert found.parts[0].values == pytest.approx(excess[:, :3].min(axis=1).tolist())
        assert found.unit == "documents, topic models and random weights"

    def test_fails_below_them(self):
        assert verdicts([attention_of(self.low, "x"), attention_of(self.high, "x", twin=0)])["S1"] == "does not hold"

    def test_the_variation_between_copies_counts(self):
        """Of two copies one is above the encoder: with the other alone, the finding would be decided."""
        trained = attention_of(self.high, "x")
        twins = [attention_of(np.full(6, ratio), "x", twin=i) for i, ratio in enumerate((1.1, 1.35))]
        assert verdicts([trained, twins[0]])["S1"] == "holds"
        assert verdicts([trained, *twins])["S1"] == "undecided"

    def test_the_control_is_one_copy_against_the_mean_of_the_others(self):
        trained = attention_of(np.full(6, 3.0), "x")
        ratios = (1.9, 1.1, 1.12, 1.11)
        twins = [attention_of(np.full(6, ratio), "x", twin=i) for i, ratio in enumerate(ratios)]
        assert judged([trained, twins[0]])["S1"].control is None
        found = judged([trained, *twins])["S1"]
        first, *others = (twin["overall_ratio"].numpy() for twin in twins)
        excess = (first - np.mean(others, axis=0))[:, :3].min(axis=1)
        assert found.control.parts[0].values == pytest.approx(excess.tolist())
        assert found.verdict == "not specific"  # one copy is as far above the others as an encoder may be
        assert verdicts([trained, *twins[1:]])["S1"] == "holds"

    def test_the_control_takes_three_copies(self):
        trained = attention_of(np.full(6, 3.0), "x")
        twins = [attention_of(np.full(6, ratio), "x", twin=i) for i, ratio in enumerate((1.2, 1.1))]
        assert judged([trained, *twins])["S1"].control is None

    @pytest.mark.parametrize("copies", [3, 5])
    def test_a_copy_is_seldom_above_the_others_by_chance(self, copies):
        """Of 200 runs whose copies differ in nothing but their draw, the control is above 0 in about 2.5%."""
        draw, above = np.random.default_rng(4), 0
        for _ in range(200):
            ratios = draw.normal(1.1, 0.05, copies)
            twins = [attention_of(np.full(6, ratio), "x", twin=i, noise=0.001) for i, ratio in enumerate(ratios)]
            above += verdicts([attention_of(np.full(6, 3.0), "x"), *twins])["S1"] == "not specific"
        assert above / 200 <= 0.05

    def test_undefined_resamples(self):
        found, twin = attention_of(self.high, "x"), attention_of(np.full(6, 1.0), "x", twin=0)
        found["overall_matched_resampled"][0, 2, 5] = np.nan
        assert verdicts([found, twin])["S2"] == "holds"
        found["overall_matched_resampled"][:] = np.nan
        assert verdicts([found, twin])["S2"] == "undecided"

    def test_equal_distance_may_take_it_away(self):
        twin = attention_of(np.full(6, 1.0), "x", twin=0)
        assert verdicts([attention_of(self.high, "x"), twin])["S2"] == "holds"
        assert verdicts([attention_of(self.high, "x", matched=-0.1), twin])["S2"] == "does not hold"

    def test_above_1_is_not_enough(self):
        """Random weights may have a ratio above 1 too."""
        found = [attention_of(self.high, "x"), attention_of(np.full(6, 1.31), "x", twin=0)]
        assert verdicts(found)["S2"] == "does not hold"

    def test_encoders_without_copies_are_named(self):
        encoders = [attention_of(self.high, name) for name in ("x", "y", "random x")]
        assert judged(encoders)["S2"].not_tested == "no model has a copy with random weights"
        alone = attention_of(np.full(6, 0.9), "random x")  # is not a copy of x, whatever its name
        found = judged([attention_of(self.high, "x"), attention_of(np.full(6, 1.0), "x", twin=0), alone])
        for id in ("S1", "S2"):
            assert found[id].verdict == "holds"
            assert found[id].unit == "documents and topic models"
            assert found[id].note == "left out, as without random weights: random x"


def test_a_folder_without_measurements(tmp_path):
    assert refusal(judge_folder, tmp_path) == (
        f"no measurements of topics in {str(tmp_path)!r}; give the --out folder of a finished mechclust topics"
    )


def test_the_published_numbers_fall_and_electra_leads():
    for overlap in (False, True):
        attention = np.array([[published_ratio(row, "attention", t, overlap) for t in THRESHOLDS] for row in PUBLISHED])
        assert (np.diff(attention, axis=1) < 0).all()
        assert (attention.argmax(axis=0) == PUBLISHED.index("ELECTRA")).all()


class TestSpread:
    def test_topic_models_alone(self):
        values = np.array([1.0, 1.5, 1.2, 1.4])
        assert interval_of_mean(values) == pytest.approx(mean_interval(values))

    def test_documents_alone(self):
        drawn = np.random.default_rng(0).normal(2, 0.1, (1, 4000))
        assert interval_of_mean(np.array([2.0]), drawn) == pytest.approx((2 - 0.196, 2 + 0.196), abs=0.01)

    def test_both_cover_the_truth(self):
        """Of 400 made with known variation of seeds and documents, about 95% cover the mean they were made of."""
        draw, covered = np.random.default_rng(1), 0
        for _ in range(400):
            seeds, documents = draw.normal(0, 1, 4), draw.normal(0, 0.7)
            drawn = (seeds + documents)[:, None] + draw.normal(0, 0.7, (1, 100))
            low, high = interval_of_mean(seeds + documents, drawn)
            covered += low <= 0 <= high
        assert 0.92 <= covered / 400 <= 0.99

    def test_few_parts_of_the_documents_left_out(self):
        """Of 400 means of 60 documents, about 95% of the intervals cover the mean that these were drawn with."""
        draw, covered = np.random.default_rng(2), 0
        for _ in range(400):
            documents = draw.exponential(1, 60)
            without = np.array([np.delete(documents, np.s_[part::10]).mean() for part in range(10)])
            low, high = interval_of_mean(mean := documents.mean()[None], drawn_of(mean, without[None]), freedom=9)
            assert low < mean < high
            covered += low <= 1 <= high
        assert 0.9 <= covered / 400 <= 0.98

    def test_random_weights_count_too(self):
        """Of 400 made with known variation of documents and of four twins, about 95% cover the mean they have."""
        draw, covered = np.random.default_rng(3), 0
        for _ in range(400):
            documents, twins = draw.normal(0, 0.1), draw.normal(0, 1, 4)
            drawn = documents + draw.normal(0, 0.1, (1, 100))
            found = mean_of([Curve(np.array([x + documents]), x + drawn) for x in twins])
            low, high = found.interval()
            covered += low <= 0 <= high
        assert 0.92 <= covered / 400 <= 0.98

    def test_the_jackknife_of_a_mean_is_its_standard_error(self):
        twins = np.array([0.2, 0.9, 0.4])
        found = mean_of([Curve(np.array([x]), np.full((1, 20), x)) for x in twins])
        assert found.interval() == pytest.approx(mean_interval(twins))

    def test_without_one_of_random_weights_the_mean_is_that_of_the_others(self):
        found = mean_of([Curve(np.array([x]), np.full((1, 20), x)) for x in (0.2, 0.9, 0.4)])
        assert found.without == pytest.approx(np.array([[0.65, 0.3, 0.55]]))

    def test_a_threshold_is_defined_if_it_is_in_any_topic_model(self):
        values = np.array([[1.0, np.nan, 2.0], [1.0, np.nan, np.nan]])
        found = Curve(values, values[..., None]).defined
        assert found.values[:, 0].tolist() == [1, 1]
        assert (found.values.shape, found.drawn.shape) == ((2, 2), (2, 2, 1))

    def test_a_few_undefined_resamples_are_left_out(self):
        drawn = np.random.default_rng(0).normal(2, 0.1, (2, 100))
        holes = drawn.copy()
        holes[0, [1, 2]] = holes[1, [2, 3, 4]] = np.nan
        values = np.array([2.0, 2.1])
        expected = interval_of_mean(values, np.delete(drawn, [1, 2, 3, 4], axis=1))
        assert interval_of_mean(values, holes) == pytest.approx(expected)
        holes[0, 7] = np.nan  # 5% exactly
        assert interval_of_mean(values, holes) is not None
        holes[0, 8] = np.nan
        assert interval_of_mean(values, holes) is None

    def test_nothing_varies(self):
        assert interval_of_mean(np.array([1.0])) is None
        assert interval_of_mean(np.array([1.0, np.nan])) is None
