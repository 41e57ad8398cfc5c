"""The findings of a study: as a list, a file and a data frame."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from mechclust.evidence.bounds import Bound, TwoSidedBound
from mechclust.evidence.control import Control
from mechclust.evidence.finding import Finding, Kind, Shown
from mechclust.evidence.finding_tables import findings_in_tables, findings_notebook_table, findings_text_table
from mechclust.evidence.parts import Method, Part
from mechclust.evidence.verdict import MARKS, VERDICTS, EarlierVerdict, Verdict
from probes.store.files import DamagedError, json_bytes, read_json
from tasks import InputError

if TYPE_CHECKING:
    import pandas as pd

FILE = "findings.json"
TOO_SMALL = "this size of the study cannot test it"
_HISTORY = "history.json"
_COLUMNS = (
    "id", "kind", "shown", "statement", "part", "measured", "low", "high", "n", "unit", "bound", "control",
    "control_measured", "control_low", "control_high", "verdict", "paper", "source", "note",
)  # fmt: skip


class Findings(list[Finding]):
    """Findings in the order of their study: a list that a notebook shows as a table."""

    def to_dataframe(self) -> pd.DataFrame:
        """Return a row for each part of each finding, with its control's values and the verdict on the finding."""
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for finding in self:
            rows += _rows(finding)
        return pd.DataFrame(rows, columns=_COLUMNS)

    @property
    def headline(self) -> str:
        """The conclusion: how many of the findings that pages show hold, and which do not.

        Example:
            >>> from mechclust.evidence import Bound, Finding, check_part
            >>> part = check_part("", [0.9, 0.8], Bound(">", 0.5))
            >>> high = Finding(id="T1", statement="the score is high", source="ours", parts=(part,))
            >>> Findings([high, replace(high, id="T2", not_tested="needs ten seeds")]).headline
            '1 of 1 findings tested holds.'
        """
        shown = [finding for finding in findings_in_tables(self) if finding.kind == "finding"]
        tested = [finding for finding in shown if finding.verdict != "not tested"]
        if not tested:
            return f"No finding was tested: {shown[0].why_not}." if shown else ""
        ids: dict[Verdict, list[str]] = {}
        for finding in tested:
            ids.setdefault(finding.verdict, []).append(finding.id)
        holding = len(ids.pop("holds", ()))
        others = "".join(f" {MARKS[verdict]} {verdict}: {_first_ids(ids[verdict])}." for verdict in ids)
        exploratory = " Exploratory: seeds were added." if any(finding.exploratory for finding in tested) else ""
        return f"{holding} of {len(tested)} findings tested {'holds' if holding == 1 else 'hold'}.{others}{exploratory}"

    def __repr__(self) -> str:
        counts = Counter(finding.verdict for finding in self)
        verdicts = ", ".join(f"{count} {verdict!r}" for verdict, count in counts.items())
        return f"Findings({len(self)} findings{verdicts and ': '}{verdicts}; print() shows them)"

    def __str__(self) -> str:
        return findings_text_table(self)

    def _repr_html_(self) -> str:
        return findings_notebook_table(self)


def _first_ids(ids: Sequence[str]) -> str:
    """Return up to five of the ids, and how many more there are."""
    more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
    return ", ".join(ids[:5]) + more


def _rows(finding: Finding) -> list[dict[str, Any]]:
    about = {
        "id": finding.id,
        "kind": finding.kind,
        "shown": finding.shown,
        "statement": finding.statement,
        "unit": finding.unit,
        "control": finding.control.name if finding.control else None,
        "verdict": finding.verdict,
        "paper": finding.paper,
        "source": finding.source,
        "note": "; ".join(finding.remarks),
    }
    rows = []
    for place, part in enumerate(finding.parts):
        row = {**about, "part": part.name, "n": len(part.values), "bound": str(part.bound), **_measured(part)}
        if finding.control:
            control = _measured(finding.control.parts[place])
            row |= {f"control_{name}": value for name, value in control.items()}
        rows.append(row)
    return rows or [about]


def _measured(part: Part) -> dict[str, float | None]:
    low, high = part.interval or (None, None)
    return {"measured": part.measured, "low": low, "high": high}


