"""The check of hook names finds what it is there for."""

from __future__ import annotations

import pandas as pd
import pytest

from mechclust.report.html import table_html
from mechclust.report.table_text import table_as_csv, table_text
from tests.mechclust.commands.hook_columns import check_report, faults

GOOD = pd.DataFrame(
    {"task": "a", "layer": [0, 2, 4], "hook": ["hook_embed", "blocks.1.hook_resid_post", "blocks.3.hook_resid_post"]}
)
HEADS = pd.DataFrame({"layer": [0], "site": ["blocks.0.attn.hook_pattern"], "name": ["L0H1"]})


def written(folder, in_csv, on_page):
    (folder / "found.csv").write_bytes(table_as_csv(in_csv))
    (folder / "report.html").write_text(table_html(on_page))
    return folder / "report.html"


def test_named_layers_pass(tmp_path):
    check_report(written(tmp_path, GOOD, HEADS), GOOD)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (GOOD.drop(columns="hook"), "layer has no hook beside it"),
        (GOOD[["hook", "layer", "task"]], "layer has no hook beside it"),
        (GOOD.assign(layer=[0, 1, 4]), "layer 1 is not blocks.1.hook_resid_post"),
        (HEADS.assign(layer=1), "layer 1 is not blocks.0.attn.hook_pattern"),
        (HEADS.rename(columns={"layer": "block"}).drop(columns="site"), "block has no hook beside it"),
    ],
)
def test_others_are_found_wherever_they_stand(tmp_path, wrong, said):
    for in_csv, on_page, shown in ((wrong, GOOD, GOOD), (GOOD, wrong, GOOD), (GOOD, GOOD, wrong)):
        with pytest.raises(AssertionError, match=said):
            check_report(written(tmp_path, in_csv, on_page), shown)


def test_a_report_without_layers_is_no_check(tmp_path):
    with pytest.raises(AssertionError, match="no page numbers layers"):
        check_report(written(tmp_path, GOOD, GOOD[["task"]]))


def test_hooks_are_short_in_terminals():
    lines = [line.split() for line in table_text(GOOD, ".3f").splitlines()]
    assert lines[:3] == [["task", "layer", "hook"], ["a", "0", "embed"], ["a", "2", "blocks.1.resid_post"]]
    assert faults(lines[0], lines[1:]) == []
