"""Does the answer follow the task's mean state? The difference between two tasks' means is added at one layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from probes import ProbeResult
from probes.engine.hooks import HookedModel, device_of, evaluation_mode, forward, record
from probes.engine.sites import residual, resolve
from probes.store.files import versions
from tasks import Batch, InputError, InstructionFollowing

TASK, RANDOM, HALVES = "task", "random", "halves"
KINDS = (TASK, RANDOM, HALVES)
PROMPT = "prompt"
POSITIONS = ("instruction_end", "input", PROMPT)
OUTCOMES = ("became", "stayed")


def swap_centroids(
    model: HookedModel, task: InstructionFollowing, known: Batch, asked: Batch, seed: int = 0
) -> ProbeResult:
    """How often the answer becomes another task's when the difference between the two tasks' mean states is added.

    Every asked example ``(a, x)`` is paired with another task ``b`` that is defined on ``x`` and answers differently.
    The means are over known examples with other inputs, so the added vector carries no information about the answer.
    Where states also encode ``x``, the mean of all known examples with the same input is subtracted first.

    Positions: ``instruction_end``, the last token of the instruction; ``input``, the token ``x``; ``prompt``, all
    tokens up to ``x``: states are averaged over these tokens, and the difference is added at each of them.

    Measures, with axes (position, kind, layer):
        ``became``: share of answers that are ``b``'s. ``stayed``: share that are still ``a``'s.
        ``before`` (outcome): both, with nothing added.

    Kinds: ``task``; ``random``: a random direction of the same norm; ``halves``: the difference between the means of
    two random halves of the known examples of ``a``, scaled to the same norm.

    Cost: one forward pass per position, kind and layer.

    Args:
        model: causal, with hooks that can write.
        task: gives the answers.
        known: examples that the means are taken over.
        asked: examples whose states are changed.
        seed: draws the other tasks, the directions and the halves.

    Raises:
        InputError: if no asked example has another task with means and a different answer.
    """
    rng = np.random.default_rng([seed, 18])
    sites = [site.name for site in resolve(model, residual())]
    here, there = _Examples(task, known), _Examples(task, asked)
    other = _other_tasks(task, here, there, rng)
    chosen = np.flatnonzero(other >= 0)
    if not len(chosen):
        raise InputError(
            f"none of the {len(asked)} asked examples has another task that is defined on its input, answers "
            "differently and has other examples to average over; give more known examples"
        )
    batch = asked.select(torch.from_numpy(chosen))
    own, inputs, other = there.task[chosen], there.input[chosen], other[chosen]
    answers = {"became": task.mappings[other, inputs], "stayed": task.mappings[own, inputs]}
    states, _ = _states(model, known, sites)
    half = rng.random(len(here.task)) < 0.5
    directions = rng.normal(size=(len(chosen), next(iter(states.values())).shape[-1]))
    found = {name: np.zeros((len(POSITIONS), len(KINDS), len(sites))) for name in OUTCOMES}
    for p, position in enumerate(POSITIONS):
        for layer, site in enumerate(sites):
            rows = _rows(states[site], _places(known, position))
            if position != "instruction_end":
                rows = _centred(rows, here.input)
            means = _means(rows, here, task)
            shift = means[other, inputs] - means[own, inputs]
            one, two = (_means(rows, here, task, part)[own, inputs] for part in (half, ~half))
            for k, direction in enumerate((shift, directions, one - two)):
                added = _scaled(direction, shift)
                said = _answers(model, batch, site, _places(batch, position), added)
                for name, wanted in answers.items():
                    found[name][p, k, layer] = (said == wanted).mean()
    said = _answers(model, batch)
    before = [float((said == wanted).mean()) for wanted in answers.values()]
    axes = ("position", "kind", "layer")
    return ProbeResult(
        "SwappedCentroids",
        {
            **{name: torch.from_numpy(x) for name, x in found.items()},
            "before": torch.tensor(before, dtype=torch.float64),
        },
        {**dict.fromkeys(OUTCOMES, axes), "before": ("outcome",)},
        {
            "position": list(POSITIONS),
            "kind": list(KINDS),
            "layer": [str(layer) for layer in range(len(sites))],
            "outcome": list(OUTCOMES),
        },
        metadata={"n": len(chosen), "known": len(known), "versions": versions()},
    )


class _Examples:
    """Task and input of each example, as numbers from 0."""

    def __init__(self, task: InstructionFollowing, batch: Batch) -> None:
        self.task = batch.label("task").numpy()
        self.input = batch.label("input").numpy() - 1 - task.n_symbols


def _other_tasks(
    task: InstructionFollowing, known: _Examples, asked: _Examples, rng: np.random.Generator
) -> np.ndarray:
    """``[n]`` another task for each asked example; -1 if there is none."""
    counts = np.zeros(task.mappings.shape, dtype=np.int64)
    np.add.at(counts, (known.task, known.input), 1)
    others = counts.sum(1, keepdims=True) - counts  # examples of a task that have another input
    found = np.full(len(asked.task), -1)
    for i, (a, x) in enumerate(zip(asked.task, asked.input, strict=True)):
        answers = task.mappings[:, x]
        fits = (answers >= 0) & (answers != answers[a]) & (others[:, x] > 0)
        if fits.any() and others[a, x] > 1:
            found[i] = rng.choice(np.flatnonzero(fits))
    return found


def _states(model: HookedModel, batch: Batch, sites: Sequence[str]) -> tuple[Mapping[str, Tensor], Tensor]:
    states: dict[str, Tensor] = {}

    def receive(name: str, activation: Tensor) -> None:
        states[name] = activation.cpu()

    with torch.inference_mode(), evaluation_mode(model), record(model, sites, receive):
        return states, forward(model, batch.to(device_of(model)))


def _places(batch: Batch, position: str) -> Tensor:
    """``[batch pos]`` true where something is read and added."""
    at = torch.arange(batch.tokens.shape[1])
    if position == PROMPT:
        return at <= batch.position("input")[:, None]
    return at == batch.position(position)[:, None]


def _rows(states: Tensor, places: Tensor) -> np.ndarray:
    """``[n d]`` mean of the states at each example's positions."""
    weights = places.double() / places.sum(1, keepdim=True)
    return torch.einsum("npd,np->nd", states.double(), weights).numpy()  # type: ignore[no-any-return]


