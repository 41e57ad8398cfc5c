"""The findings of the study with their controls, and the checks K1 and K2.

Bounds were written before the confirmatory seeds were run. ``Heads.called`` defines which heads are called.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from mechclust.evidence import Bound, Finding, check_part, mean_part
from mechclust.evidence.compared import compared
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
from mechclust.studies.heads_in_models.discovery import control_heads, largest_heads
from mechclust.studies.heads_in_models.prompts import ORDERS
from mechclust.studies.heads_in_models.results import Data, measure_key, rise_where_called
from mechclust.studies.heads_in_models.together import IRRELEVANT, RANDOM_HEADS, RELEVANT

_NO_MODEL = "needs a pretrained model; give its name or folder with --model"
_ATTENTION = "each sum is one multiset of digits, which a head maps to a point by attention alone, trained or not"
_MOST = Bound(">", 0.5)
_FEW = Bound("<", 0.3)
_POSITIVE = Bound(">", 0)

_ValuesByPart = Mapping[str, Float[np.ndarray, "_"]]  # over seeds or draws of words, by the name of a part
_Values = Callable[[str, str], _ValuesByPart]  # of a subject and a measure


def _finding(
    id: str,
    statement: str,
    bound: Bound,
    values: _ValuesByPart,
    control: str,
    control_values: _ValuesByPart,
    *,
    shares: bool = False,
    **details: Any,
) -> Finding:
    """Return a finding whose parts are means, or shares, with a common bound."""
    return compared(
        id,
        statement,
        dict.fromkeys(values, bound),
        [*values.values()],
        control,
        [control_values[name] for name in values],
        shares=[*values] if shares else (),
        **{"source": "ours", "shown": "table", **details},
    )


def _beyond_untrained(id: str, statement: str, bound: Bound, values: _Values, measure: str, **details: Any) -> Finding:
    """Return a finding about trained networks whose control is untrained networks."""
    trained = values(TRAINED, measure)
    untrained = values(UNTRAINED, measure)
    return _finding(id, statement, bound, trained, "untrained networks", untrained, **details)


def _beyond_random(id: str, statement: str, bound: Bound, values: _Values, measure: str, **details: Any) -> Finding:
    """Return a finding about the pretrained model whose control is that model with random weights."""
    pretrained = values(PRETRAINED, measure)
    random = values(RANDOM, measure)
    return _finding(id, statement, bound, pretrained, "random weights", random, **details)


def findings_of(config: HeadsInModelsConfig, data: Data) -> list[Finding]:
    """Return A1 to A7, W1 to W10, I1 to I6 and the checks K1 and K2, except the ones that became controls.

    A4 and A5 are the control of A2. W8 and W9 are the control of W7.
    """
    findings = [
        *_addition(config, data),
        *_called_for_sum(config, data),
        *_prompts(config, data),
        *_instructions(config, data),
        *_where_heads_are(data),
        *_checks(data),
    ]
    return sorted(findings, key=_place)


def _place(finding: Finding) -> tuple[int, int]:
    """Return the position of a finding in the order of the study's parts."""
    return "AWIK".index(finding.id[0]), int(finding.id[1:])


# ---- networks that add ----


def _addition(config: HeadsInModelsConfig, data: Data) -> list[Finding]:
    """Return A1 and A7, which are tested for every modulus."""
    values = partial(_by_modulus, data, config.moduli)
    return [
        _beyond_untrained(
            "A1",
            f"transformers of {config.n_layers} layers learn to add (accuracy on the examples measured)",
            Bound(">=", config.solved),
            values,
            "accuracy",
            shares=True,
        ),
        _finding(
            "A7",
            "the classes discovered at a head follow the answer (largest agreement over heads, minus that with the "
            f"sum {OFF}; adjusted Rand index)",
            _POSITIVE,
            _minus(values(TRAINED, "agreement answer"), values(TRAINED, f"agreement {OFF}")),
            "untrained networks",
            _minus(values(UNTRAINED, "agreement answer"), values(UNTRAINED, f"agreement {OFF}")),
        ),
    ]


def _called_for_sum(config: HeadsInModelsConfig, data: Data) -> list[Finding]:
    """Return A2, A3 and A6, on the heads called in networks whose sums attention alone does not cluster."""
    refused = [p for p in config.moduli if clustered_by_attention(config, addition_arm(p), "sum")]
    moduli = [p for p in config.moduli if p not in refused]
    values = partial(_by_modulus, data, moduli)
    findings = [
        _finding(
            "A2",
            "a head of the last layer is called a clustering head of the sum (share of networks)",
            _MOST,
            values(TRAINED, "last layer"),
            f"any head of the untrained network, or any for the sum {OFF}",
            _larger(values(UNTRAINED, "any"), values(TRAINED, "any control")),
            shares=True,
            shown="page",
        ),
        _finding(
            "A3",
            "there is not one per layer: in fewer than half of the networks, one of the first layer is called (share)",
            Bound("<", 0.5),
            values(TRAINED, "first layer"),
            "the last layer",
            values(TRAINED, "last layer"),
            shares=True,
        ),
        _beyond_untrained(
            "A6",
            "several heads of the last layer are called (number)",
            Bound(">", 1),
            values,
            "called in last layer",
        ),
    ]
    note = f"p = {', '.join(map(str, refused))} is not tested: {_ATTENTION}" if refused else ""
    not_tested = "" if moduli else _ATTENTION
    return [replace(finding, note=note, not_tested=not_tested) for finding in findings]


