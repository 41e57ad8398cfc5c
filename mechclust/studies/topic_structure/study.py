"""Topic structure: embeddings and attention of a one-layer masked LM encode topics, in two stages.

Li, Li & Risteski, "How Do Transformers Learn Topic Structure" (ICML 2023, arXiv 2303.04245).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mechclust.report.analysis import Analysis, Panel
from mechclust.report.html import table_html
from mechclust.studies.study import Study
from mechclust.studies.topic_structure.claims import claims_of
from mechclust.studies.topic_structure.config import TopicStructureConfig, jobs
from mechclust.studies.topic_structure.results import attention_table, load_runs
from mechclust.studies.topic_structure.run import run_job, trained_models
from tasks import TopicDocuments


def analyse(config: TopicStructureConfig, out: Path) -> Analysis:
    """Claims, figures and a table from a run's artefacts."""
    from mechclust.studies.topic_structure import figures

    runs = load_runs(config, out)
    seed = config.seeds[0]
    return Analysis(
        claims=claims_of(config, runs),
        panels=[
            Panel(
                "heat_maps",
                figures.heat_maps(config, out),
                f"Entries between words, ordered by topic, run of seed {seed}: W_E^T W_E (E1), W_V (E2, paper's "
                "orientation), and the mean attention from one word to another where both stand in a document (E4a "
                "theory; E4b Adam .003 settles on a few words per topic).",
            ),
            Panel(
                "two_stages",
                figures.norms(runs),
                f"Norms of the weights over training (seed {seed}); dotted: the end of stage 1, where W_K or W_Q have "
                "covered a tenth of their way.",
            ),
            Panel(
                "attention_ratio",
                figures.ratios(runs),
                "Same-topic over different-topic attention over training, mean over seeds, band: least to greatest. "
                "Dotted: the published end value of the row, whose number of steps is not stated.",
            ),
            Panel(
                "mixing",
                figures.mixing(config, runs),
                "g against the number of topics a document mixes; line: the population optimum with ten topics. One "
                "point per seed.",
            ),
        ],
        views={"Mean attention at the end, beside the published table": table_html(attention_table(runs))},
        notes=[
            "Documents of E1, E2 and E4a theory follow the theory (an equal mix of a few topics, no START and END); "
            "those of E1b, E3, E4a and E4b the paper's experiments (Dirichlet).",
            "At the end the Adam rows' ratios are above the published ones (1.41 to 1.74), which the curves pass on "
            "their way; no row reproduces the whole table. E4a trains with cross-entropy on the block that is optimal "
            "for the squared loss.",
            "The published table does not say whether W_V was frozen or how long training went; both arms are shown.",
            "Plain SGD at .01 and .03 hardly moves a network whose input is exactly one-hot. 'scaled': the input has "
            "length sqrt(d_vocab), as after a LayerNorm, which public code for the paper applies.",
        ],
    )


STUDY = Study(
    name="topic-structure",
    title="Topic structure: a one-layer masked LM encodes topics in embeddings and attention",
    source="Li, Li & Risteski, How Do Transformers Learn Topic Structure (ICML 2023, arXiv 2303.04245)",
    presets={
        "smoke": TopicStructureConfig(
            seeds=(0,),
            documents=TopicDocuments(n_topics=3, words_per_topic=3, n_documents=60, lengths=(8, 12)),
            steps=4,
            decay_steps=4,
            attention_steps=6,
            batch_size=10,
            topics=(3, 4),
            topics_per_document=(1, 2),
            text=(20, 8),
            test_claims=False,
        ),
        "quick": replace(
            TopicStructureConfig(),
            seeds=(0, 1),
            documents=TopicDocuments(n_documents=4000),
            steps=800,
            decay_steps=1000,
            attention_steps=1200,
            text=(200, 100),
            topics=(10,),
            topics_per_document=(2, 5),
        ),
        "paper": TopicStructureConfig(),
    },
    jobs=jobs,
    run_job=run_job,
    analyse=analyse,
    trained_models=trained_models,
)
