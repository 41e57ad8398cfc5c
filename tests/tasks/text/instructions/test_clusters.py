from __future__ import annotations

import re
from pathlib import Path

import pytest

from tasks import InputError
from tasks.text.instructions.clusters import read_cluster_file


@pytest.fixture
def toml(tmp_path: Path):
    def file(text: str) -> Path:
        path = tmp_path / "clusters.toml"
        path.write_text(text)
        return path

    return file


def test_reads_clusters_and_held_out_tasks(toml) -> None:
    file = read_cluster_file(
        toml('[clusters]\nnli = ["rte", "cb"]\n"of two" = [\'copa\']\n[held_out]\ntasks = ["cb"]\n')
    )
    assert file.clusters == {"rte": "nli", "cb": "nli", "copa": "of two"}
    assert file.held_out == ("cb",)


def test_both_tables_may_be_missing(toml) -> None:
    file = read_cluster_file(toml(""))
    assert (file.clusters, file.held_out) == ({}, ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[cluster]\n",
            "' has 'cluster'; expected the tables [clusters] and [held_out]; did you mean 'clusters'?",
        ),
        ("clusters = 3", "': clusters is 3; expected a table [clusters]"),
        (
            '[clusters]\nnli = "rte"',
            "': the cluster 'nli' is 'rte'; expected a list of names, such as [\"copa\", \"piqa\"]",
        ),
        (
            '[clusters]\nnli = ["rte"]\nother = []',
            "': the cluster 'other' has no tasks; name at least one, or leave it out",
        ),
        (
            "[clusters]\nnli = [1]",
            '\': the cluster \'nli\' is [1]; expected a list of names, such as ["copa", "piqa"]',
        ),
        (
            '[clusters]\nnli = ["rte", "cb"]\nother = ["cb"]',
            "clusters.toml': the task 'cb' is in the cluster 'other', and in 'nli' too; leave it in one place",
        ),
        (
            '[clusters]\nnli = ["rte", "rte"]',
            "clusters.toml': the task 'rte' is in the cluster 'nli', and twice; leave it in one place",
        ),
        ('[held_out]\nnames = ["rte"]', '\': [held_out] has names; expected tasks = ["name", ...] alone'),
        (
            '[held_out]\ntasks = "rte"',
            '\': tasks of [held_out] is \'rte\'; expected a list of names, such as ["copa", "piqa"]',
        ),
    ],
)
def test_files_of_another_form_are_refused(toml, text: str, message: str) -> None:
    with pytest.raises(InputError, match=f"{re.escape(message)}$"):
        read_cluster_file(toml(text))


def test_what_is_not_toml_is_refused_with_its_line(toml) -> None:
    with pytest.raises(InputError, match=r"/clusters\.toml' is not TOML \(.+ \(at line 2, column \d+\)\)$"):
        read_cluster_file(toml('[clusters]\nnli = "a\nb"'))


def test_a_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^no file of clusters '.*x\.toml'; give the path of a TOML file with \["):
        read_cluster_file(tmp_path / "x.toml")
