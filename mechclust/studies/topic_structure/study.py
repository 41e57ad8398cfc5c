"""Topic structure: embeddings and attention of a one-layer masked LM encode topics, in two stages.

Li, Li & Risteski, "How Do Transformers Learn Topic Structure" (ICML 2023, arXiv 2303.04245).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mechclust.evidence import Finding
from mechclust.report.analysis import Analysis, Panel
from mechclust.report.html import table_html
from mechclust.studies.study import Study
from mechclust.studies.topic_structure.arms import jobs
from mechclust.studies.topic_structure.beyond.findings import beyond_findings
from mechclust.studies.topic_structure.beyond.report import analyse_beyond
from mechclust.studies.topic_structure.beyond.results import load_beyond
from mechclust.studies.topic_structure.config import READINGS, Beyond, TopicStructureConfig
from mechclust.studies.topic_structure.findings import findings_of
from mechclust.studies.topic_structure.reading_findings import distance_table
from mechclust.studies.topic_structure.readings import attention_table, readings_of
from mechclust.studies.topic_structure.results import load_minimisers, load_runs
from mechclust.studies.topic_structure.run import LOSS, run_job, trained_models
from tasks import TopicDocuments


def judge(config: TopicStructureConfig, out: Path) -> list[Finding]:
    """Findings from a run's results."""
    if config.experiment == "beyond":
        return beyond_findings(config, load_beyond(config, out))
    return findings_of(config, load_runs(config, out), load_minimisers(config, out))


def analyse(config: TopicStructureConfig, out: Path) -> Analysis:
    """Findings, figures and a table from a run's artefacts."""
    if config.experiment == "beyond":
        return analyse_beyond(config, out)
    from mechclust.studies.topic_structure import figures
    from mechclust.studies.topic_structure.optimum_figures import optimum
    from mechclust.studies.topic_structure.reading_figures import readings
    from mechclust.studies.topic_structure.stage_figures import changes, stages

    runs, minimisers = load_runs(config, out), load_minimisers(config, out)
    found, seed = readings_of(config, runs), config.seeds[0]
    seeds = f"{len(config.seeds)} seed{'s' * (len(config.seeds) > 1)}"
    steps = f"{config.attention_steps // 2:,} and {config.attention_steps:,}"
    panels = [
        Panel(
            "heat_maps",
            figures.heat_maps(config, out),
            f"Entries between words, ordered by topic, run of seed {seed}: W_E^T W_E (E1), W_V (E2, paper's "
            "orientation), and the mean attention from one word to another if both occur in a document (lower "
            "left E4a theory; lower right E4, everything trained: attention goes to a few words, nearly the same for "
            "queries of all topics).",
        ),
        Panel(
            "everything_trained",
            figures.everything_trained(config, runs, out),
            f"E1b, everything trained: W_E^T W_E between words, ordered by topic, run of seed {seed}. Titles: "
            "same-topic minus different-topic entries off the diagonal, in standard deviations (SD) of the entries, "
            "and the same before training. "
            "The colour scale ends at the 99th percentile of each panel's off-diagonal entries.",
        ),
        Panel(
            "optimum",
            optimum(config, runs, minimisers),
            "Left: distance of the minimiser with weight decay from the closed form of theorem 2, all entries, by the "
            "number of documents and their length; dotted: for the minimiser of all documents of that length; dashed: "
            "slope -1/2. Right: distance of the trained W_V from the closed form, from the minimiser of the documents "
            "that it is trained on, and from that of others. "
            f"Mean over {seeds}, band: minimum to maximum.",
        ),
        Panel(
            "stages",
            stages(config, runs),
            "E3: share of W_V's total change (norm of the difference from the start) when W_K or W_Q has made a tenth "
            f"of its own, one point for each of {seeds}, line: mean. At least a half (dotted): two "
            "stages. Crosses: settings in which the share is undefined in some seed.",
        ),
        Panel(
            "two_stages",
            changes(config, runs),
            "How far the weights are from where they began (Frobenius norm of the difference) over training, seed "
            f"{seed}, at the fastest rate that diverged in no seed; dotted: the end of stage 1, when W_K or W_Q has "
            "made a tenth of its total change.",
        ),
        Panel(
            "readings",
            readings(config, found),
            f"E4: how far each reading of the published attention table is from its 15 numbers, one point for each of "
            f"{seeds}, line: mean; stopped at the best development loss, at step {steps}. On the right: whether one of "
            f"the three stops is compatible, with its whole 95% interval over seeds within the bound (dotted); that is "
            f"{len(found.names)} comparisons.",
        ),
        Panel(
            "mixing",
            figures.mixing(config, runs),
            "g against the number of topics a document mixes; dashed: the population optimum with ten topics; dotted: "
            f"theorem 3's bounds with constants 1; grey, dashed: uniform attention. One point for each of {seeds}.",
        ),
    ]
    return Analysis(
        findings=findings_of(config, runs, minimisers),
        panels=panels,
        folded={
            "Distance from the published attention table, by reading and stop": table_html(distance_table(found)),
            "Mean attention at the best development loss, by reading": table_html(attention_table(found)),
        },
        notes=[
            "Documents of E1, E2 and E4a theory follow the theory (an equal mix of a few topics, no START and END); "
            "those of E1b, E3 and E4 follow the paper's experiments (Dirichlet).",
            "A reading of the published attention table fixes what the paper leaves open: an input that is exactly "
            "one-hot, or with a trained vector added and then a LayerNorm, as in the public code; MASK visible as a "
            "key or hidden; W_V frozen at the optimum of the squared loss, or trained; the loss; and when to stop.",
            "Attention counts as moved when W_K or W_Q ends as far from where it began as a tenth of the norm of a "
            "weight at the default start, from either start.",
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
            check_every=1,
            readings=("one-hot visible frozen cross-entropy", "normalised hidden trained squared"),
            sgd_rates=(3.0,),
            adam_rates=(0.003,),
            optimum_documents=(20, 40),
            optimum_lengths=(10, 20),
            batch_size=10,
            topics=(3, 4),
            topics_per_document=(1, 2),
            text=(20, 8),
            beyond=Beyond(steps=6, after=2, measured=(2, 4), overlaps=(1,), n_permutations=9),
            test_findings=False,
        ),
        "quick": replace(
            TopicStructureConfig(),
            seeds=(0, 1),
            documents=TopicDocuments(n_documents=4000),
            steps=800,
            decay_steps=1000,
            attention_steps=1200,
            check_every=200,
            readings=tuple(name for name in READINGS if name.endswith("visible trained cross-entropy")),
            sgd_rates=(3.0, 30.0),
            adam_rates=(0.003,),
            optimum_documents=(1000, 3000, 10_000),
            optimum_lengths=(100, 400, 1600),
            text=(200, 100),
            topics=(10,),
            topics_per_document=(2, 5),
        ),
        "paper": TopicStructureConfig(),
        "beyond": TopicStructureConfig(experiment="beyond", seeds=tuple(range(20, 28))),
    },
    jobs=jobs,
    run_job=run_job,
    analyse=analyse,
    judge=judge,
    trained_models=trained_models,
    unrecorded=(LOSS,),
)
