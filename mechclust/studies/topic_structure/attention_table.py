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
from mechclust.studies.topic_structure.results import ArmRuns
from probes import ProbeResult
from tasks import TopicDocuments
from tasks.topic_documents import N_SPECIAL, START

if TYPE_CHECKING:
    import pandas as pd

TABLE_COLUMNS = ("same word", "same topic", "different topic")
# From the paper's slides, by row and bucket.
TABLE = np.array(
    [
        (0.00759, 0.0108, 0.00689),
        (0.00811, 0.0100, 0.00707),
        (0.00453, 0.0116, 0.00665),
        (0.0105, 0.0106, 0.00673),
        (0.0140, 0.0103, 0.00641),
    ]
)
HIGHEST_RATIO = float((TABLE[:, 1] / TABLE[:, 2]).max())
TOPIC_COLUMNS = (1, 2)
SAME_WORD_COLUMN = (0,)
RIGHT = "right labels"
SHIFTED = "shifted labels"
RANDOM = "random labels"
FIRST = "first tokens"
WHOLE = "whole documents"
LENGTHS = (FIRST, WHOLE)

_Means = Float[np.ndarray, "seed row length bucket"]
_OfLength = Float[np.ndarray, "seed row bucket"]


def labels_of(task: TopicDocuments) -> dict[str, Int[Tensor, "d_vocab"]]:
    """Return the topic of each token, -1 for none, by how it is assigned.

    Shifted by the special tokens: the topic that a token would have if words began at token 0, which leaves the last
    words without one. Random: the right topics in a random order of the words.
    """
    right = task.token_topics
    token = torch.arange(task.d_vocab)
    shifted = token // task.words_per_topic
    shifted[(token < N_SPECIAL) | (shifted >= task.n_topics)] = -1
    order = torch.randperm(task.n_words, generator=torch.Generator().manual_seed(0))
    random = torch.cat([right[:N_SPECIAL], right[N_SPECIAL:][order]])
    return {RIGHT: right, SHIFTED: shifted, RANDOM: random}


def bucket_means(words: ProbeResult, topics: Int[Tensor, "d_vocab"]) -> Float[np.ndarray, "length bucket"]:
    """Return mean attention over all pairs of two tokens with a topic, as in the published table.

    Args:
        words: result of ``WordAttention``.
        topics: of each token, negative: none.
    """
    buckets = _buckets(topics)
    sums = torch.einsum("lqk, bqk -> lb", words["sum"].double(), buckets)
    pairs = torch.einsum("lqk, bqk -> lb", words["pairs"].double(), buckets)
    return (sums / pairs).numpy()


def _buckets(topics: Int[Tensor, "d_vocab"]) -> Float[Tensor, "bucket query key"]:
    """Return which ordered pairs of tokens are the same word, of the same topic, and of different topics."""
    known = topics >= 0
    both = known[:, None] & known
    word = torch.eye(len(topics), dtype=torch.bool)
    topic = topics[:, None] == topics
    return torch.stack([both & word, both & topic & ~word, both & ~topic]).double()


def attention_means(config: TopicStructureConfig, runs: ArmRuns) -> dict[str, _Means]:
    """Return E4's mean attention by bucket, by how topics are assigned."""
    means = {}
    for name, topics in labels_of(config.documents).items():
        rows = [[bucket_means(run.words, topics) for run in runs[attention_arm(row)] if run.words] for row in ROWS]
        means[name] = np.array(rows).swapaxes(0, 1)
    return means


def distance_of(means: _OfLength, columns: tuple[int, ...]) -> float:
    """Return the root mean square of log(ours / published) over columns of the table, of means over seeds."""
    ratios = means.mean(axis=0)[:, columns] / TABLE[:, columns]
    return float(np.sqrt(np.square(np.log(ratios)).mean()))


