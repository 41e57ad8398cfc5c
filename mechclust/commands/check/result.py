"""The result of a self-check: one row per check, as text, HTML or a data frame."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mechclust.report.html import table_html

if TYPE_CHECKING:
    import pandas as pd

_LINE_WIDTH = 120  # characters


class NotTried(Exception):
    """Raised inside a check that cannot be made, with the reason."""


@dataclass(frozen=True, repr=False)
class Check:
    """One check of a model.

    Attributes:
        name: the property that was checked.
        passed: whether it is as it should be; ``None``: it could not be tried.
        detail: the finding, with numbers. Of a failure also what it means and the way out.
        note: the model is fine, but there is something to know or to choose.

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
        if self.passed is None:
            return "not tried"
        if not self.passed:
            return "FAILED"
        return "note" if self.note else "ok"


@dataclass(frozen=True, repr=False)
class CheckReport:
    """Result of ``check_model``. ``print`` it, or let a notebook show it.

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
        raise KeyError(f"no check {name!r} in this report (it has {', '.join(check.name for check in self.checks)})")

    @property
    def headline(self) -> str:
        """The conclusion: how many checks passed, failed and were not tried."""
        outcomes = [check.passed for check in self.checks]
        counts = f"{outcomes.count(True)} passed, {outcomes.count(False)} failed, {outcomes.count(None)} not tried"
        return f"{self.model}: {counts}"

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row per check: ``check, verdict, passed, detail``; ``passed`` is missing if it was not tried."""
        import pandas as pd

        rows = [(check.name, check.verdict, check.passed, check.detail) for check in self.checks]
        table = pd.DataFrame(rows, columns=["check", "verdict", "passed", "detail"])
        return table.astype({"passed": "boolean"})

    @property
    def shown_table(self) -> pd.DataFrame:
        """The table for a notebook."""
        return self.to_dataframe()[["verdict", "check", "detail"]]

    def __repr__(self) -> str:
        return f"CheckReport({self.headline}; print() lists the checks)"

    def __str__(self) -> str:
        name_width = max((len(check.name) for check in self.checks), default=0)
        verdict_width = max((len(check.verdict) for check in self.checks), default=0)
        lines = [self.headline]
        for check in self.checks:
            start = f"{check.verdict:<{verdict_width}}  {check.name:<{name_width}}  "
            wrapped = textwrap.wrap(
                check.detail,
                max(_LINE_WIDTH, len(start) + 40),
                initial_indent=start,
                subsequent_indent="".ljust(len(start)),
                break_long_words=False,
                break_on_hyphens=False,
            )
            lines += wrapped or [start.rstrip()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return table_html(self.shown_table, self.headline)
