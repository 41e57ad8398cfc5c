"""Induction heads: they form when the loss on repeated tokens drops, which takes two layers.

Olsson et al., "In-context Learning and Induction Heads" (arXiv 2209.11895).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from mechclust.report.analysis import Analysis
from mechclust.report.panel import Panel
from mechclust.studies.induction_heads.config import InductionHeadsConfig, jobs
from mechclust.studies.induction_heads.findings import INDUCTION_SCORE, findings_of
from mechclust.studies.induction_heads.results import RunResults, by_arm, half_step, load_results
from mechclust.studies.induction_heads.run import run_job, trained_models, trainings
from mechclust.studies.study import Job, Study
from mechclust.training import TrainConfig
from tasks import RepeatedTokens

_CAPTIONS = {
    "over_training": "Loss on tokens that repeat, and the highest score of a head: attention to the tokens after "
    "earlier occurrences (induction, in the last layer) or to the previous token (in the first), less chance. Mean "
    "over seeds, band: minimum to maximum. Dashed: the step at which induction heads are half way, if they form.",
    "ablations": "By how much the loss rises if a head's output is replaced by its mean over sequences, by the head's "
    "rank by score in its layer, and for all heads of the layer at once (red). A dot for each network with two layers.",
}
_NOTES = [
    "Positions are learned embeddings in the residual stream. Olsson et al. add them to queries and keys only.",
    "The loss counts repeated tokens only. Every step draws new sequences, so the training loss is that on new data.",
]


def load(config: InductionHeadsConfig, out: Path) -> dict[Job, RunResults]:
    """Read the measurements of all runs."""
    return {job: load_results(config, out, job) for job in jobs(config)}


def report(config: InductionHeadsConfig, runs: Mapping[Job, RunResults]) -> Analysis:
    """Draw the figures, and say when induction heads form."""
    from mechclust.studies.induction_heads import figures  # loads matplotlib

    two, one = by_arm(runs)
    drawn = {
        "over_training": figures.over_training_figure(two, one, _formed_at(two)),
        "ablations": figures.ablations_figure(two),
    }
    panels = [Panel(name, figure, _CAPTIONS[name]) for name, figure in drawn.items()]
    return Analysis(panels=panels, notes=_NOTES, headline=_headline(two, one))


def _headline(two: Sequence[RunResults], one: Sequence[RunResults]) -> str:
    """Say how strong induction heads are, when they form, and what the loss is with them and without."""
    score = np.mean([run.top_induction[-1] for run in two])
    loss = np.mean([run.loss[-1] for run in two])
    loss_of_one = np.mean([run.loss[-1] for run in one])
    losses = f"The loss on repeated tokens ends at {loss:.2f} nats, with one layer at {loss_of_one:.2f}."
    step = _formed_at(two)
    if step is None:
        return f"No induction head formed: the strongest scores {score:z.2f}. {losses}"
    return f"The strongest induction head scores {score:z.2f}, half of it by step {step:.0f}. {losses}"


def _formed_at(runs: Sequence[RunResults]) -> float | None:
    """Return the mean step at which induction scores are half way, or ``None`` if they end below the bound of O1."""
    if not INDUCTION_SCORE.met(float(np.mean([run.top_induction[-1] for run in runs]))):
        return None
    return float(np.mean([half_step(run.steps, run.top_induction) for run in runs]))


STUDY = Study(
    name="induction-heads",
    title="Induction heads: they form when the loss on repeated tokens drops",
    source="Olsson et al., In-context Learning and Induction Heads (arXiv 2209.11895)",
    presets={
        "smoke": InductionHeadsConfig(
            seeds=(0,),
            task=RepeatedTokens(n_symbols=8, length=12, periods=(3, 5), n_test=16),
            training=TrainConfig(steps=20, batch_size=8, checkpoint_every=10),
            d_model=8,
            n_heads=2,
            test_findings=False,
        ),
        "quick": InductionHeadsConfig(
            seeds=(0, 1, 2), training=replace(InductionHeadsConfig().training, steps=400, checkpoint_every=20)
        ),
        "paper": InductionHeadsConfig(),
    },
    jobs=jobs,
    run_job=run_job,
    load=load,
    findings=findings_of,
    report=report,
    trained_models=trained_models,
    trainings=trainings,
)
