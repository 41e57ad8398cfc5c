"""The claims P1 to P7 of the topic-structure study, with their bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mechclust.report.claims import Claim, claim, with_severity
from mechclust.report.verdicts import Bound
from mechclust.studies.study import Job
from mechclust.studies.topic_structure.config import ROWS, TopicStructureConfig, documents_of
from mechclust.studies.topic_structure.results import PUBLISHED, THEORY_G, ArmRuns, TrainedRun, mixing_values
from mechclust.studies.topic_structure.theory import stage_one_value, theory_gap
from tasks.topic_documents import MASK, N_SPECIAL

_SOURCE = "Li, Li & Risteski"
_CLEAR = 1.05  # a ratio that initial weights alone do not reach


def _block(runs: Sequence[TrainedRun], measure: str, matrix: str, start: bool = False) -> np.ndarray:
    return np.array([float((r.start if start else r.end).sel(measure, matrix=matrix)) for r in runs])


def _least(parts: Sequence[Any]) -> list[float]:
    """Least value over arms, one per seed."""
    return np.min(np.array(parts), axis=0).tolist()  # type: ignore[no-any-return]


def claims_of(config: TopicStructureConfig, runs: ArmRuns) -> list[Claim]:
    """Claims P1 to P7. Bounds were written before the runs on the seeds they are judged by."""
    tested = config.test_claims
    theory = documents_of(config, Job("E2", config.seeds[0]))
    gap = theory_gap(theory)
    above, near = Bound(">", 0), (Bound(">=", 0.95 * gap), Bound("<=", 1.05 * gap))
    found: list[Claim] = []
    for id, arm, matrix, what in (
        ("P1a", "E1", "W_E^T W_E", "E1, embeddings trained under uniform attention"),
        ("P1b", "E2", "W_V", "E2, value matrix trained under uniform attention"),
    ):
        gaps = _block(runs[arm], "gap", matrix).tolist()
        apart = _block(runs[arm], "separation", matrix).tolist()
        found.append(
            claim(id, f"{what}: same-topic minus different-topic entries of {matrix} is 1 / (v (1 - (1 - p_c) p_m)), "
                  "every same-topic block above every different-topic one", f"{_SOURCE}, theorems", gaps,
                  [("gap", gaps, near[0]), ("gap", gaps, near[1]), ("least same - greatest other", apart, above)],
                  tested=tested, paper=gap, note=f"{np.mean(gaps) / gap - 1:+.1%} from theory, which is for infinite "
                  "documents", chance=f"{_block(runs[arm], 'gap', matrix, start=True).mean():.3g} before training")
        )  # fmt: skip
    found += [*_weight_decay(config, runs), *_every_loss(config, runs), *_two_stages(config, runs)]
    found += [*_attention(config, runs), _mixing(config, runs)]
    found.append(
        claim("P7", "pretrained encoders: same-topic attention above different-topic in each, falling with the "
              "threshold, ELECTRA highest", _SOURCE, [], Bound(">", 1), tested=False,
              why_not="needs their weights and Wikipedia: mechclust topics MODEL --corpus FILES measures it")
    )  # fmt: skip
    return with_severity(found)


def _weight_decay(config: TopicStructureConfig, runs: ArmRuns) -> list[Claim]:
    task = documents_of(config, Job("E2 weight decay", config.seeds[0]))
    value, word = stage_one_value(task), N_SPECIAL
    wanted = {
        "same": value[word, word], "different": value[word, word + task.words_per_topic], "mask": value[word, MASK]
    }  # fmt: skip
    decayed, free = runs["E2 weight decay"], runs["E2 no decay"]

    def worst(of: Sequence[TrainedRun]) -> list[float]:
        errors = [np.abs(_block(of, k, "W_V") / float(w) - 1) for k, w in wanted.items()]
        return np.max(errors, axis=0).tolist()  # type: ignore[no-any-return]

    means = ", ".join(f"{k} {_block(decayed, k, 'W_V').mean():.5f} (theory {float(w):.5f})" for k, w in wanted.items())
    far = _block(decayed, "distance", "W_V").tolist()
    options: dict[str, Any] = {"tested": config.test_claims and config.decay_steps >= 12_000}
    return [
        claim("P2", "E2 with weight decay has the block means of the unique minimum-norm optimum: largest relative "
              "error of the three", f"{_SOURCE}; closed form ours", worst(decayed), Bound("<=", 0.02), **options,
              note=f"{means}; without decay {np.mean(worst(free)):.3f} (a control added after the run)"),
        claim("P2b", "and all its entries: relative Frobenius distance (added after the run)", "ours", far,
              Bound("<=", 0.02), **options, note=f"single entries keep the noise of SGD and of "
              f"{task.n_documents} documents; without decay {_block(free, 'distance', 'W_V').mean():.2f}"),
    ]  # fmt: skip


def _every_loss(config: TopicStructureConfig, runs: ArmRuns) -> list[Claim]:
    grid = [name for name in runs if name.startswith("E1b")]

    def over(measure: Callable[[Sequence[TrainedRun], bool], np.ndarray], grown: bool = False) -> list[float]:
        return _least([measure(runs[n], False) - (measure(runs[n], True) if grown else 0) for n in grid])

    def gap(of: Sequence[TrainedRun], start: bool) -> np.ndarray:
        return _block(of, "gap", "W_E^T W_E", start)

    def off(of: Sequence[TrainedRun], start: bool) -> np.ndarray:
        return _block(of, "same_off_diagonal", "W_E^T W_E", start) - _block(of, "different", "W_E^T W_E", start)

    above = Bound(">", 0)
    tested = config.test_claims and config.steps >= 2000
    return [
        claim("P3", "E1b, everything trained: the gap of W_E^T W_E is positive for every optimiser and loss (least of "
              f"{len(grid)})", _SOURCE, over(gap),
              [("gap", over(gap), above), ("without the diagonal", over(off), above),
               ("growth in training", over(gap, True), above)],
              tested=tested, note="the diagonal alone makes the gap of an untrained matrix positive; SGD .01 with "
              "cross-entropy hardly moves, and is positive by little more than noise"),
        claim("P3b", "the same: growth of the gap without the diagonal, least (added after the run)", "ours",
              over(off, True), above, tested=tested),
    ]  # fmt: skip


def _two_stages(config: TopicStructureConfig, runs: ArmRuns) -> list[Claim]:
    def early(arm: str) -> list[float]:  # weights that never move have no first stage
        found = [run.stages for run in runs[f"E3 {arm}"]]
        return [stages.early if stages.boundary is not None else 0.0 for stages in found]

    near = early("near-zero SGD squared")
    default = np.max([early("default Adam squared"), early("default Adam cross-entropy")], axis=0).tolist()
    others = ", ".join(
        f"{name} {np.mean(early(name)):.2f}" for name in ("near-zero Adam squared", "default SGD squared")
    )
    half, options = Bound(">=", 0.5), dict[str, Any](tested=config.test_claims)
    return [
        claim("P4", "E3, squared loss, near-zero start and SGD: W_V has covered half its way when W_K or W_Q have "
              "covered a tenth of theirs; not so from the default start with Adam", f"{_SOURCE}; rule ours", near,
              [("share of W_V's way, near-zero SGD", near, half), ("default, largest", default, Bound("<", 0.5))],
              **options, note=f"also measured: {others}; ||W_V|| may first fall from the default start, which makes "
              "a negative share"),
        claim("P4b", "the same, near-zero start and SGD, cross-entropy (listed after the run)", f"{_SOURCE}; rule ours",
              early("near-zero SGD cross-entropy"), half, **options,
              note="W_V moves first but never flattens, so its share depends on when training ends"),
    ]  # fmt: skip


def _attention(config: TopicStructureConfig, runs: ArmRuns) -> list[Claim]:
    def least(names: Sequence[str]) -> list[float]:
        return _least([[run.ratio for run in runs[name]] for name in names])

    both = [f"{e} {row}" for row in ROWS for e in ("E4a", "E4b")]
    adam = [name for name in both if "Adam" in name]
    frozen, joint = ([f"{e} {row} scaled" for row in ROWS if row.startswith("SGD")] for e in ("E4a", "E4b"))
    paper = min(published[1] / published[2] for published in PUBLISHED.values())
    text, bound = "same-topic over different-topic attention", Bound(">=", _CLEAR)
    long = config.test_claims and config.attention_steps >= 10_000

    def judged(id: str, statement: str, source: str, names: Sequence[str], tested: bool) -> Claim:
        chance = _chance([runs[name][0] for name in names])
        return claim(id, statement, source, least(names), bound, tested=tested, paper=paper, chance=chance)

    return [
        judged("P5", f"E4a and E4b: {text}, every optimiser row (least of {len(both)})", _SOURCE, both,
               config.test_claims),
        judged("P5a", f"the same, Adam rows (least of {len(adam)})", f"{_SOURCE}; split ours", adam,
               config.test_claims),
        judged("P5b", "the same, E4b, SGD rows with the input as long as a LayerNorm makes a one-hot vector", "ours",
               joint, long),
        judged("P5c", "the same, E4a (listed after the run)", "ours", frozen, long),
    ]  # fmt: skip


def _chance(runs: Sequence[TrainedRun]) -> str:
    """The arms' first seed under relabelling: how far each ratio is above its own interval."""
    tops = [(run.ratio, float(run.null["overall_ratio_null_high"])) for run in runs if run.null is not None]
    if not tops:
        return "1"
    high, inside = [top for _, top in tops], sum(ratio <= top for ratio, top in tops)
    return (
        f"1; topics handed out anew, 97.5% below {min(high):.4f} to {max(high):.3f} by arm: {inside} of {len(high)} "
        "arms within (first seed)"
    )


def _mixing(config: TopicStructureConfig, runs: ArmRuns) -> Claim:
    g = mixing_values(config, runs)
    first, last = min(g), max(g)
    by_tau = np.min([np.diff(values, axis=1).min(axis=1) for values in g.values()], axis=0).tolist()
    by_topics = (g[last] - g[first]).min(axis=1).tolist() if last > first else []
    parts = [("least rise from one tau to the next", by_tau, Bound(">", 0))]
    if by_topics:
        parts.append((f"least rise from T = {first} to {last}", by_topics, Bound(">", 0)))
    values = zip(config.topics_per_document, g[first].mean(axis=0), strict=True)
    seen = ", ".join(f"{x:.2f} at {tau} (population {THEORY_G.get(tau, math.nan):.2f})" for tau, x in values)
    return claim(
        "P6", "E4a theory: g = ((v - 1) alpha + beta) / v rises with the topics in a document and with their number",
        f"{_SOURCE}, theorem", by_tau, parts, tested=config.test_claims and len(config.topics) > 1,
        note=f"g with {first} topics: {seen}" if first == 10 else "",
    )  # fmt: skip
