"""The published attention table beside E4, with topics assigned to words rightly, and as they may have been there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechclust.studies.topic_structure.arms import attention_arm
from mechclust.studies.topic_structure.config import ROWS, TopicStructureConfig
from mechclust.studies.topic_structure.labelling import RIGHT, SHIFTED, topics_by_labelling
from mechclust.studies.topic_structure.results import ArmRuns
from probes import ProbeResult
from tasks import InputError
from tasks.topic_documents import N_SPECIAL, START

if TYPE_CHECKING:
    import pandas as pd

TABLE_COLUMNS = ("same word", "same topic", "different topic")
_SAME_WORD, _SAME_TOPIC, _DIFFERENT_TOPIC = range(3)  # places of these columns
TOPIC_COLUMNS = (_SAME_TOPIC, _DIFFERENT_TOPIC)
SAME_WORD_COLUMN = (_SAME_WORD,)
# From the paper's slides.
_PUBLISHED = {
    "Adam .003": (0.00759, 0.0108, 0.00689),
    "Adam .01": (0.00811, 0.0100, 0.00707),
    "Adam .03": (0.00453, 0.0116, 0.00665),
    "SGD .01": (0.0105, 0.0106, 0.00673),
    "SGD .03": (0.0140, 0.0103, 0.00641),
}
TABLE = np.array([_PUBLISHED[row] for row in ROWS])
FIRST = "first tokens"
WHOLE = "whole documents"
SPANS = (FIRST, WHOLE)  # the tokens of a document that attention is measured on

_Means = Float[np.ndarray, "seed row span bucket"]
_OfSpan = Float[np.ndarray, "seed row bucket"]


def topic_ratio(means: Float[np.ndarray, "*_ bucket"]) -> Float[np.ndarray, "*_"]:
    """Return attention to other words of the same topic divided by attention to words of other topics."""
    return means[..., _SAME_TOPIC] / means[..., _DIFFERENT_TOPIC]


def bucket_means(words: ProbeResult, topics: Int[Tensor, "d_vocab"]) -> Float[np.ndarray, "span bucket"]:
    """Return mean attention over all pairs of two tokens with a topic, as in the published table.

    Args:
        words: result of ``WordAttention``.
        topics: of each token, negative: none.
    """
    buckets = _buckets(topics)
    sums = torch.einsum("sqk, bqk -> sb", words["sum"].double(), buckets)
    pairs = torch.einsum("sqk, bqk -> sb", words["pairs"].double(), buckets)
    return (sums / pairs).numpy()


def _buckets(topics: Int[Tensor, "d_vocab"]) -> Float[Tensor, "bucket query key"]:
    """Return which ordered pairs of tokens are the same word, of the same topic, and of different topics."""
    known = topics >= 0
    both = known[:, None] & known
    word = torch.eye(len(topics), dtype=torch.bool)
    topic = topics[:, None] == topics
    return torch.stack([both & word, both & topic & ~word, both & ~topic]).double()


def attention_means(config: TopicStructureConfig, runs: ArmRuns) -> dict[str, _Means]:
    """Return E4's mean attention by bucket, by how topics are assigned.

    Raises:
        InputError: if a run of E4 has no attention between tokens.
    """
    words = [_words_of(runs, row) for row in ROWS]
    means = {}
    for name, topics in topics_by_labelling(config.documents).items():
        rows = [[bucket_means(result, topics) for result in of_row] for of_row in words]
        means[name] = np.array(rows).swapaxes(0, 1)
    return means


def _words_of(runs: ArmRuns, row: str) -> list[ProbeResult]:
    """Return the attention between tokens of every seed in a row of the table."""
    results = []
    for run in runs[attention_arm(row)]:
        if run.words is None:
            raise InputError(f"a run of {row!r} has no attention between tokens; start the study again")
        results.append(run.words)
    return results


def distance_of(means: _OfSpan, columns: tuple[int, ...]) -> float:
    """Return the root mean square of log(ours / published) over columns of the table, where ours is a mean over seeds.

    It is biased upwards, as noise of the means adds to it.
    """
    ratios = means.mean(axis=0)[:, columns] / TABLE[:, columns]
    return float(np.sqrt(np.square(np.log(ratios)).mean()))


def distance_values(means: _OfSpan, columns: tuple[int, ...]) -> Float[np.ndarray, "seed"]:
    """Return the jackknife's pseudo-values of ``distance_of``, whose mean is its bias-corrected estimate.

    The interval of this mean is the estimate's. With one seed, the value is the distance itself.
    """
    n = len(means)
    distance = distance_of(means, columns)
    if n == 1:
        return np.array([distance])
    without = [distance_of(np.delete(means, seed, axis=0), columns) for seed in range(n)]
    return n * distance - (n - 1) * np.array(without)


def attention_table(means: Mapping[str, _Means]) -> pd.DataFrame:
    """Return mean attention by row and labels, as text, after the published rows: mean and deviation over seeds."""
    import pandas as pd

    rows = []
    for optimiser, published, ratio in zip(ROWS, TABLE, topic_ratio(TABLE), strict=True):
        rows.append(["published", "", optimiser, *(f"{mean:.5f}" for mean in published), f"{ratio:.2f}"])
    for labels, of_labels in means.items():
        over_seeds = of_labels.mean(axis=0)
        ratios = topic_ratio(over_seeds)
        for place, span in enumerate(SPANS):
            for row, optimiser in enumerate(ROWS):
                values = of_labels[:, row, place]
                cells = [f"{mean:.5f}" for mean in over_seeds[row, place]]
                if len(values) > 1:
                    deviations = values.std(axis=0, ddof=1)
                    cells = [f"{cell} ± {deviation:.5f}" for cell, deviation in zip(cells, deviations, strict=True)]
                rows.append([labels, span, optimiser, *cells, f"{ratios[row, place]:.2f}"])
    return pd.DataFrame(rows, columns=["labels", "measured on", "optimiser", *TABLE_COLUMNS, "ratio"])


def implied_table(config: TopicStructureConfig, runs: ArmRuns) -> pd.DataFrame:
    """Return what the published rows imply, as text, since a row of attention sums to 1.

    ``to words``: total attention of a word to all words, if labels are right. ``to the rest``: mean attention between
    two words of which at least one lacks a topic, if labels are shifted and special tokens receive no attention.
    """
    import pandas as pd

    to_words, to_rest = _implied(config, runs)
    rows = []
    for row, optimiser in enumerate(ROWS):
        rows.append([optimiser, *(f"{x:.3f}" for x in to_words[row]), *(f"{x:.4f}" for x in to_rest[row])])
    columns = [f"{what}, {span}" for what in ("to words", "to the rest") for span in SPANS]
    return pd.DataFrame(rows, columns=["optimiser", *columns])


def _implied(
    config: TopicStructureConfig, runs: ArmRuns
) -> tuple[Float[np.ndarray, "row span"], Float[np.ndarray, "row span"]]:
    """Return the published attention to all words, with right labels, and to the rest, with shifted ones."""
    first_row, *_ = ROWS  # pairs depend on the documents of a seed, which all rows share
    pairs = torch.stack([words["pairs"].double() for words in _words_of(runs, first_row)]).mean(dim=0)
    n_queries = pairs[:, N_SPECIAL:, START].sum(dim=1).numpy()  # each query has one pair with START
    n_pairs = pairs[:, N_SPECIAL:, N_SPECIAL:].sum(dim=(1, 2)).numpy()
    labels = topics_by_labelling(config.documents)
    right = torch.einsum("sqk, bqk -> bs", pairs, _buckets(labels[RIGHT])).numpy()
    shifted = torch.einsum("sqk, bqk -> bs", pairs, _buckets(labels[SHIFTED])).numpy()
    to_words = TABLE @ right / n_queries
    to_rest = (n_queries - TABLE @ shifted) / (n_pairs - shifted.sum(axis=0))
    return to_words, to_rest
