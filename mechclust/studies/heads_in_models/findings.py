"""The findings of the study with their controls, and the checks K1 and K2.

Bounds were written before the confirmatory seeds were run. ``Heads.called`` defines "called"; the control of a task is
a label that is unrelated to its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

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
from mechclust.studies.heads_in_models.results import Data, key
from mechclust.studies.heads_in_models.together import IRRELEVANT, RANDOM_HEADS, RELEVANT

_ATTENTION = "each sum is one multiset of digits, which a head maps to a point by attention alone, trained or not"
_NO_MODEL = "needs a pretrained model; give its name or folder with --model"
_TOO_SMALL = "this size of the study cannot test it"
_ABOVE, _HALF, _FEW = Bound(">", 0), Bound(">", 0.5), Bound("<", 0.3)
_UNTRAINED, _RANDOM = "untrained networks", "random weights"

_PartOf = Callable[[str, Sequence[float] | np.ndarray, Bound], Part]


def findings_of(config: HeadsInModelsConfig, data: Data) -> list[Finding]:
    """Return A1 to A7, W1 to W10, I1 to I6, and the checks K1 and K2."""
    findings = [*_addition(config, data), *_called(config, data), *_instructions(config, data), *_checks(data)]
    findings += _prompts(config, data)
    if not config.test_findings:
        findings = [replace(finding, not_tested=finding.not_tested or _TOO_SMALL) for finding in findings]
    judged = [replace(finding, history=_history(finding.id)) for finding in findings]
    return sorted(judged, key=lambda finding: ("AWIK".index(finding.id[0]), int(finding.id[1:])))


def _history(id: str) -> tuple[EarlierRun, ...]:
    if id[0] in "WK":
        return ()
    verdict: Verdict = "undecided" if id in ("A3", "A4", "I6") else "holds"
    fresh = "30 fresh seeds, because A3, A4 and I6 were undecided; the bounds are the same"
    return (EarlierRun("2026-11-25, seeds 100 to 109", 10, verdict, fresh),)


def _values(data: Data, arm: str, subject: str, measure: str) -> Float[np.ndarray, "seed"]:
    """Return a measure of a model in every seed; nothing if the arm was not run."""
    return data.get(key(arm, subject, measure), np.empty(0))


# ---- addition ----


def _addition(config: HeadsInModelsConfig, data: Data) -> list[Finding]:
    """Return A1 and A7, which are about every modulus."""
    return [
        Finding(
            id="A1",
            statement="transformers of two layers learn to add (accuracy on the examples measured)",
            source="ours",
            parts=_by_modulus(config, data, share_part, TRAINED, "accuracy", Bound(">=", config.solved)),
            control=Control(
                _UNTRAINED, _by_modulus(config, data, share_part, UNTRAINED, "accuracy", Bound(">=", config.solved))
            ),
            shown="table",
        ),
        Finding(
            id="A7",
            statement="the equivalence discovered at a head follows the answer (largest agreement over heads, minus "
            f"that with the sum {OFF}; adjusted Rand index)",
            source="ours",
            parts=_follows_answer(config, data, TRAINED),
            control=Control(_UNTRAINED, _follows_answer(config, data, UNTRAINED)),
        ),
    ]


def _by_modulus(
    config: HeadsInModelsConfig, data: Data, part: _PartOf, subject: str, measure: str, bound: Bound
) -> tuple[Part, ...]:
    return tuple(part(f"p = {p}", _values(data, addition_arm(p), subject, measure), bound) for p in config.moduli)


def _follows_answer(config: HeadsInModelsConfig, data: Data, subject: str) -> tuple[Part, ...]:
    parts = []
    for p in config.moduli:
        answer = _values(data, addition_arm(p), subject, "agreement answer")
        off = _values(data, addition_arm(p), subject, f"agreement {OFF}")
        parts.append(mean_part(f"p = {p}", answer - off, _ABOVE))
    return tuple(parts)


def _called(config: HeadsInModelsConfig, data: Data) -> list[Finding]:
    """Return A2 to A6, on the heads called in networks whose sums attention alone does not cluster."""
    moduli = tuple(p for p in config.moduli if not clustered_by_attention(config, addition_arm(p), "sum"))
    refused = [str(p) for p in config.moduli if p not in moduli]
    only = replace(config, moduli=moduli) if moduli else config

    def share(subject: str, measure: str, bound: Bound) -> tuple[Part, ...]:
        return _by_modulus(only, data, share_part, subject, measure, bound)

    several = Bound(">", 1)
    findings = [
        Finding(
            id="A2",
            statement="a head of the last layer is called a clustering head of the sum (share of networks)",
            source="ours",
            parts=share(TRAINED, "last layer", _HALF),
            control=Control(_UNTRAINED, share(UNTRAINED, "last layer", _HALF)),
        ),
        Finding(
            id="A3",
            statement="there is not one per layer: in fewer than half of the networks, one of the first layer is "
            "called (share)",
            source="ours",
            parts=share(TRAINED, "first layer", Bound("<", 0.5)),
            control=Control("the last layer", share(TRAINED, "last layer", Bound("<", 0.5))),
            shown="table",
        ),
        Finding(
            id="A4",
            statement="in untrained networks, none is called (share with one)",
            source="ours",
            parts=share(UNTRAINED, "any", _FEW),
            control=Control("trained networks", share(TRAINED, "any", _FEW)),
        ),
        Finding(
            id="A5",
            statement=f"in trained networks, none is called for the sum of equally many digits {OFF} (share with one)",
            source="ours",
            parts=share(TRAINED, "any control", _FEW),
            control=Control("the digits that count", share(TRAINED, "any", _FEW)),
            shown="table",
        ),
        Finding(
            id="A6",
            statement="several heads of the last layer are called (number)",
            source="ours",
            parts=_by_modulus(only, data, mean_part, TRAINED, "called in last layer", several),
            control=Control(_UNTRAINED, _by_modulus(only, data, mean_part, UNTRAINED, "called in last layer", several)),
            shown="table",
        ),
    ]
    if not moduli:
        return [replace(finding, parts=(), control=None, not_tested=_ATTENTION) for finding in findings]
    note = f"p = {', '.join(refused)} is not tested: {_ATTENTION}" if refused else ""
    return [replace(finding, note=note) for finding in findings]


# ---- a pretrained model and prompts ----


def _prompts(config: HeadsInModelsConfig, data: Data) -> list[Finding]:
    findings = [*_asked(config, data), *_interchanged(config, data), *_discovered(config, data)]
    if config.model is None:
        return [replace(finding, parts=(), control=None, not_tested=_NO_MODEL) for finding in findings]
    return findings


def _at_both_ends(
    data: Data, part: _PartOf, kind: str, measure: str, bound: Bound, less: tuple[str, str] | None = None
) -> tuple[Part, ...]:
    """Judge a measure at both endings of the prompts.

    Args:
        data: of all models.
        part: how the values are judged.
        kind: the pretrained model, or random weights.
        measure: its name.
        bound: what both must satisfy.
        less: kind and measure that are subtracted.
    """
    parts = []
    for order in ORDERS:
        values = _values(data, PROMPTS, prompt_subject(kind, order), measure)
        if less is not None:
            values = values - _values(data, PROMPTS, prompt_subject(less[0], order), less[1])
        parts.append(part(f"{order} name last", values, bound))
    return tuple(parts)


def _asked(config: HeadsInModelsConfig, data: Data) -> list[Finding]:
    """Return W1 to W3 and W5: which heads follow what is asked."""
    switching = _values(data, PROMPTS, PRETRAINED, "switching")
    of_random = _values(data, PROMPTS, RANDOM, "switching")
    common, common_of_random = (_values(data, PROMPTS, kind, "common") for kind in (PRETRAINED, RANDOM))
    least, quarter = Bound(">=", 0.8), Bound(">=", 0.25)
    findings = [
        Finding(
            id="W1",
            statement="the pretrained model answers with the thing of the person named last (accuracy)",
            source="ours",
            parts=_at_both_ends(data, share_part, PRETRAINED, "accuracy", least),
            control=Control(_RANDOM, _at_both_ends(data, share_part, RANDOM, "accuracy", least)),
        ),
        Finding(
            id="W2",
            statement="some heads follow what is asked: at both endings, their outputs are alike for prompts that "
            "differ in the other person's thing, but not for those that differ in the thing asked for (number of "
            "heads)",
            source="ours",
            parts=(mean_part("", switching, Bound(">=", 1)),),
            control=Control(_RANDOM, (mean_part("", of_random, Bound(">=", 1)),)),
            note="each person's thing is asked for at one ending and irrelevant at the other",
        ),
        Finding(
            id="W3",
            statement="with random weights there are fewer such heads (pretrained - random)",
            source="ours",
            parts=(mean_part("", switching - of_random, _ABOVE),),
            note="the control of W2, tested as a difference",
        ),
        Finding(
            id="W5",
            statement=f"the same heads serve both endings: a quarter or more of the {config.n_tested} with the largest "
            "effect are the same (share)",
            source="ours",
            parts=(share_part("", common, quarter),),
            control=Control(_RANDOM, (share_part("", common_of_random, quarter),)),
        ),
    ]
    return [replace(finding, shown="table") for finding in findings]


def _interchanged(config: HeadsInModelsConfig, data: Data) -> list[Finding]:
    """Return W4 and W6: what the heads that follow what is asked carry together."""
    seldom = Bound("<=", 0.1)
    carried, by_others = f"carried, {RELEVANT}", f"carried, {RANDOM_HEADS}"
    return [
        Finding(
            id="W4",
            statement="interchanged together, these heads carry the thing asked for (share of answers that become the "
            "donor's, minus that with as many other heads of the same or the nearest blocks)",
            source="ours",
            parts=_at_both_ends(data, mean_part, PRETRAINED, carried, _ABOVE, (PRETRAINED, by_others)),
            note="with random weights there are no such heads",
        ),
        Finding(
            id="W6",
            statement="the other person's thing does not matter to these heads (share of answers that change if donors "
            "differ only in it)",
            source="ours",
            parts=_at_both_ends(data, share_part, PRETRAINED, f"changed, {IRRELEVANT}", seldom),
            control=Control(
                "donors that differ in the thing asked for",
                _at_both_ends(data, share_part, PRETRAINED, f"changed, {RELEVANT}", seldom),
            ),
            shown="table",
        ),
    ]


def _discovered(config: HeadsInModelsConfig, data: Data) -> list[Finding]:
    """Return W7 to W10: what the largest set of heads has in common without labels."""
    n = config.together[-1]
    asked, of_others = f"agreement asked, {largest(n)}", f"agreement asked, {others(n)}"
    most = Bound(">=", 0.5)
    findings = [
        Finding(
            id="W7",
            statement=f"if the {n} heads with the largest effect are interchanged together, the classes that are "
            "discovered without labels are those of the thing asked for (adjusted Rand index)",
            source="ours",
            parts=_at_both_ends(data, mean_part, PRETRAINED, asked, most),
            control=Control("as many other heads", _at_both_ends(data, mean_part, PRETRAINED, of_others, most)),
            shown="page",
        ),
        Finding(
            id="W8",
            statement="the classes discovered by interchanging as many other heads of the same or the nearest blocks "
            f"agree less with the thing asked for (adjusted Rand index: {n} largest - others)",
            source="ours",
            parts=_at_both_ends(data, mean_part, PRETRAINED, asked, _ABOVE, (PRETRAINED, of_others)),
            control=Control(_RANDOM, _at_both_ends(data, mean_part, RANDOM, asked, _ABOVE, (RANDOM, of_others))),
            shown="table",
            note="others that change no answer have a single class, and an index of 0",
        ),
        Finding(
            id="W9",
            statement=f"with random weights, the classes of the {n} heads with the largest effect agree less with the "
            "thing asked for (adjusted Rand index: pretrained - random)",
            source="ours",
            parts=_at_both_ends(data, mean_part, PRETRAINED, asked, _ABOVE, (RANDOM, asked)),
            control=Control(
                "as many other heads",
                _at_both_ends(data, mean_part, PRETRAINED, of_others, _ABOVE, (RANDOM, of_others)),
            ),
            shown="table",
        ),
        Finding(
            id="W10",
            statement=f"within the discovered classes, the outputs of the {n} heads are more compact than a Gaussian "
            "cloud put in their place (within-ratio: outputs - cloud)",
            source="ours",
            parts=_at_both_ends(data, mean_part, PRETRAINED, f"compactness, {largest(n)}", Bound("<", 0)),
            control=Control(
                _RANDOM, _at_both_ends(data, mean_part, RANDOM, f"compactness, {largest(n)}", Bound("<", 0))
            ),
            shown="table",
        ),
    ]
    return findings


# ---- instructions ----


def _instructions(config: HeadsInModelsConfig, data: Data) -> list[Finding]:
    def share(subject: str, measure: str, bound: Bound) -> tuple[Part, ...]:
        return (share_part("", _values(data, INSTRUCTIONS, subject, measure), bound),)

    trained, untrained = (_values(data, INSTRUCTIONS, subject, "best ratio") for subject in (TRAINED, UNTRAINED))
    below = Bound("<", -0.1)
    return [
        Finding(
            id="I1",
            statement="networks follow instructions that they have not seen (accuracy)",
            source="ours",
            parts=share(TRAINED, "accuracy", Bound(">=", config.solved)),
            control=Control(_UNTRAINED, share(UNTRAINED, "accuracy", Bound(">=", config.solved))),
            shown="table",
        ),
        Finding(
            id="I2",
            statement="a head's output is similar for all instructions of a task: one is called for the task (share of "
            "networks)",
            source="ours",
            parts=share(TRAINED, "any", _HALF),
            control=Control(_UNTRAINED, share(UNTRAINED, "any", _HALF)),
        ),
        Finding(
            id="I3",
            statement="in untrained networks, none is called for the task (share with one)",
            source="ours",
            parts=share(UNTRAINED, "any", _FEW),
            control=Control("trained networks", share(TRAINED, "any", _FEW)),
            shown="table",
        ),
        Finding(
            id="I4",
            statement="the head with the most similar outputs within tasks has a lower within-ratio than in the "
            "untrained network, which sees the same symbols (within-ratio over chance, trained - untrained)",
            source="ours",
            parts=(mean_part("", trained - untrained, below),),
            note="the untrained network is subtracted, so the finding has no further control",
        ),
        Finding(
            id="I5",
            statement="task clusters of the residual stream grow more in the block with most heads called than in the "
            "other (rise of the task-ARI there, minus the mean rise in other blocks)",
            source="ours",
            parts=_grows_where_called(data, TRAINED),
            control=Control(_UNTRAINED, _grows_where_called(data, UNTRAINED)),
            note="of two blocks; heads are called in both in half of the networks",
        ),
        Finding(
            id="I6",
            statement="none is called for the input, which is not what is interchanged (share with one)",
            source="ours",
            parts=share(TRAINED, "any control", _FEW),
            control=Control("called for the task", share(TRAINED, "any", _FEW)),
            shown="table",
        ),
    ]


def _grows_where_called(data: Data, subject: str) -> tuple[Part, ...]:
    there, elsewhere = (
        _values(data, INSTRUCTIONS, subject, f"growth {where}") for where in ("where called", "elsewhere")
    )
    return (mean_part("", there - elsewhere, _ABOVE),)


def _checks(data: Data) -> list[Finding]:
    exact, called = _values(data, PLANTED, READ, "exact"), _values(data, PLANTED, UNREAD, "any")
    return [
        Finding(
            id="K1",
            kind="check",
            statement="a clustering head set by hand at a layer and head drawn per seed is called, and no other",
            source="construction",
            parts=(check_part("", exact, Bound(">=", 1)),),
        ),
        Finding(
            id="K2",
            kind="check",
            statement="if nothing reads that head, none is called (1: one is)",
            source="construction",
            parts=(check_part("", called, Bound("<=", 0)),),
        ),
    ]
