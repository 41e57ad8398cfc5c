"""Claims: what a study tests, against bounds that were written before the run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mechclust.report.html import claims_html
from mechclust.report.severity import NOT_COMPUTED, WEAK, Severity
from mechclust.report.text import claim_number
from mechclust.report.verdicts import (
    KINDS,
    VERDICTS,
    Bound,
    Interval,
    Kind,
    Part,
    Verdict,
    interval_over_seeds,
    part_of,
    together,
)
from probes.files import DamagedError, json_bytes, read_json, write_atomic
from tasks import InputError
from tasks.text.visible import quoted

if TYPE_CHECKING:
    import pandas as pd

HISTORY = "history.json"


@dataclass(frozen=True)
class EarlierRun:
    """An earlier run's verdict on a claim.

    Attributes:
        run: which, such as its date and seeds.
        seeds: how many.
        verdict: of that run.
        changed: what was changed after it.
    """

    run: str
    seeds: int
    verdict: Verdict
    changed: str = ""


@dataclass(frozen=True, kw_only=True, repr=False)
class Claim:
    """One tested statement.

    Attributes:
        id: short name, such as ``"T1"``.
        kind: ``"finding"``, or ``"check"``: an identity of the software, or what holds by construction.
        statement: what is claimed.
        source: where it comes from.
        paper: the source's own value, or ``None`` where it gives none.
        measured: mean over seeds, or ``None`` when not measured.
        interval: its 95% interval over seeds, ``None`` with fewer than 2: Wilson's of a share, Student's t of
            anything else; or a given one, such as a bootstrap over tasks.
        seeds: how many seeds.
        bound: what was to be satisfied, as text.
        verdict: ``"holds"``: the whole interval satisfies the bound; ``"does not hold"``: the whole interval violates
            it; ``"undecided"``: it reaches across, or a value is undefined; ``"not tested"``: the note says why, such
            as one seed. A check is judged by its worst value.
        parts: of a claim of several statements, each with its values and its verdict; else empty.
        chance: what the value would be by chance, as text, or ``None``.
        severity: share of draws of data in which the claim is false that its own code does not call *holds*;
            ``None`` if there were none.
        severity_draws: number of these draws.
        severity_note: what they were, or why there are none.
        power: share of draws of data in which it is true that are called *holds*, or ``None``.
        history: verdicts of earlier runs.
        note: what a reader must know.
        per_seed: the values behind the mean.
    """

    id: str
    kind: Kind = "finding"
    statement: str
    source: str
    paper: float | None = None
    measured: float | None
    interval: Interval | None
    seeds: int
    bound: str
    verdict: Verdict
    parts: tuple[Part, ...] = ()
    chance: str | None = None
    severity: float | None = None
    severity_draws: int = 0
    severity_note: str = ""
    power: float | None = None
    history: tuple[EarlierRun, ...] = ()
    note: str = ""
    per_seed: tuple[float, ...] = ()

    def __repr__(self) -> str:
        return f"Claim({self.id!r}, {quoted(self.statement)}: {self.verdict})"

    @property
    def weak(self) -> bool:
        """Whether it is called true too often on data in which it is false: its severity is below .95."""
        return self.severity is not None and self.severity < WEAK

    @property
    def worst(self) -> float | None:
        """The value per seed that decides a check: the one that is nearest to violating its first bound."""
        relation, value = (self.parts[0].bound if self.parts else self.bound).split(";")[0].split()[-2:]
        found = Bound(relation, float(value)).worst(self.per_seed)
        return found if math.isfinite(found) else None

    @property
    def rows(self) -> list[Part]:
        """What tables show of it: one row for each part, those of one name in one, and at least one."""
        if not self.parts:
            return [Part("", self.per_seed, self.measured, self.interval, self.bound, self.verdict)]
        named = {name: [p for p in self.parts if p.name == name] for name in dict.fromkeys(p.name for p in self.parts)}
        return [
            replace(of[0], bound="; ".join(p.bound for p in of), verdict=together(p.verdict for p in of))
            for of in named.values()
        ]


_NUMBERS = ("measured", "low", "high", "seeds", "bound", "verdict", "severity", "severity_draws", "power")
_COLUMNS = ["id", "kind", "statement", *_NUMBERS, "paper", "chance", "source", "note"]


class Claims(list[Claim]):
    """Claims in the order of their study: a list that a notebook shows as a table."""

    def to_dataframe(self) -> pd.DataFrame:
        """One row for each claim: its fields, the ends of its interval as ``low`` and ``high``, and its verdict."""
        import pandas as pd

        ends = [dict(zip(("low", "high"), c.interval or (None, None), strict=True)) for c in self]
        return pd.DataFrame([{**vars(c), **span} for c, span in zip(self, ends, strict=True)], columns=_COLUMNS)

    def __repr__(self) -> str:
        verdicts = ", ".join(f"{n} {verdict!r}" for verdict, n in Counter(c.verdict for c in self).items())
        return f"Claims({len(self)} claims{verdicts and ': '}{verdicts}; print() shows them)"

    def __str__(self) -> str:
        return text_table(self)

    def _repr_html_(self) -> str:
        return claims_html(self)


def claim(
    id: str,
    statement: str,
    source: str,
    values: Sequence[float],
    bounds: Bound | Sequence[tuple[str, Sequence[float], Bound]],
    *,
    kind: Kind = "finding",
    interval: Interval | Mapping[str, Interval | None] | None = None,
    tested: bool = True,
    why_not: str = "",
    shares: bool | Collection[str] = False,
    paper: float | None = None,
    chance: str | None = None,
    severity: Severity | None = None,
    note: str = "",
) -> Claim:
    """A claim judged by its interval. Arguments that are not below are the fields of ``Claim``.

    Args:
        values: the main value, one per seed.
        bounds: of the main value; or several parts ``(name, one value per seed, bound)`` that must all hold, the
            first being the main value. Parts of one name have one interval.
        interval: 95%, where it is not over the values: a bootstrap's over tasks or documents. Of the main value, or
            of parts by name; ``None`` by name: a part has none, whatever its values.
        tested: whether this run can test it.
        why_not: why it cannot, for the note; by default, that this size of the study cannot.
        shares: whether all values are shares, 0 or 1 or of many examples, and have a share's interval; or the names of
            the parts whose values are.
        severity: how rarely the claim is called true where it is false.

    Raises:
        InputError: for an interval or share of a part that is not there, an interval whose ends are the wrong way
            round, and a share that is not between 0 and 1.

    Example:
        >>> found = claim("X1", "it is above a half", "ours", [0.7, 0.8, 0.75], Bound(">", 0.5))
        >>> found.verdict, claim("X2", "the same, one seed", "ours", [0.7], Bound(">", 0.5)).verdict
        ('holds', 'not tested')
    """
    named = [("", values, bounds)] if isinstance(bounds, Bound) else list(bounds)
    names = [name for name, _, _ in named]
    given = _given(id, interval, names)
    proportions = _shares(id, shares, names)
    spans = [
        given[name] if name in given else interval_over_seeds(of, share=name in proportions) for name, of, _ in named
    ]
    parts = [part_of(*part, span, kind) for part, span in zip(named, spans, strict=True)]
    parts = [_of_several_seeds(part) if kind == "finding" and part.name not in given else part for part in parts]
    notes = [*_missing(parts, why_not), *_undefined(parts), note] if tested else [note]
    found = Claim(
        id=id,
        kind=kind,
        statement=statement,
        source=source,
        paper=paper,
        measured=float(np.mean(values)) if len(values) and np.isfinite(values).all() else None,
        interval=parts[0].interval,
        seeds=len(values),
        bound="; ".join(f"{part.name} {part.bound}".strip() for part in parts),
        verdict=together(part.verdict for part in parts),
        parts=tuple(parts) if len(parts) > 1 else (),
        chance=chance,
        note="; ".join(filter(None, notes)),
        per_seed=tuple(float(v) for v in values),
    )
    found = found if severity is None else _with(found, severity)
    return found if tested else untested(found, why_not)


def untested(c: Claim, why_not: str = "") -> Claim:
    """The same claim without a verdict: its numbers stay, and its note says why they decide nothing.

    Args:
        c: with whatever verdict; of one that is not tested the note has a reason already.
        why_not: by default, that this size of the study cannot test it.
    """
    if c.verdict == "not tested" and c.note.startswith(_NOT_TESTED):
        return c
    parts = tuple(replace(part, verdict="not tested") for part in c.parts)
    why = f"{_NOT_TESTED}{why_not or 'this size of the study cannot test it'}"
    return replace(c, verdict="not tested", parts=parts, note="; ".join(filter(None, [why, c.note])))


_NOT_TESTED = "not tested: "


def _given(
    id: str, interval: Interval | Mapping[str, Interval | None] | None, names: Sequence[str]
) -> dict[str, Interval | None]:
    """Intervals that were given, by the name of the part."""
    if interval is None:
        return {}
    given: dict[str, Interval | None] = dict(interval) if isinstance(interval, Mapping) else {names[0]: interval}
    _check_parts(id, "an interval of", given, names)
    for low, high in filter(None, given.values()):
        if low > high:
            raise InputError(f"claim {id} has the interval {low:g} to {high:g}; give the lower end first")
    return {name: None if span is None else (float(span[0]), float(span[1])) for name, span in given.items()}


def _shares(id: str, shares: bool | Collection[str], names: Sequence[str]) -> set[str]:
    """Return the names of the parts whose values are shares."""
    if isinstance(shares, bool):
        return set(names) if shares else set()
    _check_parts(id, "a share", shares, names)
    return set(shares)


def _check_parts(id: str, what: str, asked: Collection[str], names: Sequence[str]) -> None:
    """Refuse the name of a part that a claim does not have."""
    if unknown := set(asked) - set(names):
        parts = ", ".join(map(repr, dict.fromkeys(names)))
        raise InputError(f"claim {id} has {what} {sorted(unknown)[0]!r}; expected one of its parts ({parts})")


def _of_several_seeds(part: Part) -> Part:
    """Return the part, not tested if it was measured with one seed."""
    return replace(part, verdict="not tested") if len(part.per_seed) == 1 else part


def _missing(parts: Sequence[Part], why_not: str) -> list[str]:
    """Return why a claim is not tested that has a part without values, or of one seed."""
    empty = dict.fromkeys(part.name or "the value" for part in parts if not part.per_seed)
    if empty:
        return [_NOT_TESTED + (why_not or f"{', '.join(empty)} could not be measured")]
    return [f"{_NOT_TESTED}one seed"] if any(part.verdict == "not tested" for part in parts) else []


def _undefined(parts: Sequence[Part]) -> list[str]:
    """What is said of values that are not finite: they leave a part without an interval."""
    counts = {
        part.name: (sum(not math.isfinite(v) for v in part.per_seed), len(part.per_seed))
        for part in parts
        if part.interval is None
    }
    return [f"{name or 'the value'} is undefined in {k} of {n} seeds" for name, (k, n) in counts.items() if k]


# ---- severity ----


def with_severity(
    claims: Iterable[Claim], severities: Mapping[str, Severity] | None = None, otherwise: Severity = NOT_COMPUTED
) -> list[Claim]:
    """The claims with their severities; checks have none.

    Args:
        claims: in any order.
        severities: by id.
        otherwise: of the findings that are not in ``severities`` and have none.
    """
    known = severities or {}
    return [
        c if c.kind == "check" or (c.severity_note and c.id not in known) else _with(c, known.get(c.id, otherwise))
        for c in claims
    ]


def lacking_severity(claims: Iterable[Claim]) -> list[str]:
    """The ids of findings that have neither a severity nor a reason why there is none."""
    return [c.id for c in claims if c.kind == "finding" and not c.severity_note]


def _with(c: Claim, severity: Severity) -> Claim:
    return replace(
        c,
        severity=severity.share,
        severity_draws=severity.draws,
        severity_note=severity.note,
        power=severity.power,
    )


# ---- files ----


def save_claims(claims: Sequence[Claim], path: Path) -> None:
    """Write ``claims.json``: a list of objects, one for each claim, with its checksum; undefined numbers are null."""
    write_atomic(path, claims_bytes(claims))


def claims_bytes(claims: Sequence[Claim]) -> bytes:
    """The content of ``claims.json``."""
    return json_bytes([asdict(c) for c in claims])


def load_claims(path: str | Path) -> Claims:
    """Load a run's ``claims.json``, given the file or the run's folder, with its ``history.json``.

    Raises:
        InputError: when there is none, or it is damaged.
    """
    path = Path(path)
    path = path / "claims.json" if path.is_dir() else path
    try:
        found = Claims(map(_claim, read_json(path, handwritten=True)))
    except DamagedError:
        why = "was changed or is damaged (its checksum does not match)"
    except (InputError, TypeError, KeyError, ValueError, AttributeError) as error:
        if not path.exists():
            raise InputError(f"no claims in {str(path)!r}; give the --out folder of a finished run") from None
        why = "is not a list of claims" + ("" if isinstance(error, InputError) else f" ({error})")
    else:
        return with_history(found, path.parent)
    raise InputError(f"{str(path)!r} {why}; delete it, and mechclust report writes it again")


def with_history(claims: Sequence[Claim], folder: str | Path) -> Claims:
    """The claims with what ``history.json`` in a folder says of earlier runs; as they are where there is none.

    The file is a list of objects ``{"claim": "T1", "run": ..., "seeds": 3, "verdict": ..., "changed": ...}``, the
    oldest first, written by hand. They are newer than what a claim's code says of earlier runs.

    Raises:
        InputError: when it is something else.
    """
    path = Path(folder) / HISTORY
    if not path.exists():
        return Claims(claims)
    try:
        kept = read_json(path, handwritten=True)
        records = [(r["claim"], _earlier({k: r[k] for k in r if k != "claim"})) for r in kept]
    except DamagedError:
        raise
    except (InputError, TypeError, KeyError, ValueError, AttributeError) as error:
        why = "" if isinstance(error, InputError) else f" ({error})"
        raise InputError(
            f"{str(path)!r} is not a list of earlier verdicts{why}; expected objects with claim, run, seeds, verdict "
            "and changed"
        ) from None
    of = {c.id: [earlier for id, earlier in records if id == c.id] for c in claims}
    return Claims(replace(c, history=tuple(dict.fromkeys([*c.history, *of[c.id]]))) for c in claims)


def _claim(record: Mapping[str, Any]) -> Claim:
    read = {
        "interval": _pair(record["interval"]),
        "per_seed": _numbers(record["per_seed"]),
        "parts": tuple(map(_part, record["parts"])),
        "history": tuple(map(_earlier, record["history"])),
    }
    found = Claim(**{**record, **read})
    _check(found.kind, KINDS)
    _check(found.verdict, VERDICTS)
    return found


def _part(record: Mapping[str, Any]) -> Part:
    read = {"interval": _pair(record["interval"]), "per_seed": _numbers(record["per_seed"])}
    found = Part(**{**record, **read})
    _check(found.verdict, VERDICTS)
    return found


def _earlier(record: Mapping[str, Any]) -> EarlierRun:
    found = EarlierRun(**record)
    _check(found.verdict, VERDICTS)
    return found


def _check(word: str, known: Sequence[str]) -> None:
    if word not in known:
        raise ValueError(f"{word!r} is none of {', '.join(known)}")


def _pair(ends: Sequence[float] | None) -> Interval | None:
    return None if ends is None else (ends[0], ends[1])


def _numbers(values: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(math.nan if v is None else v for v in values)


# ---- tables ----

_HEADS = ("", "statement", "measured", "95% interval", "n", "bound", "verdict", "severity")
_CHECK_HEADS = ("", "check", "worst value", "n", "bound", "verdict")
_Row = tuple[str, ...]


def markdown_table(claims: Sequence[Claim]) -> str:
    """The claims as a Markdown table, a row below a claim for each of its further parts; checks in one of their own."""
    return "\n\n".join(map(_markdown, _tables(claims)))


def text_table(claims: Sequence[Claim]) -> str:
    """The claims as a text table for a terminal, checks in one of their own; long statements are cut."""
    return "\n\n".join(map(_text, _tables(claims)))


def _markdown(rows: Sequence[_Row]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def _text(rows: Sequence[_Row]) -> str:
    cut = [(name, _cut(statement, 62), *map(_cut, others)) for name, statement, *others in rows]
    widths = [max(map(len, column)) for column in zip(*cut, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cut]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _cut(text: str, longest: int = 48) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _tables(claims: Sequence[Claim]) -> list[list[_Row]]:
    """Findings, and checks where there are any."""
    findings = [row for c in claims if c.kind == "finding" for row in _finding(c)]
    checks = [_checked(c) for c in claims if c.kind == "check"]
    found = [[_HEADS, *findings]] if findings or not checks else []
    return [*found, [_CHECK_HEADS, *checks]] if checks else found


def _finding(c: Claim) -> list[_Row]:
    first, *others = c.rows
    parts = [
        ("", f"and: {p.name}", *_values(p), str(len(p.per_seed)), p.bound, p.verdict, "") for p in others if p.per_seed
    ]
    bound = f"{first.name} {first.bound}".strip()
    return [(c.id, c.statement, *_values(first), str(c.seeds), bound, c.verdict, severity_text(c)), *parts]


def _checked(c: Claim) -> _Row:
    return (c.id, c.statement, "-" if c.worst is None else f"{c.worst:z.3g}", str(c.seeds), c.bound, c.verdict)


def _values(found: Part) -> tuple[str, str]:
    measured = "-" if found.measured is None else claim_number(found.measured)
    span = found.interval
    return measured, "-" if span is None else f"{claim_number(span[0])} to {claim_number(span[1])}"


def severity_text(c: Claim) -> str:
    """``0.985 of 200``, marked where it is weak, with the power of what does not hold; ``-`` where there is none."""
    if c.severity is None:
        return "-"
    power = "" if c.power is None or c.verdict == "holds" else f", power {c.power:.2f}"
    return f"{c.severity:.3f} of {c.severity_draws}{' (weak)' if c.weak else ''}{power}"
