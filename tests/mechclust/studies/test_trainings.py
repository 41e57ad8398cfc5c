"""What a study trains is known before it starts: what it takes, and whether probes fit its examples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mechclust.cli import main
from mechclust.report.folder import open_folder
from mechclust.studies import Study, configure, get_study, list_studies, run_study
from mechclust.studies.extra_probes import chosen_probes, try_further
from mechclust.studies.trainings import Training, check_cost, trainings_without
from mechclust.training import TrainConfig
from probes.store.files import read_json
from tasks import InputError
from tasks.settings import settings_to_json

STUDIES = [registered.name for registered in list_studies()]
WITHOUT_TASKS = ("clustering-heads", "induction-heads", "topic-structure")
LONG = {"training.steps": 10**8}


def unchecked(name: str) -> Study:
    """A study that does not measure its examples before it starts, which takes a second."""
    return replace(get_study(name), check=lambda config: None)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_says_what_it_trains(name: str) -> None:
    study = get_study(name)
    smoke, quick = (study.trainings(study.preset(name)) for name in ("smoke", "quick"))
    assert all(training.task.d_vocab <= training.model.d_vocab for training in smoke)
    assert _work(smoke) < _work(quick) / 10


def _work(trainings: Any) -> float:
    return sum(training.config.steps * training.times * training.memory_bytes for training in trainings)


def test_more_than_a_day(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Refused with the estimate, unless that was agreed to, and not asked again of a run that was begun."""
    out = tmp_path / "out"
    line = ["run", "task-clusters", "--preset", "smoke", "--out", str(out), "--workers", "1"]
    assert main([*line, "--training.steps", str(10**8)]) == 2
    (sentence,) = [text for text in capfd.readouterr().err.splitlines() if text.startswith("mechclust: ")]
    assert "more than a day" in sentence
    assert "--yes" in sentence
    assert not out.exists()
    trainings = get_study("task-clusters").trainings(configure(get_study("task-clusters").preset("smoke"), **LONG))
    check_cost(trainings, "cpu", 1, yes=True)
    with pytest.raises(InputError, match="more than a day"):
        check_cost(trainings, "cpu", 1, yes=False)


def test_more_than_a_day_of_seeds_that_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for the added seeds, and for all of a run whose folder has its settings and nothing measured."""
    study = unchecked("task-clusters")
    long, longer = (configure(study.preset("smoke"), seeds=seeds, **LONG) for seeds in ((0,), (0, 1, 2)))
    with pytest.raises(InputError, match="more than a day"):
        run_study(study, long, tmp_path, workers=1, yes=False)
    open_folder(tmp_path, study.name, settings_to_json(long))
    with pytest.raises(InputError, match="more than a day"):
        run_study(study, long, tmp_path, workers=1, yes=False)
    monkeypatch.setattr("mechclust.studies.study.map_jobs", _stopped)
    for begun in ("models", "results"):
        (tmp_path / begun).mkdir()
        with pytest.raises(KeyboardInterrupt):  # it goes on
            run_study(study, long, tmp_path, workers=1, yes=False)
        (tmp_path / begun).rmdir()
    (tmp_path / "results").mkdir()
    with pytest.raises(InputError, match="more than a day"):
        run_study(study, longer, tmp_path, workers=1, yes=False)
    assert read_json(tmp_path / "config.json")["config"]["seeds"] == [0]


def test_the_cost_is_that_of_what_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks, and how many are trained at once: no more than there are jobs."""
    costs = []

    def kept(trainings: Any, device: str, at_once: int, **_: Any) -> None:
        costs.append((_times(trainings), at_once))

    monkeypatch.setattr("mechclust.studies.study.check_cost", kept)
    monkeypatch.setattr("mechclust.studies.study.map_jobs", _stopped)
    study = unchecked("task-clusters")
    for seeds, workers in (((0,), 1), ((0, 1, 2), 99), ((0, 1, 2, 3), 2)):  # of three arms
        config = configure(study.preset("smoke"), seeds=seeds)
        with pytest.raises(KeyboardInterrupt):
            run_study(study, config, tmp_path, workers=workers)
        (tmp_path / "results").mkdir(exist_ok=True)
    assert costs == [(3, 1), (6, 6), (3, 2)]


def _stopped(*args: Any, **settings: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("wrong", [{"workers": -1}, {"timeout": 0}, {"engine": "dask"}])
def test_what_no_job_can_run_with(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """Refused before anything is estimated or written."""
    study = get_study("task-clusters")
    with pytest.raises(InputError, match=r"workers is -1|timeout of a job is 0|no engine 'dask'"):
        run_study(study, configure(study.preset("smoke"), **LONG), tmp_path / "out", yes=False, **wrong)
    assert not (tmp_path / "out").exists()


def test_networks_that_do_not_fit_in_memory(tmp_path: Path) -> None:
    study = get_study("mossa")
    config = configure(study.preset("smoke"), d_model=2**20)
    with pytest.raises(InputError, match=r"training takes about \d[\d.]* TiB of memory \(1 at a time\), but cpu has"):
        run_study(study, config, tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()


def test_memory_is_that_of_weights_and_batch() -> None:
    task = get_study("mossa").preset("smoke").suite
    model = get_study("mossa").trainings(get_study("mossa").preset("smoke"))[0].model
    small = Training(model, task, TrainConfig(batch_size=1)).memory_bytes
    assert Training(model, task, TrainConfig(batch_size=1001)).memory_bytes > 100 * small


@pytest.mark.parametrize("name", sorted({*STUDIES} - {"heads-in-models"}))
def test_a_probe_that_lacks_a_label(name: str, tmp_path: Path) -> None:
    """Refused before anything is trained, as by ``mechclust history``."""
    study = unchecked(name)
    probe = "NeighbourPurity" if name in WITHOUT_TASKS else "ClusteringHead"
    with pytest.raises(InputError, match=f"^--probes {probe} does not fit these examples: "):
        run_study(study, study.preset("smoke"), tmp_path / "out", workers=1, probes=["NDims", probe])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("probe", ["ClusteringHead", "TaskClusterARI"])
def test_a_probe_that_fits_some_networks_is_taken(probe: str, tmp_path: Path) -> None:
    """Networks that add have sums, those that follow instructions have tasks."""
    study = get_study("heads-in-models")
    try_further(study.trained_models(study.preset("smoke"), tmp_path), chosen_probes([probe]))


def test_an_added_seed_trains_only_what_it_adds():
    """Most networks of the paper preset do not depend on the run's seeds."""
    study = get_study("clustering-heads")
    config = study.preset("paper")
    more = configure(config, seeds=(*config.seeds, 99))
    held, wanted = study.trainings(config), study.trainings(more)
    added = trainings_without(wanted, held)
    assert sum(training.times for training in added) == _times(wanted) - _times(held)
    assert 0 < _times(added) < 5 < _times(held)
    assert trainings_without(held, held) == []


def _times(trainings: Any) -> int:
    return sum(training.times for training in trainings)
