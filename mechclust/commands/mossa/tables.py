"""What ``mechclust mossa`` found, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mechclust.commands.mossa.result import MEASURES, MossaResult
from mechclust.mossa.task_curves import TaskCurves, Which, bootstrap, over_tasks
from probes import ProbeResult
from probes.rows.vllm_rows import site_called

if TYPE_CHECKING:
    import pandas as pd

FINAL_NORM = "final norm"
NO_CLUSTER = "(no cluster)"
ALL = "(all seen)"
_CURVES: tuple[Which, ...] = ("base", "tuned", "ceiling", "null")


def tables_of(result: MossaResult) -> dict[str, pd.DataFrame]:
    """Every table by the name of its file."""
    found = {
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
    return {name: table for name, table in found.items() if len(table)}


def parts_of(result: MossaResult) -> dict[str, TaskCurves]:
    """Debiased CKA of the seen tasks of each cluster, by the cluster's name; of all where there are none."""
    curves = result.curves().seen
    names = sorted({name for name in curves.clusters if name is not None})
    found = {name: curves.select(np.array([c == name for c in curves.clusters])) for name in names}
    alone = np.array([c is None for c in curves.clusters], dtype=bool)
    return found or {NO_CLUSTER: curves.select(alone)}


# ---- one row per task, cluster, layer, group ----


def tasks_table(result: MossaResult) -> pd.DataFrame:
    """One row per task, the largest gain first: ``task, cluster, held_out, training_examples, prompts``,
    readability, ``gain`` (tuned - pre, debiased CKA with the control, mean over the upper half of the layers),
    ``largest`` (in size) and ``at_layer``, ``base_last``, ``tuned_last``, ``ceiling_last``, ``null_last``, ``learnt``
    (see ``learnt.Score``) and the accuracies."""
    import pandas as pd

    curves, scores, states = result.curves(), result.scores, result.states()
    gap = curves.tuned - curves.base
    rows = []
    for i, task in enumerate(result.tasks):
        row: dict[str, Any] = {"task": task, "cluster": result.clusters[i], "held_out": bool(result.held_out[i])}
        row |= {"training_examples": result.n_train[i]}
        row |= {"prompts": int(float(result.of_task[task]["base.cka"].sel("n", label="all")))}
        row |= {name: result.readability.get(task, {}).get(name, np.nan) for name in _indices(result)}
        row |= {"gain": curves.gain[i], "largest": np.nan, "at_layer": None}
        if np.isfinite(gap[i]).any():
            most = int(np.nanargmax(np.abs(gap[i])))
            row |= {"largest": gap[i, most], "at_layer": most + 1}
        for which in _CURVES:
            if getattr(curves, which) is not None:
                row[f"{which}_last"] = float(curves.values(which)[i, -1])
        row["learnt"] = states[task]
        row |= {f"accuracy_{role}": found.exact for role, found in scores[task].items()}
        rows.append(row)
    return pd.DataFrame(rows).sort_values("gain", ascending=False, kind="stable", ignore_index=True)


def _indices(result: MossaResult) -> list[str]:
    return list(next(iter(result.readability.values()), {}))


def clusters_table(result: MossaResult) -> pd.DataFrame:
    """One row per cluster, of its seen tasks, the largest gain first: ``cluster, tasks, gain`` (median over its tasks),
    ``gain_least``, ``gain_most``, ``largest`` (of the medians' differences), ``at_layer``, ``base_last``,
    ``tuned_last`` (medians)."""
    import pandas as pd

    rows = []
    for name, part in parts_of(result).items():
        gain, gap = part.gain[np.isfinite(part.gain)], part.gap
        if not len(gain) or not np.isfinite(gap).any():
            continue
        row: dict[str, Any] = {"cluster": name, "tasks": len(part.tasks), "gain": float(np.median(gain))}
        row |= {"gain_least": float(gain.min()), "gain_most": float(gain.max())}
        most = int(np.nanargmax(np.abs(gap)))
        row |= {"largest": float(gap[most]), "at_layer": most + 1}
        row |= {"base_last": float(part.median("base")[-1]), "tuned_last": float(part.median("tuned")[-1])}
        rows.append(row)
    table = pd.DataFrame(rows)
    return table.sort_values("gain", ascending=False, kind="stable", ignore_index=True) if rows else table


