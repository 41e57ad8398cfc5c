"""The conclusions and figures of a run of E5."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mechclust.report.analysis import Analysis, Panel
from mechclust.report.html import table_html
from mechclust.studies.topic_structure.beyond.findings import beyond_findings
from mechclust.studies.topic_structure.beyond.results import BeyondRuns, label_of, load_beyond
from mechclust.studies.topic_structure.config import TopicStructureConfig

if TYPE_CHECKING:
    import pandas as pd


def analyse_beyond(config: TopicStructureConfig, out: Path) -> Analysis:
    """Findings, figures and a table of a run."""
    from mechclust.studies.topic_structure.beyond import figures

    runs, beyond = load_beyond(config, out), config.beyond
    seeds = f"{len(config.seeds)} seed{'s' * (len(config.seeds) > 1)}"
    panels = [
        Panel(
            "after_two_stages",
            figures.after(config, runs),
            f"The published documents, training continued to step {beyond.steps:,}; dotted: step {beyond.after:,}. "
            f"Mean over {seeds}, band: minimum to maximum. The rank is that of attention scores between words; the "
            "share explained is that of attention in a document in which every word occurs once. Dashed: "
            "chance; for the rank, before training.",
        ),
        Panel(
            "documents",
            figures.documents(config, runs),
            f"How topical attention is with documents more like those of text; mean over {seeds}, band: minimum to "
            "maximum. Topics that share words count as one topic for these words. Dashed: uniform attention.",
        ),
        Panel(
            "ends",
            figures.ends(config, runs),
            f"Every arm at step {beyond.after:,} and at the end, one point for each of {seeds}, line: mean. Dashed: "
            "chance.",
        ),
        Panel(
            "scores",
            figures.score_tables(config, out),
            f"Attention scores between words at the end, rows centred, words ordered by topic; seed {config.seeds[0]}. "
            "The colour scale ends at the 99th percentile of each panel.",
        ),
    ]
    return Analysis(
        findings=beyond_findings(config, runs),
        panels=panels,
        folded={"All arms at the end: mean over seeds": table_html(_table(runs), number=".3g")},
        notes=[
            "Two words that share a topic count as same-topic. If topics overlap, they may occur in a document because "
            "of different topics, which by itself may bring the ratio closer to 1.",
            "Effective rank: the participation ratio of the squared singular values, after each query's mean score is "
            "subtracted, which attention does not depend on.",
            "A few large entries can dominate the scores where attention does not depend on them: scores far below a "
            "row's maximum all give attention 0. The share explained by topics is therefore computed on attention.",
        ],
    )


def _table(runs: BeyondRuns) -> pd.DataFrame:
    import pandas as pd

    columns = {
        "same topic / different": lambda run: run.ratio[-1],
        "same word / same topic": lambda run: run.own[-1],
        "rank of scores": lambda run: run.scores["rank"][-1],
        "scores explained by topics": lambda run: run.scores["explained"][-1],
        "scores, random topics (95%)": lambda run: run.scores["explained_null"][-1],
        "attention explained by topics": lambda run: run.table["explained"][-1],
        "attention, random topics (95%)": lambda run: run.table["explained_null"][-1],
        "W_V explained by topics": lambda run: run.values["explained"][-1],
        "development loss": lambda run: run.dev[-1],
    }
    rows = [[sum(map(of, found)) / len(found) for of in columns.values()] for found in runs.values()]
    return pd.DataFrame(rows, index=[label_of(name) for name in runs], columns=list(columns))
