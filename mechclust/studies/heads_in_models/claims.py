"""The claims of the study, with bounds written before the confirmatory seeds were run.

Each is the same function of arrays ``[seed]`` on the measured data and on draws in which it is false, or true. What
"called" means is in ``Heads.called``; the control of a task is a label that has nothing to do with its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from mechclust.report.claims import Claim, claim
from mechclust.report.severity import severity_of
from mechclust.report.verdicts import Bound
from mechclust.studies.heads_in_models.config import (
    INSTRUCTIONS,
    OFF,
    PLANTED,
    PRETRAINED,
    PROMPTS,
    RANDOM,
    READ,
    TRAINED,
    UNREAD,
    UNTRAINED,
    HeadsInModelsConfig,
    addition_arm,
    prompt_subject,
)
from mechclust.studies.heads_in_models.nulls import Data, Draw, coins, exchanged, moved_to, replaced
from mechclust.studies.heads_in_models.prompts import ORDERS
from mechclust.studies.heads_in_models.results import key
from mechclust.studies.heads_in_models.together import IRRELEVANT, RANDOM_HEADS, RELEVANT

_Values = Callable[[Data], np.ndarray]
_HALF, _FEW = Bound(">", 0.5), Bound("<", 0.3)


@dataclass(frozen=True)
class _Test:
    """One claim.

    Attributes:
        parts: name, value per seed, bound of each.
        null: to data in which it is false.
        what: what these draws are.
        planted: to data in which it is true.
        how: what those draws are.
        shares: values are 0 or 1.
    """

    id: str
    statement: str
    parts: Sequence[tuple[str, _Values, Bound]]
    null: Draw
    what: str
    planted: Draw | None = None
    how: str = ""
    shares: bool = False
    chance: str | None = None
    note: str = ""

    def claimed(self, data: Data, **more: object) -> Claim:
        """The claim on some data."""
        parts = [(name, of(data).tolist(), bound) for name, of, bound in self.parts]
        bounds = parts if len(parts) > 1 else parts[0][2]
        return claim(
            self.id,
            self.statement,
            "ours",
            parts[0][1],
            bounds,
            shares=self.shares,
            chance=self.chance,
            note=self.note,
            **more,  # type: ignore[arg-type]
        )

    def judged(self, data: Data) -> Claim:
        """The same with severity and power."""
        planted = self.planted
        severity = severity_of(
            lambda rng: self.claimed(self.null(data, rng)).verdict,
            self.what + (f"; power: {self.how}" if planted is not None else ""),
            planted=None if planted is None else lambda rng: self.claimed(planted(data, rng)).verdict,
        )
        return self.claimed(data, severity=severity)

    def lacking(self) -> Claim:
        """The claim where its part of the study was not run."""
        found = claim(self.id, self.statement, "ours", [], Bound(">", 0), chance=self.chance, why_not=_NO_MODEL)
        return replace(found, bound="-")


_NO_MODEL = "needs a pretrained model; give its name or folder with --model"


def claims_of(config: HeadsInModelsConfig, data: Data) -> list[Claim]:
    """A1 to A7, W1 to W6, I1 to I6, and the checks K1 and K2."""
    tests = [*_addition(config), *_instructions(config)]
    found = [test.judged(data) if config.test_claims else test.claimed(data, tested=False) for test in tests]
    for test in _prompts(config):
        if config.model is None:
            found.append(test.lacking())
        else:
            found.append(test.judged(data) if config.test_claims else test.claimed(data, tested=False))
    return [*sorted(found, key=lambda c: ("AWI".index(c.id[0]), c.id)), *_checks(config, data)]


def _checks(config: HeadsInModelsConfig, data: Data) -> list[Claim]:
    judged = partial(claim, kind="check", tested=config.test_claims)
    return [
        judged("K1", "a clustering head set by hand at a layer and head drawn per seed is called, and no other (1: so)",
               "construction", data[key(PLANTED, READ, "exact")].tolist(), Bound(">=", 1)),
        judged("K2", "where nothing reads that head, none is called (1: one is)", "construction",
               data[key(PLANTED, UNREAD, "any")].tolist(), Bound("<=", 0)),
    ]  # fmt: skip


def _of(arm: str, subject: str, measure: str) -> _Values:
    return lambda data: data[key(arm, subject, measure)]


def _less(a: _Values, b: _Values) -> _Values:
    return lambda data: a(data) - b(data)


def _share(id: str, statement: str, parts: Mapping[str, str], bound: Bound) -> _Test:
    """A claim about shares, each with a name and the key of its values; its null is that they lie at the bound."""
    true = 0.98 if bound.relation == ">" else 0.02
    return _Test(
        id,
        statement,
        [(name, lambda data, of=of: data[of], bound) for name, of in parts.items()],  # type: ignore[misc]
        coins(bound.value, *parts.values()),
        f"every network has one with probability {bound.value:g}",
        coins(true, *parts.values()),
        f"with probability {true:g}",
        shares=True,
    )


def _addition(config: HeadsInModelsConfig) -> list[_Test]:
    names = {addition_arm(p): f"p = {p}" for p in config.moduli}

    def parts(values: Callable[[str], _Values], bound: Bound) -> list[tuple[str, _Values, Bound]]:
        return [(name, values(arm), bound) for arm, name in names.items()]

    def keys(subject: str, measure: str) -> list[str]:
        return [key(arm, subject, measure) for arm in names]

    def pairs(one: tuple[str, str], other: tuple[str, str]) -> dict[str, str]:
        return dict(zip(keys(*one), keys(*other), strict=True))

    def share(id: str, statement: str, subject: str, measure: str, bound: Bound) -> _Test:
        return _share(id, statement, dict(zip(names.values(), keys(subject, measure), strict=True)), bound)

    agree, control = "agreement answer", f"agreement {OFF}"
    return [
        _Test("A1", "transformers of two layers learn to add (accuracy on the examples measured)",
              parts(lambda arm: _of(arm, TRAINED, "accuracy"), Bound(">=", config.solved)),
              replaced(pairs((TRAINED, "accuracy"), (UNTRAINED, "accuracy"))), "the accuracy of untrained networks",
              chance="1 / p"),
        share("A2", "a head of the last layer is called a clustering head of the sum (share of networks)", TRAINED,
              "last layer", _HALF),
        share("A3", "there is not one per layer: in fewer than half of the networks one of the first layer is called "
              "(share)", TRAINED, "first layer", Bound("<", 0.5)),
        share("A4", "in untrained networks none is called (share with one)", UNTRAINED, "any", _FEW),
        share("A5", f"in trained networks none is called for the sum of as many digits {OFF} (share with one)",
              TRAINED, "any control", _FEW),
        _Test("A6", "several heads of the last layer share the work (number called)",
              parts(lambda arm: _of(arm, TRAINED, "called in last layer"), Bound(">", 1)),
              moved_to(1 - 1e-9, *keys(TRAINED, "called in last layer")), "the measured spread about 1",
              moved_to(2.5, *keys(TRAINED, "called in last layer")), "the measured spread about 2.5"),
        _Test("A7", "the equivalence discovered at a head follows the answer (largest agreement over heads, minus that "
              f"with the sum {OFF}; adjusted Rand index)",
              parts(lambda arm: _less(_of(arm, TRAINED, agree), _of(arm, TRAINED, control)), Bound(">", 0)),
              exchanged(pairs((TRAINED, agree), (TRAINED, control))), "both labels exchanged at random, seed by seed",
              chance="0"),
    ]  # fmt: skip


def _prompts(config: HeadsInModelsConfig) -> list[_Test]:
    subjects = {order: prompt_subject(PRETRAINED, order) for order in ORDERS}
    twins = {order: prompt_subject(RANDOM, order) for order in ORDERS}
    ends = [f"{order} name last" for order in ORDERS]

    def named(values: Callable[[str], _Values], bound: Bound) -> list[tuple[str, _Values, Bound]]:
        return [(name, values(subject), bound) for name, subject in zip(ends, subjects.values(), strict=True)]

    def keys(measure: str) -> list[str]:
        return [key(PROMPTS, subject, measure) for subject in subjects.values()]

    carried = dict(zip(keys(f"carried, {RELEVANT}"), keys(f"carried, {RANDOM_HEADS}"), strict=True))
    changed = dict(zip(keys(f"changed, {IRRELEVANT}"), keys(f"changed, {RELEVANT}"), strict=True))
    switching, twin_switching = (key(PROMPTS, kind, "switching") for kind in (PRETRAINED, RANDOM))
    common = key(PROMPTS, PRETRAINED, "common")

    def random_heads(data: Data, rng: np.random.Generator) -> Data:
        n = data[key(PROMPTS, subjects[ORDERS[0]], "heads")].astype(int)
        drawn = rng.hypergeometric(np.minimum(config.n_tested, n), n - np.minimum(config.n_tested, n), config.n_tested)
        return {**data, common: drawn / config.n_tested}

    return [
        _Test("W1", "the pretrained model answers with the thing of the person named last (accuracy)",
              named(lambda subject: _of(PROMPTS, subject, "accuracy"), Bound(">=", 0.8)),
              replaced({key(PROMPTS, subjects[o], "accuracy"): key(PROMPTS, twins[o], "accuracy") for o in ORDERS}),
              "the accuracy of random weights", chance=f"1 / {config.n_words} among the words of a kind"),
        _Test("W2", "some heads follow what is asked: at both ends their output is alike for prompts that differ in "
              "the other person's thing, and not for those that differ in the thing asked for (number of heads)",
              [("", lambda data: data[switching], Bound(">=", 1))], replaced({switching: twin_switching}),
              "the heads of random weights", moved_to(5, switching), "the measured spread about 5",
              note="either person's thing is the one asked for at one end and irrelevant at the other"),
        _Test("W3", "with random weights there are fewer (pretrained - random)",
              [("", lambda data: data[switching] - data[twin_switching], Bound(">", 0))],
              exchanged({switching: twin_switching}), "both models exchanged at random, seed by seed", chance="0"),
        _Test("W4", "interchanged together, these heads carry the thing asked for (share of answers that become the "
              "donor's, minus that with as many other heads of the same blocks)",
              named(lambda subject: _less(_of(PROMPTS, subject, f"carried, {RELEVANT}"),
                                          _of(PROMPTS, subject, f"carried, {RANDOM_HEADS}")), Bound(">", 0)),
              exchanged(carried), "both sets of heads exchanged at random, seed by seed",
              moved_to(0.6, *carried), "the measured spread about .6", chance="0"),
        _Test("W5", f"the same heads serve both ends: a quarter or more of the {config.n_tested} with the largest "
              "effect are the same (share)", [("", lambda data: data[common], Bound(">=", 0.25))], random_heads,
              "as many random heads of the model", chance="the number of heads over all heads of the model"),
        _Test("W6", "to these heads the other person's thing does not matter (share of answers that change when donors "
              "differ in it alone)", named(lambda subject: _of(PROMPTS, subject, f"changed, {IRRELEVANT}"),
              Bound("<=", 0.1)), replaced(changed), "donors that differ in the thing asked for",
              moved_to(0.02, *changed), "the measured spread about .02"),
    ]  # fmt: skip


def _instructions(config: HeadsInModelsConfig) -> list[_Test]:
    ratio, twin = (key(INSTRUCTIONS, subject, "best ratio") for subject in (TRAINED, UNTRAINED))
    there, elsewhere = (key(INSTRUCTIONS, TRAINED, f"growth {where}") for where in ("where called", "elsewhere"))

    def one(subject: str, measure: str, bound: Bound) -> list[tuple[str, _Values, Bound]]:
        return [("", _of(INSTRUCTIONS, subject, measure), bound)]

    def share(id: str, statement: str, subject: str, measure: str, bound: Bound) -> _Test:
        return _share(id, statement, {"": key(INSTRUCTIONS, subject, measure)}, bound)

    accuracy = {key(INSTRUCTIONS, TRAINED, "accuracy"): key(INSTRUCTIONS, UNTRAINED, "accuracy")}
    return [
        _Test("I1", "networks follow instructions that they have not seen (accuracy)",
              one(TRAINED, "accuracy", Bound(">=", config.solved)), replaced(accuracy),
              "the accuracy of untrained networks", chance="the commonest output's share"),
        share("I2", "a head's output is the same for all instructions of a task: one is called for the task (share of "
              "networks)", TRAINED, "any", _HALF),
        share("I3", "in untrained networks none is called for the task (share with one)", UNTRAINED, "any", _FEW),
        _Test("I4", "the head that is most alike within tasks is more so than in the untrained network, which sees the "
              "same symbols (within-ratio over chance, trained - untrained)",
              [("", lambda data: data[ratio] - data[twin], Bound("<", -0.1))], exchanged({ratio: twin}),
              "both networks exchanged at random, seed by seed", moved_to(0.2, ratio), "the measured spread about .2",
              chance="0"),
        _Test("I5", "task clusters of the residual stream grow most in the block with most heads called (rise of "
              "the task-ARI there, minus the mean rise in other blocks)",
              [("", lambda data: data[there] - data[elsewhere], Bound(">", 0))], exchanged({there: elsewhere}),
              "the block drawn at random", moved_to(0.6, there), "the measured spread about .6", chance="0"),
        share("I6", "none is called for the input, which is not what is interchanged (share with one)", TRAINED,
              "any control", _FEW),
    ]  # fmt: skip
