"""Documents that mix topics, with masked words: the data of Li, Li & Risteski."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Annotated, ClassVar, Literal, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

from tasks._random import generator
from tasks.batch import Batch
from tasks.batch_rows import consecutive_batch_rows, epoch_batch_rows
from tasks.errors import InputError
from tasks.settings import (
    MAX_SIZE,
    AtLeast,
    AtMost,
    NotNegative,
    Positive,
    PositiveShare,
    Share,
    ShareBelowOne,
    Size,
    SizeOfSeveral,
    WideSeed,
    check_count,
    check_settings,
)
from tasks.task import Task

PAD, MASK, START, END = range(4)
N_SPECIAL = 4
_ROUNDING_ERROR = 1e-9  # of a share of positions, in comparisons

_Tokens: TypeAlias = Int[np.ndarray, "document pos"]
_Topics: TypeAlias = Int[np.ndarray, "document pos"]  # the topic a word was drawn from, -1 for special tokens
_Positions: TypeAlias = Bool[np.ndarray, "document pos"]


@dataclass(frozen=True)
class TopicDocuments(Task):
    """Masked-word prediction on documents that mix a few of ``n_topics`` topics.

    Each word of a document picks one of the document's topics, then one of that topic's
    ``words_per_topic`` words. A share of the positions is selected. A selected position
    shows the right word, a random word, or MASK, and the loss asks for the right word there.

    By default, as published, topics are disjoint and a topic's words equally frequent. ``overlap``, ``zipf`` and the
    sampler ``"logistic-normal"`` make them more like the topics of real text.

    Token ids: PAD 0, MASK 1, START 2, END 3, word ``w`` is ``w + 4``, and belongs to topic
    ``w // words_per_topic`` (``token_topics``; with overlap, see ``token_membership``). Label: ``topic`` from which the
    word that belongs at each position was drawn, also where MASK hides it; -1 at PAD, START and END.

    Args:
        n_topics: number of topics (T).
        words_per_topic: words of each (v).
        sampler: ``"dirichlet"``: a document's mix of topics is drawn from a Dirichlet distribution (the
            paper's experiments). ``"subset"``: it mixes ``topics_per_document`` topics equally (its
            theory). ``"logistic-normal"``: its mix is the softmax of normal variables, which may be correlated
            (Blei & Lafferty 2007).
        concentration: of the Dirichlet distribution.
        topics_per_document: of the ``"subset"`` sampler (tau).
        topic_std: standard deviation of the normal variables of the ``"logistic-normal"`` sampler. With 10 topics,
            mixes are about as concentrated as the default Dirichlet distribution's.
        topic_correlation: of the normal variables of topics 0 and 1, 2 and 3, and so on; others are independent.
            With an odd number of topics, the last has no partner and is more frequent.
        overlap: words that each topic shares with the next one, and the last with the first.
        zipf: a topic's r-th word by frequency has a share proportional to ``1 / r ** zipf``; 0: all are equally
            frequent. The most frequent words are those at both ends of a topic, which overlapping topics share.
        lengths: fewest and most words of a document, uniform between.
        n_documents: documents of each split.
        selected_share: of positions that are predicted (p_m); at least one in each document.
        correct_share: share of those shown unchanged (p_c).
        random_share: share of those shown as a random word (p_r); the rest show MASK.
        exact_shares: the shares hold in every document (rounded up, the right word first), not on average:
            then, as in the limit of long documents, the number of MASKs carries no information, and the weights
            that minimise the squared loss are not unique.
        masking: ``"static"``: drawn once for each document. ``"fresh"``: drawn at each training step.
        boundaries: put START and END round each document.
        objective: ``"cross-entropy"`` in nats, or ``"squared"``: the squared difference from the one-hot
            target, which the closed forms need, averaged over outputs as in the authors' code.
        seed: seed of all random draws.

    Raises:
        InputError: for shares that are not probabilities, more topics in a document than there are, or an overlap of
            more than half of a topic.

    Example:
        >>> task = TopicDocuments(n_documents=40)
        >>> batch = task.train_batch(step=0, batch_size=8)
        >>> task.d_vocab, bool((batch.targets[batch.loss_mask] >= 4).all())
        (104, True)
    """

    name: ClassVar[str] = "topic-documents"
    splits: ClassVar[tuple[str, ...]] = ("train", "dev", "test")

    n_topics: SizeOfSeveral = 10
    words_per_topic: Size = 10
    sampler: Literal["dirichlet", "subset", "logistic-normal"] = "dirichlet"
    concentration: Positive = 0.1
    topics_per_document: Size = 2
    topic_std: Positive = 3.0
    topic_correlation: ShareBelowOne = 0.0
    overlap: Annotated[int, AtLeast(0), AtMost(MAX_SIZE)] = 0
    zipf: NotNegative = 0.0
    lengths: tuple[Size, Size] = (100, 150)
    n_documents: Size = 10_000
    selected_share: PositiveShare = 0.15
    correct_share: Share = 0.1
    random_share: Share = 0.1
    exact_shares: bool = False
    masking: Literal["static", "fresh"] = "static"
    boundaries: bool = True
    objective: Literal["cross-entropy", "squared"] = "cross-entropy"
    seed: WideSeed = 0

    def __post_init__(self) -> None:
        check_settings(self)
        self._check_topics()
        self._check_lengths_and_shares()

    def _check_topics(self) -> None:
        if self.sampler == "subset" and self.topics_per_document > self.n_topics:
            raise InputError(
                f"topics_per_document is {self.topics_per_document}; expected at most n_topics ({self.n_topics})"
            )
        if 2 * self.overlap > self.words_per_topic:
            raise InputError(
                f"overlap is {self.overlap} of {self.words_per_topic} words per topic; expected at most half of them"
            )
        if self.overlap and self.n_topics < 3:
            raise InputError(f"overlap is {self.overlap} with {self.n_topics} topics; expected at least 3 topics")
        if self.topic_correlation and self.sampler != "logistic-normal":
            raise InputError(
                f"topic_correlation is {self.topic_correlation}, but sampler is {self.sampler!r}; expected sampler "
                "'logistic-normal', or no topic_correlation"
            )

    def _check_lengths_and_shares(self) -> None:
        low, high = self.lengths
        if low > high:
            raise InputError(f"lengths is {(low, high)}; expected (fewest, most)")
        if self.correct_share + self.random_share > 1:
            raise InputError(
                f"correct_share + random_share is {self.correct_share} + {self.random_share}; expected at most 1 "
                "in total: the rest are MASK"
            )

    # ---- vocabulary ----

    @property
    def _words_before_next_topic(self) -> int:
        """Words of a topic that do not belong to the next one."""
        return self.words_per_topic - self.overlap

    @property
    def n_words(self) -> int:
        """Number of words, special tokens apart."""
        return self.n_topics * self._words_before_next_topic

    @property
    def vocab(self) -> list[str]:
        """The printable string of every token id."""
        numbers = product(range(self.n_topics), range(self._words_before_next_topic))
        words = [f"t{topic}.{word}" for topic, word in numbers]
        return ["<pad>", "<mask>", "<start>", "<end>", *words]

    @property
    def token_topics(self) -> Int[Tensor, "d_vocab"]:
        """The topic of each token id, -1 for special tokens.

        Raises:
            InputError: if topics overlap, so that a word may have two.
        """
        if self.overlap:
            raise InputError(f"topics overlap by {self.overlap} words, which have two topics; use token_membership")
        words = torch.arange(self.n_topics).repeat_interleave(self.words_per_topic)
        return torch.cat([torch.full((N_SPECIAL,), -1), words])

    @property
    def token_membership(self) -> Bool[Tensor, "d_vocab n_topics"]:
        """Whether a token id is a word of a topic, which special tokens are not.

        Example:
            >>> TopicDocuments(n_topics=3, words_per_topic=4, overlap=1).token_membership[4:].sum(dim=1).tolist()
            [2, 1, 1, 2, 1, 1, 2, 1, 1]
        """
        membership = torch.zeros(self.d_vocab, self.n_topics, dtype=torch.bool)
        topics = torch.arange(self.n_topics)[:, None].expand(-1, self.words_per_topic)
        words = self._words(topics.numpy(), np.arange(self.words_per_topic))
        membership[torch.from_numpy(words), topics] = True
        return membership

    def _words(self, topic: Int[np.ndarray, "row word"], place: Int[np.ndarray, "..."]) -> Int[np.ndarray, "row word"]:
        """Return the token ids of words by topic and place in it. The last topic shares words with the first one."""
        return N_SPECIAL + (topic * self._words_before_next_topic + place) % self.n_words

    @property
    def n_ctx(self) -> int:
        """Tokens of the longest document."""
        return self.lengths[1] + 2 * self.boundaries

    # ---- documents ----

    @cached_property
    def _documents_by_split(self) -> dict[str, tuple[_Tokens, _Topics]]:
        return {}

    def _documents(self, split: str) -> tuple[_Tokens, _Topics]:
        """Return the unmasked tokens of a split, padded on the right, and the topics that they were drawn from."""
        if split not in self._documents_by_split:
            self._documents_by_split[split] = self._draw_documents(generator(self.seed, f"{split} documents"))
        return self._documents_by_split[split]

    def _draw_documents(self, rng: np.random.Generator) -> tuple[_Tokens, _Topics]:
        fewest, most = self.lengths
        length = rng.integers(fewest, most + 1, size=self.n_documents)
        topics = self._draw_from_subset(rng) if self.sampler == "subset" else self._draw_from_mixes(rng)
        tokens = self._words(topics, self._places(rng, topics.shape))
        tokens[np.arange(most) >= length[:, None]] = PAD
        if self.boundaries:
            tokens = np.pad(tokens, ((0, 0), (1, 1)))
            topics = np.pad(topics, ((0, 0), (1, 1)))
            tokens[:, 0] = START
            tokens[np.arange(self.n_documents), length + 1] = END
        return tokens, np.where(tokens >= N_SPECIAL, topics, -1)

    def _draw_from_subset(self, rng: np.random.Generator) -> Int[np.ndarray, "document word"]:
        """Draw the topic of each word from a few topics of its document, which are equally frequent."""
        chosen = rng.random((self.n_documents, self.n_topics)).argsort(axis=1)[:, : self.topics_per_document]
        places = rng.integers(self.topics_per_document, size=(self.n_documents, self.lengths[1]))
        return np.take_along_axis(chosen, places, axis=1)

    def _draw_from_mixes(self, rng: np.random.Generator) -> Int[np.ndarray, "document word"]:
        """Draw the topic of each word from the mix of its document."""
        mixes = self._mixes(rng)
        draws = rng.random((self.n_documents, self.lengths[1]))
        document = np.arange(self.n_documents)[:, None]
        # One search for all documents: the edges of document d lie between d and d + 1.
        edges = (mixes.cumsum(axis=1) + document).ravel()
        places = np.searchsorted(edges, (draws + document).ravel(), side="right").reshape(draws.shape)
        return np.minimum(places - document * self.n_topics, self.n_topics - 1)

    def _mixes(self, rng: np.random.Generator) -> Float[np.ndarray, "document topic"]:
        """Draw the mix of topics of each document."""
        n = self.n_documents
        t = self.n_topics
        if self.sampler == "dirichlet":
            return rng.dirichlet(np.full(t, self.concentration), size=n)
        independent = rng.standard_normal((n, t))
        of_pair = rng.standard_normal((n, (t + 1) // 2)).repeat(2, axis=1)[:, :t]
        rho = self.topic_correlation
        normal = self.topic_std * (math.sqrt(1 - rho) * independent + math.sqrt(rho) * of_pair)
        weights = np.exp(normal - normal.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)  # type: ignore[no-any-return]

    def _places(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Int[np.ndarray, "document word"]:
        """Draw the places of words in their topics."""
        v = self.words_per_topic
        if not self.zipf:
            return rng.integers(v, size=shape)
        share = np.arange(1, v + 1, dtype=np.float64) ** -self.zipf
        rank = np.searchsorted(share.cumsum()[:-1] / share.sum(), rng.random(shape), side="right")
        return np.where(rank % 2, v - 1 - rank // 2, rank // 2)  # from both ends inwards

    # ---- masks ----

    def _masked(self, tokens: _Tokens, rng: np.random.Generator) -> tuple[_Tokens, _Positions]:
        """Draw the tokens that are shown, and which positions are selected: words only."""
        is_word = tokens >= N_SPECIAL
        draw = rng.random(tokens.shape)
        kind = rng.random(tokens.shape)
        random_word = N_SPECIAL + rng.integers(self.n_words, size=tokens.shape)
        if self.exact_shares:  # ranks in place of the draws: the same shares in every document
            rank = np.where(is_word, draw, 2).argsort(axis=1).argsort(axis=1)
            draw = rank / is_word.sum(axis=1, keepdims=True)
            kind = draw / self.selected_share
        selected = is_word & (draw < self.selected_share - _ROUNDING_ERROR)
        none_selected = ~selected.any(axis=1)
        first_word = np.where(is_word, draw, 2).argmin(axis=1)
        selected[none_selected, first_word[none_selected]] = True
        is_correct = kind < self.correct_share - _ROUNDING_ERROR
        is_random = kind < self.correct_share + self.random_share - _ROUNDING_ERROR
        shown = np.where(is_correct, tokens, np.where(is_random, random_word, MASK))
        return np.where(selected, shown, tokens), selected

    @cached_property
    def _static_masks_by_split(self) -> dict[str, tuple[_Tokens, _Positions]]:
        return {}

    def _static_masks(self, split: str) -> tuple[_Tokens, _Positions]:
        """Return the masked tokens of a split and the selected positions, drawn once."""
        if split not in self._static_masks_by_split:
            tokens, _ = self._documents(split)
            self._static_masks_by_split[split] = self._masked(tokens, generator(self.seed, f"{split} masks"))
        return self._static_masks_by_split[split]

    # ---- batches ----

    def _batch(
        self,
        shown: _Tokens,
        selected: _Positions | None,
        tokens: _Tokens,
        topics: _Topics,
        index: Int[np.ndarray, "document"],
    ) -> Batch:
        targets = torch.from_numpy(tokens)
        return Batch(
            tokens=torch.from_numpy(shown),
            attention_mask=targets != PAD,
            targets=None if selected is None else targets,
            loss_mask=None if selected is None else torch.from_numpy(selected),
            labels={"topic": torch.from_numpy(topics)},
            index=torch.from_numpy(index),
        )

    def batches(self, split: str, batch_size: int = 256) -> Iterator[Batch]:
        """Yield the documents of a split, masked once, in a fixed order."""
        self._check_split(split)
        shown, selected = self._static_masks(split)
        tokens, topics = self._documents(split)
        for rows in consecutive_batch_rows(self.n_documents, batch_size):
            yield self._batch(shown[rows], selected[rows], tokens[rows], topics[rows], rows)

    def text(self, split: str, n: int = 500, n_tokens: int = 100, batch_size: int = 100) -> Iterator[Batch]:
        """Yield the first tokens of the first documents of a split, unmasked, to measure attention on.

        Args:
            split: its name.
            n: documents.
            n_tokens: tokens of each, START included.
            batch_size: documents in a batch.
        """
        self._check_split(split)
        tokens, topics = self._documents(split)
        for rows in consecutive_batch_rows(min(n, self.n_documents), batch_size):
            beginning = tokens[rows, :n_tokens]
            yield self._batch(beginning, None, beginning, topics[rows, :n_tokens], rows)

    def train_batch(self, step: int, batch_size: int) -> Batch:
        """Return the batch of one step: each epoch goes through the training documents in a new order."""
        check_count(batch_size=(batch_size, 1))
        if batch_size > self.n_documents:
            raise InputError(f"batch_size is {batch_size}; expected at most the {self.n_documents} documents")
        rows = epoch_batch_rows(self.seed, step, self.n_documents, batch_size)
        tokens, topics = self._documents("train")
        if self.masking == "fresh":
            shown, selected = self._masked(tokens[rows], generator(self.seed, "fresh masks", step))
        else:
            all_shown, all_selected = self._static_masks("train")
            shown = all_shown[rows]
            selected = all_selected[rows]
        return self._batch(shown, selected, tokens[rows], topics[rows], rows)

    # ---- loss ----

    def loss(self, logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> Float[Tensor, ""]:
        """Return ``loss_at`` of the selected positions."""
        assert batch.targets is not None
        assert batch.loss_mask is not None
        return self.loss_at(logits[batch.loss_mask], batch.targets[batch.loss_mask])

    def loss_at(self, logits: Float[Tensor, "word d_vocab"], targets: Integer[Tensor, "word"]) -> Float[Tensor, ""]:
        """Return the mean loss of words: cross-entropy in nats, or mean squared difference from the one-hot target."""
        if self.objective == "cross-entropy":
            return F.cross_entropy(logits, targets)
        right = logits.gather(1, targets[:, None]).sum()
        return ((logits.square().sum() - 2 * right) / len(targets) + 1) / logits.shape[1]

    def accuracy(self, logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> Float[Tensor, "batch"]:
        """Return the share of each document's selected positions whose most likely token is the right one."""
        assert batch.targets is not None
        assert batch.loss_mask is not None
        right = (logits.argmax(dim=-1) == batch.targets) & batch.loss_mask
        return right.sum(dim=1) / batch.loss_mask.sum(dim=1)
