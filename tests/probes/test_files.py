"""Files that are whole or not there, with checksums, and what killed processes leave behind."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from probes.store.files import DamagedError, read_json, sync_folder, write_atomic, write_json
from probes.store.safetensors_files import is_whole_file, read_safetensors, write_safetensors
from probes.store.temporary_files import LOCK, _host_part, is_temporary, remove_leftovers, temporary_file_of
from tasks import InputError
from tests.faults.process import python, run, sentence

HEADER = {"format": "mechclust-demo-1", "text": 'ü "checksum":"' + "0" * 32}
TENSORS = {
    "flags": torch.tensor([True, False, True]),
    "doubles": torch.arange(6.0, dtype=torch.float64).reshape(2, 3).T,
    "half": torch.tensor([1.5, float("nan")], dtype=torch.bfloat16),
    "one": torch.tensor(3),
    "none": torch.zeros(0, 4),
    "part": torch.arange(10)[2:5],
}


def flip(path: Path, place: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


def refusal(function, *args) -> str:
    with pytest.raises(InputError) as refused:
        function(*args)
    assert "\n" not in str(refused.value)
    return str(refused.value)


class TestSafetensors:
    @pytest.fixture
    def path(self, tmp_path):
        write_safetensors(tmp_path / "deep" / "x.safetensors", TENSORS, HEADER)
        return tmp_path / "deep" / "x.safetensors"

    def test_round_trip(self, path):
        found, header = read_safetensors(path)
        assert header == HEADER
        assert found.keys() == TENSORS.keys()
        for name, x in TENSORS.items():
            assert found[name].dtype == x.dtype
            assert torch.equal(found[name].nan_to_num(), x.nan_to_num())
        assert load_file(path).keys() == TENSORS.keys()  # other programs read it
        assert [file.name for file in path.parent.iterdir()] == [path.name]

    def test_tensors_of_every_layout(self, path):
        """One row of a column has a stride that no view as bytes may have, though it counts as contiguous."""
        x = torch.arange(6.0).reshape(3, 2)
        tensors = {"row": x[:1, 0], "column": x[:, 1], "transposed": x.T, "none": torch.zeros(0, 4)}
        write_safetensors(path, tensors, {"format": "mechclust-demo-1"})
        found, _ = read_safetensors(path)
        assert all(torch.equal(found[name], value) for name, value in tensors.items())

    def test_the_same_tensors_are_the_same_bytes(self, path):
        digest = write_safetensors(path.with_name("again"), TENSORS, HEADER)
        assert path.read_bytes() == path.with_name("again").read_bytes()
        assert digest in path.read_bytes()[:600].decode(errors="replace")

    def test_every_flipped_byte_is_found(self, path):
        whole = path.read_bytes()
        assert is_whole_file(path)
        for place in range(len(whole)):
            flip(path, place, place % 8)
            assert str(path) in refusal(read_safetensors, path)
            assert not is_whole_file(path)
            path.write_bytes(whole)
        assert is_whole_file(path)

    def test_a_checksum_of_other_letters_where_no_format_is_named(self, path):
        write_safetensors(path, TENSORS, {})
        place = path.read_bytes().index(b'"checksum":"') + len('"checksum":"')
        for digit in range(32):
            flip(path, place + digit, 6)
            assert str(path) in refusal(read_safetensors, path)
            flip(path, place + digit, 6)
        assert is_whole_file(path)

    def test_the_sentence(self, path):
        flip(path, -1)
        with pytest.raises(DamagedError) as refused:
            read_safetensors(path)
        assert str(refused.value) == (
            f"{str(path)!r} is damaged (its checksum does not match); delete it and run the same command again to "
            "recreate it"
        )

    def test_one_of_ours_without_a_checksum(self, path):
        save_file({"x": torch.zeros(2)}, path, HEADER)
        assert not is_whole_file(path)
        assert refusal(read_safetensors, path) == (
            f"{str(path)!r} has no checksum (it is damaged, or from another version); delete it and run the same "
            "command again to recreate it"
        )
        save_file({"x": torch.zeros(2)}, path, {"format": "pt"})  # others' need none
        assert read_safetensors(path)[1] == {"format": "pt"}

    @pytest.mark.parametrize("length", [0, 7, 8, 100, -1])
    def test_cut_short(self, path, length):
        os.truncate(path, length % path.stat().st_size)
        assert "is truncated or not a safetensors file" in refusal(read_safetensors, path)
        assert refusal(read_safetensors, path).endswith(
            "; give another file or, if mechclust wrote this one, delete it and run the same command again to "
            "recreate it"
        )
        assert not is_whole_file(path)

    def test_missing(self, tmp_path):
        assert not is_whole_file(tmp_path / "none")
        assert refusal(read_safetensors, tmp_path / "none").endswith("; give the path of a safetensors file")

    def test_not_verified_when_told_so(self, path, monkeypatch):
        flip(path, -1)
        monkeypatch.setenv("MECHCLUST_VERIFY", "0")
        assert read_safetensors(path)[1] == HEADER
        assert is_whole_file(path)
        monkeypatch.setenv("MECHCLUST_VERIFY", "1")
        assert not is_whole_file(path)


class TestJson:
    VALUE = {"a": [1, 2.5, float("inf")], "ü": {"b": None, "c": True}}

    def test_round_trip(self, tmp_path):
        write_json(tmp_path / "x.json", self.VALUE)
        assert read_json(tmp_path / "x.json") == {**self.VALUE, "a": [1, 2.5, None]}
        write_json(tmp_path / "x.json", [self.VALUE, 3])
        assert read_json(tmp_path / "x.json")[1] == 3
        assert "checksum" in json.loads((tmp_path / "x.json").read_text())[0]

    @pytest.mark.parametrize("value", [VALUE, [VALUE, VALUE]])
    def test_every_flipped_byte_is_found(self, tmp_path, value):
        path = tmp_path / "x.json"
        write_json(path, value)
        whole = path.read_bytes()
        assert is_whole_file(path)
        for place in range(len(whole)):
            flip(path, place, place % 5)  # bit 5 makes 2.5e-5 of 2.5E-5
            assert repr(str(path)) in refusal(read_json, path)
            assert not is_whole_file(path)
            path.write_bytes(whole)

    @pytest.mark.parametrize("change", [lambda x: x[1:], lambda x: x[:-1], lambda x: x[::-1], lambda x: [*x, x[0]]])
    def test_one_of_a_list_removed_moved_or_added(self, tmp_path, change):
        path = tmp_path / "x.json"
        write_json(path, [{"a": 1}, {"a": 2}, {"a": 3}])
        path.write_text(json.dumps(change(json.loads(path.read_text()))))
        assert "checksum does not match" in refusal(read_json, path)
        assert "checksum does not match" in refusal(lambda: read_json(path, handwritten=True))

    @pytest.mark.parametrize("value", [{"checksum": "mine"}, [1, {"checksum": None}]])
    def test_a_checksum_of_the_users_is_refused(self, tmp_path, value):
        path = tmp_path / "x.json"
        assert refusal(lambda: write_json(path, value)) == (
            f"{str(path)!r} cannot have a field 'checksum', which the file itself uses; rename it"
        )
        assert not path.exists()
        write_json(path, {"inner": value})
        assert read_json(path) == {"inner": value}

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("[" * 100_000, "it is not JSON"),
            ('{"a": ' * 100_000, "it is not JSON"),
            ('{"a": ' + "9" * 4301 + "}", "it is not JSON"),
            (b'{"a": "\xff"}', "it is not JSON"),
            ("", "it is not JSON"),
            ('{"a": 1}', "has no checksum"),
            ('{"a": 1, "checksum": "0"}', "its checksum does not match"),
            ('{"a": 1, "checksum": []}', "its checksum does not match"),
        ],
    )
    def test_what_is_not_ours(self, tmp_path, text, why):
        (tmp_path / "x.json").write_bytes(text if isinstance(text, bytes) else text.encode())
        assert why in refusal(read_json, tmp_path / "x.json")
        assert not is_whole_file(tmp_path / "x.json")

    def test_handwritten(self, tmp_path, monkeypatch):
        (tmp_path / "x.json").write_text('[{"a": 1}]')
        assert read_json(tmp_path / "x.json", handwritten=True) == [{"a": 1}]
        (tmp_path / "x.json").write_text('[{"a": 1, "checksum": "0"}]')
        assert "checksum does not match" in refusal(lambda: read_json(tmp_path / "x.json", handwritten=True))
        monkeypatch.setenv("MECHCLUST_VERIFY", "0")
        assert read_json(tmp_path / "x.json") == [{"a": 1}]

    def test_missing(self, tmp_path):
        assert refusal(read_json, tmp_path / "x.json") == f"no file {str(tmp_path / 'x.json')!r}"


class TestWriting:
    @pytest.mark.parametrize(
        ("number", "way"),
        [
            (errno.ENOSPC, "free space there and run the same command again (what was already written is kept)"),
            (errno.EDQUOT, "free space there and run the same command again (what was already written is kept)"),
            (errno.EROFS, "give another folder, or make this one writable"),
        ],
    )
    def test_what_cannot_be_written(self, tmp_path, monkeypatch, number, way):
        path = tmp_path / "x.json"
        write_json(path, {"old": 1})

        def full(place):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", full)
        for write in (
            lambda: write_atomic(path, b"new"),
            lambda: write_json(path, {}),
            lambda: write_safetensors(path, TENSORS, HEADER),
        ):
            assert refusal(write) == f"cannot write {str(path)!r} ({os.strerror(number)}); {way}"
        assert read_json(path) == {"old": 1}
        assert list(tmp_path.iterdir()) == [path]

    def test_a_real_limit(self, tmp_path):
        """The kernel refuses the write itself, in the middle of the data."""

        def work() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
            write_safetensors(tmp_path / "x", {"x": torch.zeros(9999)}, {"format": "mechclust-demo-1"})

        assert sentence(run(python(work), tmp_path)) == (
            f"cannot write {str(tmp_path / 'x')!r} (File too large); give another folder, or make this one writable"
        )
        assert list(tmp_path.iterdir()) == []

    def test_a_name_that_is_too_long(self, tmp_path):
        assert refusal(write_atomic, tmp_path / ("x" * 300), b"").endswith("(File name too long); give a shorter name")

    def test_the_folder_is_synced(self, tmp_path, monkeypatch):
        synced, fsync = [], os.fsync

        def watched(place):
            synced.append(os.readlink(f"/proc/self/fd/{place}"))
            fsync(place)

        monkeypatch.setattr(os, "fsync", watched)
        write_atomic(tmp_path / "x", b"x")
        assert synced == [str(temporary_file_of(tmp_path / "x")), str(tmp_path)]

    def test_a_file_system_that_syncs_no_folders(self, tmp_path, monkeypatch):
        def unable(place):
            raise OSError(errno.EINVAL, "Invalid argument")

        monkeypatch.setattr(os, "fsync", unable)
        sync_folder(tmp_path)
        sync_folder(tmp_path / "none")


class TestLeftovers:
    @pytest.fixture
    def dead(self):
        process = subprocess.Popen([sys.executable, "-c", ""])
        process.wait()
        return process.pid

    def named(self, path: Path, host: str | None = None, process: int | None = None) -> Path:
        """What another process, or another host, would have made."""
        *name, own, number, _ = temporary_file_of(path).name.split(".")
        return path.with_name(".".join([*name, host or own, str(process or number), "tmp"]))

    def test_those_of_the_dead_are_removed(self, tmp_path, dead):
        gone = [self.named(tmp_path / "a", process=dead), self.named(tmp_path / "deep" / "b", process=dead)]
        gone[1].parent.mkdir()
        for path in gone:
            path.touch()
        remove_leftovers(tmp_path)
        assert [path.exists() for path in gone] == [False, True]
        remove_leftovers(tmp_path, recursive=True)
        assert [path.exists() for path in gone] == [False, False]
        remove_leftovers(tmp_path / "none", recursive=True)

    def test_folders_too(self, tmp_path, dead):
        place = self.named(tmp_path / "shard-00001", process=dead)
        (place / "in").mkdir(parents=True)
        (place / "in" / "x").write_bytes(b"half")
        remove_leftovers(tmp_path, recursive=True)
        assert list(tmp_path.iterdir()) == []

    def test_those_of_the_living_and_others_stay(self, tmp_path):
        kept = [
            self.named(tmp_path / "a", process=os.getppid()),
            tmp_path / ".notes.tmp",
            tmp_path / "results.json",
            tmp_path / LOCK,
        ]
        for path in kept:
            path.touch()
        remove_leftovers(tmp_path, recursive=True)
        assert all(path.exists() for path in kept)

    def test_those_of_other_machines_stay_for_a_day(self, tmp_path):
        new, old = (self.named(tmp_path / name, host="node-7") for name in "ab")
        for path, days in ((new, 0.9), (old, 1.1)):
            path.touch()
            os.utime(path, (time.time() - 86400 * days,) * 2)
        remove_leftovers(tmp_path)
        assert [new.exists(), old.exists()] == [True, False]

    def test_hosts_with_long_names_stay_apart(self):
        pods = [f"training-job-of-a-rather-long-name-worker-{i}" for i in range(200)]
        assert len(set(map(_host_part, pods))) == 200
        assert all(re.fullmatch("[A-Za-z0-9-]{1,32}", _host_part(name)) for name in [*pods, "", "a.b", "Ü" * 70])

    def test_what_is_temporary(self, tmp_path):
        assert is_temporary(temporary_file_of(tmp_path / "x.json"))
        assert is_temporary(tmp_path / LOCK)
        assert not is_temporary(tmp_path / "x.json")
        assert not is_temporary(tmp_path / ".x.tmp")

    def test_killed_while_writing(self, tmp_path, monkeypatch):
        """A process that is killed in the middle leaves a file, which the next start removes."""

        def work() -> None:
            monkeypatch.setattr("os.fsync", lambda place: os.kill(os.getpid(), signal.SIGKILL))  # in this process alone
            write_atomic(tmp_path / "x", b"half")

        assert run(python(work), tmp_path).code == -signal.SIGKILL
        assert [is_temporary(path) for path in tmp_path.iterdir()] == [True]
        remove_leftovers(tmp_path)
        assert list(tmp_path.iterdir()) == []
