"""The report of ``mechclust compare``: its page, figures and tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mechclust.commands.compare.result import CompareResult
from mechclust.commands.compare.sentences import span
from mechclust.commands.compare.tables import ALL
from mechclust.commands.folder import own_folder
from mechclust.models.tokenizers import in_words
from mechclust.report.analysis import Analysis
from mechclust.report.html import table_html
from mechclust.report.page import write_report
from mechclust.report.text import join
from probes import ProbeResult
from probes.files import file_name
from tasks.text.visible import short

if TYPE_CHECKING:
    import pandas as pd


def write_compare_report(result: CompareResult, out: str | Path) -> Path:
    """Write the tables as CSV, the probe results, the figures and ``report.html`` into ``out``.

    Raises:
        InputError: when ``out`` cannot be written, or holds the report of another command.
    """
    with own_folder(out, "compare"):
        return _write(result, out)


def results_of(result: CompareResult) -> dict[str, ProbeResult]:
    """What was measured, by name."""
    measured = {"cka": result.cka, "n_dims": result.n_dims}
    measured |= {name: x for name, x in (("purity", result.purity), ("rbf", result.rbf)) if x is not None}
    for task, pair in result.controls.items():
        measured |= {f"control-{file_name(task)}-{name}": found for name, found in pair.items()}
    return measured


def _write(result: CompareResult, out: str | Path) -> Path:
    return write_report(
        out,
        command="compare",
        title=result.title,
        source=f"Base: {result.base}; tuned: {result.tuned}. Prompts: {result.config.prompts}",
        analysis=compare_analysis(result),
        config={"base": result.base, "tuned": result.tuned, **vars(result.config)},
        results=results_of(result),
        tables=result.tables,
    )


def compare_analysis(result: CompareResult) -> Analysis:
    """Figures, tables and notes."""
    from mechclust.commands.compare.figures import compare_panels

    titles = {
        "tasks": f"Tasks, the most changed first (means over {_layers(result)})" if result.diagonal else "Tasks",
        "layers": "Layers, by depth",
        "controls": "Controls",
        "compare": "Every layer and task",
    }
    shown = {name: result.tables[name] for name in titles if name in result.tables}
    in_the_csv = ["site", "base_site", "d_tuned", "d_base", "layers", "largest_low", "largest_high"]
    return Analysis(
        panels=compare_panels(result),
        views={
            **({"Base and tuned": result.planes.html()} if result.planes is not None else {}),
            **{
                titles[name]: table_html(table.drop(columns=in_the_csv, errors="ignore"), number=".3f", missing="–")
                for name, table in shown.items()
            },
        },
        notes=[*result.sentences, *([rule(result)] if result.diagonal else []), *what_to_know(result)],
    )


def rule(result: CompareResult) -> str:
    """How layers and tasks are named, for the report."""
    c = result.config
    return (
        "The rule: a layer changed for a task where the 95% interval of its change, 1 - debiased CKA, lies above "
        f"{c.tolerance:g}; without an interval that is left open. Tasks stand out at a layer where the changes of "
        "those that have an interval fall in two groups (Jenks' natural break of log change) such that no interval of "
        "the upper group meets one of the lower, and the least of the upper group is at least "
        f"{c.factor:g} times the most of the lower. Over all layers: the same with means of changes and of interval "
        "ends, over the layers at which every task that is compared has an interval "
        f"({_layers(result)}), since layers change by different amounts. It compares these tasks with each other: "
        "where tuning on some tasks changed all of them alike, none stands out."
    )


def _layers(result: CompareResult) -> str:
    at = result.ranges_of(result.common[0])
    return f"layer{'' if at.isdigit() else 's'} {at}" if at else "no layer"


def what_to_know(result: CompareResult) -> list[str]:
    """What a reader must know of the numbers."""
    c, table = result.config, result.tables["compare"]
    counts = table.drop_duplicates("task").set_index("task")["n"]
    per_task = span(sorted(counts.drop(ALL)))
    d = " and ".join(f"{span(sorted(table[f'd_{m}']))} ({m})" for m in ("tuned", "base"))
    found = [
        f"n = {counts[ALL]} prompts of {len(result.tasks)} tasks ({per_task} each), hidden state at {c.states}, "
        f"d = {d}; layer 0 is the embedding, in decoders without position."
    ]
    largest = int(table[["d_tuned", "d_base"]].to_numpy().max())
    if (small := counts[counts < 10 * largest]).size:
        which = "every label" if len(small) == len(counts) else join(map(short, small.index))
        found.append(f"n is below 10 d for {which}: there the biased form, column cka, is too high; read debiased_cka.")
    found += _no_cka(result)
    found += [
        *([in_words(result.tokenization)] if result.tokenization else []),
        *result.notes,
        "CKA compares geometry among the prompts: it does not see a rotation, a common scale or a shift of all hidden "
        "states, nor whether a change matters to the output; and a few far-off prompts can move it (Davari et al. "
        f"2022, arXiv 2210.16156).{_second_opinion(table)}",
        "Debiased CKA is 1 for the same geometry, near 0 for unrelated ones, and may be negative.",
    ]
    if result.diagonal:
        found[-1] += (
            " Intervals: 95% over prompts, from half-samples; chance: 97.5% of CKA for prompts paired at random."
        )
    return found


def _no_cka(result: CompareResult) -> list[str]:
    """Labels without a CKA, by layer, and why."""
    table, found = result.tables["compare"], []
    none = table[table["debiased_cka"].isna()]
    for layer, part in none.groupby("layer"):
        tasks, many = list(part["task"]), len(result.tasks) + 1
        counts = sorted(result.distinct.get((row.site, row.task), 1) for row in part.itertuples())
        why = (
            "the prompts' hidden states do not differ there, as with the embedding of a last token that all prompts "
            "share"
            if counts[-1] == 1
            else f"the prompts' hidden states take only {span(counts)} values there, or are all equally far apart"
        )
        found.append(
            f"Layer {layer} has no CKA for {'any task' if len(tasks) == many else join(map(short, tasks))}: {why}."
        )
    return found


def _second_opinion(table: pd.DataFrame) -> str:
    if "rbf_cka" not in table or not (both := table[table["rbf_cka"].notna() & table["debiased_cka"].notna()]).size:
        return ""
    row = both.loc[(both["rbf_cka"] - both["debiased_cka"]).abs().idxmax()]
    return (
        " A second opinion is rbf_cka, with Gaussian kernels (debiased); the two differ most at layer "
        f"{row['layer']} for {short(row['task'])}: {row['debiased_cka']:z.2f} and {row['rbf_cka']:z.2f}."
    )
