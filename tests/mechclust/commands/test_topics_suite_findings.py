"""P7 and its kin: true of what was published, false of what is not so, untested where encoders are missing."""

from __future__ import annotations

import numpy as np
import pytest

from mechclust.commands.topics.suite import judge_folder
from mechclust.commands.topics.suite.curves import Curve, mean_of
from mechclust.commands.topics.suite.findings import findings_of
from mechclust.commands.topics.suite.published import PUBLISHED, THRESHOLDS, published_ratio
from mechclust.commands.topics.suite.spread import spread
from mechclust.commands.topics.suite.vectors import drawn_of
from mechclust.evidence.intervals import mean_interval
from tasks import InputError
from tests.mechclust.commands.topics_suite_cases import ROWS, as_published, attention_of, published_curve


def verdicts(results):
    return {finding.id: finding.verdict for finding in findings_of(results)}


class TestP7:
    def test_what_was_published_holds(self):
        found = {finding.id: finding for finding in findings_of(as_published())}
        assert found["P7"].verdict == "holds"
        assert {part.name for part in found["P7"].parts} == {
            *(f"{row}, least {what}" for row in ROWS for what in ("ratio", "fall")),
            "ELECTRA - highest other, least",
            "random BERT, largest distance from 1",
        }
        assert (found["S1"].verdict, found["S2"].verdict) == ("holds", "holds")

    def test_an_encoder_without_topics(self):
        assert verdicts(as_published(BART=np.full(6, 0.97)))["P7"] == "does not hold"

    def test_one_that_rises_with_the_threshold(self):
        assert verdicts(as_published(ALBERT=published_curve("ALBERT")[[2, 1, 0, 5, 4, 3]]))["P7"] == "does not hold"

    def test_electra_is_not_highest(self):
        assert verdicts(as_published(ELECTRA=published_curve("ELECTRA") / 1.7))["P7"] == "does not hold"

    def test_random_weights_one_percent_off(self):
        assert verdicts(as_published(random=np.full(6, 1.01)))["P7"] == "does not hold"

    def test_the_tables_are_judged_apart(self):
        ratios = published_curve("BERT")
        found = verdicts(as_published(BERT=np.array([*ratios[:3], 0.97, 0.96, 0.95])))
        assert (found["P7"], found["P7b"]) == ("holds", "does not hold")

    def test_encoders_that_are_missing(self):
        results = [r for r in as_published() if r.metadata["published"] not in ("ALBERT", "ELECTRA")]
        found = findings_of(results)[0]
        assert found.verdict == "not tested"
        assert found.why_not == "the suite has no ALBERT and ELECTRA"
        assert found.measured == pytest.approx(1.22, abs=0.01)  # numbers stay

    def test_no_random_twin_of_bert(self):
        found = findings_of([r for r in as_published() if r.metadata["twin"] is None])
        assert found[0].why_not == "the suite has no random BERT"
        assert found[2].why_not == "no encoder has an untrained twin"


def test_above_its_own_random_twin():
    high, low = np.full(6, 1.3), np.full(6, 1.1)
    pair = [attention_of(high, "x"), attention_of(low, "x", twin=0)]
    assert verdicts(pair)["S1"] == "holds"
    assert verdicts([attention_of(low, "x"), attention_of(high, "x", twin=0)])["S1"] == "does not hold"


def test_the_variation_between_twins_counts():
    """Two twins, of which one is above the encoder: with one alone, the finding would be decided."""
    trained = attention_of(np.full(6, 1.3), "x")
    twins = [attention_of(np.full(6, ratio), "x", twin=i) for i, ratio in enumerate((1.1, 1.35))]
    assert verdicts([trained, twins[0]])["S1"] == "holds"
    assert verdicts([trained, *twins])["S1"] == "undecided"


def test_the_control_is_one_twin_against_the_others():
    trained = attention_of(np.full(6, 1.3), "x")
    twins = [attention_of(np.full(6, ratio), "x", twin=i) for i, ratio in enumerate((1.1, 1.0, 1.02))]
    assert findings_of([trained, twins[0]])[2].control is None
    (part,) = findings_of([trained, *twins])[2].control.parts
    assert part.measured == pytest.approx(1.1 - 1.01, abs=0.01)