# ---- a pretrained model ----


def _prompts(config: HeadsInModelsConfig, data: Data) -> list[Finding]:
    """Return W1 to W10, whose values are over draws of words."""
    data = data if config.model is not None else defaultdict(_no_values)
    findings = [*_heads_alike(config, data), *_heads_together(data), *_discovered(config, data)]
    not_tested = _NO_MODEL if config.model is None else ""
    return [replace(finding, unit="draws of words", not_tested=not_tested) for finding in findings]


def _no_values() -> Float[np.ndarray, "0"]:
    return np.array([])


def _heads_alike(config: HeadsInModelsConfig, data: Data) -> list[Finding]:
    at_ends = partial(_at_ends, data)
    both_ends = partial(_of_arm, data, PROMPTS)
    return [
        _beyond_random(
            "W1",
            "the pretrained model answers with the thing of the person named last (accuracy)",
            Bound(">=", 0.8),
            at_ends,
            "accuracy",
            shares=True,
            note=f"chance: 1 / {config.n_words} among the words of a kind",
        ),
        _beyond_random(
            "W2",
            "some heads follow what is asked: at both endings, their outputs are alike for prompts that differ in the "
            "other person's thing, but not for those that differ in the thing asked for (number)",
            Bound(">=", 1),
            both_ends,
            "switching",
            note="each person's thing is asked for at one ending and irrelevant at the other",
        ),
        _finding(
            "W3",
            "with random weights there are fewer such heads (pretrained - random)",
            _POSITIVE,
            _minus(both_ends(PRETRAINED, "switching"), both_ends(RANDOM, "switching")),
            "heads that follow the other thing",
            _minus(both_ends(PRETRAINED, "switching other"), both_ends(RANDOM, "switching other")),
        ),
        _beyond_random(
            "W5",
            f"the same heads serve both endings: a quarter or more of the {config.n_tested} with the largest effect "
            "are the same (share)",
            Bound(">=", 0.25),
            both_ends,
            "common",
            shares=True,
        ),
    ]


def _heads_together(data: Data) -> list[Finding]:
    values = partial(_at_ends, data, PRETRAINED)
    beyond_others = _minus(values(f"carried, {RELEVANT}"), values(f"carried, {RANDOM_HEADS}"))
    return [
        Finding(
            id="W4",
            source="ours",
            statement="interchanged together, these heads carry the thing asked for (share of answers that become the "
            "donor's, minus that with as many other heads of the same or the nearest blocks)",
            parts=tuple(mean_part(name, shares, _POSITIVE) for name, shares in beyond_others.items()),
            note=_why_no_control(data[measure_key(PROMPTS, RANDOM, "switching")]),
        ),
        _finding(
            "W6",
            "the other person's thing does not matter to these heads (share of answers that change if donors differ "
            "only in it)",
            Bound("<=", 0.1),
            values(f"changed, {IRRELEVANT}"),
            "donors that differ in the thing asked for",
            values(f"changed, {RELEVANT}"),
            shares=True,
        ),
    ]


def _why_no_control(n_alike: Float[np.ndarray, "draw"]) -> str:
    """Return the note on W4, from the number of heads that are alike with random weights."""
    if n_alike.any():
        return f"no control: the {n_alike.mean():.2g} heads (mean) that are alike with random weights are not judged"
    return "with random weights no head is alike for the thing asked for, so there is nothing to interchange"


def _discovered(config: HeadsInModelsConfig, data: Data) -> list[Finding]:
    """Return W7 and W10, on the equivalence that the largest set of heads shares, without labels."""
    n = config.together[-1]
    asked = f"agreement asked, {largest_heads(n)}"
    compactness = f"compactness, {largest_heads(n)}"
    values = partial(_at_ends, data)
    return [
        _finding(
            "W7",
            f"if the {n} heads with the largest effect are interchanged together, the classes that are discovered "
            "without labels are those of the thing asked for (adjusted Rand index)",
            Bound(">=", 0.5),
            values(PRETRAINED, asked),
            "as many other heads, or random weights: the larger",
            _larger(values(PRETRAINED, f"agreement asked, {control_heads(n)}"), values(RANDOM, asked)),
            shown="page",
            note="others that change no answer have a single class, and an index of 0",
        ),
        _beyond_random(
            "W10",
            f"within the discovered classes, the outputs of the {n} heads are more compact than a Gaussian cloud put "
            "in their place (within-ratio: outputs - cloud)",
            Bound("<", 0),
            values,
            compactness,
        ),
    ]


