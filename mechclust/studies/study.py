"""What every study is: presets, independent jobs, an analysis, a folder of artefacts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mechclust.jobs import map_jobs
from mechclust.report.analysis import Analysis
from mechclust.report.claims import Claims, save_claims
from mechclust.report.folder import check_writable, machine
from mechclust.studies.extra_probes import Subject, chosen_probes, further_notes, further_views, measure_further
from probes.files import write_atomic
from tasks import InputError
from tasks.errors import suggest

if TYPE_CHECKING:
    pass

ConfigT = TypeVar("ConfigT")


@dataclass(frozen=True)
class Study:
    """An experiment of a paper.

    Attributes:
        name: on the command line.
        title: a line for lists and reports.
        source: the paper.
        presets: configurations (frozen dataclasses with a field ``seeds``) by name.
        jobs: configuration to picklable jobs.
        subjects: ``(config, out)``: its trained models, for probes of the user's choice.
        stage: of a job, a number; the jobs of a stage are independent, and start when those before are done.
        run_job: ``(config, job, out)``: makes a job's artefacts in ``out``; goes on where it was.
        analyse: ``(config, out)``: claims and figures from the artefacts.
    """

    name: str
    title: str
    source: str
    presets: Mapping[str, Any]
    jobs: Callable[[Any], Sequence[Any]]
    run_job: Callable[[Any, Any, Path], None]
    analyse: Callable[[Any, Path], Analysis]
    subjects: Callable[[Any, Path], Iterable[Subject]]
    stage: Callable[[Any], int] = lambda job: 0

    def preset(self, name: str) -> Any:
        """The configuration called ``name``.

        Raises:
            InputError: listing the presets there are.
        """
        if name not in self.presets:
            raise InputError(f"{self.name} has no preset {name!r}{suggest(name, self.presets)}")
        return self.presets[name]


def configure(config: ConfigT, **changes: Any) -> ConfigT:
    """A copy of a configuration with fields changed, nested ones by dots (``{"training.lr": 0.1}``).

    Raises:
        InputError: for a field that is not there, with the nearest name.
    """
    for path, value in changes.items():
        name, _, rest = path.partition(".")
        known = [f.name for f in fields(config)]  # type: ignore[arg-type]  # a dataclass, which no type says
        if name not in known:
            raise InputError(f"{type(config).__name__} has no field {name!r}{suggest(name, known)}")
        changed = configure(getattr(config, name), **{rest: value}) if rest else value
        config = replace(config, **{name: changed})  # type: ignore[type-var]
    return config


def to_dict(config: Any) -> dict[str, Any]:
    """A configuration as JSON types."""
    return json.loads(json.dumps(asdict(config)))  # type: ignore[no-any-return]


def from_dict(default: Any, values: Mapping[str, Any]) -> Any:
    """A configuration like ``default`` with the values of ``to_dict``."""
    changes = {}
    for name, value in values.items():
        if not hasattr(default, name):
            raise InputError(f"{type(default).__name__} has no field {name!r}; it was written by another version")
        old = getattr(default, name)
        if is_dataclass(old):
            changes[name] = from_dict(old, value)
        else:
            changes[name] = tuple(value) if isinstance(value, list) else value
    return replace(default, **changes)


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse seeds that no study can run with.

    Raises:
        InputError: for none, a negative one, or one given twice.
    """
    if not seeds:
        raise InputError("seeds is empty; expected at least one seed, such as --seeds 0")
    if min(seeds) < 0:
        raise InputError(f"seeds has {min(seeds)}; expected seeds of at least 0")
    if twice := [seed for i, seed in enumerate(seeds) if seed in seeds[:i]]:
        raise InputError(f"seeds has {twice[0]} twice; expected different seeds")


def run_study(
    study: Study, config: Any, out: str | Path, workers: int | None = None, probes: Sequence[str] = ()
) -> Analysis:
    """Run a study in the folder ``out``, or go on with it there.

    Artefacts are kept as they come: ``config.json``, ``models/``, ``results/``, ``figures/``,
    ``claims.json``, ``report.html``. An interrupted run called again goes on where it was.

    Args:
        study: which.
        config: one of its presets, changed or not.
        out: the folder.
        workers: processes; one a core by default.
        probes: names of probes (see ``probes.list_probes``) to run, with their default settings, on the trained
            models, for the report.

    Raises:
        InputError: when ``out`` cannot be written or holds a run with other settings, or a probe is not there.
    """
    out = Path(out)
    further = chosen_probes(probes)
    jobs = sorted(study.jobs(config), key=study.stage)  # before anything is written: it refuses what cannot run
    _open_folder(study, config, out)
    for _, stage in groupby(jobs, study.stage):
        map_jobs(_Run(study.run_job, config, out), list(stage), workers)
    measure_further(study, config, out, further)
    return write_report(study, config, out)


def write_report(study: Study, config: Any, out: Path) -> Analysis:
    """Analyse a run's artefacts anew: ``claims.json``, ``figures/`` and ``report.html``."""
    from mechclust.report.page import render_report, save_panels

    analysis = study.analyse(config, out)
    views = {**analysis.views, **further_views(out)}
    analysis = replace(
        analysis, claims=Claims(analysis.claims), views=views, notes=[*analysis.notes, *further_notes(out)]
    )
    save_claims(analysis.claims, out / "claims.json")
    save_panels(analysis.panels, out / "figures")
    record = json.loads((out / "config.json").read_text())
    page = render_report(
        title=study.title,
        source=study.source,
        analysis=analysis,
        facts={"study": study.name, **record["machine"]},
        config=record["config"],
    )
    write_atomic(out / "report.html", page.encode())
    return analysis


@dataclass(frozen=True)
class _Run:
    """A study's function of one job, which pickles where ``run_job`` stands at the top level of a module."""

    run_job: Callable[[Any, Any, Path], None]
    config: Any
    out: Path

    def __call__(self, job: Any) -> None:
        self.run_job(self.config, job, self.out)


def _open_folder(study: Study, config: Any, out: Path) -> None:
    path = out / "config.json"
    wanted = to_dict(config)
    check_writable(out)
    if not path.exists():
        record = {"study": study.name, "config": wanted, "machine": machine()}
        write_atomic(path, (json.dumps(record, indent=1) + "\n").encode())
    held = read_record(path, "choose another folder with --out")
    if held["study"] != study.name or held["config"] != wanted:
        different = (
            _first_difference(held["config"], wanted) if held["study"] == study.name else f"study {held['study']}"
        )
        raise InputError(
            f"{str(out)!r} holds another run ({different}); choose another folder with --out, "
            "or the same settings to go on"
        )


def read_record(path: Path, way_out: str) -> dict[str, Any]:
    """A run's ``config.json``."""
    try:
        record = json.loads(path.read_text())
        if isinstance(record["study"], str) and isinstance(record["config"], dict):
            return dict(record)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise InputError(f"{str(path.parent)!r} holds no run (no readable config.json); {way_out}")


def _first_difference(held: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> str:
    for key in wanted:
        if held.get(key) != wanted[key]:
            if isinstance(wanted[key], dict) and isinstance(held.get(key), dict):
                return _first_difference(held[key], wanted[key], f"{prefix}{key}.")
            return f"{prefix}{key} = {held.get(key)!r}, not {wanted[key]!r}"
    return "other fields"
