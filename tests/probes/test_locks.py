"""One owner for a folder, with real processes."""

import errno
import os
import time
import warnings
from functools import partial

import pytest

from probes.store.locks import locked_folder, wait_for_locks
from probes.store.temporary_files import LOCK, is_temporary
from tasks import InputError
from tests.faults.process import Process, python


def own(folder, seconds, said):
    with locked_folder(folder):
        os.write(said, b"mine")
        time.sleep(seconds)


@pytest.fixture
def owner(tmp_path):
    """Starts a process that owns ``tmp_path/x``."""
    started = []

    def start(seconds=60.0):
        heard, said = os.pipe()
        started.append(Process(python(partial(own, tmp_path / "x", seconds, said)), tmp_path))
        os.close(said)
        with open(heard, "rb") as told:
            assert told.read(4) == b"mine"
        return started[-1]

    yield start
    for process in started:
        process.kill(group=True)


def test_a_second_owner_is_refused_until_the_first_is_killed(tmp_path, owner):
    first = owner()
    words = "is in use by another process; wait until it is done, or give another folder with --out"
    with (
        pytest.raises(InputError, match=words) as refused,
        locked_folder(tmp_path / "x", way="give another folder with --out"),
    ):
        pytest.fail("there are two owners")
    assert repr(str(tmp_path / "x")) in str(refused.value)
    first.kill(group=False)
    with locked_folder(tmp_path / "x"):
        pass


def test_waits_for_an_owner_that_is_about_to_end(tmp_path, owner):
    owner(0.3)
    with locked_folder(tmp_path / "x", wait=600.0):
        pass


def test_a_worker_waits_for_an_owner_that_is_dead(tmp_path, owner, monkeypatch):
    monkeypatch.setenv("MECHCLUST_LOCK_WAIT", "0")  # so that what is set below goes again
    owner(0.3)
    wait_for_locks(30.0)
    with locked_folder(tmp_path / "x"):
        pass
    monkeypatch.delenv("MECHCLUST_LOCK_WAIT")
    owner()
    with pytest.raises(InputError, match="is in use by another process"), locked_folder(tmp_path / "x"):
        pytest.fail("there are two owners")


def test_released_at_the_end_and_after_an_exception(tmp_path):
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), locked_folder(tmp_path / "x"):
            _ = 1 // 0
    assert [is_temporary(path) for path in (tmp_path / "x").iterdir()] == [True]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write '.*file/x' \(Not a directory\); give another folder"):
        locked_folder(tmp_path / "file" / "x").__enter__()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO, errno.ENOSYS])
def test_a_file_system_without_locks_gives_one_warning(tmp_path, monkeypatch, number):
    def without(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", without)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            with locked_folder(tmp_path):
                assert not (tmp_path / LOCK).exists() or (tmp_path / LOCK).read_bytes() == b""
    told = [str(each.message) for each in caught if each.category is UserWarning]
    assert len(told) == 1
    assert "is on a file system without locks" in told[0]
    assert "let no other process write there" in told[0]
