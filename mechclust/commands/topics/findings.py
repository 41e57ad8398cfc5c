"""P7, and the findings that are tested on any model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import chain
from pathlib import Path

import numpy as np
from jaxtyping import Float

from mechclust.commands.topics.curves import Curve, Measure, curve_of, mean_against_one, mean_of, thresholds_of
from mechclust.commands.topics.published import PUBLISHED, RANDOM, SOURCE
from mechclust.evidence import Bound, Control, Finding, Findings, Part, resampled_part
from mechclust.report.text import list_text
from probes import ProbeResult, load_result
from tasks import InputError

NEAR_ONE = 0.005  # of a model with random weights
_WEIGHTS = "random weights"

Twins = Mapping[str, Sequence[ProbeResult]]
_Ratios = Float[np.ndarray, "seed threshold *resample"]
_Numbers = Float[np.ndarray, "seed *resample"]


def judge_folder(folder: str | Path) -> Findings:
    """Return the findings of a run, from the measurements in its folder.

    Args:
        folder: the ``--out`` of a finished ``mechclust topics``.

    Raises:
        InputError: if there are no measurements, or one is damaged.
    """
    paths = sorted(Path(folder).glob("results/*/*/attention.safetensors"))
    attention = [load_result(path) for path in paths]
    if not attention or any(result.probe != "TopicsSuiteAttention" for result in attention):
        raise InputError(
            f"no measurements of topics in {str(folder)!r}; give the --out folder of a finished mechclust topics"
        )
    return findings_of(sorted(attention, key=_order))


def _order(result: ProbeResult) -> tuple[int, int]:
    """Return a result's place in the run. A model comes before its copies with random weights."""
    twin = result.metadata["twin"]
    return result.metadata["position"], -1 if twin is None else int(twin)


def findings_of(attention: Sequence[ProbeResult]) -> Findings:
    """Return P7 of both tables, and S1 and S2 of all models.

    Args:
        attention: results of every model and copy with random weights, named in their metadata.
    """
    trained = {result.metadata["name"]: result for result in attention if result.metadata["twin"] is None}
    twins: dict[str, list[ProbeResult]] = {name: [] for name in trained}
    for result in attention:
        if result.metadata["twin"] is not None and result.metadata["name"] in twins:
            twins[result.metadata["name"]].append(result)
    return Findings(
        [
            _published_table("P7", "words of one topic", trained, twins, overlap=False),
            _published_table("P7b", "words may have several topics", trained, twins, overlap=True),
            _above_twin("S1", "ratio of same-topic to different-topic attention", "ratio", trained, twins),
            _above_twin("S2", "the same ratio at equal distance", "matched", trained, twins),
        ]
    )


# ---- P7 ----


def _published_table(
    id: str, which: str, trained: Mapping[str, ProbeResult], twins: Twins, *, overlap: bool
) -> Finding:
    rows = {result.metadata["published"]: result for result in trained.values() if result.metadata["published"]}
    curves = {row: curve_of(rows[row], "ratio", overlap) for row in PUBLISHED if row in rows}
    copies = {}
    for row in curves:
        copies[row] = [curve_of(twin, "ratio", overlap) for twin in twins[rows[row].metadata["name"]]]
    control = None
    if copies.get("BERT"):
        if all(copies.values()):
            control = _table_control(copies)
        curves[RANDOM] = mean_of(copies["BERT"])
    not_tested = ""
    lacking = [row for row in (*PUBLISHED, RANDOM) if row not in curves]
    if lacking:
        not_tested = f"there is no {list_text(lacking)} among the models"
    elif len(thresholds_of(rows["BERT"])) < 2:
        not_tested = "one threshold, so nothing can fall"
    return Finding(
        id=id,
        statement="pretrained encoders: same-topic attention above different-topic in each, falling with the "
        f"threshold, ELECTRA highest; random BERT within .5% of 1 ({which})",
        source=f"{SOURCE}, tables on Wikipedia",
        parts=_table_parts(curves),
        control=control,
        unit=_unit(curves.values()),
        shown="page" if rows and not overlap else "table",
        not_tested=not_tested,
    )


