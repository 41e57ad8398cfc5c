"""Does the answer follow the task's mean state? The difference between two tasks' means is added at one layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import einops
import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probes import ProbeResult
from probes.engine.devices import device_of
from probes.engine.hooked_model import HookedModel, evaluation_mode, forward
from probes.engine.record import record
from probes.engine.sites import residual, resolve
from probes.store.versions import package_versions
from tasks import Batch, InputError, InstructionFollowing

TASK = "task"
RANDOM = "random"
HALVES = "halves"
KINDS = (TASK, RANDOM, HALVES)
PROMPT = "prompt"
POSITIONS = ("instruction_end", "input", PROMPT)
_ROUNDING = 1e-6  # of means of float32 states, relative to the states' norm

_Numbers = Int[np.ndarray, "example"]
_Rows = Float[np.ndarray, "example d"]


def swap_centroids(
    model: HookedModel, task: InstructionFollowing, known: Batch, edited: Batch, seed: int = 0
) -> ProbeResult:
    """Measure how often the answer becomes another task's when the difference of the two tasks' mean states is added.

    Every edited example ``(a, x)`` is paired with another task ``b`` that is defined on ``x`` and answers differently.
    The means are over known examples with other inputs, so the added vector carries no information about the answer. If
    states also encode ``x``, the mean of all known examples with that input is subtracted first.

    Positions: ``instruction_end`` is the last token of the instruction, ``input`` the token ``x``, and ``prompt`` all
    tokens up to ``x``. States are averaged over these tokens, and the difference is added at each of them.

    The measure ``became``, with axes (position, kind, layer), is the share of answers that are ``b``'s.

    Kinds: ``task``: the difference of the means. ``random``: a random direction of equal norm. ``halves``: the
    difference between the means of two random halves of the known examples of ``a``, scaled to that norm, or 0 if the
    halves differ by rounding only.

    Cost: one forward pass per position, kind and layer.

    Args:
        model: causal, with hooks that can write.
        task: gives the answers.
        known: examples that the means are taken over.
        edited: examples whose states are changed.
        seed: draws the other tasks, the directions and the halves.

    Raises:
        InputError: if no edited example has another task with means and a different answer.
    """
    rng = np.random.default_rng([seed, 18])
    sites = [site.name for site in resolve(model, residual())]
    known_task, known_input = _task_and_input(task, known)
    other = _other_tasks(task, known, edited, rng)
    paired = np.flatnonzero(other >= 0)
    batch = edited.select(torch.from_numpy(paired))
    a, x = _task_and_input(task, batch)
    b = other[paired]
    answers = task.mappings[b, x]
    states = _states(model, known, sites)
    half = rng.random(len(known)) < 0.5
    random = rng.normal(size=(len(paired), states[sites[0]].shape[-1]))
    has_other_input = known_input != x[:, None]
    of_a = (known_task == a[:, None]) & has_other_input
    to_other_task = _averages((known_task == b[:, None]) & has_other_input) - _averages(of_a)
    between_halves = _averages(of_a & half) - _averages(of_a & ~half)
    over_same_input = _averages(known_input == known_input[:, None])
    became = np.zeros((len(POSITIONS), len(KINDS), len(sites)))
    for p, position in enumerate(POSITIONS):
        places = _places(batch, position)
        for layer, site in enumerate(sites):
            rows = _pooled(states[site], _places(known, position))
            rounding = _ROUNDING * np.linalg.norm(rows, axis=1).mean()
            if position != "instruction_end":
                rows = rows - over_same_input @ rows
            shift = to_other_task @ rows
            for k, direction in enumerate((shift, random, between_halves @ rows)):
                added = torch.from_numpy(_scaled(direction, shift, rounding))
                predicted = _answers(model, batch, site, places[:, :, None] * added[:, None])
                became[p, k, layer] = (predicted == answers).mean()
    return ProbeResult(
        "SwappedCentroids",
        {"became": torch.from_numpy(became)},
        {"became": ("position", "kind", "layer")},
        {"position": list(POSITIONS), "kind": list(KINDS), "layer": [str(layer) for layer in range(len(sites))]},
        metadata={"n": len(paired), "known": len(known), "versions": package_versions()},
    )


def _task_and_input(task: InstructionFollowing, batch: Batch) -> tuple[_Numbers, _Numbers]:
    """Return the task and the input of each example, as numbers from 0."""
    return batch.label("task").numpy(), batch.label("input").numpy() - 1 - task.n_symbols


def _other_tasks(task: InstructionFollowing, known: Batch, edited: Batch, rng: np.random.Generator) -> _Numbers:
    """Return another task for each edited example, or -1 if there is none.

    Raises:
        InputError: if there is none for any of them.
    """
    known_task, known_input = _task_and_input(task, known)
    other = np.full(len(edited), -1)
    for i, (a, x) in enumerate(zip(*_task_and_input(task, edited), strict=True)):
        answers = task.mappings[:, x]
        n_known = np.bincount(known_task[known_input != x], minlength=len(answers))
        fits = (answers >= 0) & (answers != answers[a]) & (n_known > 0)
        if fits.any() and n_known[a] > 1:
            other[i] = rng.choice(np.flatnonzero(fits))
    if (other < 0).all():
        raise InputError(
            f"none of the {len(edited)} edited examples has another task that is defined on its input, answers "
            "differently and has other examples to average over; give more known examples"
        )
    return other


def _states(model: HookedModel, batch: Batch, sites: Sequence[str]) -> dict[str, Float[Tensor, "example pos d"]]:
    """Return the residual stream at each site."""
    with torch.inference_mode(), evaluation_mode(model), record(model, sites) as kept:
        forward(model, batch.to(device_of(model)))
    return {site: activations[0].cpu() for site, activations in kept.items()}


def _places(batch: Batch, position: str) -> Bool[Tensor, "example pos"]:
    """Return the positions at which states are read and the difference is added."""
    pos = torch.arange(batch.tokens.shape[1])
    if position == PROMPT:
        return pos <= batch.position("input")[:, None]
    return pos == batch.position(position)[:, None]


def _pooled(states: Float[Tensor, "example pos d"], places: Bool[Tensor, "example pos"]) -> _Rows:
    """Return the mean of the states at each example's places."""
    weights = places.double() / places.sum(1, keepdim=True)
    return einops.einsum(states.double(), weights, "example pos d, example pos -> example d").numpy()


