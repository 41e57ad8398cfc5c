"""The claims on what MOSSA reads, with bounds written before any trio was measured.

Like those of ``claims.py``, they are functions of the measurements and also judge draws in which they are false and
draws in which they are true.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from mechclust.report.claims import Claim, claim
from mechclust.report.draws import one_of
from mechclust.report.findings import Finding, Parts
from mechclust.report.verdicts import Bound
from mechclust.studies.planted_layers.claims import FOUND, NEAR
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
_LATE = 0.1  # share of the plants in planted draws that are found a layer late
_DEBIASED = "debiased CKA"


def control_claims_of(config: PlantedConfig, found: Found) -> list[Claim]:
    """P11 to P17, and the check K3; none if there are no trios."""
    if not found or not found[0].readings:
        return []
    least = least_learnt(found)
    why_not = (
        f"a model learnt too little: {least:.2f} more correct answers than the base, where {_LEARNT:g} are required"
        if least < _LEARNT
        else ""
    )
    tested = config.test_claims and not why_not
    claims = [finding.judged(found, tested=tested, why_not=why_not) for finding in _findings(config, found[0])]
    below = claim(
        "K3",
        "below the first layer in which both E and its controls were trained, E is not more similar to its controls "
        "than the base is (largest gain by any measure)",
        "definition",
        no_gain_below(found),
        Bound("<=", 1e-9),
        kind="check",
        tested=config.test_claims,
    )
    return [*claims, below]


def _findings(config: PlantedConfig, first: SeedReadings) -> list[Finding[Found]]:
    margin = config.gain_margin

    def of(column: str, name: str, view: str = RESIDUAL, measure: str = _DEBIASED, prompts: str = ALL) -> _Values:
        return lambda found: read_scores(found, column, name, margin, place(view, measure, prompts))

    def several(*asked: tuple[str, _Values, Bound]) -> Callable[[Found], Parts]:
        return lambda found: [(name, values(found).tolist(), bound) for name, values, bound in asked]

    def chance(name: str) -> str:
        return f"{reading_chance(first.of(SAME), name):.2f}, a random layer"

    same = "E and its controls were trained in the same layers"
    begins = _each(_shuffled, SAME)
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
            begins,
            "the layers of every trio's curves in random order",
            chance=chance("onset"),
            planted=_each(lambda r, draw: _lasting(r, draw, margin), SAME),
            planted_what="a gain from the first trained layer to the last layer of the model",
            note=f"a gain is above {margin:g}, as in layer groups; crossing: the layer from which it stays above 0",
        ),
        Finding(
            "P12",
            f"if {same}, neither the gain nor the end of the transition marks the last of them: both are off by a "
            "layer or more, and both are there in four of five (errors in layers; debiased CKA, residual stream)",
            "ours",
            several(
                ("last layer with a gain", of(SAME, "end"), Bound(">=", 1)),
                ("end of the transition", of(SAME, "transition"), Bound(">=", 1)),
                ("share with a gain", of(SAME, "found"), FOUND),
                ("share with a transition", of(SAME, "some transition"), FOUND),
            ),
            one_of(
                _each(lambda r, draw: _ending(r, draw, margin, top=_top(r)), SAME),
                _each(lambda r, draw: _lasting(r, draw, margin, top=r.trio.truth[1]), SAME),
                _each(lambda r, draw: _without(_lasting(r, draw, margin), draw, gain=True), SAME),
                _each(lambda r, draw: _without(_lasting(r, draw, margin), draw, gain=False), SAME),
            ),
            "a gain in the trained layers only, or most dimensions from the last of them on, or a fifth without a gain "
            "or without a transition",
            chance=chance("end"),
            planted=_each(lambda r, draw: _lasting(r, draw, margin), SAME),
            planted_what="a gain from the first trained layer to the last layer of the model",
            note="anything not found counts as a random layer, so the shares are parts of their own",
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
            begins,
            "the layers of every trio's curves in random order",
            chance=f"onset {chance('onset')}, end {chance('end')}",
            planted=_each(lambda r, draw: _ending(r, draw, margin, late=True), SAME),
            planted_what="a gain in the trained layers only",
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
        ),
        Finding(
            "P15",
            "if all layers were trained at a uniform rate, layer groups still call a layer or more shared (number; "
            "debiased CKA)",
            "ours",
            several(("", of(EVERYWHERE, "shared layers"), Bound(">=", 1))),
            _from_layers({EVERYWHERE: (1, 1, 1, 2)}, margin),
            "a gain from the first layer on, in a quarter of the seeds from the second",
            chance="0 are",
            planted=_from_layers({EVERYWHERE: (2, 3, 4)}, margin),
            planted_what="a gain from layer 2, 3 or 4 on",
        ),
        Finding(
            "P16",
            "doubling E's steps does not move the end of the shared layers by more than a layer (debiased CKA)",
            "ours",
            several(
                ("", _distance(of(LONGER, "shared layers"), of(EVERYWHERE, "shared layers")), Bound("<=", 1)),
            ),
            _from_layers({LONGER: range(1, first.readings[0].n_layers + 1)}, margin),
            "a gain from a random layer on instead",
            planted=_near_columns,
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
        ),
    ]


_Values = Callable[[Found], np.ndarray]


def _less(one: _Values, other: _Values) -> _Values:
    return lambda found: one(found) - other(found)


def _distance(one: _Values, other: _Values) -> _Values:
    return lambda found: np.abs(one(found) - other(found))


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


def _late(draw: np.random.Generator) -> int:
    return int(draw.random() < _LATE)


def _top(r: Reading) -> int:
    """Layer from which dimensions are most, off the last trained layer: the last of the model or the first trained."""
    a, b = r.trio.truth
    return r.n_layers if b < r.n_layers - 1 else a


def _lasting(r: Reading, draw: np.random.Generator, margin: float, *, top: int | None = None) -> Reading:
    """A gain from the first trained layer to the last of the model; most dimensions from ``top`` on."""
    gain = _drawn_gain(r, draw, margin, r.trio.truth[0] + _late(draw), r.n_layers)
    return _with_gain(r, gain, _top(r) if top is None else top)


def _ending(
    r: Reading, draw: np.random.Generator, margin: float, *, late: bool = False, top: int | None = None
) -> Reading:
    """A gain in the trained layers only."""
    a, b = r.trio.truth
    return _with_gain(r, _drawn_gain(r, draw, margin, a + (_late(draw) if late else 0), b), b if top is None else top)


def _without(r: Reading, draw: np.random.Generator, *, gain: bool) -> Reading:
    """In as many readings as ``FOUND`` allows, no gain, or tasks so different that there is no transition."""
    if draw.random() >= 1 - FOUND.value:
        return r
    return replace(r, tuned=r.base) if gain else replace(r, spread=np.ones_like(r.spread))


def _shuffled(r: Reading, draw: np.random.Generator) -> Reading:
    order = draw.permutation(r.n_layers)
    return replace(
        r, base=r.base[..., order], tuned=r.tuned[..., order], spread=r.spread[..., order], dims=r.dims[..., order]
    )


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


def _near_columns(found: Found, draw: np.random.Generator) -> Found:
    """E with twice the steps replaced by E, shifted by a layer in a quarter of the seeds."""
    new = []
    for m in found:
        (like,) = m.of(EVERYWHERE)
        moved = draw.random() < 0.25
        changed = {
            name: np.roll(getattr(like, name), 1, axis=-1) if moved else getattr(like, name)
            for name in ("base", "tuned", "spread", "dims")
        }
        readings = tuple(replace(r, **changed) if r.trio.column == LONGER else r for r in m.readings)
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
