"""What a self-check found: one row per check, as text, HTML or a data frame."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mechclust.report.html import table_html

if TYPE_CHECKING:
    import pandas as pd

_WIDTH = 120


class NotTried(Exception):
    """Raised inside a check that cannot be made, with the reason."""


@dataclass(frozen=True, repr=False)
class Check:
    """One check of a model.

    Attributes:
        name: what was checked.
        passed: whether it is as it should be; ``None``: it could not be tried.
        detail: what was found, with numbers. Of a failure also what it means and the way out.
        note: nothing is wrong, but there is something to know or to choose.

    Example:
        >>> Check("hook points", passed=True, detail="all 37 fired").passed
        True
    """

    name: str
    passed: bool | None
    detail: str
    note: bool = False

    def __repr__(self) -> str:
        return f"Check({self.name!r}: {self.verdict})"

    @property
    def verdict(self) -> str:
        """``ok``, ``note``, ``FAILED`` or ``not tried``."""
        return {True: "note" if self.note else "ok", False: "FAILED", None: "not tried"}[self.passed]


@dataclass(frozen=True, repr=False)
class CheckReport:
    """What ``check_model`` found. ``print`` it, or let a notebook show it.

    Attributes:
        model: the model's name, or its class.
        checks: one row per check, in the order in which they were made.

    Example:
        >>> report = CheckReport("tiny", [Check("finite values", True, "10 weights"), Check("tokenizer", None, "none")])
        >>> print(report)
        tiny: 1 passed, 0 failed, 1 not tried
        ok         finite values  10 weights
        not tried  tokenizer      none
        >>> report.passed, report["tokenizer"].verdict
        (True, 'not tried')
    """

    model: str
    checks: Sequence[Check]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not any(check.passed is False for check in self.checks)

    def __getitem__(self, name: str) -> Check:
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(f"no check {name!r} in this report (it has {', '.join(c.name for c in self.checks)})")

    @property
    def summary(self) -> str:
        """One line: the model, and how many checks passed, failed and were not tried."""
        counts = (sum(c.passed is verdict for c in self.checks) for verdict in (True, False, None))
        return "{}: {} passed, {} failed, {} not tried".format(self.model, *counts)

    def to_dataframe(self) -> pd.DataFrame:
        """One row per check: ``check, verdict, passed, detail``; ``passed`` is missing where it was not tried."""
        import pandas as pd

        frame = pd.DataFrame(
            [(c.name, c.verdict, c.passed, c.detail) for c in self.checks],
            columns=["check", "verdict", "passed", "detail"],
        )
        return frame.astype({"passed": "boolean"})

    def __repr__(self) -> str:
        return f"CheckReport({self.summary}; print() lists the checks)"

    def __str__(self) -> str:
        names, verdicts = (max((len(getattr(c, x)) for c in self.checks), default=0) for x in ("name", "verdict"))
        lines = [self.summary]
        for check in self.checks:
            start = f"{check.verdict:<{verdicts}}  {check.name:<{names}}  "
            lines += textwrap.wrap(
                check.detail,
                max(_WIDTH, len(start) + 40),
                initial_indent=start,
                subsequent_indent=" " * len(start),
                break_long_words=False,
                break_on_hyphens=False,
            ) or [start.rstrip()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return table_html(self.to_dataframe()[["verdict", "check", "detail"]], self.summary)
