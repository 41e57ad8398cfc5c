"""Clustering heads: a head that maps equivalent inputs to one point, how it forms, and how it fails.

Odonnat, Bouaziz & Cabannes, "Clustering Head" (arXiv 2410.24050) and "Easing Optimization Paths" (2501.02362).
"""

from __future__ import annotations

from dataclasses import replace

from mechclust.report.analysis import Analysis
from mechclust.report.panel import Panel
from mechclust.studies.clustering_heads.ablations import Ablations
from mechclust.studies.clustering_heads.config import (
    ClusteringHeadsConfig,
    Curriculum,
    FullBatch,
    Starts,
    jobs,
)
from mechclust.studies.clustering_heads.dynamics import can_measure_all
from mechclust.studies.clustering_heads.findings import findings_of
from mechclust.studies.clustering_heads.results import HeadsResults, load_results
from mechclust.studies.clustering_heads.run import run_job, trained_models, trainings
from mechclust.studies.study import Study
from tasks import SparseModularAddition

_NOTES = (
    "Training is chaotic in float32: the order of additions alone changes single seeds after a few hundred epochs. "
    "Compare shares and distributions over seeds, never lists of seeds.",
    "The within-ratio over training uses the clusters of a network's final head: the points of its planar lattice, "
    "its integer sums, or those of the support's multiset if no weights can be fitted.",
    "Replayed spikes: all weights take the step that they took in the epoch of the spike, while one part of the "
    "network is frozen. What the optimiser would have done afterwards is not replayed.",
)


def report(config: ClusteringHeadsConfig, results: HeadsResults) -> Analysis:
    """Draw the figures, and write the sandbox pages."""
    from mechclust.studies.clustering_heads import figures  # loads matplotlib
    from mechclust.studies.clustering_heads.captions import CAPTIONS
    from mechclust.studies.clustering_heads.shown import sandbox_pages, shown_networks

    shown = f"seed {shown_networks(config, results)[0].seed}"
    drawn = figures.draw_figures(config, results)
    panels = [Panel(name, figure, CAPTIONS[name].format(shown=shown)) for name, figure in drawn.items()]
    links = sandbox_pages(config, results)
    return Analysis(panels=panels, views={"Sandbox": links} if links else {}, notes=notes(config))


def notes(config: ClusteringHeadsConfig) -> list[str]:
    """Return the notes for readers of the report."""
    texts = list(_NOTES)
    if not can_measure_all(config.task):
        texts.append(
            f"There are {config.task.p}^{config.task.length} sequences, too many to measure heads on all of them; "
            "heads are measured on a sample, the training and test sequences."
        )
    return texts


_PAPER = ClusteringHeadsConfig()
_BASE_ONLY = replace(
    _PAPER,
    mitigations=0,
    full_batch=FullBatch((), ()),
    starts=Starts(()),
    transfer=False,
    curriculum=Curriculum(seeds=()),
    test_findings=False,
)

STUDY = Study(
    name="clustering-heads",
    title="Clustering heads: a head that maps equivalent inputs to one point, how it forms and fails",
    source="Odonnat, Bouaziz & Cabannes, Clustering Head (arXiv 2410.24050) and Easing Optimization Paths (2501.02362)",
    presets={
        "smoke": ClusteringHeadsConfig(
            seeds=(200, 201),
            mitigations=2,
            task=SparseModularAddition(length=6, n_support=3, n_train=64, n_test=64),
            d_mlp=8,
            epochs=24,
            curriculum=Curriculum(seeds=(200,), d_model=4, d_mlp=8, steps=6, first_steps=2, points=3),
            full_batch=FullBatch((200,), (200, 201), steps=40, every=4, curvature=2),
            starts=Starts((200,)),
            ablations=Ablations((200,), (16, 64), (0.01, 0.001), (4, 16), (0.1, 10.0), (0.5,)),
            sandbox=1,
            test_findings=False,
        ),
        "quick": replace(_BASE_ONLY, seeds=tuple(range(200, 212)), group=6, ablations=Ablations(seeds=()), sandbox=1),
        "paper": replace(_PAPER, ablations=Ablations(seeds=())),
        "ablations": replace(_BASE_ONLY, seeds=_PAPER.seeds[:10]),
    },
    jobs=jobs,
    run_job=run_job,
    trained_models=trained_models,
    trainings=trainings,
    load=load_results,
    findings=findings_of,
    report=report,
)
