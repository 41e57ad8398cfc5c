"""Make the texts to measure as tokens, and refuse invalid input before any weights are loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mechclust.commands.heads.config import HeadsConfig
from mechclust.models.adapter_fit import adapter_fit_notes
from mechclust.models.repeated_tokens import repeated_tokens
from mechclust.models.resolved import ResolvedModel
from mechclust.models.sizes import Sizes
from mechclust.models.tokenizers import (
    check_has_tokenizer,
    tokenization_of,
    tokenizer_and_sizes,
    tokenizer_unknown_token_notes,
)
from probes.store.digest import digest_of
from tasks import Batch, Corpus, CorpusStream, InputError
from tasks.text.encoded_corpus import EncodedCorpus

REPEATED = "repeated tokens"
NATURAL_TEXT = "text"
_SHOWN_TOKENS = 64  # of the sequence whose attention is shown


@dataclass(frozen=True)
class Inputs:
    """Texts to measure.

    Attributes:
        batches: by text, ``REPEATED`` and, if there is a corpus, ``NATURAL_TEXT``.
        shown: token ids of the sequence of each text whose attention is shown.
        sizes: sizes of the model.
        tokenization: how texts became tokens.
        digest: digest of the corpus, the same for any number of documents that are drawn.
        notes: what a reader must know of the texts.
    """

    batches: Mapping[str, Sequence[Batch]]
    shown: Mapping[str, Int[Tensor, "pos"]]
    sizes: Sizes
    tokenization: Mapping[str, Any]
    digest: str
    notes: Sequence[str]

    def numbers(self, text: str) -> list[Int[Tensor, "..."]]:
        """Return all numbers that a measurement of this text depends on."""
        batches = self.batches[text]
        masks = [batch.attention_mask for batch in batches if batch.attention_mask is not None]
        return [*(batch.tokens for batch in batches), *(mask.long() for mask in masks), self.shown[text]]


def read_inputs(model: ResolvedModel, config: HeadsConfig, tokenizer: Any = None) -> Inputs:
    """Draw repeated random tokens, and read the corpus if there is one, without loading weights.

    Raises:
        InputError: for settings or texts that nothing can be measured with.
    """
    config.check()
    corpus = _read_corpus(config)
    own_tokenizer, sizes = tokenizer_and_sizes(model, trust_remote_code=config.trust_remote_code)
    reader = own_tokenizer if tokenizer is None else tokenizer
    check_has_tokenizer(repr(model.name), reader, "text")
    repeated = repeated_tokens(
        reader,
        sizes,
        config.n_sequences,
        config.tokens_per_batch,
        length=config.length,
        periods=config.periods,
        bos=config.bos,
        seed=config.seed,
    )
    batches: dict[str, Sequence[Batch]] = {REPEATED: repeated}
    shown = {REPEATED: _shortest_period(batches[REPEATED])}
    notes = adapter_fit_notes([model])
    if corpus is not None:
        documents = corpus.sample(config.max_documents, config.seed)
        max_length = config.max_length if sizes.n_ctx is None else min(config.max_length, sizes.n_ctx)
        beginnings = _beginnings(documents.encode(reader, [], max_length, bos=config.bos, d_vocab=sizes.d_vocab))
        batches[NATURAL_TEXT] = list(beginnings.batches(config.tokens_per_batch))
        shown[NATURAL_TEXT] = torch.from_numpy(beginnings.windows[0]).long()
        notes.append(
            f"Text: the first {max_length} tokens of {len(beginnings.windows)} documents. Words repeat there for many "
            "reasons, so a head may attend to earlier occurrences without copying them."
        )
        notes += [*corpus.notes, *tokenizer_unknown_token_notes(reader, batches[NATURAL_TEXT])]
    return Inputs(
        batches=batches,
        shown={text: tokens[:_SHOWN_TOKENS] for text, tokens in shown.items()},
        sizes=sizes,
        tokenization=tokenization_of(reader, bos=config.bos),
        digest="no corpus" if corpus is None else digest_of(corpus.documents),
        notes=notes,
    )


def _read_corpus(config: HeadsConfig) -> Corpus | None:
    """Return the corpus of the settings; ``None`` if they have none."""
    if not config.corpus:
        return None
    corpus = CorpusStream(config.corpus, config.split, config.min_words, text_field=config.text_field).read()
    if len(corpus) < 2:
        raise InputError(
            f"the corpus {str(config.corpus[0])!r} has one document, and intervals over documents need 2; give more, "
            "or --split line"
        )
    return corpus


def _shortest_period(batches: Sequence[Batch]) -> Int[Tensor, "pos"]:
    """Return the first of the sequences that repeat soonest."""
    batch = min(batches, key=_least_period)
    return batch.tokens[int(batch.labels["period"].argmin())]


def _least_period(batch: Batch) -> int:
    return int(batch.labels["period"].min())


# ---- documents ----


def _beginnings(encoded: EncodedCorpus) -> EncodedCorpus:
    """Return the first window of each document."""
    _, first = np.unique(encoded.documents, return_index=True)
    return replace(
        encoded,
        windows=[encoded.windows[i] for i in first],
        labels=[encoded.labels[i] for i in first],
        documents=encoded.documents[first],
    )
