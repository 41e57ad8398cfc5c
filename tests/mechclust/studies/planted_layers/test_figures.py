"""Words of the figures of planted layers. What they draw is frozen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mechclust.studies import get_study
from mechclust.studies.planted_layers.config import TRAINED
from mechclust.studies.planted_layers.figures import curves_figure
from mechclust.studies.planted_layers.study import Results
from tests.mechclust.studies.planted_layers.test_findings import PAPER, measured


@pytest.fixture(scope="module")
def runs():
    return [measured(seed) for seed in range(4)]


def test_captions_name_the_dashed_line_where_there_is_one(runs):
    panels = get_study("planted-layers").report(PAPER, Results(runs, [])).panels
    dots = {panel.name: panel for panel in panels if "95% interval over seeds" in panel.caption}
    assert set(dots) == {"auc", "errors", "calls", "unplanted"}
    for panel in dots.values():
        dashed = [line for axis in panel.figure.axes for line in axis.lines if line.get_linestyle() == "--"]
        assert ("dashed: a random layer" in panel.caption) is bool(dashed)


def test_the_title_of_one_layer_names_one(runs):
    run = runs[0]
    pair = run.of(TRAINED)[0]
    one = replace(pair, truth=(2, 2))
    curves = {**run.curves, one.name: run.curves[pair.name]}
    restored = {**run.restored, one.name: run.restored[pair.name]}
    pairs = tuple(one if each is pair else each for each in run.pairs)
    figure = curves_figure(PAPER, [replace(run, pairs=pairs, curves=curves, restored=restored)])
    assert figure.axes[0].get_title() == "trained, layer 2"
