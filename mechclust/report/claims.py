"""Claims: what a study tests, against bounds that were written before the run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probes.files import write_atomic
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


class Claims(list[Claim]):
    """Claims in the order of their study: a list that a notebook shows as a table."""

    def to_dataframe(self) -> pd.DataFrame:
        """One row a claim: ``id, statement, measured, low, high, seeds, bound, verdict`` and what explains them."""
        import pandas as pd

        rows = [
            {
                "id": c.id,
                "statement": c.statement,
                "measured": c.measured,
                "low": c.interval and c.interval[0],
                "high": c.interval and c.interval[1],
                "seeds": c.seeds,
                "bound": c.bound,
                "verdict": c.verdict,
                "paper": c.paper,
                "chance": c.chance,
                "source": c.source,
                "note": c.note,
            }
            for c in self
        ]
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        return text_table(self)

    def _repr_html_(self) -> str:
        from mechclust.report.page import claims_html

        return claims_html(self)


@dataclass(frozen=True)
class Bound:
    """``>= 0.95`` and its like: how a measured value is judged. NaN satisfies no bound."""

    relation: str
    value: float

    def __str__(self) -> str:
        return f"{self.relation} {self.value:g}"

    def met(self, measured: float) -> bool:
        return {
            ">=": measured >= self.value,
            ">": measured > self.value,
            "<=": measured <= self.value,
            "<": measured < self.value,
        }[self.relation]


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
    """A claim judged by its mean over seeds.

    Args:
        id, statement, source, paper, chance, note: as in ``Claim``.
        values: the main value, one a seed.
        bounds: of the main value's mean; or several parts ``(name, one value a seed, bound)`` that
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

    if len(values) < 2:
        return None
    if not np.isfinite(values).all():
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
    """Write ``claims.json``: a list of objects, one a claim."""
    records = [_finite(asdict(c)) for c in claims]
    write_atomic(path, (json.dumps(records, indent=1, allow_nan=False) + "\n").encode())


def _finite(value: Any) -> Any:
    """JSON has no NaN: undefined numbers become null."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def load_claims(path: str | Path) -> Claims:
    """A run's ``claims.json``, or that of the run folder ``path``.

    Raises:
        InputError: when there is none, or it is damaged.
    """
    path = Path(path)
    path = path / "claims.json" if path.is_dir() else path
    try:
        return Claims(map(_claim, json.loads(path.read_text())))
    except FileNotFoundError:
        raise InputError(f"no claims in {str(path)!r}; give the --out folder of a finished run") from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{str(path)!r} is no list of claims ({error}); mechclust report writes it anew") from None


def _claim(record: Mapping[str, Any]) -> Claim:
    interval, values = record["interval"], record["per_seed"]
    return Claim(**{**record, "interval": interval and tuple(interval), "per_seed": tuple(values)})


def _cells(claims: Sequence[Claim]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("", "statement", "measured", "95% interval", "seeds", "bound", "verdict")]
    for c in claims:
        measured = "-" if c.measured is None else f"{c.measured:.3f}"
        span = "-" if c.interval is None else f"{c.interval[0]:.3f} to {c.interval[1]:.3f}"
        rows.append((c.id, c.statement, measured, span, str(c.seeds), c.bound, c.verdict))
    return rows


def markdown_table(claims: Sequence[Claim]) -> str:
    """The claims as a Markdown table."""
    rows = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in _cells(claims)]
    return "\n".join([rows[0], "|---" * 7 + "|", *rows[1:]])


def text_table(claims: Sequence[Claim]) -> str:
    """The claims as a text table for a terminal; long statements are cut."""
    rows = _cells(claims)
    widths = [min(max(len(row[i]) for row in rows), 62 if i == 1 else 200) for i in range(7)]
    lines = []
    for row in rows:
        cells = [cell if len(cell) <= w else cell[: w - 1] + "…" for cell, w in zip(row, widths, strict=True)]
        lines.append("  ".join(cell.ljust(w) for cell, w in zip(cells, widths, strict=True)).rstrip())
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])
