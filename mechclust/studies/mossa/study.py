"""MOSSA: CKA between a multi-task model and single-task controls shows which layers hold which tasks.

Zhao, Ziser & Cohen, "Layer by Layer: Uncovering Where Multi-Task Learning Happens in Instruction-Tuned Large
Language Models" (EMNLP 2024, arXiv 2410.20008), in miniature.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from mechclust.evidence import Finding
from mechclust.report.analysis import Analysis, Panel
from mechclust.report.html import table_html
from mechclust.studies.extra_probes import TrainedModel
from mechclust.studies.mossa.config import FROZEN, MODELS, SEEN_TASKS, ModelJob, MossaConfig, jobs, result_path
from mechclust.studies.mossa.findings import boundary_note, findings_of
from mechclust.studies.mossa.origin.findings import origin_findings
from mechclust.studies.mossa.origin.jobs import OriginJob, origin_jobs
from mechclust.studies.mossa.origin.report import analyse_origin
from mechclust.studies.mossa.origin.results import load_origin_results
from mechclust.studies.mossa.origin.run import run_origin_job, trained_origin_models
from mechclust.studies.mossa.results import SeedResults, groups_table, load_results, medians_table
from mechclust.studies.mossa.run import run_job, trained_models
from mechclust.studies.study import Study
from mechclust.training import TrainConfig
from probes import load_result
from tasks import SkillSuite


def jobs_of(config: MossaConfig) -> Sequence[ModelJob | OriginJob]:
    """The jobs of the configured experiment."""
    return origin_jobs(config) if config.experiment == "origin" else jobs(config)


def run_any_job(config: MossaConfig, job: ModelJob | OriginJob, out: Path) -> None:
    """Do a job of either experiment."""
    if isinstance(job, OriginJob):
        run_origin_job(config, job, out)
    else:
        run_job(config, job, out)


def models_trained(config: MossaConfig, out: Path) -> Iterable[TrainedModel]:
    """The models that either experiment trained."""
    return trained_origin_models(config, out) if config.experiment == "origin" else trained_models(config, out)


def judge(config: MossaConfig, out: Path) -> list[Finding]:
    """Findings from a run's results."""
    if config.experiment == "origin":
        return origin_findings(config, [load_origin_results(config, out, seed) for seed in config.seeds])
    return findings_of(config, [load_results(config, out, seed) for seed in config.seeds])


def analyse(config: MossaConfig, out: Path) -> Analysis:
    """Findings, figures and tables of a run."""
    if config.experiment == "origin":
        return analyse_origin(config, out)
    from mechclust.studies.mossa import figures

    found = [load_results(config, out, seed) for seed in config.seeds]
    suite, first = config.suite, config.seeds[0]
    pictures = {kind: load_result(result_path(out, first, f"{kind}.projection")) for kind in MODELS}
    n, seeds = f"n = {suite.n_eval}, d = {config.d_model}", f"{len(found)} seed{'s' * (len(found) > 1)}"
    panels = [
        Panel(
            "boxes",
            figures.boxes(found),
            f"Debiased CKA with the single-task controls over each task's own test prompts ({n}), by layer, for the "
            f"base model (pre) and the model tuned on all seen tasks. Boxes and points: tasks of {seeds}; a task that "
            "pre-training encoded is a ring. Dotted: two controls of one task tuned with different orders of the data "
            "(ceiling). Held-out tasks are not tuned on; those of encoded operations were learnt in pre-training.",
        ),
        Panel(
            "groups",
            figures.groups(found),
            "Thin: one line per seed; thick: mean. Left: median over seen tasks of tuned - pre; shaded: 95% interval "
            "of the mean of the last shared layer (grey) and the last layer of the transition (green), over the seeds "
            "that have a transition; dotted: how far above pre tuned must be where layers are not shared. Middle: "
            "interquartile range over seen tasks of tuned (and pre, dashed). Right: dimensions for 99% of the variance "
            f"over the {suite.n_eval * len(suite.seen)} prompts of all seen tasks.",
        ),
        Panel(
            "operations",
            figures.operations(found, suite.cluster_names),
            f"Debiased CKA with the task's control by operation and layer, mean over tasks and {seeds} ({n}). "
            "* held out; bold: encoded by pre-training.",
        ),
        Panel(
            "clusters",
            figures.clusters(found, suite.cluster_names),
            f"Median debiased CKA with the controls by cluster ({n}), pre dashed and tuned solid; seen tasks purple, "
            "held-out orange.",
        ),
        Panel(
            "accuracy",
            figures.accuracy_figure(found, suite.cluster_names),
            f"Accuracy on {suite.n_eval} test prompts per task, by operation, mean and range over {seeds}. Grey: "
            "without the skill, by the commonest answer or by the operation on a wrong argument, whichever is correct "
            "more often.",
        ),
        Panel(
            "projection",
            figures.projection(pictures, suite.cluster_names),
            f"Residual stream at ANS in two dimensions (t-SNE), seed {first}, seen tasks, coloured by cluster.",
        ),
        Panel(
            "purity",
            figures.purity(found),
            f"Share of the {config.n_neighbours} nearest neighbours at ANS in the same cluster, among "
            f"{min(config.n_purity, suite.n_eval)} prompts of each seen task.",
        ),
    ]
    return Analysis(
        findings=findings_of(config, found),
        panels=panels,
        views={
            "Layer groups by the fixed rule": table_html(groups_table(config.seeds, found)),
            "Median debiased CKA over tasks by layer, mean over seeds": table_html(medians_table(found), number=".2f"),
        },
        notes=_notes(config, found),
    )


