"""``clusters.toml``: which task belongs to which cluster, and which tasks the multi-task model is not trained on."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.errors import InputError, did_you_mean
from tasks.text.files import read_text
from tasks.text.instructions.collection import check_names
from tasks.text.visible import quoted

CLUSTERS_FILE = "clusters.toml"
_TABLES = ("clusters", "held_out")
_QUOTED = re.compile(r"\"([^\"]+)\"|'([^']+)'")


@dataclass(frozen=True)
class ClusterFile:
    """What a ``clusters.toml`` says.

    Attributes:
        path: of the file.
        clusters: task to cluster; empty where the file has no such table.
        held_out: tasks that the multi-task model is not trained on.
        lines: name to the lines where it is written.
    """

    path: Path
    clusters: Mapping[str, str]
    held_out: tuple[str, ...]
    lines: Mapping[str, Sequence[int]]

    def at(self, name: str, place: int = 0) -> str:
        """Where a name stands, for messages: the file, and the line where it is found."""
        return _at(self.path, self.lines, name, place)


def find_clusters(folder: Path, given: str | Path | None) -> ClusterFile | None:
    """The file that was given, or the ``clusters.toml`` of a folder where there is one."""
    if given is not None:
        return read_clusters(given)
    return read_clusters(folder / CLUSTERS_FILE) if (folder / CLUSTERS_FILE).exists() else None


def read_clusters(path: str | Path) -> ClusterFile:
    """Read a table ``[clusters]`` with ``name = ["task", ...]``, and ``[held_out]`` with ``tasks = ["task", ...]``.

    Both tables may be missing.

    Raises:
        InputError: for a file that is not TOML (with the line), one of another form, a cluster without tasks, and a
            task in two clusters.
    """
    path = Path(path)
    text = read_text(path, "a TOML file with [clusters] and [held_out]", called="file of clusters")
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{str(path)!r} is not TOML ({error})") from None
    for name in found:
        if name not in _TABLES:
            raise InputError(
                f"{str(path)!r} has {quoted(name)}; expected the tables [clusters] and [held_out]"
                f"{did_you_mean(name, _TABLES)}"
            )
    clusters: dict[str, str] = {}
    lines = _lines(text)
    for cluster, tasks in _table(found, "clusters", path).items():
        if tasks == []:
            raise InputError(
                f"{str(path)!r}: the cluster {quoted(cluster)} has no tasks; name at least one, or leave it out"
            )
        for task in _names(tasks, f"{str(path)!r}: the cluster {quoted(cluster)}"):
            if task in clusters:
                twice = "twice" if clusters[task] == cluster else f"in {quoted(clusters[task])} too"
                raise InputError(
                    f"{_at(path, lines, task, 1)}: the task {quoted(task)} is in the cluster {quoted(cluster)}, and "
                    f"{twice}; leave it in one place"
                )
            clusters[task] = cluster
    held_out = _table(found, "held_out", path)
    if held_out and set(held_out) != {"tasks"}:
        raise InputError(f'{str(path)!r}: [held_out] has {", ".join(held_out)}; expected tasks = ["name", ...] alone')
    names = _names(held_out.get("tasks", []), f"{str(path)!r}: tasks of [held_out]")
    return ClusterFile(path, clusters, tuple(names), lines)


def check_clusters(file: ClusterFile, tasks: Sequence[str]) -> None:
    """Refuse clusters and held-out tasks that are not in the data.

    Raises:
        InputError: naming the first, with the nearest.
    """
    for task, cluster in file.clusters.items():
        check_names(
            [task], tasks, f"{file.at(task)}: the cluster {quoted(cluster)} has a task that is not in the data:"
        )
    for task in file.held_out:
        check_names([task], tasks, f"{file.at(task, -1)}: [held_out] has a task that is not in the data:")


def _table(found: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    table = found.get(name, {})
    if not isinstance(table, dict):
        raise InputError(f"{str(path)!r}: {name} is {quoted(table)}; expected a table [{name}]")
    return table


def _names(value: object, what: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InputError(f'{what} is {quoted(value)}; expected a list of names, such as ["copa", "piqa"]')
    return value


def _lines(text: str) -> dict[str, list[int]]:
    """The lines in which each quoted name stands; one that is written with an escape is not found."""
    found: dict[str, list[int]] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        for double, single in _QUOTED.findall(line):
            found.setdefault(double or single, []).append(number)
    return found


def _at(path: Path, lines: Mapping[str, Sequence[int]], name: str, place: int) -> str:
    numbers = lines.get(name, ())
    return f"{path}, line {numbers[min(place, len(numbers) - 1)]}" if numbers else str(path)