def layers_table(result: MossaResult) -> pd.DataFrame:
    """One row per layer, curve and set of tasks, debiased CKA with the controls: ``of`` (``seen``, ``held out`` or a
    cluster), ``role``, ``layer`` and its ``hook``, ``tasks``, ``median`` with ``low`` and ``high``, 95% by
    bootstrap over tasks, and ``first_quartile``, ``third_quartile``."""
    import pandas as pd

    curves = result.curves()
    sets = {"seen": curves.seen, "held out": curves.unseen}
    sets |= {f"cluster {name}": part for name, part in parts_of(result).items()}
    rows = []
    for of, part in sets.items():
        for role in _CURVES:
            if getattr(part, role) is None or not np.isfinite(values := part.values(role)).any():
                continue
            drawn = part.with_ceiling if role == "ceiling" else part
            median, (low, high) = bootstrap(drawn, lambda c, role=role: c.median(role), seed=result.config.seed)  # type: ignore[misc]
            first, third = part.quartiles(role)
            for i, layer in enumerate(part.layers):
                row = {
                    "of": of,
                    "role": role,
                    "layer": int(layer),
                    "hook": site_called(int(layer)),
                    "tasks": int(np.isfinite(values[:, i]).sum()),
                }
                row |= {"median": median[i], "low": low[i], "high": high[i]}
                rows.append(row | {"first_quartile": first[i], "third_quartile": third[i]})
    return pd.DataFrame(rows)


def groups_table(result: MossaResult) -> pd.DataFrame:
    """One row per group of layers, where there are enough tasks: ``group, first_layer, last_layer`` (empty: no layer is
    in it), ``end_low`` and ``end_high``, 95% of its last layer over tasks drawn anew (0: before the first layer),
    ``tuned_alone``, those of its layers where tuned changed and the controls did not, and ``tasks``."""
    import pandas as pd

    found = result.groups.rows() if result.named_groups else []
    rows = [{**row, "tasks": len(result.curves().seen.tasks)} for row in found]
    columns = ["group", "first_layer", "last_layer", "end_low", "end_high", "tuned_alone", "tasks"]
    return pd.DataFrame(rows, columns=columns, dtype=object).astype({"tasks": int})


# ---- training and answers ----


def answers_table(result: MossaResult) -> pd.DataFrame:
    """One row per task and model: accuracy, loss and margin of its answers and the gains over the base model, each with
    a 95% interval over prompts; see ``learnt.Score``."""
    import pandas as pd

    rows = []
    for i, (task, of) in enumerate(result.scores.items()):
        for role, found in of.items():
            row: dict[str, Any] = {"task": task, "cluster": result.clusters[i], "held_out": bool(result.held_out[i])}
            row |= {"role": role, "n": found.n, "pairs": found.pairs}
            row["told_apart"] = found.apart
            for name in ("exact", "loss", "margin", "exact_gain", "loss_gain", "margin_gain"):
                low, high = getattr(found, f"{name}_ends")
                row |= {name: getattr(found, name), f"{name}_low": low, f"{name}_high": high}
            rows.append({**row, "learnt": "" if role == "base" else found.state})
    return pd.DataFrame(rows)


