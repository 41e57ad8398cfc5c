"""Rows that many workers save are those that one saves."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from mechclust.jobs import Outcome, save_rows_sharded, sharded
from probes import RowStore, residual, save_rows
from probes.rows import stored_examples
from probes.rows.row_store import read_store_header
from probes.rows.stored_examples import StoredExamples
from probes.store.locks import locked_folder
from tasks import Batch, InputError
from tests.mechclust.jobs.test_sharded import (
    CONFIG,
    ROOT,
    TOKENS,
    WHOLE,
    function,
    one,
    one_worker_a_shard,
    seeded,
    two,
    words,
)


def saved(folder: Path, batches: Any = None, load: Any = one, **settings: Any) -> RowStore:
    given = {"labels": ["task"], "workers": 1, "shard_rows": 30, **settings}
    return save_rows_sharded(load, batches or WHOLE.split(10), folder, **given)


def same(one: RowStore, other: RowStore) -> bool:
    """Everything that can be asked of a store, to the bit."""
    facts = ("sites", "readout", "labels", "model", "dtype")
    if any(getattr(one, name) != getattr(other, name) for name in facts) or not torch.equal(one.index, other.index):
        return False
    names = [*(f"rows/{site}" for site in one.sites), *(f"labels/{name}" for name in one.labels)]
    taken = [store.take(one.index, names) for store in (one, other)]
    return torch.equal(one.tokens, other.tokens) and all(torch.equal(taken[0][name], taken[1][name]) for name in names)


def one_by_one(fn: Any, jobs: Any, *_: Any, setup: Any, **__: Any) -> Any:
    """In place of ``imap_jobs``: two workers that take turns, both of which begin at the start."""
    workers = [setup(), setup()]
    for k, job in enumerate(jobs):
        yield Outcome(k, fn(workers[k % 2], job))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: Any) -> RowStore:
    """What one process saves."""
    return save_rows(one(), WHOLE.split(10), tmp_path_factory.mktemp("rows") / "one", labels=["task"], shard_rows=30)


class TestTheSame:
    def test_rows_index_and_labels(self, tmp_path: Path, expected: RowStore) -> None:
        store = saved(tmp_path / "s")
        assert same(store, expected)
        assert [len(index) for index in store.blocks()] == [30, 30, 30]
        assert sorted(path.name for path in (tmp_path / "s").iterdir()) == sorted(
            {path.name for path in expected.folder.iterdir()} | {".mechclust.lock"}
        )

    def test_in_another_dtype_at_other_sites(self, tmp_path: Path) -> None:
        settings: dict[str, Any] = {"at": residual(1), "dtype": torch.bfloat16, "labels": []}
        assert same(saved(tmp_path / "s", **settings), save_rows(one(), WHOLE, tmp_path / "one", **settings))

    def test_functions_that_give_batches(self, tmp_path: Path, expected: RowStore) -> None:
        assert same(saved(tmp_path / "s", [partial(function, k) for k in range(3)]), expected)

    def test_shards_in_any_order(self, tmp_path: Path, expected: RowStore, monkeypatch: Any) -> None:
        monkeypatch.setattr(sharded, "imap_jobs", partial(one_worker_a_shard, 1))
        assert same(saved(tmp_path / "s"), expected)


@pytest.mark.parametrize("progress", [False, True])
def test_its_settings_reach_the_workers(tmp_path: Path, monkeypatch: Any, capsys: Any, progress: bool) -> None:
    seen: dict[str, Any] = {}

    def noted(*given: Any, **settings: Any) -> Any:
        seen.update(settings)
        return one_worker_a_shard(0, *given, **settings)

    monkeypatch.setattr(sharded, "imap_jobs", noted)
    saved(tmp_path / "s", timeout=7.0, progress=progress)
    assert seen["timeout"] == 7.0
    assert ("saving rows" in capsys.readouterr().err) == progress
    with pytest.raises(InputError, match="tokens_per_batch is 3, fewer than the 4 tokens of"):
        saved(tmp_path / "t", ["1 2 3 4", "5 6"], labels=[], tokenizer=words, tokens_per_batch=3)


class TestGoingOn:
    @pytest.mark.slow
    def test_the_killed_driver(self, tmp_path: Path, expected: RowStore) -> None:
        """Killed in the second of three shards: the first is not measured again."""
        folder = tmp_path / "s"
        code = f"""
