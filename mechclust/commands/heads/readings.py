"""Conclusions on the roles of heads: one headline, a table of readings, and what to know about the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from mechclust.commands.heads.inputs import NATURAL_TEXT, REPEATED
from mechclust.commands.heads.measurements import NAMES, Measurements, RoleSummary
from mechclust.models.tokenizers import tokenization_in_words
from mechclust.report.reading import Reading
from mechclust.report.text import counted
from probes.head_roles import ALPHA, LEAST_EXCESS, LEAST_LOCALITY

_ROLES_IN_HEADLINE = 3
_NO_TEXT = "Random tokens are no language: heads may play other roles in text. Give --corpus to measure yours."


def headline(result: Measurements) -> str:
    """Return how many heads play a role on repeated random tokens, which ones, and the same of random weights."""
    played = [summary for summary in result.summaries(REPEATED) if summary.heads]
    n = sum(summary.heads for summary in played)
    if not played:
        return f"On repeated random tokens, none of {counted(result.n_heads, 'head')} plays a role.{_of_random(result)}"
    named = [f"{summary.heads} {NAMES[summary.role]}" for summary in played[:_ROLES_IN_HEADLINE]]
    others = sum(summary.heads for summary in played[_ROLES_IN_HEADLINE:])
    if others:
        named.append(f"{others} {'other' if others == 1 else 'others'}")
    play = "plays" if n == 1 else "play"
    subject = f"On repeated random tokens, {n} of {counted(result.n_heads, 'head')} {play} a role"
    return f"{subject}: {', '.join(named)}.{_of_random(result)}"


def _of_random(result: Measurements) -> str:
    """Return the largest number of heads with a role of any copy with random weights."""
    if not result.untrained:
        return ""
    n = max(int((measured.roles[REPEATED]["role"] > 0).sum()) for measured in result.untrained)
    return f" Random weights: {n}."


def readings(result: Measurements) -> list[Reading]:
    """Return a reading of each role: those of most heads on repeated random tokens first."""
    rows = []
    elsewhere = [result.summaries(text) for text in result.texts if text != REPEATED]
    for summary in result.summaries(REPEATED):
        others = [other for other in chain.from_iterable(elsewhere) if other.role == summary.role]
        rows.append(_reading(summary, others))
    return rows


def _reading(summary: RoleSummary, others: Sequence[RoleSummary]) -> Reading:
    return Reading(
        NAMES[summary.role].capitalize(),
        _value(summary),
        chance=f"{summary.chance:z.2f}",
        random_weights=f"{summary.random_weights:z.2f}" if summary.compared else "",
        verdict=" ".join([_verdict(summary), *(f"On {other.text}: {_value(other)}." for other in others)]).strip(),
    )


def _value(summary: RoleSummary) -> str:
    """Return the number of heads, and the strongest one with its score."""
    back = "" if summary.offset is None else f", {summary.offset} back"
    n = counted(summary.heads, "head") if summary.heads else "no head"
    measure = "nearer by" if summary.role == "local" else "attention"
    return f"{n}, {measure} up to {summary.score:z.2f} ({summary.strongest}{back})"


def _verdict(summary: RoleSummary) -> str:
    if not summary.heads:
        return "Not played."
    if not summary.compared:
        return ""
    return "More than random weights." if summary.above_random else "No more than random weights."


# ---- what to know about the numbers ----


def caveats(result: Measurements) -> list[str]:
    """Return how the numbers are to be read, and what was measured."""
    config = result.config
    roles = result.trained.roles[REPEATED]
    return [
        "Value: mean attention to the tokens of the role, over the positions that have some, of the head with the most "
        "above chance. Local: how much nearer than uniform attention the head attends, as a share of its distance.",
        "Chance: uniform attention over the tokens that a position sees; for duplicate token and induction, the token "
        "ids permuted.",
        f"A head plays a role if the lower end of its 95% interval over sequences is {LEAST_EXCESS:g} above chance "
        f"(local: {LEAST_LOCALITY:g}), and for duplicate token and induction if p, corrected for all heads (Holm), is "
        f"at most {ALPHA:g}. Of several roles it has the one most above chance; local only if it has no other.",
        f"Repeated tokens: {config.n_sequences} sequences of random tokens of the vocabulary that repeat after "
        f"{config.periods[0]} to {config.periods[1]} tokens ({roles.metadata['n']} measured).",
        *([] if NATURAL_TEXT in result.texts else [_NO_TEXT]),
        *_on_random_weights(result),
        tokenization_in_words(result.tokenization),
        *result.input_notes,
        *_probe_notes(result),
    ]


def _on_random_weights(result: Measurements) -> Iterator[str]:
    if not result.untrained:
        yield "Nothing was compared with random weights, because none were asked for (--untrained 0)."
        return
    yield (
        f"Random weights: the strongest head of {counted(len(result.untrained), 'model')} of the same shape with "
        "random weights. More than random weights: the lower end of the interval of the highest head is above it."
    )


def _probe_notes(result: Measurements) -> Iterator[str]:
    """Yield the probe's notes, those that are alike on every text once."""
    texts_of: dict[str, list[str]] = {}
    for text, roles in result.trained.roles.items():
        for note in roles.notes:
            texts_of.setdefault(note, []).append(text)
    for note, texts in texts_of.items():
        yield f"On {' and '.join(texts)}: {note}."
