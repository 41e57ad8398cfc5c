"""Second opinions beside CKA: which there are, and what they are called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Opinion(NamedTuple):
    """A measure of the same pairs of layers, over the prompts of each task.

    Attributes:
        column: of the table.
        measure: of the probe's result.
        told: in words.
    """

    column: str
    measure: str
    told: str


OPINIONS: Mapping[str, Opinion] = {  # by attribute of the result
    "rbf": Opinion("rbf_cka", "debiased_rbf_cka", "with Gaussian kernels (debiased)"),
    "without_top_pc": Opinion(
        "without_top_pc", "debiased_cka", "debiased CKA without the largest principal component of each side"
    ),
    "svcca": Opinion("svcca", "svcca", "mean canonical correlation, not debiased: above 0 by chance"),
}
