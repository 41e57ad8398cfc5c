"""MOSSA: CKA between a multi-task model and single-task controls shows which layers hold which tasks.

Zhao, Ziser & Cohen, "Layer by Layer: Uncovering Where Multi-Task Learning Happens in Instruction-Tuned Large
Language Models" (EMNLP 2024, arXiv 2410.20008), in miniature.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mechclust.evidence import Finding
from mechclust.report.analysis import Panel
from mechclust.studies.extra_probes import TrainedModel
from mechclust.studies.mossa import report
from mechclust.studies.mossa.config import FROZEN, SEEN_TASKS, ModelJob, MossaConfig, jobs
from mechclust.studies.mossa.origin import report as origin_report
from mechclust.studies.mossa.origin.jobs import OriginJob, origin_jobs
from mechclust.studies.mossa.origin.run import run_origin_job, trained_origin_models
from mechclust.studies.mossa.run import run_job, trained_models
from mechclust.studies.study import Study
from mechclust.training import TrainConfig
from tasks import SkillSuite

if TYPE_CHECKING:
    import pandas as pd


def jobs_of(config: MossaConfig) -> Sequence[ModelJob | OriginJob]:
    """Return the jobs of the configured experiment."""
    return origin_jobs(config) if config.experiment == "origin" else jobs(config)


def stage_of(job: ModelJob | OriginJob) -> int:
    """Return the number of a job's stage."""
    return job.stage


def run_any_job(config: MossaConfig, job: ModelJob | OriginJob, out: Path) -> None:
    """Do a job of either experiment."""
    if isinstance(job, OriginJob):
        run_origin_job(config, job, out)
    else:
        run_job(config, job, out)


def models_trained(config: MossaConfig, out: Path) -> Iterable[TrainedModel]:
    """Return the models that the configured experiment trained."""
    return trained_origin_models(config, out) if config.experiment == "origin" else trained_models(config, out)


def _report(config: MossaConfig) -> ModuleType:
    """Return the module with the results, findings, figures, tables and notes of the configured experiment."""
    return origin_report if config.experiment == "origin" else report


def load(config: MossaConfig, out: Path) -> Any:
    """Read the measurements of a run."""
    return _report(config).load(config, out)


def findings(config: MossaConfig, results: Any) -> Sequence[Finding]:
    """Return the findings of a run."""
    judged: Sequence[Finding] = _report(config).findings(config, results)
    return judged


def panels(config: MossaConfig, results: Any) -> Sequence[Panel]:
    """Draw the figures of a run."""
    drawn: Sequence[Panel] = _report(config).panels(config, results)
    return drawn


def tables(config: MossaConfig, results: Any) -> Mapping[str, pd.DataFrame]:
    """Return the tables of a run."""
    titled: Mapping[str, pd.DataFrame] = _report(config).tables(config, results)
    return titled


def notes(config: MossaConfig, results: Any) -> Sequence[str]:
    """Return the notes on a run."""
    texts: Sequence[str] = _report(config).notes(config, results)
    return texts


ARM_SEEDS = (100, 101, 102, 103)

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
            seeds=ARM_SEEDS,
            tuning=TrainConfig(steps=18 * 240, batch_size=32, lr=5e-3, warmup=20, freeze=FROZEN),
            rank=8,
            control_steps=240,
            ceiling=False,
        ),
        "layer-decay": MossaConfig(
            seeds=ARM_SEEDS,
            tuning=TrainConfig(steps=18 * 120, batch_size=32, lr=2e-3, warmup=20, layer_decay=0.5, freeze=FROZEN),
            ceiling=False,
        ),
        "equal-steps": MossaConfig(
            seeds=ARM_SEEDS,
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
    trained_models=models_trained,
    load=load,
    findings=findings,
    panels=panels,
    tables=tables,
    notes=notes,
    stage=stage_of,
)
