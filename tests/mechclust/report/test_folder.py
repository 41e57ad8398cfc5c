"""The folder of a run or a report: whose it is, and what killed processes left in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mechclust.commands.folder import own_folder
from mechclust.report.folder import check_folder, check_writable, claim_folder, open_folder
from mechclust.report.run_record import read_run_record
from probes.store.files import write_json
from probes.store.locks import locked_folder
from probes.store.temporary_files import temporary_file_of
from tasks import InputError

WAY = "give another folder with --out"


@pytest.fixture
def leftover(tmp_path: Path) -> Path:
    """What a dead process was making deep in a run's folder."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    *name, _, end = temporary_file_of(tmp_path / "figures" / "seed0" / "ari.safetensors").name.split(".")
    path = tmp_path / "figures" / "seed0" / ".".join([*name, str(process.pid), end])
    path.parent.mkdir(parents=True)
    path.write_bytes(b"half")
    return path


def test_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^cannot write to .*File name too long.*; choose another folder with --out$"):
        check_writable(tmp_path / ("a" * 300))


def test_a_run_begins_without_leftovers(tmp_path: Path, leftover: Path) -> None:
    open_folder(tmp_path, "toy", {"seed": 1})
    assert not leftover.exists()


def test_a_command_begins_without_leftovers_when_the_folder_is_its_own(tmp_path: Path, leftover: Path) -> None:
    check_folder(tmp_path, "compare")
    with locked_folder(tmp_path), pytest.raises(InputError, match="is in use by another process"):
        own_folder(tmp_path, "compare").__enter__()
    assert leftover.exists()
    with own_folder(tmp_path, "compare"):
        assert not leftover.exists()


def test_a_changed_record_of_a_run(tmp_path: Path) -> None:
    open_folder(tmp_path, "toy", {"seed": 1})
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"seed": 1', '"seed": 2'))
    message = f"{str(path)!r} was changed or is damaged (its checksum does not match); "
    with pytest.raises(InputError) as refused:
        read_run_record(tmp_path, WAY)
    assert str(refused.value) == message + WAY
    with pytest.raises(InputError) as refused:
        open_folder(tmp_path, "toy", {"seed": 2})
    assert str(refused.value) == message + "choose another folder with --out"
    with pytest.raises(InputError) as refused:
        check_folder(tmp_path, "compare")
    assert str(refused.value) == message + WAY


@pytest.mark.parametrize("lacking", ["study", "config", "machine"])
def test_a_record_that_lacks_a_part(tmp_path: Path, lacking: str) -> None:
    open_folder(tmp_path, "toy", {"seed": 1})
    record = read_run_record(tmp_path, WAY)
    del record[lacking]
    write_json(tmp_path / "config.json", record)
    with pytest.raises(InputError) as refused:
        read_run_record(tmp_path, WAY)
    assert str(refused.value) == f"{str(tmp_path)!r} holds no run (no readable config.json); {WAY}"


@pytest.mark.parametrize("text", ["[" * 100_000, '{"study": ' + "9" * 4301 + "}", '{"study": "toy"}', "[]"])
def test_records_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match="holds no run"):
        read_run_record(tmp_path, WAY)
    (tmp_path / "mechclust.json").write_text(text)
    with pytest.raises(InputError) as refused:
        check_folder(tmp_path, "compare")
    assert str(refused.value) == (
        f"{str(tmp_path / 'mechclust.json')!r} is damaged (it is not what was written); delete it, or {WAY}"
    )


def test_a_changed_record_of_a_report(tmp_path: Path) -> None:
    claim_folder(tmp_path, "compare")
    path = tmp_path / "mechclust.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "command": "topics"}))
    with pytest.raises(InputError) as refused:
        check_folder(tmp_path, "topics")
    assert str(refused.value) == f"{str(path)!r} is damaged (its checksum does not match); delete it, or {WAY}"


@pytest.mark.parametrize("left", ["models", "results"])
def test_a_run_without_its_settings_is_refused(tmp_path, left):
    (tmp_path / left).mkdir()
    said = f"has {left}/ but no config.json, which says which run they are from; put"
    with pytest.raises(InputError, match=said):
        open_folder(tmp_path, "toy", {"seed": 0})
    assert not (tmp_path / "config.json").exists()
