"""Conclusions on the roles of heads: one headline, a table of readings, and what to know about the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from mechclust.commands.heads.inputs import NATURAL_TEXT, REPEATED
from mechclust.commands.heads.measurements import NAMES, Measurements, RoleSummary
from mechclust.models.tokenizers import tokenization_in_words
from mechclust.report.reading import Reading
from mechclust.report.text import counted, list_text
from probes.head_roles import ALPHA, LEAST_EXCESS, LEAST_LOCALITY

_ROLES_IN_HEADLINE = 3
_NO_TEXT = "Random tokens are no language: heads may play other roles in text. Give --corpus to measure yours."


def headline(result: Measurements) -> str:
    """Return how many heads play a role on repeated random tokens, which ones, and the same of random weights."""
    rest = f"{_of_untested(result)}{_of_random(result)}"
    played = [summary for summary in result.summaries(REPEATED) if summary.heads]
    n = sum(summary.heads for summary in played)
    if not played:
        return f"On repeated random tokens, none of {counted(result.n_heads, 'head')} is shown to play a role.{rest}"
    named = [f"{summary.heads} {NAMES[summary.role]}" for summary in played[:_ROLES_IN_HEADLINE]]
    others = sum(summary.heads for summary in played[_ROLES_IN_HEADLINE:])
    if others:
        named.append(f"{others} {'other' if others == 1 else 'others'}")
    play = "plays" if n == 1 else "play"
    subject = f"On repeated random tokens, {n} of {counted(result.n_heads, 'head')} {play} a role"
    return f"{subject}: {', '.join(named)}.{rest}"


def _of_untested(result: Measurements) -> str:
    """Return the roles of which it is not known how many heads play them."""
    names = [NAMES[role] for role in NAMES if role in result.untested]
    return f" Not testable with so few permutations: {list_text(names)}." if names else ""


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
        rows.append(_reading(result, summary, others))
    return rows


def _reading(result: Measurements, summary: RoleSummary, others: Sequence[RoleSummary]) -> Reading:
    elsewhere = [f"On {other.text}: {_value(result, other)}." for other in others]
    return Reading(
        NAMES[summary.role].capitalize(),
        _value(result, summary),
        chance=f"{summary.chance:z.2f}",
        random_weights=f"{summary.random_weights:z.2f}" if summary.compared else "",
        verdict=" ".join([_verdict(result, summary), *elsewhere]).strip(),
    )


def _value(result: Measurements, summary: RoleSummary) -> str:
    """Return the number of heads, and the strongest one with its score."""
    back = "" if summary.offset is None else f", {summary.offset} back"
    none = "unknown" if summary.role in result.untested else "no head"
    n = counted(summary.heads, "head") if summary.heads else none
    measure = "nearer by" if summary.role == "local" else "attention"
    return f"{n}, {measure} up to {summary.score:z.2f} ({summary.strongest}{back})"


def _verdict(result: Measurements, summary: RoleSummary) -> str:
    if summary.role in result.untested:
        return "Too few permutations to tell (--n-permutations)."
    if not summary.heads:
        called = int((result.trained.roles[summary.text].sel("called", role=summary.role) == 1).sum())
        return f"Played only by heads that have another role ({called})." if called else "Not played."
    if not summary.compared:
        return ""
    if summary.above_random:
        return "More than random weights."
    return f"{'Not clearly' if summary.excess > summary.random_excess else 'No'} more than random weights."


# ---- what to know about the numbers ----


def caveats(result: Measurements) -> list[str]:
    """Return how the numbers are to be read, and what was measured."""
    config = result.config
    roles = result.trained.roles[REPEATED]
    by_p = f", and for duplicate token and induction if p, corrected for all heads (Holm), is at most {ALPHA:g}"
    return [
        "Value: mean attention to the tokens of the role, over the positions that have some, of the head with the most "
        "above chance, among those of the role if there are any. Local: how much nearer than uniform attention the "
        "head attends, as a share of its distance.",
        "Chance: uniform attention over the tokens that a position sees; for duplicate token and induction, the token "
        "ids permuted.",
        f"A head plays a role if the lower end of its 95% interval over sequences is {LEAST_EXCESS:g} above chance "
        f"(local: {LEAST_LOCALITY:g}){'' if config.n_permutations == 0 else by_p}. Of several roles it has the one "
        "most above chance; local only if it has no other.",
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
