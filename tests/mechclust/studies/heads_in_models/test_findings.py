"""The findings on numbers made by hand: values, and where they hold or fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mechclust.studies.heads_in_models.config import INSTRUCTIONS, OFF, PLANTED, PROMPTS, addition_arm
from mechclust.studies.heads_in_models.discovery import control_heads, largest_heads
from mechclust.studies.heads_in_models.findings import findings_of
from mechclust.studies.heads_in_models.results import Data, data_of, measure_key
from mechclust.studies.heads_in_models.together import IRRELEVANT, RANDOM_HEADS, RELEVANT
from tests.mechclust.studies.heads_in_models.made import CONFIG, PAPER, made_models

IDS = [
    *("A1", "A2", "A3", "A6", "A7"),
    *("W1", "W2", "W3", "W4", "W5", "W6", "W7", "W10"),
    *("I1", "I2", "I3", "I4", "I5", "I6", "K1", "K2"),
]
ASKED = f"agreement asked, {largest_heads(64)}"
ASKED_OF_OTHERS = f"agreement asked, {control_heads(64)}"
COMPACT = f"compactness, {largest_heads(64)}"
SEEDS = 12


def ideal(**changes: float) -> dict[str, np.ndarray]:
    """Twelve seeds in which every finding holds and no control does.

    Args:
        changes: new means by ``arm|subject|measure``, with a spread of .01 unless they are 0 or 1.
    """
    draw = np.random.default_rng(0)
    one = np.ones(SEEDS)
    none = np.zeros(SEEDS)

    def about(mean: float, spread: float = 0.05) -> np.ndarray:
        return mean + spread * draw.standard_normal(SEEDS)

    data = {measure_key(PLANTED, "read", "exact"): one, measure_key(PLANTED, "unread", "any"): none}
    for arm in [*map(addition_arm, PAPER.moduli), INSTRUCTIONS]:
        trained = {"accuracy": about(0.98, 0.005), "any": one, "any control": none, "first layer": none}
        trained |= {"last layer": one, "called in last layer": about(2.5), "best ratio": about(0.3)}
        trained |= {"agreement answer": about(0.6), f"agreement {OFF}": about(0), "best ratio control": about(0.5)}
        untrained = {"accuracy": about(0.3), "any": none, "best ratio": about(0.6), "best ratio control": about(0.5)}
        untrained |= {"called in last layer": none, "agreement answer": about(0), f"agreement {OFF}": about(0.1)}
        data |= {measure_key(arm, "trained", name): values for name, values in trained.items()}
        data |= {measure_key(arm, "untrained", name): values for name, values in untrained.items()}
    for kind, asked in (("pretrained", 0.4), ("random", 0.0)):
        for order in ("first", "second"):
            values = {"accuracy": about(2 * asked + 0.1, 0.02)}
            values |= {f"carried, {RELEVANT}": about(1.5 * asked), f"carried, {RANDOM_HEADS}": about(0)}
            values |= {f"changed, {RELEVANT}": about(1.6 * asked), f"changed, {IRRELEVANT}": abs(about(0, 0.02))}
            values |= {ASKED: about(2 * asked), ASKED_OF_OTHERS: about(0), COMPACT: about(0.1 - asked)}
            data |= {measure_key(PROMPTS, f"{kind}-{order}", name): of for name, of in values.items()}
        data[measure_key(PROMPTS, kind, "common")] = about(0.7 if asked else 0.1, 0.02)
        data[measure_key(PROMPTS, kind, "switching")] = about(5 if asked else 0)
        data[measure_key(PROMPTS, kind, "switching other")] = about(3)
    data |= blocks()
    for name, value in changes.items():
        at = measure_key(*name.split("|"))
        assert at in data, at
        data[at] = value * one if value in (0, 1) else np.abs(about(value, 0.01)) * np.sign(value)
    return data


def blocks() -> dict[str, np.ndarray]:
    """Task-ARI by layer and heads called by block, which are in another block in every second network."""
    first = np.arange(SEEDS) % 2 == 0
    noise = 0.01 * np.random.default_rng(1).standard_normal(SEEDS)
    middle = np.where(first, 0.6, 0.2) + noise
    return {
        measure_key(INSTRUCTIONS, "trained", "task-ARI"): np.stack([noise, middle, 0.8 + noise], axis=1),
        measure_key(INSTRUCTIONS, "trained", "heads called"): np.where(first[:, None], [3, 1], [0, 2]),
    }


def verdicts(data: Data) -> dict[str, str]:
    return {finding.id: finding.verdict for finding in findings_of(PAPER, data)}


# ---- values ----


def test_values_are_those_of_the_models_and_measures_that_a_finding_names() -> None:
    data = data_of(CONFIG, made_models())
    n = CONFIG.together[-1]

    def add(subject: str, measure: str, moduli: tuple[int, ...] = (3, 4)) -> list[np.ndarray]:
        return [data[f"addition-{p} {subject} {measure}"] for p in moduli]

    def ends(kind: str, measure: str) -> list[np.ndarray]:
        return [data[f"prompts {kind}-first {measure}"], data[f"prompts {kind}-second {measure}"]]

    def minus(values: list[np.ndarray], others: list[np.ndarray]) -> list[np.ndarray]:
        return [a - b for a, b in zip(values, others, strict=True)]

    def larger(values: list[np.ndarray], others: list[np.ndarray]) -> list[list[float]]:
        return [list(map(max, a, b)) for a, b in zip(values, others, strict=True)]

    def follow(subject: str, measure: str) -> list[np.ndarray]:
        return [data[f"instructions {subject} {measure}"]]

    def kinds(measure: str) -> tuple[np.ndarray, np.ndarray]:
        return data[f"prompts pretrained {measure}"], data[f"prompts random {measure}"]

    def agreement(subject: str) -> list[np.ndarray]:
        all_moduli = (2, 3, 4)
        return minus(add(subject, "agreement answer", all_moduli), add(subject, f"agreement {OFF}", all_moduli))

    def fall(measure: str) -> list[np.ndarray]:
        return minus(follow("trained", measure), follow("untrained", measure))

    switching, other, common = kinds("switching"), kinds("switching other"), kinds("common")
    asked = f"agreement asked, largest effect, {n}"
    compact = f"compactness, largest effect, {n}"
    controls = larger(ends("pretrained", f"agreement asked, other heads, {n}"), ends("random", asked))
    expected = {
        "A1": (add("trained", "accuracy", (2, 3, 4)), add("untrained", "accuracy", (2, 3, 4))),
        "A2": (add("trained", "last layer"), larger(add("untrained", "any"), add("trained", "any control"))),
        "A3": (add("trained", "first layer"), add("trained", "last layer")),
        "A6": (add("trained", "called in last layer"), add("untrained", "called in last layer")),
        "A7": (agreement("trained"), agreement("untrained")),
        "W1": (ends("pretrained", "accuracy"), ends("random", "accuracy")),
        "W2": ([switching[0]], [switching[1]]),
        "W3": ([switching[0] - switching[1]], [other[0] - other[1]]),
        "W4": (minus(ends("pretrained", f"carried, {RELEVANT}"), ends("pretrained", f"carried, {RANDOM_HEADS}")), None),
        "W5": ([common[0]], [common[1]]),
        "W6": (ends("pretrained", f"changed, {IRRELEVANT}"), ends("pretrained", f"changed, {RELEVANT}")),
        "W7": (ends("pretrained", asked), controls),
        "W10": (ends("pretrained", compact), ends("random", compact)),
        "I1": (follow("trained", "accuracy"), follow("untrained", "accuracy")),
        "I2": (follow("trained", "any"), follow("untrained", "any")),
        "I3": (follow("untrained", "any"), follow("trained", "any")),
        "I4": (fall("best ratio"), fall("best ratio control")),
        "I6": (follow("trained", "any control"), follow("trained", "any")),
    }
    exact = data["planted read exact"] if "planted read exact" in data else np.zeros(3)
    findings = {finding.id: finding for finding in findings_of(CONFIG, {**data, "planted read exact": exact})}
    assert list(findings) == IDS
    for id, (parts, control_parts) in expected.items():
        finding = findings[id]
        assert np.allclose([part.values for part in finding.parts], parts, atol=1e-12), id
        assert (finding.control is None) == (control_parts is None), id
        if finding.control is not None:
            assert np.allclose([part.values for part in finding.control.parts], control_parts, atol=1e-12), id
        assert finding.unit == ("draws of words" if id[0] == "W" else "seeds")
    assert [part.name for part in findings["A2"].parts] == ["p = 3", "p = 4"]
    assert [part.name for part in findings["W7"].parts] == ["first name last", "second name last"]


def test_a_rise_is_judged_where_heads_of_the_network_or_of_another_one_are_called() -> None:
    data = ideal()
    (finding,) = [finding for finding in findings_of(PAPER, data) if finding.id == "I5"]
    ari = data[measure_key(INSTRUCTIONS, "trained", "task-ARI")]
    called = data[measure_key(INSTRUCTIONS, "trained", "heads called")]
    assert np.allclose(finding.parts[0].values, rises_by_hand(ari, called))
    of_another = np.roll(called, 1, axis=0)
    assert (of_another != called).any()
    assert finding.control is not None
    assert np.allclose(finding.control.parts[0].values, rises_by_hand(ari, of_another))


def rises_by_hand(ari: np.ndarray, called: np.ndarray) -> list[float]:
    """How much more the task-ARI rises in the block with more heads called, of two."""
    rises = []
    for (start, middle, end), (in_first, in_second) in zip(ari, called, strict=True):
        in_first_block = (middle - start) - (end - middle)
        rises.append(in_first_block if in_first > in_second else -in_first_block)
    return rises


# ---- verdicts ----


def test_every_finding_holds_on_ideal_numbers_and_no_control_does() -> None:
    findings = findings_of(PAPER, ideal())
    assert {finding.id: finding.verdict for finding in findings} == dict.fromkeys(IDS, "holds")
    assert {finding.id for finding in findings if finding.control is None} == {"W4", "K1", "K2"}
    assert {finding.id for finding in findings if finding.shown == "page"} == {
        "A2", "W4", "W7", "I2", "I5", "K1", "K2",
    }  # fmt: skip


def test_heads_that_are_alike_with_random_weights_are_named() -> None:
    notes = {}
    for switching in (np.zeros(SEEDS), np.full(SEEDS, 5.0)):
        data = {**ideal(), measure_key(PROMPTS, "random", "switching"): switching}
        notes[switching[0]] = next(finding.note for finding in findings_of(PAPER, data) if finding.id == "W4")
    assert notes[0].startswith("with random weights no head is alike")
    assert notes[5] == "no control: the 5 heads (mean) that are alike with random weights are not judged"


def test_the_statement_counts_the_layers() -> None:
    statements = [findings_of(replace(PAPER, n_layers=n), ideal())[0].statement for n in (2, 3)]
    assert [statement[:24] for statement in statements] == ["transformers of 2 layers", "transformers of 3 layers"]


def test_findings_fail_on_numbers_that_contradict_them() -> None:
    found = verdicts(ideal(**{"addition-3|trained|accuracy": 0.7}))
    assert {id for id, verdict in found.items() if verdict != "holds"} == {"A1"}


# ---- what is not tested ----


def test_heads_for_sums_of_bits_are_not_called() -> None:
    """Each sum of bits is one multiset, which a head of random weights maps to a point by attention alone."""
    findings = {finding.id: finding for finding in findings_of(PAPER, ideal())}
    for id in ("A2", "A3", "A6"):
        assert "p = 2 is not tested" in findings[id].note
    assert [part.name for part in findings["A7"].parts] == ["p = 2", "p = 3", "p = 4"]
    bits = {finding.id: finding for finding in findings_of(replace(PAPER, moduli=(2,)), ideal())}
    assert {id for id, finding in bits.items() if finding.verdict == "not tested"} == {"A2", "A3", "A6"}
    assert "each sum is one multiset of digits" in bits["A2"].why_not


def test_without_a_model_its_findings_are_not_tested() -> None:
    trained = {name: values for name, values in ideal().items() if not name.startswith(PROMPTS)}
    findings = {finding.id: finding for finding in findings_of(replace(PAPER, model=None), trained)}
    untested = {id for id, finding in findings.items() if finding.verdict == "not tested"}
    assert untested == {id for id in IDS if id[0] == "W"}
    assert "give its name or folder with --model" in findings["W2"].why_not
