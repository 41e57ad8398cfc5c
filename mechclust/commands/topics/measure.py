"""How far a user's own model and corpus keep words of a topic together, in attention and in embeddings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mechclust.commands.topics.config import TopicsConfig
from mechclust.commands.topics.result import ModelMeasures, TopicsResult, Variant
from mechclust.jobs import progress_bar
from mechclust.models import token_embeddings
from mechclust.models.pretrained import AnyModel
from mechclust.models.tokenizers import tokenization
from probes import ProbeResult, TopicAttention, TopicEmbedding, attention_pattern, residual, run
from probes.sites import Sites
from tasks import Batch, Corpus, InputError, TopicModel
from tasks.batch import token_batches
from tasks.text.encoding import EncodedCorpus, check_tokenizer
from tasks.text.topic_model import check_corpus_size, count_words, fit_counts, least_threshold

MATRIX = "token embedding matrix"
_LOOK = 32  # documents in which a whole word is looked for first


def measure_topics(
    model: AnyModel, config: TopicsConfig, *, tokenizer: Any = None, progress: bool = False
) -> TopicsResult:
    """Attention and similarity between words of a topic, against words of different topics.

    Topics come from an LDA model of the corpus. All thresholds share one forward pass per batch. Case is
    ignored, so several token ids can be the same word (``Cat``, ``cat``); its row of the embedding matrix is
    the one of its most frequent token.

    Args:
        model: hub name or local directory, or a loaded model: Hugging Face's, or one that ``load_pretrained`` gave.
        config: what to measure.
        tokenizer: of a loaded Hugging Face model.
        progress: show progress bars.

    Raises:
        InputError: for bad settings, a bad corpus, or thresholds that leave each topic one word (before
            the model is loaded), a model that cannot be loaded or whose tokenizer cannot be used or leaves
            no word whole (before the topics are fitted), and no topic word that it leaves whole.
    """
    config.check()
    corpus = Corpus.from_files(config.corpus, config.split, config.min_words)
    check_corpus_size(len(corpus), config.n_topics)
    counts = count_words(corpus, config.min_documents, config.max_share, config.stop_words, progress=progress)
    _check_pairs(len(counts.words), config.thresholds)
    name = config.title(model)
    with _loaded(model, config, tokenizer=tokenizer) as (hooked, reader):
        reads: dict[str, Any] = {"bos": config.bos, "d_vocab": hooked.cfg.d_vocab}
        used = tokenization(reader, bos=config.bos)
        sample = corpus if config.max_documents is None else corpus.sample(config.max_documents, config.seed)
        n_ctx = hooked.cfg.n_ctx
        max_length = config.max_length if n_ctx is None else min(config.max_length, n_ctx)
        if max_length > config.tokens_per_batch:
            raise InputError(
                f"tokens_per_batch is {config.tokens_per_batch}, fewer than the {max_length} tokens of a window; give "
                f"at least {max_length}, or shorter windows (--max-length)"
            )
        _check_whole(name, sample, reader, counts.words, max_length, config.seed, **reads)
        topics = fit_counts(counts, config.n_topics, config.passes, config.seed, progress=progress)
        words, variants = _variants(topics, config.thresholds)
        encoded = sample.encode(reader, words, max_length, **reads, progress=progress)
        if not _any_whole(encoded):
            raise InputError(
                f"the tokenizer of {name!r} leaves none of the {len(words)} topic words whole: {encoded.lost} of "
                f"{encoded.occurrences} occurrences were lost, split or unknown; give a corpus in the model's "
                "language, or a larger threshold"
            )
        trained = _measure(hooked, encoded, variants, config, config.n_permutations, progress)
    del hooked  # one model in memory at a time
    untrained = []
    for seed in range(config.untrained):
        with _loaded(model, config, tokenizer=tokenizer, untrained=True, seed=seed) as (hooked, _):
            untrained.append(_measure(hooked, encoded, variants, config, 0, progress))
        del hooked
    n_files = len(set(corpus.sources))
    trained, *untrained = (_with_tokenization(measures, used) for measures in (trained, *untrained))
    return TopicsResult(
        name, config, topics, len(corpus), n_files, encoded, variants, trained, untrained, corpus.empty_files
    )


def _with_tokenization(measures: ModelMeasures, used: dict[str, Any]) -> ModelMeasures:
    """The same results, which say how texts became tokens."""
    kinds = {
        kind: [r and replace(r, metadata={**r.metadata, "tokenization": used}) for r in results]
        for kind, results in vars(measures).items()
    }
    return ModelMeasures(**kinds)


def _check_pairs(n_words: int, thresholds: Sequence[float]) -> None:
    """Refuse thresholds of which none lets two words share a topic: every same-topic mean would be NaN."""
    if int(n_words * max(thresholds)) > 0:
        return
    least = least_threshold(n_words)
    more = f"a threshold of at least {least:g}, or more text" if least < 1 else "more text"
    raise InputError(
        f"the topics have {n_words} different word{'s' * (n_words != 1)}, of which the largest threshold, "
        f"{max(thresholds):g}, keeps one per topic, and comparing words of a topic takes two; give {more}"
    )


def _check_whole(
    model: str, documents: Corpus, tokenizer: Any, words: list[str], max_length: int, seed: int, **reads: Any
) -> None:
    """Refuse a tokenizer that splits every word, before the topics are fitted. A few documents are enough to
    find a whole word; that there is none, only all of them can say."""
    for n in (_LOOK, len(documents)):
        encoded = documents.sample(n, seed).encode(tokenizer, words, max_length, **reads)
        if _any_whole(encoded):
            return
    if not encoded.occurrences:
        raise InputError(
            f"none of the corpus's {len(words)} different words is in the {len(documents)} documents measured; give a "
            "larger max_documents"
        )
    raise InputError(
        f"the tokenizer of {model!r} leaves none of the corpus's {len(words)} different words whole: all "
        f"{encoded.lost} occurrences were lost, split or unknown; give a corpus in the model's language, or another "
        "model"
    )


def _any_whole(encoded: EncodedCorpus) -> bool:
    return bool((encoded.token_of_word >= 0).any())


@contextmanager
def _loaded(model: AnyModel, config: TopicsConfig, **options: Any) -> Iterator[tuple[Any, Any]]:
    with config.loaded(model, "text", attention="eager", **options) as (hooked, reader):  # patterns are read
        check_tokenizer(reader)
        yield hooked, reader


def _variants(topics: TopicModel, thresholds: Sequence[float]) -> tuple[list[str], list[Variant]]:
    """The words that any threshold keeps, and every variant over these."""
    kept = topics.membership(max(thresholds)).any(dim=1)
    words = [word for word, keep in zip(topics.words, kept.tolist(), strict=True) if keep]
    return words, [
        Variant(t, overlap, topics.membership(t, overlap)[kept]) for overlap in (False, True) for t in thresholds
    ]


def _measure(
    hooked: Any,
    encoded: EncodedCorpus,
    variants: Sequence[Variant],
    config: TopicsConfig,
    n_permutations: int,
    progress: bool,
) -> ModelMeasures:
    options: dict[str, Any] = {"words": "word", "n_permutations": n_permutations, "seed": config.seed}
    usable = [variant for variant in variants if variant.n_topics >= 2]
    attention = [TopicAttention(variant.topics, at=attention_pattern(), **options) for variant in usable]
    # Every word's mean hidden state is gathered once; the variants differ in which words count.
    widest = max(variants, key=lambda variant: (variant.threshold, variant.overlap)).topics
    gathered = TopicEmbedding(widest, at=residual(), words="word", n_permutations=0)
    batches: Iterable[Batch] = encoded.batches(config.tokens_per_batch)
    if progress:
        total = sum(1 for _ in token_batches(list(map(len, encoded.windows)), config.tokens_per_batch, str))
        batches = progress_bar(batches, total=total, desc="measuring", unit="batch")
    *found, hidden = run(hooked, batches, [*attention, gathered])
    results, (states, seen) = iter(found), gathered.word_vectors()

    tokens = encoded.token_of_word
    table = token_embeddings(hooked)
    matrix = table[tokens.clamp(min=0).to(table.device)].to("cpu", torch.float64)

    def similarity(variant: Variant, at: Sites, vectors: dict[str, Tensor], seen: Tensor) -> ProbeResult | None:
        if variant not in usable:
            return None
        return TopicEmbedding(variant.topics, at=at, **options).compare_vectors(vectors, seen, hidden.layers)

    shown = progress_bar(variants, desc="comparing word vectors") if progress and n_permutations else variants
    return ModelMeasures(
        attention=[next(results) if variant in usable else None for variant in variants],
        vectors=[similarity(variant, residual(), states, seen) for variant in shown],
        embedding=[similarity(variant, MATRIX, {MATRIX: matrix}, tokens >= 0) for variant in variants],
    )
