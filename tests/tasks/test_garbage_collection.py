"""Garbage collection pauses while packages are imported, and only then (see test_architecture, too)."""

from __future__ import annotations

import gc

import pytest

from tasks.garbage_collection import paused_collection


@pytest.fixture(autouse=True)
def nothing_frozen() -> None:
    gc.unfreeze()


def interrupted_import() -> None:
    with paused_collection():
        assert not gc.isenabled()
        raise KeyboardInterrupt


def test_it_goes_on_after_an_error() -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted_import()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with paused_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_the_user_froze_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with paused_collection():
        pass
    assert gc.get_freeze_count() >= frozen * 0.9  # some of it is freed by reference counting
    gc.unfreeze()
