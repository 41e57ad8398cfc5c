"""A finished study of which files are lost or damaged, made whole again."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from mechclust.studies import Study
from tasks import InputError
from tests.damage import WAYS

_NAMED = re.compile(r"'([^']+\.safetensors)'.*(?:delete|remove) it and", re.DOTALL)


def kinds(folder: Path) -> dict[str, list[Path]]:
    """Artefacts by what they are: the last part of their name, without job, step and seed."""
    found = defaultdict(list)
    for path in sorted(folder.rglob("*.safetensors")):
        place, name = path.relative_to(folder).parts[0], path.stem.rpartition(".")[2]
        if re.search(r"\d", name):  # of a job, a step or a seed
            snapshots = name.startswith("snapshots-")
            name = "snapshots" if snapshots else path.parent.name if place == "results" else "model"
        found[f"{place} {name}"].append(path)
    return found


def check_made_whole(study: Study, config: Any, out: Path) -> None:
    """Damage artefacts of every kind, of different jobs in different ways, all at once, and go on: the same bits.

    A file that is refused must be named with a way out, which is then taken.
    """
    finished = {path: path.read_bytes() for path in out.rglob("*.safetensors")}
    for i, paths in enumerate(kinds(out).values()):
        ways = [WAYS[(i + turn) % len(WAYS)] for turn in range(len(WAYS))]
        for damage, path in zip(ways, paths, strict=False):
            damage(path)
    assert sum(not path.exists() or path.read_bytes() != data for path, data in finished.items()) > len(WAYS)
    _jobs(study, config, out)
    others = [str(path) for path, data in finished.items() if not path.exists() or path.read_bytes() != data]
    assert others == [], f"not as they were: {others}"
    assert set(out.rglob("*.safetensors")) == finished.keys()


def _jobs(study: Study, config: Any, out: Path) -> None:
    for job in sorted(study.jobs(config), key=lambda job: getattr(job, "stage", 0)):
        refused: list[Path] = []
        while (path := _refused(study, config, job, out)) is not None:
            assert path not in refused, f"{path} was deleted, and is still refused"
            path.unlink()
            refused.append(path)


def _refused(study: Study, config: Any, job: Any, out: Path) -> Path | None:
    """The file that a job refuses to go on with; ``None`` when it is done."""
    try:
        study.run_job(config, job, out)
    except InputError as error:
        if (named := _NAMED.search(str(error))) is None:
            raise
        return Path(named[1])
    return None
