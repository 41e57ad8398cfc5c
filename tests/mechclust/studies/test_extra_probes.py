"""Probes of the user's choice on a study's models."""

import os
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace

import pytest
import torch

from mechclust.models import ModelConfig, build_model
from mechclust.report import Analysis
from mechclust.report.probe_trial import MAX_EXAMPLES, try_probes
from mechclust.studies import Study, get_study, report_run, run_study
from mechclust.studies.extra_probes import TrainedModel
from probes import NDims, Probe, RegisteredProbe, Sum, last_token, load_result, residual, run
from tasks import Batch, InputError

CONFIG = ModelConfig(d_vocab=9, n_ctx=4, n_layers=1, d_model=8, n_heads=2)


@dataclass(frozen=True)
class Settings:
    seeds: tuple[int, ...] = (0,)


SETTINGS = Settings()
BATCH = Batch(torch.arange(24).reshape(6, 4) % 9)


@cache
def model():
    """The model of all tests, which only measure it."""
    return build_model(CONFIG)


class Counted(Probe):
    """Counts examples."""

    count = Sum(torch.int64)

    def __init__(self, at=residual(), readout=last_token()):
        self.at, self.readout = at, readout

    def update(self, activations, batch):
        self.count.add("n", len(batch))

    def compute(self):
        return self.result({"n": self.count["n"]}, {"n": ()})


class Twice(Counted):
    def update(self, activations, batch):
        super().update(activations, batch)
        super().update(activations, batch)


class GivesNothing(Counted):
    def compute(self):
        return None


class Fails(Counted):
    def update(self, activations, batch):
        raise RuntimeError("no <light>")


@pytest.fixture
def study():
    """A study without a training run, of six models."""

    def trained_models(config, out):
        return [TrainedModel(f"model {i}/a", lambda: (model(), [BATCH])) for i in range(6)]

    return Study(
        name="task-clusters",
        title="A study",
        source="nowhere",
        presets={"only": SETTINGS},
        jobs=lambda config: ["nothing to do"],
        run_job=lambda config, job, out: None,
        load=lambda config, out: None,
        findings=lambda config, results: [],
        report=lambda config, results: Analysis(notes=["its own"]),
        trained_models=trained_models,
    )


@pytest.fixture
def registered(monkeypatch):
    """What the registry knows besides our own."""
    known = {}

    def put(name, make, package="pack 1.0"):
        known[name] = RegisteredProbe(name, package, make)
        listed = [RegisteredProbe("NDims", "mechclust", NDims), *known.values()]
        monkeypatch.setattr("probes.engine.registry.list_probes", lambda: listed)

    return put


def test_they_are_measured_and_in_the_report(study, tmp_path):
    analysis = run_study(study, SETTINGS, tmp_path, workers=1, probes=["NDims"])
    files = sorted((tmp_path / "results" / "probes" / "NDims").iterdir())
    assert [file.name for file in files] == [f"model {i}%2Fa.safetensors" for i in range(6)]
    found, expected = load_result(files[0]), run(model(), BATCH, NDims())
    assert torch.equal(found["n_dims"], expected["n_dims"])
    assert found.metadata["package"].startswith("mechclust ")
    assert list(analysis.views) == ["Probe: NDims"]
    page = (tmp_path / "report.html").read_text()
    assert "<h2>Probe: NDims</h2>" in page
    assert [f"<h3>model {i}/a</h3>" in page for i in range(6)] == [True] * 4 + [False] * 2
    assert "and 2 more models in results/probes/NDims" in page
    (tmp_path / "report.html").unlink()
    report_run(study, SETTINGS, tmp_path)  # `mechclust report` keeps them
    assert "<h2>Probe: NDims</h2>" in (tmp_path / "report.html").read_text()


def test_a_probe_under_development_is_measured_anew(study, registered, tmp_path):
    registered("counted", Counted)
    run_study(study, SETTINGS, tmp_path, workers=1, probes=["counted"])
    path = tmp_path / "results" / "probes" / "counted" / "model 0%2Fa.safetensors"
    assert int(load_result(path)["n"]) == 6
    registered("counted", Twice)  # the same name and version
    run_study(study, SETTINGS, tmp_path, workers=1, probes=["counted"])
    assert int(load_result(path)["n"]) == 12


def test_one_that_fails_is_told_and_stops_nothing(study, registered, tmp_path):
    registered("fails", Fails)
    registered("counted", Counted)
    analysis = run_study(study, SETTINGS, tmp_path, workers=1, probes=["fails", "counted", "counted"])
    assert list(analysis.views) == ["Probe: counted"]
    assert analysis.notes[:2] == ["its own", "fails could not measure model 0/a: no <light>"]
    report_run(study, SETTINGS, tmp_path)  # nor does the report written anew forget it
    page = (tmp_path / "report.html").read_text()
    assert "fails could not measure model 5/a: no &lt;light&gt;" in page


