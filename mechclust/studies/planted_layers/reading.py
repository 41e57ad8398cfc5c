"""What MOSSA reads from three models' curves, and how far that is from what was planted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

from mechclust.mossa.layer_groups import boundaries, crossovers
from mechclust.mossa.task_curves import over_tasks
from mechclust.studies.kept import check_there
from mechclust.studies.planted_layers.alike import CONTROL_VIEWS
from mechclust.studies.planted_layers.config import PlantedConfig, Span, result_path
from mechclust.studies.planted_layers.measure import ALL, RESIDUAL, SIMILARITY_MEASURES
from mechclust.studies.planted_layers.results import PROMPTS, cell_of, keys_of
from mechclust.studies.planted_layers.score import auc, chance_error, errors, layer_error, shares, truth_of
from mechclust.studies.planted_layers.trios import CROSSED, SAME, Trio, base_name, control_sets, trios_of
from probes import ProbeResult, load_result

if TYPE_CHECKING:
    import pandas as pd

_KNOWN = 0.9  # accuracy from which on a skill is known
CONTROL_MEASURES = tuple(SIMILARITY_MEASURES)
READ = (
    "auc",
    "onset",
    "end",
    "hit",
    "false",
    "found",
    "crossing",
    "shared",
    "transition",
    "by spread",
    "shared layers",
    "transition off",
    "top",
)
READING_SHARES = ("hit", "false", "found", "top", "transition off")  # of layers or trios
OF_GROUPS = (
    "shared",
    "transition",
    "by spread",
    "shared layers",
    "transition off",
)  # of the residual stream, whose dimensions they take


@dataclass(frozen=True)
class TrioReading:
    """What was measured on a trio.

    Attributes:
        trio: the trio.
        base: ``[prompts view measure layer]`` similarity of the base to the controls, median over tasks.
        tuned: the same for E.
        spread: interquartile range over tasks for E.
        dims: ``[prompts layer]`` dimensions for 99% of the variance of E's residual stream.
    """

    trio: Trio
    base: np.ndarray
    tuned: np.ndarray
    spread: np.ndarray
    dims: np.ndarray

    @property
    def gain(self) -> np.ndarray:
        """``[prompts view measure layer]`` E - base."""
        return self.tuned - self.base

    @property
    def n_layers(self) -> int:
        return int(self.base.shape[-1])


@dataclass(frozen=True)
class SeedReadings:
    """The readings of a seed.

    Attributes:
        readings: those of its trios.
        accuracy: by model and skill; a set of controls counts as one model.
        chance: by skill, the accuracy without it.
        notes: why a value is NaN.
    """

    readings: tuple[TrioReading, ...]
    accuracy: Mapping[str, Mapping[str, float]]
    chance: Mapping[str, float]
    notes: tuple[str, ...] = ()

    def of(self, column: str) -> list[TrioReading]:
        """The readings of a column."""
        return [reading for reading in self.readings if reading.trio.column == column]


def reading_scores(reading: TrioReading, margin: float) -> dict[str, np.ndarray]:
    """How far the readings are from the layers in which E was trained, each ``[prompts view measure]``.

    By the gain of the medians over tasks, with a layer called if it is above ``margin``: ``auc``, ``onset``, ``end``,
    ``hit``, ``false``, ``found`` and ``top``, as for other curves. ``crossing``: the error of the first layer from
    which the gain is above 0, with at most one exception. By ``layer_groups``: ``shared``, the error of the first layer
    after the shared ones; ``transition``, that of the transition's last layer, and ``by spread`` the same without
    dimensions; ``transition off``, whether there is one that ends elsewhere; ``shared layers``, their number. Anything
    not found counts as a random layer.
    """
    curves = reading.base, reading.tuned, reading.spread, reading.dims[:, None, None]
    return {name: _score(name, reading.trio.truth, *curves, margin) for name in READ}


def _score(
    name: str, span: Span, base: np.ndarray, tuned: np.ndarray, spread: np.ndarray, dims: np.ndarray, margin: float
) -> np.ndarray:
    """One of ``READ`` for curves ``[... layer]``; NaN if the gain is undefined."""
    (a, b), n, gain = span, base.shape[-1], tuned - base
    found: np.ndarray
    if name == "auc":
        found = auc(gain, truth_of(span, n))
    elif name in ("onset", "end"):
        found = errors(gain > margin, span)[name == "end"]
    elif name in ("hit", "false"):
        found = shares(gain > margin, truth_of(span, n))[name == "false"]
    elif name == "found":
        found = (gain > margin).any(axis=-1).astype(float)
    elif name == "top":
        found = (gain[..., -1] > margin).astype(float)
    elif name == "crossing":
        found = layer_error(np.asarray(crossovers(base, tuned)), a, n)
    else:
        shared, last = boundaries(base, tuned, spread, None if name == "by spread" else dims, margin=margin)
        if name == "shared layers":
            found = shared.astype(float)
        elif name == "transition off":
            found = ((last > shared) & (last != b)).astype(float)
        elif name == "shared":
            found = layer_error(shared + 1, a, n)
        else:
            found = layer_error(np.where(last > shared, last, 0), b, n)
    return np.where(np.isfinite(gain).all(axis=-1), found, math.nan)


def read_scores(
    found: Sequence[SeedReadings], column: str, name: str, margin: float, at: tuple[int, int, int] | None = None
) -> np.ndarray:
    """``[seed prompts view measure]`` means over the trios of a column; no seeds if there are none.

    Args:
        at: ``place`` of one curve, for which the result is ``[seed]``.
    """
    own = [m.of(column) for m in found]
    if not own or not own[0]:
        return np.empty((0, len(PROMPTS), len(CONTROL_VIEWS), len(CONTROL_MEASURES)) if at is None else 0)
    each = []
    for k, first in enumerate(own[0]):
        alike = [readings[k] for readings in own]
        base, tuned, spread = (
            np.stack([getattr(r, which)[at or ()] for r in alike]) for which in ("base", "tuned", "spread")
        )
        dims = np.stack([r.dims[:, None, None] if at is None else r.dims[at[0]] for r in alike])
        each.append(_score(name, first.trio.truth, base, tuned, spread, dims, margin))
    return np.mean(each, axis=0)  # type: ignore[no-any-return]


def place(view: str, measure: str, prompts: str = ALL) -> tuple[int, int, int]:
    """The index of a curve in ``[prompts view measure]``."""
    return PROMPTS.index(prompts), CONTROL_VIEWS.index(view), CONTROL_MEASURES.index(measure)


def reading_table(
    config: PlantedConfig, found: Sequence[SeedReadings], name: str, columns: Sequence[str]
) -> pd.DataFrame:
    """One row per measure, one column per condition: the mean over seeds of a score, with its 95% interval."""
    import pandas as pd

    columns = [column for column in columns if found[0].of(column)]
    scores = {column: read_scores(found, column, name, config.gain_margin) for column in columns}
    views = (RESIDUAL,) if name in OF_GROUPS else CONTROL_VIEWS
    rows = [
        [
            view,
            measure,
            *(
                cell_of(scores[column][:, *place(view, measure, prompts)], share=name in READING_SHARES)
                for column, prompts in keys_of(columns)
            ),
        ]
        for view in views
        for measure in CONTROL_MEASURES
    ]
    chances = [reading_chance(found[0].of(column), name) for column, _ in keys_of(columns)]
    if np.isfinite(chances).any():
        rows.append(["chance", "a random layer", *(f"{chance:.2f}" for chance in chances)])
    heads = [column if prompts == ALL else f"{column}, few prompts" for column, prompts in keys_of(columns)]
    return pd.DataFrame(rows, columns=["measured on", "measure", *heads])


def reading_chance(readings: Sequence[TrioReading], name: str) -> float:
    """The expected error of a layer drawn at random; NaN for scores that are not errors."""
    end = {"onset": 0, "crossing": 0, "shared": 0, "end": 1, "transition": 1, "by spread": 1}.get(name)
    if name == "auc":
        return 0.5
    if end is None:
        return math.nan
    return float(np.mean([chance_error(reading.trio.truth[end], reading.n_layers) for reading in readings]))


def accuracy_table(found: Sequence[SeedReadings]) -> pd.DataFrame:
    """One row per model: its share of correct answers for each measured skill, mean over seeds; last, chance."""
    import pandas as pd

    def row(name: str, of: Callable[[SeedReadings], Mapping[str, float]], *, share: bool = True) -> list[str]:
        return [name, *(cell_of(np.array([of(m)[skill] for m in found]), share=share) for skill in found[0].chance)]

    rows = [row(name, lambda m, name=name: m.accuracy[name]) for name in found[0].accuracy]  # type: ignore[misc]
    rows.append(row("chance: without the skill", lambda m: m.chance, share=False))
    return pd.DataFrame(rows, columns=["model", *found[0].chance])


def least_learnt(found: Sequence[SeedReadings]) -> tuple[float, str]:
    """What was learnt least: by how much a model exceeds both the base and chance, mean over seeds, and what it is.

    Skills at which the base is nearly perfect are left out.
    """
    gains = {}
    for skill in found[0].chance:
        if np.mean([m.accuracy["base"][skill] for m in found]) >= _KNOWN:
            continue
        for name in found[0].accuracy:
            if name != "base":
                gain = [m.accuracy[name][skill] - max(m.accuracy["base"][skill], m.chance[skill]) for m in found]
                gains[f"{name} on {skill}"] = float(np.mean(gain))
    least = min(gains, key=lambda name: gains[name], default="")
    return gains.get(least, math.nan), least


def no_gain_below(found: Sequence[SeedReadings]) -> list[float]:
    """For each seed, the largest gain below the first layer in which both E and its controls were trained."""
    largest = []
    for m in found:
        below = [r.gain[..., : r.trio.shared - 1] for r in m.readings if r.trio.column in (SAME, *CROSSED)]
        largest.append(max((float(x) for gain in below for x in gain[np.isfinite(gain)]), default=0.0))
    return largest


def in_order(found: Sequence[SeedReadings], order: Int[np.ndarray, " layer"]) -> list[SeedReadings]:
    """Return the readings with their layers in another order, the same for all of them."""
    return [replace(run, readings=tuple(_in_order(reading, order) for reading in run.readings)) for run in found]


def _in_order(reading: TrioReading, order: Int[np.ndarray, " layer"]) -> TrioReading:
    return replace(
        reading,
        base=reading.base[..., order],
        tuned=reading.tuned[..., order],
        spread=reading.spread[..., order],
        dims=reading.dims[..., order],
    )


def load_readings(config: PlantedConfig, out: Path, seed: int) -> SeedReadings:
    """Read what a seed's comparison with controls measured.

    Raises:
        InputError: if a measurement is missing; the text names it.
    """

    def read(name: str) -> ProbeResult:
        path = result_path(out, seed, name)
        check_there(out, [path])
        return load_result(path)

    trios = trios_of(config)
    results = {name: read(name) for name in dict.fromkeys(
        [*map(base_name, control_sets(config)), *(trio.name for trio in trios)])}  # fmt: skip
    similar = {name: result["similarity"].numpy() for name, result in results.items()}

    def over(name: str, share: float) -> np.ndarray:
        return over_tasks(similar[name], share)

    readings = tuple(
        TrioReading(
            trio,
            over(base_name(trio.controls), 0.5),
            over(trio.name, 0.5),
            over(trio.name, 0.75) - over(trio.name, 0.25),
            results[trio.name]["n_dims"].numpy(),
        )
        for trio in trios
    )
    models = dict.fromkeys(["base", *(trio.tuned for trio in trios), *control_sets(config)])
    accuracy: dict[str, dict[str, float]] = {}
    chance: dict[str, float] = {}
    for name in models:
        answers = read(f"learnt-{name}")
        skills = [answer.partition(".")[2] for answer in answers.coords["answer"]]
        called = name if name == "base" or name.startswith("multi") else f"controls {name}"
        accuracy[called] = dict(zip(skills, answers["accuracy"].tolist(), strict=True))
        chance |= dict(zip(skills, answers["chance"].tolist(), strict=True))
    notes = tuple(f"seed {seed}, {name}: {note}" for name, result in results.items() for note in result.notes)
    return SeedReadings(readings, accuracy, chance, notes)
