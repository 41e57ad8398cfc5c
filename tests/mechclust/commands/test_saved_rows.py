"""Rows that are kept, or removed, before they are saved anew."""

from __future__ import annotations

from dataclasses import replace

import pytest

import probes.rows.save
from mechclust.commands.saved_rows import free_memory, rows_errors, save_rows_anew
from probes.store.files import DamagedError
from tasks import InputError


@pytest.fixture
def begun(model, batch, tmp_path):
    """A folder with the rows of half of the batch, in one shard."""
    folder = tmp_path / "rows"
    save_rows_anew(model, [batch.select(batch.index < batch.index.median())], folder)
    return folder


@pytest.fixture
def written(monkeypatch):
    """The numbers of examples of all shards that are written."""
    sizes = []
    write = probes.rows.save.write_shard

    def counting(shard, columns, rows):
        sizes.append(len(columns["index"]))
        write(shard, columns, rows)

    monkeypatch.setattr("probes.rows.save.write_shard", counting)
    return sizes


def test_kept_rows_stay_if_the_disk_is_full(model, batch, begun, monkeypatch):
    before = sorted(begun.glob("shard-*"))

    def full(*_):
        raise InputError("cannot write it") from OSError(28, "No space left on device")

    monkeypatch.setattr("probes.rows.save.write_shard", full)
    with pytest.raises(InputError, match="examples already written are kept"):
        save_rows_anew(model, [batch], begun)
    assert before
    assert sorted(begun.glob("shard-*")) == before


def test_only_missing_rows_are_measured(model, batch, begun, written):
    n_kept = int((batch.index < batch.index.median()).sum())
    assert len(save_rows_anew(model, [batch], begun)) == len(batch)
    assert written == [len(batch) - n_kept]


def test_rows_of_other_prompts_weights_and_damaged_ones_are_replaced(tiny_model, model, batch, begun, written):
    other = replace(batch, tokens=batch.tokens.flip(1))
    assert len(save_rows_anew(model, [other], begun)) == len(batch)
    assert len(save_rows_anew(tiny_model(seed=7), [other], begun)) == len(batch)
    next(begun.glob("shard-*/shard.json")).unlink()
    assert len(save_rows_anew(tiny_model(seed=7), [other], begun)) == len(batch)
    assert written == 3 * [len(batch)]


def test_memory_of_a_gpu_is_freed(monkeypatch):
    freed = []
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: freed.append(1))
    free_memory("cpu")
    assert freed == []
    free_memory("cuda:1")
    assert freed == [1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("give the same labels, or a new folder", "give the same labels, or another folder with --out"),
        ("put it back, or give a new one", "put it back, or give another folder with --out"),
        ("save the rows again, in a new folder", "give another folder with --out"),
        ("give a new folder, or delete this one", "give another folder with --out, or delete this one"),
        ("give another folder with --out", "give another folder with --out"),
        (
            "call save_rows with the same arguments, or give a new folder",
            "run the same command again, or give another folder with --out",
        ),
    ],
)
def test_all_advice_is_that_of_the_command_line(given, said):
    with pytest.raises(InputError) as error, rows_errors("--max-rows"):
        raise InputError(given)
    assert str(error.value) == said


def test_an_error_without_advice_stays_what_it_is():
    original = DamagedError("'a' is damaged")
    with pytest.raises(DamagedError) as error, rows_errors("--max-rows"):
        raise original
    assert error.value is original
