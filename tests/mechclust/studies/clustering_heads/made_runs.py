"""Runs of the clustering-head study made by hand, for tests of its findings and figures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from mechclust.studies import get_study
from mechclust.studies.clustering_heads.config import ClusteringHeadsConfig, FullBatch
from mechclust.studies.clustering_heads.findings import findings_of
from mechclust.studies.clustering_heads.replay import FROZEN
from mechclust.studies.clustering_heads.results import HeadsResults, NetworkTraining, TrainedNetwork
from probes import ProbeResult

# Settings of the one run that is not made by hand: the smoke preset's, with less training.
SMALL = replace(
    get_study("clustering-heads").preset("smoke"),
    epochs=6,
    full_batch=FullBatch((200,), (200, 201), steps=12, every=4, curvature=2),
)
N = 400  # epochs
CONFIG = ClusteringHeadsConfig(seeds=(0, 1, 2, 3), mitigations=4, epochs=N)
SOLVED = 150  # epoch at which a run solves the task unless told otherwise


def result(name, coords=None, axes=None, metadata=None, **values):
    """A probe's result; arrays have the axes that are given, or none."""
    tensors = {key: torch.as_tensor(np.asarray(value), dtype=torch.float64) for key, value in values.items()}
    axes = {key: (axes or {}).get(key, ()) for key in tensors}
    return ProbeResult(name, tensors, axes, coords or {}, metadata=metadata or {})


def dynamics(solved=SOLVED, spikes=(), accuracy=None):
    """A run whose loss falls and whose task is solved at one epoch; it ends at ``accuracy``."""
    epochs = np.arange(N)
    loss = np.where(epochs < solved, 0.69, 0.01)
    loss[0] = 2.0
    loss[list(spikes)] = 0.3
    test_accuracy = np.where(epochs < solved, 0.5, 1.0)
    if accuracy is not None:
        test_accuracy[-1] = accuracy
    curves = {
        "train_loss": loss,
        "test_loss": loss,
        "test_accuracy": test_accuracy,
        "smallest_norm": 1.0 + 0.1 * np.cos(epochs),
        "margin": 1.0 + 0.1 * np.sin(epochs),
        "gradient_norm": np.ones((N, 4)),
    }
    axes = {name: ("epoch", "group")[: values.ndim] for name, values in curves.items()}
    coords = {"epoch": [str(epoch) for epoch in epochs], "group": ["a", "b", "c", "all"]}
    return result("HeadDynamics", coords, axes, **curves)


def training(**settings):
    return NetworkTraining(dynamics(**settings))


def lattice(line=None, plane=None, textbook=False):
    """A head whose weights deviate by ``line`` from integers on a line, and by ``plane`` from those on a plane."""
    return result(
        "ClusteringHead",
        integer_head=line is not None and line < 0.25,
        verdict=2 if textbook else 0,
        integer_match=line is not None,
        integer_accuracy=1,
        integer_deviation=0.5 if line is None else line,
        planar_match=plane is not None,
        planar_accuracy=1,
        planar_deviation=0.5 if plane is None else plane,
    )


def stitched(head, classifier):
    """Accuracies of stitched networks; each part is ready from the given epoch on, or at the given epochs."""
    epochs = np.arange(N)

    def curve(ready):
        return np.where(np.isin(epochs, ready) if isinstance(ready, tuple) else epochs >= ready, 1.0, 0.5)

    curves = {"head_accuracy": curve(head), "classifier_accuracy": curve(classifier), "accuracy": curve(SOLVED)}
    return result("Stitching", {"epoch": [str(e) for e in epochs]}, dict.fromkeys(curves, ("epoch",)), **curves)


def replayed(gone):
    """For each spike whether it is gone without the norm's direction, its scale, gates, attention, head, weights."""
    gone = np.array(gone, dtype=float).reshape(-1, len(FROZEN))
    values = {"gone": gone, "loss": 0.1 - 0.09 * gone, "spike_loss": 0 * gone[:, 0] + 0.3}
    values["quiet_loss"] = 0 * gone[:, 0] + 0.01
    axes = {name: ("spike", "frozen")[: x.ndim] for name, x in values.items()}
    return result("Replay", {"spike": [str(i) for i in range(len(gone))], "frozen": list(FROZEN)}, axes, **values)


