"""What the real checkpoints are said to show. The bounds were written before the run that tests them.

Most are from one measurement of reaction classes at [CLS], with one k-means seed and no interval: best-layer ARI .01
with random weights, .08 pretrained, .25 fine-tuned; CKA of the two falling from .92 to .33 over the layers. The bounds
leave room for other seeds of k-means, about a third of the value; they are not intervals of a population.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mechclust.evidence import Bound, Control, Finding, Findings, Within, check_part, mean_part, share_part

Found = Mapping[str, Any]  # what run.py gathered, by name
_EARLIER = "an earlier measurement, one seed"
_OURS = "this project"
_SHOWN = ("R10", "R11", "R13", "R15", "R18", "R20")  # of which the documentation tells


def findings(found: Found) -> Findings:
    """Return every finding with what was found for it."""
    every = [*_checks(found), *_faithful(found), *_reactions(found), *_others(found), *_smollm2(found)]
    return Findings(replace(f, shown="page" if f.id in _SHOWN or f.kind == "check" else "table") for f in every)


def at_least(value: float) -> Bound:
    return Bound(">=", value)


def at_most(value: float) -> Bound:
    return Bound("<=", value)


def _checks(found: Found) -> Sequence[Finding]:
    checks = found["checks"]
    passed = [float(row["failed"] == 0) for row in checks.values()]
    equal = [float(row["equal"]) for row in checks.values()]
    named = [float(found["series"] == [("last", (2,))])]
    return [
        Finding(
            id="R1",
            kind="check",
            statement="`mechclust check` fails nowhere, and its logits are Hugging Face's (share of checkpoints)",
            source=_OURS,
            parts=(check_part("no row failed", passed, at_least(1)), check_part("logits equal", equal, at_least(1))),
            unit="checkpoints",
        ),
        Finding(
            id="R2",
            kind="check",
            statement="rxnfp, fine-tuned: the last state at [CLS] is the documented fingerprint (largest difference)",
            source="rxnfp 0.1.0, README",
            parts=(check_part("", [found["fingerprint"]], at_most(1e-4)),),
            note="numbers of size 1 to 2; five of them stand in the package's README, from an older library, so that "
            "rounding is allowed for",
        ),
        Finding(
            id="R21",
            kind="check",
            statement="`mechclust history` on the three rxnfp models, with a planted copy of the last among them, "
            "names that copy and nothing else (1: so)",
            source=_OURS,
            parts=(check_part("", named, at_least(1)),),
        ),
    ]


def _faithful(found: Found) -> Sequence[Finding]:
    mlm = "a BERT that reads its input wrongly gets little more than the commonest token right"
    antibodies = "27 of 28 in an earlier look; loops between framework regions are hard to guess"
    return [
        _masked(found, "R3", "rxnfp-pretrained", "rxnfp, pretrained: masked tokens it gets right", 0.85, mlm),
        _masked(found, "R4", "rxnmapper", "rxnmapper: the same", 0.75, f"smaller, one shared layer; {mlm}"),
        _masked(found, "R5", "antiberty", "AntiBERTy: masked residues of two antibodies", 0.7, antibodies),
        Finding(
            id="R6",
            statement="SmolLM2 continues 'The capital of X is' with its name (share of 10)",
            source="general knowledge",
            parts=(share_part("", found["capitals"], at_least(0.7)),),
            unit="countries",
            note="chance: 1/49152; 135M parameters at 4 bits are allowed three mistakes",
        ),
        Finding(
            id="R7",
            statement="Gemma 3 predicts pages of this documentation (nats per token)",
            source=_OURS,
            parts=(mean_part("", found["nats"], at_most(4.0)),),
            unit="pages",
            note=f"{found['nats_uniform']:.1f} for a uniform guess; 256 tokens of each page, written after the model "
            "was trained",
        ),
        Finding(
            id="R8",
            statement="MiniLM: of 12 sentences, the nearest is the paraphrase (share)",
            source=_OURS,
            parts=(share_part("", found["paraphrases"], at_least(0.8)),),
            unit="pairs of sentences",
            note="chance: 1/12",
        ),
    ]


def _masked(found: Found, id: str, model: str, statement: str, bound: float, why: str) -> Finding:
    right, commonest = found["masked"][model]
    return Finding(
        id=id,
        statement=f"{statement} (share)",
        source=_OURS,
        parts=(share_part("", right, at_least(bound)),),
        unit="masked tokens",
        note=f"the commonest token: {commonest:.2f}; training data may overlap; {why}",
    )


def _reactions(found: Found) -> Sequence[Finding]:
    """Return R9 to R13. ``ari``: model to ``[seed layer]`` at [CLS]; ``cka``: ``[part layer]`` of base and tuned."""
    reactions = found["reactions"]
    cka = np.array(reactions["cka"])[:, 1:]
    best = {name: np.nanmax(np.array(rows), axis=1) for name, rows in reactions["ari"].items()}
    depth = [float(np.corrcoef(np.argsort(np.argsort(row)), np.arange(len(row)))[0, 1]) for row in cka]
    chance = f"chance: {reactions['chance']:.3f}, highest 97.5% of any layer under random relabelling"
    note = f"{chance}; best of 12 layers; {reactions['source']}"
    little, more = Within(0.05, 0.12), Within(0.17, 0.33)
    made = [
        Finding(
            id="R9",
            statement="reaction classes at [CLS]: random weights cluster them as chance does (ARI)",
            source=_EARLIER,
            parts=(mean_part("", best["untrained"], Within(-0.02, 0.03)),),
            control=Control("pretrained", (mean_part("", best["rxnfp-pretrained"], Within(-0.02, 0.03)),)),
            unit="models with random weights",
            paper=0.01,
            note=note,
        ),
        Finding(
            id="R10",
            statement="pre-training clusters them a little (ARI)",
            source=_EARLIER,
            parts=(mean_part("", best["rxnfp-pretrained"], little),),
            control=Control("random weights", (mean_part("", best["untrained"], little),)),
            unit="k-means seeds",
            paper=0.08,
            note=note,
        ),
        Finding(
            id="R11",
            statement="fine-tuning clusters them more (ARI)",
            source=_EARLIER,
            parts=(mean_part("", best["rxnfp-tuned"], more),),
            control=Control("random weights", (mean_part("", best["untrained"], more),)),
            unit="k-means seeds",
            paper=0.25,
            note=note,
        ),
        Finding(
            id="R12",
            statement="fine-tuned - pretrained (ARI)",
            source=_EARLIER,
            parts=(mean_part("", best["rxnfp-tuned"] - best["rxnfp-pretrained"], at_least(0.1)),),
            unit="k-means seeds",
            paper=0.17,
            note=f"paired; {note}",
        ),
        Finding(
            id="R13",
            statement="the deeper a layer, the more fine-tuning changed it (CKA with pretrained, last layer)",
            source=_EARLIER,
            parts=(
                mean_part("last layer", cka[:, -1], at_most(0.45)),
                mean_part("layer 1", cka[:, 0], at_least(0.85)),
                mean_part("Spearman with depth", depth, at_most(-0.9)),
            ),
            unit=f"disjoint fifths of {reactions['source']}",
            paper=0.33,
            note="at [CLS]; debiased",
        ),
    ]
    if reactions["real"]:
        return made
    return [replace(finding, not_tested="needs the reactions that the bounds were written for") for finding in made]


def _others(found: Found) -> Sequence[Finding]:
    natural, random = (np.array(found[name]).max(axis=1) for name in ("antibodies", "antibodies_untrained"))
    antibodies = Finding(
        id="R14",
        statement="AntiBERTy tells antibodies from the same residues shuffled (ARI, mean over tokens)",
        source=_OURS,
        parts=(mean_part("", natural, at_least(0.5)),),
        control=Control("random weights", (mean_part("", random, at_least(0.5)),)),
        unit="k-means seeds",
        note=f"chance: {found['antibodies_chance']:.3f} under random relabelling; best of 9 layers; windows of the "
        "same two chains overlap",
    )
    topics = zip(("R16", "R17"), found["topics"].items(), strict=True)
    return [antibodies, *(_topics(id, name, row) for id, (name, row) in topics)]


def _topics(id: str, name: str, row: Mapping[str, Any]) -> Finding:
    return Finding(
        id=id,
        statement=f"{name}: attention between words of a topic, over that between words of different topics (ratio)",
        source="Li, Li & Risteski, arXiv 2303.04245",
        parts=(
            mean_part("trained", row["attention"], at_least(1.0)),
            mean_part("above the highest 2.5% for random topics", _less(row["attention"], row["chance"]), at_least(0)),
            mean_part("above untrained", _less(row["attention"], row["untrained"]), at_least(0)),
        ),
        unit="topic models",
        note=f"chance: at most {max(row['chance']):.2f}, 97.5% for topics drawn at random; threshold .01, words of one "
        f"topic; {row['source']}",
    )


def _smollm2(found: Found) -> Sequence[Finding]:
    """Return R15 and R18 to R20, from ``raw``, ``given``, ``accuracy`` and ``word``: ``[seed layer]``."""
    by_layer = {name: np.array([run[name] for run in found["smollm2"]]) for name in found["smollm2"][0]}
    raw, given, accuracy, word = (by_layer[name] for name in ("raw", "given", "accuracy", "word"))
    random: Mapping[str, float] = found["smollm2_controls"]
    prompts = "examples/prompts, 10 tasks x 30"
    fresh = random["untrained_accuracy"]
    return [
        Finding(
            id="R15",
            statement="SmolLM2: states at the last prompt token cluster by what the prompt asks for (ARI)",
            source=_OURS,
            parts=(mean_part("", raw.max(axis=1), at_least(0.1)),),
            unit="k-means seeds",
            note=f"{random['null_high']:.3f} under random relabelling; best of 31 layers, the lowest "
            f"{raw.mean(axis=0).min():.3f}; {random['untrained']:.3f} with random weights; {prompts}",
        ),
        Finding(
            id="R18",
            statement="they cluster by the prompts' last word (ARI, mean over layers 5 to 25)",
            source=_EARLIER,
            parts=(
                mean_part("layers 5 to 25", word[:, 5:26].mean(axis=1), at_least(0.6)),
                mean_part("top", word[:, -1], at_least(0.4)),
            ),
            unit="k-means seeds",
            note=f"about 0 under random relabelling; words of fewer than 5 prompts are one; {prompts}",
        ),
        Finding(
            id="R19",
            statement="given the last word, they cluster by what the prompt asks for (ARI)",
            source=_EARLIER,
            parts=(
                mean_part("best layer", given.max(axis=1), at_least(0.1)),
                mean_part("random weights", [random["untrained_given"]], at_most(0.05)),
            ),
            unit="k-means seeds",
            note=f"{random['given_null_high']:.3f} under relabelling within last words; best of 31 layers; {prompts}",
        ),
        Finding(
            id="R20",
            statement="a linear classifier reads what the prompt asks for at the top layer (accuracy)",
            source=_EARLIER,
            parts=(
                share_part("top", accuracy[:, -1], at_least(0.7)),
                share_part("layer 5", accuracy[:, 5], at_least(0.2)),
                mean_part("above the best layer of random weights", accuracy[:, -1] - fresh, at_least(0)),
            ),
            unit="seeds of the folds",
            note=f"chance: 0.10; {fresh:.2f} with random weights, best layer; prompts of a task share templates; "
            f"{prompts}",
        ),
    ]


def _less(values: Sequence[float], others: Sequence[float]) -> np.ndarray:
    return np.asarray(values) - np.asarray(others)
