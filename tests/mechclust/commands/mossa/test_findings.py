"""Findings of a real run: on curves like the published ones they hold, on those that contradict them they do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mechclust.commands.mossa.findings import findings_of
from mechclust.report.planted_curves import planted
from mechclust.report.published_mossa import COLEMAN_LIAU, DATA_SIZE, FLESCH_KINCAID
from mechclust.report.task_curves import TaskCurves

N_SEEN, N_HELD_OUT, LAYERS = 60, 20, 32
N = N_SEEN + N_HELD_OUT
LEARNT = np.ones(N, dtype=bool)
HELD = "C9", "C18", "C19"


@pytest.fixture(scope="module")
def published() -> TaskCurves:
    """Planted curves of many tasks, with a ceiling just above tuned and a null far below it."""
    none = np.zeros((N, LAYERS))
    covariates = dict.fromkeys((FLESCH_KINCAID, COLEMAN_LIAU, DATA_SIZE), np.zeros(N))
    like = TaskCurves(
        tuple(map(str, range(N))), tuple(map(str, range(LAYERS))), none, none, None, None, np.arange(N) >= N_SEEN,
        (None,) * N, {}, covariates,
    )  # fmt: skip
    found = planted(like, np.random.default_rng(7))
    return replace(found, ceiling=np.minimum(found.tuned + 0.02, 1), null=found.tuned - 0.2)


def extras(curves: TaskCurves) -> dict:
    """Everything else that can be measured, such that its findings hold."""
    draw = np.random.default_rng(0)
    gains = 0.1 + 0.5 * curves.gain + 0.02 * draw.random(N)
    return {
        "gains": gains,
        "learnt": LEARNT,
        "biased": {"base": curves.base + 0.01, "tuned": curves.tuned},
        "task_dims": {"base": 700 + 50 * draw.random((N, LAYERS)), "tuned": 900 + 50 * draw.random((N, LAYERS))},
        "purity": {"base": 0.3 * draw.random((N, LAYERS)), "tuned": 0.5 + 0.3 * draw.random((N, LAYERS))},
    }


def verdicts(curves: TaskCurves, **changes) -> dict[str, str]:
    given = {"n": 50_000, "d": 4096, "draws": 0, "resamples": 200, **extras(curves), **changes}
    return {c.id: c.verdict for c in findings_of(curves, **given)}


def test_hold_on_the_published_curves(published):
    found = verdicts(published)
    assert list(found) == [f"C{i}" for i in range(2, 21)]
    undecided = {id for id, verdict in found.items() if verdict != "holds"}
    # what the figures show by a hair: an early dip of .04, the second boundary, and that held-out tasks gain
    assert undecided <= {"C5", "C12", "C15", "C18"}
    assert "does not hold" not in {found[id] for id in undecided - {"C12"}}


def flipped(curves: TaskCurves) -> TaskCurves:
    return replace(curves, base=curves.tuned, tuned=curves.base)


def reversed_layers(curves: TaskCurves) -> TaskCurves:
    return replace(curves, base=curves.base[:, ::-1], tuned=curves.tuned[:, ::-1])


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        (flipped, {"C2", "C4", "C6", "C14", "C20"}),
        (reversed_layers, {"C2", "C3", "C4", "C6"}),
        (lambda c: replace(c, null=c.tuned + 0.1), {"C13"}),
        (lambda c: replace(c, ceiling=c.tuned + 2), {"C14"}),
        (lambda c: replace(c, covariates={k: -v for k, v in c.covariates.items()}), {"C16", "C17"}),
        (lambda c: replace(c, held_out=~c.held_out), {"C9", "C19"}),
    ],
    ids=["flipped", "reversed", "null", "ceiling", "covariates", "held out"],
)
def test_do_not_hold_where_the_opposite_is_true(published, change, broken):
    contrary = change(published)
    found = verdicts(contrary, gains=extras(published)["gains"])
    assert {id: found[id] for id in broken} == dict.fromkeys(broken, "does not hold")


@pytest.mark.parametrize(
    ("id", "extra"),
    [
        ("C7", {}),
        ("C8", {"task_dims": {"base": np.full((N, LAYERS), 9.0), "tuned": np.full((N, LAYERS), 8.0)}}),
        ("C10", {"biased": {"base": np.full((N, LAYERS), 3.0), "tuned": np.full((N, LAYERS), 3.0)}}),
        ("C11", {"purity": {"base": np.ones((N, LAYERS)), "tuned": np.zeros((N, LAYERS))}}),
    ],
)
def test_extras_that_say_the_opposite(published, id, extra):
    if id == "C7":
        extra = {"gains": -published.gain}
    assert verdicts(published, **extra)[id] == "does not hold"


class TestNotTested:
    def notes(self, curves, **changes):
        given = {"n": 50_000, "d": 4096, "draws": 0, "resamples": 200, **extras(curves), **changes}
        return {c.id: c.note for c in findings_of(curves, **given) if c.verdict == "not tested"}

    def test_no_held_out_task_was_learnt(self, published):
        why = "not tested: no held-out task learnt without its examples; expected at least 6, or there is no interval "
        assert self.notes(published, learnt=~published.held_out) == dict.fromkeys(HELD, why + "over tasks")
        found = self.notes(published, learnt=np.arange(N) < N_SEEN + 5)
        assert found == dict.fromkeys(HELD, (why + "over tasks").replace("no held-out task", "5 held-out tasks"))
        assert not self.notes(published, learnt=np.arange(N) < N_SEEN + 6)

    def test_held_out_tasks_that_were_not_learnt_are_in_no_finding(self, published):
        lower = replace(published, tuned=np.where(np.arange(N)[:, None] < N_SEEN + 10, published.tuned, -1.0))
        known = {c.id: c for c in findings_of(lower, n=1, d=1, learnt=np.arange(N) < N_SEEN + 10, draws=0, resamples=50)}
        part = published.select(np.arange(N) < N_SEEN + 10)
        alone = {c.id: c for c in findings_of(part, n=1, d=1, learnt=np.ones(N_SEEN + 10, bool), draws=0, resamples=50)}
        assert [known[id].measured for id in HELD] == [alone[id].measured for id in HELD]

    def test_nothing_is_held_out_or_one_task_is(self, published):
        end = "; expected at least 6, or there is no interval over tasks"
        for count, why in ((0, "no held-out task"), (1, "1 held-out task learnt without its examples")):
            found = self.notes(replace(published, held_out=np.arange(N) < count))
            assert found == dict.fromkeys(HELD, f"not tested: {why}{end}")

    def test_a_covariate_that_is_the_same_for_all(self, published):
        covariates = {**published.covariates, DATA_SIZE: np.full(N, 800.0)}
        found = self.notes(replace(published, covariates=covariates), gains=np.full(N, 0.5))
        assert found == {
            "C7": "not tested: the share of answers told apart is the same for all seen tasks (0.5)",
            "C17": f"not tested: the {DATA_SIZE} is the same for all seen tasks (800)",
        }

    def test_few_ceilings(self, published):
        few = np.where(np.arange(N)[:, None] < 3, published.ceiling, np.nan)
        why = (
            "not tested: 3 seen tasks with a second control (--ceilings); expected at least 6, or there is no interval "
        )
        assert self.notes(replace(published, ceiling=few)) == {"C14": f"{why}over tasks"}

    def test_what_was_not_measured(self, published):
        bare = replace(published, ceiling=None, null=None, covariates={})
        found = {
            c.id: c.note for c in findings_of(bare, n=50_000, d=4096, draws=0, resamples=200) if c.verdict == "not tested"
        }
        end = "; expected at least 6, or there is no interval over tasks"
        assert found == {
            "C7": f"not tested: no seen task of which the share of answers told apart is known{end}",
            "C8": "not tested: dimensions were not measured",
            "C9": (unlearnt := "not tested: answers were not measured, so nothing says that a held-out task was learnt "
            "without its examples"),
            "C10": "not tested: the biased form was not measured",
            "C11": "not tested: purity of clusters was not measured by task",
            "C13": "not tested: controls of other tasks were not measured",
            "C14": f"not tested: no seen task with a second control (--ceilings){end}",
            "C15": f"not tested: no seen task of which the {FLESCH_KINCAID} is known{end}",
            "C16": f"not tested: no seen task of which the {COLEMAN_LIAU} is known{end}",
            "C17": f"not tested: no seen task of which the {DATA_SIZE} is known{end}",
            "C18": unlearnt,
            "C19": unlearnt,
        }  # fmt: skip

    def test_few_prompts(self, published):
        found = self.notes(published, n=1000)
        assert found == {"C10": "not tested: 1,000 prompts for 4,096 dimensions; expected 10 per dimension"}

    def test_no_transition(self, published):
        assert self.notes(flipped(published))["C12"] == "not tested: there is no transition"

    def test_few_layers(self, published):
        shallow = replace(published, layers=("1", "2"), **{
            k: getattr(published, k)[:, -2:] for k in ("base", "tuned", "ceiling", "null")
        })  # fmt: skip
        found = {c.id: c.note for c in findings_of(shallow, n=1, d=1, learnt=LEARNT, draws=0, resamples=200)}
        why = "not tested: 2 layers; expected at least 8, or eighths of the depth mean little"
        assert {id for id, note in found.items() if note == why} == {"C2", "C3", "C5", "C6", "C9", "C12", "C20"}

    def test_few_tasks(self, published):
        found = self.notes(replace(published, held_out=np.arange(N) >= 2))
        assert {note for id, note in found.items() if id not in ("C8", "C11")} == {
            "not tested: 2 seen tasks; expected at least 6, or there is no interval over tasks"
        }

    def test_few_tasks_in_clusters(self, published):
        """The rows of tasks in no cluster are undefined, and neither count nor make an interval."""
        purity = {which: np.full((N, LAYERS), level) for which, level in (("base", 0.3), ("tuned", 0.4))}
        in_clusters = np.flatnonzero(~published.held_out)[:3]
        for values in purity.values():
            values[np.setdiff1d(np.arange(N), in_clusters)] = np.nan
        found = {c.id: c for c in findings_of(published, n=1, d=1, purity=purity, draws=0, resamples=200)}["C11"]
        assert found.verdict == "not tested"
        assert found.note == (
            "not tested: 3 seen tasks in a cluster; expected at least 6, or there is no interval over tasks"
        )


def test_c9_says_where_the_curves_cross(published):
    note = next(c.note for c in findings_of(published, n=1, d=1, learnt=LEARNT, draws=0, resamples=200) if c.id == "C9")
    assert "crossing at layer (held out against seen)" in note
    assert note.endswith("the paper's 13 and 9 are of 32 layers")


@pytest.fixture(scope="module")
def counted(published):
    """With severity, on fewer tasks and layers."""
    keep = np.arange(N) % 4 == 0
    few = replace(published.select(keep), layers=tuple("12345678"), **{
        k: getattr(published, k)[keep][:, 3::4] for k in ("base", "tuned", "ceiling", "null")
    })  # fmt: skip
    return findings_of(few, n=1, d=1, gains=few.gain, learnt=LEARNT[keep])


def test_severity_is_counted_for_all_that_is_tested(counted):
    for c in counted:
        tested = c.kind == "finding" and c.verdict != "not tested"
        assert (c.severity is not None) == tested, c.id
        assert c.severity_draws == 0 if not tested else 100 <= c.severity_draws <= 200
        assert c.kind == "check" or c.severity_note


def test_draws_without_a_transition_cannot_test_where_it_is(counted):
    (found,) = (c for c in counted if c.id == "C12")
    assert found.severity_draws < 200
    assert f"; {200 - found.severity_draws} of 200 draws could not be tested" in found.severity_note


def test_findings_can_fail(counted):
    """Null data are called true in few draws, unless the table says so."""
    severity = {c.id: c.severity for c in counted if c.severity is not None}
    assert {"C3", "C4", "C5", "C6", "C13", "C14"} <= severity.keys()
    for id in ("C3", "C4", "C5", "C6", "C13", "C14", "C12", "C20"):
        assert severity[id] >= 0.9, id
    assert all(c.weak == (c.severity < 0.95) for c in counted if c.severity is not None)


def test_power_is_counted_where_the_published_curves_say_what_is_true(counted):
    power = {c.id: c.power for c in counted if c.verdict != "not tested"}
    assert power["C4"] > 0.3
    assert power["C13"] is None


def test_the_way_to_the_ceiling_has_an_interval_where_few_tasks_have_one(published):
    """6 of the tasks: some draws of all of them have none with a ceiling."""
    known = np.zeros(len(published.tasks), dtype=bool)
    known[np.flatnonzero(~published.held_out)[::10][:6]] = True
    few = replace(published, ceiling=np.where(known[:, None], published.tuned + 0.01, np.nan))
    (found,) = (c for c in findings_of(few, n=50_000, d=4096, draws=0) if c.id == "C14")
    assert found.interval is not None
    assert found.interval[0] <= found.measured <= found.interval[1]
    assert "no interval" not in found.note
