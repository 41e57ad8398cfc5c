"""The inputs of ``measure_history``: prompts and corpus, tokenized once for all checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mechclust.commands.history.config import HistoryConfig
from mechclust.commands.history.series import Checkpoint
from mechclust.commands.units import Units, repeated_prompt_notes, units_of
from mechclust.models.adapter_fit import adapter_fit_notes
from mechclust.models.hugging_face_checkpoint import TOKENIZERS, find_checkpoint, read_checkpoint_config
from mechclust.models.resolved import resolve_model
from mechclust.models.sizes import Sizes
from mechclust.models.tokenized_prompts import tokenize_prompts
from mechclust.models.tokenizers import (
    tokenization_in_words,
    tokenization_of,
    tokenizer_and_config,
    tokenizer_unknown_token_notes,
)
from mechclust.models.whole_weights import check_whole_weights
from probes.engine.examples_digest import token_digests
from probes.store.digest import digest_of
from tasks import Batch, CorpusStream, InputError, LabelledPrompts
from tasks.text.encoded_corpus import EncodedCorpus, check_corpus_tokenizer
from tasks.text.topic_model import fit_topics


@dataclass(frozen=True)
class Inputs:
    """Prompts and corpus that every checkpoint is run on.

    Attributes:
        prompts: as in the file.
        batches: the prompts as tokens.
        tokenizer: the tokenizer that produced them.
        words: the tokens, as strings, of each prompt whose attention is shown, by its number in the file.
        corpus: the tokenized corpus, for topics.
        topics: which words of the corpus belong to which topics.
        units: which prompts belong together.
        notes: anything a reader should know.
    """

    prompts: LabelledPrompts
    batches: Sequence[Batch]
    tokenizer: Any
    words: dict[int, list[str]]
    units: Units
    corpus: EncodedCorpus | None = None
    topics: Bool[Tensor, "word topic"] | None = None
    notes: Sequence[str] = ()

    @property
    def digest(self) -> str:
        """Digest of these inputs."""
        return digest_of([self.prompts_digest, self.units_digest, self.corpus_digest])

    @cached_property
    def prompts_digest(self) -> str:
        """Digest of the prompts as tokens, with their tasks, whatever the batches."""
        index = torch.cat([batch.index for batch in self.batches])
        task = torch.cat([batch.labels["task"] for batch in self.batches])
        tokens = torch.cat([token_digests(batch) for batch in self.batches])
        order = index.argsort()
        return digest_of([index[order], task[order], tokens[order]])

    @cached_property
    def units_digest(self) -> str:
        """Digest of which prompts belong together, and of the label that says so."""
        codes = self.units.codes
        return digest_of([str(self.units.label), *([] if codes is None else [codes])])

    @cached_property
    def corpus_digest(self) -> str:
        """Digest of the corpus as tokens, with its topics, or ``""`` if there is no corpus."""
        if self.corpus is None or self.topics is None:
            return ""
        return digest_of([*self.corpus.windows, *self.corpus.labels, self.topics])


def read_inputs(model: Any, series: Sequence[Checkpoint], config: HistoryConfig, tokenizer: Any = None) -> Inputs:
    """Tokenize prompts and corpus with the last checkpoint's tokenizer, without loading weights.

    Raises:
        InputError: if the prompts, the text or the tokenizer are unusable, or a checkpoint's folder lacks its weights
            or configuration.
    """
    prompts = config.read_prompts()
    _check_prompts(prompts, config)
    compared = "cka" in config.measured
    units = units_of(prompts, config.units, compared_in=["the file"] * len(prompts.prompts) if compared else None)
    prompts = units.added_to(prompts)
    for checkpoint in series:
        _check_whole(checkpoint, config)
    check_whole_weights(checkpoint.model for checkpoint in series)
    reader = _tokenizer(model, series, config) if tokenizer is None else tokenizer
    sizes = sizes_of(series[-1], config)
    _check_map_layers(config, sizes)
    batches = list(
        tokenize_prompts(
            prompts,
            reader,
            sizes,
            tokens_per_batch=config.tokens_per_batch,
            chat=config.chat,
            bos=config.bos,
            too_long=config.too_long,
        )
    )
    corpus, topics, corpus_notes = _topics(reader, sizes, config) if "topics" in config.measured else (None, None, ())
    return Inputs(
        prompts=prompts,
        batches=batches,
        tokenizer=reader,
        words={place: _words(reader, batches, place) for place in config.attention_prompts if config.map_prompts},
        units=units,
        corpus=corpus,
        topics=topics,
        notes=[
            tokenization_in_words(tokenization_of(reader, chat=config.chat, bos=config.bos)),
            *tokenizer_unknown_token_notes(reader, batches),
            *repeated_prompt_notes(prompts, units),
            units.sentence,
            *adapter_fit_notes([series[-1].model]),
            *corpus_notes,
        ],
    )


def own_tokenizer(checkpoint: Checkpoint, config: HistoryConfig) -> Any:
    """Return the tokenizer that comes with a checkpoint, or ``None`` if there is none."""
    folder = Path(checkpoint.model.source)
    if folder.is_dir() and not any(path for name in TOKENIZERS for path in folder.glob(name)):
        return None
    return tokenizer_and_config(checkpoint.model, trust_remote_code=config.trust_remote_code)[0]


def _check_prompts(prompts: LabelledPrompts, config: HistoryConfig) -> None:
    classes = prompts.classes["task"]
    if {"clusters", "heads"} & {*config.measured} and not 1 < len(classes) < len(prompts):
        what = "one task only" if len(classes) == 1 else "as many tasks as prompts"
        raise InputError(
            f"{config.prompts} has {what}; clusters and heads need at least 2 tasks with several prompts each, or give "
            "--probes cka"
        )
    beyond = [i for i in config.attention_prompts if i >= len(prompts)]
    if config.map_prompts and beyond:
        raise InputError(
            f"attention_prompts has {beyond[0]}, and {config.prompts} has {len(prompts)} prompts, counted from 0; give "
            "one of them"
        )


def _check_map_layers(config: HistoryConfig, sizes: Sizes) -> None:
    if sizes.n_layers is None:
        return
    for layer in config.map_layers:
        if not 0 <= layer <= sizes.n_layers:
            raise InputError(f"map_layers has {layer}, and the model has the layers 0 to {sizes.n_layers}; give these")


def _tokenizer(model: Any, series: Sequence[Checkpoint], config: HistoryConfig) -> Any:
    """Return the last tokenizer of the series, or the model's if no checkpoint has one."""
    for checkpoint in reversed(series):
        tokenizer = own_tokenizer(checkpoint, config)
        if tokenizer is not None:
            return tokenizer
    last = series[-1].model
    other = last if last.is_adapter else resolve_model(model)
    try:
        return tokenizer_and_config(other, trust_remote_code=config.trust_remote_code)[0]
    except InputError as error:
        why = f"{other.source!r} has none either" if Path(other.source).is_dir() else str(error)
        raise InputError(
            "the checkpoints have no tokenizer (the Trainer saves one only if it gets it as processing_class), and "
            f"{why}; give the model that was trained as MODEL, and its checkpoints with --checkpoints"
        ) from None


