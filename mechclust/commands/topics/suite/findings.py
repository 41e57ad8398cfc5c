"""P7, and what a suite tests on any encoder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path

import numpy as np
from jaxtyping import Float

from mechclust.commands.topics.suite.curves import Curve, Measure, curve_of, mean_of, thresholds_of
from mechclust.commands.topics.suite.published import PUBLISHED, RANDOM, SOURCE
from mechclust.evidence import Bound, Control, Finding, Findings, Part, resampled_part
from mechclust.report.text import join
from probes import ProbeResult, load_result
from tasks import InputError

NEAR_ONE = 0.005  # of a model with random weights

Curves = Mapping[str, Curve]
Trained = Mapping[str, ProbeResult]
Twins = Mapping[str, Sequence[ProbeResult]]


def judge_folder(folder: str | Path) -> Findings:
    """Return the findings of a suite, from the measurements in its folder.

    Args:
        folder: the ``--out`` of a finished ``mechclust topics --suite``.

    Raises:
        InputError: where there are no measurements of a suite, or one is damaged.
    """
    paths = sorted(Path(folder).glob("results/*/*/attention.safetensors"))
    found = [load_result(path) for path in paths]
    if not found or any(result.probe != "TopicsSuiteAttention" for result in found):
        raise InputError(
            f"no measurements of a suite in {str(folder)!r}; give the --out folder of a finished "
            "mechclust topics --suite"
        )
    found.sort(key=lambda result: (result.metadata["position"], -1 if (t := result.metadata["twin"]) is None else t))
    return findings_of(found)


def findings_of(attention: Sequence[ProbeResult]) -> Findings:
    """Return P7 of both tables, and S1 and S2 of all encoders.

    Args:
        attention: results of every encoder and of its copies with random weights, named in their metadata.
    """
    trained = {result.metadata["name"]: result for result in attention if result.metadata["twin"] is None}
    twins: dict[str, list[ProbeResult]] = {name: [] for name in trained}
    for result in attention:
        if result.metadata["twin"] is not None:
            twins[result.metadata["name"]].append(result)
    return Findings(
        [
            _as_published(trained, twins, overlap=False),
            _as_published(trained, twins, overlap=True),
            _above_random("S1", "ratio of same-topic to different-topic attention", "ratio", trained, twins),
            _above_random("S2", "the same ratio at equal distance", "matched", trained, twins),
        ]
    )


# ---- P7 ----


def _as_published(trained: Trained, twins: Twins, overlap: bool) -> Finding:
    names = {result.metadata["published"]: name for name, result in trained.items() if result.metadata["published"]}
    rows = [row for row in PUBLISHED if row in names]
    curves = {row: curve_of(trained[names[row]], "ratio", overlap) for row in rows}
    random = {row: _mean_curve(twins[names[row]], "ratio", overlap) for row in rows if twins[names[row]]}
    control = dict(random)
    if "BERT" in random:
        curves[RANDOM] = random["BERT"]
        control[RANDOM] = random["BERT"]
    lacking = [row for row in (*PUBLISHED, RANDOM) if row not in curves]
    few = any(len(thresholds_of(result)) < 2 for result in trained.values())
    why_not = "one threshold, so nothing can fall" if few else ""
    if lacking:
        why_not = f"the suite has no {join(lacking)}"
    return Finding(
        id="P7b" if overlap else "P7",
        statement="pretrained encoders: same-topic attention is above different-topic attention in each, falls with "
        "the threshold and is highest in ELECTRA; random BERT is within .5% of 1 (words "
        f"{'may have several topics' if overlap else 'of one topic'})",
        source=f"{SOURCE}, tables on Wikipedia",
        parts=_as_published_parts(curves),
        control=_control("the same architectures with random weights", curves, control),
        unit="topic models",
        shown="table" if overlap else "page",
        not_tested=why_not,
        note=_varied(curves.values()),
    )


def _control(name: str, curves: Curves, random: Curves) -> Control | None:
    """Return the control of P7, if every encoder was measured with random weights too."""
    return Control(name, _as_published_parts(random)) if random and list(random) == list(curves) else None


def _as_published_parts(curves: Curves) -> tuple[Part, ...]:
    models = [row for row in curves if row != RANDOM]
    parts = [_part(f"{row}, least ratio", curves[row].statistic(_least), Bound(">", 1)) for row in models]
    for row in models:
        if curves[row].values.shape[1] > 1:
            parts.append(_part(f"{row}, least fall", curves[row].statistic(_least_fall), Bound(">", 0)))
    others = [curves[row] for row in models if row != "ELECTRA"]
    if "ELECTRA" in models and others:
        lead = curves["ELECTRA"].minus(reduce(Curve.highest, others))
        parts.append(_part("ELECTRA - highest other, least", lead.statistic(_least), Bound(">", 0)))
    if RANDOM in curves:
        far = curves[RANDOM].statistic(_from_one)
        parts.append(_part(f"{RANDOM}, largest distance from 1", far, Bound("<=", NEAR_ONE)))
    return tuple(parts)


def _least(ratios: Float[np.ndarray, "seed threshold *others"]) -> Float[np.ndarray, "seed *others"]:
    return np.asarray(ratios.min(axis=1))


def _least_fall(ratios: Float[np.ndarray, "seed threshold *others"]) -> Float[np.ndarray, "seed *others"]:
    return np.asarray(-np.diff(ratios, axis=1).max(axis=1))


def _from_one(ratios: Float[np.ndarray, "seed threshold *others"]) -> Float[np.ndarray, "seed *others"]:
    return np.asarray(np.abs(ratios - 1).max(axis=1))


# ---- any encoder ----


def _above_random(id: str, statement: str, measure: Measure, trained: Trained, twins: Twins) -> Finding:
    """Judge whether a measure is above that of the encoder with random weights, whose ratio need not be 1."""
    names = [name for name in trained if twins[name]]
    own = {name: curve_of(trained[name], measure, overlap=False) for name in names}
    excess = {name: own[name].minus(_mean_curve(twins[name], measure)) for name in names}
    control = None
    if names and all(len(twins[name]) > 1 for name in names):
        copies = {name: curve_of(twins[name][0], measure, overlap=False) for name in names}
        others = {name: copies[name].minus(_mean_curve(twins[name][1:], measure)) for name in names}
        control = Control("one copy with random weights against the others", _above_parts(others))
    left_out = [name for name in trained if name not in names]
    note = f"left out, as without an untrained twin: {join(left_out)}" if names and left_out else ""
    return Finding(
        id=id,
        statement=f"every encoder: {statement} is above that of its own architecture with random weights, at every "
        "threshold (words of one topic)",
        source="ours",
        parts=_above_parts(excess),
        control=control,
        unit="topic models",
        shown="page" if id == "S1" else "table",
        not_tested="" if names else "no encoder has an untrained twin",
        note="; ".join(filter(None, [_varied(excess.values()), note])),
    )


def _above_parts(excess: Curves) -> tuple[Part, ...]:
    return tuple(_part(f"{name}, least", curve.statistic(_least), Bound(">", 0)) for name, curve in excess.items())


# ---- both ----


def _mean_curve(results: Sequence[ProbeResult], measure: Measure, overlap: bool = False) -> Curve:
    return mean_of([curve_of(result, measure, overlap) for result in results])


def _part(name: str, measured: Curve, bound: Bound) -> Part:
    return resampled_part(name, measured.values, measured.interval(), bound)


def _varied(curves: Iterable[Curve]) -> str:
    """Return what the intervals cover, ``""`` without curves."""
    measured = list(curves)
    if not measured:
        return ""
    over = ["documents"]
    if any(len(curve.values) > 1 for curve in measured):
        over.append("topic models")
    if any(curve.without is not None for curve in measured):
        over.append("random weights")
    return f"interval over {join(over)}"
