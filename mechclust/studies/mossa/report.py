"""Results, findings, figures, tables and notes of the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mechclust.evidence import Finding
from mechclust.mossa.task_curves import MODELS, Which
from mechclust.report.analysis import Analysis
from mechclust.report.html import table_html
from mechclust.report.panel import Panel
from mechclust.report.text import counted
from mechclust.studies.kept import load_required
from mechclust.studies.mossa.config import MossaConfig, result_path
from mechclust.studies.mossa.findings import boundary_note, findings_of
from mechclust.studies.mossa.results import SeedResults, ceiling_medians, groups_table, load_results, medians_table
from probes import ProbeResult

if TYPE_CHECKING:
    import pandas as pd

_CAPTIONS = {
    "boxes": "Debiased CKA with the single-task controls over each task's own test prompts (n = {n}, d = {d}), by "
    "layer, for the base model (pre) and the model tuned on all seen tasks. Boxes and points: tasks of {seeds}; a task "
    "that pre-training encoded is a ring.{ceiling} Held-out tasks are not tuned on; those of encoded operations were "
    "learnt in pre-training.",
    "groups": "Thin: one line per seed; thick: mean. Left: tuned - pre, difference of medians over seen tasks; shaded: "
    "95% interval of the mean of the last shared layer (grey) and the last layer of the transition (green), over the "
    "seeds that have a transition; dotted: how far above pre tuned must be where layers are not shared. Middle: "
    "interquartile range over seen tasks of tuned (and pre, dashed). Right: dimensions for 99% of the variance over "
    "the {n_prompts} prompts of all seen tasks.",
    "operations": "Debiased CKA with the task's control by operation and layer, mean over tasks and {seeds} (n = {n}, "
    "d = {d}). * held out; bold: encoded by pre-training.",
    "clusters": "Median debiased CKA with the controls by cluster (n = {n}, d = {d}), pre dashed and tuned solid; seen "
    "tasks purple, held-out orange.",
    "accuracy": "Accuracy on {n} test prompts per task, by operation, mean and range over {seeds}. Grey: without the "
    "skill, by the commonest answer or by the operation on a wrong argument, whichever is correct more often.",
    "projection": "Residual stream at ANS in two dimensions (t-SNE), seed {first}, seen tasks, coloured by cluster.",
    "purity": "Share of the {neighbours} nearest neighbours at ANS in the same cluster, among {n_purity} prompts of "
    "each seen task.",
}
_CEILING = " Dotted: two controls of one task tuned with different orders of the data (ceiling)."


@dataclass(frozen=True)
class Results:
    """Measurements of all seeds.

    Attributes:
        runs: one for each seed.
        pictures: the projections of the first seed, by model.
    """

    runs: Sequence[SeedResults]
    pictures: Mapping[Which, ProbeResult]


def load(config: MossaConfig, out: Path) -> Results:
    """Read the measurements of a run.

    Raises:
        InputError: naming the measurement that is missing.
    """
    runs = [load_results(config, out, seed) for seed in config.seeds]
    first = config.seeds[0]
    pictures = {model: load_required(out, result_path(out, first, f"{model}.projection")) for model in MODELS}
    return Results(runs, pictures)


def findings(config: MossaConfig, results: Results) -> list[Finding]:
    """Return the findings over seeds."""
    return findings_of(config, results.runs)


def report(config: MossaConfig, results: Results) -> Analysis:
    """Return the figures, the layer groups and medians as tables, the notes and the headline."""
    runs = results.runs
    return Analysis(
        panels=_panels(config, results),
        folded={title: table_html(table) for title, table in tables_of(config, runs).items()},
        notes=_notes(config, runs),
        headline=headline(runs),
    )


def _panels(config: MossaConfig, results: Results) -> list[Panel]:
    """Draw the figures, with their captions."""
    from mechclust.studies.mossa import figures  # loads matplotlib

    suite = config.suite
    runs = results.runs
    operations = suite.cluster_names
    drawn = {
        "boxes": figures.boxes_figure(runs),
        "groups": figures.layer_groups_figure(runs),
        "operations": figures.operations_figure(runs, operations),
        "clusters": figures.clusters_figure(runs, operations),
        "accuracy": figures.accuracy_figure(runs, operations),
        "projection": figures.projection_figure(results.pictures, operations),
        "purity": figures.purity_figure(runs),
    }
    facts = {
        "n": suite.n_eval,
        "d": config.d_model,
        "seeds": counted(len(runs), "seed"),
        "ceiling": _CEILING if ceiling_medians(runs) else "",
        "n_prompts": suite.n_eval * len(suite.seen),
        "first": config.seeds[0],
        "neighbours": config.n_neighbours,
        "n_purity": min(config.n_purity, suite.n_eval),
    }
    return [Panel(name, figure, _CAPTIONS[name].format(**facts)) for name, figure in drawn.items()]


def tables_of(config: MossaConfig, runs: Sequence[SeedResults]) -> dict[str, pd.DataFrame]:
    """Return the layer groups of each seed, and the medians behind them."""
    return {
        "Layer groups by the fixed rule": groups_table(config.seeds, runs),
        "Median debiased CKA over tasks by layer, mean over seeds": medians_table(runs).round(2),
    }


def headline(runs: Sequence[SeedResults]) -> str:
    """Say how similar the last layer is to single-task models, before tuning and after."""
    base = np.mean([run.curves.seen.median("base")[-1] for run in runs])
    tuned = np.mean([run.curves.seen.median("tuned")[-1] for run in runs])
    return f"Last layer: median CKA with single-task models {base:z.2f} before tuning, {tuned:z.2f} after."


def _notes(config: MossaConfig, runs: Sequence[SeedResults]) -> list[str]:
    """Return the notes for readers of the report, with the reasons for undefined values."""
    tuning = config.tuning
    n_seen = len(config.suite.seen)
    texts = [
        f"The multi-task model is tuned for {tuning.steps:,} steps on {n_seen} seen skills, "
        f"{tuning.steps / n_seen:.3g} per skill on average, each control for {config.control_steps} on its own.",
        "The controls of a seed see the same prompts apart from the skill's words and answers, so tasks are not "
        "independent draws; intervals are over seeds.",
        f"Layer groups of the seen tasks: {boundary_note([run.curves.seen for run in runs])}.",
    ]
    if config.rank:
        texts.append(
            f"Models are tuned by changes of rank {config.rank} to the query and value matrices (LoRA), which are "
            "added to the weights for measuring; everything else is the base's."
        )
    if tuning.layer_decay < 1:
        frozen = " and does not change the embeddings" if {"embed", "pos_embed"} <= set(tuning.freeze) else ""
        texts.append(
            f"Tuning multiplies the learning rate by {tuning.layer_decay:g} from each block to the one below{frozen}: "
            "the lower layers agree with the controls partly by construction."
        )
    ceilings = ceiling_medians(runs)
    if ceilings:
        lowest = np.min(ceilings)
        texts.append(f"Ceiling: two controls of a seen task have a median CKA of at least {lowest:.3f} at every layer.")
    texts.append(
        "CKA does not change if a layer is rotated or scaled, and a few examples can change it a lot (Davari et al. "
        "2022), so neighbour purity and dimensions are shown as well."
    )
    for run in runs:
        texts += run.notes
    return texts
