"""Results, findings, figures, tables and notes of a run of the method's origin."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mechclust.evidence import Finding
from mechclust.report.panel import Panel
from mechclust.report.text import counted
from mechclust.studies.mossa.config import MossaConfig
from mechclust.studies.mossa.origin.findings import origin_findings
from mechclust.studies.mossa.origin.results import OriginResults, cells_table, load_origin_results

if TYPE_CHECKING:
    import pandas as pd

_CAPTIONS = {
    "sweeps": "SVCCA (99% of the variance) of the model of all domains, E, with single-domain controls: mean over "
    "domains ({domains}; n = {n:,} test prompts of each domain), and its range over {seeds} as a band. Left: by width, "
    "with the reference's data. Right: by data size, at width {width}.",
    "layers": "Left: the same by layer, at the reference. Right: how much more similar E is to the domain's own "
    "control than to those of other domains, by layer and width.",
    "accuracy": "Share of correct answers on the test prompts, of E on all domains and of the controls on their own; "
    "mean over domains, range over {seeds}.",
}

Runs = Sequence[OriginResults]


def load(config: MossaConfig, out: Path) -> list[OriginResults]:
    """Read the measurements of all seeds.

    Raises:
        InputError: naming the measurement that is missing.
    """
    return [load_origin_results(config, out, seed) for seed in config.seeds]


def findings(config: MossaConfig, results: Runs) -> list[Finding]:
    """Return the findings over seeds."""
    return origin_findings(config, results)


def panels(config: MossaConfig, results: Runs) -> list[Panel]:
    """Draw the figures, with their captions."""
    from mechclust.studies.mossa.origin import figures  # loads matplotlib

    drawn = {
        "sweeps": figures.sweeps_figure(results),
        "layers": figures.layers_figure(results),
        "accuracy": figures.accuracy_figure(results),
    }
    facts = {
        "domains": ", ".join(config.origin.domains),
        "n": config.suite.n_eval * config.suite.n_arguments,
        "seeds": counted(len(results), "seed"),
        "width": config.origin.width,
    }
    return [Panel(name, figure, _CAPTIONS[name].format(**facts)) for name, figure in drawn.items()]


def tables(config: MossaConfig, results: Runs) -> dict[str, pd.DataFrame]:
    """Return every number, means over domains and seeds."""
    return {"Every width and size, means over domains and seeds": cells_table(results).round(2)}


def notes(config: MossaConfig, results: Runs) -> list[str]:
    """Return the notes for readers of the report, with the reasons for undefined values."""
    origin = config.origin
    texts = [
        f"E is trained from scratch for {origin.training.steps:,} steps on {origin.examples:,} examples of each of "
        f"{len(origin.domains)} domains (reference), a control for {origin.control_steps:,} steps on those of one: "
        "both see an example equally often. With less data, the same steps show each example more often.",
        "Layer 1 stands in for the paper's layer 0: the embedding of the last prompt token is one vector here, for "
        "which SVCCA is undefined; and the mean embedding of a prompt is a linear function of its symbols' counts in "
        "every model.",
        "SVCCA of unrelated rows is above 0 and rises with the number of directions kept, which is larger in a wider "
        "model. Slopes are therefore those of SVCCA minus its value for randomly paired rows.",
    ]
    for run in results:
        texts += run.notes
    return texts