def _notes(config: MossaConfig, found: Sequence[SeedResults]) -> list[str]:
    tuning, n_seen = config.tuning, len(config.suite.seen)
    notes = [
        f"The multi-task model is tuned for {tuning.steps:,} steps on {n_seen} seen skills, "
        f"{tuning.steps / n_seen:.3g} per skill on average, each control for {config.control_steps} on its own.",
        "The controls of a seed see the same prompts apart from the skill's words and answers, so tasks are not "
        "independent draws; intervals are over seeds.",
        f"Layer groups of the seen tasks: {boundary_note([m.curves.seen for m in found])}.",
    ]
    if config.rank:
        notes.append(
            f"Models are tuned by changes of rank {config.rank} to the query and value matrices (LoRA), which are "
            "added to the weights for measuring; everything else is the base's."
        )
    if tuning.layer_decay < 1:
        notes.append(
            f"Tuning multiplies the learning rate by {tuning.layer_decay:g} from each block to the one below and "
            "does not change the embeddings: the lower layers agree with the controls partly by construction."
        )
    if ceilings := [m.ceiling for m in found if m.ceiling is not None]:
        least = min(float(np.median(ceiling, axis=0).min()) for ceiling in ceilings)
        notes.append(f"Ceiling: two controls of a seen task have a median CKA of at least {least:.3f} at every layer.")
    notes.append(
        "CKA does not change if a layer is rotated or scaled, and a few examples can change it a lot (Davari et al. "
        "2022), so neighbour purity and dimensions are shown as well."
    )
    return [*notes, *(note for m in found for note in m.notes)]


_ARM = (100, 101, 102, 103)

STUDY = Study(
    name="mossa",
    title="MOSSA: which layers hold which tasks after tuning",
    source="Zhao, Ziser & Cohen, Layer by Layer: Uncovering Where Multi-Task Learning Happens (arXiv 2410.20008)",
    presets={
        "smoke": MossaConfig(
            seeds=(0,),
            suite=SkillSuite(
                n_eval=8,
                n_arguments=2,
                length=4,
                seen=("copy-0", "swap-1", "translate-0", "type-1", "classify-0", "sentiment-1"),
            ),
            n_layers=2,
            d_model=16,
            n_heads=2,
            pretraining=TrainConfig(steps=4, batch_size=8),
            tuning=TrainConfig(steps=4, batch_size=8, layer_decay=0.5, freeze=FROZEN),
            control_steps=2,
            n_neighbours=3,
            n_purity=6,
            n_projected=40,
            test_findings=False,
        ),
        "quick": MossaConfig(
            seeds=(20,),
            suite=SkillSuite(n_eval=700, seen=SEEN_TASKS),
            n_layers=6,
            pretraining=TrainConfig(steps=800, batch_size=64, lr=2e-3, warmup=50),
            tuning=TrainConfig(steps=18 * 60, batch_size=32, lr=5e-4, warmup=20, freeze=FROZEN),
            control_steps=60,
            ceiling=False,
        ),
        "paper": MossaConfig(),
        # The arms use the first bases of the preset above.
        "lora": MossaConfig(
            seeds=_ARM,
            tuning=TrainConfig(steps=18 * 240, batch_size=32, lr=5e-3, warmup=20, freeze=FROZEN),
            rank=8,
            control_steps=240,
            ceiling=False,
        ),
        "layer-decay": MossaConfig(
            seeds=_ARM,
            tuning=TrainConfig(steps=18 * 120, batch_size=32, lr=2e-3, warmup=20, layer_decay=0.5, freeze=FROZEN),
            ceiling=False,
        ),
        "equal-steps": MossaConfig(
            seeds=_ARM,
            tuning=TrainConfig(steps=480, batch_size=32, lr=5e-4, warmup=20, freeze=FROZEN),
            control_steps=480,
            controls="seen",
            ceiling=False,
        ),
        "origin": MossaConfig(
            experiment="origin", seeds=(40, 41, 42, 43, 44), suite=SkillSuite(n_eval=500), n_layers=4, n_heads=4
        ),
    },
    jobs=jobs_of,
    run_job=run_any_job,
    analyse=analyse,
    judge=judge,
    trained_models=models_trained,
    stage=lambda job: job.stage,
)
