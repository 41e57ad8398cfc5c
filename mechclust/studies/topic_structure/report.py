"""Figures, tables and notes of a run of the published experiments, E1 to E4."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mechclust.report.analysis import Panel
from mechclust.report.text import counted
from mechclust.studies.topic_structure.config import TopicStructureConfig
from mechclust.studies.topic_structure.reading_findings import distance_table
from mechclust.studies.topic_structure.readings import STOPS, attention_table, readings_of
from mechclust.studies.topic_structure.results import ArmRuns
from probes import ProbeResult

if TYPE_CHECKING:
    import pandas as pd

_CAPTIONS = {
    "heat_maps": "Entries between words, ordered by topic, run of seed {first}: W_E^T W_E (E1), W_V (E2, paper's "
    "orientation), and the mean attention from one word to another if both occur in a document (lower left E4a theory; "
    "lower right E4, everything trained: attention goes to a few words, nearly the same for queries of all topics).",
    "everything_trained": "E1b, everything trained: W_E^T W_E between words, ordered by topic, run of seed {first}. "
    "Titles: same-topic minus different-topic entries off the diagonal, in standard deviations (SD) of the entries, "
    "and the same before training. The colour scale ends at the 99th percentile of each panel's off-diagonal entries.",
    "optimum": "Left: distance of the minimiser with weight decay from the closed form of theorem 2, all entries, by "
    "the number of documents and their length; dotted: for the minimiser of all documents of that length; dashed: "
    "slope -1/2. Right: distance of the trained W_V from the closed form, from the minimiser of the documents that it "
    "is trained on, and from that of others. Mean over {seeds}, band: minimum to maximum.",
    "stages": "E3: share of W_V's total change (norm of the difference from the start) when W_K or W_Q has made a "
    "tenth of its own, one point for each of {seeds}, line: mean. At least a half (dotted): two stages. Crosses: "
    "settings in which the share is undefined in some seed.",
    "two_stages": "How far the weights are from where they began (Frobenius norm of the difference) over training, "
    "seed {first}, at the fastest rate that diverged in no seed; dotted: the end of stage 1, when W_K or W_Q has made "
    "a tenth of its total change.",
    "readings": "E4: how far each reading of the published attention table is from its 15 numbers, one point for each "
    "of {seeds}, line: mean; stopped at the best development loss, at step {half:,} and {end:,}. On the right: whether "
    "one of the three stops is compatible, with its whole 95% interval over seeds within the bound (dotted); that is "
    "{comparisons} comparisons.",
    "mixing": "g against the number of topics a document mixes; dashed: the population optimum with ten topics; "
    "dotted: theorem 3's bounds with constants 1; grey, dashed: uniform attention. One point for each of {seeds}.",
}
NOTES = [
    "Documents of E1, E2 and E4a theory follow the theory (an equal mix of a few topics, no START and END); those of "
    "E1b, E3 and E4 follow the paper's experiments (Dirichlet).",
    "A reading of the published attention table fixes what the paper leaves open: an input that is exactly one-hot, or "
    "with a trained vector added and then a LayerNorm, as in the public code; MASK visible as a key or hidden; W_V "
    "frozen at the optimum of the squared loss, or trained; the loss; and when to stop.",
    "Attention counts as moved when W_K or W_Q ends as far from where it began as a tenth of the norm of a weight at "
    "the default start, from either start.",
]


def published_panels(
    config: TopicStructureConfig, runs: ArmRuns, minimisers: Sequence[ProbeResult], out: Path
) -> list[Panel]:
    """Draw the figures, with their captions."""
    from mechclust.studies.topic_structure import figures  # loads matplotlib
    from mechclust.studies.topic_structure.optimum_figures import optimum_figure
    from mechclust.studies.topic_structure.reading_figures import readings_figure
    from mechclust.studies.topic_structure.stage_figures import changes_figure, stages_figure

    drawn = {
        "heat_maps": figures.heat_maps_figure(config, out),
        "everything_trained": figures.everything_trained_figure(config, runs, out),
        "optimum": optimum_figure(config, runs, minimisers),
        "stages": stages_figure(config, runs),
        "two_stages": changes_figure(config, runs),
        "readings": readings_figure(config, readings_of(config, runs)),
        "mixing": figures.mixing_figure(config, runs),
    }
    facts = {
        "seeds": counted(len(config.seeds), "seed"),
        "first": config.seeds[0],
        "half": config.attention_steps // 2,
        "end": config.attention_steps,
        "comparisons": len(config.readings) * len(STOPS),
    }
    return [Panel(name, figure, _CAPTIONS[name].format(**facts)) for name, figure in drawn.items()]


def published_tables(config: TopicStructureConfig, runs: ArmRuns) -> dict[str, pd.DataFrame]:
    """Return the distances and the attention of all readings, by title."""
    readings = readings_of(config, runs)
    return {
        "Distance from the published attention table, by reading and stop": distance_table(readings),
        "Mean attention at the best development loss, by reading": attention_table(readings),
    }