def untested_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings as not tested, because the study is too small. Those that have a reason keep it."""
    return [replace(finding, not_tested=finding.not_tested or TOO_SMALL) for finding in findings]


# ---- files ----


def findings_bytes(findings: Sequence[Finding]) -> bytes:
    """Return the content of ``findings.json``."""
    return json_bytes([_record(finding) for finding in findings])


def _record(finding: Finding) -> dict[str, Any]:
    record = asdict(finding)
    record["verdict"] = finding.verdict
    record["parts"] = [_part_record(part) for part in finding.parts]
    if finding.control is not None:
        parts = [_part_record(part) for part in finding.control.parts]
        record["control"] = {"name": finding.control.name, "verdict": finding.control.verdict, "parts": parts}
    return record


def _part_record(part: Part) -> dict[str, Any]:
    return {**asdict(part), "bound": _bound_text(part.bound), "measured": part.measured, "verdict": part.verdict}


def _bound_text(bound: Bound | TwoSidedBound) -> str:
    """Return a bound as tables show it, but with all digits, so that the loaded finding has the same verdict."""
    if isinstance(bound, TwoSidedBound):
        return f"{_exact_number(bound.low)} to {_exact_number(bound.high)}"
    return f"{bound.relation} {_exact_number(bound.value)}"


def _exact_number(value: float) -> str:
    """Return the short text of a number if it is exact, otherwise all digits."""
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))


def load_findings(path: str | Path) -> Findings:
    """Load a run's ``findings.json`` with its ``history.json``.

    Verdicts are recomputed by the installed version from the values in the file.

    Args:
        path: the file, or the folder of a run or record.

    Raises:
        InputError: if there is none, or it is damaged or of version 0.1.

    Example:
        >>> load_findings("runs/task-clusters")  # doctest: +SKIP
    """
    path = Path(path)
    path = path / FILE if path.is_dir() else path
    if not path.exists():
        if (path.parent / "claims.json").exists():
            raise InputError(f"{str(path.parent)!r} is of mechclust 0.1; mechclust report writes its findings anew")
        raise InputError(f"no findings in {str(path)!r}; give the --out folder of a finished run")
    try:
        findings = Findings(_finding(record) for record in read_json(path, handwritten=True))
    except DamagedError:
        why = "was changed or is damaged (its checksum does not match)"
    except (InputError, TypeError, KeyError, ValueError, AttributeError) as error:
        why = "is not a list of findings" + ("" if isinstance(error, InputError) else f" ({error})")
    else:
        return findings_with_history(findings, path.parent)
    raise InputError(f"{str(path)!r} {why}; delete it, and mechclust report writes it again")


def findings_with_history(findings: Sequence[Finding], folder: str | Path) -> Findings:
    """Return the findings with the earlier runs that ``history.json`` in a folder lists.

    The file is a list of objects ``{"finding": "T1", "run": ..., "seeds": 3, "verdict": ..., "changed": ...}``, the
    oldest first, written by hand.

    Raises:
        InputError: if it is something else.
    """
    path = Path(folder) / _HISTORY
    if not path.exists():
        return Findings(findings)
    try:
        kept = read_json(path, handwritten=True)
        earlier = [(record["finding"], _earlier_run(record)) for record in kept]
    except DamagedError:
        raise
    except (InputError, TypeError, KeyError, ValueError, AttributeError) as error:
        why = "" if isinstance(error, InputError) else f" ({error})"
        raise InputError(
            f"{str(path)!r} is not a list of earlier verdicts{why}; expected objects with finding, run, seeds, verdict "
            "and changed"
        ) from None
    with_runs = []
    for finding in findings:
        runs = [*finding.history, *(run for id, run in earlier if id == finding.id)]
        with_runs.append(replace(finding, history=tuple(dict.fromkeys(runs))))
    return Findings(with_runs)


def _finding(record: Mapping[str, Any]) -> Finding:
    fields = {name: value for name, value in record.items() if name != "verdict"}
    _check_word(record["kind"], get_args(Kind))
    _check_word(record["shown"], get_args(Shown))
    control = record["control"]
    if control is not None:
        fields["control"] = Control(control["name"], tuple(map(_part, control["parts"])))
    fields["parts"] = tuple(map(_part, record["parts"]))
    fields["history"] = tuple(map(_earlier_run, record["history"]))
    return Finding(**fields)


def _part(record: Mapping[str, Any]) -> Part:
    _check_word(record["method"], get_args(Method))
    ends = record["interval"]
    values = tuple(math.nan if value is None else value for value in record["values"])
    interval = None if ends is None or None in ends else (ends[0], ends[1])
    return Part(record["name"], values, _bound(record["bound"]), interval, record["method"])


def _bound(text: str) -> Bound | TwoSidedBound:
    first, *others = text.split()
    if others[0] == "to":
        return TwoSidedBound(float(first), float(others[1]))
    _check_word(first, (">=", ">", "<=", "<"))
    return Bound(first, float(others[0]))


def _earlier_run(record: Mapping[str, Any]) -> EarlierVerdict:
    _check_word(record["verdict"], VERDICTS)
    return EarlierVerdict(**{name: value for name, value in record.items() if name != "finding"})


def _check_word(word: str, known: Sequence[str]) -> None:
    if word not in known:
        raise ValueError(f"{word!r} is none of {', '.join(known)}")