def _table_control(copies: Mapping[str, Sequence[Curve]]) -> Control:
    """Measure the parts of a table on random weights of every model.

    The jackknife over copies takes equally many of each model that has several.
    """
    fewest = min([len(curves) for curves in copies.values() if len(curves) > 1], default=1)
    at_random = {row: mean_of(curves[:fewest]) for row, curves in copies.items()}
    return Control(_WEIGHTS, _table_parts({**at_random, RANDOM: at_random["BERT"]}))


def _table_parts(curves: Mapping[str, Curve]) -> tuple[Part, ...]:
    models = [row for row in curves if row != RANDOM]
    parts = [_part(f"{row}, least ratio", curves[row].statistic(_least), Bound(">", 1)) for row in models]
    for row in models:
        if curves[row].values.shape[1] > 1:
            parts.append(_part(f"{row}, least fall", curves[row].statistic(_least_fall), Bound(">", 0)))
    others = [curves[row] for row in models if row != "ELECTRA"]
    if "ELECTRA" in models and others:
        lead = curves["ELECTRA"].minus(reduce(Curve.highest, others)).statistic(_least)
        parts.append(_part("ELECTRA - highest other, least", lead, Bound(">", 0)))
    if RANDOM in curves:
        distance = curves[RANDOM].statistic(_from_one)
        parts.append(_part(f"{RANDOM}, largest distance from 1", distance, Bound("<=", NEAR_ONE)))
    return tuple(parts)


# ---- any model ----


def _above_twin(id: str, statement: str, measure: Measure, trained: Mapping[str, ProbeResult], twins: Twins) -> Finding:
    """Judge whether a measure is above that of random weights: chance is not 1 if documents differ in length."""
    names = [name for name in trained if twins[name]]
    without_twins = [name for name in trained if not twins[name]]
    pairs = {}
    twin_pairs = {}
    for name in names:
        first, *others = [curve_of(twin, measure, overlap=False) for twin in twins[name]]
        pairs[name] = (curve_of(trained[name], measure, overlap=False), mean_of([first, *others]))
        if len(others) > 1:  # two copies do not tell their variation from a difference
            twin_pairs[name] = (first, mean_against_one(others))
    control = None
    if names and len(twin_pairs) == len(names):
        control = Control("one set of random weights against the others", _differences(twin_pairs))
    return Finding(
        id=id,
        statement=f"every model: {statement} above that of its own architecture with random weights, at every "
        "threshold (words of one topic)",
        source="ours",
        parts=_differences(pairs),
        control=control,
        unit=_unit(chain.from_iterable(pairs.values())),
        shown="page" if measure == "ratio" else "table",
        not_tested="" if names else "no model has a copy with random weights",
        note=f"left out, as without random weights: {list_text(without_twins)}" if names and without_twins else "",
    )


def _differences(pairs: Mapping[str, tuple[Curve, Curve]]) -> tuple[Part, ...]:
    parts = []
    for name, (curve, baseline) in pairs.items():
        parts.append(_part(f"{name}, least", curve.minus(baseline).defined.statistic(_least), Bound(">", 0)))
    return tuple(parts)


# ---- one number of a curve ----


def _part(name: str, number: Curve, bound: Bound) -> Part:
    return resampled_part(name, number.values, number.interval(), bound)


def _unit(curves: Iterable[Curve]) -> str:
    """Return the unit that an interval is over."""
    known = list(curves)
    sources = ["documents"]
    if any(len(curve.values) > 1 for curve in known):
        sources.append("topic models")
    if any(curve.without is not None for curve in known):
        sources.append(_WEIGHTS)
    return list_text(sources)


def _least(ratios: _Ratios) -> _Numbers:
    return np.asarray(ratios.min(axis=1))


def _least_fall(ratios: _Ratios) -> _Numbers:
    return np.asarray(-np.diff(ratios, axis=1).max(axis=1))


def _from_one(ratios: _Ratios) -> _Numbers:
    return np.asarray(np.abs(ratios - 1).max(axis=1))
