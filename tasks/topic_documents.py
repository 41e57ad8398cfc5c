"""Documents that mix topics, with masked words: the data of Li, Li & Risteski."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tasks._random import epoch_rows, generator
from tasks.batch import Batch, row_batches
from tasks.errors import InputError, check_at_least
from tasks.settings import (
    Count,
    CountOrZero,
    NotNegative,
    Positive,
    PositiveShare,
    Several,
    Share,
    ShareBelowOne,
    check_settings,
)
from tasks.task import Task

PAD, MASK, START, END = range(4)
N_SPECIAL = 4


@dataclass(frozen=True)
class TopicDocuments(Task):
    """Masked-word prediction on documents that mix a few of ``n_topics`` topics.

    Each word of a document picks one of the document's topics, then one of that topic's
    ``words_per_topic`` words. A share of the positions is selected; a selected position
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
            mixes are about as concentrated as those of the default Dirichlet distribution.
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
        objective: ``"cross-entropy"`` in nats, or ``"squared"``: the squared distance to the one-hot
            target, which the closed forms need.
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

    n_topics: Several = 10
    words_per_topic: Count = 10
    sampler: Literal["dirichlet", "subset", "logistic-normal"] = "dirichlet"
    concentration: Positive = 0.1
    topics_per_document: Count = 2
    topic_std: Positive = 3.0
    topic_correlation: ShareBelowOne = 0.0
    overlap: CountOrZero = 0
    zipf: NotNegative = 0.0
    lengths: tuple[Count, Count] = (100, 150)
    n_documents: Count = 10_000
    selected_share: PositiveShare = 0.15
    correct_share: Share = 0.1
    random_share: Share = 0.1
    exact_shares: bool = False
    masking: Literal["static", "fresh"] = "static"
    boundaries: bool = True
    objective: Literal["cross-entropy", "squared"] = "cross-entropy"
    seed: CountOrZero = 0

    def __post_init__(self) -> None:
        check_settings(self)
        if self.sampler == "subset" and self.topics_per_document > self.n_topics:
            raise InputError(
                f"topics_per_document is {self.topics_per_document}; expected at most n_topics ({self.n_topics})"
            )
        self._check_realism()
        low, high = self.lengths
        if low > high:
            raise InputError(f"lengths is {(low, high)}; expected (fewest, most)")
        if self.correct_share + self.random_share > 1:
            raise InputError(
                f"correct_share + random_share is {self.correct_share} + {self.random_share}; expected at most 1 "
                "in total: the rest are MASK"
            )

    def _check_realism(self) -> None:
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

    # ---- vocabulary ----

    @property
    def _own_words(self) -> int:
        """Words of a topic that do not belong to the next one."""
        return self.words_per_topic - self.overlap

    @property
    def n_words(self) -> int:
        """Number of words, special tokens apart."""
        return self.n_topics * self._own_words

    @property
    def vocab(self) -> list[str]:
        words = [f"t{t}.{w}" for t in range(self.n_topics) for w in range(self._own_words)]
        return ["<pad>", "<mask>", "<start>", "<end>", *words]

    @property
    def token_topics(self) -> Int[Tensor, "d_vocab"]:
        """``[d_vocab]`` topic of each token id, -1 for special tokens.

        Raises:
            InputError: if topics overlap, so that a word may have two.
        """
        if self.overlap:
            raise InputError(f"topics overlap by {self.overlap} words, which have two topics; use token_membership")
        words = torch.arange(self.n_topics).repeat_interleave(self.words_per_topic)
        return torch.cat([torch.full((N_SPECIAL,), -1), words])

    @property
    def token_membership(self) -> Bool[Tensor, "d_vocab n_topics"]:
        """``[d_vocab n_topics]`` whether a token id is a word of a topic; false for special tokens.

        Example:
            >>> TopicDocuments(n_topics=3, words_per_topic=4, overlap=1).token_membership[4:].sum(dim=1).tolist()
            [2, 1, 1, 2, 1, 1, 2, 1, 1]
        """
        found = torch.zeros(self.d_vocab, self.n_topics, dtype=torch.bool)
        topics = torch.arange(self.n_topics)[:, None].expand(-1, self.words_per_topic)
        words = self._words(topics.numpy(), np.arange(self.words_per_topic))
        found[torch.from_numpy(words), topics] = True
        return found

    def _words(self, topic: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Token ids of the words at these places in these topics; the last topic goes on with the first one's words."""
        return N_SPECIAL + (topic * self._own_words + place) % self.n_words

    @property
    def n_ctx(self) -> int:
        return self.lengths[1] + 2 * self.boundaries

    # ---- documents ----

    @cached_property
    def _documents(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        return {}

    def _tokens(self, split: str) -> np.ndarray:
        """``[n_documents n_ctx]`` unmasked token ids, padded on the right."""
        return self._drawn(split)[0]

    def _drawn(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """``_tokens``, and ``[n_documents n_ctx]`` the topics that they were drawn from, -1 for special tokens."""
        if split not in self._documents:
            rng = generator(self.seed, f"{split} documents")
            n, longest = self.n_documents, self.lengths[1]
            length = rng.integers(self.lengths[0], longest + 1, size=n)
            row = np.arange(n)[:, None]
            if self.sampler != "subset":
                mix = self._mixes(rng)
                edges = (mix.cumsum(axis=1) + row).ravel()  # one search for all documents: row r lives in [r, r + 1)
                place = np.searchsorted(edges, (rng.random((n, longest)) + row).ravel(), side="right")
                topic = np.minimum(place.reshape(n, longest) - row * self.n_topics, self.n_topics - 1)
            else:
                chosen = rng.random((n, self.n_topics)).argsort(axis=1)[:, : self.topics_per_document]
                topic = np.take_along_axis(chosen, rng.integers(self.topics_per_document, size=(n, longest)), axis=1)
            words = self._words(topic, self._places(rng, (n, longest)))
            words[np.arange(longest) >= length[:, None]] = PAD
            if self.boundaries:
                words = np.concatenate([np.full((n, 1), START), words, np.zeros((n, 1), dtype=np.int64)], axis=1)
                words[np.arange(n), length + 1] = END
                topic = np.pad(topic, ((0, 0), (1, 1)))
            self._documents[split] = words, np.where(words >= N_SPECIAL, topic, -1)
        return self._documents[split]

    def _mixes(self, rng: np.random.Generator) -> np.ndarray:
        """``[n_documents n_topics]`` each document's mix of topics."""
        n, t = self.n_documents, self.n_topics
        if self.sampler == "dirichlet":
            return rng.dirichlet(np.full(t, self.concentration), size=n)
        own, pair = rng.standard_normal((n, t)), rng.standard_normal((n, (t + 1) // 2)).repeat(2, axis=1)[:, :t]
        rho = self.topic_correlation
        weight = self.topic_std * (math.sqrt(1 - rho) * own + math.sqrt(rho) * pair)
        mix = np.exp(weight - weight.max(axis=1, keepdims=True))
        return mix / mix.sum(axis=1, keepdims=True)  # type: ignore[no-any-return]

    def _places(self, rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        """Places of words in their topics."""
        v = self.words_per_topic
        if not self.zipf:
            return rng.integers(v, size=shape)
        share = np.arange(1, v + 1, dtype=np.float64) ** -self.zipf
        rank = np.searchsorted(share.cumsum()[:-1] / share.sum(), rng.random(shape), side="right")
        return np.where(rank % 2, v - 1 - rank // 2, rank // 2)  # from both ends inwards

    def _masked(self, tokens: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """What is shown, and which positions are selected. Special tokens are neither selected nor drawn."""
        word = tokens >= N_SPECIAL
        draw, kind = rng.random(tokens.shape), rng.random(tokens.shape)
        if self.exact_shares:  # ranks in place of the draws: the same shares in every document
            n = word.sum(axis=1, keepdims=True)
            draw = np.where(word, draw, 2).argsort(axis=1).argsort(axis=1) / n
            kind = draw / self.selected_share
        selected = word & (draw < self.selected_share - 1e-9)
        none = ~selected.any(axis=1)
        selected[none, np.where(word, draw, 2).argmin(axis=1)[none]] = True
        other = N_SPECIAL + rng.integers(self.n_words, size=tokens.shape)
        shown = np.where(kind < self.correct_share + self.random_share - 1e-9, other, MASK)
        shown = np.where(kind < self.correct_share - 1e-9, tokens, shown)
        return np.where(selected, shown, tokens), selected

    @cached_property
    def _masks(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        return {}

    def _static(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        if split not in self._masks:
            self._masks[split] = self._masked(self._tokens(split), generator(self.seed, f"{split} masks"))
        return self._masks[split]

    def _batch(
        self, shown: np.ndarray, selected: np.ndarray | None, tokens: np.ndarray, topics: np.ndarray, index: np.ndarray
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
        self._check_split(split)
        shown, selected = self._static(split)
        tokens, topics = self._drawn(split)
        for rows in row_batches(self.n_documents, batch_size):
            yield self._batch(shown[rows], selected[rows], tokens[rows], topics[rows], rows)

    def text(self, split: str, n: int = 500, n_tokens: int = 100, batch_size: int = 100) -> Iterator[Batch]:
        """The first tokens of the first documents of a split, unmasked: what attention is measured on.

        Args:
            split: its name.
            n: documents.
            n_tokens: tokens of each, START included.
            batch_size: documents in a batch.
        """
        self._check_split(split)
        for rows in row_batches(min(n, self.n_documents), batch_size):
            tokens, topics = (of[rows, :n_tokens] for of in self._drawn(split))
            yield self._batch(tokens, None, tokens, topics, rows)

    def train_batch(self, step: int, batch_size: int) -> Batch:
        check_at_least(batch_size=(batch_size, 1))
        if batch_size > self.n_documents:
            raise InputError(f"batch_size is {batch_size}; expected at most the {self.n_documents} documents")
        rows = epoch_rows(self.seed, step, self.n_documents, batch_size)
        tokens, topics = (of[rows] for of in self._drawn("train"))
        if self.masking == "fresh":
            return self._batch(*self._masked(tokens, generator(self.seed, "fresh masks", step)), tokens, topics, rows)
        shown, selected = self._static("train")
        return self._batch(shown[rows], selected[rows], tokens, topics, rows)

    # ---- loss ----

    def loss(self, logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> Float[Tensor, ""]:
        """``loss_at`` of the selected positions."""
        assert batch.targets is not None
        assert batch.loss_mask is not None
        return self.loss_at(logits[batch.loss_mask], batch.targets[batch.loss_mask])

    def loss_at(self, logits: Float[Tensor, "n d_vocab"], targets: Int[Tensor, "n"]) -> Float[Tensor, ""]:
        """Mean loss of some positions: cross-entropy in nats, or squared distance to the one-hot target."""
        if self.objective == "cross-entropy":
            return F.cross_entropy(logits, targets)
        right = logits.gather(1, targets[:, None]).sum()
        return (logits.square().sum() - 2 * right) / len(targets) + 1

    def accuracy(self, logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> Float[Tensor, "batch"]:
        """``[batch]`` share of a document's selected positions whose most likely token is the right one."""
        assert batch.targets is not None
        assert batch.loss_mask is not None
        right = (logits.argmax(dim=-1) == batch.targets) & batch.loss_mask
        return right.sum(dim=1) / batch.loss_mask.sum(dim=1)
