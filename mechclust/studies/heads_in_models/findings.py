"""The findings of the study with their controls, and the checks K1 and K2.

Bounds were written before the confirmatory seeds were run. ``Heads.called`` defines which heads are called.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Control, EarlierRun, Finding, Part, Verdict, check_part, mean_part, share_part
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
from mechclust.studies.heads_in_models.results import Data, key, rise_where_called
from mechclust.studies.heads_in_models.together import IRRELEVANT, RANDOM_HEADS, RELEVANT

_TOO_SMALL = "this size of the study cannot test it"
_NO_MODEL = "needs a pretrained model; give its name or folder with --model"
_ATTENTION = "each sum is one multiset of digits, which a head maps to a point by attention alone, trained or not"
_MOST = Bound(">", 0.5)
_FEW = Bound("<", 0.3)
_POSITIVE = Bound(">", 0)
_UNTRAINED = "untrained networks"
_RANDOM_WEIGHTS = "random weights"
_UNDECIDED_BEFORE = ("A3", "I6")

_ours = partial(Finding, source="ours")

ValuesByName = Mapping[str, Float[np.ndarray, "seed"]]  # by the name of a part


def findings_of(config: HeadsInModelsConfig, data: Data) -> list[Finding]:
    """Return A1 to A7, W1 to W10, I1 to I6 and the checks K1 and K2, without those that became controls of others.

    A4 and A5 are the control of A2; W8 and W9 are that of W7.
    """
    findings = [
        *_addition(config, data),
        *_called_for_sum(config, data),
        *_prompts(config, data),
        *_instructions(config, data),
        *_checks(data),
    ]
    if not config.test_findings:
        findings = [replace(finding, not_tested=finding.not_tested or _TOO_SMALL) for finding in findings]
    findings = [replace(finding, history=_history(finding.id)) for finding in findings]
    return sorted(findings, key=lambda finding: ("AWIK".index(finding.id[0]), int(finding.id[1:])))


def _history(id: str) -> tuple[EarlierRun, ...]:
    if id[0] in "WK":
        return ()
    fresh = "30 fresh seeds, because A3, A4 and I6 were undecided; the bounds are the same"
    verdict: Verdict = "undecided" if id in _UNDECIDED_BEFORE else "holds"
    return (EarlierRun("2026-11-25, seeds 100 to 109", 10, verdict, fresh),)


# ---- networks that add ----


def _addition(config: HeadsInModelsConfig, data: Data) -> list[Finding]:
    """Return A1 and A7, which are tested for every modulus."""
    learnt = Bound(">=", config.solved)
    return [
        _ours(
            id="A1",
            statement="transformers of two layers learn to add (accuracy on the examples measured)",
            parts=_shares(_by_modulus(data, config.moduli, TRAINED, "accuracy"), learnt),
            control=Control(_UNTRAINED, _shares(_by_modulus(data, config.moduli, UNTRAINED, "accuracy"), learnt)),
            shown="table",
        ),
        _ours(
            id="A7",
            statement="the classes discovered at a head follow the answer (largest agreement over heads, minus that "
            f"with the sum {OFF}; adjusted Rand index)",
            parts=_means(_agreement_with_answer(config, data, TRAINED), _POSITIVE),
            control=Control(_UNTRAINED, _means(_agreement_with_answer(config, data, UNTRAINED), _POSITIVE)),
            shown="table",
        ),
    ]


def _agreement_with_answer(config: HeadsInModelsConfig, data: Data, subject: str) -> ValuesByName:
    answer = _by_modulus(data, config.moduli, subject, "agreement answer")
    return _minus(answer, _by_modulus(data, config.moduli, subject, f"agreement {OFF}"))


def _called_for_sum(config: HeadsInModelsConfig, data: Data) -> list[Finding]:
    """Return A2, A3 and A6, on the heads called in networks whose sums attention alone does not cluster."""
    refused = [p for p in config.moduli if clustered_by_attention(config, addition_arm(p), "sum")]
    moduli = [p for p in config.moduli if p not in refused]
    in_last_layer = _by_modulus(data, moduli, TRAINED, "last layer")
    in_untrained = _by_modulus(data, moduli, UNTRAINED, "any")
    off_support = _by_modulus(data, moduli, TRAINED, "any control")
    in_few = Bound("<", 0.5)
    several = Bound(">", 1)
    findings = [
        _ours(
            id="A2",
            statement="a head of the last layer is called a clustering head of the sum (share of networks)",
            parts=_shares(in_last_layer, _MOST),
            control=Control(
                f"any head of the untrained network, or any for the sum {OFF}",
                _shares(_larger(in_untrained, off_support), _MOST),
            ),
        ),
        _ours(
            id="A3",
            statement="there is not one per layer: in fewer than half of the networks, one of the first layer is "
            "called (share)",
            parts=_shares(_by_modulus(data, moduli, TRAINED, "first layer"), in_few),
            control=Control("the last layer", _shares(in_last_layer, in_few)),
            shown="table",
        ),
        _ours(
            id="A6",
            statement="several heads of the last layer are called (number)",
            parts=_means(_by_modulus(data, moduli, TRAINED, "called in last layer"), several),
            control=Control(_UNTRAINED, _means(_by_modulus(data, moduli, UNTRAINED, "called in last layer"), several)),
            shown="table",
        ),
    ]
    note = f"p = {', '.join(map(str, refused))} is not tested: {_ATTENTION}" if refused else ""
    not_tested = "" if moduli else _ATTENTION
    return [replace(finding, note=note, not_tested=not_tested) for finding in findings]


# ---- a pretrained model ----


def _prompts(config: HeadsInModelsConfig, data: Data) -> list[Finding]:
    """Return W1 to W10; their values are over draws of words."""
    measured = data if config.model is not None else defaultdict(_no_values)
    findings = [
        *_heads_alike(config, measured),
        *_heads_together(measured),
        *_discovered(config, measured),
    ]
    not_tested = _NO_MODEL if config.model is None else ""
    return [replace(finding, unit="draws of words", not_tested=not_tested) for finding in findings]


def _no_values() -> Float[np.ndarray, "0"]:
    return np.array([])


def _heads_alike(config: HeadsInModelsConfig, data: Data) -> list[Finding]:
    following = {kind: data[key(PROMPTS, kind, "switching")] for kind in (PRETRAINED, RANDOM)}
    for_other = {kind: data[key(PROMPTS, kind, "switching other")] for kind in (PRETRAINED, RANDOM)}
    common = {kind: data[key(PROMPTS, kind, "common")] for kind in (PRETRAINED, RANDOM)}
    right = Bound(">=", 0.8)
    some = Bound(">=", 1)
    quarter = Bound(">=", 0.25)
    return [
        _ours(
            id="W1",
            statement="the pretrained model answers with the thing of the person named last (accuracy)",
            parts=_shares(_at_ends(data, PRETRAINED, "accuracy"), right),
            control=Control(_RANDOM_WEIGHTS, _shares(_at_ends(data, RANDOM, "accuracy"), right)),
            shown="table",
            note=f"chance: 1 / {config.n_words} among the words of a kind",
        ),
        _ours(
            id="W2",
            statement="some heads follow what is asked: at both endings, their outputs are alike for prompts that "
            "differ in the other person's thing, but not for those that differ in the thing asked for (number)",
            parts=(mean_part("", following[PRETRAINED], some),),
            control=Control(_RANDOM_WEIGHTS, (mean_part("", following[RANDOM], some),)),
            shown="table",
            note="each person's thing is asked for at one ending and irrelevant at the other",
        ),
        _ours(
            id="W3",
            statement="with random weights there are fewer such heads (pretrained - random)",
            parts=(mean_part("", following[PRETRAINED] - following[RANDOM], _POSITIVE),),
            control=Control(
                "heads that follow the other thing",
                (mean_part("", for_other[PRETRAINED] - for_other[RANDOM], _POSITIVE),),
            ),
            shown="table",
        ),
        _ours(
            id="W5",
            statement=f"the same heads serve both endings: a quarter or more of the {config.n_tested} with the largest "
            "effect are the same (share)",
            parts=(share_part("", common[PRETRAINED], quarter),),
            control=Control(_RANDOM_WEIGHTS, (share_part("", common[RANDOM], quarter),)),
            shown="table",
        ),
    ]


def _heads_together(data: Data) -> list[Finding]:
    carried = _at_ends(data, PRETRAINED, f"carried, {RELEVANT}")
    by_others = _at_ends(data, PRETRAINED, f"carried, {RANDOM_HEADS}")
    seldom = Bound("<=", 0.1)
    return [
        _ours(
            id="W4",
            statement="interchanged together, these heads carry the thing asked for (share of answers that become the "
            "donor's, minus that with as many other heads of the same or the nearest blocks)",
            parts=_means(_minus(carried, by_others), _POSITIVE),
            note="with random weights no head is alike for the thing asked for, so there is nothing to interchange",
        ),
        _ours(
            id="W6",
            statement="the other person's thing does not matter to these heads (share of answers that change if donors "
            "differ only in it)",
            parts=_shares(_at_ends(data, PRETRAINED, f"changed, {IRRELEVANT}"), seldom),
            control=Control(
                "donors that differ in the thing asked for",
                _shares(_at_ends(data, PRETRAINED, f"changed, {RELEVANT}"), seldom),
            ),
            shown="table",
        ),
    ]


def _discovered(config: HeadsInModelsConfig, data: Data) -> list[Finding]:
    """Return W7 and W10, on what the largest set of heads has in common without labels."""
    n = config.together[-1]
    asked = f"agreement asked, {largest(n)}"
    compactness = f"compactness, {largest(n)}"
    of_others = _at_ends(data, PRETRAINED, f"agreement asked, {others(n)}")
    half = Bound(">=", 0.5)
    negative = Bound("<", 0)
    return [
        _ours(
            id="W7",
            statement=f"if the {n} heads with the largest effect are interchanged together, the classes that are "
            "discovered without labels are those of the thing asked for (adjusted Rand index)",
            parts=_means(_at_ends(data, PRETRAINED, asked), half),
            control=Control(
                "as many other heads, or random weights: the larger",
                _means(_larger(of_others, _at_ends(data, RANDOM, asked)), half),
            ),
            note="others that change no answer have a single class, and an index of 0",
        ),
        _ours(
            id="W10",
            statement=f"within the discovered classes, the outputs of the {n} heads are more compact than a Gaussian "
            "cloud put in their place (within-ratio: outputs - cloud)",
            parts=_means(_at_ends(data, PRETRAINED, compactness), negative),
            control=Control(_RANDOM_WEIGHTS, _means(_at_ends(data, RANDOM, compactness), negative)),
            shown="table",
        ),
    ]


# ---- networks that follow instructions ----


def _instructions(config: HeadsInModelsConfig, data: Data) -> list[Finding]:
    called = _of_instructions(data, TRAINED, "any")
    called_untrained = _of_instructions(data, UNTRAINED, "any")
    called_for_input = _of_instructions(data, TRAINED, "any control")
    learnt = Bound(">=", config.solved)
    return [
        _ours(
            id="I1",
            statement="networks follow instructions that they have not seen (accuracy)",
            parts=_shares(_of_instructions(data, TRAINED, "accuracy"), learnt),
            control=Control(_UNTRAINED, _shares(_of_instructions(data, UNTRAINED, "accuracy"), learnt)),
            shown="table",
        ),
        _ours(
            id="I2",
            statement="a head's output is similar for all instructions of a task: one is called for the task (share of "
            "networks)",
            parts=_shares(called, _MOST),
            control=Control(_UNTRAINED, _shares(called_untrained, _MOST)),
        ),
        _ours(
            id="I3",
            statement="in untrained networks, none is called for the task (share with one)",
            parts=_shares(called_untrained, _FEW),
            control=Control("trained networks", _shares(called, _FEW)),
            shown="table",
        ),
        *_where_heads_are(data),
        _ours(
            id="I6",
            statement="none is called for the input, which is not what is interchanged (share with one)",
            parts=_shares(called_for_input, _FEW),
            control=Control("the task", _shares(called, _FEW)),
            shown="table",
        ),
    ]


def _where_heads_are(data: Data) -> list[Finding]:
    task_ari = data[key(INSTRUCTIONS, TRAINED, "task-ARI")]
    called = data[key(INSTRUCTIONS, TRAINED, "heads called")]
    of_another = np.random.default_rng(0).permutation(len(called))
    return [
        _ours(
            id="I4",
            statement="the head with the most similar outputs within tasks has a lower within-ratio than in the "
            "untrained network, which sees the same symbols (within-ratio over chance, trained - untrained)",
            parts=_ratio_falls(data, "best ratio"),
            control=Control("the input in place of the task", _ratio_falls(data, "best ratio control")),
            shown="table",
        ),
        _ours(
            id="I5",
            statement="task clusters of the residual stream grow most in the block with most heads called (rise of the "
            "task-ARI there, minus the mean rise in other blocks)",
            parts=_grows_where_called(task_ari, called),
            control=Control(
                "the block with most heads called in another network", _grows_where_called(task_ari, called[of_another])
            ),
        ),
    ]


def _ratio_falls(data: Data, measure: str) -> tuple[Part, ...]:
    fall = _minus(_of_instructions(data, TRAINED, measure), _of_instructions(data, UNTRAINED, measure))
    return _means(fall, Bound("<", -0.1))


def _grows_where_called(
    task_ari: Float[np.ndarray, "seed layer"], called: Float[np.ndarray, "seed block"]
) -> tuple[Part, ...]:
    rises = [rise_where_called(*of_seed) for of_seed in zip(task_ari, called, strict=True)]
    return (mean_part("", rises, _POSITIVE),)


# ---- a head set by hand ----


def _checks(data: Data) -> list[Finding]:
    return [
        Finding(
            id="K1",
            kind="check",
            statement="a clustering head set by hand at a layer and head drawn per seed is called, and no other (1: "
            "so)",
            source="construction",
            parts=(check_part("", data[key(PLANTED, READ, "exact")], Bound(">=", 1)),),
        ),
        Finding(
            id="K2",
            kind="check",
            statement="if nothing reads that head, none is called (1: one is)",
            source="construction",
            parts=(check_part("", data[key(PLANTED, UNREAD, "any")], Bound("<=", 0)),),
        ),
    ]


# ---- values and parts ----


def _by_modulus(data: Data, moduli: Iterable[int], subject: str, measure: str) -> ValuesByName:
    return {f"p = {p}": data[key(addition_arm(p), subject, measure)] for p in moduli}


def _at_ends(data: Data, kind: str, measure: str) -> ValuesByName:
    """Return a measure at both endings of the prompts."""
    return {f"{order} name last": data[key(PROMPTS, prompt_subject(kind, order), measure)] for order in ORDERS}


def _of_instructions(data: Data, subject: str, measure: str) -> ValuesByName:
    return {"": data[key(INSTRUCTIONS, subject, measure)]}


def _minus(values: ValuesByName, subtracted: ValuesByName) -> ValuesByName:
    return {name: of - subtracted[name] for name, of in values.items()}


def _larger(values: ValuesByName, others: ValuesByName) -> ValuesByName:
    return {name: np.maximum(of, others[name]) for name, of in values.items()}


def _means(values: ValuesByName, bound: Bound) -> tuple[Part, ...]:
    return tuple(mean_part(name, of, bound) for name, of in values.items())


def _shares(values: ValuesByName, bound: Bound) -> tuple[Part, ...]:
    return tuple(share_part(name, of, bound) for name, of in values.items())