def _averages(chosen: Bool[np.ndarray, "example known"]) -> Float[np.ndarray, "example known"]:
    """Return weights that average, for each example, its chosen known rows. They are 0 if there are none."""
    return chosen / np.maximum(chosen.sum(axis=1, keepdims=True), 1)


def _scaled(direction: _Rows, like: _Rows, rounding: float) -> _Rows:
    """Scale directions to the norms of others, with 0 for directions of at most the norm that rounding has."""
    norm = np.linalg.norm(direction, axis=1, keepdims=True)
    target = np.linalg.norm(like, axis=1, keepdims=True)
    return direction * np.divide(target, norm, out=np.zeros_like(norm), where=norm > rounding)


def _answers(model: HookedModel, batch: Batch, site: str, shift: Float[Tensor, "#example #pos #d"]) -> _Numbers:
    """Return the tokens that the model answers with when a shift is added to its states at a site."""
    with torch.inference_mode(), evaluation_mode(model), record(model, [site], partial(_add, shift)):
        logits = forward(model, batch.to(device_of(model))).cpu()
    return logits[torch.arange(len(batch)), batch.position("input")].argmax(-1).numpy()


def _add(
    shift: Float[Tensor, "#example #pos #d"], name: str, activation: Float[Tensor, "example pos d"]
) -> Float[Tensor, "example pos d"]:
    return activation + shift.to(activation)
