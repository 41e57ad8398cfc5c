"""The findings of ``mechclust compare``, in sentences derived from its tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mechclust.commands.compare.tables import ALL, CompareTables
from mechclust.report.text import join, ranges
from probes.functional.cka import LEAST_DEBIASED
from tasks.text.visible import short

_UNDEFINED = (
    "CKA is undefined at every layer for every task, so it is not known whether a layer changed: hidden states of a "
    "task's prompts do not vary in one of the models."
)
_NAMED = 6  # maximum number of tasks named individually in a sentence


def sentences(found: CompareTables) -> list[str]:
    """Where change begins, which layers changed, for which tasks; the most important first."""
    if found.families:
        return _between_families(found)
    if not found.diagonal:
        return _most_alike(found)
    if not np.isfinite(found.change).any() and not found.changed_together.any():
        return [_UNDEFINED, *_groups(found)]
    changed = bool(found.changed.any())
    said = [_begins(found), _layers(found)] if changed or found.changed_together.any() else [_nothing(found)]
    said += _undefined(found)
    if changed or _open(found).any():
        said += _tasks(found)
    said += [*no_interval(found), *(_where(found) if changed else [])]
    return [*said, *_clusters(found), *_controls(found), *_groups(found)]


def _groups(found: CompareTables) -> list[str]:
    return [] if found.groups is None else found.groups.sentences


def _open(found: CompareTables) -> np.ndarray:
    """``[layer task]``: a change beyond the tolerance that cannot be judged, for lack of an interval."""
    return np.nan_to_num(found.change) * ~found.known > found.config.tolerance


def _undefined(found: CompareTables) -> list[str]:
    """Where there is no CKA, so that nothing is said of a change."""
    groups: dict[str, list[str]] = {}
    for task, missing in zip(found.tasks, np.isnan(found.change).T, strict=True):
        if missing.any():
            groups.setdefault(found.ranges_of(missing), []).append(task)
    parts = [
        f"at layer{_s(at)} {at} for {'every task' if len(tasks) == len(found.tasks) else _named(tasks)}"
        for at, tasks in groups.items()
    ]
    return [f"CKA is undefined {join(parts)}: whether tasks changed there is not known."] if parts else []


def _nothing(found: CompareTables) -> str:
    told, where = "No layer changed", "at every layer and for every task,"
    if _open(found).any() or np.isnan(found.change).any():
        told, where = "No layer is known to have changed", "wherever there is one,"
    return f"{told}: {where} the 95% interval of 1 - CKA reaches down to the tolerance of {found.config.tolerance:g}."


def _begins(found: CompareTables) -> str:
    groups: dict[int, list[int]] = {}
    for k in range(len(found.tasks)):
        if (layer := found.begins(k)) is not None:
            groups.setdefault(layer, []).append(k)
    parts = [f"at layer {layer} for {_named([found.tasks[k] for k in groups[layer]])}" for layer in sorted(groups)]
    together = found.begins(None)
    if together is not None and together < min(groups, default=np.inf):
        parts.insert(0, f"at layer {together} for all prompts together")
    said = (
        f"Change begins {join(parts)}: the first layer, by depth, where the 95% interval of 1 - CKA lies above "
        f"{found.config.tolerance:g}."
    )
    begun = found.changed.filled(False).cumsum(axis=0) > 0
    maybe = np.asarray(_open(found) & ~begun)
    if maybe.any():
        names = _named([found.tasks[k] for k in np.flatnonzero(maybe.any(axis=0)).tolist()])
        where = found.ranges_of(np.asarray(maybe.any(axis=1)))
        said += f" For {names} it may begin at layer{_s(where)} {where}: there is a change there, but no interval."
    return said


def _layers(found: CompareTables) -> str:
    changed = np.asarray(found.changed.filled(False).any(axis=1))
    if not changed.any():
        known = "is known to have changed" if np.isnan(found.change).any() else "changed"
        return f"No layer {known} for any single task."
    said = (
        f"Layers that changed for at least one task: {found.ranges_of(changed)} of {ranges(found.layer_numbers)}; "
        f"{_largest(found)}"
    )
    if changed.sum() > 1:
        said += (
            " Later layers are computed from earlier ones and inherit their change: tuning need not have altered them, "
            "not even the one where it is largest."
        )
    return said


def _largest(found: CompareTables) -> str:
    """Where the mean over tasks is largest, and where least."""
    table = found.tables["layers"]
    table = table[table["tasks"] == table["tasks"].max()]  # means over different sets of tasks cannot be compared
    first, last = table.loc[table["change"].idxmax()], table.loc[table["change"].idxmin()]
    said = f"1 - CKA is largest at layer {first.layer} ({first.change:z.2f} on average over tasks)"
    return said + (f", least at layer {last.layer} ({last.change:z.2f})." if len(table) > 1 else ".")


def _tasks(found: CompareTables) -> list[str]:
    table, left_out = found.tables["tasks"], _left_out(found)
    told = table[table["stands_out"].notna()]
    if not len(told):
        return ["No task can be compared with another: no layer has an interval for two tasks."]
    at = told.iloc[0]["layers"]
    over = "Over all layers" if found.common[0].all() else f"Over layer{_s(at)} {at}"
    is_out = told["stands_out"].astype(bool)
    out, rest = told[is_out], told[~is_out]
    if len(out):
        names = join(f"{short(r.task)} ({r.change:z.2f}, {r.low:z.2f} to {r.high:z.2f})" for r in out.itertuples())
        return [
            f"{over}, {names} stand{'s' * (len(out) == 1)} out (mean 1 - CKA and 95% over prompts), against at most "
            f"{rest['change'].max():z.2f} ({short(rest.iloc[0]['task'])}) for the other{'s' * (len(rest) > 1)}.",
            *left_out,
        ]
    first, last = rest.iloc[0], rest.iloc[-1]
    return [
        f"{over}, no task stands out{' of those that can be compared' * bool(left_out)}: mean 1 - CKA is "
        f"{last.change:z.2f} ({short(last.task)}) to {first.change:z.2f} ({short(first.task)}; 95% over prompts "
        f"{first.low:z.2f} to {first.high:z.2f}).",
        *left_out,
    ]


def _left_out(found: CompareTables) -> list[str]:
    """Tasks for which it is unknown whether they stand out, with what is known about them."""
    table, parts = found.tables["tasks"], []
    for row in table[table["stands_out"].isna()].itertuples():
        lacks = f"no interval at layer{_s(row.no_interval_layers)} {row.no_interval_layers}"
        most = "" if np.isnan(row.largest) else f"; largest 1 - CKA {row.largest:z.2f}, at layer {row.at_layer}"
        parts.append(f"{short(row.task)} ({lacks}{most})")
    if not parts:
        return []
    return [f"Whether these stand out cannot be told, and they are not compared: {', '.join(parts)}."]


def no_interval(found: CompareTables) -> list[str]:
    """Where there is a change without an interval, and why."""
    groups: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    lacking = np.isfinite(found.change) & ~found.known
    for k in range(len(found.tasks)):
        causes: dict[str, list[int]] = {}
        for i in np.flatnonzero(lacking[:, k]).tolist():
            causes.setdefault(_cause(found, i, k), []).append(i)
        for cause, places in causes.items():
            groups.setdefault((cause, tuple(places)), []).append(k)
    said = []
    for (cause, layers), tasks in groups.items():
        at = ranges(found.layer_numbers[i] for i in layers)
        names, change = [found.tasks[k] for k in tasks], found.change[np.ix_(layers, tasks)]
        counts = sorted({found.distinct.get((found.cka.coords["site"][i], name), 0) for i in layers for name in names})
        n = sorted({int(found.cka["n"][1 + k]) for k in tasks})
        why = cause.format(its="its" if len(tasks) == 1 else "their", values=span(counts), n=span(n))
        most = names[int(change.max(axis=0).argmax())]
        size = f"{change.max():z.2f}"
        if change.size > 1:
            size = f"at most {size}" + f", for {short(most)}" * (len(names) > 1)
        said.append(f"No interval for {_named(names)} at layer{_s(at)} {at}: {why} (1 - CKA there: {size}).")
    if said:
        said[-1] += " Without one it cannot be told whether a task changed there, nor whether it stands out."
    return said


def _cause(found: CompareTables, i: int, task: int) -> str:
    """Why there is no interval: few prompts, or few different hidden states among many."""
    n = int(found.cka["n"][1 + task])
    distinct = found.distinct.get((found.cka.coords["site"][i], found.tasks[task]), n)
    if distinct < min(n, 2 * LEAST_DEBIASED):
        return "{its} prompts' hidden states take only {values} values there"
    return "half of {its} {n} prompts are too few for one"


def _where(found: CompareTables) -> list[str]:
    """Tasks that stand out at the same layers share a sentence part."""
    groups: dict[str, list[str]] = {}
    for row in found.tables["tasks"].itertuples():
        if row.stands_out_layers:
            groups.setdefault(row.stands_out_layers, []).append(short(row.task))
    if not groups:
        return ["At no layer does a task stand out from the others."]
    parts = (f"{join(tasks)} at layer{_s(at)} {at}" for at, tasks in groups.items())
    return [f"Layer by layer, these stand out: {'; '.join(parts)}."]


def _between_families(found: CompareTables) -> list[str]:
    """What is said of two models of which neither was tuned from the other."""
    base, tuned = found.families
    said = [
        f"The models are of different families ({base} and {tuned}), so neither was tuned from the other: 1 - CKA is a "
        "difference between two models here, and no effect of tuning."
    ]
    if not found.diagonal:
        return [*said, *_most_alike(found)]
    if not np.isfinite(found.change).any():
        return [*said, _UNDEFINED]
    return [*said, _largest(found), *_undefined(found), *no_interval(found)]


def _most_alike(found: CompareTables) -> list[str]:
    return [
        f"The models do not have the same layers ({len(found.cka.coords['site'])} in the tuned one and "
        f"{len(found.cka.coords['other_site'])} in the base one, the embedding included), so every layer was compared "
        "with every other, and which layers correspond is left to the reader.",
        _searched(found),
    ]


def _searched(found: CompareTables) -> str:
    """Return which tuned layers are most like another base layer than the one at their relative depth."""
    if found.best_pair is None:
        return "Which base layer a tuned layer is most like was not tested (--n-permutations 0)."
    table = found.tables["compare"]
    table = table[(table["task"] == ALL) & table["elsewhere"]]
    pairs = ", ".join(f"{r.layer} like {r.base_layer} (CKA {r.debiased_cka:z.2f})" for r in table.itertuples())
    if not pairs:
        return "Over all prompts, no tuned layer is known to be more like another base layer than the one at its depth."
    return (
        f"Over all prompts, these tuned layers are more like another base layer than the one at their relative depth: "
        f"{pairs} (p at most .05 for the largest over all base layers, by Holm over the tuned layers)."
    )


def _controls(found: CompareTables) -> list[str]:
    if not found.controls:
        return []
    gain = found.tables["controls"].groupby("layer")["gain"].median().dropna()
    if not len(gain):
        return []
    n, low, high = len(found.controls), gain.min(), gain.max()
    mixed = "more similar at some layers and less similar at others"
    how = "more similar" if low >= 0 else "less similar" if high <= 0 else mixed
    return [
        f"Compared with {n} control{'s' * (n != 1)}, the tuned model is {how} than the base to a model of the task "
        f"alone: tuned - base in debiased CKA, median over controls, is {high:z.2f} at layer {gain.idxmax()} (highest) "
        f"and {low:z.2f} at layer {gain.idxmin()} (lowest)."
    ]


def _clusters(found: CompareTables) -> list[str]:
    if "clusters" not in found.tables:
        return []
    table = found.tables["clusters"]
    told = table[table["change"].notna()]
    if not len(told):
        return []
    at = told.iloc[0]["layers"]
    parts = []
    for row in told.iloc[:_NAMED].itertuples():
        between = f"{row.change_least:z.2f} to {row.change_most:z.2f}, " if row.change_tasks > 1 else ""
        many = f"{row.change_tasks} task{'s' * (row.change_tasks != 1)}"
        parts.append(f"{short(row.cluster)} {row.change:z.2f} ({between}{many})")
    rest = f", and {len(told) - _NAMED} more" if len(told) > _NAMED else ""
    said = f"By cluster, mean 1 - CKA over layer{_s(at)} {at}, median and range over tasks: {', '.join(parts)}{rest}."
    held_out, of_none = found.clusters.held_out, [t for t in found.tasks if t not in found.clusters.of_task]
    if held_out:
        said += f" Held-out tasks are in no cluster's numbers: {_named(held_out)}."
    if of_none := [task for task in of_none if task not in held_out]:
        said += f" In no cluster: {_named(of_none)}."
    return [said]


def span(values: Sequence[int]) -> str:
    """Such as ``"3"`` or ``"3 to 5"``, of ascending numbers."""
    return str(values[0]) if values[0] == values[-1] else f"{values[0]} to {values[-1]}"


def _named(tasks: Sequence[str]) -> str:
    """The first few of many."""
    if len(tasks) <= _NAMED + 1:
        return join(map(short, tasks))
    return join([*map(short, tasks[:_NAMED]), f"{len(tasks) - _NAMED} others"])


def _s(layers: str) -> str:
    """The plural of layers, such as ``"0-2"``."""
    return "" if layers.isdigit() else "s"
