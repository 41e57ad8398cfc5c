"""The settings of the topic-structure study, and of its model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from mechclust.models.config import AnyConfig
from mechclust.studies.study import check_left_out, check_seeds
from mechclust.studies.topic_structure.theory import theory_gap
from tasks import InputError, TopicDocuments
from tasks.settings import (
    MAX_COUNT,
    AtLeast,
    AtMost,
    Count,
    Draws,
    NotNegative,
    Positive,
    Seed,
    Several,
    ShareBetween,
    Size,
    WideSeed,
    check_different_settings,
    check_settings,
)

ROWS = {
    "Adam .003": ("adam", 0.003),
    "Adam .01": ("adam", 0.01),
    "Adam .03": ("adam", 0.03),
    "SGD .01": ("sgd", 0.01),
    "SGD .03": ("sgd", 0.03),
}
EVERYTHING_ROWS = ("Adam .003", "SGD .03")  # of E1b, whose training is long
_TextLength = Annotated[int, AtLeast(3), AtMost(MAX_COUNT)]  # two words after START
LEAST_GROWTH = 0.5  # standard deviations, the bound of P3b
LEAST_STEPS = 2000  # of E3 and E4a theory, for findings on where training ends


@dataclass(frozen=True)
class TopicTransformerConfig(AnyConfig):
    """The one-layer transformer of the topic-structure study, see ``TopicTransformer``.

    Args:
        d_vocab: number of token ids.
        d_model: width; ``None``: ``d_vocab``, which a one-hot embedding needs.
        embedding: ``"trained"``, or ``"one-hot"`` and frozen.
        attention: ``"trained"``, or ``"uniform"``: W_K = W_Q = 0 and frozen.
        value: W_V ``"trained"``, ``"identity"`` and frozen, or ``"fixed"``: frozen at the values that it is given.
        input: ``"plain"``: just the embedding. ``"normalised"``: a trained vector, the same for all tokens, is
            added and the sum passes through a LayerNorm, as in BERT's embeddings and the public code.
        type_std: standard deviation of the initial values of this vector.
        attention_bias: ``W_K``, ``W_Q`` and ``W_V`` have trained biases, as in the public code.
        decoder: ``"tied"`` to the embedding, ``"free"``, or the ``"identity"``.
        bias: train the decoder's bias; it is 0 otherwise.
        init_std: initial weights are normal with this standard deviation; ``None``: uniform within
            ``1 / sqrt(width)``, PyTorch's default for linear layers.
        seed: seed of the initial weights.

    Example:
        >>> TopicTransformerConfig(d_vocab=104, embedding="one-hot", attention="uniform").width
        104
    """

    kind: ClassVar[str] = "topic-transformer"

    d_vocab: Size
    d_model: Size | None = None
    embedding: Literal["trained", "one-hot"] = "trained"
    attention: Literal["trained", "uniform"] = "trained"
    value: Literal["trained", "identity", "fixed"] = "trained"
    input: Literal["plain", "normalised"] = "plain"
    type_std: NotNegative = 0.02
    attention_bias: bool = False
    decoder: Literal["tied", "free", "identity"] = "tied"
    bias: bool = True
    init_std: NotNegative | None = None
    seed: WideSeed = 0

    def __post_init__(self) -> None:
        check_settings(self)
        if self.embedding == "one-hot" and self.width != self.d_vocab:
            raise InputError(
                f"a one-hot embedding of {self.d_vocab} tokens has that many dimensions; d_model is {self.d_model}"
            )
        if self.decoder == "identity" and self.width != self.d_vocab:
            raise InputError(f"an identity decoder needs d_model = d_vocab ({self.d_vocab}); d_model is {self.d_model}")

    @property
    def width(self) -> int:
        """The width ``d_model``, or the size of the vocabulary."""
        return self.d_vocab if self.d_model is None else self.d_model


@dataclass(frozen=True)
class Beyond:
    """Settings of the second experiment: after the two stages, and with topics more like those of text.

    W_V, W_K and W_Q are trained from a near-zero start with SGD and with Adam: on the published documents with both
    losses, on others with cross-entropy.

    Args:
        steps: optimiser steps.
        after: a step shown beside the end, one of ``measured``.
        measured: steps at which tables, attention and the development loss are measured, besides 0 and the end.
        sgd_rate: learning rate of SGD.
        adam_rate: learning rate of Adam.
        overlaps: numbers of words that a topic shares with the next; the documents with everything at once have the
            first. Beside the largest, documents of as many words whose topics do not overlap.
        zipf: exponent of the frequencies of a topic's words.
        correlation: of the weights of two topics.
        n_permutations: random relabellings behind each null of a table.
    """

    steps: Count = 20_000
    after: int = 2000
    measured: tuple[int, ...] = (100, 200, 500, 1000, 2000, 5000, 10_000)
    sgd_rate: Positive = 30.0
    adam_rate: Positive = 0.003
    overlaps: tuple[Count, ...] = (2, 5)
    zipf: Positive = 1.0
    correlation: ShareBetween = 0.9
    n_permutations: Draws = 200

    def __post_init__(self) -> None:
        check_settings(self, "beyond.")
        check_different_settings(**{"beyond.overlaps": self.overlaps})
        if not self.overlaps:
            raise InputError("beyond.overlaps is empty; expected at least one number of words, such as 2")
        if self.after not in self.measured:
            raise InputError(
                f"beyond.after is {self.after}; expected one of beyond.measured ({', '.join(map(str, self.measured))})"
            )
        if bad := [step for step in self.measured if not 0 < step < self.steps]:
            raise InputError(f"beyond.measured has {bad[0]}; expected steps between 0 and beyond.steps ({self.steps})")


@dataclass(frozen=True)
class TopicStructureConfig:
    """Settings of the topic-structure study.

    ``experiment = "beyond"`` reads ``seeds``, ``documents``, ``batch_size``, ``text``, ``beyond`` and ``test_findings``
    only.

    Args:
        experiment: ``"published"``: the paper's experiments, E1 to E4; ``"beyond"``: what comes after the two stages,
            and topics more like those of text (E5).
        seeds: one training run per seed and arm; the seed draws documents and initial weights.
        released_seeds: the same for the arms of E3 that train the network as released, whose bounds were written after
            the runs with ``seeds``.
        table_seeds: the same for E4.
        everything_seeds: the same for E1b.
        documents: the data; fields specific to an experiment (sampler, objective, ...) are set by its arms.
        steps: optimiser steps of E1, E2, E3 and the runs behind findings P6 and P8b.
        everything_steps: optimiser steps of E1b.
        decay_steps: optimiser steps of E2 with weight decay (finding P2c).
        attention_steps: optimiser steps of E4.
        check_every: steps of E4 between evaluations on the development documents; attention is measured at the best.
        sgd_rates: learning rates of E3 with SGD, for the sum over outputs: those of the squared loss, which is their
            average, are multiplied by their number.
        released_rates: learning rates of E3 with SGD for the network as released.
        adam_rates: learning rates of E3 with Adam.
        optimum_documents: numbers of documents whose minimiser is solved for (finding P2b), ascending.
        optimum_lengths: lengths of these documents, ascending.
        batch_size: documents per step.
        topics: numbers of topics for finding P6.
        topics_per_document: numbers of topics mixed in a document for finding P6, at least 2.
        text: number of documents that attention is measured on, and tokens per document (at least 3); E4 measures it
            on whole documents too.
        beyond: settings of the second experiment.
        test_findings: whether this size can test the findings.
    """

    experiment: Literal["published", "beyond"] = "published"
    seeds: tuple[Seed, ...] = (10, 11, 12, 13, 14)
    released_seeds: tuple[Seed, ...] = (30, 31, 32, 33, 34, 35, 36, 37)
    table_seeds: tuple[Seed, ...] = (30, 31, 32, 33, 34)
    everything_seeds: tuple[Seed, ...] = (40, 41, 42, 43, 44)
    documents: TopicDocuments = TopicDocuments()
    steps: Count = 2000
    everything_steps: Count = 20_000
    decay_steps: Count = 6000
    attention_steps: Count = 5000
    check_every: Count = 1000
    sgd_rates: tuple[Positive, ...] = (1.0, 3.0, 10.0, 30.0)
    released_rates: tuple[Positive, ...] = (0.5, 1.0, 2.0)
    adam_rates: tuple[Positive, ...] = (0.001, 0.003, 0.01, 0.03)
    optimum_documents: tuple[Count, ...] = (1000, 3000, 10_000, 30_000, 100_000)
    optimum_lengths: tuple[Count, ...] = (100, 400, 1600, 6400)
    batch_size: Count = 40
    topics: tuple[Several, ...] = (10, 20)
    topics_per_document: tuple[Several, ...] = (2, 3, 5, 8)
    text: tuple[Count, _TextLength] = (500, 100)
    beyond: Beyond = Beyond()
    test_findings: bool = True

    def __post_init__(self) -> None:
        check_settings(self)
        check_seeds(self.seeds)
        check_seeds(self.released_seeds, "released_seeds")
        check_seeds(self.table_seeds, "table_seeds")
        check_seeds(self.everything_seeds, "everything_seeds")
        if self.attention_steps % self.check_every:
            raise InputError(
                f"check_every is {self.check_every}; expected a divisor of attention_steps ({self.attention_steps})"
            )
        rising = ("optimum_documents", "optimum_lengths", "topics_per_document")
        for name in ("sgd_rates", "released_rates", "adam_rates", "topics", *rising):
            if not getattr(self, name):
                raise InputError(f"{name} is empty; expected at least one value")
        for name in rising:
            values = getattr(self, name)
            if any(a >= b for a, b in pairwise(values)):
                raise InputError(f"{name} is {values}; expected rising numbers")
        for name in ("sgd_rates", "released_rates", "adam_rates"):
            rates = [f"{rate:g}" for rate in getattr(self, name)]  # as in the names of arms
            check_different_settings(**{name: rates})
        check_different_settings(topics=self.topics)
        if max(self.topics_per_document) >= min(self.topics):
            raise InputError(
                f"topics_per_document has {max(self.topics_per_document)} of the {min(self.topics)} in topics; "
                "expected fewer in every document than there are"
            )
        self._check_documents()

    def _check_documents(self) -> None:
        check_left_out("documents", self.documents, ("seed",), "each run, from seeds")
        if self.documents.overlap or self.documents.zipf or self.documents.topic_correlation:
            raise InputError(
                "documents.overlap, documents.zipf and documents.topic_correlation are set by the arms of the "
                "experiment 'beyond', as the paper's findings need disjoint topics of equally frequent words; leave "
                "them at 0"
            )
        check_left_out("documents", self.documents, ("sampler", "objective", "boundaries"), "each arm")
        v = self.documents.words_per_topic
        if v < 2:
            raise InputError("documents.words_per_topic is 1; expected at least 2, to compare words of one topic")
        overlap = max(self.beyond.overlaps)
        if self.experiment == "beyond" and (2 * overlap > v or v - overlap < 2):
            raise InputError(
                f"beyond.overlaps has {overlap} of {v} words per topic; expected at most half of them, and 2 words left"
            )
        if self.experiment == "published":
            try:
                theory_gap(replace(self.documents, sampler="subset"))
            except InputError as error:
                raise InputError(f"documents.{error}") from error
        elif self.documents.selected_share == 1 and self.documents.correct_share == 0:
            raise InputError(
                "documents.selected_share is 1 and correct_share 0: no document shows its words, so nothing is learnt"
            )
