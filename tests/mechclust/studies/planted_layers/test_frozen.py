"""What the study concludes from curves and readings made by hand, in which every seed, view and measure has its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mechclust.studies import get_study
from mechclust.studies.planted_layers.config import NULLS, PlantedConfig
from mechclust.studies.planted_layers.reading import SeedReadings
from mechclust.studies.planted_layers.results import SeedResults
from mechclust.studies.planted_layers.study import Results, tables_of
from tests.frozen import check_frozen
from tests.mechclust.studies.planted_layers import test_control_findings as trios
from tests.mechclust.studies.planted_layers import test_findings as pairs

STUDY = get_study("planted-layers")
PAPER = replace(pairs.PAPER, seeds=(1, 2, 3))
GIVEN = replace(PAPER, model="somewhere", prompts="prompts.jsonl", seeds=(1, 2))


def shaken_pairs(seed: int, config: PlantedConfig) -> SeedResults:
    """The curves of a seed, with noise that calls some layers, and thresholds that differ."""
    found = pairs.measured(seed, config)
    draw = np.random.default_rng(seed)
    curves = {name: curve + draw.normal(0, 0.3, curve.shape) for name, curve in found.curves.items()}
    thresholds = {null: draw.uniform(0.3, 0.7, found.thresholds[null].shape) for null in NULLS}
    restored = {name: curve * draw.uniform(0.5, 1, curve.shape) for name, curve in found.restored.items()}
    notes = (f"seed {seed}: 2 values are undefined",)
    return replace(found, curves=curves, thresholds=thresholds, restored=restored, n=640 - seed, notes=notes)


def shaken_trios(seed: int) -> SeedReadings:
    found = trios.measured(seed)
    draw = np.random.default_rng(seed)
    readings = []
    for reading in found.readings:
        tuned = reading.tuned + draw.normal(0, 0.05, reading.tuned.shape)
        spread = draw.uniform(0, 0.4, reading.spread.shape)
        dims = reading.dims * draw.integers(1, 4, reading.dims.shape)
        readings.append(replace(reading, tuned=tuned, spread=spread, dims=dims))
    accuracy = {
        model: {skill: value * draw.uniform(0.9, 1) for skill, value in of.items()}
        for model, of in sorted(found.accuracy.items())
    }
    return replace(found, readings=tuple(readings), accuracy=accuracy, notes=(f"seed {seed}: 1 is undefined",))


def concluded(config: PlantedConfig, results: Results) -> dict[str, Any]:
    analysis = STUDY.report(config, results)
    return {
        "notes": list(analysis.notes),
        **{finding.id: finding for finding in STUDY.findings(config, results)},
        **tables_of(config, results),
        "captions": [panel.caption for panel in analysis.panels],
        **{panel.name: panel.figure for panel in analysis.panels},
    }


def of_trained() -> dict[str, Any]:
    changes = [shaken_pairs(seed, PAPER) for seed in range(3)]
    return concluded(PAPER, Results(changes, [shaken_trios(seed) for seed in range(3)]))


def of_a_given_model() -> dict[str, Any]:
    """Without trios; in the second seed a loss cannot be restored, and a curve is undefined."""
    first, second = [shaken_pairs(seed, GIVEN) for seed in range(2)]
    undefined = next(iter(second.curves))
    curves = {**second.curves, undefined: np.full_like(second.curves[undefined], np.nan)}
    restored = {name: np.full_like(curve, np.nan) for name, curve in second.restored.items()}
    return concluded(GIVEN, Results([first, replace(second, curves=curves, restored=restored)], []))


CASES = {"planted-layers": of_trained, "planted-layers given": of_a_given_model}


@pytest.mark.parametrize("name", CASES)
def test_conclusions_are_the_recorded_ones(name: str) -> None:
    check_frozen(name, CASES[name])
