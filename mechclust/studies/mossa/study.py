"""MOSSA: CKA between a multi-task model and single-task controls shows which layers hold which tasks.

Zhao, Ziser & Cohen, "Layer by Layer: Uncovering Where Multi-Task Learning Happens in Instruction-Tuned Large
Language Models" (EMNLP 2024, arXiv 2410.20008), in miniature.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from mechclust.models import model_for
from mechclust.studies.extra_probes import TrainedModel
from mechclust.studies.mossa import report
from mechclust.studies.mossa.config import FROZEN, ModelJob, MossaConfig, jobs
from mechclust.studies.mossa.origin import report as origin_report
from mechclust.studies.mossa.origin.jobs import OriginJob, cells_of, models_of, origin_jobs
from mechclust.studies.mossa.origin.run import corpus_of, run_origin_job, trained_origin_models, training_of
from mechclust.studies.mossa.run import run_job, trained_models
from mechclust.studies.study import Study
from mechclust.studies.trainings import Training
from mechclust.training import TrainConfig
from tasks import SkillSuite
from tasks.skills import OPERATIONS


def trainings(config: MossaConfig) -> list[Training]:
    """Return the trainings of the configured experiment. Low-rank changes count as if all weights were trained."""
    model = model_for(config.suite, n_layers=config.n_layers, d_model=config.d_model, n_heads=config.n_heads)
    n_seeds = len(config.seeds)
    trained = []
    if config.experiment == "origin":
        for cell in cells_of(config):
            network = replace(model, d_model=cell.width)
            for job in models_of(config, config.seeds[0], cell):
                trained.append(Training(network, corpus_of(config, job), training_of(config, job), n_seeds))
        return trained
    tuning = replace(config.tuning, freeze=()) if config.rank else config.tuning
    control = replace(tuning, steps=config.control_steps)
    n_controls = len([job for job in jobs(config) if job.kind == "control"])
    return [
        Training(model, config.suite, config.pretraining, n_seeds),
        Training(model, config.suite, tuning, n_seeds),
        Training(model, config.suite, control, n_controls),
    ]


def _jobs_of(config: MossaConfig) -> Sequence[ModelJob | OriginJob]:
    """Return the jobs of the configured experiment."""
    return origin_jobs(config) if config.experiment == "origin" else jobs(config)


def _stage_of(job: ModelJob | OriginJob) -> int:
    """Return the number of a job's stage."""
    return job.stage


def _run_any_job(config: MossaConfig, job: ModelJob | OriginJob, out: Path) -> None:
    """Do a job of either experiment."""
    if isinstance(job, OriginJob):
        run_origin_job(config, job, out)
    else:
        run_job(config, job, out)


def _models_trained(config: MossaConfig, out: Path) -> Iterable[TrainedModel]:
    """Return the models that the configured experiment trained."""
    return trained_origin_models(config, out) if config.experiment == "origin" else trained_models(config, out)


def _of_experiment(function: str, config: MossaConfig, argument: Any) -> Any:
    """Call this function of the configured experiment's module.

    The module has its results, findings, figures, tables and notes.
    """
    module = origin_report if config.experiment == "origin" else report
    return getattr(module, function)(config, argument)


def _headline(config: MossaConfig, results: Any) -> str:
    """Return the conclusion on tuning. The other experiment's is in its findings."""
    return "" if config.experiment == "origin" else report.headline(config, results)


_ARM_SEEDS = (100, 101, 102, 103)
_QUICK_HELD_OUT = ("copy-2", "swap-0", "translate-1", "type-2", "classify-0", "sentiment-1")
_ALL_QUICK_TASKS = [f"{operation}-{argument}" for operation, argument in product(OPERATIONS, range(3))]
_QUICK_TASKS = tuple(task for task in _ALL_QUICK_TASKS if task not in _QUICK_HELD_OUT)

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
            suite=SkillSuite(n_eval=700, n_arguments=3, seen=_QUICK_TASKS),
            n_layers=6,
            pretraining=TrainConfig(steps=800, batch_size=64, lr=2e-3, warmup=50),
            tuning=TrainConfig(steps=12 * 120, batch_size=32, lr=5e-4, warmup=20, freeze=FROZEN),
            ceiling=False,
        ),
        "paper": MossaConfig(),
        # The arms use the first bases of the preset above.
        "lora": MossaConfig(
            seeds=_ARM_SEEDS,
            tuning=TrainConfig(steps=18 * 240, batch_size=32, lr=5e-3, warmup=20, freeze=FROZEN),
            rank=8,
            control_steps=240,
            ceiling=False,
        ),
        "layer-decay": MossaConfig(
            seeds=_ARM_SEEDS,
            tuning=TrainConfig(steps=18 * 120, batch_size=32, lr=2e-3, warmup=20, layer_decay=0.5, freeze=FROZEN),
            ceiling=False,
        ),
        "equal-steps": MossaConfig(
            seeds=_ARM_SEEDS,
            tuning=TrainConfig(steps=480, batch_size=32, lr=5e-4, warmup=20, freeze=FROZEN),
            control_steps=480,
            controls="seen",
            ceiling=False,
        ),
        "origin": MossaConfig(
            experiment="origin", seeds=(40, 41, 42, 43, 44), suite=SkillSuite(n_eval=500), n_layers=4, n_heads=4
        ),
    },
    jobs=_jobs_of,
    run_job=_run_any_job,
    trained_models=_models_trained,
    trainings=trainings,
    load=partial(_of_experiment, "load"),
    findings=partial(_of_experiment, "findings"),
    panels=partial(_of_experiment, "panels"),
    tables=partial(_of_experiment, "tables"),
    notes=partial(_of_experiment, "notes"),
    headline=_headline,
    stage=_stage_of,
)