# ---- networks that follow instructions ----


def _instructions(config: HeadsInModelsConfig, data: Data) -> list[Finding]:
    """Return I1, I2, I3 and I6, on shares of networks and of answers."""
    values = partial(_of_arm, data, INSTRUCTIONS)
    called = values(TRAINED, "any")
    return [
        _beyond_untrained(
            "I1",
            "networks follow instructions that they have not seen (accuracy)",
            Bound(">=", config.solved),
            values,
            "accuracy",
            shares=True,
        ),
        _beyond_untrained(
            "I2",
            "a head's output is similar for all instructions of a task: one is called for the task (share of networks)",
            _MOST,
            values,
            "any",
            shares=True,
            shown="page",
        ),
        _finding(
            "I3",
            "in untrained networks, none is called for the task (share with one)",
            _FEW,
            values(UNTRAINED, "any"),
            "trained networks",
            called,
            shares=True,
        ),
        _finding(
            "I6",
            "none is called for the input, which is not what is interchanged (share with one)",
            _FEW,
            values(TRAINED, "any control"),
            "the task",
            called,
            shares=True,
        ),
    ]


def _where_heads_are(data: Data) -> list[Finding]:
    """Return I4 and I5, on how similar outputs are and on the blocks in which task clusters grow."""
    values = partial(_of_arm, data, INSTRUCTIONS)
    task_ari = data[measure_key(INSTRUCTIONS, TRAINED, "task-ARI")]
    called = data[measure_key(INSTRUCTIONS, TRAINED, "heads called")]
    return [
        _finding(
            "I4",
            "the head with the most similar outputs within tasks has a lower within-ratio than in the untrained "
            "network, which sees the same symbols (within-ratio over chance, trained - untrained)",
            Bound("<", -0.1),
            _minus(values(TRAINED, "best ratio"), values(UNTRAINED, "best ratio")),
            "the input in place of the task",
            _minus(values(TRAINED, "best ratio control"), values(UNTRAINED, "best ratio control")),
        ),
        _finding(
            "I5",
            "task clusters of the residual stream grow most in the block with most heads called (rise of the task-ARI "
            "there, minus the mean rise in other blocks)",
            _POSITIVE,
            _rises_where_called(task_ari, called),
            "the block with most heads called in another network",
            _rises_where_called(task_ari, np.roll(called, 1, axis=0)),
            shown="page",
        ),
    ]


def _rises_where_called(
    task_ari: Float[np.ndarray, "seed layer"], called: Shaped[np.ndarray, "seed block"]
) -> _ValuesByPart:
    return {"": np.array([rise_where_called(*of_seed) for of_seed in zip(task_ari, called, strict=True)])}


# ---- a head set by hand ----


def _checks(data: Data) -> list[Finding]:
    check = partial(Finding, kind="check", source="construction")
    return [
        check(
            id="K1",
            statement="a clustering head set by hand at a layer and head drawn per seed is called, and no other (1: "
            "so)",
            parts=(check_part("", data[measure_key(PLANTED, READ, "exact")], Bound(">=", 1)),),
        ),
        check(
            id="K2",
            statement="if nothing reads that head, none is called (1: one is)",
            parts=(check_part("", data[measure_key(PLANTED, UNREAD, "any")], Bound("<=", 0)),),
        ),
    ]


# ---- values by part ----


def _by_modulus(data: Data, moduli: Iterable[int], subject: str, measure: str) -> _ValuesByPart:
    return {f"p = {p}": data[measure_key(addition_arm(p), subject, measure)] for p in moduli}


def _at_ends(data: Data, kind: str, measure: str) -> _ValuesByPart:
    """Return a measure at both endings of the prompts."""
    return {f"{order} name last": data[measure_key(PROMPTS, prompt_subject(kind, order), measure)] for order in ORDERS}


def _of_arm(data: Data, arm: str, subject: str, measure: str) -> _ValuesByPart:
    """Return a measure that is the only part of a finding."""
    return {"": data[measure_key(arm, subject, measure)]}


def _minus(values: _ValuesByPart, subtracted: _ValuesByPart) -> _ValuesByPart:
    return {name: of_part - subtracted[name] for name, of_part in values.items()}


def _larger(values: _ValuesByPart, others: _ValuesByPart) -> _ValuesByPart:
    return {name: np.maximum(of_part, others[name]) for name, of_part in values.items()}