def donors(follows, by_sum, draws, classes):
    random = float(np.mean(draws))
    coords = {"partition": ["head", "sum"], "kind": ["centroid", "random classes"], "draw": list(map(str, draws))}
    axes = {"follows": ("partition", "kind"), "random_draws": ("partition", "draw")}
    values = {"follows": [[follows, random], [by_sum, random]], "random_draws": [draws, draws]}
    return result("FollowTheDonor", coords, axes, {"classes": [classes, 6]}, **values)


def network(
    line=0.1, plane=None, textbook=False, untrained=None, ready=(SOLVED, SOLVED + 40), gone=(),
    follows=1.0, by_sum=0.6, draws=(0.4, 0.6), classes=6, **run,
):  # fmt: skip
    """A network of the base setting."""
    return TrainedNetwork(
        dynamics(**run),
        0,
        2,
        lattice(line, plane, textbook),
        lattice(untrained),
        stitched(*ready),
        replayed(gone),
        donors(follows, by_sum, draws, classes),
    )


def weak(**settings):
    """A network that learnt little and has no head."""
    return network(**{"accuracy": 0.6, "line": None, **settings})


def full_batch(falls=((100, 120), (200, 220)), peak=1.0, accuracy=1.0, gradient_from=0, length=N, at_start=0.01):
    """A run whose loss falls in phases, with a gradient of ``peak`` there, moved by some epochs, and .01 elsewhere."""
    loss = np.full(length, 0.69)
    loss[:3] = 2.0
    gradient = np.full((length, 4), 0.01)
    levels = np.linspace(0.69, 0.01, len(falls) + 1)
    for place, (start, end) in enumerate(falls):
        loss[start:end] = np.linspace(levels[place], levels[place + 1], end - start)
        loss[end:] = levels[place + 1]
        gradient[start - 5 + gradient_from : end + 5 + gradient_from] = peak
    gradient[0] = at_start
    values = {"train_loss": loss, "gradient_norm": gradient, "test_accuracy": np.full(length, accuracy)}
    axes = {name: ("epoch", "group")[: x.ndim] for name, x in values.items()}
    coords = {"epoch": [str(e) for e in range(length)], "group": ["embeddings", "attention", "feed-forward", "all"]}
    return NetworkTraining(result("HeadDynamics", coords, axes, **values))


def curved(plateau, end, start=-1.0):
    """Hessians with these smallest eigenvalues, and 2 as the largest: at the start, three plateaus, the end."""
    smallest = np.array([start, *plateau, end])[:, None] + np.arange(4)
    coords = {"snapshot": ["0", "50", "60", "70", str(N - 1)], "rank": list("0123")}
    axes = {"smallest": ("snapshot", "rank"), "largest": ("snapshot",)}
    return result("Curvature", coords, axes, smallest=smallest, largest=np.full(5, 2.0))


def curriculum(scratch, after, plain=25.0, matched=15.0, own=(2.0, 0.5), train=1.0):
    """One seed's test accuracies, and the barriers on its lines."""
    axes = {"accuracy": ("arm", "split"), "first_accuracy": ("split",), "own_line": ("arm", "place")}
    axes |= dict.fromkeys(("line", "matched_line"), ("place",))
    coords = {"arm": ["scratch", "curriculum"], "split": ["train", "test"], "place": ["0", "0.5", "1"]}
    return result(
        "Curriculum",
        coords,
        axes,
        accuracy=[[train, scratch], [1.0, after]],
        first_accuracy=[1.0, 0.9],
        line=[0.0, plain + 1, 1.0],
        matched_line=[0.0, matched + 1, 1.0],
        own_line=[[1.0, 1 + own[0], 0.0], [1.0, 1 + own[1], 0.0]],
    )


def ends(*solved):
    """Final accuracies of an arm by seed, from whether each network solves its task."""
    return {seed: (1.0, 1.0 if done else 0.5) for seed, done in enumerate(solved)}


def results_of(*networks, **arms):
    numbered = {seed: replace(one, seed=seed) for seed, one in enumerate(networks)}
    given = {"mitigated": {}, "final": {}, "curriculum": {}, **arms}
    return HeadsResults(numbered, **given)


def findings(*networks, config=CONFIG, **arms):
    """All findings on made runs, by id."""
    return {finding.id: finding for finding in findings_of(config, results_of(*networks, **arms))}
