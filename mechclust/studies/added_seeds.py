"""Seeds that are added to a run: only they are measured, and the record keeps the verdicts seen before."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mechclust.evidence import EarlierVerdict, Finding, load_findings
from mechclust.evidence.findings import FILE
from mechclust.evidence.verdict import SEEDS_ADDED
from mechclust.report.folder import check_folder
from mechclust.report.measured_files import check_measured_files
from mechclust.report.run_record import read_run_record, record_differences
from probes.store.files import write_json
from tasks import InputError
from tasks.settings import settings_to_json

_ADDED = "added_seeds"  # in config.json


def new_seeds(config: Any, out: Path) -> Sequence[int]:
    """Return the seeds that a run in ``out`` was not begun with, which are all if nothing was measured there.

    Args:
        config: the settings to run with.
        out: the run's folder. With other settings than its run's, ``open_folder`` refuses it.

    Raises:
        InputError: if its ``config.json`` is of no run.
    """
    if not (out / "config.json").exists():
        return config.seeds  # type: ignore[no-any-return]
    held = read_run_record(out, "choose another folder with --out")["config"].get("seeds", [])
    was_begun = any((out / name).exists() for name in ("models", "results"))
    return config.seeds[len(held) :] if was_begun else config.seeds  # type: ignore[no-any-return]


def add_seeds(study: str, jobs_of: Callable[[Any], Sequence[Any]], config: Any, out: Path) -> None:
    """Extend the record of a run with further seeds, and leave every other folder as it is.

    Args:
        study: its name.
        jobs_of: ``Study.jobs``.
        config: its settings. All but the seeds must equal the run's, and the run's seeds must come first.
        out: the run's folder.

    Raises:
        InputError: if networks of earlier seeds would be trained again because some train in groups, or if a file of
            the run, or of its report, is damaged or was changed.
    """
    if not (out / "config.json").exists():
        return
    record = read_run_record(out, "choose another folder with --out")
    held = record["config"]
    wanted = settings_to_json(config)
    if record["study"] != study or list(dict(record_differences(held, wanted))) != ["seeds"]:
        return
    n_held = len(held["seeds"])
    if wanted["seeds"][:n_held] != held["seeds"]:
        return
    check_folder(out, f"run {study}")
    check_measured_files(out)
    fewer = replace(config, seeds=config.seeds[:n_held])
    jobs = jobs_of(config)
    changed = [job for job in jobs_of(fewer) if job not in jobs]
    if changed:
        raise InputError(
            f"with {len(wanted['seeds']) - n_held} more seeds, {getattr(changed[0], 'name', changed[0])!r} would be "
            "trained again in another group; add seeds where the last group is full, or choose another folder with "
            "--out"
        )
    additions = record.get(_ADDED, [])
    judged = _judged_findings(out)
    if additions and not any(_judged_since(additions[-1], finding) for finding in judged):  # no verdict on it was seen
        *additions, unfinished = additions
        addition = {**unfinished, "seeds": wanted["seeds"][len(unfinished["before"]) :]}
    else:
        verdicts = {finding.id: finding.verdict for finding in judged}
        addition = {"date": time.strftime("%Y-%m-%d"), "before": held["seeds"], "seeds": wanted["seeds"][n_held:]}
        addition |= {"seen": verdicts}
    write_json(out / "config.json", {**record, "config": wanted, _ADDED: [*additions, addition]})


def with_seen_verdicts(
    findings: Sequence[Finding], record: Mapping[str, Any], judge: Callable[[Sequence[int]], Sequence[Finding]]
) -> list[Finding]:
    """Return the findings of a run, with the verdicts seen before seeds were added in their histories.

    A finding keeps its history if the added seeds change none of its values, as it is measured on other seeds.

    Args:
        findings: of the run.
        record: its ``config.json``.
        judge: returns the run's findings on some of its seeds.
    """
    marked = list(findings)
    for addition in record.get(_ADDED, []):
        before = {finding.id: _measured(finding) for finding in judge(addition["before"])}
        for place, finding in enumerate(marked):
            if finding.id in addition["seen"] and _measured(finding) != before.get(finding.id):
                marked[place] = replace(finding, history=(*finding.history, _earlier_verdict(addition, finding.id)))
    return marked


def _measured(finding: Finding) -> str:
    """Return the values and intervals of a finding and its control as text, in which NaN equals NaN."""
    parts = [*finding.parts, *(finding.control.parts if finding.control else ())]
    return str([(part.values, part.interval) for part in parts])


def _judged_findings(out: Path) -> list[Finding]:
    """Return the findings on which the run's ``findings.json`` has a verdict."""
    findings = load_findings(out) if (out / FILE).exists() else []
    return [finding for finding in findings if finding.verdict != "not tested"]


def _judged_since(addition: Mapping[str, Any], finding: Finding) -> bool:
    """Return whether a finding of the run was judged after the seeds of an addition were measured."""
    return finding.id not in addition["seen"] or _earlier_verdict(addition, finding.id) in finding.history


def _earlier_verdict(addition: Mapping[str, Any], finding: str) -> EarlierVerdict:
    """Return the verdict on a finding that was seen before seeds were added."""
    change = f"{SEEDS_ADDED}: {', '.join(map(str, addition['seeds']))}"
    run = f"this run until {addition['date']}"
    return EarlierVerdict(run, len(addition["before"]), addition["seen"][finding], change)
