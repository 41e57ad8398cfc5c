"""The parts of every study: presets, independent jobs, an analysis, a folder of artefacts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from mechclust.evidence import Finding, Findings, family_notes
from mechclust.evidence.findings import untested_findings
from mechclust.jobs import Engine, map_jobs
from mechclust.jobs.cores import usable_cores
from mechclust.jobs.mapping import check_workers
from mechclust.models.hugging_face_checkpoint import find_checkpoint
from mechclust.report.analysis import Analysis
from mechclust.report.folder import check_folder, check_writable, claim_folder, open_folder
from mechclust.report.manifest import read_manifest
from mechclust.report.measured_files import check_measured_files, forget_measured_files, list_measured_files
from mechclust.report.page import write_report_page
from mechclust.report.run_record import read_run_record
from mechclust.studies.added_seeds import add_seeds, new_seeds, with_seen_verdicts
from mechclust.studies.extra_probes import (
    TrainedModel,
    chosen_probes,
    further_notes,
    further_views,
    measure_further,
    try_further,
)
from mechclust.studies.trainings import check_cost, check_trainings, no_trainings, trainings_without
from probes.engine.devices import check_device
from probes.store.locks import locked_folder
from tasks import InputError
from tasks.errors import error_suggestion
from tasks.settings import check_different_settings, check_settings, settings_to_json
from tasks.text.visible import quoted


def check_machine(config: Any) -> None:
    """Refuse a configuration whose ``device``, if it has one, is not on this machine."""
    device = getattr(config, "device", None)
    if device is not None:
        check_device(device)


def check_checkpoint(config: Any) -> None:
    """Refuse a ``device`` that is not here, and a ``model`` that is no checkpoint here or on the hub."""
    check_machine(config)
    if config.model is not None:
        find_checkpoint(config.model)


_FUNCTIONS = ("jobs", "run_job", "trained_models", "load", "findings", "report", "check", "trainings")


@dataclass(frozen=True, repr=False)
class Study:
    """An experiment, usually a published one.

    Attributes:
        name: its name on the command line.
        title: one line for lists and reports.
        source: the paper.
        presets: configurations by name, of one frozen dataclass with a field ``seeds``.
        jobs: configuration to picklable jobs, at least one. Jobs of one stage (the number ``job.stage``, or 0) are
            independent, and start when earlier stages are done.
        trained_models: ``(config, out)``: the models that a run trained, for probes chosen by the user.
        check: refuses a configuration that cannot run on this machine, before anything is written. Reports do not call
            it.
        trainings: configuration to the networks that are trained, from which memory and time are estimated. Without it,
            there is no estimate.
        run_job: ``(config, job, out)``: makes a job's artefacts in ``out``, or resumes an interrupted call.
        load: ``(config, out)``: the measurements, from ``results/`` alone, since a record keeps no other artefacts.
        findings: ``(config, results)``: the findings, from the results of ``load``. One that has no control says why in
            its note. If ``config`` has a field ``test_findings`` that is false, no finding is tested.
        report: ``(config, results)``: the figures, folded tables, views, notes and headline of the report. Its findings
            are replaced by those of ``findings``.
        unrecorded: names of files in ``results/`` that neither findings nor figures need, such as training losses. A
            record leaves them out.

    Raises:
        InputError: if a field should be a function and is not, or for presets of another kind.

    Example:
        >>> from mechclust import get_study
        >>> get_study("task-clusters").presets["quick"]  # doctest: +SKIP
    """

    name: str
    title: str
    source: str
    presets: Mapping[str, Any]
    jobs: Callable[[Any], Sequence[Any]]
    run_job: Callable[[Any, Any, Path], None]
    trained_models: Callable[[Any, Path], Iterable[TrainedModel]]
    load: Callable[[Any, Path], Any]
    findings: Callable[[Any, Any], Sequence[Finding]]
    report: Callable[[Any, Any], Analysis]
    check: Callable[[Any], None] = check_machine
    trainings: Callable[[Any], Sequence[Any]] = no_trainings
    unrecorded: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in _FUNCTIONS:
            if not callable(getattr(self, name)):
                raise InputError(f"{name} of study {self.name!r} is {getattr(self, name)!r}; give a function")
        kinds = {type(preset) for preset in self.presets.values()}
        have_seeds = all(is_dataclass(preset) and hasattr(preset, "seeds") for preset in self.presets.values())
        if len(kinds) != 1 or not have_seeds:
            names = ", ".join(sorted(kind.__name__ for kind in kinds)) or "empty"
            raise InputError(f"presets of study {self.name!r} are {names}; give one dataclass with a field seeds")

    def __repr__(self) -> str:
        return f"Study({self.name!r}, {quoted(self.title)}, presets {', '.join(self.presets)})"

    def preset(self, name: str) -> Any:
        """Return the configuration called ``name``.

        Raises:
            InputError: if there is no such preset. The text lists the existing ones.
        """
        if name not in self.presets:
            raise InputError(f"{self.name} has no preset {name!r}{error_suggestion(name, self.presets)}")
        return self.presets[name]


class Job(NamedTuple):
    """One training run of a study that trains each of its arms once per seed.

    Example:
        >>> Job("E1b squared SGD .03", 2).name
        'e1b-squared-sgd-.03-seed2'
    """

    arm: str
    seed: int

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.arm.lower().replace(' ', '-')}-seed{self.seed}"


def check_seeds(seeds: Sequence[int], name: str = "seeds") -> None:
    """Refuse no seeds, or one given twice. Their range is in the type ``Seed``.

    Args:
        seeds: the seeds.
        name: name of the setting.

    Raises:
        InputError: for no seeds, or one given twice.
    """
    if not seeds:
        raise InputError(f"{name} is empty; expected at least one seed, such as --{name.replace('_', '-')} 0")
    check_different_settings(**{name: seeds})


def check_past_warmup(section: str, warmup: int, **steps: int) -> None:
    """Refuse trainings that end before they reach their learning rate.

    Args:
        section: settings of the training, such as ``"tuning"``.
        warmup: steps in which the learning rate grows.
        **steps: numbers of steps by setting.

    Raises:
        InputError: naming the first such setting.
    """
    for name, n_steps in steps.items():
        if n_steps <= warmup:
            raise InputError(
                f"{name} is {n_steps}, and {section}.warmup {warmup}; expected more steps than that, or the learning "
                "rate is never reached"
            )


def check_left_out(section: str, settings: Any, names: Sequence[str], by: str) -> None:
    """Refuse settings that every run sets itself, unless they have their defaults.

    Args:
        section: the field of the configuration that holds them, such as ``"task"``.
        settings: the value of that field.
        names: names of these settings.
        by: the setting that determines them.

    Raises:
        InputError: naming the first, such as ``"task.seed is set by each run, from seeds; leave it out"``.
    """
    default = type(settings)()
    for name in names:
        if getattr(settings, name) != getattr(default, name):
            raise InputError(f"{section}.{name} is set by {by}; leave it out")


def run_study(
    study: Study,
    config: Any,
    out: str | Path,
    workers: int | None = None,
    probes: Sequence[str] = (),
    *,
    engine: Engine = "local",
    timeout: float | None = None,
    yes: bool = True,
    print_figures: bool = False,
) -> Analysis:
    """Run a study in the folder ``out``, or resume it there.

    Artefacts are saved as they are made: ``config.json``, ``models/``, ``results/``, ``figures/``, ``findings.json``,
    ``report.html``. Called again, an interrupted run resumes at the interruption. Called with more seeds after the
    run's, it measures the new ones only, and findings that these change after a verdict are marked exploratory. Results
    are bit-identical for any ``workers`` and ``engine``, as those of ``map_jobs`` are. If findings or figures fail,
    everything measured is kept, and ``report_run`` goes on once the study is corrected.

    Args:
        study: the study.
        config: one of its presets, changed or not.
        out: the folder. Only one process may use it at a time. On a cluster, all nodes must see it.
        workers: processes. By default, one per core, or on Ray as many as the cluster has room for.
        probes: names of probes (see ``probes.list_probes``) to run, with their default settings, on the trained
            models, for the report.
        engine: ``"local"`` processes, ``"ray"``, or a ``Ray`` with its settings.
        timeout: maximum seconds per job.
        yes: begin a run that is estimated to take more than a day. If false, refuse it.
        print_figures: draw each figure for print too, as PNG of 300 dots per inch and as PDF.

    Raises:
        InputError: if a setting is out of range, there are no jobs, or networks do not fit in memory or train too long.
            Also if ``out`` cannot be written, is in use, or holds a run with other settings. Also if a probe does not
            exist or does not fit the examples. Also as ``check_findings`` and ``map_jobs``.

    Example:
        >>> from mechclust import get_study
        >>> study = get_study("task-clusters")  # doctest: +SKIP
        >>> run_study(study, study.presets["quick"], "runs/task-clusters")  # doctest: +SKIP
    """
    out = Path(out)
    check_workers(workers, engine, timeout)
    further = chosen_probes(probes)
    jobs = _checked_jobs(study, config, out)
    if further:
        try_further(study.trained_models(config, out), further)
    if engine == "local":
        _check_cost_of_new_seeds(study, config, out, workers or usable_cores(), yes=yes)
    with locked_folder(out, way="give another folder with --out"):
        add_seeds(study.name, study.jobs, config, out)
        open_folder(out, study.name, settings_to_json(config))
        check_measured_files(out)
        forget_measured_files(out)
        there = out.absolute()  # remote workers have another working directory
        for _, stage in groupby(jobs, _stage_of):
            run_job = partial(_run_job, study.run_job, config, there)
            map_jobs(run_job, list(stage), workers, engine=engine, timeout=timeout, folder=there)
        measure_further(study.trained_models, config, there, further, workers=workers, engine=engine, timeout=timeout)
        claim_folder(out, f"run {study.name}")
        list_measured_files(out)
        try:
            return report_run(study, config, out, print_figures=print_figures)
        except Exception as error:  # of somebody else's code
            error.add_note(f"all that was measured is kept: correct the study, then mechclust report {out}")
            raise


def _stage_of(job: object) -> int:
    """Return the number of a job's stage."""
    return getattr(job, "stage", 0)


