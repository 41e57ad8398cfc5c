"""Tables of a MOSSA run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from mechclust.commands.mossa.measurements import MEASURES, Measurements
from mechclust.evidence.intervals import value_with_interval
from mechclust.mossa.task_bootstrap import task_bootstrap_interval
from mechclust.mossa.task_curves import CURVE_NAMES, MODELS, TaskCurves, Which
from probes import ProbeResult
from probes.engine.sites import site_called

if TYPE_CHECKING:
    import pandas as pd

FINAL_NORM = "final norm"
NO_CLUSTER = "(no cluster)"
ALL = "(all seen)"
_CURVE_COLUMNS = ["task", "cluster", "held_out", "layer", "hook", "measure", "role", "value"]
_GROUP_COLUMNS = ["group", "first_layer", "last_layer", "end_low", "end_high", "tuned_alone", "tasks"]
_MEASURES = {
    **MEASURES,
    "debiased CKA, prompts paired at random (97.5%)": ("cka", "debiased_cka_null_high"),
    "biased CKA, prompts paired at random (97.5%)": ("cka", "cka_null_high"),
    "dimensions for 99% of the variance": ("dims", "n_dims"),
    "nearest neighbours of the same cluster": ("purity", "neighbour_purity"),
}


def tables_of(result: Measurements) -> dict[str, pd.DataFrame]:
    """Return every table that is not empty by the name of its file."""
    tables = {
        "groups": groups_table(result),
        "tasks": tasks_table(result),
        "clusters": clusters_table(result),
        "layers": layers_table(result),
        "answers": answers_table(result),
        "adapters": adapters_table(result),
        "losses": losses_table(result),
        "curves": curves_table(result),
        "findings": result.findings.to_dataframe(),
    }
    return {name: table for name, table in tables.items() if len(table)}


def shown_tables(result: Measurements, tables: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return the tables of the page by title.

    Args:
        result: the measurements.
        tables: as ``MossaResult.tables``.
    """
    shown = {
        "Layer groups": tables.get("groups"),
        "Tasks, the largest gain first": _shown_tasks(tables["tasks"]),
        "Clusters, the largest gain first": tables.get("clusters"),
        "Answers, with 95% intervals over prompts (of margins, over pairs)": tables.get("answers"),
        "Adapters, and how they were trained": tables.get("adapters"),
        "Before and after the final norm (medians over tasks)": before_and_after(result),
    }
    if "layers" in tables:
        shown["Debiased CKA with the controls by layer (medians over tasks)"] = _medians_by_layer(tables["layers"])
    return {title: table for title, table in shown.items() if table is not None and len(table)}


def _shown_tasks(table: pd.DataFrame) -> pd.DataFrame:
    values = table[["gain", "gain_low", "gain_high"]].itertuples(index=False)
    gains = [value_with_interval(gain, ends, ".3f") if gain == gain else None for gain, *ends in values]
    hidden = ["gain_low", "gain_high", "ceiling_last", "null_last"]
    return table.assign(gain=gains).drop(columns=hidden, errors="ignore")


def parts_of(result: Measurements) -> dict[str, TaskCurves]:
    """Return debiased CKA of the seen tasks of each cluster, by its name, or of all tasks if there are no clusters."""
    curves = result.curves().seen
    clusters = np.array(curves.clusters, dtype=object)
    names = sorted({name for name in curves.clusters if name is not None})
    if not names:
        return {NO_CLUSTER: curves.select(np.ones(len(curves.tasks), dtype=bool))}
    return {name: curves.select(np.array(clusters == name, dtype=bool)) for name in names}


def _task_columns(result: Measurements, place: int) -> dict[str, Any]:
    """Return the columns that say which task a row is about."""
    return {
        "task": result.tasks[place],
        "cluster": result.clusters[place],
        "held_out": bool(result.held_out[place]),
    }


def _largest(gap: Float[np.ndarray, "layer"]) -> dict[str, Any]:
    """Return the difference that is largest in size, and its layer, from 1."""
    if not np.isfinite(gap).any():
        return {"largest": np.nan, "at_layer": None}
    place = int(np.nanargmax(np.abs(gap)))
    return {"largest": float(gap[place]), "at_layer": place + 1}


# ---- one row per task, cluster, layer, group ----