from tests.mechclust.jobs.test_sharded import die_once
from tests.mechclust.jobs.test_sharded_rows import *
shards = [partial(function, k) for k in range(3)]
shards[1] = partial(function, 1, partial(die_once, Path({str(tmp_path / "killed")!r})))
saved(Path({str(folder)!r}), shards)
"""
        driver = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
        assert driver.returncode == -signal.SIGKILL
        with pytest.raises(InputError, match="is unfinished"):
            RowStore(folder)
        before = (folder / "shard-00000" / "shard.json").stat().st_mtime_ns
        assert same(saved(folder), expected)
        assert (folder / "shard-00000" / "shard.json").stat().st_mtime_ns == before

    def test_a_finished_store_measures_nothing(self, tmp_path: Path, expected: RowStore, monkeypatch: Any) -> None:
        saved(tmp_path / "s")
        monkeypatch.setattr(sharded, "prepare_shard", None)  # calling it would fail
        assert same(saved(tmp_path / "s"), expected)

    @pytest.mark.parametrize("by", [saved, save_rows])
    def test_either_goes_on_where_the_other_was(self, tmp_path: Path, expected: RowStore, by: Any) -> None:
        folder = tmp_path / "s"
        shutil.copytree(expected.folder, folder)
        shutil.rmtree(folder / "shard-00001")
        kept = (folder / "shard-00002" / "shard.json").stat().st_mtime_ns
        store = saved(folder) if by is saved else save_rows(one(), WHOLE.split(10), folder, labels=["task"])
        assert same(store, expected)
        assert (folder / "shard-00002" / "shard.json").stat().st_mtime_ns == kept

    def test_what_a_lost_worker_had_not_handed_over_is_no_part_of_it(self, tmp_path: Path, expected: RowStore) -> None:
        """A worker on another machine may live on for some seconds: only the owner of the folder adds to the store."""
        folder = tmp_path / "s"
        folder.mkdir()
        left = folder / ".shard-00002.elsewhere.77.tmp"
        shutil.copytree(expected.folder / "shard-00002", left)
        assert same(saved(folder), expected)
        assert not left.exists()

    def test_the_shards_after_one_that_fails_are_kept(self, tmp_path: Path, expected: RowStore) -> None:
        """And the error names the first that failed."""
        shards = [partial(function, k) for k in range(3)]
        broken = [partial(int, "wrong"), partial(int, "wrong too"), shards[2]]
        with pytest.raises(ValueError, match="wrong") as raised:
            saved(tmp_path / "s", broken)
        assert "raised by job 'shard 0'" in raised.value.__notes__
        assert len(list((tmp_path / "s").glob("shard-*"))) == 1
        assert same(saved(tmp_path / "s", shards), expected)


def test_a_worker_that_starts_while_the_first_shard_is_written(
    tmp_path: Path, expected: RowStore, monkeypatch: Any
) -> None:
    """It looks at the folder as it was before, or as it is afterwards."""

    def just_before(folder: Path) -> Any:
        header = read_store_header(folder)
        shutil.copytree(expected.folder, folder, dirs_exist_ok=True)
        return header

    monkeypatch.setattr(stored_examples, "read_store_header", just_before)
    folder = tmp_path / "s"
    folder.mkdir()
    assert len(StoredExamples.from_folder(folder, {"labels": ["task"]})) == 0


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            (
                {"load": partial(seeded, 1)},
                "holds rows of another model or dtype; give a new folder, or delete this one",
            ),
            ({"at": residual(1)}, "holds rows of other sites"),
            ({"dtype": torch.bfloat16}, "holds rows of dtype of the model"),
            ({"labels": []}, "holds rows of other labels"),
            (
                {"batches": Batch(TOKENS.flip(0), labels=WHOLE.labels)},
                "'shard 0': example index 0 has different tokens in",
            ),
            ({"batches": Batch(TOKENS, labels={"task": TOKENS[:, 1] % 3})}, "as its label 'task'"),
            ({"batches": WHOLE.select(slice(0, 60))}, "holds example index 60, which is not in these batches"),
            ({"load": two}, "rows of one model are saved at a time, but load returns 2; save each alone"),
            ({"labels": "task"}, "labels is the string 'task'"),
            ({"dtype": torch.int8}, "dtype is torch.int8"),
            ({"batches": [WHOLE, WHOLE]}, "example index 0 was given twice; give every example an index of its own"),
        ],
    )
    def test_what_save_rows_refuses(self, tmp_path: Path, expected: RowStore, changes: Any, told: str) -> None:
        """And the store that was there stays finished."""
        folder = tmp_path / "s"
        shutil.copytree(expected.folder, folder)
        with pytest.raises(InputError, match=told):
            saved(folder, **changes)
        assert same(RowStore(folder), expected)

    @pytest.mark.parametrize("in_turn", [False, True])
    def test_an_example_of_two_shards(self, tmp_path: Path, monkeypatch: Any, in_turn: bool) -> None:
        """One worker or several: the second shard fails, and the others are kept."""
        if in_turn:
            monkeypatch.setattr(sharded, "imap_jobs", one_by_one)
        shards = [WHOLE.select(slice(0, 30)), WHOLE.select(slice(20, 50)), WHOLE.select(slice(60, 90))]
        with pytest.raises(
            InputError,
            match=r"^job 'shard 1': example index 20 was given twice; give every example an index of its own$",
        ):
            saved(tmp_path / "s", shards)
        assert len(list((tmp_path / "s").glob("shard-*"))) == 2
        assert not list((tmp_path / "s").glob(".shard-*"))

    def test_workers_whose_models_differ(self, tmp_path: Path, monkeypatch: Any) -> None:
        monkeypatch.setattr(sharded, "imap_jobs", partial(one_worker_a_shard, 0))
        seeds = iter(range(9))
        with pytest.raises(
            InputError, match=r"^load returned different models in two workers; make it return the same weights"
        ):
            saved(tmp_path / "s", load=lambda: seeded(next(seeds)))

    def test_a_second_owner(self, tmp_path: Path) -> None:
        with locked_folder(tmp_path / "s"), pytest.raises(InputError, match="is in use by another process"):
            saved(tmp_path / "s")

    def test_a_folder_of_something_else(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").touch()
        with pytest.raises(InputError, match="has files but is not a row store; give a new folder"):
            saved(tmp_path)

    def test_too_small_a_disk(self, tmp_path: Path, monkeypatch: Any) -> None:
        whole = saved(tmp_path / "whole", [WHOLE])
        monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 100, 0))  # type: ignore[attr-defined]
        with pytest.raises(InputError, match=r"the rows of 90 examples take 11\.2 KiB on disk"):
            saved(tmp_path / "s", [WHOLE])
        assert same(saved(tmp_path / "whole", [WHOLE]), whole)  # needs no more room

    def test_a_disk_that_has_room_for_what_is_left(self, tmp_path: Path, expected: RowStore, monkeypatch: Any) -> None:
        """Free space shrinks as shards are written, so that it never again holds all examples."""
        size = 2 * CONFIG.d_model * 4  # bytes of an example at both sites

        def usage(path: Path) -> Any:
            written = 30 * len(list((tmp_path / "s").glob("shard-*")))
            return shutil._ntuple_diskusage(0, 0, size * (90 - written))  # type: ignore[attr-defined]

        monkeypatch.setattr(shutil, "disk_usage", usage)
        batches = list(WHOLE.split(10))  # whose number is known
        assert same(saved(tmp_path / "s", batches), expected)
        shutil.rmtree(tmp_path / "s")
        monkeypatch.setattr(sharded, "imap_jobs", one_by_one)
        assert same(saved(tmp_path / "s", batches), expected)

    def test_no_examples(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="there are no examples to measure"):
            save_rows_sharded(one, [], tmp_path / "s", workers=1)
