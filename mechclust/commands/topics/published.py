"""The published tables: same topic over different topic, on Wikipedia, by ambiguity threshold.

Source: Li, Li & Risteski (ICML 2023, arXiv 2303.04245), as shown in the talk's slides.
"""

from __future__ import annotations

SOURCE = "Li, Li & Risteski (ICML 2023)"
THRESHOLDS = (0.0005, 0.001, 0.002)
PUBLISHED = ("BERT", "ALBERT", "BART", "ELECTRA", "RoBERTa")  # encoders in the tables
RANDOM = "random BERT"

# By model: cosine, dot product and attention of words with one topic, then of words that may have several.
_TABLE = {
    "BERT": (
        (1.21, 1.13, 1.11), (1.19, 1.15, 1.13), (1.32, 1.28, 1.22),
        (1.14, 0.97, 0.99), (1.04, 1.05, 0.93), (1.23, 1.17, 1.13),
    ),
    "ALBERT": (
        (5.64, 4.18, 3.24), (6.29, 3.74, 2.93), (1.33, 1.28, 1.22),
        (4.15, 3.09, 1.54), (3.06, 3.04, 1.44), (1.23, 1.17, 1.11),
    ),
    "BART": (
        (2.80, 1.95, 1.63), (2.67, 1.92, 1.62), (1.35, 1.31, 1.23),
        (2.51, 1.63, 1.06), (1.76, 1.12, 0.85), (1.27, 1.20, 1.11),
    ),
    "ELECTRA": (
        (5.98, 7.70, 7.46), (5.37, 7.35, 8.08), (2.14, 2.09, 1.95),
        (5.28, 5.56, 6.39), (3.99, 5.57, 5.61), (1.70, 1.58, 1.48),
    ),
    "RoBERTa": (
        (6.44, 5.73, 5.24), (6.81, 6.31, 5.30), (1.40, 1.31, 1.22),
        (4.39, 5.20, 4.71), (5.01, 4.25, 4.15), (1.19, 1.15, 1.12),
    ),
    RANDOM: (
        (1.00080, 0.99974, 1.00016), (1.00063, 1.00036, 1.00027), (0.99943, 0.99996, 1.00007),
        (0.998, 0.998, 1.000), (1.000, 1.002, 0.999), (1.000, 1.000, 1.000),
    ),
}  # fmt: skip
_MEASURES = ("cosine", "dot", "attention")


def published_ratio(model: str, measure: str, threshold: float, overlap: bool) -> float:
    """Return a number of the tables, or NaN if they have none.

    Args:
        model: one of ``PUBLISHED``, or ``RANDOM``.
        measure: ``"cosine"``, ``"dot"`` or ``"attention"``.
        threshold: the ambiguity threshold.
        overlap: whether words may have several topics.

    Example:
        >>> published_ratio("ELECTRA", "attention", 0.001, overlap=True), published_ratio("GPT", "dot", 0.001, False)
        (1.58, nan)
    """
    if model not in _TABLE or threshold not in THRESHOLDS or measure not in _MEASURES:
        return float("nan")
    return _TABLE[model][_MEASURES.index(measure) + 3 * overlap][THRESHOLDS.index(threshold)]