def tasks_table(result: Measurements) -> pd.DataFrame:
    """Return one row per task, the largest gain first.

    The columns are ``task, cluster, held_out, training_examples, prompts``, readability, and ``gain`` with ``gain_low``
    and ``gain_high``, its 95% interval over prompts or units. The gain is tuned - pre, debiased CKA with the control,
    mean over the upper half of the layers. Further, ``largest`` (in size) and ``at_layer``, ``base_last``,
    ``tuned_last``, ``ceiling_last``, ``null_last``, ``learnt`` (see ``learnt.Score``) and the accuracies.
    """
    import pandas as pd

    curves = result.curves()
    gain_ends = result.gain_ends()
    states = result.states()
    indices = list(next(iter(result.readability.values()), {}))
    rows = []
    for place, task in enumerate(result.tasks):
        row = _task_columns(result, place)
        row |= {"training_examples": result.n_train[place], "prompts": result.n_prompts(task)}
        row |= {index: result.readability.get(task, {}).get(index, np.nan) for index in indices}
        low, high = gain_ends[place]
        row |= {"gain": curves.gain[place], "gain_low": low, "gain_high": high}
        row |= _largest(curves.tuned[place] - curves.base[place])
        for which in CURVE_NAMES:
            if getattr(curves, which) is not None:
                row[f"{which}_last"] = float(curves.values(which)[place, -1])
        row["learnt"] = states[task]
        row |= {f"accuracy_{role}": score.exact.value for role, score in result.scores[task].items()}
        rows.append(row)
    return pd.DataFrame(rows).sort_values("gain", ascending=False, kind="stable", ignore_index=True)


def clusters_table(result: Measurements) -> pd.DataFrame:
    """Return one row per cluster, of its seen tasks, the largest gain first.

    ``cluster, tasks, gain`` (median over its tasks), ``gain_least``, ``gain_most``, ``largest`` (of the medians'
    differences), ``at_layer``, ``base_last``, ``tuned_last`` (medians).
    """
    import pandas as pd

    rows = []
    for name, part in parts_of(result).items():
        gain = part.gain[np.isfinite(part.gain)]
        if not len(gain) or not np.isfinite(part.gap).any():
            continue
        row: dict[str, Any] = {"cluster": name, "tasks": len(part.tasks), "gain": float(np.median(gain))}
        row |= {"gain_least": float(gain.min()), "gain_most": float(gain.max()), **_largest(part.gap)}
        row |= {"base_last": float(part.median("base")[-1]), "tuned_last": float(part.median("tuned")[-1])}
        rows.append(row)
    table = pd.DataFrame(rows)
    return table.sort_values("gain", ascending=False, kind="stable", ignore_index=True) if rows else table


def layers_table(result: Measurements) -> pd.DataFrame:
    """Return one row per layer, curve and set of tasks, of debiased CKA with the controls.

    ``of`` (``seen``, ``held out`` or a cluster), ``role``, ``layer`` and its ``hook``, ``tasks``, ``median`` with
    ``low`` and ``high``, 95% by bootstrap over tasks, and ``first_quartile``, ``third_quartile``.
    """
    import pandas as pd

    curves = result.curves()
    parts = {"seen": curves.seen, "held out": curves.unseen}
    parts |= {f"cluster {name}": part for name, part in parts_of(result).items()}
    tables = []
    for name, part in parts.items():
        for role in CURVE_NAMES:
            if part.has(role):
                tables.append(_medians(name, part, role, result.config.seed))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def _medians(of: str, curves: TaskCurves, role: Which, seed: int) -> pd.DataFrame:
    """Return the rows of one curve, one per layer."""
    import pandas as pd

    drawn = curves.with_ceiling if role == "ceiling" else curves
    median, (low, high) = task_bootstrap_interval(drawn, methodcaller("median", role), seed=seed)
    first, third = curves.quartiles(role)
    layers = [int(layer) for layer in curves.layers]
    return pd.DataFrame(
        {
            "of": of,
            "role": role,
            "layer": layers,
            "hook": [site_called(layer) for layer in layers],
            "tasks": np.isfinite(curves.values(role)).sum(axis=0),
            "median": median,
            "low": low,
            "high": high,
            "first_quartile": first,
            "third_quartile": third,
        }
    )


def _medians_by_layer(layers: pd.DataFrame) -> pd.DataFrame:
    """Return one row per layer, with a column for each role of the seen and the held-out tasks."""
    chosen = layers[layers["of"].isin(["seen", "held out"])]
    names = chosen["of"] + ", " + chosen["role"]
    wide = chosen.assign(name=names).pivot(index=["layer", "hook"], columns="name", values="median")
    return wide[list(dict.fromkeys(names))].reset_index()


