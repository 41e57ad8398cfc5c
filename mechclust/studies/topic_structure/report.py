"""Figures, tables and notes of a run of the published experiments, E1 to E4."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mechclust.report.analysis import Analysis
from mechclust.report.html import table_html
from mechclust.report.panel import Panel
from mechclust.report.text import counted
from mechclust.studies.topic_structure.attention_table import (
    attention_means,
    attention_table,
    implied_table,
)
from mechclust.studies.topic_structure.config import TopicStructureConfig
from mechclust.studies.topic_structure.results import ArmRuns
from probes import ProbeResult

if TYPE_CHECKING:
    import pandas as pd

_CAPTIONS = {
    "heat_maps": "Entries between words, ordered by topic, run of seed {first}: W_E^T W_E (E1), W_V (E2, paper's "
    "orientation).",
    "everything_trained": "E1b, everything trained: same-topic minus different-topic entries of W_E^T W_E off the "
    "diagonal, in standard deviations of the entries, less the same before training. Dotted: the bound of P3b. Mean "
    "over {everything}, band: minimum to maximum.",
    "optimum": "Left: distance of the minimiser with weight decay from the closed form of theorem 2, all entries, by "
    "the number of documents and their length; dotted: for the minimiser of all documents of that length; dashed: "
    "slope -1/2. Right: distance of the trained W_V from the closed form, from the minimiser of the documents that it "
    "is trained on, and from that of others. Mean over {seeds}, band: minimum to maximum.",
    "stages": "E3: share of W_V's total change (norm of the difference from the start) when W_K or W_Q has made a "
    "tenth of its own, one point for each of {seeds}, line: mean. At least a half (dotted): two stages. Crosses: "
    "settings in which the share is undefined in some seed. Rates for the squared loss are those for its sum.",
    "norms": "E3, the network as released, SGD with cross-entropy from near zero: Frobenius norms of the weights, a "
    "line for each of {released}; dotted: the end of stage 1, when W_K or W_Q has made a tenth of its total change.",
    "attention": "E4: the published attention table and ours, one point for each of {table}, line: mean. Right "
    "labels on the first tokens are what the paper describes; shifted labels on whole documents what it seems to show.",
    "mixing": "g against the number of topics a document mixes; dashed: the population optimum with ten topics, if it "
    "is known; dotted: theorem 3's bounds with constants 1; grey, dashed: uniform attention. One point for each of "
    "{seeds}.",
}
_NOTES = [
    "Documents of E1, E2 and E4a theory follow the theory (an equal mix of a few topics, no START and END); those of "
    "E1b, E3 and E4 follow the paper's experiments (Dirichlet).",
    "E4 trains the network as released: a one-hot input with a trained vector added and a LayerNorm, and W_K, W_Q and "
    "W_V with biases. Attention is measured where the development loss is lowest, for every two tokens.",
    "Shifted labels are those of a program that does not subtract the four special tokens before it looks up the topic "
    "of a token.",
    "The squared loss is averaged over outputs. Rates of SGD for it, except in E1b, are multiplied by their number.",
    "Attention counts as moved when W_K or W_Q ends as far from where it began as a tenth of the norm of a weight at "
    "the default start, from either start.",
]


def published_report(
    config: TopicStructureConfig, runs: ArmRuns, minimisers: Sequence[ProbeResult], out: Path
) -> Analysis:
    """Return the figures, tables and notes."""
    folded = {title: table_html(table) for title, table in published_tables(config, runs).items()}
    return Analysis(panels=_panels(config, runs, minimisers, out), folded=folded, notes=_NOTES)


def _panels(config: TopicStructureConfig, runs: ArmRuns, minimisers: Sequence[ProbeResult], out: Path) -> list[Panel]:
    """Draw the figures, with their captions."""
    from mechclust.studies.topic_structure import figures  # loads matplotlib
    from mechclust.studies.topic_structure.attention_figures import attention_figure
    from mechclust.studies.topic_structure.optimum_figures import optimum_figure
    from mechclust.studies.topic_structure.stage_figures import norms_figure, stages_figure

    drawn = {
        "heat_maps": figures.heat_maps_figure(config, out),
        "everything_trained": figures.everything_trained_figure(config, runs),
        "optimum": optimum_figure(config, runs, minimisers),
        "stages": stages_figure(config, runs),
        "norms": norms_figure(config, runs),
        "attention": attention_figure(attention_means(config, runs)),
        "mixing": figures.mixing_figure(config, runs),
    }
    facts = {
        "seeds": counted(len(config.seeds), "seed"),
        "first": config.seeds[0],
        "everything": counted(len(config.everything_seeds), "seed"),
        "table": counted(len(config.table_seeds), "seed"),
        "released": counted(len(config.released_seeds), "seed"),
    }
    return [Panel(name, figure, _CAPTIONS[name].format(**facts)) for name, figure in drawn.items()]


def published_tables(config: TopicStructureConfig, runs: ArmRuns) -> dict[str, pd.DataFrame]:
    """Return E4's attention beside the published table, and what this implies, by title."""
    means = attention_means(config, runs)
    return {
        "Mean attention beside the published table": attention_table(means),
        "What the published rows imply, as a row of attention sums to 1": implied_table(config, runs),
    }
