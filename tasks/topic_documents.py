"""Documents that mix topics, with masked words: the data of Li, Li & Risteski."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from tasks._random import epoch_rows, generator
from tasks.batch import Batch, row_batches
from tasks.errors import InputError, check_at_least
from tasks.settings import check_choices
from tasks.task import Task

PAD, MASK, START, END = range(4)
N_SPECIAL = 4


@dataclass(frozen=True)
class TopicDocuments(Task):
    """Masked-word prediction on documents that mix a few of ``n_topics`` disjoint topics.

    Each word of a document picks one of the document's topics, then one of that topic's
    ``words_per_topic`` words uniformly. A share of the positions is selected; a selected position
    shows the right word, a random word, or MASK, and the loss asks for the right word there.

    Token ids: PAD 0, MASK 1, START 2, END 3, word ``w`` is ``w + 4``, and belongs to topic
    ``w // words_per_topic`` (``token_topics``). Label: ``topic`` of the word that belongs at each
    position, also where MASK hides it; -1 at PAD, START and END.

    Args:
        n_topics: number of topics (T).
        words_per_topic: words of each (v).
        sampler: ``"dirichlet"``: a document's mix of topics is drawn from a Dirichlet distribution (the
            paper's experiments). ``"subset"``: it mixes ``topics_per_document`` topics equally (its
            theory).
        concentration: of the Dirichlet distribution.
        topics_per_document: of the ``"subset"`` sampler (tau).
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
        InputError: for shares that are not probabilities, or more topics in a document than there are.

    Example:
        >>> task = TopicDocuments(n_documents=40)
        >>> batch = task.train_batch(step=0, batch_size=8)
        >>> task.d_vocab, bool((batch.targets[batch.loss_mask] >= 4).all())
        (104, True)
    """

    name: ClassVar[str] = "topic-documents"
    splits: ClassVar[tuple[str, ...]] = ("train", "dev", "test")

    n_topics: int = 10
    words_per_topic: int = 10
    sampler: Literal["dirichlet", "subset"] = "dirichlet"
    concentration: float = 0.1
    topics_per_document: int = 2
    lengths: tuple[int, int] = (100, 150)
    n_documents: int = 10_000
    selected_share: float = 0.15
    correct_share: float = 0.1
    random_share: float = 0.1
    exact_shares: bool = False
    masking: Literal["static", "fresh"] = "static"
    boundaries: bool = True
    objective: Literal["cross-entropy", "squared"] = "cross-entropy"
    seed: int = 0

    def __post_init__(self) -> None:
        sizes = ("n_topics", "words_per_topic", "n_documents", "topics_per_document")
        check_at_least(**{name: (getattr(self, name), 1) for name in sizes}, seed=(self.seed, 0))
        check_choices(self)
        if self.n_topics < 2:
            raise InputError(f"n_topics is {self.n_topics}; expected at least 2, to tell topics apart")
        if self.sampler == "subset" and self.topics_per_document > self.n_topics:
            raise InputError(
                f"topics_per_document is {self.topics_per_document}; expected at most n_topics ({self.n_topics})"
            )
        if not self.concentration > 0:
            raise InputError(f"concentration is {self.concentration}; expected a positive number")
        low, high = self.lengths
        if not 1 <= low <= high:
            raise InputError(f"lengths is {(low, high)}; expected (fewest, most), at least 1 and in order")
        if not 0 < self.selected_share <= 1:
            raise InputError(f"selected_share is {self.selected_share}; expected above 0 and at most 1")
        for name in ("correct_share", "random_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected between 0 and 1")
        if self.correct_share + self.random_share > 1:
            raise InputError(
                f"correct_share + random_share is {self.correct_share} + {self.random_share}; expected at most 1 "
                "in total: the rest are MASK"
            )

    # ---- vocabulary ----

    @property
    def n_words(self) -> int:
        """Number of words, special tokens apart."""
        return self.n_topics * self.words_per_topic

    @property
    def vocab(self) -> list[str]:
        words = [f"t{t}.{w}" for t in range(self.n_topics) for w in range(self.words_per_topic)]
        return ["<pad>", "<mask>", "<start>", "<end>", *words]

    @property
    def token_topics(self) -> Int[Tensor, "d_vocab"]:
        """``[d_vocab]`` topic of each token id, -1 for special tokens."""
        words = torch.arange(self.n_topics).repeat_interleave(self.words_per_topic)
        return torch.cat([torch.full((N_SPECIAL,), -1), words])

    @property
    def n_ctx(self) -> int:
        return self.lengths[1] + 2 * self.boundaries

    # ---- documents ----

    @cached_property
    def _documents(self) -> dict[str, np.ndarray]:
        return {}

    def _tokens(self, split: str) -> np.ndarray:
        """``[n_documents n_ctx]`` unmasked token ids, padded on the right."""
        if split not in self._documents:
            rng = generator(self.seed, f"{split} documents")
            n, longest = self.n_documents, self.lengths[1]
            length = rng.integers(self.lengths[0], longest + 1, size=n)
            row = np.arange(n)[:, None]
            if self.sampler == "dirichlet":
                mix = rng.dirichlet(np.full(self.n_topics, self.concentration), size=n)
                edges = (mix.cumsum(axis=1) + row).ravel()  # one search for all documents: row r lives in [r, r + 1)
                place = np.searchsorted(edges, (rng.random((n, longest)) + row).ravel(), side="right")
                topic = np.minimum(place.reshape(n, longest) - row * self.n_topics, self.n_topics - 1)
            else:
                chosen = rng.random((n, self.n_topics)).argsort(axis=1)[:, : self.topics_per_document]
                topic = np.take_along_axis(chosen, rng.integers(self.topics_per_document, size=(n, longest)), axis=1)
            words = N_SPECIAL + topic * self.words_per_topic + rng.integers(self.words_per_topic, size=(n, longest))
            words[np.arange(longest) >= length[:, None]] = PAD
            if self.boundaries:
                words = np.concatenate([np.full((n, 1), START), words, np.zeros((n, 1), dtype=np.int64)], axis=1)
                words[np.arange(n), length + 1] = END
            self._documents[split] = words
        return self._documents[split]

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

    def _batch(self, shown: np.ndarray, selected: np.ndarray | None, tokens: np.ndarray, index: np.ndarray) -> Batch:
        targets = torch.from_numpy(tokens)
        return Batch(
            tokens=torch.from_numpy(shown),
            attention_mask=targets != PAD,
            targets=None if selected is None else targets,
            loss_mask=None if selected is None else torch.from_numpy(selected),
            labels={"topic": self.token_topics[targets]},
            index=torch.from_numpy(index),
        )

    def batches(self, split: str, batch_size: int = 256) -> Iterator[Batch]:
        self._check_split(split)
        shown, selected = self._static(split)
        for rows in row_batches(self.n_documents, batch_size):
            yield self._batch(shown[rows], selected[rows], self._tokens(split)[rows], rows)

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
            tokens = self._tokens(split)[rows, :n_tokens]
            yield self._batch(tokens, None, tokens, rows)

    def train_batch(self, step: int, batch_size: int) -> Batch:
        check_at_least(batch_size=(batch_size, 1))
        if batch_size > self.n_documents:
            raise InputError(f"batch_size is {batch_size}; expected at most the {self.n_documents} documents")
        rows = epoch_rows(self.seed, step, self.n_documents, batch_size)
        tokens = self._tokens("train")[rows]
        if self.masking == "fresh":
            return self._batch(*self._masked(tokens, generator(self.seed, "fresh masks", step)), tokens, rows)
        shown, selected = self._static("train")
        return self._batch(shown[rows], selected[rows], tokens, rows)

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
