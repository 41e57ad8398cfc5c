"""The report of ``mechclust compare``: its page, figures and tables."""

from __future__ import annotations

from pathlib import Path

from mechclust.commands.compare.opinions import OPINIONS
from mechclust.commands.compare.result import CompareResult
from mechclust.commands.compare.sentences import span
from mechclust.commands.compare.tables import ALL
from mechclust.commands.folder import own_folder
from mechclust.models.tokenizers import in_words
from mechclust.report.analysis import Analysis
from mechclust.report.html import table_html
from mechclust.report.page import write_report
from mechclust.report.text import LAYERS, join
from probes import ProbeResult
from probes.store.files import file_name
from tasks.text.visible import short


def write_compare_report(result: CompareResult, out: str | Path) -> Path:
    """Write the tables as CSV, the probe results, the figures and ``report.html`` into ``out``.

    Raises:
        InputError: when ``out`` cannot be written, or holds the report of another command.
    """
    with own_folder(out, "compare"):
        return _write(result, out)


def results_of(result: CompareResult) -> dict[str, ProbeResult]:
    """What was measured, by name."""
    others = {"n_dims": result.n_dims, "purity": result.purity, "best_pair": result.best_pair}
    measured = {"cka": result.cka, **result.opinions, **{name: x for name, x in others.items() if x is not None}}
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
        "clusters": "Clusters of tasks, the most changed first (median, least and most over their tasks)",
        "layers": "Layers, by depth",
        "layer_groups": "Layer groups, from the controls",
        "controls": "Controls",
        "clusters_by_layer": "Clusters of tasks by layer",
        "second_opinions": "Second opinions by layer",
        "compare": "Every layer and task",
    }
    shown = {name: result.tables[name] for name in titles if name in result.tables}
    in_the_csv = ["d_tuned", "d_base", "layers", "largest_low", "largest_high"]
    return Analysis(
        panels=compare_panels(result),
        views={
            **({"Base and tuned": result.planes.html()} if result.planes is not None else {}),
            **{
                titles[name]: table_html(table.drop(columns=in_the_csv, errors="ignore"), number=".3f", missing="–")
                for name, table in shown.items()
            },
        },
        notes=[
            *result.sentences,
            *([rule(result)] if result.diagonal else []),
            *([group_rule(result)] if "layer_groups" in result.tables else []),
            *what_to_know(result),
        ],
    )


def rule(result: CompareResult) -> str:
    """How layers and tasks are named, for the report."""
    c = result.config
    return (
        "The rule: a layer changed for a task if the 95% interval of its change, 1 - debiased CKA, lies above "
        f"{c.tolerance:g}; without an interval this is left open. Tasks stand out at a layer if the changes of "
        "those with an interval fall into two groups (Jenks' natural break of log change) such that no interval of "
        "the upper group overlaps one of the lower, and the smallest change of the upper group is at least "
        f"{c.factor:g} times the largest of the lower. Over all layers: the same with means of changes and of "
        "interval ends, over the layers at which every compared task has an interval "
        f"({_layers(result)}), since layers change by different amounts. The rule compares these tasks with each "
        "other: if tuning on some tasks changed all of them equally, none stands out."
    )


def group_rule(result: CompareResult) -> str:
    """How layer groups are named, for the report."""
    groups = result.groups
    assert groups is not None
    assert groups.found is not None
    end = (
        "the first layer with 95% of the tuned model's maximum dimensions, over the prompts of every task"
        if "tuned" in groups.curves.dims
        else "the last layer before the spread leaves .02 of its minimum"
    )
    return (
        "Layer groups are read from medians over tasks of debiased CKA with each task's control. Shared: before the "
        "layer from which the tuned model's is above the base's by more than .02 (one exception allowed). Transition: "
        f"from there to {end}; there is none if the tuned model's interquartile range over tasks never falls to "
        ".10. Inherited: the layers above, which are computed from the changed ones; nothing in these curves says that "
        "tuning altered them. The rule is ours; on the curves of Zhao, Ziser & Cohen (2024, arXiv 2410.20008) it "
        "gives their groups. Intervals cover neither other seeds of tuning nor the similarity of tasks in a cluster; "
        f"{'; '.join(groups.found.notes)}."
    )


