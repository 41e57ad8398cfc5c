"""The tables of ``mechclust topics`` in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mechclust.report.chance import CHANCE_LEVEL, corrected, least_permutations
from mechclust.report.text import join, number_format
from probes.engine.sites import head_name

if TYPE_CHECKING:
    import pandas as pd

_ABOUT = {
    "attention": "Within documents, attention between words of one topic is {} times that between words of different "
    "topics",
    "cosine": "The cosine of token embeddings, same topic minus different topic, is {}",
    "dot": "The dot product of token embeddings, same topic minus different topic, is {}",
}
_number = number_format(".3g")


def first_token_notes(tokenization: Mapping[str, Any]) -> list[str]:
    """What it means for attention if a text's first token is a word of it.

    Args:
        tokenization: as from ``mechclust.models.tokenizers.tokenization_of``.

    Example:
        >>> first_token_notes({"adds": "[CLS] before, [SEP] after"})
        []
        >>> len(first_token_notes({"adds": "none"}))
        1
    """
    if " before" in tokenization.get("adds", " before"):
        return []
    return [
        "The tokenizer puts no special token before a text, so heads that attend mostly to the first token attend to a "
        "word, whatever its topic; compare with --bos yes."
    ]


def conclusions(measures: pd.DataFrame, heads: pd.DataFrame, n_permutations: int) -> list[str]:
    """What is above chance among everything examined, the most important first.

    Args:
        measures: as from ``TopicsResult.by_measure``.
        heads: as from ``TopicsResult.to_dataframe``.
        n_permutations: relabellings behind the p-values.
    """
    table = measures[measures["value"].notna()].copy()
    if not len(table):
        return ["At no threshold is there anything to compare; the notes say why."]
    if not n_permutations:
        return [
            "No relabellings were drawn, so that nothing tells these numbers from chance; give --n-permutations 99."
        ]
    table["corrected"] = corrected(table["p_value"])
    groups = {name.split(",")[0]: part for name, part in table.groupby("measure", sort=False)}
    variants = measures.groupby("measure", sort=False).size().max()
    found = [_measure(name, part, len(table), variants) for name, part in groups.items()]
    found[1:1] = _heads(heads, n_permutations)
    if not (table["corrected"] <= CHANCE_LEVEL).any():
        if (few := _few(table["p_value"], n_permutations)) is not None:
            found.append(few)
        found.append(
            "That does not mean that the model knows no topics: only words that are one token count, attention is "
            "averaged over all layers and heads, and topics found by counting words may not be the model's."
        )
    return found


def _measure(name: str, table: pd.DataFrame, n: int, variants: int) -> str:
    """One measure at every threshold, with and without overlap, of which so many variants were asked for."""
    above = table[table["corrected"] <= CHANCE_LEVEL]
    sentence = f"{_ABOUT[name].format(_span(table['value']))}"
    chance = f"chance: within {_number(table['null_low'].min())} to {_number(table['null_high'].max())}"
    untrained = f"; untrained: {_span(table['untrained'])}" if "untrained" in table else ""
    looked = f"corrected for the {n} comparisons made" if n > 1 else "one comparison made"
    if not len(above):
        p = f"the smallest p is {table['corrected'].min():.2g}, {looked}"
        return f"{sentence} ({chance}{untrained}), which is not shown to be more than chance: {p}."
    p = f"p at most {above['corrected'].max():.2g}, {looked}"
    every = "every threshold, with and without overlap" if table["overlap"].nunique() > 1 else "every threshold"
    where = every if len(above) == variants else _where(above)
    return f"{sentence} ({chance}{untrained}), above chance at {where} ({p})."


def _where(table: pd.DataFrame) -> str:
    return join(f"threshold {r.threshold:g} {'with' if r.overlap else 'without'} overlap" for r in table.itertuples())


def _heads(heads: pd.DataFrame, n_permutations: int) -> list[str]:
    """Single heads at the first threshold that has any, corrected for how many there are."""
    measured = heads[heads["ratio"].notna()]
    if not len(measured):
        return []
    first = measured.iloc[0]
    table = measured[(measured["threshold"] == first.threshold) & (measured["overlap"] == first.overlap)]
    where, m = f"At {_where(table.head(1))}", len(table)
    best = table.loc[table["ratio"].idxmax()]
    highest = (
        f"the highest ratio is {_number(best.ratio)}, of {head_name(best.layer, best['head'])} (chance: "
        f"{_number(best.null_low)} to {_number(best.null_high)})"
    )
    above = table[corrected(table["p_value"]) <= CHANCE_LEVEL]
    if len(above):
        blocks, verb = sorted(set(above["layer"])), "attends" if len(above) == 1 else "attend"
        return [
            f"{where}, {len(above)} of {m} heads {verb} more within topics than by chance, corrected for {m} heads, in "
            f"block{'s' * (len(blocks) > 1)} {join(map(str, blocks))}; {highest}."
        ]
    few = _few(table["p_value"], n_permutations)
    over = int((table["ratio"] > table["null_high"]).sum())
    return [
        f"{where}, no single head of {m} is shown to attend more within topics than by chance; {highest}. "
        f"{over or 'None'} lie{'s' * (over < 2)} above the 95% interval; {0.025 * m:.2g} would by chance, on average.",
        *([] if few is None else [few]),
    ]


def _few(p: pd.Series, n_permutations: int) -> str | None:
    """The note if there are too few relabellings for a p that survives the correction."""
    needed = least_permutations(len(p))
    if n_permutations >= needed or p.min() > 1.5 / (1 + n_permutations):
        return None
    return (
        f"With {n_permutations} relabellings no p can be below {1 / (1 + n_permutations):.2g}, too large for "
        f"{len(p)} comparisons; give --n-permutations {needed}."
    )


def _span(values: Iterable[float]) -> str:
    low, high = _number(np.nanmin(list(values))), _number(np.nanmax(list(values)))
    return low if low == high else f"{low} to {high}"