def test_a_verdict_in_spite_of_undefined_resamples():
    found, twin = attention_of(np.full(6, 1.3), "x"), attention_of(np.full(6, 1.0), "x", twin=0)
    found["overall_matched_resampled"][0, 2, 5] = np.nan
    assert findings_of([found, twin])[3].verdict == "holds"
    found["overall_matched_resampled"][:] = np.nan
    assert findings_of([found, twin])[3].verdict == "undecided"


def test_equal_distance_may_take_it_away():
    ratios, twin = np.full(6, 1.3), attention_of(np.full(6, 1.0), "x", twin=0)
    assert verdicts([attention_of(ratios, "x"), twin])["S2"] == "holds"
    assert verdicts([attention_of(ratios, "x", matched=-0.1), twin])["S2"] == "does not hold"


def test_chance_at_equal_distance_is_that_of_the_twin():
    """Above 1 is not enough: documents of different lengths take a model with random weights there too."""
    found = [attention_of(np.full(6, 1.3), "x"), attention_of(np.full(6, 1.31), "x", twin=0)]
    assert verdicts(found)["S2"] == "does not hold"


def test_encoders_without_twins_are_told():
    found = findings_of([attention_of(np.full(6, r), name) for r, name in ((1.3, "x"), (1.3, "y"), (1.3, "random x"))])
    assert found[3].why_not == "no encoder has an untrained twin"
    twin = attention_of(np.full(6, 1.0), "x", twin=0)
    alone = attention_of(np.full(6, 0.9), "random x")  # is not the twin of x, whatever its name
    (s1, s2) = findings_of([attention_of(np.full(6, 1.3), "x"), twin, alone])[2:]
    for finding in (s1, s2):
        assert finding.verdict == "holds"
        assert finding.unit == "documents and topic models"
        assert finding.note == "left out, as without an untrained twin: random x"


def test_a_folder_without_measurements(tmp_path):
    with pytest.raises(InputError) as error:
        judge_folder(tmp_path)
    assert str(error.value) == (
        f"no measurements of a suite in {str(tmp_path)!r}; give the --out folder of a finished mechclust topics --suite"
    )


def test_the_published_numbers_fall_and_electra_leads():
    for overlap in (False, True):
        attention = np.array([[published_ratio(row, "attention", t, overlap) for t in THRESHOLDS] for row in PUBLISHED])
        assert (np.diff(attention, axis=1) < 0).all()
        assert (attention.argmax(axis=0) == PUBLISHED.index("ELECTRA")).all()


class TestSpread:
    def test_topic_models_alone(self):
        values = np.array([1.0, 1.5, 1.2, 1.4])
        assert spread(values) == pytest.approx(mean_interval(values))

    def test_documents_alone(self):
        drawn = np.random.default_rng(0).normal(2, 0.1, (1, 4000))
        assert spread(np.array([2.0]), drawn) == pytest.approx((2 - 0.196, 2 + 0.196), abs=0.01)

    def test_both_cover_the_truth(self):
        """Of 400 made with known variation of seeds and documents, about 95% cover the mean they were made of."""
        draw, covered = np.random.default_rng(1), 0
        for _ in range(400):
            seeds, documents = draw.normal(0, 1, 4), draw.normal(0, 0.7)
            drawn = (seeds + documents)[:, None] + draw.normal(0, 0.7, (1, 100))
            low, high = spread(seeds + documents, drawn)
            covered += low <= 0 <= high
        assert 0.92 <= covered / 400 <= 0.99

    def test_few_parts_of_the_documents_left_out(self):
        """Of 400 means of 60 documents, about 95% of the intervals cover the mean that these were drawn with."""
        draw, covered = np.random.default_rng(2), 0
        for _ in range(400):
            documents = draw.exponential(1, 60)
            without = np.array([np.delete(documents, np.s_[part::10]).mean() for part in range(10)])
            low, high = spread(mean := documents.mean()[None], drawn_of(mean, without[None]), freedom=9)
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

    def test_a_few_undefined_resamples_are_left_out(self):
        drawn = np.random.default_rng(0).normal(2, 0.1, (2, 100))
        holes = drawn.copy()
        holes[0, [1, 2]] = holes[1, [2, 3, 4]] = np.nan
        values = np.array([2.0, 2.1])
        expected = spread(values, np.delete(drawn, [1, 2, 3, 4], axis=1))
        assert spread(values, holes) == pytest.approx(expected)
        holes[0, [7, 8]] = np.nan
        assert spread(values, holes) is None

    def test_nothing_varies(self):
        assert spread(np.array([1.0])) is None
        assert spread(np.array([1.0, np.nan])) is None
