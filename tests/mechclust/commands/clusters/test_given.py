"""Clusters given another label: tested over whole units, or not at all."""

from __future__ import annotations

import math
from itertools import combinations

import pytest

from mechclust.commands.clusters import measure_clusters
from mechclust.commands.clusters.verdicts import LabelVerdict
from tests.mechclust.commands.clusters.cases import write_prompts
from tests.mechclust.commands.clusters.test_held_out import INPUTS, settings

ENDINGS = 4


def one_template_of_each_task_per_ending(n_templates=1):
    """Prompts of two tasks. Each ending has so many templates of each task, which another word tells apart."""
    return [
        {"prompt": f"w{17 + k} w{9 + t} {given} w{5 + ending}", "task": f"task {k}", "input": given}
        for k in range(2)
        for ending in range(ENDINGS)
        for t in range(n_templates)
        for given in INPUTS
    ]


def endings_by_input():
    """Prompts whose ending depends on template and input: as often each, but never alike in templates of two tasks."""
    pairs = list(combinations(range(len(INPUTS)), 2))
    return [
        {
            "prompt": f"w{17 + k} w{8 + t} {given} w{5 + (i in pairs[3 * k + t % 3])}",
            "task": f"task {k}",
            "input": given,
            "template": f"{k} {t}",
        }
        for k in range(2)
        for t in range(6)
        for i, given in enumerate(INPUTS)
    ]


@pytest.fixture
def measured(shallow, tmp_path):
    """``measured(records, **changes)``: given the last word."""

    def get(records, **changes):
        path = write_prompts(tmp_path / "prompts.jsonl", records)
        config = settings(path, untrained=0, n_permutations=99, given="last word", **changes)
        return measure_clusters(str(shallow), config)

    return get


def test_units_that_are_too_few_within_it_leave_it_open(measured):
    """Prompts of one template are alike, so that relabelling prompts would find any task."""
    result = measured(one_template_of_each_task_per_ending())
    table = result.to_dataframe()
    assert result.config.unit_label == "template"
    assert table["given_ari"].notna().all()
    for column in ("ari_low", "ari_high", "null_low", "null_high", "p"):
        assert table[f"given_{column}"].isna().all()
    assert result.verdicts["task"]["given"] == LabelVerdict.TOO_FEW
    (note,) = (note for note in result.caveats if note.startswith("Given the prompts' last word:"))
    assert "neither a test nor an interval" in note


def test_enough_units_within_it_are_relabelled(measured):
    result = measured(one_template_of_each_task_per_ending(n_templates=3))
    assert result.to_dataframe()["given_p"].notna().all()
    assert "labels are permuted among units ('template') with the same value" in " ".join(result.caveats)


def test_units_that_are_too_few_within_it_and_a_further_label_are_no_error(measured):
    result = measured(endings_by_input(), within="input")
    assert result.verdicts["task"]["given"] == LabelVerdict.TOO_FEW
    assert all(math.isnan(p) for p in result.to_dataframe()["given_p"])


def test_the_report_says_within_what_labels_are_exchanged(measured):
    """Of the classifier, whose units are these classes and not the templates."""
    text = " ".join(measured(endings_by_input(), within="input").caveats)
    assert "when labels are permuted among the units ('template') with the same 'input'; p:" in text
    assert "Prompts with the same 'input' are left out together" in text
    text = " ".join(measured(endings_by_input()).caveats)
    assert "when labels are permuted among the units ('template'); p:" in text
    assert "left out together" not in text
