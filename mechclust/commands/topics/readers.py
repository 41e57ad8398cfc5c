"""What reads the documents of each model, known before topics are fitted: tokenizers and sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mechclust.commands.cost import Cost, forward_seconds
from mechclust.commands.topics.config import TopicsConfig
from mechclust.commands.topics.job import longest_window
from mechclust.models.resolved import ResolvedModel
from mechclust.models.sizes import Sizes
from mechclust.models.tokenizers import check_has_tokenizer, tokenizer_and_sizes
from tasks import InputError
from tasks.text.encoded_corpus import check_corpus_tokenizer, encode_corpus

_FIRST_DOCUMENTS = 32  # tried alone first
_TOKENS_PER_WORD = 1.5


@dataclass(frozen=True)
class Reader:
    """A model, and what is known of it without its weights."""

    model: ResolvedModel
    tokenizer: Any
    sizes: Sizes


def readable_models(
    models: Mapping[str, ResolvedModel], config: TopicsConfig, tokenizer: Any = None
) -> dict[str, Reader]:
    """Return what reads the documents of each model that can be read.

    A model left out still gets a job, which fails with the same reason for the tables.

    Args:
        models: by name.
        config: the settings.
        tokenizer: tokenizer of models in memory.

    Raises:
        InputError: if no model can be read, and for a tokenizer that no model uses.
    """
    if tokenizer is not None and not any(model.in_memory for model in models.values()):
        raise InputError("tokenizer= is for models in memory, and every model is given by name; leave it out")
    readers = {}
    failed = {}
    for name, model in models.items():
        try:
            own_tokenizer, sizes = tokenizer_and_sizes(model, trust_remote_code=config.trust_remote_code)
            given = tokenizer if model.in_memory else None
            reader = Reader(model, own_tokenizer if given is None else given, sizes)
            check_has_tokenizer(repr(model.name), reader.tokenizer, "text")
            check_corpus_tokenizer(reader.tokenizer)
            readers[name] = reader
        except InputError as error:
            failed[name] = str(error)
    if not readers:
        raise InputError(none_measured(failed))
    return readers


def none_measured(failed: Mapping[str, str]) -> str:
    """Return why the first model cannot be measured, and the number of others."""
    (name, why), *others = failed.items()
    if not others:
        return f"{name} cannot be measured: {why}"
    return f"no model can be measured: {name}: {why}; nor can the {f'{len(others)} others' if others[1:] else 'other'}"


def check_one_is_measurable(
    readers: Mapping[str, Reader], config: TopicsConfig, documents: Sequence[str], words: Sequence[str]
) -> None:
    """Return at the first model that knows a word and, if models are loaded in this process, can be loaded.

    A trial load of minutes is cheaper than learning after hours of fitting that none can.

    Args:
        readers: by model.
        config: the settings.
        documents: the documents to measure.
        words: words that topics are made of.

    Raises:
        InputError: if no model reads a word as one token, or none can be loaded.
    """
    failed = {}
    for name, reader in readers.items():
        try:
            _check_words(reader, config, words, documents)
            if config.here:
                with config.loaded(reader.model, "text", tokenizer=reader.tokenizer, without_patterns=True):
                    pass
            return
        except InputError as error:
            failed[name] = str(error)
        except (RuntimeError, MemoryError):  # may be too large for now; measuring it tells
            return
    raise InputError(none_measured(failed))


def _check_words(reader: Reader, config: TopicsConfig, words: Sequence[str], documents: Sequence[str]) -> None:
    """Refuse a model whose tokenizer has no topic word as one token.

    A few documents are enough to find such a word. Only all of them show that there is none.
    """
    max_length = longest_window(config, reader.sizes.n_ctx)
    options: dict[str, Any] = {"bos": config.bos, "d_vocab": reader.sizes.d_vocab}
    for part in (documents[:_FIRST_DOCUMENTS], documents):
        encoded = encode_corpus(part, reader.tokenizer, words, max_length, **options)
        if bool((encoded.token_of_word >= 0).any()):
            return
    if not encoded.occurrences:
        raise InputError(
            f"none of the corpus's {len(words)} different words is in the {len(documents)} documents measured; give a "
            "larger max_documents"
        )
    raise InputError(
        f"its tokenizer leaves none of the corpus's {len(words)} different words whole: all {encoded.lost} occurrences "
        "were lost, split or unknown; give a corpus in the model's language, or another model"
    )


def forward_cost(
    readers: Mapping[str, Reader], n_jobs: Mapping[str, int], config: TopicsConfig, documents: Sequence[str]
) -> Cost:
    """Return the time of forward passes.

    Args:
        readers: by model.
        n_jobs: by model, the number of times that its architecture is measured.
        config: the settings.
        documents: the documents to measure.
    """
    positions = _TOKENS_PER_WORD * sum(len(document.split()) for document in documents)
    times = [n_jobs[name] * forward_seconds(config, reader.sizes, positions) for name, reader in readers.items()]
    return Cost(sum(times), 0)
