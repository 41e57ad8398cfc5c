"""Findings of the clustering-head study on runs made by hand: values, verdicts, and what their controls give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mechclust.evidence.intervals import mean_interval, prediction_interval
from mechclust.studies.clustering_heads.curves import first_above
from tests.mechclust.studies.clustering_heads.made_runs import (
    CONFIG,
    SOLVED,
    N,
    curriculum,
    curved,
    ends,
    findings,
    full_batch,
    lattice,
    network,
    training,
    weak,
)

SLOWER, LARGER, LATE = "slower feed-forward", "larger eps", "late smaller rate"
IDEAL = "start ideal positions"


def values(finding, part=0):
    return list(finding.parts[part].values)


def control_values(finding, part=0):
    return list(finding.control.parts[part].values)


class TestShares:
    @pytest.mark.parametrize(
        ("solved", "verdict"), [(10, "does not hold"), (30, "undecided"), (42, "holds"), (90, "does not hold")]
    )
    def test_h1_is_a_share_within_a_range(self, solved, verdict):
        found = findings(*[network(accuracy=1.0 if i < solved else 0.5) for i in range(100)])["H1"]
        assert (found.measured, found.verdict, found.control) == (solved / 100, verdict, None)

    def test_h1_is_not_specific_if_another_setting_gives_the_same(self):
        networks = [network(accuracy=1.0 if i < 42 else 0.5) for i in range(100)]
        same = findings(*networks, final={SLOWER: ends(*[i < 40 for i in range(100)])})["H1"]
        assert (same.verdict, same.control.parts[0].measured) == ("not specific", 0.4)
        assert findings(*networks, final={SLOWER: ends(*[i < 2 for i in range(100)])})["H1"].verdict == "holds"

    def test_h1b_counts_textbook_heads_of_solved_networks_only(self):
        heads = [*20 * [network()], *4 * [network(textbook=True)], *30 * [weak(textbook=True)]]
        ideal = {i: lattice(0.1, textbook=i < 18) for i in range(25)}
        found = findings(*heads, ideal_positions=ideal, final={IDEAL: ends(*[i < 20 for i in range(25)])})["H1b"]
        assert (found.measured, found.verdict) == (4 / 24, "holds")
        assert control_values(found) == [*18 * [1], *2 * [0]]  # five did not solve the task
        few = {i: lattice(0.1, textbook=i < 2) for i in range(25)}
        alike = findings(*heads, ideal_positions=few, final={IDEAL: ends(*25 * [True])})["H1b"]
        assert alike.verdict == "not specific"
        assert findings(*4 * [network()], *20 * [network(textbook=True)])["H1b"].verdict == "does not hold"


class TestDetector:
    between = 12 * [network(accuracy=0.9, line=None)]  # no head

    def test_h1a_finds_lines_and_planes(self):
        solved = [*20 * [network()], *20 * [network(line=None, plane=0.1)]]
        found = findings(*solved, *40 * [weak()], *self.between)["H1a"]
        assert (found.verdict, found.control.verdict) == ("holds", "does not hold")
        assert [len(part.values) for part in found.parts] == [40, 40]
        assert [len(part.values) for part in found.control.parts] == [12, 40]
        assert findings(*40 * [network()], *40 * [weak(line=0.1)])["H1a"].verdict == "does not hold"
        missed = findings(network(), network(line=0.3), *40 * [weak()], *self.between)["H1a"]
        assert missed.measured == 0.5
        assert "solved without: seeds 1; before training, 0 of 54" in missed.note

    def test_areas_are_mean_shares_of_weak_networks_below_a_solved_one(self):
        solved = [network(line=0.05), network(line=0.15), network(line=None, plane=0.02)]
        low = [weak(), weak(), weak(line=0.1), weak(plane=0.01)]
        found = findings(*solved, *low)
        assert values(found["H1e"]) == [0.75, 0.5, 0.75]
        assert (found["H1e"].measured, found["H1e"].verdict) == (pytest.approx(2 / 3), "undecided")
        assert found["H1e"].interval is None  # fewer than twelve of a kind
        assert found["H1e"].note.startswith("too few to resample: 3 solved networks and 4 at 0.75 or below")

    def test_an_area_is_not_specific_if_networks_in_between_have_the_same(self):
        groups = [*12 * [network()], *40 * [weak()]]
        specific = findings(*groups, *self.between)
        assert (specific["H1e"].verdict, specific["H1e"].control.verdict) == ("holds", "does not hold")
        alike = findings(*groups, *12 * [network(accuracy=0.9)])
        assert alike["H1e"].verdict == "not specific"
        assert "against the 12 in between: 0.50" in alike["H1e"].note
        planar = [*20 * [network()], *20 * [network(line=None, plane=0.1)], *40 * [weak()], *self.between]
        assert findings(*planar)["H1e"].verdict == "holds"

    def test_resampling_a_few_separate_networks_shows_nothing_of_the_area(self):
        assert findings(*11 * [network()], *40 * [weak()])["H1e"].verdict == "undecided"
        assert findings(*12 * [network()], *11 * [weak()])["H1e"].verdict == "undecided"

    def test_one_solved_network_of_many_seeds_is_not_one_seed(self):
        found = findings(network(), *7 * [weak()])
        assert found["H7"].why_not == found["H1b"].why_not == "only one value (networks)"
        assert findings(network())["H1"].why_not == "one seed"

    def test_one_kind_of_network_tests_nothing(self):
        found = findings(network(), network())
        assert {found[id].verdict for id in ("H1a", "H1e")} == {"not tested"}
        assert found["H1e"].why_not == "networks above 0.98 and networks at 0.75 or below are needed"


class TestTransfer:
    @pytest.mark.parametrize(
        ("there", "scratch", "verdict"), [(20, 1, "holds"), (2, 1, "undecided"), (0, 19, "does not hold")]
    )
    def test_h6_compares_the_same_seeds(self, there, scratch, verdict):
        final = {
            "transfer": ends(*[i < there for i in range(20)]),
            "scratch": ends(*[i < scratch or 20 <= i < 23 for i in range(30)]),
        }
        found = findings(network(), final=final)["H6"]
        assert (found.verdict, found.measured) == (verdict, pytest.approx((there - scratch) / 20))
        expected = np.array([i < 3 for i in range(10)], dtype=float) - np.array([i < scratch for i in range(10)])
        assert control_values(found) == expected.tolist()  # the ten seeds without transfer

    def test_h6_is_not_specific_if_other_seeds_from_scratch_do_as_well(self):
        final = {"transfer": ends(*20 * [True]), "scratch": ends(*20 * [False], *20 * [True])}
        assert findings(network(), final=final)["H6"].verdict == "not specific"
        assert findings(network())["H6"].why_not == "no network continued from a solved one"


class TestOrder:
    def test_h2_is_a_share_of_solved_networks_that_are_not_ready_at_once(self):
        ready = [*3 * [network(ready=(140, 180))], network(ready=(190, 150)), network(ready=(160, 160))]
        found = findings(*ready, weak(ready=(100, 200)))["H2"]
        assert values(found) == [1, 1, 1, 0]
        assert "1 networks in which both are ready at the same epoch are left out; median lead 40 epochs" in found.note
        assert "ready at epoch 140 and 180" in found.note
        assert findings(*20 * [network()])["H2"].verdict == "holds"
        assert findings(*20 * [network(ready=(190, 150))])["H2"].verdict == "does not hold"
        assert findings(network(ready=(150, 150)))["H2"].why_not == "the value could not be measured"

    def test_the_control_has_the_same_epochs_in_one_random_order(self):
        """A head that is ready at more epochs than the classifier is first in any order."""
        order = np.random.default_rng(0).permutation(N)
        often, seldom = tuple(range(0, N, 2)), (399,)
        head_is_first = bool(first_above(np.isin(order, often), 0.5) < first_above(np.isin(order, seldom), 0.5))
        assert head_is_first
        found = findings(*20 * [network(ready=(often, seldom))])["H2"]
        assert (found.control.parts[0].measured, found.verdict) == (1, "not specific")

    def test_the_control_of_two_epochs_has_them_the_other_way_round(self):
        whole = network(ready=(1, (0,)))
        curves = {name: curve[:2] for name, curve in whole.stitching.values.items()}
        short = replace(whole, stitching=replace(whole.stitching, values=curves, coords={"epoch": ["0", "1"]}))
        found = findings(*3 * [short])["H2"]
        assert (values(found), control_values(found)) == ([0, 0, 0], [1, 1, 1])


class TestFullBatch:
    def test_h3_is_the_log_ratio_of_medians(self):
        runs = {0: full_batch(), 1: full_batch(peak=0.1), 2: full_batch(peak=0.5, falls=((60, 90),)), 3: full_batch(())}
        found = findings(network(), full_batch=runs)["H3"]
        assert values(found) == pytest.approx([2, 1, np.log10(50)])
        assert "falls of the loss: 0 in 1, 1 in 1, 2 in 2 of 4 runs" in found.note
        alike = findings(network(), full_batch={i: full_batch(((60, 90),), 1 + i / 9) for i in range(3)})["H3"]
        assert (alike.verdict, alike.control.verdict) == ("holds", "does not hold")
        flat = findings(network(), full_batch={i: full_batch(peak=0.01) for i in range(3)})["H3"]
        assert flat.verdict == "does not hold"
        assert findings(network())["H3"].why_not == "the full-batch run was not made"

    def test_h3_is_not_specific_if_gradients_half_a_run_away_are_as_large(self):
        run = full_batch(((43, 73), (143, 173)))
        gradient = run.dynamics["gradient_norm"]
        gradient[:] = 0.01
        gradient[43:88] = 1  # the first fall, and 85 epochs before the second
        gradient[128:173] = 1
        found = findings(network(), full_batch=dict.fromkeys(range(3), run))["H3"]
        assert control_values(found) == pytest.approx(3 * [2])
        assert found.verdict == "not specific"

    @pytest.mark.parametrize(
        ("plateau", "end", "start", "at_start", "verdict"),
        [
            (-0.2, -0.001, -1.0, 2.0, "holds"),
            (0.2, -0.001, -1.0, 2.0, "does not hold"),  # positive eigenvalues
            (-0.2, -0.1, -1.0, 2.0, "does not hold"),  # as large at the end
            (-0.2, -0.001, -1.0, 0.01, "not specific"),  # untrained networks have a small gradient too
        ],
    )
    def test_h3c_asks_for_negative_eigenvalues_and_a_small_gradient(self, plateau, end, start, at_start, verdict):
        curved_runs, curvature = {}, {}
        for seed in range(5):
            curved_runs[seed] = full_batch(at_start=at_start)
            curvature[seed] = curved((plateau / 9, plateau * (1 + seed / 50), plateau * 9), end, start)
        curved_runs[5] = full_batch(accuracy=0.8)  # not solved
        curvature[5] = curved((9, 9, 9), 1)
        found = findings(network(), curved=curved_runs, curvature=curvature)["H3c"]
        assert found.verdict == verdict
        size = [np.log10(abs(plateau / end) * (1 + seed / 50)) for seed in range(5)]
        assert values(found, 1) == pytest.approx(size)
        assert control_values(found, 1) == pytest.approx(5 * [np.log10(start / end)])
        assert values(found, 2) == 5 * [1]

    def test_h3c_needs_every_snapshot_on_the_plateaus(self):
        curvature = {seed: curved((-0.2, -0.3, 1e-9), -1e-3, -1.0) for seed in range(2)}
        found = findings(network(), curved={seed: full_batch() for seed in range(2)}, curvature=curvature)["H3c"]
        assert values(found) == [0, 0]
        assert findings(network())["H3c"].why_not.startswith("no curvature was measured")


class TestReplay:
    """Columns: norm direction, norm scale, gates, attention, head, feed-forward."""

    def test_means_are_of_networks_not_of_spikes(self):
        gone = [
            network(gone=[(1, 0, 1, 0, 1, 0), (1, 0, 0, 1, 1, 0)]),
            network(gone=[(1, 0, 0, 0, 1, 1)]),
            network(gone=4 * [(1, 1, 0, 0, 1, 0)]),
            network(),
        ]
        found = findings(*gone)
        assert values(found["H4a"]) == [0.5, 1, 1]
        assert values(found["H4f"]) == [0, 0, 0]
        assert control_values(found["H4a"]) == control_values(found["H4f"]) == [-0.5, 0, 1]
        assert (found["H4a"].verdict, found["H4f"].verdict) == ("holds", "does not hold")
        assert "7 spikes of 3 networks; shares gone: norm direction 1.00, norm scale 0.57" in found["H4a"].note

    def test_not_specific_if_the_scale_removes_as_many(self):
        only_direction = 4 * [network(gone=[(1, 0, 0, 0, 1, 0)])]
        either = 4 * [network(gone=[(1, 1, 0, 0, 1, 0)])]
        assert findings(*only_direction)["H4a"].verdict == "holds"
        assert findings(*either)["H4a"].verdict == "not specific"
        assert findings(network())["H4a"].why_not == "no loss spike after the task was solved"


class TestMitigations:
    def test_every_seed_counts(self):
        base = [network(spikes=(200, 250)), network(spikes=(260,)), weak(solved=N), network(solved=N - 50)]
        calm = {seed: training() for seed in range(4)}
        found = findings(*base, mitigated={LARGER: calm})["H4b"]
        assert values(found) == pytest.approx([0.5, 0.25, 0, 0])  # per 100 of 400 epochs; one never solves the task
        assert values(found, 1) == [0, 0, 1, 0]
        assert values(found, 2) == pytest.approx([0, 0, (N - SOLVED) / N - 1 / N, 200 / N])
        assert "spikes after both have solved it 3 and 0, in 3 seeds; solved 0.75 and 1.00" in found.note
        assert findings(*base)["H4b"].why_not == "this mitigation was not run"

    def test_a_mitigation_that_keeps_networks_from_solving_does_not_hold(self):
        base = 3 * [network(spikes=(200, 250, 300))]
        never = findings(*base, mitigated={LARGER: {seed: training(solved=N) for seed in range(3)}})["H4b"]
        assert (values(never), values(never, 1), never.verdict) == ([0, 0, 0], [-1, -1, -1], "does not hold")
        late = findings(*base, mitigated={LARGER: {seed: training(solved=300) for seed in range(3)}})["H4b"]
        assert values(late) == [0, 0, 0]  # all of the base's spikes came before
        assert values(late, 2) == pytest.approx(3 * [-150 / N])

    def test_h4d_counts_from_where_the_rate_drops(self):
        base = [network(spikes=(170, 230, 260)), network(spikes=(170,))]
        late = {0: training(spikes=(190, 300)), 1: training(spikes=(210,))}
        found = findings(*base, mitigated={LATE: late})["H4d"]
        assert values(found) == pytest.approx([(2 - 1) / 2, (0 - 1) / 2])  # of the 200 epochs of the second half

    def test_one_seed_has_no_other_seed_as_a_control(self):
        found = findings(network(spikes=(200,)), mitigated={LARGER: {0: training()}})["H4b"]
        assert values(found) == [1 / 4]
        assert found.control is None

    def test_the_control_pairs_each_network_with_the_seed_before(self):
        base = [network(spikes=tuple(range(200, 200 + 20 * seed, 20))) for seed in range(5)]
        calm = {seed: training() for seed in range(5)}
        found = findings(*base, config=replace(CONFIG, seeds=tuple(range(5)), mitigations=5), mitigated={LARGER: calm})
        assert control_values(found["H4b"]) == pytest.approx([-4 / 4, 1 / 4, 1 / 4, 1 / 4, 1 / 4])
        assert values(found["H4b"]) == pytest.approx([seed / 4 for seed in range(5)])

    @pytest.mark.slow
    def test_holds_where_spikes_are_rarer_in_many_seeds(self):
        base = 100 * [network(spikes=(200, 250))]
        assert findings(*base, mitigated={LARGER: {s: training() for s in range(100)}})["H4b"].verdict == "holds"
        wild = {s: training(spikes=(200, 250, 300)) for s in range(100)}
        assert findings(*base, mitigated={LARGER: wild})["H4b"].verdict == "does not hold"


class TestCurriculum:
    def test_h5_is_of_shares_not_of_means(self):
        """Accuracies lie near chance or near 1: their mean is of no network."""
        after = [1.0, 0.99, 0.5, 0.97]
        runs = {
            i: curriculum(scratch, test)
            for i, (scratch, test) in enumerate(zip((0.25, 1.0, 0.4, 0.3), after, strict=True))
        }
        found = findings(network(), curriculum=runs)["H5"]
        assert [values(found, part) for part in range(3)] == [[1, 1, 0, 0], [0, 1, 0, 0], [1, 1, 1, 1]]
        assert [control_values(found, part) for part in range(3)] == [[0, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
        assert "2 and 1 of 4 networks; mean test accuracies 0.865 and 0.487" in found.note

    @pytest.mark.parametrize(
        ("after", "scratch", "train", "verdict"),
        [
            (1.0, 0.3, 1.0, "holds"),
            (0.9, 0.3, 1.0, "does not hold"),
            (1.0, 1.0, 1.0, "does not hold"),
            (1.0, 0.3, 0.9, "does not hold"),
        ],
    )
    def test_h5_wants_all_three(self, after, scratch, train, verdict):
        runs = {i: curriculum(scratch, after, train=train) for i in range(100)}
        assert findings(network(), curriculum=runs)["H5"].verdict == verdict

    def test_h5b_predicts_one_more_run(self):
        barriers = ((25, 10), (12, 20), (30, 22))
        runs = {i: curriculum(0.25, 1.0, plain, matched) for i, (plain, matched) in enumerate(barriers)}
        runs[2] = curriculum(0.25, 1.0, 30, 22, own=(0.5, 2.0))
        found = findings(network(), curriculum=runs)["H5b"]
        assert values(found) == [8, 10, 20]  # the lower barrier minus the higher one within a run
        assert control_values(found) == [1.5, 1.5, -1.5]  # from scratch minus after p = 2
        assert found.interval == pytest.approx(prediction_interval([8, 10, 20]))
        assert mean_interval([8, 10, 20])[0] > found.interval[0]
        assert "mean 22.3, seeds from 12.0 to 30.0" in found.note
        assert "(published: 25 to 28, within it)" in found.note
        low = findings(network(), curriculum={i: curriculum(0.25, 1.0, 10 + i) for i in range(3)})["H5b"]
        assert "(published: 25 to 28, not within it)" in low.note

    def test_h5b_of_one_run_predicts_none(self):
        note = findings(network(), curriculum={0: curriculum(0.25, 1.0, 26)})["H5b"].note
        assert "seeds from 26.0 to 26.0, published: 25 to 28; with" in note

    def test_h5b_verdicts(self):
        def of(matched, own):
            runs = {i: curriculum(0.25, 1.0, matched=matched + i, own=own) for i in range(4)}
            return findings(network(), curriculum=runs)["H5b"].verdict

        assert of(15, (0.5, 0.5)) == "holds"
        assert of(1, (30.0, 0.5)) == "does not hold"
        assert of(15, (2.0, 0.5)) == "not specific"
        assert findings(network())["H5b"].why_not == "the curriculum was not run"


class TestDonors:
    def test_h7_is_of_solved_networks_beyond_random_classes(self):
        solved = [network(follows=0.99, draws=(0.2, 0.4)), network(follows=0.97, draws=(0.5, 0.6), classes=9)]
        found = findings(*solved, weak(follows=0.3, classes=40))
        assert values(found["H7"]) == [0.99, 0.97]
        assert values(found["H7"], 1) == pytest.approx([0.69, 0.42])
        assert values(found["H7b"]) == [0.6, 0.6]
        assert control_values(found["H7"]) == [0.2, 0.5]  # the first draw
        assert control_values(found["H7"], 1) == pytest.approx([-0.1, -0.05])
        assert "clusters per network: 6 to 9; networks at 0.75 or below: 0.30 of predictions" in found["H7"].note
        assert findings(weak())["H7"].why_not == "no network is solved"

    def test_verdicts(self):
        def judged(**settings):
            return findings(*[network(**settings) for _ in range(100)])

        assert judged()["H7"].verdict == "holds"
        assert judged(follows=0.9)["H7"].verdict == "does not hold"
        assert judged(draws=(0.9, 0.9))["H7"].verdict == "does not hold"  # random classes carry it as well
        assert judged(draws=(1.0, 0.0, 0.0))["H7"].verdict == "not specific"
        assert judged(by_sum=1.0)["H7b"].verdict == "holds"
        assert findings(*37 * [network()])["H7"].verdict == "undecided"  # one in twenty may be otherwise


class TestStarts:
    def test_h8_is_a_share_that_the_base_setting_must_not_have(self):
        base = [network(accuracy=1.0 if i < 10 else 0.5) for i in range(50)]
        alone = {seed: training(solved=20) for seed in range(50)}
        found = findings(*base, second_stage=alone)["H8"]
        assert (found.verdict, found.control.parts[0].measured) == ("holds", 0.2)
        assert findings(*50 * [network()], second_stage=alone)["H8"].verdict == "not specific"
        some = {seed: training(solved=20 if seed < 25 else N) for seed in range(50)}
        assert findings(*base, second_stage=some)["H8"].verdict == "does not hold"


class TestAll:
    def test_headlines_and_pages(self):
        found = findings(network(), weak())
        of = {shown: [id for id, finding in found.items() if finding.shown == shown] for shown in ("headline", "page")}
        assert of == {
            "headline": ["H1e", "H4a", "H6"],
            "page": ["H1", "H2", "H5", "H5b", "H7"],
        }
        assert len(found) == 17
