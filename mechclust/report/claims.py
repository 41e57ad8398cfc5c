"""Claims: what a study tests, against bounds that were written before the run."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mechclust.report.html import claims_html
from probes.files import DamagedError, read_json, write_json
from tasks import InputError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Claim:
    """One tested statement.

    Attributes:
        id: short name, such as ``"T1"``.
        statement: what is claimed.
        source: where it comes from.
        paper: the source's own value, or ``None`` where it gives none.
        measured: mean over seeds, or ``None`` when not measured.
        interval: its 95% interval over seeds: Student's t, or ``None`` with fewer than 2 seeds; of a share
            Wilson's.
        seeds: how many seeds.
        bound: what ``measured`` was to satisfy, as text.
        holds: whether it does; ``None``: not tested at this size.
        per_seed: the values behind the mean.
        chance: what the value would be by chance, as text, or ``None``.
        note: what a reader must know.
    """

    id: str
    statement: str
    source: str
    paper: float | None
    measured: float | None
    interval: tuple[float, float] | None
    seeds: int
    bound: str
    holds: bool | None
    per_seed: tuple[float, ...] = ()
    chance: str | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """``holds``, ``does not hold`` or ``not tested at this size``."""
        return {True: "holds", False: "does not hold", None: "not tested at this size"}[self.holds]


_NUMBERS = ("measured", "low", "high", "seeds", "bound", "verdict")
_COLUMNS = ["id", "statement", *_NUMBERS, "paper", "chance", "source", "note"]


class Claims(list[Claim]):
    """Claims in the order of their study: a list that a notebook shows as a table."""

    def to_dataframe(self) -> pd.DataFrame:
        """One row for each claim: its fields, the ends of its interval as ``low`` and ``high``, and its verdict."""
        import pandas as pd

        ends = [dict(zip(("low", "high"), c.interval or (None, None), strict=True)) for c in self]
        rows = [{**vars(c), **span, "verdict": c.verdict} for c, span in zip(self, ends, strict=True)]
        return pd.DataFrame(rows, columns=_COLUMNS)

    def __repr__(self) -> str:
        return text_table(self)

    def _repr_html_(self) -> str:
        return claims_html(self)


_RELATIONS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}


@dataclass(frozen=True)
class Bound:
    """``>= 0.95`` and its like: how a measured value is judged. NaN satisfies no bound."""

    relation: str
    value: float

    def __str__(self) -> str:
        return f"{self.relation} {self.value:g}"

    def met(self, measured: float) -> bool:
        return bool(_RELATIONS[self.relation](measured, self.value))


def claim(
    id: str,
    statement: str,
    source: str,
    values: Sequence[float],
    bounds: Bound | Sequence[tuple[str, Sequence[float], Bound]],
    *,
    tested: bool = True,
    shares: bool = False,
    paper: float | None = None,
    chance: str | None = None,
    note: str = "",
) -> Claim:
    """A claim judged by its mean over seeds. Arguments that are not below are the fields of ``Claim``.

    Args:
        values: the main value, one per seed.
        bounds: of the main value's mean; or several parts ``(name, one value per seed, bound)`` that
            must all be met by their means, the first being the main value. A part without values leaves
            the claim untested.
        tested: whether this size of the study can test it.
        shares: the main values are 0 or 1, so that their mean is a share and has a share's interval.
    """
    parts = [("", values, bounds)] if isinstance(bounds, Bound) else list(bounds)
    means = [float(np.mean(v)) if len(v) else math.nan for _, v, _ in parts]
    text = "; ".join(f"{name} {bound}".strip() for name, _, bound in parts)
    pairs = zip(parts[1:], means[1:], strict=True)
    others = [f"{name} {mean:.3g}" for (name, _, _), mean in pairs if name and math.isfinite(mean)]
    known = len(values) > 0 and all(len(v) for _, v, _ in parts)
    return Claim(
        id=id,
        statement=statement,
        source=source,
        paper=paper,
        measured=means[0] if math.isfinite(means[0]) else None,
        interval=share_interval(values) if shares else interval(values),
        seeds=len(values),
        bound=text,
        holds=all(b.met(m) for m, (_, _, b) in zip(means, parts, strict=True)) if tested and known else None,
        per_seed=tuple(float(v) for v in values),
        chance=chance,
        note="; ".join(filter(None, [", ".join(others), note])),
    )


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95% interval of the mean (Student's t); ``None`` with fewer than two values.

    Example:
        >>> low, high = interval([1.0, 2.0, 3.0])
        >>> round(low, 3), round(high, 3)
        (-0.484, 4.484)
    """
    from scipy.stats import t

    if len(values) < 2 or not np.isfinite(values).all():
        return None
    half = float(t.ppf(0.975, len(values) - 1)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def share_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95% interval of a share (Wilson's) from values 0 and 1; ``None`` for none.

    Example:
        >>> low, high = share_interval([1.0] * 17 + [0.0] * 23)
        >>> round(low, 3), round(high, 3)
        (0.285, 0.578)
    """
    from scipy.stats import binomtest

    if not len(values):
        return None
    found = binomtest(int(sum(values)), len(values)).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


def save_claims(claims: Sequence[Claim], path: Path) -> None:
    """Write ``claims.json``: a list of objects, one for each claim, with its checksum; undefined numbers are null."""
    write_json(path, [asdict(c) for c in claims])


def load_claims(path: str | Path) -> Claims:
    """A run's ``claims.json``, or that of the run folder ``path``.

    Raises:
        InputError: when there is none, or it is damaged.
    """
    path = Path(path)
    path = path / "claims.json" if path.is_dir() else path
    try:
        return Claims(map(_claim, read_json(path, handwritten=True)))
    except DamagedError:
        why = "was changed or is damaged (its checksum is another)"
    except (InputError, TypeError, KeyError, AttributeError) as error:
        if not path.exists():
            raise InputError(f"no claims in {str(path)!r}; give the --out folder of a finished run") from None
        why = "is not a list of claims" + ("" if isinstance(error, InputError) else f" ({error})")
    raise InputError(f"{str(path)!r} {why}; mechclust report writes it anew")


def _claim(record: Mapping[str, Any]) -> Claim:
    interval, values = record["interval"], record["per_seed"]
    return Claim(**{**record, "interval": interval and tuple(interval), "per_seed": tuple(values)})


def markdown_table(claims: Sequence[Claim]) -> str:
    """The claims as a Markdown table."""
    rows = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in _cells(claims)]
    return "\n".join([rows[0], "|---" * 7 + "|", *rows[1:]])


def text_table(claims: Sequence[Claim]) -> str:
    """The claims as a text table for a terminal; long statements are cut."""
    rows = [(name, _cut(statement), *others) for name, statement, *others in _cells(claims)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _cut(statement: str, longest: int = 62) -> str:
    return statement if len(statement) <= longest else f"{statement[: longest - 1]}…"


def _cells(claims: Sequence[Claim]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("", "statement", "measured", "95% interval", "seeds", "bound", "verdict")]
    for c in claims:
        measured = "-" if c.measured is None else f"{c.measured:z.3f}"
        span = "-" if c.interval is None else f"{c.interval[0]:z.3f} to {c.interval[1]:z.3f}"
        rows.append((c.id, c.statement, measured, span, str(c.seeds), c.bound, c.verdict))
    return rows
