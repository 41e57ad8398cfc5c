"""The check C10: CKA in its biased form agrees with the debiased one where prompts are many."""

from __future__ import annotations

from collections.abc import Sequence

from mechclust.evidence import Bound, Finding, check_part

_PROMPTS_PER_DIMENSION = 10  # with fewer, the biased form is too high


def forms_agree(differences: Sequence[float], n: int, d: int, not_tested: str = "") -> Finding:
    """Return C10: the two forms of CKA differ by 0.02 at most.

    Args:
        differences: the largest of each run, over models, tasks and layers.
        n: prompts of the task that has the fewest.
        d: width of the model.
        not_tested: why it cannot be tested, or ``""``.

    Example:
        >>> forms_agree([0.004, 0.01], n=1000, d=64).verdict
        'holds'
    """
    few = ""
    if n < _PROMPTS_PER_DIMENSION * d:
        few = f"{n:,} prompts for {d:,} dimensions; expected {_PROMPTS_PER_DIMENSION} per dimension"
    return Finding(
        id="C10",
        kind="check",
        statement=f"biased and debiased CKA agree within 0.02 at n = {n}, d = {d} (largest difference)",
        source="ours",
        parts=(check_part("", differences, Bound("<=", 0.02)),),
        not_tested=not_tested or few,
    )
