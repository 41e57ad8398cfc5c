"""Planted layers: does comparing a model with the one it was tuned from find the layers that changed?

A validation of the method of MOSSA (Zhao, Ziser & Cohen, arXiv 2410.20008): the truth is planted, and measures are
scored on finding it.
"""

from __future__ import annotations

from pathlib import Path

from mechclust.report.analysis import Analysis, Panel
from mechclust.report.html import table_html
from mechclust.studies.planted_layers.claims import claims_of
from mechclust.studies.planted_layers.config import FROZEN, PlantedConfig, jobs
from mechclust.studies.planted_layers.results import load_results, table_of
from mechclust.studies.planted_layers.run import run_job, trained_models
from mechclust.studies.study import Study
from mechclust.training import TrainConfig
from tasks import SkillSuite


def analyse(config: PlantedConfig, out: Path) -> Analysis:
    """Claims, figures and tables of a run."""
    from mechclust.studies.planted_layers import figures

    found = [load_results(config, out, seed) for seed in config.seeds]
    seeds = f"{len(found)} seed{'s' * (len(found) > 1)}"
    n = f"{config.suite.n_eval} prompts of each task, or {config.n_few} where they are few"
    rule = (
        f"A layer is called changed where a measure is above {config.margin:g} times its largest value among the "
        "null's pairs at that layer."
    )
    panels = [
        Panel(
            "curves",
            figures.curves(config, found),
            f"1 - debiased CKA between the base and the changed model by layer, mean over {seeds}, band: least to "
            "greatest. Grey: the layers that were changed. Blue: residual stream; orange: what each block adds to it; "
            "green: what each block adds to the same input. Red, dotted: share of the loss difference that patching "
            "restores.",
        ),
        Panel(
            "auc",
            figures.auc(config, found),
            f"How often a changed layer has a larger value than an unchanged one, mean over plants and {seeds}; chance "
            f".5. {n}.",
        ),
        Panel(
            "errors",
            figures.errors(config, found),
            f"How far the first and the last layer called changed are from those that were, mean over plants and "
            f"{seeds}. {rule} Where none is called, a random layer's error counts.",
        ),
        Panel(
            "false_calls",
            figures.false_calls(config, found),
            f"Share of layers called changed between models of which no layer was singled out, mean over {seeds}. "
            f"{rule}",
        ),
    ]
    tables = {
        "Area under the ROC, by layer": ("auc", "planted"),
        "First changed layer: error in layers": ("onset", "planted"),
        "Last changed layer: error in layers": ("end", "planted"),
        "Share of the changed layers that are called": ("hit", "planted"),
        "Share of the other layers that are called": ("false", "planted"),
        "Share of layers called where none was singled out": ("false", "none"),
        "Share of models said to have changed in some layers only": ("partial", "none"),
    }
    views = {title: table_html(table_of(config, found, *which)) for title, which in tables.items()}
    return Analysis(claims=claims_of(config, found), panels=panels, folded=views, notes=_notes(config))


def _notes(config: PlantedConfig) -> list[str]:
    notes = [
        "Values are medians over tasks, each on its own prompts, as in the paper; scores are means over the plants of "
        "a seed, and intervals are over seeds.",
        "The same input: every block of the changed model is given the base's residual stream, and what it adds is "
        "compared with what the base's block adds. It is exactly 0 for a block that did not change.",
        "Patching is no measure of similarity but the causal reference: the base is run with the changed model's "
        f"residual stream after one block. By it a layer is called where {config.least_restored:g} of the loss "
        "difference is restored there.",
    ]
    noise = (
        f"{config.n_null} models with noise of {config.null_noise:g} of their norm in all layers, about that of "
        "rounding to bfloat16"
    )
    if config.model is None:
        notes.append(
            f"The null of what was trained: {config.n_null} models tuned alike on all layers but for the order of the "
            f"data. Of what was planted as noise: {noise}. Embeddings, final norm and unembedding are never tuned."
        )
    else:
        notes.append(f"The null: {noise}.")
    return notes


STUDY = Study(
    name="planted-layers",
    title="Planted layers: which measures find the layers that changed",
    source="ours, on the method of Zhao, Ziser & Cohen, Layer by Layer (arXiv 2410.20008)",
    presets={
        "smoke": PlantedConfig(
            seeds=(0,),
            suite=SkillSuite(
                n_eval=12,
                n_arguments=2,
                length=4,
                seen=("copy-0", "swap-1", "translate-0", "type-1", "classify-0", "sentiment-1"),
            ),
            n_measured=2,
            n_layers=3,
            d_model=16,
            n_heads=2,
            pretraining=TrainConfig(steps=4, batch_size=8),
            tuning=TrainConfig(steps=4, batch_size=8, freeze=FROZEN),
            spans=((2, 2),),
            noise=(0.3,),
            n_null=2,
            n_few=6,
            n_patched=4,
            test_claims=False,
        ),
        "quick": PlantedConfig(
            seeds=(0,),
            n_measured=2,
            n_layers=6,
            pretraining=TrainConfig(steps=500, batch_size=64, lr=2e-3, warmup=50),
            tuning=TrainConfig(steps=120, batch_size=32, lr=2e-3, warmup=20, freeze=FROZEN),
        ),
        "paper": PlantedConfig(),
    },
    jobs=jobs,
    run_job=run_job,
    analyse=analyse,
    trained_models=trained_models,
    stage=lambda job: job.stage,
)