def groups_table(result: Measurements) -> pd.DataFrame:
    """Return one row per group of layers, if there are enough tasks.

    The columns are ``group, first_layer, last_layer`` (empty if no layer is in it), ``end_low`` and ``end_high``. These
    are 95% of its last layer over tasks drawn anew (0: before the first layer). ``tuned_alone`` are its layers at which
    tuned changed and the controls did not. ``tasks`` is the last column.
    """
    import pandas as pd

    tasks = len(result.curves().seen.tasks)
    rows = [{**row, "tasks": tasks} for row in result.groups.rows()] if result.named_groups else []
    return pd.DataFrame(rows, columns=_GROUP_COLUMNS, dtype=object).astype({"tasks": int})


# ---- training and answers ----


def answers_table(result: Measurements) -> pd.DataFrame:
    """Return one row per task and model.

    The columns are accuracy, loss and margin of its answers and the gains over the base model. Each has a 95% interval
    over prompts, see ``learnt.Score``.
    """
    import pandas as pd

    rows = []
    for place, task in enumerate(result.tasks):
        for role, score in result.scores[task].items():
            row = _task_columns(result, place)
            row |= {"role": role, "n": score.n, "pairs": score.pairs, "told_apart": score.apart}
            measures = {"exact": score.exact, "loss": score.loss, "margin": score.margin}
            for name, measured in measures.items():
                low, high = measured.ends
                row |= {name: measured.value, f"{name}_low": low, f"{name}_high": high}
            for name, measured in measures.items():
                low, high = measured.gain_ends
                row |= {f"{name}_gain": measured.gain, f"{name}_gain_low": low, f"{name}_gain_high": high}
            rows.append({**row, "learnt": "" if role == "base" else score.state})
    return pd.DataFrame(rows)


def adapters_table(result: Measurements) -> pd.DataFrame:
    """Return one row per adapter that was trained here, or given up.

    ``model, task, steps, examples, seconds, first_loss, last_loss``, and the reason as ``failed``.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for model, tuned in result.trained.items():
        losses = [loss for _, loss in tuned.losses] or [np.nan]
        rows.append(
            {
                "model": model.kind,
                "task": model.task,
                "steps": tuned.steps,
                "examples": tuned.examples,
                "seconds": tuned.seconds or np.nan,
                "first_loss": losses[0],
                "last_loss": losses[-1],
            }
        )
    rows += ({"model": model.kind, "task": model.task, "failed": why} for model, why in result.failed.items())
    return pd.DataFrame(rows)


def losses_table(result: Measurements) -> pd.DataFrame:
    """Return one row per adapter and logged step: ``model, task, step, loss``."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for model, tuned in result.trained.items():
        rows += ({"model": model.kind, "task": model.task, "step": step, "loss": loss} for step, loss in tuned.losses)
    return pd.DataFrame(rows)


# ---- everything ----


def curves_table(result: Measurements) -> pd.DataFrame:
    """Return one row per number, see ``MossaResult.to_dataframe``."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for place, task in enumerate(result.tasks):
        for name, measured in result.of_task[task].items():
            role, _, probe = name.rpartition(".")
            columns = {**_task_columns(result, place), "role": role}
            rows += ({**columns, **row} for row in _value_rows(measured, probe, result.n_layers))
    for role, probes in result.of_model.items():
        columns = {"task": ALL, "cluster": None, "held_out": False, "role": role}
        for probe, measured in probes.items():
            rows += ({**columns, **row} for row in _value_rows(measured, probe, result.n_layers))
    return pd.DataFrame(rows, columns=_CURVE_COLUMNS)


def _value_rows(measured: ProbeResult, probe: str, n_layers: int) -> Iterator[dict[str, Any]]:
    """Yield a row per value and site of one result."""
    for measure, (probe_of_measure, value) in _MEASURES.items():
        if probe_of_measure != probe or value not in measured.values:
            continue
        numbers = np.asarray(measured[value], dtype=float).reshape(len(measured.coords["site"]), -1)[:, 0]
        for hook, number in zip(measured.coords["site"], numbers, strict=True):
            layer = measured.layers[hook]
            place = layer if layer <= n_layers else FINAL_NORM
            yield {"layer": place, "hook": hook, "measure": measure, "value": float(number)}


def before_and_after(result: Measurements) -> pd.DataFrame:
    """Return one row per role and set of tasks, of debiased CKA at the last block.

    ``of, role, tasks``, medians ``before`` and ``after`` the final norm.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for name, chosen in (("seen", ~result.is_held_out), ("held out", result.is_held_out)):
        for role in (*MODELS, "again"):
            before = pd.Series(result.values(role)[chosen, -1])
            after = pd.Series(result.values(role, final_norm=True)[chosen])
            tasks = int(before.count())
            if tasks:
                row = {"of": name, "role": role, "tasks": tasks, "before": before.median(), "after": after.median()}
                rows.append(row)
    return pd.DataFrame(rows)