def adapters_table(result: MossaResult) -> pd.DataFrame:
    """One row per adapter that was trained here: ``model, task, steps, examples, seconds, first_loss, last_loss``; and
    one per adapter that was given up, with the reason as ``failed``."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for model, tuned in result.trained.items():
        row: dict[str, Any] = {"model": model.kind, "task": model.task, "steps": tuned.steps}
        row |= {"examples": tuned.examples, "seconds": tuned.seconds or np.nan}
        losses = [loss for _, loss in tuned.losses] or [np.nan]
        rows.append({**row, "first_loss": losses[0], "last_loss": losses[-1]})
    rows += [{"model": model.kind, "task": model.task, "failed": why} for model, why in result.failed.items()]
    return pd.DataFrame(rows)


def losses_table(result: MossaResult) -> pd.DataFrame:
    """One row per adapter and logged step: ``model, task, step, loss``."""
    import pandas as pd

    return pd.DataFrame(
        [
            {"model": model.kind, "task": model.task, "step": step, "loss": loss}
            for model, tuned in result.trained.items()
            for step, loss in tuned.losses
        ]
    )


# ---- everything ----


def curves_table(result: MossaResult) -> pd.DataFrame:
    """One row per number: ``task, cluster, held_out, layer`` (from 1, or ``final norm``), ``hook, measure, role,
    value``. Roles: whose similarity with the task's control it is, and ``other-1`` and so on: that of the tuned model
    with a control of another task; see ``measure.TaskJob``."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for i, task in enumerate(result.tasks):
        of: dict[str, Any] = {"task": task, "cluster": result.clusters[i], "held_out": bool(result.held_out[i])}
        for name, found in result.of_task[task].items():
            role, _, probe = name.rpartition(".")
            rows += ({**of, **row, "role": role} for row in _rows(found, _named(probe), result.n_layers))
    for role, probes in result.of_model.items():
        for probe in probes:
            rows += (
                {"task": ALL, "cluster": None, "held_out": False, **row, "role": role}
                for row in _rows(probes[probe], _named(probe), result.n_layers)
            )
    return pd.DataFrame(rows, columns=["task", "cluster", "held_out", "layer", "hook", "measure", "role", "value"])


def _named(probe: str) -> Mapping[str, str]:
    """The names of a probe result's values in tables."""
    found = {value: name for name, (of, value) in MEASURES.items() if of == probe}
    if probe == "cka":
        at_random = "prompts paired at random (97.5%)"
        found |= {"debiased_cka_null_high": f"debiased CKA, {at_random}", "cka_null_high": f"biased CKA, {at_random}"}
    if probe == "dims":
        found["n_dims"] = "dimensions for 99% of the variance"
    if probe == "purity":
        found["neighbour_purity"] = "nearest neighbours of the same cluster"
    return found


def _rows(found: ProbeResult, names: Mapping[str, str], n_layers: int) -> Iterator[dict[str, Any]]:
    for value, measure in names.items():
        if value not in found.values:
            continue
        numbers = np.asarray(found[value], dtype=float).reshape(len(found.coords["site"]), -1)[:, 0]
        for hook, number in zip(found.coords["site"], numbers, strict=True):
            layer = found.layers[hook]
            place = layer if layer <= n_layers else FINAL_NORM
            yield {"layer": place, "hook": hook, "measure": measure, "value": float(number)}


def before_and_after(result: MossaResult) -> pd.DataFrame:
    """One row per role and set of tasks: ``of, role, tasks``, medians of debiased CKA at the last block ``before`` and
    ``after`` the final norm."""
    import pandas as pd

    rows = []
    held_out = np.array(result.held_out, dtype=bool)
    for of, chosen in (("seen", ~held_out), ("held out", held_out)):
        for role in ("base", "tuned", "again"):
            before = result.values(role)[chosen][:, -1:]
            after = result.values(role, final_norm=True)[chosen][:, None]
            known = np.isfinite(before).all(axis=1)
            if known.any():
                row: dict[str, Any] = {"of": of, "role": role, "tasks": int(known.sum())}
                rows.append({**row, "before": over_tasks(before, 0.5)[0], "after": over_tasks(after, 0.5)[0]})
    return pd.DataFrame(rows)
