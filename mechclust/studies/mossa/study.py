"""MOSSA: CKA between a multi-task model and single-task controls shows which layers hold which tasks.

Zhao, Ziser & Cohen, "Layer by Layer: Uncovering Where Multi-Task Learning Happens in Instruction-Tuned Large
Language Models" (EMNLP 2024, arXiv 2410.20008), in miniature.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from mechclust.models import model_for
from mechclust.studies.mossa import report
from mechclust.studies.mossa.config import FROZEN, MossaConfig, jobs
from mechclust.studies.mossa.run import run_job, trained_models
from mechclust.studies.study import Study
from mechclust.studies.trainings import Training
from mechclust.training import TrainConfig
from tasks import SkillSuite
from tasks.skills import OPERATIONS


def trainings(config: MossaConfig) -> list[Training]:
    """Return the trainings of a run. Low-rank changes count as if all weights were trained."""
    model = model_for(config.suite, n_layers=config.n_layers, d_model=config.d_model, n_heads=config.n_heads)
    n_seeds = len(config.seeds)
    tuning = replace(config.tuning, freeze=()) if config.rank else config.tuning
    control = replace(tuning, steps=config.control_steps)
    n_controls = len([job for job in jobs(config) if job.kind == "control"])
    return [
        Training(model, config.suite, config.pretraining, n_seeds),
        Training(model, config.suite, tuning, n_seeds),
        Training(model, config.suite, control, n_controls),
    ]


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
    },
    jobs=jobs,
    run_job=run_job,
    trained_models=trained_models,
    trainings=trainings,
    load=report.load,
    findings=report.findings,
    report=report.report,
)
