"""Result files of every study that change places, between arms, seeds, steps, splits or measures: all are noticed.

The places are those of the records in ``examples/results``. What stands there is one number, which says where it
belongs, and nothing else of it is read.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mechclust.report.archive import pack_folder
from mechclust.report.measured_files import list_measured_files
from mechclust.studies import list_studies, open_run, record_run, report_run, run_study
from mechclust.studies.record import judge_again
from probes import ProbeResult
from probes.store.files import read_json, write_json
from tasks import InputError
from tasks.settings import settings_to_json

RECORDS = Path(__file__).parents[3] / "examples" / "results"
STUDIES = [registered.name for registered in list_studies()]


@pytest.fixture(params=[(name, finished) for name in STUDIES for finished in (True, False)], ids=str)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, bool]:
    """A run's folder, and whether it was finished: before that, no list says what was measured."""
    name, finished = request.param
    record = RECORDS / f"{name}-paper"
    out = tmp_path / "run"
    out.mkdir()
    config = settings_to_json(open_run(record)[1])  # with the defaults of settings that are newer than the record
    write_json(out / "config.json", {**read_json(record / "config.json"), "config": config})
    with tarfile.open(record / "results.tar.xz") as archive:
        places = [Path(member.name) for member in archive if member.name.endswith(".safetensors")]
    for i, place in enumerate(_spread(places)):
        ProbeResult("Demo", {"number": torch.tensor(i)}, {"number": ()}, {}).save(out / place)
    if finished:
        list_measured_files(out)
    return out, finished


def _spread(places: list[Path]) -> list[Path]:
    """Return a few places of each folder: writing thousands of files takes long."""
    by_folder: dict[Path, list[Path]] = {}
    for place in sorted(places):
        by_folder.setdefault(place.parent, []).append(place)
    few = [places[:2] + places[-2:] for places in by_folder.values()][:4]
    return sorted({place for places in few for place in places})


@pytest.mark.slow
def test_every_exchange(run: tuple[Path, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Running, reporting, recording and judging a record name a file that is not in its place, as first of all."""
    out, finished = run
    with pytest.raises(InputError) as refused:  # a number is not what a study measures
        _judged(out)
    assert "is not what this run measured" not in str(refused.value)
    monkeypatch.setenv("MECHCLUST_VERIFY", "0")  # the weaker check
    study, config = open_run(out)
    study = replace(study, check=_accept)
    files = sorted((out / "results").rglob("*.safetensors"))
    assert len(files) > 3
    for one, other in _pairs(files):
        _exchange(one, other)
        with pytest.raises(InputError, match="which is not what this run measured") as refused:
            run_study(study, config, out, workers=1)
        assert repr(str(one)) in str(refused.value) or repr(str(other)) in str(refused.value)
        for read in (report_run, _recorded) if finished else ():
            with pytest.raises(InputError, match="which is not what this run measured"):
                read(study, config, out)
        with pytest.raises(InputError, match=r"which is not what this run measured; record the run again"):
            _judged(out)
        _exchange(one, other)


def _pairs(files: list[Path]) -> Iterator[tuple[Path, Path]]:
    """Yield an exchange within a folder, and one between folders, under one name if there are such files."""
    first = files[0]
    yield first, files[1]
    others = [file for file in files if file.parent != first.parent] or files[2:]
    twins = [file for file in others if file.name == first.name]
    yield first, (twins or others)[0]


def _exchange(one: Path, other: Path) -> None:
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def _accept(config: Any) -> None:
    """Accept a model that is not on this machine."""


def _recorded(study: Any, config: Any, out: Path) -> None:
    record_run(out, out.parent / "record")


def _judged(out: Path) -> None:
    record = out.parent / "judged"
    record.mkdir(exist_ok=True)
    (record / "config.json").write_bytes((out / "config.json").read_bytes())
    (record / "results.tar.xz").write_bytes(pack_folder(out / "results"))
    judge_again(record)