def _checked_jobs(study: Study, config: Any, out: Path) -> list[Any]:
    """Return the jobs in the order of their stages. Refuse settings that cannot be run, or a folder."""
    kind = type(next(iter(study.presets.values())))
    if not isinstance(config, kind):
        raise InputError(
            f"the settings of {study.name} are a {type(config).__name__}; expected a {kind.__name__}, as in its presets"
        )
    check_settings(config)
    check_different_settings(seeds=config.seeds)  # one seed twice would be two runs that agree
    study.check(config)
    check_trainings(study.trainings(config))
    jobs = sorted(study.jobs(config), key=_stage_of)
    if not jobs:
        raise InputError(f"study {study.name!r} has no jobs with these settings; change them, or its jobs")
    check_writable(out)
    return jobs


def _check_cost_of_new_seeds(study: Study, config: Any, out: Path, workers: int, *, yes: bool) -> None:
    """Refuse trainings that do not fit, or take more than a day. A run that was begun goes on with its seeds."""
    seeds = new_seeds(config, out)
    if not seeds:
        return
    trainings = study.trainings(config)
    n_jobs = len(study.jobs(config))
    held = config.seeds[: len(config.seeds) - len(seeds)]
    if held:
        before = replace(config, seeds=held)
        trainings = trainings_without(trainings, study.trainings(before))
        n_jobs = max(1, n_jobs - len(study.jobs(before)))
    check_cost(trainings, getattr(config, "device", "cpu"), min(workers, n_jobs), yes=yes)


