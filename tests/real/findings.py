"""The findings on real checkpoints with their controls: R3 to R28, and the checks R1, R2 and R21.

The bounds were written before the run that tests them. Those of R9 to R13 leave room around one earlier measurement
with one k-means seed: a best ARI of .01 with random weights, .08 pretrained and .25 fine-tuned, and a CKA that falls
from .92 to .33 over the layers. They are not intervals of a population.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Control, Finding, Findings, Part, TwoSidedBound, check_part, mean_part, share_part
from mechclust.report.rise import judge_rise_with_layer
from mechclust.report.spearman import spearman_correlation

Found = Mapping[str, Any]  # what run.py gathered, by name
Values = Sequence[float] | np.ndarray
_OURS = "this project"
_EARLIER = "an earlier measurement, one seed"
_RANDOM = "random weights"
_PROMPTS = "examples/prompts, 10 tasks x 30"
_FRESH_PROMPTS = "fresh prompts, 10 tasks x 30"
_REPEATED = {"R18": "R24", "R19": "R25", "R20": "R26", "R22": "R27", "R23": "R28"}  # on fresh prompts


def findings(found: Found) -> Findings:
    """Return every finding with what was measured for it."""
    return Findings([
        *_checks(found),
        *_masked_tokens(found["masked"]),
        *_abilities(found),
        *_reactions(found["reactions"]),
        _antibodies(found),
        *_clusters(found),
        _linear(found),
        *_chat(found),
        *_on_fresh_prompts(found["fresh"]),
        _topics("R16", "Gemma 3", found["topics"]["Gemma 3"]),
        _topics("R17", "MiniLM", found["topics"]["MiniLM"]),
    ])  # fmt: skip


def _checks(found: Found) -> list[Finding]:
    checks = found["checks"].values()
    passed = [float(row["failed"] == 0) for row in checks]
    equal = [float(row["equal"]) for row in checks]
    named = float(found["series"] == [("last", (2,))])
    return [
        Finding(
            id="R1",
            kind="check",
            statement="`mechclust check` fails nowhere, and its logits are Hugging Face's (share of checkpoints)",
            source=_OURS,
            parts=(
                check_part("no row failed", passed, Bound(">=", 1)),
                check_part("logits equal", equal, Bound(">=", 1)),
            ),
            unit="checkpoints",
        ),
        Finding(
            id="R2",
            kind="check",
            statement="rxnfp, fine-tuned: the last state at [CLS] is the documented fingerprint (largest difference)",
            source="rxnfp 0.1.0, README",
            parts=(check_part("", [found["fingerprint"]], Bound("<=", 1e-4)),),
            note="five numbers of size 1 to 2 in the package's README, from an older library: rounding is allowed for",
        ),
        Finding(
            id="R21",
            kind="check",
            statement="`mechclust history` on the three rxnfp models, with a planted copy of the last among them, "
            "names that copy and nothing else (1: so)",
            source=_OURS,
            parts=(check_part("", [named], Bound(">=", 1)),),
        ),
    ]


# ---- what the models can do ----


def _masked_tokens(masked: Mapping[str, Found]) -> list[Finding]:
    wrong = "a BERT that reads its input wrongly gets little more than the commonest token right"
    asked = {
        "R3": ("rxnfp-pretrained", "rxnfp, pretrained, gets masked tokens right", 0.85, wrong),
        "R4": ("rxnmapper", "rxnmapper gets masked tokens right", 0.75, f"smaller, one shared layer; {wrong}"),
        "R5": (
            "antiberty",
            "AntiBERTy gets masked residues of two antibodies right",
            0.7,
            "27 of 28 in an earlier look; loops between framework regions are hard to guess",
        ),
    }
    found = []
    for id, (model, statement, least, note) in asked.items():
        row = masked[model]
        finding = Finding(
            id=id,
            statement=f"{statement} (share)",
            source=_OURS,
            parts=_right(row["right"], least),
            control=Control(_RANDOM, _right(row["untrained"], least)) if "untrained" in row else None,
            unit="masked tokens",
            shown="table",
            note=f"the commonest token: {row['commonest']:.2f}; training data may overlap; {note}",
        )
        found.append(finding)
    return found


def _right(values: Values, least: float) -> tuple[Part, ...]:
    return (share_part("", values, Bound(">=", least)),)


def _abilities(found: Found) -> list[Finding]:
    return [
        Finding(
            id="R6",
            statement="SmolLM2 continues 'The capital of X is' with its name (share of 10)",
            source="general knowledge",
            parts=_right(found["capitals"], 0.7),
            unit="countries",
            shown="table",
            note="one token of 49,152; 135M parameters at 4 bits are allowed three mistakes",
        ),
        Finding(
            id="R7",
            statement="Gemma 3 predicts pages of this documentation (nats per token)",
            source=_OURS,
            parts=(mean_part("", found["nats"], Bound("<=", 4.0)),),
            unit="pages",
            shown="table",
            note=f"a uniform guess: {found['nats_uniform']:.1f}; 256 tokens of each page, written after the model was "
            "trained",
        ),
        Finding(
            id="R8",
            statement="MiniLM: of 12 sentences, the nearest is the paraphrase (share)",
            source=_OURS,
            parts=_right(found["paraphrases"], 0.8),
            unit="pairs of sentences",
            shown="table",
            note="a random sentence: 1/12",
        ),
    ]


# ---- reactions ----


def _reactions(reactions: Found) -> list[Finding]:
    """Return R9 to R13, from the ARI at [CLS] by model, ``[seed layer]``, and the CKA, ``[part layer]``."""
    best = {name: _best(ari) for name, ari in reactions["ari"].items()}
    untrained, pretrained, tuned = (best[name] for name in ("untrained", "rxnfp-pretrained", "rxnfp-tuned"))
    clusters = "states at [CLS] cluster by reaction class"
    found = [
        _ari(
            "R9",
            f"rxnfp with random weights: {clusters} as little as by chance (ARI)",
            _within(untrained, -0.02, 0.03),
            Control("the fine-tuned model", _within(tuned, -0.02, 0.03)),
            paper=0.01,
            unit="models with random weights",
        ),
        _ari(
            "R10",
            f"rxnfp, pretrained: {clusters} a little (ARI)",
            _within(pretrained, 0.05, 0.12),
            Control(_RANDOM, _within(untrained, 0.05, 0.12)),
            paper=0.08,
        ),
        _ari(
            "R11",
            f"rxnfp, fine-tuned: {clusters} more (ARI)",
            _within(tuned, 0.17, 0.33),
            Control(_RANDOM, _within(untrained, 0.17, 0.33)),
            paper=0.25,
        ),
        _ari(
            "R12",
            f"rxnfp, fine-tuned: {clusters} more than pretrained (ARI, difference)",
            (mean_part("", tuned - pretrained, Bound(">=", 0.1)),),
            None,
            paper=0.17,
        ),
    ]
    chance = f"best of 12 layers; random relabelling, highest 97.5% of any layer: {reactions['chance']:.3f}"
    found = [replace(finding, note=chance) for finding in found]
    found.append(_change_by_depth(reactions))
    not_tested = "" if reactions["real"] else "generated reactions"
    source = reactions["source"]
    return [replace(finding, note=f"{finding.note}; {source}", not_tested=not_tested) for finding in found]


def _ari(
    id: str,
    statement: str,
    parts: tuple[Part, ...],
    control: Control | None,
    *,
    paper: float,
    unit: str = "seeds of k-means",
) -> Finding:
    return Finding(
        id=id,
        statement=statement,
        source=_EARLIER,
        parts=parts,
        control=control,
        unit=unit,
        shown="table",
        paper=paper,
    )


def _change_by_depth(reactions: Found) -> Finding:
    return Finding(
        id="R13",
        statement="rxnfp: the deeper a layer, the more fine-tuning changed it (CKA with pretrained, last layer)",
        source=_EARLIER,
        parts=_falls(reactions["cka"]),
        control=Control("models with random weights", _falls(reactions["cka_untrained"])),
        unit="disjoint fifths of the reactions",
        shown="table",
        paper=0.33,
        note="at [CLS]",
    )


def _best(ari: Sequence[Values] | np.ndarray) -> Float[np.ndarray, " seed"]:
    """Return the largest ARI of any layer."""
    return np.nanmax(np.array(ari), axis=1)


def _within(values: Values, low: float, high: float) -> tuple[Part, ...]:
    return (mean_part("", values, TwoSidedBound(low, high)),)


def _falls(cka: Sequence[Values]) -> tuple[Part, ...]:
    """Judge whether CKA falls with depth; layer 0, where every [CLS] is the same, is left out."""
    curves = np.array(cka)[:, 1:]
    ranks = [spearman_correlation(np.arange(len(curve)), curve) for curve in curves]
    return (
        mean_part("last layer", curves[:, -1], Bound("<=", 0.45)),
        mean_part("layer 1", curves[:, 0], Bound(">=", 0.85)),
        mean_part("Spearman with depth", ranks, Bound("<=", -0.9)),
    )


def _antibodies(found: Found) -> Finding:
    return Finding(
        id="R14",
        statement="AntiBERTy's states, mean over tokens, cluster by whether an antibody's residues were shuffled (ARI)",
        source=_OURS,
        parts=_told_apart(found["antibodies"]),
        control=Control(_RANDOM, _told_apart(found["antibodies_untrained"])),
        unit="seeds of k-means",
        shown="table",
        note=f"best of 9 layers; random relabelling: {found['antibodies_chance']:.3f}; windows of the same two chains "
        "overlap",
    )


def _told_apart(ari: Sequence[Values]) -> tuple[Part, ...]:
    return (mean_part("", _best(ari), Bound(">=", 0.5)),)


# ---- the prompts of README ----


def _clusters(found: Found) -> list[Finding]:
    trained = found["smollm2"]
    untrained = found["smollm2_untrained"]
    lowest = _by_layer(trained, "raw").mean(0).min()
    chance = found["smollm2_controls"]
    return [
        Finding(
            id="R15",
            statement="SmolLM2's states at the last prompt token cluster by what the prompt asks for (ARI)",
            source=_OURS,
            parts=_clustered(trained, "raw"),
            control=Control(_RANDOM, _clustered(untrained, "raw")),
            unit="seeds of k-means",
            note=f"best of 31 layers, the lowest {lowest:.3f}; random relabelling: {chance['null_high']:.3f}; "
            f"{_PROMPTS}",
        ),
        Finding(
            id="R18",
            statement="SmolLM2's states at the last prompt token cluster by the prompt's last word (ARI, mean over "
            "layers 5 to 25)",
            source=_EARLIER,
            parts=_by_last_word(trained),
            control=Control(_RANDOM, _by_last_word(untrained)),
            unit="seeds of k-means",
            note=f"words of fewer than 5 prompts are one; random relabelling: about 0; {_PROMPTS}",
        ),
        Finding(
            id="R19",
            statement="given the last word, SmolLM2's states cluster by what the prompt asks for (ARI)",
            source=_EARLIER,
            parts=_clustered(trained, "given"),
            control=Control(_RANDOM, _clustered(untrained, "given")),
            unit="seeds of k-means",
            shown="table",
            note=f"best of 31 layers; relabelling within last words: {chance['given_null_high']:.3f}; {_PROMPTS}",
        ),
    ]


def _by_layer(runs: Sequence[Found], name: str) -> Float[np.ndarray, "run layer"]:
    return np.array([run[name] for run in runs])


def _clustered(runs: Sequence[Found], name: str) -> tuple[Part, ...]:
    return (mean_part("", _best(_by_layer(runs, name)), Bound(">=", 0.1)),)


def _by_last_word(runs: Sequence[Found]) -> tuple[Part, ...]:
    ari = _by_layer(runs, "word")
    return (
        mean_part("layers 5 to 25", ari[:, 5:26].mean(1), Bound(">=", 0.6)),
        mean_part("top", ari[:, -1], Bound(">=", 0.4)),
    )


def _linear(found: Found) -> Finding:
    accuracy = _by_layer(found["smollm2"], "accuracy")
    untrained = _by_layer(found["smollm2_untrained"], "accuracy")
    best = untrained.max()
    return Finding(
        id="R20",
        statement="a linear classifier reads what the prompt asks for from SmolLM2's top layer (accuracy)",
        source=_EARLIER,
        parts=_read(accuracy, best),
        control=Control(_RANDOM, _read(untrained, best)),
        unit="seeds of the folds",
        note=f"chance: 0.10; with random weights, at most {', '.join(f'{x:.2f}' for x in untrained.max(1))}; prompts "
        f"of a task share templates; {_PROMPTS}",
    )


def _read(accuracy: Float[np.ndarray, "run layer"], of_random_weights: float) -> tuple[Part, ...]:
    """Judge the accuracy at the top, at layer 5, and at the top minus the highest of all models with random weights."""
    top = accuracy[:, -1]
    return (
        share_part("top", top, Bound(">=", 0.7)),
        share_part("layer 5", accuracy[:, 5], Bound(">=", 0.2)),
        mean_part("above the best layer of all random weights", top - of_random_weights, Bound(">=", 0.0)),
    )


def _chat(found: Found) -> list[Finding]:
    """Return R22 and R23, on prompts in the chat template, which all end in the same tokens."""
    accuracy = _by_layer(found["chat"], "accuracy")
    untrained = _by_layer(found["chat_untrained"], "accuracy")
    best = untrained.max()
    return [
        Finding(
            id="R22",
            statement="in its chat template, SmolLM2's states cluster by what the prompt asks for, more with depth "
            "(ARI)",
            source="bounds of T4; an earlier measurement had .28 at the top",
            parts=_rises(found["chat"]),
            control=Control(_RANDOM, _rises(found["chat_untrained"])),
            unit="seeds of k-means",
            note=f"the template ends every prompt in the same tokens, so all states of layer 0 are equal; {_PROMPTS}",
        ),
        Finding(
            id="R23",
            statement="in its chat template, a linear classifier reads this from SmolLM2's top layer (accuracy)",
            source="bounds of R20; an earlier measurement had .98",
            parts=_read(accuracy, best),
            control=Control(_RANDOM, _read(untrained, best)),
            unit="seeds of the folds",
            note=f"chance: 0.10; prompts of a task share templates; {_PROMPTS}",
        ),
    ]


def _rises(runs: Sequence[Found]) -> tuple[Part, ...]:
    return judge_rise_with_layer(_by_layer(runs, "raw"))


def _on_fresh_prompts(found: Found) -> Iterator[Finding]:
    """Yield R24 to R28: the findings whose bounds followed a look at their prompts, on prompts that came later."""
    for finding in (*_clusters(found), _linear(found), *_chat(found)):
        if finding.id in _REPEATED:
            note = finding.note.replace(_PROMPTS, _FRESH_PROMPTS)
            source = f"{finding.id}, with its bounds"
            yield replace(finding, id=_REPEATED[finding.id], source=source, shown="table", note=note)


# ---- topics ----


def _topics(id: str, model: str, row: Found) -> Finding:
    return Finding(
        id=id,
        statement=f"{model} attends more between words of a topic than between words of different topics (ratio)",
        source="Li, Li & Risteski, arXiv 2303.04245",
        parts=_attention(row, "attention"),
        control=Control(_RANDOM, _attention(row, "untrained")),
        unit="topic models",
        shown="table",
        note=f"topics drawn at random, 97.5%: at most {max(row['chance']):.2f}; threshold .01, words of one topic; "
        f"{row['source']}",
    )


def _attention(row: Found, model: str) -> tuple[Part, ...]:
    ratios, chance, untrained = (np.array(row[name]) for name in (model, "chance", "untrained"))
    return (
        mean_part("ratio", ratios, Bound(">=", 1.0)),
        mean_part("above the highest 2.5% for random topics", ratios - chance, Bound(">=", 0.0)),
        mean_part("above untrained", ratios - untrained, Bound(">=", 0.0)),
    )
