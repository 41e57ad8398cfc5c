"""What the command concludes from measures made by hand, at every layer and label another number."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from mechclust.commands.clusters import ClustersConfig, ClustersResult
from mechclust.commands.clusters.figures import prompt_views
from mechclust.commands.clusters.follow import Followed
from mechclust.commands.clusters.measurements import ModelCurves
from probes import ProbeResult
from tests.frozen import check_frozen, made_probe, said_by

SITES = ["hook_embed", "blocks.0.hook_resid_post", "blocks.1.hook_resid_post", "blocks.2.hook_resid_post"]
LAYERS = {site: i for i, site in enumerate(SITES)}
LABELS = ["task", "form"]
TOKENIZATION = {"tokenizer": "BertTokenizer", "bos": "none", "chat": False, "adds": "[CLS] before"}
ENDS = ("_low", "_high")


def measured(seed: int, shown: bool, n_clusters: tuple[str, ...] = ()) -> ModelCurves:
    """Every curve of a model; values are near 1 and p-values near 0 if labels are shown."""
    draw = np.random.default_rng(seed)
    coords = {"site": SITES, "label": LABELS, "draw": [str(i) for i in range(19)]}
    axes = ("site", "label")
    if n_clusters:
        coords["n_clusters"] = list(n_clusters)
        axes = ("site", "label", "n_clusters")
    tested = ("null_low", "null_high", "p_value")
    index = ("ari", "ari_low", "ari_high", *tested)
    about = {"n": 44, "n_clusters": {"task": 3, "form": 2}, "tokenization": TOKENIZATION, "n_units": {"task": 9}}

    def curve(probe: str, names: tuple[str, ...], on: tuple[str, ...] = axes, **more: tuple[str, ...]) -> ProbeResult:
        made = made_probe(probe, coords, draw, {**dict.fromkeys(names, on), **more}, LAYERS, about)
        for name in names:
            if name.endswith("p_value"):
                made.values[name][:] = made.values[name] * (1e-3 if shown else 1)
            elif name.startswith("null"):
                made.values[name][:] = made.values[name] * 0.1
        return made

    purity = ("neighbour_purity", "neighbour_purity_low", "neighbour_purity_high")
    return ModelCurves(
        raw=curve("TaskClusterARI", (*index, "ami", "silhouette", "label_silhouette")),
        given=curve("TaskClusterARI", index, ("site", "label")),
        linear=curve(
            "LinearDecodability",
            ("accuracy", "accuracy_low", "accuracy_high", *tested),
            ("site", "label"),
            null=("site", "label", "draw"),
            majority=("label",),
        ),
        nearest=curve("NeighbourPurity", purity, ("site",)),
        held_out=curve("NeighbourPurity", (*purity, *tested), ("site",)),
    )


def followed(alike: float = 0.2) -> Followed:
    """Agreement with two labels and two features, of which the form is followed most."""
    draw = np.random.default_rng(9)
    means = {"task": 0.3, "form": 0.62, "first word": 0.61, "length": 0.05}
    rows = [
        {"layer": layer, "name": name, "kind": "label" if name in LABELS else "feature", "n_values": 2 + len(name) % 3}
        | {"ami": mean + 0.01 * layer * draw.random(), "ari": draw.random(), "p_corrected": 0.01 * (layer + 1)}
        | {"untrained": mean / 3, "untrained_high": mean / 2, "p_value": 0.004}
        for layer in range(len(SITES))
        for name, mean in means.items()
    ]
    names = sorted(means)
    pairs = {(one, other): alike for i, one in enumerate(names) for other in names[i + 1 :]}
    return Followed(pd.DataFrame(rows), pairs)


def result(seed: int, *, shown: bool, copies: int, **fields: Any) -> ClustersResult:
    config = ClustersConfig(Path("prompts.jsonl"), also=("form",), n_permutations=999, n_shuffles=499)
    untrained = [measured(seed + 1 + i, shown=False) for i in range(copies)]
    values = {name: ["a", "b", "b", "a", "c"] for name in ("task", "form", "first word", "length")}
    given = {"followed": followed(), "values": values, **fields}
    return ClustersResult("tiny", config, measured(seed, shown), untrained, **given)


def with_features(found: ClustersResult) -> dict[str, Any]:
    return {**said_by(found), "features": found.features, "map": list(prompt_views(found))}


def of_shown_labels() -> dict[str, Any]:
    return with_features(result(0, shown=True, copies=2, given="form", input_notes=("2 prompts are alike",)))


def of_labels_not_shown() -> dict[str, Any]:
    return with_features(result(10, shown=False, copies=1, one_template=("a", "b")))


def of_one_model() -> dict[str, Any]:
    """Clusters alone, without random weights; candidates are alike, and layer 2 is undefined."""
    found = result(20, shown=True, copies=0, followed=followed(alike=0.95))
    raw = measured(20, shown=True, n_clusters=("3", "5")).raw  # the record was made with two numbers of clusters
    values = {name: raw.sel(name, n_clusters="3") for name in raw.axes}
    axes = dict.fromkeys(raw.axes, ("site", "label"))
    raw = replace(raw, values=values, axes=axes, metadata={**raw.metadata, "n_clusters": {"task": 3, "form": 3}})
    for name in ("ari", "p_value"):
        raw.values[name][2] = torch.nan
    return with_features(replace(found, trained=ModelCurves(raw)))


CASES = {"clusters": of_shown_labels, "clusters not shown": of_labels_not_shown, "clusters alone": of_one_model}


@pytest.mark.parametrize("name", CASES)
def test_conclusions_are_the_recorded_ones(name: str) -> None:
    check_frozen(name, CASES[name])