def _centred(rows: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """The rows minus the mean of all rows with the same input."""
    new = rows.copy()
    for x in np.unique(inputs):
        new[inputs == x] -= rows[inputs == x].mean(0)
    return new


def _means(
    rows: np.ndarray, known: _Examples, task: InstructionFollowing, part: np.ndarray | None = None
) -> np.ndarray:
    """``[task input d]`` mean of each task's rows with another input; 0 if there are none."""
    shape = task.mappings.shape
    sums, counts = np.zeros((*shape, rows.shape[1])), np.zeros(shape)
    chosen = slice(None) if part is None else part
    where = known.task[chosen], known.input[chosen]
    np.add.at(sums, where, rows[chosen])
    np.add.at(counts, where, 1)
    total, n = sums.sum(1, keepdims=True) - sums, counts.sum(1, keepdims=True) - counts
    return total / np.maximum(n, 1)[..., None]  # type: ignore[no-any-return]


def _scaled(direction: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Directions scaled to the norms of others; 0 where a direction has norm 0."""
    norm = np.linalg.norm(direction, axis=1, keepdims=True)
    return direction * np.linalg.norm(like, axis=1, keepdims=True) / np.where(norm > 0, norm, 1)  # type: ignore[no-any-return]


def _answers(
    model: HookedModel,
    batch: Batch,
    site: str | None = None,
    places: Tensor | None = None,
    added: np.ndarray | None = None,
) -> np.ndarray:
    """``[n]`` token that the model answers with when something is added to its states."""

    def write(name: str, activation: Tensor) -> Tensor:
        assert places is not None
        return activation + places.to(activation)[..., None] * torch.from_numpy(added).to(activation)[:, None]

    with torch.inference_mode(), evaluation_mode(model), record(model, [] if site is None else [site], write):
        logits = forward(model, batch.to(device_of(model))).cpu()
    return logits[torch.arange(len(batch)), batch.position("input")].argmax(-1).numpy()  # type: ignore[no-any-return]
