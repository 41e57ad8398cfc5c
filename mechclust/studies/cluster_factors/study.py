"""What do hidden states cluster by: the task, the output, or neither? One factor of the data at a time.

The experiment of Wu & Varshney (arXiv 2402.12151), with a choice that it leaves open varied as a factor: which outputs
tasks share.
"""

from __future__ import annotations

from mechclust.report.analysis import Analysis
from mechclust.report.html import table_html
from mechclust.report.panel import Panel
from mechclust.report.text import counted
from mechclust.studies.cluster_factors.config import (
    CONSTANT,
    OVERLAP_ARMS,
    PRIVATE,
    SHARED,
    TWO,
    ClusterFactorsConfig,
    jobs,
    overlap_arm,
)
from mechclust.studies.cluster_factors.findings import findings_of
from mechclust.studies.cluster_factors.results import Results, load, table_of
from mechclust.studies.cluster_factors.run import check, run_job, trained_models, trainings
from mechclust.studies.study import Study
from mechclust.training import TrainConfig
from tasks import InstructionFollowing

_CAPTIONS = {
    "phases": "What hidden states cluster by, as a function of the share of output tokens that tasks have in common, "
    "layer and training step; {seeds}. States cluster by a label if the whole 95% interval of its adjusted Rand index "
    "over seeds is at least {clear:g}; undecided: an interval straddles this bound. At the end of the instruction only "
    "the task counts, since the output is not known yet. Dots: by x, alone where grey. The prompt's mean at step 0 and "
    "layer 0 is a bag of symbols, without any training.",
    "ari_by_layer": "ARI at x by layer at the end of training, with as many clusters as the label has classes; mean "
    "over {seeds}, band: minimum to maximum. Dotted: accuracy of a linear classifier that reads the task. Hatched: 95% "
    "of the task-ARI under relabelling within the classes of x, the widest of all seeds.",
    "within_the_other": "ARI at x by layer at the end of training, of task within the classes of output and of output "
    "within those of task; mean over {seeds}, band: minimum to maximum. Where an output belongs to one task only, "
    "there is no task within it. Hatched: 95% under relabelling within these classes, the widest of both curves and "
    "all seeds.",
    "ari_over_training": "Task-ARI over training, one line per layer (its number on the right), at x and at the last "
    "token of the instruction; mean over {seeds}, bars: 95% intervals at the end. Hatched: 95% under relabelling, at x "
    "within the classes of x, the widest of all seeds and layers.",
    "swaps": "Share of answers that become another task's when the difference between the two tasks' mean states is "
    "added at one layer, compared with a random direction and with the difference between two halves of one task, both "
    "of the same norm; mean over {seeds}. The means are over examples with other inputs.",
    "accuracy": "Validation accuracy of every arm; {seeds}.",
}


def report(config: ClusterFactorsConfig, results: Results) -> Analysis:
    """Return the figures, the index of the last layer as a table, and the notes."""
    title = "Adjusted Rand index of the last layer at the end of training, by position and label"
    folded = {title: table_html(table_of(results))}
    return Analysis(panels=_panels(config, results), folded=folded, notes=_notes(config))


def _panels(config: ClusterFactorsConfig, results: Results) -> list[Panel]:
    """Draw the figures, with their captions."""
    from mechclust.studies.cluster_factors import figures  # loads matplotlib

    swapped = {arm: results[arm] for arm in (*OVERLAP_ARMS, TWO) if arm in results}
    drawn = {
        "phases": figures.phase_diagram_figure(config, results),
        "ari_by_layer": figures.by_layer_figure(results),
        "within_the_other": figures.within_the_other_figure(results),
        "ari_over_training": figures.over_training_figure(results, (TWO, CONSTANT, PRIVATE, SHARED)),
        "swaps": figures.swaps_figure(swapped),
        "accuracy": figures.accuracy_figure(results),
    }
    seeds = counted(len(config.seeds), "seed")
    captions = {name: caption.format(seeds=seeds, clear=config.clear) for name, caption in _CAPTIONS.items()}
    return [Panel(name, figure, captions[name]) for name, figure in drawn.items()]


def _notes(config: ClusterFactorsConfig) -> list[str]:
    """Return the notes for readers of the report."""
    notes = [
        "Overlap: the share of its output tokens that a task has in common with every other task. The functions of a "
        "seed's tasks are the same at every overlap except for the names of the outputs.",
        "All measurements use held-out examples, with the answer's token masked.",
        "The bag of symbols is layer 0 of the mean over the prompt: the mean of its tokens' embeddings, which at step "
        "0 are those of an untrained network.",
        "Within: clusters of the states after the means of the other label's classes are subtracted.",
    ]
    if config.early_step == ClusterFactorsConfig.early_step:
        notes.append(f"Step {config.early_step} of the migration was chosen on seed 0.")
    return notes


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
    check=check,
    run_job=run_job,
    trained_models=trained_models,
    trainings=trainings,
    load=load,
    findings=findings_of,
    report=report,
)