def report_run(study: Study, config: Any, out: Path, *, print_figures: bool = False) -> Analysis:
    """Analyse a run's artefacts again: ``findings.json``, ``figures/`` and ``report.html``.

    With ``print_figures``, each figure is a PNG of 300 dots per inch and a PDF.

    Raises:
        InputError: if ``out`` cannot be written, or holds no run or an incomplete one. Also for measurements or files
            of the report that were changed.
    """
    from mechclust.report.style import styled  # loads matplotlib

    check_writable(out, "make the folder writable, or report on a copy of it")
    record = read_run_record(out, "give the --out folder of a run")
    check_folder(out, f"run {study.name}", "report on a copy of the folder without it")
    if (out / "results").exists() and not read_manifest(out).measured:
        raise InputError(f"the run in {str(out)!r} is not finished; start the study again with the same --out")
    check_measured_files(out)
    with styled():
        analysis = analyse_run(study, config, out)
    judge = partial(judge_seeds, study, config, out)
    analysis = _with_findings(analysis, Findings(with_seen_verdicts(analysis.findings, record, judge)))
    analysis = replace(
        analysis,
        views={**analysis.views, **further_views(out)},
        notes=[*analysis.notes, *family_notes(analysis.findings), *further_notes(out)],
    )
    write_report_page(
        out,
        title=study.title,
        source=study.source,
        analysis=analysis,
        config=record["config"],
        facts={"study": study.name, **record["machine"]},
        command=f"run {study.name}",
        print_figures=print_figures,
    )
    return analysis


