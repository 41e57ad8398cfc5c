"""P7, and what a suite tests on any encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path

import numpy as np

from mechclust.commands.topics.suite.curves import Curve, Measure, curve_of, mean_of, thresholds_of
from mechclust.commands.topics.suite.published import PUBLISHED, RANDOM, SOURCE, published_ratio
from mechclust.report.findings import Finding, Findings, finding
from mechclust.report.severity import LEAST_DRAWS, Severity, severity_of
from mechclust.report.text import join
from mechclust.evidence.bounds import Bound, Verdict, together
from probes import ProbeResult, load_result
from tasks import InputError

NEAR_ONE = 0.005  # of a model with random weights
_NULL = (
    "ratios that make the finding true, but for one encoder, drawn at random, {how}; the measured variation over "
    "documents and topic models, which all encoders share, and over random weights"
)
_Stat = tuple[str, Curve, Bound]  # name, a number with what varies about it
_False = tuple[str, np.ndarray]


def judge_folder(folder: str | Path) -> Findings:
    """The findings of a suite, from the measurements in its folder.

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


def findings_of(attention: Sequence[ProbeResult], draws: int = LEAST_DRAWS) -> Findings:
    """P7 of both tables, and S1 and S2 of all encoders.

    Args:
        attention: results of every encoder and random twin, named in their metadata.
        draws: number of null draws behind each severity, and of planted draws; 0: no severity.
    """
    trained = {r.metadata["name"]: r for r in attention if r.metadata["twin"] is None}
    twins = {
        name: [r for r in attention if r.metadata["name"] == name and r.metadata["twin"] is not None]
        for name in trained
    }
    return Findings(
        [
            *(_p7(trained, twins, overlap, draws) for overlap in (False, True)),
            _above_twin("S1", "ratio of same-topic to different-topic attention", "ratio", trained, twins, draws),
            _above_twin("S2", "the same ratio at equal distance", "matched", trained, twins, draws),
        ]
    )


# ---- P7 ----


def _p7(
    trained: Mapping[str, ProbeResult], twins: Mapping[str, Sequence[ProbeResult]], overlap: bool, draws: int
) -> Finding:
    rows = {r.metadata["published"]: r for r in trained.values() if r.metadata["published"]}
    thresholds = thresholds_of(next(iter(trained.values()))) if trained else []
    curves = {row: curve_of(rows[row], "ratio", overlap) for row in PUBLISHED if row in rows}
    random = twins[rows["BERT"].metadata["name"]] if "BERT" in rows else []
    if random:
        curves[RANDOM] = mean_of([curve_of(r, "ratio", overlap) for r in random])
    lacking = [row for row in (*PUBLISHED, RANDOM) if row not in curves]
    few = "one threshold, so nothing can fall" if len(thresholds) < 2 else ""
    expected = {row: np.array([published_ratio(row, "attention", t, overlap) for t in thresholds]) for row in curves}
    return _judged(
        "P7b" if overlap else "P7",
        "pretrained encoders: same-topic attention above different-topic in each, falling with the threshold, ELECTRA "
        f"highest; random BERT within .5% of 1 (words {'may have several topics' if overlap else 'of one topic'})",
        f"{SOURCE}, tables on Wikipedia",
        curves,
        _p7_parts,
        Bound(">", 1),
        why_not=f"the suite has no {join(lacking)}" if lacking else few,
        false=_p7_false(expected),
        how="whose ratios are 1 at every threshold or do not fall from one threshold to the next, or of which another "
        "is as high as ELECTRA, or random BERT .5% off 1",
        planted=expected if all(np.isfinite(e).all() for e in expected.values()) else None,
        draws=draws,
    )


def _p7_false(expected: Mapping[str, np.ndarray]) -> list[_False]:
    """Each way in which P7 is false: an encoder whose curve it is not."""
    found: list[_False] = []
    for row, curve in expected.items():
        found.append((row, np.full(len(curve), 1 + (NEAR_ONE + 1e-9) * (row == RANDOM))))
        if row != RANDOM and len(curve) > 1:
            flat = curve.copy()
            flat[-1] = flat[-2] + 1e-9
            found.append((row, flat))
    others = [curve for row, curve in expected.items() if row not in (RANDOM, "ELECTRA")]
    if "ELECTRA" in expected and others:
        found.append(("ELECTRA", np.max(others, axis=0) - 1e-9))
    return found


def _p7_parts(curves: Mapping[str, Curve]) -> list[_Stat]:
    found: list[_Stat] = []
    models = [row for row in curves if row != RANDOM]
    for row in models:
        found.append((f"{row}, least ratio", curves[row].statistic(_least), Bound(">", 1)))
    for row in models:
        if curves[row].values.shape[1] > 1:
            found.append((f"{row}, least fall", curves[row].statistic(_least_fall), Bound(">", 0)))
    others = [row for row in models if row != "ELECTRA"]
    if "ELECTRA" in models and others:
        lead = curves["ELECTRA"].minus(reduce(Curve.highest, (curves[row] for row in others)))
        found.append(("ELECTRA - highest other, least", lead.statistic(_least), Bound(">", 0)))
    if RANDOM in curves:
        found.append((f"{RANDOM}, largest distance from 1", curves[RANDOM].statistic(_from_one), Bound("<=", NEAR_ONE)))
    return found


def _least(x: np.ndarray) -> np.ndarray:
    return np.asarray(x.min(axis=1))


