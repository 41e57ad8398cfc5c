"""Figures, tables and notes of a run of E5."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechclust.report.analysis import Analysis
from mechclust.report.html import table_html
from mechclust.report.panel import Panel
from mechclust.report.text import counted
from mechclust.studies.topic_structure.beyond.results import BeyondRun, BeyondRuns, label_of
from mechclust.studies.topic_structure.config import TopicStructureConfig

if TYPE_CHECKING:
    import pandas as pd

_CAPTIONS = {
    "after_two_stages": "The published documents, training continued to step {steps:,}; dotted: step {after:,}. Mean "
    "over {seeds}, band: minimum to maximum. The rank is that of attention scores between words; the share explained "
    "is that of attention in a document in which every word occurs once. Dashed: chance; for the rank, before "
    "training.",
    "documents": "How topical attention is with documents more like those of text; mean over {seeds}, band: minimum to "
    "maximum. Topics that share words count as one topic for these words. Dashed: uniform attention.",
}
_NOTES = [
    "Two words that share a topic count as same-topic. If topics overlap, they may occur in a document because of "
    "different topics, which by itself may bring the ratio closer to 1.",
    "Effective rank: the participation ratio of the squared singular values, after each query's mean score is "
    "subtracted, which attention does not depend on.",
    "A few large entries can dominate the scores where attention does not depend on them: scores far below a row's "
    "maximum all give attention 0. The share explained by topics is therefore computed on attention.",
]


def beyond_report(config: TopicStructureConfig, runs: BeyondRuns) -> Analysis:
    """Return the figures, tables and notes."""
    folded = {title: table_html(table) for title, table in beyond_tables(runs).items()}
    return Analysis(panels=_panels(config, runs), folded=folded, notes=_NOTES)


def _panels(config: TopicStructureConfig, runs: BeyondRuns) -> list[Panel]:
    """Draw the figures, with their captions."""
    from mechclust.studies.topic_structure.beyond import figures  # loads matplotlib

    drawn = {
        "after_two_stages": figures.after_training_figure(config, runs),
        "documents": figures.documents_figure(config, runs),
    }
    facts = {
        "steps": config.beyond.steps,
        "after": config.beyond.after,
        "seeds": counted(len(config.seeds), "seed"),
    }
    return [Panel(name, figure, _CAPTIONS[name].format(**facts)) for name, figure in drawn.items()]


def beyond_tables(runs: BeyondRuns) -> dict[str, pd.DataFrame]:
    """Return the measures of all arms at the end, by title."""
    import pandas as pd

    means = {label_of(name): pd.DataFrame(map(_at_end, of_arm)).mean() for name, of_arm in runs.items()}
    table = pd.DataFrame(means).T.map("{:.3g}".format)
    return {"All arms at the end: mean over seeds": table.rename_axis("arm").reset_index()}


def _at_end(run: BeyondRun) -> dict[str, float]:
    curves = {
        "same topic / different": run.ratio,
        "same word / same topic": run.own,
        "rank of scores": run.rank,
        "scores explained by topics": run.scores["explained"],
        "scores, random topics (95%)": run.scores["explained_null"],
        "attention explained by topics": run.table["explained"],
        "attention, random topics (95%)": run.table["explained_null"],
        "W_V explained by topics": run.values["explained"],
        "development loss": run.dev,
    }
    return {name: float(curve[-1]) for name, curve in curves.items()}