def distance_values(means: _OfLength, columns: tuple[int, ...]) -> Float[np.ndarray, "seed"]:
    """Return the jackknife's pseudo-values of ``distance_of``: their mean and interval are those of the distance.

    With one seed, the distance.
    """
    n = len(means)
    distance = distance_of(means, columns)
    if n == 1:
        return np.array([distance])
    without = [distance_of(np.delete(means, seed, axis=0), columns) for seed in range(n)]
    return n * distance - (n - 1) * np.array(without)


def attention_table(config: TopicStructureConfig, means: Mapping[str, _Means]) -> pd.DataFrame:
    """Return mean attention by row and labels, as text, after the published rows: mean and deviation over seeds."""
    import pandas as pd

    rows = []
    for optimiser, published in zip(ROWS, TABLE, strict=True):
        rows.append(["published", "", optimiser, *(f"{mean:.5f}" for mean in published), _ratio(published)])
    for labels, of_labels in means.items():
        for place, length in enumerate(LENGTHS):
            for row, optimiser in enumerate(ROWS):
                values = of_labels[:, row, place]
                cells = [f"{mean:.5f}" for mean in values.mean(axis=0)]
                if len(values) > 1:
                    deviations = values.std(axis=0, ddof=1)
                    cells = [f"{cell} ± {deviation:.5f}" for cell, deviation in zip(cells, deviations, strict=True)]
                rows.append([labels, length, optimiser, *cells, _ratio(values.mean(axis=0))])
    return pd.DataFrame(rows, columns=["labels", "measured on", "optimiser", *TABLE_COLUMNS, "ratio"])


def _ratio(means: Float[np.ndarray, "bucket"]) -> str:
    return f"{means[1] / means[2]:.2f}"


def distance_table(means: Mapping[str, _Means]) -> pd.DataFrame:
    """Return the distances from the published table by labels and length."""
    import pandas as pd

    columns = {"topic columns": TOPIC_COLUMNS, "same word": SAME_WORD_COLUMN, "all columns": (0, 1, 2)}
    rows = []
    for labels, of_labels in means.items():
        for place, length in enumerate(LENGTHS):
            distances = [distance_of(of_labels[:, :, place], chosen) for chosen in columns.values()]
            rows.append([labels, length, *(f"{distance:.3f}" for distance in distances)])
    return pd.DataFrame(rows, columns=["labels", "measured on", *columns])


def implied_table(config: TopicStructureConfig, runs: ArmRuns) -> pd.DataFrame:
    """Return what the published rows imply, since a row of attention sums to 1.

    ``to words``: attention of a word to all words, in total, if labels are right. ``to the rest``: attention to each
    word that lacks a topic, or of such a word to each, if labels are shifted and special tokens receive none.
    """
    import pandas as pd

    labels = labels_of(config.documents)
    pairs = torch.stack([run.words["pairs"].double() for run in runs[attention_arm(next(iter(ROWS)))] if run.words])
    pairs = pairs.mean(dim=0)
    n_queries = pairs[:, N_SPECIAL:, START].sum(dim=1).numpy()
    all_pairs = pairs[:, N_SPECIAL:, N_SPECIAL:].sum(dim=(1, 2)).numpy()
    by_labels = {}
    for name in (RIGHT, SHIFTED):
        by_labels[name] = torch.einsum("lqk, bqk -> lb", pairs, _buckets(labels[name])).numpy()
    rows = []
    for optimiser, published in zip(ROWS, TABLE, strict=True):
        to_words = by_labels[RIGHT] @ published / n_queries
        left = n_queries - by_labels[SHIFTED] @ published
        to_rest = left / (all_pairs - by_labels[SHIFTED].sum(axis=1))
        rows.append([optimiser, *(f"{x:.3f}" for x in to_words), *(f"{x:.4f}" for x in to_rest)])
    columns = [f"{what}, {length}" for what in ("to words", "to the rest") for length in LENGTHS]
    return pd.DataFrame(rows, columns=["optimiser", *columns])
