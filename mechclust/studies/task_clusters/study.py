"""Task clusters: hidden states of a causal LM cluster by task as it learns to follow instructions.

Wu & Varshney, "Transformer-based Causal Language Models Perform Clustering" (arXiv 2402.12151).
"""

from __future__ import annotations

from collections.abc import Mapping

from mechclust.report.analysis import Analysis
from mechclust.report.panel import Panel
from mechclust.studies.study import Job, Study
from mechclust.studies.task_clusters.config import TaskClustersConfig, jobs
from mechclust.studies.task_clusters.findings import findings_of
from mechclust.studies.task_clusters.results import RunResults, by_arm, headline, load
from mechclust.studies.task_clusters.run import check, run_job, trained_models, trainings
from mechclust.training import TrainConfig
from tasks import InstructionFollowing

_CAPTIONS = {
    "ari_over_training": "Task-ARI over training, one line per layer (mean over seeds, band: minimum to maximum); "
    "training subset left, validation right. Hatched: 95% of the index on validation when examples are relabelled "
    "within the classes of x, the widest of all seeds and layers.",
    "ari_by_layer": "ARI by layer at the end, against task and against output, for each arm; one thin line per seed, "
    "thick: mean. FN: after the final norm. Hatched: chance, as above, the widest of all seeds. t-SNE, if measured, is "
    "drawn separately and never mixed into a curve.",
    "projection": "Hidden states at x in two dimensions (PCA, or t-SNE unless the states are only a few points), run "
    "{run}, coloured by task.",
    "accuracy_and_loss": "Validation accuracy and loss of every run.",
}
_NOTES = [
    "Whether tasks share outputs decides the result: with shared outputs, the top layers cluster by output, not by "
    "task. All findings except T9, T10, T25 and T26 are about the arm with private outputs.",
    "Layer 0 is the token embedding of x without position: at most one point per input token, so k-means has fewer "
    "distinct points than clusters there, and each point is its own cluster.",
    "Each label is clustered with as many clusters as it has classes.",
]


def report(config: TaskClustersConfig, runs: Mapping[Job, RunResults]) -> Analysis:
    """Draw the figures, and say how well states cluster by task."""
    from mechclust.studies.task_clusters import figures  # loads matplotlib

    arms = by_arm(config, runs)
    first = next(iter(runs))
    drawn = {
        "ari_over_training": figures.ari_over_training_figure(arms["private"]),
        "ari_by_layer": figures.ari_by_layer_figure(arms),
        "projection": figures.projections_figure(runs[first].projections),
        "accuracy_and_loss": figures.accuracy_and_loss_figure(runs),
    }
    panels = [Panel(name, figure, _CAPTIONS[name].format(run=first.name)) for name, figure in drawn.items()]
    return Analysis(panels=panels, notes=_NOTES, headline=headline(config, runs))


STUDY = Study(
    name="task-clusters",
    title="Task clusters: hidden states of a causal LM cluster by task",
    source="Wu & Varshney, Transformer-based Causal Language Models Perform Clustering (arXiv 2402.12151)",
    presets={
        "smoke": TaskClustersConfig(
            seeds=(0,),
            task=InstructionFollowing(n_tasks=4, variants=12, n_eval=60),
            training=TrainConfig(steps=20, batch_size=32, n_checkpoints=3),
            n_layers=2,
            d_model=32,
            n_init=1,
            n_permutations=50,
            test_findings=False,
        ),
        "quick": TaskClustersConfig(
            seeds=(0, 1),
            task=InstructionFollowing(n_tasks=20, n_eval=500),
            arms=("private", "shared"),
            training=TrainConfig(steps=450, batch_size=128, n_checkpoints=5),
            d_model=64,
            n_init=4,
            n_permutations=200,
            tsne=False,
        ),
        "paper": TaskClustersConfig(),
        "gpt2": TaskClustersConfig(d_model=768, n_heads=12, device="cuda"),
    },
    jobs=jobs,
    check=check,
    run_job=run_job,
    load=load,
    findings=findings_of,
    report=report,
    trained_models=trained_models,
    trainings=trainings,
)