def _least_fall(x: np.ndarray) -> np.ndarray:
    return np.asarray(-np.diff(x, axis=1).max(axis=1))


def _from_one(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.abs(x - 1).max(axis=1))


# ---- any encoder ----


_TWIN = "\0random weights"  # no name of an encoder ends so


def _above_twin(
    id: str,
    statement: str,
    measure: Measure,
    trained: Mapping[str, ProbeResult],
    twins: Mapping[str, Sequence[ProbeResult]],
    draws: int,
) -> Finding:
    """That a measure is above that of the encoder's twins: chance is not 1 where documents differ in length."""
    with_twin = [name for name in trained if twins[name]]
    curves = {name: curve_of(trained[name], measure, overlap=False) for name in with_twin}
    for name in with_twin:
        curves[name + _TWIN] = mean_of([curve_of(r, measure, overlap=False) for r in twins[name]])
    others = [name for name in trained if name not in with_twin]
    return _judged(
        id,
        f"every encoder: {statement} above that of its own architecture with random weights, at every threshold (words "
        "of one topic)",
        "ours",
        curves,
        partial(_above_parts, names=with_twin),
        Bound(">", 0),
        why_not="" if curves else "no encoder has an untrained twin",
        false=[(name, np.ones(curves[name].values.shape[1])) for name in with_twin],
        how="whose ratios are those of its twin",
        planted={name: np.full(c.values.shape[1], 1.0 if name.endswith(_TWIN) else 1.2) for name, c in curves.items()},
        draws=draws,
        note=f"left out, as without an untrained twin: {join(others)}" if curves and others else "",
    )


def _above_parts(curves: Mapping[str, Curve], names: Sequence[str]) -> list[_Stat]:
    return [
        (f"{name}, least", curves[name].minus(curves[name + _TWIN]).statistic(_least), Bound(">", 0)) for name in names
    ]


# ---- how ----


@dataclass(frozen=True)
class _Judge:
    """From curves to a finding, the same for measured and for drawn ones."""

    id: str
    statement: str
    source: str
    parts: Callable[[Mapping[str, Curve]], list[_Stat]]
    bound: Bound
    note: str = ""

    def __call__(self, curves: Mapping[str, Curve], *, why_not: str = "", severity: Severity | None = None) -> Finding:
        """Not tested if ``why_not`` gives a reason; the numbers are kept."""
        stats = self.parts(curves) if curves else []
        given = {name: found.interval() for name, found, _ in stats}
        twins = any(found.without is not None for _, found, _ in stats)
        models = any(len(found.values) > 1 for _, found, _ in stats)
        over = ["documents", *["topic models"] * models, *["random weights"] * twins]
        bounds = [(name, found.values.tolist(), bound) for name, found, bound in stats]
        return finding(
            self.id, self.statement, self.source, bounds[0][1] if bounds else [], bounds or self.bound, interval=given,
            tested=not why_not, why_not=why_not, chance="1 (ratio), 0 (difference)", severity=severity,
            note="; ".join(filter(None, [f"interval over {join(over)}" if stats else "", self.note])),
        )  # fmt: skip


def _verdict(stats: Sequence[_Stat]) -> Verdict:
    """The number as in the finding, without the finding."""
    return together(bound.judge(found.interval()) for _, found, bound in stats)


def _judged(
    id: str,
    statement: str,
    source: str,
    curves: Mapping[str, Curve],
    parts: Callable[[Mapping[str, Curve]], list[_Stat]],
    bound: Bound,
    *,
    why_not: str,
    false: Sequence[_False],
    planted: Mapping[str, np.ndarray] | None,
    draws: int,
    how: str,
    note: str = "",
) -> Finding:
    """The finding with its severity, if it can be tested.

    Args:
        false: ways in which the finding is false: an encoder, and the curve that makes it so.
        planted: the curves of all encoders that make the finding true; ``None``: not known, so that in null draws all
            ratios are 1.
        how: what the ways are, for the severity's note.
        note: of the finding.
    """
    judge = _Judge(id, statement, source, parts, bound, note)
    if why_not or not curves:
        return judge(curves, why_not=why_not, severity=Severity(None, 0, f"none: {why_not}"))
    if not draws:
        return judge(curves, severity=Severity(None, 0, "none: no draws were requested"))

    n = len(next(iter(curves.values())).values)
    defined = np.flatnonzero(np.all([np.isfinite(c.drawn).all(axis=(0, 1)) for c in curves.values()], axis=0))
    if not len(defined):
        why = "none: every resample of the documents leaves some ratio undefined"
        return judge(curves, severity=Severity(None, 0, why))

    def drawn(means: Mapping[str, np.ndarray], rng: np.random.Generator) -> Verdict:
        """All encoders were measured on the same documents with the same topic models."""
        weights = rng.normal(size=(n, n)) / np.sqrt(max(1, n - 1))
        resample = int(rng.choice(defined))
        return _verdict(parts({name: c.noisy(means[name], weights, resample, rng) for name, c in curves.items()}))

    def null(rng: np.random.Generator) -> Verdict:
        if planted is None:
            return drawn({name: np.ones(c.values.shape[1]) for name, c in curves.items()}, rng)
        name, curve = false[int(rng.integers(len(false)))]
        return drawn({**planted, name: curve}, rng)

    def true(rng: np.random.Generator) -> Verdict:
        return drawn(planted or {}, rng)

    what = _NULL.format(how=how)
    return judge(curves, severity=severity_of(null, what, planted=true if planted else None, draws=draws))
