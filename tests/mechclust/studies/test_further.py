"""Probes of the user's choice on a study's models."""

import os
from dataclasses import replace

import pytest
import torch

from mechclust.models import ModelConfig, build_model
from mechclust.studies import Analysis, Study, get_study, run_study, write_report
from mechclust.studies.further import Subject
from probes import NDims, Probe, ProbeResult, RegisteredProbe, Sum, last_token, residual, run
from tasks import Batch, InputError

CONFIG = ModelConfig(d_vocab=9, n_ctx=4, n_layers=1, d_model=8, n_heads=2)
BATCH = Batch(torch.arange(24).reshape(6, 4) % 9)


class Counted(Probe):
    """Counts examples, and how often it was made."""

    made = 0
    count = Sum(torch.int64)

    def __init__(self, at=residual(), readout=last_token()):
        self.at, self.readout = at, readout
        Counted.made += 1

    def update(self, activations, batch):
        self.count.add("n", len(batch))

    def compute(self):
        return self.result({"n": self.count["n"]}, {"n": ()})


class Fails(Counted):
    def update(self, activations, batch):
        raise RuntimeError("no <light>")


@pytest.fixture
def study():
    """A study without a training run, of six models."""

    def subjects(config, out):
        return [Subject(f"model {i}/a", lambda: (build_model(CONFIG), [BATCH])) for i in range(6)]

    return Study(
        name="task-clusters",
        title="A study",
        source="nowhere",
        presets={"only": CONFIG},
        jobs=lambda config: [],
        run_job=lambda config, job, out: None,
        analyse=lambda config, out: Analysis(claims=[], notes=["its own"]),
        subjects=subjects,
    )


@pytest.fixture
def registered(monkeypatch):
    """What the registry knows besides our own."""
    known = {}

    def put(name, make, package="pack 1.0"):
        known[name] = RegisteredProbe(name, package, make)
        listed = [RegisteredProbe("NDims", "mechclust", NDims), *known.values()]
        monkeypatch.setattr("probes.registry.list_probes", lambda: listed)

    return put


def test_they_are_measured_and_in_the_report(study, tmp_path):
    analysis = run_study(study, CONFIG, tmp_path, workers=1, probes=["NDims"])
    files = sorted((tmp_path / "results" / "probes" / "NDims").iterdir())
    assert [file.name for file in files] == [f"model {i}%2Fa.safetensors" for i in range(6)]
    found, expected = ProbeResult.load(files[0]), run(build_model(CONFIG), BATCH, NDims())
    assert torch.equal(found["n_dims"], expected["n_dims"])
    assert found.metadata["package"] == "mechclust"
    assert list(analysis.views) == ["Probe: NDims"]
    page = (tmp_path / "report.html").read_text()
    assert "<h2>Probe: NDims</h2>" in page
    assert "<h3>model 0/a</h3>" in page
    assert "and 2 more models in results/probes/NDims" in page
    (tmp_path / "report.html").unlink()
    write_report(study, CONFIG, tmp_path)  # `mechclust report` keeps them
    assert "<h2>Probe: NDims</h2>" in (tmp_path / "report.html").read_text()


def test_what_was_measured_is_not_measured_again_but_by_another_version(study, registered, tmp_path):
    registered("counted", Counted)
    run_study(study, CONFIG, tmp_path, workers=1, probes=["counted"])
    made = Counted.made
    run_study(study, CONFIG, tmp_path, workers=1, probes=["counted"])
    assert Counted.made == made + 1  # one to see that it can be made
    registered("counted", Counted, package="pack 1.1")
    run_study(study, CONFIG, tmp_path, workers=1, probes=["counted"])
    assert Counted.made == made + 2 + 6
    path = tmp_path / "results" / "probes" / "counted" / "model 0%2Fa.safetensors"
    assert ProbeResult.load(path).metadata["package"] == "pack 1.1"


def test_one_that_fails_is_told_and_stops_nothing(study, registered, tmp_path):
    registered("fails", Fails)
    registered("counted", Counted)
    analysis = run_study(study, CONFIG, tmp_path, workers=1, probes=["fails", "counted", "counted"])
    assert list(analysis.views) == ["Probe: counted"]
    assert analysis.notes[:2] == ["its own", "fails could not measure model 0/a: no <light>"]
    page = (tmp_path / "report.html").read_text()
    assert "fails could not measure model 5/a: no &lt;light&gt;" in page


def test_an_unknown_one_is_refused_before_anything_is_written(study, tmp_path):
    with pytest.raises(InputError, match=r"^no probe 'NDim' .*; did you mean 'NDims'\?$"):
        run_study(study, CONFIG, tmp_path / "out", workers=1, probes=["NDims", "NDim"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["task-clusters", "topic-structure", "clustering-heads", "mossa"])
def test_every_study_has_subjects(name, tmp_path):
    study = get_study(name)
    for config in study.presets.values():
        if getattr(config, "device", "cpu") != "cpu" and not torch.cuda.is_available():
            config = replace(config, device="cpu")
        found = list(study.subjects(config, tmp_path))
        assert found
        assert len({subject.name for subject in found}) == len(found)
    assert os.listdir(tmp_path) == []
