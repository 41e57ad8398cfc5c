"""Topic structure: embeddings and attention of a one-layer masked LM encode topics, in two stages.

Li, Li & Risteski, "How Do Transformers Learn Topic Structure" (ICML 2023, arXiv 2303.04245).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from mechclust.evidence import Finding
from mechclust.report.analysis import Analysis
from mechclust.studies.study import Study
from mechclust.studies.topic_structure.arms import jobs
from mechclust.studies.topic_structure.beyond.findings import beyond_findings
from mechclust.studies.topic_structure.beyond.report import beyond_report
from mechclust.studies.topic_structure.beyond.results import load_beyond
from mechclust.studies.topic_structure.config import Beyond, TopicStructureConfig
from mechclust.studies.topic_structure.findings import findings_of
from mechclust.studies.topic_structure.report import published_report
from mechclust.studies.topic_structure.results import load_minimisers, load_runs
from mechclust.studies.topic_structure.run import LOSS, run_job, trained_models, trainings
from probes import ProbeResult
from tasks import TopicDocuments


class Results(NamedTuple):
    """Measurements of either experiment.

    Attributes:
        out: folder of the run, for figures of its models.
        runs: by arm and seed.
        minimisers: by seed, of the published experiments.
    """

    out: Path
    runs: dict[str, list[Any]]
    minimisers: Sequence[ProbeResult] = ()


def load(config: TopicStructureConfig, out: Path) -> Results:
    """Read the results of every run.

    Raises:
        InputError: if a result is missing; the text names it.
    """
    if config.experiment == "beyond":
        return Results(out, load_beyond(config, out))
    return Results(out, load_runs(config, out), load_minimisers(config, out))


def findings(config: TopicStructureConfig, results: Results) -> list[Finding]:
    """Judge the findings of the experiment."""
    if config.experiment == "beyond":
        return beyond_findings(config, results.runs)
    return findings_of(config, results.runs, results.minimisers)


def report(config: TopicStructureConfig, results: Results) -> Analysis:
    """Return the figures, tables and notes of the experiment."""
    if config.experiment == "beyond":
        return beyond_report(config, results.runs)
    return published_report(config, results.runs, results.minimisers, results.out)


STUDY = Study(
    name="topic-structure",
    title="Topic structure: a one-layer masked LM encodes topics in embeddings and attention",
    source="Li, Li & Risteski, How Do Transformers Learn Topic Structure (ICML 2023, arXiv 2303.04245)",
    presets={
        "smoke": TopicStructureConfig(
            seeds=(0,),
            released_seeds=(1,),
            table_seeds=(1,),
            everything_seeds=(1,),
            documents=TopicDocuments(n_topics=3, words_per_topic=3, n_documents=60, lengths=(8, 12)),
            steps=4,
            everything_steps=4,
            decay_steps=4,
            attention_steps=6,
            check_every=1,
            sgd_rates=(3.0,),
            released_rates=(1.0,),
            adam_rates=(0.003,),
            optimum_documents=(20, 40),
            optimum_lengths=(10, 20),
            batch_size=10,
            topics=(4, 5),
            topics_per_document=(2, 3),
            text=(20, 8),
            beyond=Beyond(steps=6, after=2, measured=(2, 4), overlaps=(1,), n_permutations=9),
            test_findings=False,
        ),
        "quick": replace(
            TopicStructureConfig(),
            seeds=(0, 1),
            released_seeds=(2, 3),
            table_seeds=(2, 3),
            everything_seeds=(2, 3),
            documents=TopicDocuments(n_documents=4000),
            steps=800,
            everything_steps=2000,
            decay_steps=1000,
            attention_steps=1200,
            check_every=200,
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
    trained_models=trained_models,
    trainings=trainings,
    load=load,
    findings=findings,
    report=report,
    unrecorded=(LOSS,),
)
