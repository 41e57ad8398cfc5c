"""The report of a run: its files, its page, and hostile names in it."""

from __future__ import annotations

import csv
import re
import shutil
from dataclasses import replace

import pytest
import torch

from mechclust.evidence import load_findings
from mechclust.report.folder import claim_folder
from probes import load_result
from tasks import InputError
from tests.faults.hostile import HOSTILE
from tests.mechclust.commands.hook_columns import check_report
from tests.mechclust.commands.mossa.made import made_result

HARD = ["script", "image with a handler", "end of a script", "jinja", "formula", "out of the folder", "newline", "long"]


pytestmark = pytest.mark.usefixtures("few_draws")


@pytest.fixture(scope="module")
def sample():
    return made_result(n_layers=3)


@pytest.fixture(scope="module")
def page(sample, tmp_path_factory):
    return sample.write(tmp_path_factory.mktemp("mossa") / "out")


def test_files(sample, page):
    folder = page.parent
    assert {path.stem for path in folder.glob("*.csv")} == {
        "groups", "tasks", "clusters", "layers", "answers", "adapters", "losses", "curves", "findings",
    }  # fmt: skip
    assert len(list((folder / "figures").glob("*.png"))) == 10
    kept = load_result(folder / "results" / "qasc" / "all-tasks.cka.safetensors")
    assert torch.equal(kept["debiased_cka"], sample.of_task["qasc"]["all-tasks.cka"]["debiased_cka"])
    assert (folder / "results" / "+all" / "tuned.purity.safetensors").exists()
    assert [c.id for c in load_findings(folder)] == [c.id for c in sample.findings]


def test_csv_is_what_was_measured(sample, page):
    with (page.parent / "curves.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["task"] == "aqua" and row["role"] == "tuned"]
    values = [float(row["value"]) for row in rows if row["measure"] == "biased CKA"]
    assert values == sample.of_task["aqua"]["tuned.cka"]["cka"][:, 0].tolist()


def test_every_layer_has_its_hook(page):
    check_report(page)


def test_page(page):
    text = page.read_text()
    assert text.count("data:image/png;base64,") == 10
    assert "<h1>Which layers of google/gemma-3-270m hold which tasks</h1>" in text
    parts = ["Learnt: 6 of 11 tasks.", 'id="cka_by_layer"', "<td>Tasks learnt by their own controls</td>", "<b>C2</b>"]
    places = [text.index(part) for part in [*parts, 'id="layer_groups"', "Adapters, and how", "<summary>Notes"]]
    assert places == sorted(places)
    assert "Adapters, and how they were trained" in text
    assert "Clusters are those of &#39;clusters.toml&#39;." in text
    assert "steps_per_task" in text
    assert "http" not in re.sub(r"base64,[^\"]*", "", text).replace("http-equiv", "")  # pictures may spell anything


def test_tables_are_folded_below_the_figures(page):
    text = page.read_text()
    titles = ["Layer groups", "Tasks, the largest gain first", "Clusters, the largest gain first"]
    assert [title for title in titles if f"<summary>{title}" in text] == titles


def test_the_same_folder_is_reported_on_again(sample, page, undrawn, tmp_path):
    shutil.copytree(page.parent, tmp_path, dirs_exist_ok=True)
    of_model = {kind: {"dims": of["dims"]} for kind, of in sample.of_model.items()}
    again = replace(sample, of_model=of_model, trained={}).write(tmp_path)
    assert again == tmp_path / page.name
    assert (page.parent / "figures" / "hidden_states.png").exists()
    assert (page.parent / "losses.csv").exists()
    assert not (tmp_path / "figures" / "hidden_states.png").exists()
    assert not (tmp_path / "losses.csv").exists()


def test_another_commands_folder_is_refused(sample, tmp_path):
    claim_folder(tmp_path, "compare")
    with pytest.raises(InputError, match="holds a report of mechclust compare; give another folder with --out"):
        sample.write(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_hostile_names(undrawn, tmp_path, trouble_of):
    names = [HOSTILE[name] for name in HARD]
    sample = made_result({names[0]: names[:4], names[1]: names[4:]}, held_out=(names[-1],), n_layers=3)
    out = tmp_path / "runs" / "out"
    noted = replace(sample, notes=[f"no test split: {HOSTILE['script']}"])
    path = noted.write(out)
    assert {p for p in tmp_path.rglob("*") if out not in p.parents} == {out, out.parent}
    text = path.read_bytes().decode()
    assert "<script>window.hacked" not in text
    assert "<img src=x" not in text
    assert "{{ 7 * 7 }}" in text
    with (out / "tasks.csv").open(newline="") as file:
        assert not [row["task"] for row in csv.DictReader(file) if row["task"].startswith(("=", "+", "-", "@"))]
    assert trouble_of(path) == []
