"""Clustering heads in models of several layers and heads: which heads map equivalent inputs to similar outputs?

Odonnat, Bouaziz & Cabannes (arXiv 2410.24050) describe such heads in a network with a single head. Here, the probe is
applied to three kinds of model, each with its controls. They are transformers trained to add, a pretrained language
model, and the task-cluster network of Wu & Varshney (arXiv 2402.12151).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mechclust.evidence import Finding
from mechclust.report.analysis import Analysis
from mechclust.report.html import table_html
from mechclust.report.panel import Panel
from mechclust.report.text import counted
from mechclust.studies.heads_in_models.config import (
    INSTRUCTIONS,
    PLANTED,
    PROMPTS,
    RANDOM,
    HeadsInModelsConfig,
    addition_arm,
    arms,
    jobs,
)
from mechclust.studies.heads_in_models.findings import findings_of
from mechclust.studies.heads_in_models.results import Results, by_subject, called_table, data_of, load, measure_key
from mechclust.studies.heads_in_models.run import check, run_job, trained_models, trainings
from mechclust.studies.study import Study
from mechclust.training import TrainConfig
from tasks import InstructionFollowing, SparseModularAddition

_CALLED = "Filled: called a clustering head; open: not."
_CAPTIONS = {
    "addition": "Heads of transformers that add modulo p, {seeds}, one dot per head. Above: within-ratio of a head's "
    "output as a share of what random labels give. Below: share of interchanges that change the answer, between "
    f"classes minus within. Orange: the same heads, equally many digits that do not count. {_CALLED}",
    "instructions": "A network that follows instructions, {seeds}. Left: clusters of the residual stream at x by "
    "layer, against task and output. Middle and right: its heads at x, one dot per head: how similar outputs are "
    f"within a task, and how far interchanged outputs carry the task. {_CALLED}",
    "prompts": "A pretrained model, {draws}, each with different words. First: how far the answer depends on each "
    "head, mean over seeds and both endings. Second: how alike each head's outputs are for the thing asked for at one "
    "ending and at the other (dotted: chance); filled: heads alike for it at both endings, but not for the other "
    "thing. Third: these heads interchanged together (circles and triangles: the two endings), the share of answers "
    "that change (open) and that become the donor's (filled); donors differ in the thing asked for, or only in the "
    "other thing. Last: the heads with the largest effect interchanged together; adjusted Rand index between the "
    "classes discovered without labels and the thing asked for (chance 0), mean of both endings, mean and range over "
    "seeds.",
}


def findings(config: HeadsInModelsConfig, results: Results) -> list[Finding]:
    """Return the findings and checks of a run."""
    return findings_of(config, data_of(config, results))


def report(config: HeadsInModelsConfig, results: Results) -> Analysis:
    """Return the figures, the numbers of heads called as a table, and the notes."""
    folded = {"Heads called, by block": table_html(called_table(config, results))}
    return Analysis(panels=_panels(config, results), folded=folded, notes=_notes(config, results))


def _panels(config: HeadsInModelsConfig, results: Results) -> list[Panel]:
    """Draw the figures, with their captions."""
    from mechclust.studies.heads_in_models import figures  # loads matplotlib

    additions = {f"p = {p}": by_subject(config, results, addition_arm(p)) for p in config.moduli}
    drawn = {
        "addition": figures.addition_figure(config, additions),
        "instructions": figures.instructions_figure(config, by_subject(config, results, INSTRUCTIONS)),
    }
    if PROMPTS in arms(config):
        drawn["prompts"] = figures.prompts_figure(config, by_subject(config, results, PROMPTS))
    seeds = counted(len(config.seeds), "seed")
    draws = counted(len(config.word_seeds), "seed")
    return [Panel(name, figure, _CAPTIONS[name].format(seeds=seeds, draws=draws)) for name, figure in drawn.items()]


def _notes(config: HeadsInModelsConfig, results: Results) -> list[str]:
    """Return the notes for readers of the report."""
    texts = [
        f"A head is called if its within-ratio is at most {config.share:g} of chance, interchanges within a class "
        f"change at most {config.share:g} of the answers that those between classes do, and the answers follow the "
        f"label (p at most {config.level:g} after Holm's correction over all heads).",
        "No head is called for a label whose classes are one multiset of digits each, as the sum modulo 2: attention "
        "alone makes clusters of it, in networks that learnt nothing too.",
        "That rule interchanges one head's output at a time, at the query: heads that back each other up may each "
        "appear to have little effect.",
        f"The part {PLANTED!r} has a head set by hand; it shows that the rule finds a head that is there (K1, K2).",
    ]
    if PROMPTS in arms(config):
        common = float(np.mean(data_of(config, results)[measure_key(PROMPTS, RANDOM, "common")]))
        texts += [
            "There is a single pretrained model: intervals are over draws of words and say nothing about other models.",
            f"With random weights, too, the {config.n_tested} heads with the largest effect are partly the same at "
            f"both endings (share {common:.2f}): W5 tells of the pretrained weights only beyond that.",
        ]
    return texts


_SMALL = HeadsInModelsConfig(
    seeds=(0,),
    word_seeds=(0,),
    moduli=(2, 3),
    addition=SparseModularAddition(length=6, n_support=3, n_train=128, n_test=64),
    instructions=InstructionFollowing(
        n_tasks=3, n_outputs=2, n_inputs=3, n_mappings=3, variants=10, split_by="instruction", n_eval=40,
        validation_share=0.3,
    ),
    d_model=8,
    n_heads=2,
    training=TrainConfig(steps=6, batch_size=16, n_checkpoints=2),
    following=TrainConfig(steps=6, batch_size=16, n_checkpoints=2),
    n_measured=40,
    recipients=3,
    n_words=2,
    n_tested=2,
    word_recipients=2,
    together=(1, 2),
    together_recipients=2,
    test_findings=False,
)  # fmt: skip

STUDY = Study(
    name="heads-in-models",
    title="Clustering heads in models of several layers, trained and pretrained",
    source="ours, on Odonnat, Bouaziz & Cabannes, Clustering Head (arXiv 2410.24050)",
    presets={
        "smoke": _SMALL,
        "quick": replace(HeadsInModelsConfig(), seeds=(0, 1), word_seeds=(0, 1), moduli=(3,), n_measured=256),
        "paper": HeadsInModelsConfig(),
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
