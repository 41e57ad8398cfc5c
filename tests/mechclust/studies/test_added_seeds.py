"""Seeds that are added to a run: only they are measured, and findings that were seen before are exploratory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from mechclust.evidence import Bound, Control, Finding, load_findings, mean_part, resampled_part
from mechclust.report import Analysis
from mechclust.studies import Study, open_run, record_run, run_study
from mechclust.studies.record import judge_again
from probes.store.files import read_json, write_json
from tasks import InputError


@dataclass(frozen=True)
class Config:
    """Settings.

    Args:
        seeds: one job each, or one for ``group`` of them.
        group: how many seeds share a job.
        scale: of what is measured.
    """

    seeds: tuple[int, ...] = (7, 8)
    group: int = 1
    scale: float = 1.0


def jobs(config):
    return [config.seeds[place : place + config.group] for place in range(0, len(config.seeds), config.group)]


def run_job(config, seeds, out):
    (out / "results").mkdir(exist_ok=True)
    for seed in seeds:
        path = out / "results" / f"{seed}.txt"
        if not path.exists():
            path.write_text(str(seed * config.scale))


def load(config, out):
    return [float((out / "results" / f"{seed}.txt").read_text()) for seed in config.seeds]


def findings(config, results):
    parts = (mean_part("", results, Bound(">", 1)),)
    return [
        Finding(id="Q1", statement="large", source="ours", parts=parts, note="nothing to compare with"),
        Finding(id="Q2", statement="x", source="ours", parts=(), not_tested="too small"),
    ]


STUDY = Study(
    name="grows",
    title="Title",
    source="ours",
    presets={"only": Config()},
    jobs=jobs,
    run_job=run_job,
    trained_models=lambda config, out: (),
    load=load,
    findings=findings,
    report=lambda config, results: Analysis(),
)


@pytest.fixture
def out(tmp_path, monkeypatch):
    monkeypatch.setattr("mechclust.studies.registry.get_study", lambda name: STUDY)
    run_study(STUDY, Config(), tmp_path / "run", workers=1)
    return tmp_path / "run"


def test_only_the_new_seed_is_measured(out):
    before = {path: path.stat().st_mtime_ns for path in (out / "results").iterdir()}
    analysis = run_study(STUDY, Config(seeds=(7, 8, 9)), out, workers=1)
    assert analysis.findings[0].parts[0].values == (7, 8, 9)
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    assert open_run(out)[1] == Config(seeds=(7, 8, 9))


def test_verdicts_that_were_seen_are_kept_and_make_findings_exploratory(out):
    run_study(STUDY, Config(seeds=(7, 8, 9)), out, workers=1)
    seen, untested = run_study(STUDY, Config(seeds=(7, 8, 9, 10)), out, workers=1).findings
    assert [(run.seeds, run.verdict, run.changed) for run in seen.history] == [
        (2, "holds", "seeds added: 9"),
        (3, "holds", "seeds added: 10"),
    ]
    assert seen.exploratory
    assert not untested.exploratory
    page = (out / "report.html").read_text()
    assert "✓ holds (exploratory)" in page
    assert "Exploratory: seeds were added." in page
    assert load_findings(out) == [seen, untested]


def test_a_finding_on_other_seeds_is_not_exploratory(tmp_path):
    def with_other_seeds(config, results):
        parts = (mean_part("", [5.0, 6.0, float("nan")], Bound(">", 1)),)
        other = Finding(id="Q3", statement="fixed", source="ours", parts=parts, note="nothing to compare with")
        return [findings(config, results)[0], other]

    study = replace(STUDY, findings=with_other_seeds)
    run_study(study, Config(), tmp_path / "run", workers=1)
    seen, other = run_study(study, Config(seeds=(7, 8, 9)), tmp_path / "run", workers=1).findings
    assert (seen.exploratory, other.exploratory, other.history) == (True, False, ())
    seen, other = run_study(study, Config(seeds=(7, 8, 9, 10)), tmp_path / "run", workers=1).findings
    assert (len(seen.history), other.history) == (2, ())


def test_a_finding_of_which_only_the_control_or_the_interval_changes_is_exploratory(tmp_path):
    def alike(config, results):
        parts = (mean_part("", [5.0, 6.0], Bound(">", 1)),)
        narrower = resampled_part("", [5.0], (4.0, 5.0 + len(results)), Bound(">", 1))
        controlled = Finding(id="Q1", statement="x", source="ours", parts=parts, control=Control("c", parts))
        control = Control("seeds", (mean_part("", results, Bound(">", 1)),))
        of_interval = replace(controlled, id="Q2", parts=(narrower,), control=Control("c", (narrower,)))
        return [controlled, replace(controlled, id="Q3", control=control), of_interval]

    study = replace(STUDY, findings=alike)
    run_study(study, Config(), tmp_path / "run", workers=1)
    found = run_study(study, Config(seeds=(7, 8, 9)), tmp_path / "run", workers=1).findings
    assert {finding.id: finding.exploratory for finding in found} == {"Q1": False, "Q2": True, "Q3": True}


def test_a_finding_that_is_made_of_many_seeds_only_keeps_the_verdict_that_was_seen(out):
    """As in a later version of the study."""
    study = replace(STUDY, findings=lambda config, results: findings(config, results)[: 2 * (len(results) > 2)])
    assert run_study(study, Config(seeds=(7, 8, 9)), out, workers=1).findings[0].exploratory


def test_a_run_with_the_same_seeds_is_not_exploratory(out):
    assert not any(finding.exploratory for finding in run_study(STUDY, Config(), out, workers=1).findings)


def test_a_record_says_so_too(out, tmp_path):
    run_study(STUDY, Config(seeds=(7, 8, 9)), out, workers=1)
    record_run(out, tmp_path / "record")
    assert judge_again(tmp_path / "record")[0].exploratory
    assert read_json(tmp_path / "record" / "config.json")["added_seeds"][0]["seen"] == {"Q1": "holds"}


@pytest.mark.parametrize("config", [Config(seeds=(7,)), Config(seeds=(9, 7, 8)), Config(seeds=(7, 8, 9), scale=2.0)])
def test_other_changes_are_another_run(out, config):
    before = (out / "config.json").read_bytes()
    with pytest.raises(InputError, match="holds another run"):
        run_study(STUDY, config, out, workers=1)
    assert (out / "config.json").read_bytes() == before


def test_a_setting_that_is_gone_since_is_another_run(out):
    """As of a version that measured under it."""
    record = read_json(out / "config.json")
    write_json(out / "config.json", {**record, "config": {**record["config"], "dropout": 0.1}})
    with pytest.raises(InputError, match="holds another run"):
        run_study(STUDY, Config(seeds=(7, 8, 9)), out, workers=1)
    with pytest.raises(InputError, match=r"holds another run \(dropout = 0\.1, not None\)"):
        run_study(STUDY, Config(), out, workers=1)


def test_seeds_that_would_train_others_again_are_refused(tmp_path):
    folder = tmp_path / "groups"
    run_study(STUDY, Config(seeds=(7, 8, 9), group=2), folder, workers=1)
    before = (folder / "config.json").read_bytes()
    with pytest.raises(InputError, match="would be trained again in another group"):
        run_study(STUDY, Config(seeds=(7, 8, 9, 10), group=2), folder, workers=1)
    assert (folder / "config.json").read_bytes() == before


def test_a_changed_measurement_is_refused_before_the_seeds_are_recorded(out):
    before = (out / "config.json").read_bytes()
    (out / "results" / "7.txt").write_text("99")
    with pytest.raises(InputError, match="is not what this run measured"):
        run_study(STUDY, Config(seeds=(7, 8, 9)), out, workers=1)
    assert (out / "config.json").read_bytes() == before


def test_a_changed_report_is_refused_before_the_seeds_are_recorded(out):
    """So that the run can go on with either seeds once the report is deleted."""
    before = (out / "config.json").read_bytes()
    (out / "report.html").write_text("mine")
    with pytest.raises(InputError, match=r"report\.html"):
        run_study(STUDY, Config(seeds=(7, 8, 9)), out, workers=1)
    assert (out / "config.json").read_bytes() == before
    (out / "report.html").unlink()
    assert run_study(STUDY, Config(), out, workers=1).findings[0].parts[0].values == (7, 8)


def test_an_interrupted_addition_is_extended(out, monkeypatch):
    """Its seeds were not measured, so that no verdict on them was seen."""
    with monkeypatch.context() as patch:
        patch.setattr("mechclust.studies.study.list_measured_files", stopped)
        with pytest.raises(OSError, match="stopped"):
            run_study(STUDY, Config(seeds=(7, 8, 9)), out, workers=1)
    findings = run_study(STUDY, Config(seeds=(7, 8, 9, 10)), out, workers=1).findings
    assert [(run.seeds, run.changed) for run in findings[0].history] == [(2, "seeds added: 9, 10")]


def test_a_verdict_is_kept_if_a_later_run_with_the_same_seeds_was_interrupted(out, monkeypatch):
    run_study(STUDY, Config(seeds=(7, 8, 9)), out, workers=1)
    with monkeypatch.context() as patch:
        patch.setattr("mechclust.studies.study.list_measured_files", stopped)
        with pytest.raises(OSError, match="stopped"):
            run_study(STUDY, Config(seeds=(7, 8, 9)), out, workers=1)
    findings = run_study(STUDY, Config(seeds=(7, 8, 9, 10)), out, workers=1).findings
    expected = [(2, "holds", "seeds added: 9"), (3, "holds", "seeds added: 10")]
    assert [(run.seeds, run.verdict, run.changed) for run in findings[0].history] == expected


def test_an_addition_that_was_measured_but_not_judged_is_extended(out):
    def no_report(config, results):
        raise ValueError("no report")

    with pytest.raises(ValueError, match="no report"):
        run_study(replace(STUDY, report=no_report), Config(seeds=(7, 8, 9)), out, workers=1)
    findings = run_study(STUDY, Config(seeds=(7, 8, 9, 10)), out, workers=1).findings
    expected = [(2, "holds", "seeds added: 9, 10")]
    assert [(run.seeds, run.verdict, run.changed) for run in findings[0].history] == expected


def test_a_first_verdict_on_added_seeds_is_kept(tmp_path, monkeypatch):
    """The run was interrupted before the seeds were added, so that the first addition saw no verdict."""
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("mechclust.studies.study.list_measured_files", stopped)
        with pytest.raises(OSError, match="stopped"):
            run_study(STUDY, Config(), folder, workers=1)
    assert not run_study(STUDY, Config(seeds=(7, 8, 9)), folder, workers=1).findings[0].history
    findings = run_study(STUDY, Config(seeds=(7, 8, 9, 10)), folder, workers=1).findings
    expected = [(3, "holds", "seeds added: 10")]
    assert [(run.seeds, run.verdict, run.changed) for run in findings[0].history] == expected


def stopped(folder):
    raise OSError("stopped")
