"""How measured numbers are written."""

from __future__ import annotations


def measured_number(x: float) -> str:
    """Return a number with three decimals, or two digits if three decimals would show a small one as zero.

    Example:
        >>> measured_number(1.2345), measured_number(-0.00047), measured_number(-1e-17)
        ('1.234', '-0.00047', '0.000')
    """
    return f"{x:.2g}" if 1e-9 < abs(x) < 5e-4 else f"{x:z.3f}"