def test_one_that_gives_no_result_or_leaves_a_damaged_file_stops_nothing(study, registered, tmp_path):
    registered("nothing", GivesNothing)
    analysis = run_study(study, SETTINGS, tmp_path, workers=1, probes=["nothing", "NDims"])
    assert len([note for note in analysis.notes if note.startswith("nothing could not measure model ")]) == 6
    (tmp_path / "results" / "probes" / "NDims" / "model 0%2Fa.safetensors").write_text("half")
    view = report_run(study, SETTINGS, tmp_path).views["Probe: NDims"]
    assert "is truncated or not a safetensors file" in view
    assert view.count("<table") > 1
    registered("nothing", Counted)
    assert run_study(study, SETTINGS, tmp_path, workers=1, probes=["nothing"]).notes == ["its own"]


class NeedsALabel(Counted):
    def update(self, activations, batch):
        batch.label("answer")
        super().update(activations, batch)


def on_batches(study, **batches):
    """The study with a model for each of these batches."""
    models = [TrainedModel.from_parts(name, model, lambda b=b: [b]) for name, b in batches.items()]
    return replace(study, trained_models=lambda config, out: models)


def test_one_that_fits_a_single_model_is_measured_there(study, registered, tmp_path):
    registered("labelled", NeedsALabel)
    labels = torch.zeros(6, dtype=torch.long)
    labelled, other = (replace(BATCH, labels={name: labels}) for name in ("answer", "other"))
    some = on_batches(study, a=BATCH, b=labelled)
    analysis = run_study(some, SETTINGS, tmp_path / "some", workers=1, probes=["labelled"])
    assert list(analysis.views) == ["Probe: labelled"]
    assert [note.partition(":")[0] for note in analysis.notes] == ["its own", "labelled could not measure a"]
    none = on_batches(study, a=BATCH, b=other)
    with pytest.raises(InputError, match=r"^--probes labelled does not fit these examples: .* \(it has no labels\)"):
        run_study(none, SETTINGS, tmp_path / "none", workers=1, probes=["labelled"])
    assert not (tmp_path / "none").exists()


def test_one_that_needs_arguments_is_refused_before_anything_is_written(study, registered, tmp_path):
    registered("needs", lambda n: Counted())
    with pytest.raises(InputError, match="needs"):
        run_study(study, SETTINGS, tmp_path / "out", workers=1, probes=["needs"])
    assert not (tmp_path / "out").exists()


def test_a_lost_process_is_noted_with_every_probe_and_keeps_what_was_measured(study, registered, tmp_path, monkeypatch):
    registered("counted", Counted)
    run_study(study, SETTINGS, tmp_path, workers=1, probes=["counted"])
    lost = [SimpleNamespace(position=1, error=TimeoutError()), SimpleNamespace(position=2, error=None)]
    monkeypatch.setattr("mechclust.studies.extra_probes.imap_jobs", lambda *_, **__: (outcome for outcome in lost))
    notes = run_study(study, SETTINGS, tmp_path, workers=1, probes=["counted", "NDims"]).notes
    assert notes == [
        "its own",
        "NDims could not measure model 1/a: TimeoutError",
        "counted may hold an earlier measurement of model 1/a: TimeoutError",
    ]


def test_workers_and_timeout_hold_for_jobs_and_for_probes(study, tmp_path, monkeypatch):
    told = []

    def jobs(run, jobs, workers, **on):
        told.append({"workers": workers, **on})

    def measurements(measure, positions, name, **on):
        told.append(on)
        return (outcome for outcome in ())

    monkeypatch.setattr("mechclust.studies.study.map_jobs", jobs)
    monkeypatch.setattr("mechclust.studies.extra_probes.imap_jobs", measurements)
    run_study(study, SETTINGS, tmp_path, workers=2, timeout=9, probes=["NDims"])
    assert told == [{"workers": 2, "engine": "local", "timeout": 9, "folder": tmp_path}] * 2


def test_a_trial_reads_some_of_many_examples_of_any_length():
    sizes = ((MAX_EXAMPLES, 2, 0), (1000, 5, MAX_EXAMPLES))
    batches = [Batch(torch.zeros(n, length).long(), index=torch.arange(n) + first) for n, length, first in sizes]
    found = try_probes({"counted": Counted()}, batches, "examples", kind="--probes")
    assert int(found["counted"]["n"]) == MAX_EXAMPLES // 2 + 500


def test_an_unknown_one_is_refused_before_anything_is_written(study, tmp_path):
    with pytest.raises(InputError, match=r"^no probe 'NDim' .*; did you mean 'NDims'\?$"):
        run_study(study, SETTINGS, tmp_path / "out", workers=1, probes=["NDims", "NDim"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name",
    [
        *("task-clusters", "cluster-factors", "topic-structure", "clustering-heads", "mossa", "planted-layers"),
        *("heads-in-models", "induction-heads"),
    ],
)
def test_every_study_has_trained_models(name, tmp_path):
    study = get_study(name)
    for config in study.presets.values():
        if getattr(config, "device", "cpu") != "cpu" and not torch.cuda.is_available():
            config = replace(config, device="cpu")
        found = list(study.trained_models(config, tmp_path))
        assert found
        assert len({trained.name for trained in found}) == len(found)
    assert os.listdir(tmp_path) == []
