from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from probes import all_tokens, collect_rows, mean, residual, run
from tasks import Batch, InputError


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
