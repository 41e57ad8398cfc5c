"""Which labels reproduce the published attention table: the findings P5 to P5h on E4."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Finding
from mechclust.evidence.compared import compared
from mechclust.evidence.findings import untested_findings
from mechclust.studies.topic_structure.attention_table import (
    FIRST,
    SAME_WORD_COLUMN,
    SPANS,
    TABLE,
    TOPIC_COLUMNS,
    WHOLE,
    attention_means,
    distance_of,
    distance_values,
    topic_ratio,
)
from mechclust.studies.topic_structure.config import TopicStructureConfig
from mechclust.studies.topic_structure.labelling import RANDOM, RIGHT, SHIFTED
from mechclust.studies.topic_structure.results import SHARES, ArmRuns, has_published

NEAR = Bound("<=", 0.1)  # 10%, twice what an exploration of other seeds gave for the topic columns
_HIGHEST_RATIO = float(topic_ratio(TABLE).max())
_LEAST_STEPS = 5000
_DOCUMENTS = ("n_topics", "words_per_topic", "lengths", "concentration", "n_documents", "exact_shares", "masking")
_FIRST_TOKENS = 100  # of the published table
_DISTANCE = "root mean square of log(ours / published)"

_OfSpan = Float[np.ndarray, "seed row bucket"]


def attention_findings(config: TopicStructureConfig, runs: ArmRuns) -> list[Finding]:
    """Return P5 to P5h. Bounds were written before any run on the seeds that they are judged by."""
    means = attention_means(config, runs)
    shifted = means[SHIFTED][:, :, SPANS.index(WHOLE)]
    right = means[RIGHT][:, :, SPANS.index(FIRST)]
    random = means[RANDOM]
    topics = f"the ten numbers on topics of the published attention table ({_DISTANCE})"
    same_word = f"its five numbers on the same word ({_DISTANCE})"
    reading = "E4, labels shifted by the special tokens, whole documents"
    described = f"E4, right labels, first {config.text[1]} tokens"
    p5 = _near("P5", f"{reading}: {topics}", TOPIC_COLUMNS, shifted, "random labels", random[:, :, SPANS.index(WHOLE)])
    p5g = _near("P5g", f"{reading}: {same_word}", SAME_WORD_COLUMN, shifted, described, right)
    findings = [
        replace(p5, shown="headline"),
        _above_published(means[RIGHT], random),
        replace(p5g, shown="table"),
        _near("P5h", f"{described}: {topics}", TOPIC_COLUMNS, right, "random labels", random[:, :, SPANS.index(FIRST)]),
    ]
    published = has_published(config, *_DOCUMENTS, *SHARES)
    if published and config.text[1] == _FIRST_TOKENS and config.attention_steps >= _LEAST_STEPS:
        return findings
    return untested_findings(findings)


def _near(
    id: str, statement: str, columns: tuple[int, ...], means: _OfSpan, control: str, control_means: _OfSpan
) -> Finding:
    without = f"{distance_of(means, columns):.4f}, control {distance_of(control_means, columns):.4f}"
    note = f"corrected for bias by a jackknife over seeds, without correction {without}"
    return compared(
        id,
        statement,
        {"": NEAR},
        [distance_values(means, columns)],
        control,
        [distance_values(control_means, columns)],
        source="Li, Li & Risteski; bound ours",
        note=note if len(means) > 1 else "",
    )


def _above_published(
    right: Float[np.ndarray, "seed row span bucket"], random: Float[np.ndarray, "seed row span bucket"]
) -> Finding:
    return compared(
        "P5a",
        "E4, right labels: attention to other words of the same topic over attention to words of other topics is above "
        f"the {_HIGHEST_RATIO:.2f} of the published table's highest row, in every row",
        {f"{span}, lowest of {right.shape[1]} rows": Bound(">", _HIGHEST_RATIO) for span in SPANS},
        _lowest_ratios(right),
        "random labels",
        _lowest_ratios(random),
        source="ours",
        paper=_HIGHEST_RATIO,
    )


def _lowest_ratios(means: Float[np.ndarray, "seed row span bucket"]) -> list[Float[np.ndarray, "seed"]]:
    return list(topic_ratio(means).min(axis=1).T)