def _layers(result: CompareResult) -> str:
    at = result.ranges_of(result.common[0])
    return f"layer{'' if at.isdigit() else 's'} {at}" if at else "no layer"


def what_to_know(result: CompareResult) -> list[str]:
    """What a reader needs to know about the numbers."""
    c, table = result.config, result.tables["compare"]
    counts = table.drop_duplicates("task").set_index("task")["n"]
    per_task = span(sorted(counts.drop(ALL)))
    d = " and ".join(f"{span(sorted(table[f'd_{m}']))} ({m})" for m in ("tuned", "base"))
    found = [
        f"n = {counts[ALL]} prompts of {len(result.tasks)} tasks ({per_task} each), hidden state at {c.states}, "
        f"d = {d}. {LAYERS} In decoders, the embedding is without position."
    ]
    largest = int(table[["d_tuned", "d_base"]].to_numpy().max())
    if (small := counts[counts < 10 * largest]).size:
        which = "every label" if len(small) == len(counts) else join(map(short, small.index))
        found.append(f"n is below 10 d for {which}: there the biased form, column cka, is too high; use debiased_cka.")
    found += _no_cka(result)
    found += [
        *([in_words(result.tokenization)] if result.tokenization else []),
        *result.notes,
        "CKA compares geometry among the prompts: it does not see a rotation, a common scale or a shift of all hidden "
        "states, nor whether a change matters to the output; and a few outlying prompts can change it (Davari et al. "
        "2022, arXiv 2210.16156).",
        *_second_opinions(result),
        *_left_out(result),
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


def _left_out(result: CompareResult) -> list[str]:
    """What was asked for and needs the same layers in both models."""
    c, clusters = result.config, bool(result.clusters.seen())
    asked = {"--rbf": c.rbf, "--top-pc": c.top_pc, "--svcca": c.svcca, "clusters of tasks": clusters}
    names = [name for name, wanted in asked.items() if wanted]
    if result.diagonal or not names:
        return []
    return [f"There are no results for {join(names)}: for these the models need to have the same layers."]


def _second_opinions(result: CompareResult) -> list[str]:
    """Where they differ most from debiased CKA, and how many prompts they use."""
    table, found = result.tables["compare"], []
    for name, measured in result.opinions.items():
        column, _, told = OPINIONS[name]
        both = table[table[column].notna() & table["debiased_cka"].notna()]
        if not len(both):
            continue
        row = both.loc[(both[column] - both["debiased_cka"]).abs().idxmax()]
        counts = [*map(int, measured["n"])]
        few = sum(n < whole for n, whole in zip(counts, result.cka["n"][1:].tolist(), strict=True))
        drawn = f", of at most {max(counts):,} prompts per task, chosen by their position in the file" if few else ""
        found.append(
            f"A second opinion is {column}, {told}{drawn}: it differs most from debiased_cka at layer {row['layer']} "
            f"for {short(row['task'])}, {row[column]:z.2f} and {row['debiased_cka']:z.2f}."
        )
    if result.best_pair is not None and (n := int(result.best_pair["n"].max())) < int(result.cka["n"][0]):
        found.append(f"The most similar base layers were searched with at most {n:,} prompts of each label.")
    if result.n_dims is not None:
        n, whole = (int(x["n"][0]) for x in (result.n_dims, result.cka))
        if n < whole:
            found.append(f"Dimensions are of {n:,} of {whole:,} prompts, chosen by their position in the file.")
    if result.purity is not None and (n := result.purity.metadata.get("n_asked", 0)) < int(result.cka["n"][0]):
        found.append(f"Nearest neighbours were found for {n:,} prompts, among all of them.")
    return found
