"""Conclusions on a model's topic structure: one headline and a table of readings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mechclust.commands.topics.tables import first_measured
from mechclust.commands.topics.variants import variant_title
from mechclust.evidence.intervals import value_with_interval
from mechclust.evidence.p_values import CHANCE_LEVEL, corrected_p_values, least_permutations_for_p_values
from mechclust.report.reading import Reading
from mechclust.report.text import list_text
from probes.engine.head_names import head_name

if TYPE_CHECKING:
    import pandas as pd

_NAMES = {
    "attention, ratio": "attention",
    "cosine, difference": "embedding cosine",
    "dot, difference": "embedding dot product",
}
_TITLES = {
    "attention, ratio": "Attention within documents, same / different topic",
    "cosine, difference": "Cosine of token embeddings, same - different topic",
    "dot, difference": "Dot product of token embeddings, same - different topic",
}


def headline(measures: pd.DataFrame, heads: pd.DataFrame, n_permutations: int) -> str:
    """Return the conclusion.

    Args:
        measures: as from ``TopicsResult.by_measure``.
        heads: as from ``TopicsResult.to_dataframe``.
        n_permutations: number of relabellings behind the p-values.
    """
    tested = _tested(measures, "value")
    if not len(tested):
        return "At no threshold is there anything to compare; the notes say why."
    if not n_permutations:
        return "No relabellings were drawn, so nothing separates these numbers from chance; give --n-permutations 99."
    names = [_NAMES[name] for name in _above(tested)["measure"].unique()]
    conclusion = (
        "Neither attention nor token embeddings are shown to bring words of one topic together more than by chance."
    )
    if names:
        conclusion = f"Words of one topic belong together more than by chance in {list_text(names)}."
    of_heads = _tested(first_measured(heads), "ratio")
    if not len(of_heads):
        return conclusion
    n_above = len(_above(of_heads))
    if not n_above and list(_too_few(of_heads["p_value"], n_permutations)):
        return f"{conclusion} Heads: too few relabellings to tell."
    return f"{conclusion} Heads above chance: {n_above} of {len(of_heads)}."


def readings(
    measures: pd.DataFrame,
    heads: pd.DataFrame,
    n_permutations: int,
    highest_ends: tuple[float, float] = (math.nan, math.nan),
) -> list[Reading]:
    """Return comparisons with chance, the most important first. Without relabellings, there are none.

    Arguments as ``headline``, and the interval of the highest ratio of a head.
    """
    tested = _tested(measures, "value")
    if not len(tested) or not n_permutations:
        return []
    n_variants = len(measures) // measures["measure"].nunique()
    first, *others = [
        _measure(name, table, len(tested), n_variants) for name, table in tested.groupby("measure", sort=False)
    ]
    of_heads = _tested(first_measured(heads), "ratio")
    conclusions = [first, *_heads(of_heads, n_permutations, highest_ends), *others]
    if not len(_above(tested)):
        conclusions += _too_few(tested["p_value"], n_permutations)
        conclusions.append(
            Reading(
                "Above chance",
                "no measure",
                verdict="That does not mean that the model knows no topics: only words that are one token count, "
                "attention is averaged over all layers and heads, and topics found by counting words may not be the "
                "model's.",
            )
        )
    return conclusions


def _tested(table: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Return the rows with a value, with p corrected for their number."""
    measured = table[table[measure].notna()]
    return measured.assign(corrected=corrected_p_values(measured["p_value"]))


def _above(tested: pd.DataFrame) -> pd.DataFrame:
    return tested[tested["corrected"] <= CHANCE_LEVEL]


def _measure(name: str, table: pd.DataFrame, n_tests: int, n_variants: int) -> Reading:
    """Read one measure at every threshold, with and without overlap."""
    above = _above(table)
    correction = f"corrected for {n_tests} comparisons" if n_tests > 1 else "one comparison"
    if len(above):
        titles = [variant_title(row.threshold, row.overlap) for row in above.itertuples()]
        every = "every threshold, with and without overlap" if table["overlap"].nunique() > 1 else "every threshold"
        where = every if len(above) == n_variants else list_text(titles)
        verdict = f"Above chance at {where} (p at most {above['corrected'].max():.2g}, {correction})."
    else:
        least = table["corrected"].min()
        verdict = f"Not shown to be more than chance (smallest p {least:.2g}, {correction})."
    return Reading(
        _TITLES[name],
        _span_with_ends(table),
        chance=_span(table["null_low"].min(), table["null_high"].max()),
        random_weights=_span(table["untrained"].min(), table["untrained"].max()) if "untrained" in table else "",
        verdict=verdict,
    )


def _heads(tested: pd.DataFrame, n_permutations: int, highest_ends: tuple[float, float]) -> Iterator[Reading]:
    """Yield how many heads of the first variant are above chance, and the highest."""
    if not len(tested):
        return
    best = tested.loc[tested["ratio"].idxmax()]
    title = variant_title(best.threshold, best.overlap)
    above = _above(tested)
    value = f"{len(above)} of {len(tested)}" if len(above) else f"none of {len(tested)}"
    verdict = f"Corrected for {len(tested)} heads."
    if len(above):
        blocks = sorted(set(above["layer"]))
        value += f", in {'block' if len(blocks) == 1 else 'blocks'} {list_text(map(str, blocks))}"
    else:
        n_outside = int((tested["ratio"] > tested["null_high"]).sum())
        verdict += f" Above their own 95% interval: {n_outside}; by chance, on average: {0.025 * len(tested):.2g}."
    yield Reading("Heads with more attention within topics than by chance", value, title, verdict=verdict)
    chance = _span(best.null_low, best.null_high)
    yield Reading(
        "Highest ratio of a head",
        value_with_interval(best.ratio, highest_ends, ".3g"),
        f"{head_name(best.layer, best['head'])}, {title}",
        chance,
    )
    if not len(above):
        yield from _too_few(tested["p_value"], n_permutations)


def _too_few(p: pd.Series[float], n_permutations: int) -> Iterator[Reading]:
    """Yield that there are too few relabellings for a p that survives the correction, if so."""
    needed = least_permutations_for_p_values(len(p))
    least = 1 / (1 + n_permutations)
    if n_permutations < needed and p.min() <= 1.5 * least:
        verdict = f"No p can be below {least:.2g}, too large for {len(p)} comparisons; give --n-permutations {needed}."
        yield Reading("Relabellings", str(n_permutations), verdict=verdict)


def _span_with_ends(table: pd.DataFrame) -> str:
    """Return the values of all variants, with the outermost ends of their intervals in brackets."""
    span = _span(table["value"].min(), table["value"].max())
    if "value_low" not in table or table["value_low"].isna().any():
        return span
    return f"{span} ({table['value_low'].min():z.3g} to {table['value_high'].max():z.3g})"


def _span(low: float, high: float) -> str:
    ends: Sequence[str] = sorted({f"{low:z.3g}", f"{high:z.3g}"}, key=float)
    return " to ".join(ends)
