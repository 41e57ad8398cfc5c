"""Planted layers: does comparing a model with the one it was tuned from find the layers that changed?

A validation of MOSSA's method (Zhao, Ziser & Cohen, arXiv 2410.20008): changes are planted, and measures are scored on
finding them.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mechclust.evidence import Finding
from mechclust.models import model_for
from mechclust.report.analysis import Analysis
from mechclust.report.html import table_html
from mechclust.report.panel import Panel
from mechclust.report.text import counted
from mechclust.studies.planted_layers.config import FROZEN, PlantedConfig
from mechclust.studies.planted_layers.control_findings import control_findings_of
from mechclust.studies.planted_layers.findings import findings_of
from mechclust.studies.planted_layers.reading import SeedReadings, accuracy_table, load_readings, reading_table
from mechclust.studies.planted_layers.results import SeedResults, load_results, summary_table
from mechclust.studies.planted_layers.run import check, run_job, trained_models
from mechclust.studies.planted_layers.trios import CROSSED, SAME, WHOLE, trios_of
from mechclust.studies.planted_layers.tunings import jobs, tunings
from mechclust.studies.study import Study
from mechclust.studies.trainings import Training
from mechclust.training import TrainConfig
from tasks import SkillSuite

if TYPE_CHECKING:
    import pandas as pd

_PLANTED = (SAME, *CROSSED)  # trios with a first and a last trained layer
_READING_TABLES = {
    "Gain over the base, area under the ROC curve": ("auc", _PLANTED),
    "First layer with a gain: error in layers": ("onset", _PLANTED),
    "Layer from which E is above the base: error in layers": ("crossing", _PLANTED),
    "First layer that is not shared: error in layers": ("shared", _PLANTED),
    "Last layer with a gain: error in layers": ("end", _PLANTED),
    "Last layer of the transition: error in layers": ("transition", _PLANTED),
    "Last layer of the transition, without dimensions: error in layers": ("by spread", _PLANTED),
    "Share of the trained layers that have a gain": ("hit", (*_PLANTED, *WHOLE)),
    "Share of the other layers that have a gain": ("false", _PLANTED),
    "Share of trios with a gain": ("found", _PLANTED),
    "Number of layers called shared": ("shared layers", (*_PLANTED, *WHOLE)),
}
_DOTS = "Mean over plants and {seeds}{interval}"
_AND_CHANCE = f"{_DOTS}; dashed: a random layer."
_CALLED = (
    "A layer is called changed if a measure exceeds {margin:g} times its largest value among the null's pairs at that "
    "layer."
)
_CAPTIONS = {
    "curves": "1 - debiased CKA between the base and the changed model by layer, mean over {seeds}, band: minimum to "
    "maximum. Grey: changed layers. Blue: residual stream; orange: what each block adds to it; green: what each "
    "block adds to the same input; dotted in the same colours: the threshold. Red, dotted: share of the loss "
    "difference that patching restores. {prompts}; patching: {n_patched}.",
    "auc": f"How often a changed layer has a larger value than an unchanged one. {_AND_CHANCE} {{prompts}}; patching: "
    "{n_patched}.",
    "errors": f"How far the first and the last layer called changed are from those that were. {_AND_CHANCE} {_CALLED} "
    "If none is called, the error of a random layer counts. {prompts}; patching: {n_patched}.",
    "calls": f"Share of layers called changed. {_DOTS}. {_CALLED} {{prompts}}, or {{n_few}} with few prompts; "
    "patching: {n_patched}.",
    "unplanted": "Share of layers called changed if no layer was singled out, or all were changed. "
    f"{_DOTS}. {_CALLED} {{prompts}}.",
    "gains": "Gain of E over the base in similarity with single-task controls, residual stream, mean over {seeds}, "
    "band: minimum to maximum. Grey: the layers in which E was trained, hatched: its controls if these differ; if "
    "nothing is grey, all were. Dashed: the margin of layer groups. {prompts}.",
    "reading_errors": "How far the readings are from the first (onset, crossing, shared) and the last (end, "
    "transition, by spread) of the layers in which E and its controls were trained, mean over plants and {seeds}. "
    "Anything not found counts as a random layer. {prompts}, or {n_few} with few prompts.",
}


class Results(NamedTuple):
    """Measurements of all seeds.

    Attributes:
        changes: of pairs of models, one for each seed.
        readings: of trios, one for each seed. Empty if there are no trios.
    """

    changes: list[SeedResults]
    readings: list[SeedReadings]


def load(config: PlantedConfig, out: Path) -> Results:
    """Read the measurements of a run.

    Raises:
        InputError: naming the measurement that is missing.
    """
    changes = [load_results(config, out, seed) for seed in config.seeds]
    readings = [load_readings(config, out, seed) for seed in config.seeds] if trios_of(config) else []
    return Results(changes, readings)


def findings(config: PlantedConfig, results: Results) -> list[Finding]:
    """Return the findings on pairs, then those on trios."""
    return findings_of(config, results.changes) + control_findings_of(config, results.readings)


def report(config: PlantedConfig, results: Results) -> Analysis:
    """Return the figures, every score as a table, and the notes."""
    folded = {title: table_html(table) for title, table in tables_of(config, results).items()}
    return Analysis(panels=_panels(config, results), folded=folded, notes=_notes(config, results))


def _panels(config: PlantedConfig, results: Results) -> list[Panel]:
    """Draw the figures, with their captions."""
    from mechclust.studies.planted_layers import control_figures, figures  # loads matplotlib

    runs = results.changes
    drawn = {
        "curves": figures.curves_figure(config, runs),
        "auc": figures.dots_figure(config, runs, figures.separation_panels(config)),
        "errors": figures.dots_figure(config, runs, figures.errors_panels(config)),
        "calls": figures.dots_figure(config, runs, figures.call_panels(config)),
        "unplanted": figures.dots_figure(config, runs, figures.unplanted_panels(config)),
    }
    if results.readings:
        drawn["gains"] = control_figures.gains_figure(config, results.readings)
        drawn["reading_errors"] = control_figures.reading_errors_figure(config, results.readings)
    facts = {
        "seeds": counted(len(config.seeds), "seed"),
        "interval": ", with the 95% interval over seeds" if len(config.seeds) > 1 else "",
        "margin": config.margin,
        "prompts": f"{runs[0].n} prompts per task",
        "n_few": config.n_few,
        "n_patched": min(config.n_patched, runs[0].n),
    }
    return [Panel(name, figure, _CAPTIONS[name].format(**facts)) for name, figure in drawn.items()]


def tables_of(config: PlantedConfig, results: Results) -> dict[str, pd.DataFrame]:
    """Return every score by title."""
    titled = {"Every measure, in numbers": summary_table(config, results.changes)}
    if results.readings:
        for title, (name, columns) in _READING_TABLES.items():
            titled[title] = reading_table(config, results.readings, name, columns)
        titled["What was learnt: share of correct answers"] = accuracy_table(results.readings)
    return titled


def _notes(config: PlantedConfig, results: Results) -> list[str]:
    """Return the notes for readers of the report, with the reasons for undefined values."""
    noise = (
        f"{config.n_null} models with noise of {config.null_noise:g} of their norm in all layers, about that of "
        "rounding to bfloat16"
    )
    null = f"The null: {noise}."
    if config.model is None:
        null = (
            f"The null for trained changes: {config.n_null} models tuned identically on all layers except for the "
            f"order of the data. For planted noise: {noise}. Embeddings, final norm and unembedding are never tuned."
        )
    texts = [
        "Values are medians over tasks, each on its own prompts, as in the paper; scores are means over the plants of "
        "a seed, and intervals are over seeds.",
        "The same input: every block of the changed model is given the base's residual stream, and what it adds is "
        "compared with what the base's block adds. The change is exactly 0 for a block that did not change.",
        "Patching is not a measure of similarity but the causal reference: the base is run with the changed model's "
        f"residual stream after one block. A layer is called by patching if {config.least_restored:g} of the loss "
        "difference is restored there.",
        null,
    ]
    if results.readings:
        texts.append(
            "What MOSSA reads: E is tuned on the measured skills, and one control on each of them alone. The gain is "
            "E's similarity with a task's control minus the base's, as a difference of medians over tasks; a layer has "
            f"a gain if it is above {config.gain_margin:g}. Quartiles over {config.n_measured} tasks are coarse."
        )
    undefined = [run.notes for run in results.changes] + [run.notes for run in results.readings]
    return [*texts, *chain.from_iterable(undefined)]


def trainings(config: PlantedConfig) -> list[Training]:
    """Return the trainings, of which there are none with a given model."""
    if config.model is not None:
        return []
    model = model_for(config.suite, n_layers=config.n_layers, d_model=config.d_model, n_heads=config.n_heads)
    n_seeds = len(config.seeds)
    trained = [Training(model, config.suite, config.pretraining, n_seeds)]
    for tuning in tunings(config).values():
        trained.append(Training(model, tuning.suite(config.suite), tuning.settings(config), n_seeds))
    return trained


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
            control_steps=240,
        ),
        "paper": PlantedConfig(),
    },
    jobs=jobs,
    check=check,
    run_job=run_job,
    trained_models=trained_models,
    trainings=trainings,
    load=load,
    findings=findings,
    report=report,
)
