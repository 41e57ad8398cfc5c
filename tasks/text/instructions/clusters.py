"""``clusters.toml``: the tasks of each cluster, and the tasks that the multi-task model is not trained on."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.errors import InputError, did_you_mean
from tasks.text.files import read_text
from tasks.text.instructions.collection import check_task_names
from tasks.text.visible import quoted

_CLUSTERS_FILE = "clusters.toml"
_TABLES = ("clusters", "held_out")


@dataclass(frozen=True)
class ClusterFile:
    """The contents of a ``clusters.toml``.

    Attributes:
        path: path of the file.
        clusters: the cluster of each task. Empty if the file has no such table.
        held_out: tasks that the multi-task model is not trained on.
    """

    path: Path
    clusters: Mapping[str, str]
    held_out: tuple[str, ...]


def find_cluster_file(folder: Path, given: str | Path | None) -> ClusterFile | None:
    """Return the file that was given, or the ``clusters.toml`` of a folder if there is one."""
    if given is not None:
        return read_cluster_file(given)
    path = folder / _CLUSTERS_FILE
    return read_cluster_file(path) if path.exists() else None


def read_cluster_file(path: str | Path) -> ClusterFile:
    """Read a table ``[clusters]`` with ``name = ["task", ...]``, and ``[held_out]`` with ``tasks = ["task", ...]``.

    Both tables may be missing.

    Raises:
        InputError: for a file that is not TOML (with the line), one of another form, a cluster without tasks, and a
            task in two clusters.
    """
    path = Path(path)
    text = read_text(path, "a TOML file with [clusters] and [held_out]", called="file of clusters")
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{str(path)!r} is not TOML ({error})") from None
    for name in tables:
        if name not in _TABLES:
            raise InputError(
                f"{str(path)!r} has {quoted(name)}; expected the tables [clusters] and [held_out]"
                f"{did_you_mean(name, _TABLES)}"
            )
    clusters = _read_clusters(_table(tables, "clusters", path), path)
    held_out = _read_held_out(_table(tables, "held_out", path), path)
    return ClusterFile(path, clusters, held_out)


def _read_clusters(table: Mapping[str, Any], path: Path) -> dict[str, str]:
    """Return the cluster of each task."""
    clusters: dict[str, str] = {}
    for cluster, tasks in table.items():
        if tasks == []:
            raise InputError(
                f"{str(path)!r}: the cluster {quoted(cluster)} has no tasks; name at least one, or leave it out"
            )
        for task in _names(tasks, f"{str(path)!r}: the cluster {quoted(cluster)}"):
            if task in clusters:
                twice = "twice" if clusters[task] == cluster else f"in {quoted(clusters[task])} too"
                raise InputError(
                    f"{str(path)!r}: the task {quoted(task)} is in the cluster {quoted(cluster)}, and "
                    f"{twice}; leave it in one place"
                )
            clusters[task] = cluster
    return clusters


def _read_held_out(table: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    if table and set(table) != {"tasks"}:
        raise InputError(f'{str(path)!r}: [held_out] has {", ".join(table)}; expected tasks = ["name", ...] alone')
    return tuple(_names(table.get("tasks", []), f"{str(path)!r}: tasks of [held_out]"))


def check_cluster_file(file: ClusterFile, tasks: Sequence[str]) -> None:
    """Refuse clusters and held-out tasks that are not in the data.

    Raises:
        InputError: naming the first, with the nearest.
    """
    for task, cluster in file.clusters.items():
        check_task_names(
            [task], tasks, f"{str(file.path)!r}: the cluster {quoted(cluster)} has a task that is not in the data:"
        )
    for task in file.held_out:
        check_task_names([task], tasks, f"{str(file.path)!r}: [held_out] has a task that is not in the data:")


def _table(tables: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    table = tables.get(name, {})
    if not isinstance(table, dict):
        raise InputError(f"{str(path)!r}: {name} is {quoted(table)}; expected a table [{name}]")
    return table


def _names(value: object, what: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InputError(f'{what} is {quoted(value)}; expected a list of names, such as ["copa", "piqa"]')
    return value
