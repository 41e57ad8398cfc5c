"""The findings on what MOSSA reads, with bounds written before any trio was measured.

Like those of ``findings.py``, they are functions of the measurements and also judge draws in which they are false and
draws in which they are true.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mechclust.report.findings import Finding, finding
from mechclust.report.draws import one_of
from mechclust.report.findings import Finding, Parts
from mechclust.evidence.bounds import Bound
from mechclust.studies.planted_layers.findings import NEAR
from mechclust.studies.planted_layers.config import PlantedConfig
from mechclust.studies.planted_layers.measure import ALL, FEW, RESIDUAL, SAME_INPUT
from mechclust.studies.planted_layers.reading import (
    Reading,
    SeedReadings,
    least_learnt,
    no_gain_below,
    place,
    read_scores,
    reading_chance,
)
from mechclust.studies.planted_layers.trios import ALL_DECAYED, EVERYWHERE, LONGER, SAME

Found = Sequence[SeedReadings]
Change = Callable[[Reading, np.random.Generator], Reading]
_LEARNT = 0.1
_MOST = Bound(">=", 0.7)  # a share of ten seeds; with ten of ten, Wilson's interval begins at .72
_HALF, _FEW, _JUST = 0.51, 0.05, 0.01  # shares of the trios in draws
_DEBIASED = "debiased CKA"


def control_findings_of(config: PlantedConfig, found: Found) -> list[Finding]:
    """P11 to P17, and the check K3; none if there are no trios."""
    if not found or not found[0].readings:
        return []
    least, which = least_learnt(found)
    why_not = (
        f"a model learnt too little: {which}, {least:.2f} more correct answers than the base or than without the "
        f"skill, where {_LEARNT:g} are required"
        if least < _LEARNT
        else ""
    )
    tested = config.test_findings and not why_not
    findings = [finding.judged(found, tested=tested, why_not=why_not) for finding in _findings(config, found)]
    below = finding(
        "K3",
        "below the first layer in which both E and its controls were trained, E is not more similar to its controls "
        "than the base is (largest gain by any measure)",
        "definition",
        no_gain_below(found),
        Bound("<=", 1e-9),
        kind="check",
        tested=config.test_findings,
    )
    return [*findings, below]


def _findings(config: PlantedConfig, found: Found) -> list[Finding[Found]]:
    margin, first = config.gain_margin, found[0]

    def of(column: str, name: str, view: str = RESIDUAL, measure: str = _DEBIASED, prompts: str = ALL) -> _Values:
        return lambda found: read_scores(found, column, name, margin, place(view, measure, prompts))

    close, shared = _within_margin(config, found)
    ceiling = (
        f"in {close} of these {shared} layers, the base is so similar to the controls that no gain above {margin:g} "
        "could show"
    )

    def several(*asked: tuple[str, _Values, Bound]) -> Callable[[Found], Parts]:
        return lambda found: [(name, values(found).tolist(), bound) for name, values, bound in asked]

    def chance(name: str) -> str:
        return f"{reading_chance(first.of(SAME), name):.2f}, a random layer"

    same = "E and its controls were trained in the same layers"
    late = f"a layer late in {_HALF:.0%} of the trios"

    def trios(
        column: str, change: Callable[..., Reading], **how: float
    ) -> Callable[[Found, np.random.Generator], Found]:
        return _each(lambda r, draw: change(r, draw, margin, **how), column)

    return [
        Finding(
            "P11",
            f"if {same}, debiased CKA shows a gain of E over the base from the first of them on, and the shared "
            "layers end there (errors in layers; residual stream)",
            "ours",
            several(
                ("first layer with a gain", of(SAME, "onset"), NEAR),
                ("crossing", of(SAME, "crossing"), NEAR),
                ("first layer that is not shared", of(SAME, "shared"), NEAR),
            ),
            trios(SAME, _lasting, late=_HALF),
            f"a gain that begins {late}",
            chance=chance("onset"),
            planted=trios(SAME, _lasting, late=_FEW),
            planted_what="a gain from the first trained layer to the last layer of the model",
            note=f"a gain is above {margin:g}, as in layer groups; crossing: the layer from which it is above 0, with "
            "at most one exception",
        ),
        Finding(
            "P12",
            f"if {same}, neither the gain nor the end of the transition marks the last of them: the gain lasts to the "
            "last layer of the model, and the transition ends a layer or more off (shares of trios; debiased CKA, "
            "residual stream)",
            "ours",
            several(
                ("the gain lasts", of(SAME, "top"), _MOST),
                ("the transition ends elsewhere", of(SAME, "transition off"), _MOST),
            ),
            one_of(
                trios(SAME, _lasting, ending=1 - _MOST.value + _JUST),
                trios(SAME, _lasting, marked=1 - _MOST.value + _JUST),
            ),
            f"in {1 - _MOST.value:.0%} of the trios, a gain in the trained layers only, or most dimensions from the "
            "last of them on",
            planted=trios(SAME, _lasting),
            planted_what="a gain from the first trained layer to the last layer of the model",
            shares=True,
        ),
        Finding(
            "P13",
            f"if {same}, the gain in what each block adds to the base's stream finds both ends (errors in layers; "
            "debiased CKA)",
            "ours",
            several(
                ("onset", of(SAME, "onset", SAME_INPUT), NEAR),
                ("end", of(SAME, "end", SAME_INPUT), NEAR),
            ),
            one_of(trios(SAME, _ending, late=_HALF), trios(SAME, _ending, beyond=_HALF)),
            f"a gain that begins or ends {late}",
            chance=f"onset {chance('onset')}, end {chance('end')}",
            planted=trios(SAME, _ending, late=_FEW, beyond=_FEW),
            planted_what=f"a gain in the trained layers, a layer late in {_FEW:.0%} of the trios",
            note="that no other layer has a gain holds by construction",
        ),
        Finding(
            "P14",
            "if all layers were trained with learning rates that fall from block to block, more layers are called "
            "shared than with a uniform rate (difference; debiased CKA)",
            "ours",
            several(("", _less(of(ALL_DECAYED, "shared layers"), of(EVERYWHERE, "shared layers")), Bound(">", 0))),
            _exchanged_columns,
            "both exchanged at random, seed by seed",
            chance="0",
            planted=_from_layers({ALL_DECAYED: (4, 5, 6), EVERYWHERE: (1, 2, 3)}, margin),
            planted_what="a gain from layer 4, 5 or 6 on with falling rates, and from 1, 2 or 3 on with a uniform rate",
            note="partly arithmetic: a block with 1/128 of the rate can hardly differ from the base",
        ),
        Finding(
            "P15",
            "if all layers were trained at a uniform rate, layer groups still call a layer or more shared (share of "
            "seeds; debiased CKA)",
            "ours",
            several(("", _whether(of(EVERYWHERE, "shared layers"), lambda n: n >= 1), _MOST)),
            _from_layers({EVERYWHERE: _mixed(1, 2)}, margin),
            f"a gain from the first layer on in {1 - _MOST.value:.0%} of the seeds",
            shares=True,
            chance="0 are",
            planted=_from_layers({EVERYWHERE: (2, 3, 4)}, margin),
            planted_what="a gain from layer 2, 3 or 4 on",
            note=ceiling,
        ),
        Finding(
            "P16",
            "doubling E's steps does not move the end of the shared layers by more than a layer (share of seeds; "
            "debiased CKA)",
            "ours",
            several(
                (
                    "",
                    _whether(
                        _less(of(LONGER, "shared layers"), of(EVERYWHERE, "shared layers")), lambda n: np.abs(n) <= 1
                    ),
                    _MOST,
                ),
            ),
            lambda found, draw: _moved(found, draw, 2, 1 - _MOST.value + _JUST),
            f"E itself instead, shifted by two layers in {1 - _MOST.value:.0%} of the seeds",
            shares=True,
            planted=lambda found, draw: _moved(found, draw, 1, 0.25),
            planted_what="E itself instead of E with twice the steps, shifted by a layer in a quarter of the seeds",
        ),
        Finding(
            "P17",
            f"if {same} and there are fewer prompts than dimensions, biased CKA shows a gain in fewer of them than "
            "debiased CKA does (share of layers, debiased - biased)",
            "ours",
            several(
                (
                    "",
                    _less(of(SAME, "hit", prompts=FEW), of(SAME, "hit", measure="CKA", prompts=FEW)),
                    Bound(">", 0),
                )
            ),
            _exchanged_measures,
            "both measures exchanged at random, seed by seed",
            chance="0",
            planted=_each(lambda r, draw: _biased_misses(r, draw, margin), SAME),
            planted_what="a gain that biased CKA misses in half of the layers",
            note="the margin is the same for both, though gains in biased CKA are smaller and those in debiased CKA "
            "noisier",
        ),
    ]


_Values = Callable[[Found], np.ndarray]


def _less(one: _Values, other: _Values) -> _Values:
    return lambda found: one(found) - other(found)


def _whether(values: _Values, condition: Callable[[np.ndarray], np.ndarray]) -> _Values:
    """1 where a condition is met, and 0 elsewhere; NaN where there is no value."""

    def of(found: Found) -> np.ndarray:
        x = values(found)
        return np.where(np.isfinite(x), condition(x).astype(float), np.nan)

    return of


def _within_margin(config: PlantedConfig, found: Found) -> tuple[int, int]:
    """Of the layers called shared with all layers trained: those in which no gain could show, and their number."""
    at, margin = place(RESIDUAL, _DEBIASED), config.gain_margin
    shared = read_scores(found, EVERYWHERE, "shared layers", margin, at)
    layers = [m.of(EVERYWHERE)[0].base[at][: int(n)] for m, n in zip(found, shared, strict=True) if np.isfinite(n)]
    return sum(int((base >= 1 - margin).sum()) for base in layers), sum(map(len, layers))


def _mixed(rare: int, common: int) -> Sequence[int]:
    """Layers to draw from, one of them in just over 1 - ``_MOST`` of the draws."""
    rarely = round(100 * (1 - _MOST.value + _JUST))
    return [rare] * rarely + [common] * (100 - rarely)


# ---- draws ----


def _each(change: Change, column: str) -> Callable[[Found, np.random.Generator], Found]:
    """Every reading of a column, changed."""

    def drawn(found: Found, draw: np.random.Generator) -> Found:
        return [
            replace(m, readings=tuple(change(r, draw) if r.trio.column == column else r for r in m.readings))
            for m in found
        ]

    return drawn


def _with_gain(r: Reading, gain: np.ndarray, last: int) -> Reading:
    """A reading with this gain, most dimensions from layer ``last`` on, and tasks that hardly differ."""
    places = np.arange(1, r.n_layers + 1)
    dims = np.broadcast_to(np.where(places >= last, 100.0, 50.0), r.dims.shape)
    return replace(r, base=np.ones_like(r.base), tuned=1 + gain, spread=np.zeros_like(r.spread), dims=dims)


def _drawn_gain(r: Reading, draw: np.random.Generator, margin: float, first: int, last: int) -> np.ndarray:
    """Gains between 1 and 10 margins in some layers, and of at most half a margin elsewhere; one for all measures."""
    places = np.arange(1, r.n_layers + 1)
    inside = margin * draw.uniform(1.05, 10, r.n_layers)
    gain = np.where((places >= first) & (places <= last), inside, 0.5 * margin * draw.uniform(-1, 0, r.n_layers))
    return np.broadcast_to(gain, r.base.shape)


def _lasting(
    r: Reading,
    draw: np.random.Generator,
    margin: float,
    *,
    late: float = 0.0,
    ending: float = 0.0,
    marked: float = 0.0,
) -> Reading:
    """A gain from the first trained layer to the last of the model, with most dimensions off the last trained layer.

    In these shares of the trios, the gain begins a layer late, it ends with the trained layers, or dimensions are most
    from the last of these on.
    """
    a, b = r.trio.truth
    gain = _drawn_gain(r, draw, margin, a + (draw.random() < late), b if draw.random() < ending else r.n_layers)
    off = r.n_layers if b < r.n_layers - 1 else a
    return _with_gain(r, gain, b if draw.random() < marked else off)


def _ending(r: Reading, draw: np.random.Generator, margin: float, *, late: float = 0.0, beyond: float = 0.0) -> Reading:
    """A gain in the trained layers only; in these shares of the trios, it begins or ends a layer late."""
    a, b = r.trio.truth
    last = min(r.n_layers, b + (draw.random() < beyond))
    return _with_gain(r, _drawn_gain(r, draw, margin, a + (draw.random() < late), last), b)


def _from_layers(firsts: dict[str, Sequence[int]], margin: float) -> Callable[[Found, np.random.Generator], Found]:
    """In each of these columns, a gain from one of these layers on."""

    def drawn(found: Found, draw: np.random.Generator) -> Found:
        for column, layers in firsts.items():
            chosen = list(layers)

            def change(r: Reading, draw: np.random.Generator, chosen: list[int] = chosen) -> Reading:
                first = int(draw.choice(chosen))
                return _with_gain(r, _drawn_gain(r, draw, margin, first, r.n_layers), r.n_layers)

            found = _each(change, column)(found, draw)
        return found

    return drawn


def _exchanged_columns(found: Found, draw: np.random.Generator) -> Found:
    """Rates by layer and uniform rate exchanged in half of the seeds."""
    other = {ALL_DECAYED: EVERYWHERE, EVERYWHERE: ALL_DECAYED}
    new = []
    for m in found:
        if draw.random() < 0.5:
            trios = {r.trio.column: r.trio for r in m.readings}
            readings = tuple(
                replace(r, trio=trios[other[r.trio.column]]) if r.trio.column in other else r for r in m.readings
            )
            m = replace(m, readings=readings)
        new.append(m)
    return new


def _moved(found: Found, draw: np.random.Generator, layers: int, share: float) -> Found:
    """E with twice the steps replaced by E, shifted by this many layers in this share of the seeds."""
    new = []
    for m in found:
        (like,) = m.of(EVERYWHERE)
        by = layers if draw.random() < share else 0
        changed: dict[str, Any] = {}
        for name in ("base", "tuned", "spread", "dims"):
            curve = getattr(like, name)
            changed[name] = np.concatenate([*[curve[..., :1]] * by, curve[..., : curve.shape[-1] - by]], axis=-1)
        moved = replace(like, **changed)
        readings = tuple(replace(moved, trio=r.trio) if r.trio.column == LONGER else r for r in m.readings)
        new.append(replace(m, readings=readings))
    return new


def _exchanged_measures(found: Found, draw: np.random.Generator) -> Found:
    """Biased and debiased CKA exchanged in half of the seeds."""
    one, other = place(RESIDUAL, "CKA")[2], place(RESIDUAL, _DEBIASED)[2]

    def swapped(values: np.ndarray) -> np.ndarray:
        new = values.copy()
        new[:, :, one], new[:, :, other] = values[:, :, other], values[:, :, one]
        return new

    new = []
    for m in found:
        if draw.random() < 0.5:
            readings = tuple(replace(r, base=swapped(r.base), tuned=swapped(r.tuned)) for r in m.readings)
            m = replace(m, readings=readings)
        new.append(m)
    return new


def _biased_misses(r: Reading, draw: np.random.Generator, margin: float) -> Reading:
    """A gain that biased CKA misses in half of the layers."""
    changed = _lasting(r, draw, margin)
    tuned, biased = changed.tuned.copy(), place(RESIDUAL, "CKA")[2]
    missed = draw.random(r.n_layers) < 0.5
    tuned[:, :, biased] = np.where(missed, 1.0, tuned[:, :, biased])
    return replace(changed, tuned=tuned)
