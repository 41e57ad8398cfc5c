"""The findings of the study, with bounds written before the confirmatory seeds were run.

Each is the same function of arrays ``[seed]``, applied to the measured data and to draws in which it is false or true.
``Heads.called`` defines "called"; the control of a task is a label that is unrelated to its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from mechclust.report.findings import Finding, EarlierRun, finding
from mechclust.report.draws import Data, Draw, coins, exchanged, moved_to, one_false, random_signs, replaced
from mechclust.report.findings import Finding, Parts
from mechclust.evidence.bounds import Bound, Verdict
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
    clustered_by_attention,
    prompt_subject,
)
from mechclust.studies.heads_in_models.discovery import largest, others
from mechclust.studies.heads_in_models.prompts import ORDERS
from mechclust.studies.heads_in_models.results import key
from mechclust.studies.heads_in_models.together import IRRELEVANT, RANDOM_HEADS, RELEVANT

_Values = Callable[[Data], np.ndarray]
_HALF, _FEW = Bound(">", 0.5), Bound("<", 0.3)
_ATTENTION = "each sum is one multiset of digits, which a head maps to a point by attention alone, trained or not"
_NO_MODEL = "needs a pretrained model; give its name or folder with --model"


def findings_of(config: HeadsInModelsConfig, data: Data) -> list[Finding]:
    """A1 to A7, W1 to W10, I1 to I6, and the checks K1 and K2."""
    called = [p for p in config.moduli if not clustered_by_attention(config, addition_arm(p), "sum")]
    measured = [*_addition(config), *_instructions(config)]
    measured += [*(_called(config, called) if called else []), *(_prompts(config) if config.model is not None else [])]
    found = [finding.judged(data, tested=config.test_findings, history=_history(finding.id)) for finding in measured]
    if not called:
        found += [finding.lacking(_ATTENTION, _history(finding.id)) for finding in _called(config, config.moduli)]
    if config.model is None:
        found += [finding.lacking(_NO_MODEL) for finding in _prompts(config)]
    return [*sorted(found, key=lambda c: ("AWI".index(c.id[0]), int(c.id[1:]))), *_checks(config, data)]


def _history(id: str) -> Sequence[EarlierRun]:
    if id[0] == "W":
        return ()
    verdict: Verdict = "undecided" if id in ("A3", "A4", "I6") else "holds"
    fresh = "30 fresh seeds, because A3, A4 and I6 were undecided; the bounds are the same"
    return (EarlierRun("2026-11-25, seeds 100 to 109", 10, verdict, fresh),)


def _checks(config: HeadsInModelsConfig, data: Data) -> list[Finding]:
    judged = partial(finding, kind="check", tested=config.test_findings)
    return [
        judged("K1", "a clustering head set by hand at a layer and head drawn per seed is called, and no other (1: so)",
               "construction", data[key(PLANTED, READ, "exact")].tolist(), Bound(">=", 1)),
        judged("K2", "if nothing reads that head, none is called (1: one is)", "construction",
               data[key(PLANTED, UNREAD, "any")].tolist(), Bound("<=", 0)),
    ]  # fmt: skip


def _of(arm: str, subject: str, measure: str) -> _Values:
    return lambda data: data[key(arm, subject, measure)]


def _less(a: _Values, b: _Values) -> _Values:
    return lambda data: a(data) - b(data)


def _ours(
    id: str,
    statement: str,
    parts: Sequence[tuple[str, _Values, Bound]],
    null: Draw,
    what: str,
    planted: Draw | None = None,
    planted_what: str = "",
    *,
    shares: bool = False,
    chance: str | None = None,
    note: str = "",
) -> Finding[Data]:
    """One of our findings, with the name, the value per seed and the bound of each part."""

    def parts_of(data: Data) -> Parts:
        return [(name, of(data).tolist(), bound) for name, of, bound in parts]

    return Finding(
        id, statement, "ours", parts_of, null, what, planted, planted_what, shares=shares, chance=chance, note=note
    )


def _share(id: str, statement: str, parts: Mapping[str, str], bound: Bound, note: str = "") -> Finding[Data]:
    """A finding about shares, each with a name and the key of its values; its null is that one lies at the bound."""
    planted = coins(*parts.values(), chance=(true := 0.98 if bound.relation == ">" else 0.02))
    one = f"in one of the {len(parts)} settings, drawn at random, " if len(parts) > 1 else ""
    others = f", in the others with {true:g}" if len(parts) > 1 else ""
    return _ours(
        id,
        statement,
        [(name, lambda data, of=of: data[of], bound) for name, of in parts.items()],  # type: ignore[misc]
        one_false(planted, {of: coins(of, chance=bound.value) for of in parts.values()}),
        f"{one}every network has one with probability {bound.value:g}{others}",
        planted,
        f"with probability {true:g}",
        shares=True,
        note=note,
    )


def _addition(config: HeadsInModelsConfig) -> list[Finding[Data]]:
    """A1 and A7, which hold for every modulus."""
    names = {addition_arm(p): f"p = {p}" for p in config.moduli}

    def parts(values: Callable[[str], _Values], bound: Bound) -> list[tuple[str, _Values, Bound]]:
        return [(name, values(arm), bound) for arm, name in names.items()]

    def pairs(one: tuple[str, str], other: tuple[str, str]) -> dict[str, str]:
        return {key(arm, *one): key(arm, *other) for arm in names}

    agree, control = "agreement answer", f"agreement {OFF}"
    return [
        _ours("A1", "transformers of two layers learn to add (accuracy on the examples measured)",
              parts(lambda arm: _of(arm, TRAINED, "accuracy"), Bound(">=", config.solved)),
              replaced(**pairs((TRAINED, "accuracy"), (UNTRAINED, "accuracy"))), "the accuracy of untrained networks",
              shares=True, chance="1 / p"),
        _ours("A7", "the equivalence discovered at a head follows the answer (largest agreement over heads, minus that "
              f"with the sum {OFF}; adjusted Rand index)",
              parts(lambda arm: _less(_of(arm, TRAINED, agree), _of(arm, TRAINED, control)), Bound(">", 0)),
              exchanged(*pairs((TRAINED, agree), (TRAINED, control)).items()),
              "the two labels exchanged at random, seed by seed",
              chance="0"),
    ]  # fmt: skip


def _called(config: HeadsInModelsConfig, moduli: Sequence[int]) -> list[Finding[Data]]:
    """A2 to A6, on the heads called in networks that add modulo one of these."""
    names = {addition_arm(p): f"p = {p}" for p in moduli}
    refused = [p for p in config.moduli if p not in moduli]
    note = f"p = {', '.join(map(str, refused))} is not tested: {_ATTENTION}" if refused else ""

    def keys(subject: str, measure: str) -> list[str]:
        return [key(arm, subject, measure) for arm in names]

    def share(id: str, statement: str, subject: str, measure: str, bound: Bound) -> Finding[Data]:
        return _share(id, statement, dict(zip(names.values(), keys(subject, measure), strict=True)), bound, note)

    numbers = keys(TRAINED, "called in last layer")
    several = moved_to(**dict.fromkeys(numbers, 2.5))
    return [
        share("A2", "a head of the last layer is called a clustering head of the sum (share of networks)", TRAINED,
              "last layer", _HALF),
        share("A3", "there is not one per layer: in fewer than half of the networks, one of the first layer is called "
              "(share)", TRAINED, "first layer", Bound("<", 0.5)),
        share("A4", "in untrained networks, none is called (share with one)", UNTRAINED, "any", _FEW),
        share("A5", f"in trained networks, none is called for the sum of equally many digits {OFF} (share with one)",
              TRAINED, "any control", _FEW),
        _ours("A6", "several heads of the last layer are called (number)",
              [(name, _of(arm, TRAINED, "called in last layer"), Bound(">", 1)) for arm, name in names.items()],
              one_false(several, {name: moved_to(**{name: 1 - 1e-9}) for name in numbers}),
              "the measured spread about 1 for one p, drawn at random, and about 2.5 for the others",
              several, "the measured spread about 2.5", note=note),
    ]  # fmt: skip


def _prompts(config: HeadsInModelsConfig) -> list[Finding[Data]]:
    accuracy = _paired(_keys(PRETRAINED, "accuracy"), _keys(RANDOM, "accuracy"))
    carried = _paired(_keys(PRETRAINED, f"carried, {RELEVANT}"), _keys(PRETRAINED, f"carried, {RANDOM_HEADS}"))
    changed = _paired(_keys(PRETRAINED, f"changed, {IRRELEVANT}"), _keys(PRETRAINED, f"changed, {RELEVANT}"))
    switching, twin_switching = (key(PROMPTS, kind, "switching") for kind in (PRETRAINED, RANDOM))
    common = key(PROMPTS, PRETRAINED, "common")

    def random_heads(data: Data, rng: np.random.Generator) -> Data:
        n = data[key(PROMPTS, prompt_subject(PRETRAINED, ORDERS[0]), "heads")].astype(int)
        drawn = rng.hypergeometric(np.minimum(config.n_tested, n), n - np.minimum(config.n_tested, n), config.n_tested)
        return {**data, common: drawn / config.n_tested}

    def spared(data: Data, rng: np.random.Generator) -> Data:
        n = config.n_words**2  # prompts
        return {**data, **{name: rng.binomial(n, 0.02, len(data[name])) / n for name in changed}}

    return [
        _ours("W1", "the pretrained model answers with the thing of the person named last (accuracy)",
              _ends(accuracy, Bound(">=", 0.8)), replaced(**accuracy),
              "the accuracy of random weights", shares=True, chance=f"1 / {config.n_words} among the words of a kind"),
        _ours("W2", "some heads follow what is asked: at both endings, their outputs are alike for prompts that differ "
              "in the other person's thing, but not for those that differ in the thing asked for (number of heads)",
              [("", lambda data: data[switching], Bound(">=", 1))], replaced(**{switching: twin_switching}),
              "the heads of random weights", moved_to(**{switching: 5}), "the measured spread about 5",
              note="each person's thing is asked for at one ending and irrelevant at the other"),
        _ours("W3", "with random weights there are fewer such heads (pretrained - random)",
              [("", lambda data: data[switching] - data[twin_switching], Bound(">", 0))],
              exchanged((switching, twin_switching)), "the two models exchanged at random, seed by seed", chance="0"),
        _ours("W4", "interchanged together, these heads carry the thing asked for (share of answers that become the "
              "donor's, minus that with as many other heads of the same or the nearest blocks)",
              _ends(carried, Bound(">", 0), carried),
              exchanged(*carried.items()), "the two sets of heads exchanged at random, seed by seed",
              moved_to(**dict.fromkeys(carried, 0.6)), "the measured spread about .6", chance="0"),
        _ours("W5", f"the same heads serve both endings: a quarter or more of the {config.n_tested} with the largest "
              "effect are the same (share)", [("", lambda data: data[common], Bound(">=", 0.25))], random_heads,
              "as many random heads of the model", shares=True,
              chance="the number of heads over all heads of the model"),
        _ours("W6", "the other person's thing does not matter to these heads (share of answers that change if donors "
              "differ only in it)", _ends(changed, Bound("<=", 0.1)),
              one_false(spared, {name: replaced(**{name: by}) for name, by in changed.items()}),
              "donors that differ in the thing asked for, at one ending, drawn at random",
              spared, "one answer in fifty changes", shares=True),
        *_discovered(config),
    ]  # fmt: skip


def _keys(kind: str, measure: str) -> list[str]:
    """A measure at both endings."""
    return [key(PROMPTS, prompt_subject(kind, order), measure) for order in ORDERS]


def _paired(keys: Sequence[str], others: Sequence[str]) -> dict[str, str]:
    return dict(zip(keys, others, strict=True))


def _ends(keys: Iterable[str], bound: Bound, less: Mapping[str, str] | None = None) -> list[tuple[str, _Values, Bound]]:
    """One part per ending of the prompts: a measure, or its difference from the one it is paired with in ``less``."""

    def values(name: str) -> _Values:
        return lambda data: data[name] - data[less[name]] if less is not None else data[name]

    return [(f"{order} name last", values(name), bound) for order, name in zip(ORDERS, keys, strict=True)]


def _discovered(config: HeadsInModelsConfig) -> list[Finding[Data]]:
    """What the largest set of heads has in common without labels."""
    n = config.together[-1]
    asked = f"agreement asked, {largest(n)}"
    real, compact = _keys(PRETRAINED, asked), _keys(PRETRAINED, f"compactness, {largest(n)}")
    of_others = _paired(real, _keys(PRETRAINED, f"agreement asked, {others(n)}"))
    of_random = _paired(real, _keys(RANDOM, asked))
    there, clusters = moved_to(**dict.fromkeys(real, 0.8)), moved_to(**dict.fromkeys(compact, -0.1))
    about = "the pretrained model's index about .8 in the measured spread"
    return [
        _ours("W7", f"if the {n} heads with the largest effect are interchanged together, the classes that are "
              "discovered without labels are those of the thing asked for (adjusted Rand index)",
              _ends(real, Bound(">=", 0.5)),
              one_false(there, {name: moved_to(**{name: 0.5 - 1e-9}) for name in real}),
              "the measured spread about .5 at one ending, drawn at random, and about .8 at the other",
              there, about, chance="0"),
        _ours("W8", "the classes discovered by interchanging as many other heads of the same or the nearest blocks "
              f"agree less with the thing asked for (adjusted Rand index: {n} largest - others)",
              _ends(real, Bound(">", 0), of_others), exchanged(*of_others.items()),
              "the two sets of heads exchanged at random, seed by seed", there, about, chance="0",
              note="others that change no answer have a single class, and an index of 0"),
        _ours("W9", f"with random weights, the classes of the {n} heads with the largest effect agree less with the "
              "thing asked for (adjusted Rand index: pretrained - random)",
              _ends(real, Bound(">", 0), of_random), exchanged(*of_random.items()),
              "the two models exchanged at random, seed by seed", there, about, chance="0"),
        _ours("W10", f"within the discovered classes, the outputs of the {n} heads are more compact than a Gaussian "
              "cloud put in their place (within-ratio: outputs - cloud)",
              _ends(compact, Bound("<", 0)),
              one_false(clusters, {name: random_signs(name) for name in compact}),
              "signs drawn at random, seed by seed, at one ending, drawn at random", clusters,
              "the measured spread about -.1", chance="0"),
    ]  # fmt: skip


def _instructions(config: HeadsInModelsConfig) -> list[Finding[Data]]:
    ratio, twin = (key(INSTRUCTIONS, subject, "best ratio") for subject in (TRAINED, UNTRAINED))
    there, elsewhere = (key(INSTRUCTIONS, TRAINED, f"growth {where}") for where in ("where called", "elsewhere"))

    def one(subject: str, measure: str, bound: Bound) -> list[tuple[str, _Values, Bound]]:
        return [("", _of(INSTRUCTIONS, subject, measure), bound)]

    def share(id: str, statement: str, subject: str, measure: str, bound: Bound) -> Finding[Data]:
        return _share(id, statement, {"": key(INSTRUCTIONS, subject, measure)}, bound)

    accuracy = {key(INSTRUCTIONS, TRAINED, "accuracy"): key(INSTRUCTIONS, UNTRAINED, "accuracy")}
    return [
        _ours("I1", "networks follow instructions that they have not seen (accuracy)",
              one(TRAINED, "accuracy", Bound(">=", config.solved)), replaced(**accuracy),
              "the accuracy of untrained networks", shares=True, chance="the commonest output's share"),
        share("I2", "a head's output is similar for all instructions of a task: one is called for the task (share of "
              "networks)", TRAINED, "any", _HALF),
        share("I3", "in untrained networks, none is called for the task (share with one)", UNTRAINED, "any", _FEW),
        _ours("I4", "the head with the most similar outputs within tasks has a lower within-ratio than in the "
              "untrained network, which sees the same symbols (within-ratio over chance, trained - untrained)",
              [("", lambda data: data[ratio] - data[twin], Bound("<", -0.1))], exchanged((ratio, twin)),
              "the two networks exchanged at random, seed by seed", moved_to(**{ratio: 0.2}),
              "the measured spread about .2", chance="0"),
        _ours("I5", "task clusters of the residual stream grow most in the block with most heads called (rise of "
              "the task-ARI there, minus the mean rise in other blocks)",
              [("", lambda data: data[there] - data[elsewhere], Bound(">", 0))], exchanged((there, elsewhere)),
              "the block drawn at random", moved_to(**{there: 0.6}), "the measured spread about .6", chance="0"),
        share("I6", "none is called for the input, which is not what is interchanged (share with one)", TRAINED,
              "any control", _FEW),
    ]  # fmt: skip
