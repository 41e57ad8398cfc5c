"""Clustering heads: a head that maps equivalent inputs to one point, how it forms, and how it fails.

Odonnat, Bouaziz & Cabannes, "Clustering Head" (arXiv 2410.24050) and "Easing Optimization Paths" (2501.02362).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mechclust.evidence import Finding
from mechclust.report.analysis import Analysis
from mechclust.studies.clustering_heads.ablations import Ablations
from mechclust.studies.clustering_heads.config import (
    ClusteringHeadsConfig,
    Curriculum,
    FullBatch,
    Starts,
    jobs,
    unfinished,
)
from mechclust.studies.clustering_heads.dynamics import can_measure_all
from mechclust.studies.clustering_heads.run import run_job, trained_models
from mechclust.studies.study import Study
from tasks import SparseModularAddition


def judge(config: ClusteringHeadsConfig, out: Path) -> list[Finding]:
    """Findings from a run's results."""
    from mechclust.studies.clustering_heads.findings import findings_of
    from mechclust.studies.clustering_heads.results import load_results

    return findings_of(config, load_results(config, out))


def analyse(config: ClusteringHeadsConfig, out: Path) -> Analysis:
    """Findings, figures, sandbox pages from a run's artefacts."""
    from mechclust.studies.clustering_heads.figures import ablation_table, panels
    from mechclust.studies.clustering_heads.findings import findings_of
    from mechclust.studies.clustering_heads.results import load_results
    from mechclust.studies.clustering_heads.shown import sandbox_pages
    from mechclust.studies.clustering_heads.start_figures import modulus_table

    results = load_results(config, out)
    notes = [
        "Training is chaotic in float32: the order of additions alone changes single seeds after a few hundred epochs. "
        "Compare shares and distributions over seeds, never lists of seeds.",
        "The within-ratio over training uses the clusters of a network's final head: the points of its planar lattice, "
        "its integer sums, or those of the support's multiset if no weights can be fitted.",
        "Replayed spikes: all weights take the step that they took in the epoch of the spike, while one part of the "
        "network is frozen. What the optimiser would have done afterwards is not replayed.",
    ]
    if not can_measure_all(config.task):
        notes.append(
            f"There are {config.task.p}^{config.task.length} sequences, too many to measure heads on all of them; "
            "heads are measured on a sample, the training and test sequences."
        )
    if waiting := [job.name for job in unfinished(config, out)]:
        notes.append(
            f"This run is not finished; its findings are judged on what exists. Missing of {len(jobs(config))} jobs: "
            f"{', '.join(waiting)}."
        )
    views = {
        "Sandbox": sandbox_pages(config, results, out),
        "Heads by modulus": modulus_table(config, results),
        "Ablations: test accuracy at the end": ablation_table(config, results),
    }
    return Analysis(
        findings=findings_of(config, results),
        panels=panels(config, results, out),
        views={name: html for name, html in views.items() if html},
        notes=notes,
    )


_PAPER = ClusteringHeadsConfig()

STUDY = Study(
    name="clustering-heads",
    title="Clustering heads: a head that maps equivalent inputs to one point, how it forms and fails",
    source="Odonnat, Bouaziz & Cabannes, Clustering Head (arXiv 2410.24050) and Easing Optimization Paths (2501.02362)",
    presets={
        "smoke": ClusteringHeadsConfig(
            seeds=(200, 201),
            replication=(0,),
            mitigations=2,
            task=SparseModularAddition(length=6, n_support=3, n_train=64, n_test=64),
            d_mlp=8,
            epochs=24,
            curriculum=Curriculum(seeds=(200,), d_model=4, d_mlp=8, steps=6, first_steps=2, points=3),
            full_batch=FullBatch((200, 201), steps=40, every=4, curvature=2),
            starts=Starts((200,), (3.0,)),
            ablations=Ablations((200,), (16, 64), (0.01, 0.001), (4, 16), (0.1, 10.0), (0.5,)),
            sandbox=1,
            test_findings=False,
        ),
        "quick": replace(
            _PAPER,
            seeds=tuple(range(200, 208)),
            replication=(),
            group=4,
            mitigations=0,
            full_batch=FullBatch(()),
            starts=Starts(()),
            transfer=False,
            curriculum=Curriculum(seeds=()),
            ablations=Ablations(seeds=()),
            sandbox=1,
            test_findings=False,
        ),
        "paper": replace(_PAPER, ablations=Ablations(seeds=())),
        "ablations": replace(
            _PAPER,
            replication=(),
            seeds=_PAPER.seeds[:10],
            mitigations=0,
            full_batch=FullBatch(()),
            starts=Starts(()),
            transfer=False,
            curriculum=Curriculum(seeds=()),
            test_findings=False,
        ),
    },
    jobs=jobs,
    run_job=run_job,
    analyse=analyse,
    judge=judge,
    trained_models=trained_models,
)
