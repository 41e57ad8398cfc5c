"""What the real checkpoints are claimed to show. The bounds were written before the run that tests them.

Most are from one measurement of reaction classes at [CLS], with one k-means seed and no interval: best-layer ARI .01
with random weights, .08 pretrained, .25 fine-tuned; CKA of the two falling from .92 to .33 over the layers. The bounds
leave room for other seeds of k-means, about a third of the value; they are not intervals of a population.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mechclust.report.findings import Finding, Findings, finding, with_severity
from mechclust.report.severity import Severity
from mechclust.evidence.bounds import Bound

Found = Mapping[str, Any]  # what run.py gathered, by name
_SEVERITY = Severity(None, 0, "not computed yet: a null draw is a model without what is claimed, run on the same data")


def at_least(value: float) -> Bound:
    return Bound(">=", value)


def at_most(value: float) -> Bound:
    return Bound("<=", value)


def findings(found: Found) -> Findings:
    """Every finding with what was found for it."""
    return Findings(with_severity([*_faithful(found), *_reactions(found), *_others(found)], otherwise=_SEVERITY))


def _faithful(found: Found) -> Sequence[Finding]:
    checks = found["checks"]
    passed = [float(row["failed"] == 0) for row in checks.values()]
    equal = [float(row["equal"]) for row in checks.values()]
    mlm = "a BERT that reads its input wrongly gets little more than the commonest token right"
    return [
        finding(
            "R1",
            "`mechclust check` fails nowhere, and its logits are Hugging Face's (share of checkpoints)",
            "this project",
            passed,
            [("no row failed", passed, at_least(1)), ("logits equal", equal, at_least(1))],
            kind="check",
            shares=True,
            note=f"seeds: {len(checks)} checkpoints",
        ),
        finding(
            "R2",
            "rxnfp, fine-tuned: the last state at [CLS] is the documented fingerprint (largest difference)",
            "rxnfp 0.1.0, README",
            [found["fingerprint"]],
            at_most(1e-4),
            kind="check",
            chance="numbers of size 1 to 2",
            note="five numbers in the package's README, from an older library: rounding is allowed for",
        ),
        finding(
            "R21",
            "`mechclust history` on the three rxnfp models, with a planted copy of the last among them, names that "
            "copy and nothing else (1: so)",
            "this project",
            [float(found["series"] == [("last", (2,))])],
            at_least(1),
            kind="check",
        ),
        _masked(found, "R3", "rxnfp-pretrained", "rxnfp, pretrained: masked tokens it gets right", 0.85, mlm),
        _masked(found, "R4", "rxnmapper", "rxnmapper: the same", 0.75, f"smaller, one shared layer; {mlm}"),
        _masked(
            found,
            "R5",
            "antiberty",
            "AntiBERTy: masked residues of two antibodies",
            0.7,
            "27 of 28 in an earlier look; loops between framework regions are hard to guess",
        ),
        finding(
            "R6",
            "SmolLM2 continues 'The capital of X is' with its name (share of 10)",
            "general knowledge",
            found["capitals"],
            at_least(0.7),
            shares=True,
            chance="1/49152",
            note="seeds: countries; 135M parameters at 4 bits are allowed three mistakes",
        ),
        finding(
            "R7",
            "Gemma 3 predicts pages of this documentation (nats per token)",
            "this project",
            found["nats"],
            at_most(4.0),
            chance=f"{found['nats_uniform']:.1f} for a uniform guess",
            note="seeds: pages, 256 tokens each, written after the model was trained",
        ),
        finding(
            "R8",
            "MiniLM: of 12 sentences, the nearest is the paraphrase (share)",
            "this project",
            found["paraphrases"],
            at_least(0.8),
            shares=True,
            chance="1/12",
            note="seeds: pairs of sentences",
        ),
    ]


def _masked(found: Found, id: str, model: str, statement: str, bound: float, why: str) -> Finding:
    right, commonest = found["masked"][model]
    return finding(
        id,
        f"{statement} (share)",
        "this project",
        right,
        at_least(bound),
        shares=True,
        chance=f"{commonest:.2f}, the commonest token",
        note=f"seeds: masked tokens; training data may overlap; {why}",
    )


def _reactions(found: Found) -> Sequence[Finding]:
    """``ari``: model to ``[seed layer]`` at [CLS]; ``cka``: ``[part layer]`` of base and tuned."""
    real, ari, cka = found["reactions"]["real"], found["reactions"]["ari"], np.array(found["reactions"]["cka"])[:, 1:]
    best = {name: np.nanmax(np.array(rows), axis=1) for name, rows in ari.items()}
    source = found["reactions"]["source"]
    common: dict[str, Any] = {"source": "an earlier measurement, one seed", "tested": real}
    chance = f"{found['reactions']['chance']:.3f}, highest 97.5% of any layer under random relabelling"
    seeds = f"best of 12 layers; {source}"

    def within(name: str, id: str, statement: str, paper: float, low: float, high: float, of: str) -> Finding:
        values = best[name].tolist()
        parts = [("", values, at_least(low)), ("", values, at_most(high))]
        return finding(
            id, statement, values=values, bounds=parts, paper=paper, chance=chance, note=f"{of}; {seeds}", **common
        )

    gain = (best["rxnfp-tuned"] - best["rxnfp-pretrained"]).tolist()
    depth = [float(np.corrcoef(np.argsort(np.argsort(row)), np.arange(len(row)))[0, 1]) for row in cka]
    return [
        within(
            "untrained",
            "R9",
            "reaction classes at [CLS]: random weights cluster them as chance does (ARI)",
            0.01,
            -0.02,
            0.03,
            "seeds: models with random weights",
        ),
        within(
            "rxnfp-pretrained",
            "R10",
            "pre-training clusters them a little (ARI)",
            0.08,
            0.05,
            0.12,
            "seeds: of k-means",
        ),
        within("rxnfp-tuned", "R11", "fine-tuning clusters them more (ARI)", 0.25, 0.17, 0.33, "seeds: of k-means"),
        finding(
            "R12",
            "fine-tuned - pretrained (ARI)",
            values=gain,
            bounds=at_least(0.1),
            paper=0.17,
            chance="0",
            note=f"seeds: of k-means, paired; {seeds}",
            **common,
        ),
        finding(
            "R13",
            "the deeper a layer, the more fine-tuning changed it (CKA with pretrained, last layer)",
            values=cka[:, -1].tolist(),
            paper=0.33,
            chance="0: debiased",
            bounds=[
                ("last layer", cka[:, -1].tolist(), at_most(0.45)),
                ("layer 1", cka[:, 0].tolist(), at_least(0.85)),
                ("Spearman with depth", depth, at_most(-0.9)),
            ],
            note=f"seeds: disjoint fifths of {source}, at [CLS]",
            **common,
        ),
    ]


def _others(found: Found) -> Sequence[Finding]:
    natural, random = (np.array(found[name]) for name in ("antibodies", "antibodies_untrained"))
    topics = found["topics"]
    return [
        finding(
            "R14",
            "AntiBERTy tells antibodies from the same residues shuffled (ARI, mean over tokens)",
            "this project",
            natural.max(1).tolist(),
            [("trained", natural.max(1).tolist(), at_least(0.5)), ("untrained", random.max(1).tolist(), at_most(0.1))],
            chance=f"{found['antibodies_chance']:.3f} under random relabelling",
            note="best of 9 layers; seeds: of k-means; windows of the same two chains overlap",
        ),
        *_smollm2(found),
        *(
            finding(
                id,
                f"{name}: attention between words of a topic, over that between words of different topics (ratio)",
                "Li, Li & Risteski, arXiv 2303.04245",
                row["attention"],
                [
                    ("trained", row["attention"], at_least(1.0)),
                    ("above the highest 2.5% for random topics", _less(row["attention"], row["chance"]), at_least(0.0)),
                    ("above untrained", _less(row["attention"], row["untrained"]), at_least(0.0)),
                ],
                chance=f"at most {max(row['chance']):.2f}, 97.5% for topics drawn at random",
                note=f"seeds: topic models; threshold .01, words of one topic; {row['source']}",
            )
            for id, (name, row) in zip(("R16", "R17"), topics.items(), strict=True)
        ),
    ]


def _smollm2(found: Found) -> Sequence[Finding]:
    """``raw``, ``given``, ``accuracy``, ``word``: ``[seed layer]``."""
    by_layer = {name: np.array([run[name] for run in found["smollm2"]]) for name in found["smollm2"][0]}
    raw, given, accuracy, word = (by_layer[name] for name in ("raw", "given", "accuracy", "word"))
    controls: Mapping[str, float] = found["smollm2_controls"]
    seeds = "seeds: of k-means; examples/prompts, 10 tasks x 30"
    top, fresh = accuracy[:, -1].tolist(), controls["untrained_accuracy"]
    middle = word[:, 5:26].mean(1).tolist()
    return [
        finding(
            "R15",
            "SmolLM2: states at the last prompt token cluster by what the prompt asks for (ARI)",
            "this project",
            raw.max(1).tolist(),
            at_least(0.1),
            chance=f"{controls['null_high']:.3f} under random relabelling",
            note=f"best of 31 layers, the lowest {raw.mean(0).min():.3f}; {controls['untrained']:.3f} with random "
            f"weights; {seeds}",
        ),
        finding(
            "R18",
            "they cluster by the prompts' last word (ARI, mean over layers 5 to 25)",
            "an earlier measurement, one seed",
            middle,
            [("layers 5 to 25", middle, at_least(0.6)), ("top", word[:, -1].tolist(), at_least(0.4))],
            chance="about 0 under random relabelling",
            note=f"words of fewer than 5 prompts are one; {seeds}",
        ),
        finding(
            "R19",
            "given the last word, they cluster by what the prompt asks for (ARI)",
            "an earlier measurement, one seed",
            given.max(1).tolist(),
            [
                ("best layer", given.max(1).tolist(), at_least(0.1)),
                ("random weights", [controls["untrained_given"]], at_most(0.05)),
            ],
            chance=f"{controls['given_null_high']:.3f} under relabelling within last words",
            note=f"best of 31 layers; {seeds}",
        ),
        finding(
            "R20",
            "a linear classifier reads what the prompt asks for at the top layer (accuracy)",
            "an earlier measurement, one seed",
            top,
            [
                ("top", top, at_least(0.7)),
                ("layer 5", accuracy[:, 5].tolist(), at_least(0.2)),
                ("above the best layer of random weights", [x - fresh for x in top], at_least(0.0)),
            ],
            shares=("top", "layer 5"),
            chance=f"0.10; {fresh:.2f} with random weights, best layer",
            note="seeds: of the folds; prompts of a task share templates; examples/prompts, 10 tasks x 30",
        ),
    ]


def _less(values: Sequence[float], others: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(values, others, strict=True)]
