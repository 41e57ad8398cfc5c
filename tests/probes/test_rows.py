from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from probes import RowStore, all_tokens, collect_rows, last_token, mean, residual, run, save_rows, token_at
from probes.rows.shards import store_shards
from probes.store.files import read_json, write_json
from tasks import Batch, InputError

SITE = "blocks.0.hook_resid_post"


def test_rows_are_what_a_probe_sees_in_the_order_of_the_index(model: Any, batch: Batch, keep: Any) -> None:
    probe = keep()
    run(model, batch, probe)
    found = collect_rows(model, list(batch.split(5))[::-1])
    assert list(found) == probe.site_names
    for site, rows in found.items():
        torch.testing.assert_close(rows, probe.kept(site), rtol=1e-5, atol=1e-6)
    few = collect_rows(model, batch, at=residual(1), readout=mean())
    assert list(few) == ["blocks.0.hook_resid_post"]


def test_heads_stand_side_by_side(model: Any, batch: Batch) -> None:
    (rows,) = collect_rows(model, batch, at="blocks.0.attn.hook_z").values()
    assert rows.shape == (len(batch), model.cfg.n_heads * model.cfg.d_head)


def test_what_is_refused(model: Any, batch: Batch) -> None:
    with pytest.raises(InputError, match=re.escape("readout all_tokens() keeps every position; choose last_token()")):
        collect_rows(model, batch, readout=all_tokens())
    with pytest.raises(InputError, match="there are no examples to measure"):
        collect_rows(model, [])


class TestPositionsOfTheBatch:
    """Rows that ``save_rows`` keeps of ``token_at``, whose positions are not in the tokens."""

    TOKENS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8], [9, 1, 2, 3], [4, 5, 6, 7]])

    def batch(self, positions: list[int]) -> Batch:
        return Batch(self.TOKENS, positions={"p": torch.tensor(positions)})

    def save(self, model: Any, batches: Any, folder: Path) -> RowStore:
        return save_rows(model, batches, folder, at=residual(1), readout=token_at("p"), shard_rows=1)

    def test_other_positions_are_refused(self, model: Any, tmp_path: Path) -> None:
        folder = tmp_path / "rows"
        self.save(model, self.batch([0, 1, 2, 1]), folder)
        with pytest.raises(InputError) as refused:
            self.save(model, self.batch([0, 1, 2, 2]), folder)
        assert str(refused.value) == (
            f"example index 3 has position 2 for 'p', not 1 as in {str(folder)!r}; give the same positions, or a new "
            "folder"
        )
        with pytest.raises(InputError, match="no position 'p' in this batch"):
            self.save(model, Batch(self.TOKENS), folder)
        assert len(self.save(model, self.batch([0, 1, 2, 1]), folder)) == 4

    def test_padding_on_either_side_does_not_matter(self, model: Any, tmp_path: Path) -> None:
        given = self.batch([0, 1, 2, 3])
        tokens = torch.cat([torch.zeros(4, 2, dtype=torch.int64), self.TOKENS], dim=1)
        on_the_left = Batch(tokens, tokens.cumsum(dim=1) > 0, positions={"p": torch.tensor([2, 3, 4, 5])})
        stores = [self.save(model, each, tmp_path / "rows") for each in (on_the_left, given.padded_to(6), given)]
        assert [len(store) for store in stores] == [4, 4, 4]
        swapped = replace(on_the_left, positions={"p": torch.tensor([2, 3, 4, 4])})
        with pytest.raises(InputError, match="example index 3 has position 2 for 'p', not 3 as in"):
            self.save(model, swapped, tmp_path / "rows")

    def test_an_interrupted_store_goes_on_with_the_same_positions_only(self, model: Any, tmp_path: Path) -> None:
        def interrupted() -> Iterator[Batch]:
            yield from list(self.batch([0, 1, 2, 3]).split(1))[:2]
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.save(model, interrupted(), tmp_path / "rows")
        with pytest.raises(InputError, match="example index 0 has position 3 for 'p', not 0 as in"):
            self.save(model, self.batch([3, 2, 1, 0]).split(1), tmp_path / "rows")
        store = self.save(model, self.batch([0, 1, 2, 3]).split(1), tmp_path / "rows")
        whole = self.save(model, self.batch([0, 1, 2, 3]), tmp_path / "whole")
        found, expected = (each.take(each.index, [f"rows/{SITE}"])[f"rows/{SITE}"] for each in (store, whole))
        torch.testing.assert_close(found, expected)
        assert len(store.select(torch.tensor([1, 3]))) == 2

    def test_a_folder_without_positions_is_refused(self, model: Any, tmp_path: Path) -> None:
        """As they were written before positions were kept."""
        self.save(model, self.batch([0, 1, 2, 3]), tmp_path)
        header = read_json(tmp_path / "rows.json")
        assert header.pop("position") == "p"
        write_json(tmp_path / "rows.json", header)
        with pytest.raises(
            InputError, match="holds rows of examples whose positions it does not record; give a new folder"
        ):
            self.save(model, self.batch([0, 1, 2, 3]), tmp_path)

    def test_readouts_that_find_their_position_keep_none(self, model: Any, tmp_path: Path) -> None:
        save_rows(model, self.batch([0, 1, 2, 3]), tmp_path, readout=last_token())
        save_rows(model, self.batch([3, 2, 1, 0]), tmp_path, readout=last_token())
        (shard,) = store_shards(tmp_path)
        assert set(shard.columns()) == {"index", "tokens"}
        assert "position" not in read_json(tmp_path / "rows.json")