def analyse_run(study: Study, config: Any, out: Path) -> Analysis:
    """Return a study's conclusions from a run's artefacts.

    Raises:
        InputError: if a file is missing, or a figure's name is there twice. Also as ``check_findings``.
    """
    results = study.load(config, out)
    findings = judge_results(study, config, results)
    check_findings(findings)
    analysis = study.report(config, results)
    if not isinstance(analysis, Analysis):
        raise InputError(f"report of study {study.name!r} returned a {type(analysis).__name__}; return an Analysis")
    check_different_settings(figures=[panel.name for panel in analysis.panels])
    return _with_findings(analysis, findings)


def _with_findings(analysis: Analysis, findings: Sequence[Finding]) -> Analysis:
    """Return an analysis with other findings, and with their headline if it had the default one."""
    is_default = analysis.headline == Findings(analysis.findings).headline
    return replace(analysis, findings=findings, headline="" if is_default else analysis.headline)


def check_findings(findings: Sequence[Finding]) -> None:
    """Refuse an id that is there twice, and a measured finding that has neither a control nor a note that says why.

    Raises:
        InputError: naming the first such finding.
    """
    check_different_settings(findings=[finding.id for finding in findings])
    for finding in findings:
        is_measured = any(part.values for part in finding.parts)
        if finding.kind == "finding" and finding.control is None and is_measured and not finding.note:
            raise InputError(f"finding {finding.id!r} has no control; add one, or say in its note why there is none")


def judge_run(study: Study, config: Any, out: Path) -> Sequence[Finding]:
    """Return a study's findings from ``results/`` alone.

    Raises:
        InputError: if a file is missing.
    """
    return judge_results(study, config, study.load(config, out))


def judge_seeds(study: Study, config: Any, out: Path, seeds: Sequence[int]) -> Sequence[Finding]:
    """Return a study's findings on some of a run's seeds."""
    return judge_run(study, replace(config, seeds=tuple(seeds)), out)


def judge_results(study: Study, config: Any, results: Any) -> Sequence[Finding]:
    """Return a study's findings, all of them as not tested if the configuration's ``test_findings`` is false."""
    findings = list(study.findings(config, results))
    return findings if getattr(config, "test_findings", True) else untested_findings(findings)


def _run_job(run_job: Callable[[Any, Any, Path], None], config: Any, out: Path, job: Any) -> None:
    """Run a job in a worker process. It is picklable if ``run_job`` is defined at the top level of a module."""
    run_job(config, job, out)