def _check_whole(checkpoint: Checkpoint, config: HistoryConfig) -> None:
    """Refuse a folder without weights, such as one still being written, before others are measured."""
    if not Path(checkpoint.model.source).is_dir() or checkpoint.model.is_adapter:
        return
    try:
        find_checkpoint(checkpoint.model.source, tokenizer=False, trust_remote_code=config.trust_remote_code)
    except InputError as error:
        raise InputError(f"{error}, or leave this checkpoint out") from None


def sizes_of(checkpoint: Checkpoint, config: HistoryConfig) -> Sizes:
    """Return the sizes of a checkpoint, without loading weights."""
    source = find_checkpoint(checkpoint.model.base, tokenizer=False, trust_remote_code=config.trust_remote_code)
    return Sizes.from_config(read_checkpoint_config(source))


def _words(reader: Any, batches: Sequence[Batch], place: int) -> list[str]:
    ids = tokens_of(batches, place)
    return [str(reader.decode([i])) for i in ids.tolist()]


def tokens_of(batches: Sequence[Batch], place: int) -> Int[Tensor, "pos"]:
    """Return the tokens of the prompt with this number in the file."""
    for batch in batches:
        rows = (batch.index == place).nonzero()
        if len(rows):
            prompt = batch.select(rows[0])
            return prompt.tokens[0] if prompt.attention_mask is None else prompt.tokens[prompt.attention_mask]
    raise InputError(f"there is no prompt {place}")


def _topics(
    reader: Any, sizes: Sizes, config: HistoryConfig
) -> tuple[EncodedCorpus, Bool[Tensor, "word topic"], Sequence[str]]:
    """Fit topics to the corpus and tokenize it.

    Return it with the topics of its words, and notes.
    """
    check_corpus_tokenizer(reader)
    corpus = CorpusStream(config.corpus, text_field=config.text_field).read()
    topic_model = fit_topics(corpus, config.n_topics, seed=config.seed, min_documents=config.min_documents)
    membership = topic_model.membership(config.threshold)
    in_topics = membership.any(dim=1)
    words = [word for word, keep in zip(topic_model.words, in_topics.tolist(), strict=True) if keep]
    longest = min(config.max_length, config.tokens_per_batch, sizes.n_ctx or config.max_length)
    encoded = corpus.encode(reader, words, longest, bos=config.bos, d_vocab=sizes.d_vocab)
    encoded.check_whole(or_else=", or a larger --threshold")
    return encoded, membership[in_topics], corpus.notes
