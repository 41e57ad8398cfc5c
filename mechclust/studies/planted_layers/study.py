"""Planted layers: does comparing a model with the one it was tuned from find the layers that changed?

A validation of MOSSA's method (Zhao, Ziser & Cohen, arXiv 2410.20008): changes are planted, and measures are scored on
finding them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mechclust.evidence import Finding
from mechclust.report.analysis import Analysis, Panel
from mechclust.report.html import table_html
from mechclust.studies.planted_layers.config import FROZEN, PlantedConfig
from mechclust.studies.planted_layers.control_findings import control_findings_of
from mechclust.studies.planted_layers.findings import findings_of
from mechclust.studies.planted_layers.reading import SeedReadings, accuracy_table, load_readings, reading_table
from mechclust.studies.planted_layers.results import SeedResults, load_results, loss_table, summary_table
from mechclust.studies.planted_layers.run import run_job, trained_models
from mechclust.studies.planted_layers.trios import CROSSED, SAME, WHOLE, trios_of
from mechclust.studies.planted_layers.tunings import jobs
from mechclust.studies.study import Study, check_checkpoint
from mechclust.training import TrainConfig
from tasks import SkillSuite

if TYPE_CHECKING:
    import pandas as pd


def judge(config: PlantedConfig, out: Path) -> list[Finding]:
    """Findings from a run's results."""
    findings = findings_of(config, [load_results(config, out, seed) for seed in config.seeds])
    if not trios_of(config):
        return findings
    return findings + control_findings_of(config, [load_readings(config, out, seed) for seed in config.seeds])


def analyse(config: PlantedConfig, out: Path) -> Analysis:
    """Findings, figures and tables of a run."""
    found = [load_results(config, out, seed) for seed in config.seeds]
    findings = findings_of(config, found)
    panels = _panels(config, found)
    tables = {"Every measure, in numbers": summary_table(config, found)}
    notes = _notes(config)
    undefined = [note for run in found for note in run.notes]
    if config.model is None:
        tables["Loss of the base and of the trained models"] = loss_table(found)
    if trios_of(config):
        read = [load_readings(config, out, seed) for seed in config.seeds]
        findings += control_findings_of(config, read)
        panels += _reading_panels(config, read, _prompts(config, found))
        tables |= _reading_tables(config, read)
        notes.append(
            "What MOSSA reads: E is tuned on the measured skills, and one control on each of them alone. The gain is "
            "E's similarity with a task's control minus the base's, as a difference of medians over tasks; a layer has "
            f"a gain if it is above {config.gain_margin:g}. Quartiles over {config.n_measured} tasks are coarse."
        )
        undefined += [note for run in read for note in run.notes]
    folded = {title: table_html(table) for title, table in tables.items()}
    return Analysis(findings=findings, panels=panels, folded=folded, notes=[*notes, *undefined])


def _prompts(config: PlantedConfig, found: Sequence[SeedResults]) -> str:
    return f"{found[0].n} prompts per task, or {config.n_few} with few prompts"


def _seeds(n: int) -> str:
    return "1 seed" if n == 1 else f"{n} seeds"


def _panels(config: PlantedConfig, found: Sequence[SeedResults]) -> list[Panel]:
    from mechclust.studies.planted_layers import figures

    seeds = _seeds(len(found))
    n = _prompts(config, found)
    rule = (
        f"A layer is called changed if a measure exceeds {config.margin:g} times its largest value among the null's "
        "pairs at that layer."
    )
    dots = f"Mean over plants and {seeds}, with the 95% interval over seeds; dashed: a random layer."
    dotted = {
        "auc": (
            figures.separation_panels(config),
            f"How often a changed layer has a larger value than an unchanged one. {dots}",
        ),
        "errors": (
            figures.errors_panels(config),
            f"How far the first and the last layer called changed are from those that were. {dots} {rule} If none is "
            "called, the error of a random layer counts.",
        ),
        "calls": (figures.call_panels(config), f"Share of layers called changed. {dots} {rule}"),
        "unplanted": (
            figures.unplanted_panels(config),
            f"Share of layers called changed if no layer was singled out, or all were changed. {dots} {rule}",
        ),
    }
    curves = Panel(
        "curves",
        figures.curves(config, found),
        f"1 - debiased CKA between the base and the changed model by layer, mean over {seeds}, band: minimum to "
        "maximum. Grey: changed layers. Blue: residual stream; orange: what each block adds to it; green: what each "
        "block adds to the same input; dotted in the same colours: the threshold. Red, dotted: share of the loss "
        f"difference that patching restores. {n}.",
    )
    drawn = [
        Panel(name, figures.dots(config, found, panels), f"{caption} {n}.")
        for name, (panels, caption) in dotted.items()
    ]
    return [curves, *drawn]


