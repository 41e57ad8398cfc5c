"""The conclusions and figures of a run of the method's origin."""

from __future__ import annotations

from pathlib import Path

from mechclust.report.analysis import Analysis, Panel
from mechclust.report.html import table_html
from mechclust.studies.mossa.config import MossaConfig
from mechclust.studies.mossa.origin.findings import origin_findings
from mechclust.studies.mossa.origin.results import cells_table, load_origin_results


def analyse_origin(config: MossaConfig, out: Path) -> Analysis:
    """Findings, figures and tables of a run."""
    from mechclust.studies.mossa.origin import figures

    found = [load_origin_results(config, out, seed) for seed in config.seeds]
    suite, origin = config.suite, config.origin
    domains = ", ".join(origin.domains)
    n = f"n = {suite.n_eval * suite.n_arguments:,} test prompts of each domain"
    seeds = f"{len(found)} seed{'s' * (len(found) > 1)}"
    panels = [
        Panel(
            "sweeps",
            figures.sweeps(found),
            f"SVCCA (99% of the variance) of the model of all domains, E, with single-domain controls: mean over "
            f"domains ({domains}; {n}), and its range over {seeds} as a band. Left: by width, with the reference's "
            f"data. Right: by data size, at width {origin.width}.",
        ),
        Panel(
            "layers",
            figures.layers(found),
            "Left: the same by layer, at the reference. Right: how much more similar E is to the domain's own control "
            "than to those of other domains, by layer and width.",
        ),
        Panel(
            "accuracy",
            figures.accuracy_figure(found),
            "Share of correct answers on the test prompts, of E on all domains and of the controls on their own; mean "
            f"over domains, range over {seeds}.",
        ),
    ]
    return Analysis(
        findings=origin_findings(config, found),
        panels=panels,
        views={"Every width and size, means over domains and seeds": table_html(cells_table(found), number=".2f")},
        notes=[
            f"E is trained from scratch for {origin.training.steps:,} steps on {origin.examples:,} examples of each of "
            f"{len(origin.domains)} domains (reference), a control for {origin.control_steps:,} steps on those of one: "
            "both see an example equally often. With less data, the same steps show each example more often.",
            "Layer 1 stands in for the paper's layer 0: the embedding of the last prompt token is one vector here, for "
            "which SVCCA is undefined; and the mean embedding of a prompt is a linear function of its symbols' counts "
            "in every model.",
            "SVCCA of unrelated rows is above 0 and rises with the number of directions kept, which is larger in a "
            "wider model. Slopes are therefore those of SVCCA minus its value for randomly paired rows.",
            *(note for m in found for note in m.notes),
        ],
    )
