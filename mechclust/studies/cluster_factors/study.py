"""What do hidden states cluster by: the task, the output, or neither? One factor of the data at a time.

The experiment of Wu & Varshney (arXiv 2402.12151), with a choice that it leaves open varied as a factor: which outputs
tasks share.
"""

from __future__ import annotations

from pathlib import Path

from mechclust.evidence import Finding
from mechclust.report.analysis import Analysis, Panel
from mechclust.report.html import table_html
from mechclust.studies.cluster_factors.config import (
    CONSTANT,
    OVERLAPS,
    PRIVATE,
    SHARED,
    TWO,
    ClusterFactorsConfig,
    jobs,
    overlap_arm,
)
from mechclust.studies.cluster_factors.findings import findings_of
from mechclust.studies.cluster_factors.results import RunResults, by_arm, load_results, table_of
from mechclust.studies.cluster_factors.run import run_job, trained_models
from mechclust.studies.study import Study
from mechclust.training import TrainConfig
from tasks import InstructionFollowing


def judge(config: ClusterFactorsConfig, out: Path) -> list[Finding]:
    """Findings from a run's results."""
    return findings_of(config, _loaded(config, out))


def _loaded(config: ClusterFactorsConfig, out: Path) -> dict[str, list[RunResults]]:
    return by_arm(config, {job: load_results(config, out, job) for job in jobs(config)})


def analyse(config: ClusterFactorsConfig, out: Path) -> Analysis:
    """Findings and figures from a run's artefacts."""
    from mechclust.studies.cluster_factors import figures

    found = _loaded(config, out)
    seeds = f"{len(config.seeds)} seed{'s' * (len(config.seeds) > 1)}"
    swapped = {arm: found[arm] for arm in (*map(overlap_arm, OVERLAPS), TWO) if arm in found}
    panels = [
        Panel(
            "phases",
            figures.phase_diagram(config, found),
            f"What hidden states cluster by, as a function of the share of output tokens that tasks have in common, "
            f"layer and training step; {seeds}. States cluster by a label if the whole 95% interval of its adjusted "
            f"Rand index over seeds is at least {config.clear:g}; undecided: an interval straddles this bound. At the "
            "end of the instruction only the task counts, since the output is not known yet. Dots: by x, alone "
            "where grey. The prompt's mean at step 0 and layer 0 is a bag of symbols, without any training.",
        ),
        Panel(
            "ari_by_layer",
            figures.by_layer(found),
            f"ARI at x by layer at the end of training, with as many clusters as the label has classes; mean over "
            f"{seeds}, band: minimum to maximum. Dotted: accuracy of a linear classifier that reads the task. Hatched: "
            "95% of the task-ARI under relabelling within the classes of x, the widest of all seeds.",
        ),
        Panel(
            "within_the_other",
            figures.within_the_other(found),
            f"ARI at x by layer at the end of training, of task within the classes of output and of output within "
            f"those of task; mean over {seeds}, band: minimum to maximum. Where an output belongs to one task only, "
            "there is no task within it. Hatched: 95% under relabelling within these classes, the widest of both "
            "curves and all seeds.",
        ),
        Panel(
            "ari_over_training",
            figures.over_training(found, (TWO, CONSTANT, PRIVATE, SHARED)),
            "Task-ARI over training, one line per layer (its number on the right), at x and at the last token of "
            f"the instruction; mean over {seeds}, bars: 95% intervals at the end. Hatched: 95% under "
            "relabelling, at x within the classes of x, the widest of all seeds and layers.",
        ),
        Panel(
            "swaps",
            figures.swaps(swapped),
            "Share of answers that become another task's when the difference between the two tasks' mean states is "
            "added at one layer, compared with a random direction and with the difference between two halves of one "
            f"task, both of the same norm; mean over {seeds}. The means are over examples with other inputs.",
        ),
        Panel("accuracy", figures.accuracy_figure(found), f"Validation accuracy of every arm; {seeds}."),
    ]
    where = "of the last layer at the end of training, by position and label"
    tables = {
        f"Adjusted Rand index {where}": table_of(found, "ari"),
        f"Adjusted mutual information {where}": table_of(found, "ami"),
    }
    return Analysis(
        findings=findings_of(config, found),
        panels=panels,
        folded={title: table_html(table) for title, table in tables.items()},
        notes=_notes(config),
    )


def _notes(config: ClusterFactorsConfig) -> list[str]:
    return [
        "Overlap: the share of its output tokens that a task has in common with every other task. The functions of a "
        "seed's tasks are the same at every overlap except for the names of the outputs.",
        "All measurements use held-out examples, with the answer's token masked.",
        "The bag of symbols is layer 0 of the mean over the prompt: the mean of its tokens' embeddings, which at step "
        "0 are those of an untrained network.",
        "Within: clusters of the states after the means of the other label's classes are subtracted.",
        f"Step {config.early_step} of the migration was chosen on seed 0.",
    ]


STUDY = Study(
    name="cluster-factors",
    title="What hidden states cluster by: task, output or neither",
    source="ours, on Wu & Varshney, Transformer-based Causal Language Models Perform Clustering (arXiv 2402.12151)",
    presets={
        "smoke": ClusterFactorsConfig(
            seeds=(0,),
            arms=(PRIVATE, overlap_arm(0.4), SHARED, TWO),
            task=InstructionFollowing(
                n_tasks=4, variants=12, n_outputs=5, n_eval_tasks=4, n_eval=60, validation_share=0.3
            ),
            training=TrainConfig(steps=20, batch_size=16, n_checkpoints=4),
            first_measured=7,
            early_step=7,
            n_layers=2,
            d_model=16,
            n_heads=2,
            n_init=1,
            n_permutations=20,
            n_shuffles=2,
            test_findings=False,
        ),
        "quick": ClusterFactorsConfig(seeds=(0, 1), arms=(PRIVATE, overlap_arm(0.4), SHARED)),
        "paper": ClusterFactorsConfig(),
    },
    jobs=jobs,
    run_job=run_job,
    analyse=analyse,
    judge=judge,
    trained_models=trained_models,
)