def _reading_panels(config: PlantedConfig, read: Sequence[SeedReadings], n: str) -> list[Panel]:
    from mechclust.studies.planted_layers import control_figures

    seeds = _seeds(len(read))
    return [
        Panel(
            "gains",
            control_figures.gains(config, read),
            f"Gain of E over the base in similarity with single-task controls, residual stream, mean over {seeds}, "
            "band: minimum to maximum. Grey: the layers in which E was trained, hatched: its controls if these "
            f"differ; if nothing is grey, all were. Dashed: the margin of layer groups. {n}.",
        ),
        Panel(
            "reading_errors",
            control_figures.reading_errors(config, read),
            "How far the readings are from the first (onset, crossing, shared) and the last (end, transition, by "
            f"spread) of the layers in which E and its controls were trained, mean over plants and {seeds}. "
            f"Anything not found counts as a random layer. {n}.",
        ),
    ]


def _reading_tables(config: PlantedConfig, read: Sequence[SeedReadings]) -> dict[str, pd.DataFrame]:
    planted = (SAME, *CROSSED)
    tables = {
        "Gain over the base, area under the ROC curve": ("auc", planted),
        "First layer with a gain: error in layers": ("onset", planted),
        "Layer from which E is above the base: error in layers": ("crossing", planted),
        "First layer that is not shared: error in layers": ("shared", planted),
        "Last layer with a gain: error in layers": ("end", planted),
        "Last layer of the transition: error in layers": ("transition", planted),
        "Last layer of the transition, without dimensions: error in layers": ("by spread", planted),
        "Share of the trained layers that have a gain": ("hit", (*planted, *WHOLE)),
        "Share of the other layers that have a gain": ("false", planted),
        "Share of trios with a gain": ("found", planted),
        "Number of layers called shared": ("shared layers", (*planted, *WHOLE)),
    }
    found = {title: reading_table(config, read, *which) for title, which in tables.items()}
    return {**found, "What was learnt: share of correct answers": accuracy_table(read)}


def _notes(config: PlantedConfig) -> list[str]:
    notes = [
        "Values are medians over tasks, each on its own prompts, as in the paper; scores are means over the plants of "
        "a seed, and intervals are over seeds.",
        "The same input: every block of the changed model is given the base's residual stream, and what it adds is "
        "compared with what the base's block adds. The change is exactly 0 for a block that did not change.",
        "Patching is not a measure of similarity but the causal reference: the base is run with the changed model's "
        f"residual stream after one block. A layer is called by patching if {config.least_restored:g} of the loss "
        "difference is restored there.",
    ]
    noise = (
        f"{config.n_null} models with noise of {config.null_noise:g} of their norm in all layers, about that of "
        "rounding to bfloat16"
    )
    if config.model is None:
        notes.append(
            f"The null for trained changes: {config.n_null} models tuned identically on all layers except for the "
            f"order of the data. For planted noise: {noise}. Embeddings, final norm and unembedding are never tuned."
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
            control_steps=4,
            test_findings=False,
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
    check=check_checkpoint,
    run_job=run_job,
    analyse=analyse,
    judge=judge,
    trained_models=trained_models,
    stage=lambda job: job.stage,
)
