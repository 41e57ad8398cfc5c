"""The job that measures one model, trained or with random weights, possibly in another process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechclust.commands.topics.config import TopicsConfig
from mechclust.commands.topics.variants import Variant, n_topics
from mechclust.commands.topics.vectors import PARTS, VECTORS, Measures, WordStates, word_similarities
from mechclust.models import token_embeddings
from mechclust.models.resolved import ResolvedModel
from mechclust.models.tokenizers import tokenization_of
from probes import DistanceMatchedTopicAttention, ProbeResult, attention, load_result, run
from probes.functional.topic_embedding import SIMILARITIES
from probes.store.digest import digest_of
from probes.store.file_names import file_name
from probes.store.versions import package_versions
from tasks import InputError
from tasks.text.encoded_corpus import encode_corpus

_ATTENTION_MEASURES = {  # by name. The unmatched ratio is over all distances, within documents
    "ratio": "ratio_unmatched",
    "matched": "ratio",
    "overall_ratio": "overall_ratio_unmatched",
    "overall_matched": "overall_ratio",
    "overall_ratio_resampled": "overall_ratio_unmatched_resampled",
    "overall_matched_resampled": "overall_ratio_resampled",
}


@dataclass(frozen=True)
class Measured:
    """Measurements of one model.

    Attributes:
        attention: by topic seed, variant and head: ``ratio`` and ``matched``. Over all heads: ``overall_ratio``,
            ``overall_matched`` with ``_resampled``.
        embedding: by topic seed, variant, ``VECTORS`` and similarity: ``ratio``, ``difference``, ``mean``, and
            ``ratio_without`` each part of the documents.
    """

    attention: ProbeResult
    embedding: ProbeResult


@dataclass(frozen=True)
class ModelJob:
    """A model to measure.

    Attributes:
        name: in tables and folders.
        model: the model.
        random_seed: seed of random weights; ``None`` for the model's own.
        tokenizer: tokenizer of a model in memory.
        identity: of weights and tokenizer, such as names and times of their files. Empty if they cannot be read.
        words: words of the topics.
        topics: by topic seed, with the same variants for each. Their topics are over ``words``.
        documents: texts.
        config: how these are read and measured.
        folder: where measurements are kept.
        about: stands in the results' metadata, and may differ in a later run.
    """

    name: str
    model: ResolvedModel
    random_seed: int | None
    tokenizer: Any
    identity: str
    words: list[str]
    topics: Mapping[int, Sequence[Variant]]
    documents: Sequence[str]
    config: TopicsConfig
    folder: Path
    about: Mapping[str, Any]

    @property
    def variants(self) -> list[Variant]:
        """The variants of all topic models, one after the other."""
        return list(chain.from_iterable(self.topics.values()))

    @property
    def place(self) -> Path:
        """The folder of its measurements."""
        names = [repr([(seed, variant.name) for variant in variants]) for seed, variants in self.topics.items()]
        measured = (DistanceMatchedTopicAttention.states, PARTS, VECTORS)
        config = self.config
        reading = (config.max_length, config.tokens_per_batch, config.bos, config.resamples, config.seed)
        loading = (config.dtype, config.quantize, self.random_seed)
        settings = repr((self.identity, loading, reading, package_versions(), measured))
        topics = [variant.topics for variant in self.variants]
        digest = digest_of([settings, *names, *self.words, *self.documents, *topics])
        return self.folder / f"{file_name(self.name)}-{digest[:16]}"


def measure_model(job: ModelJob) -> Measured | str:
    """Measure a model, or read its measurements if they are kept.

    Return why if it cannot be measured.
    """
    kept = _kept(job)
    if kept is not None:
        return kept
    try:
        measured = _measure(job)
    except InputError as error:
        return str(error)
    except (RuntimeError, MemoryError) as error:  # too little memory, a kernel that is missing: others may go on
        reasons = str(error).strip().splitlines() or [type(error).__name__]
        return f"measuring it failed: {reasons[0]}; it is tried again the next time"
    place = job.place
    measured.attention.save(place / "attention.safetensors")
    measured.embedding.save(place / "embedding.safetensors")  # the last
    return measured


def _kept(job: ModelJob) -> Measured | None:
    place = job.place
    if not (place / "embedding.safetensors").exists():
        return None
    with suppress(InputError):  # a damaged one is measured again
        attention = load_result(place / "attention.safetensors")
        embedding = load_result(place / "embedding.safetensors")
        return Measured(_with_metadata(attention, job), _with_metadata(embedding, job))
    return None


def _with_metadata(result: ProbeResult, job: ModelJob) -> ProbeResult:
    return replace(result, metadata={**result.metadata, **job.about})


def _measure(job: ModelJob) -> Measured:
    options: dict[str, Any] = {} if job.random_seed is None else {"untrained": True, "seed": job.random_seed}
    loading = job.config.loaded(job.model, "text", tokenizer=job.tokenizer, measures_attention=True, **options)
    with loading as (hooked, tokenizer):
        return _measured(job, hooked, tokenizer)


def _measured(job: ModelJob, hooked: Any, tokenizer: Any) -> Measured:
    config = job.config
    max_length = longest_window(config, hooked.cfg.n_ctx)
    options: dict[str, Any] = {"bos": config.bos, "d_vocab": hooked.cfg.d_vocab}
    encoded = encode_corpus(job.documents, tokenizer, job.words, max_length, **options)
    encoded.check_whole(or_else=", or larger thresholds")
    whole = encoded.token_of_word >= 0
    # A word that is not seen has no topic, so that no room is kept for it.
    topics = [variant.topics & whole[:, None] for variant in job.variants]
    max_distance = max(1, max_length - 1)
    probes = [_attention_probe(each, config, max_distance) if n_topics(each) >= 2 else None for each in topics]
    used = [probe for probe in probes if probe is not None]
    if not used:
        raise InputError(
            f"of the {len(job.words)} topic words, the {int(whole.sum())} that the tokenizer leaves whole have fewer "
            "than two topics at every threshold; give more text or larger thresholds"
        )
    states = WordStates.from_corpus(encoded, len(job.words))
    gathered = states.probe()
    *results, _ = run(hooked, states.batches(config.tokens_per_batch), [*used, gathered])
    attention = _in_place(probes, iter(results))
    embedding = word_similarities(topics, _word_rows(hooked, encoded.token_of_word), states, gathered)
    about = {
        **job.about,
        "occurrences": encoded.occurrences,
        "lost": encoded.lost,
        "cut": encoded.n_cut,
        "words_seen": int(whole.sum()),
        "tokenization": tokenization_of(tokenizer, bos=config.bos),
        "model": results[0].metadata["model"],
        "versions": package_versions(),
    }
    return Measured(_attention_result(job, attention, about), _embedding_result(job, embedding, about))


def longest_window(config: TopicsConfig, n_ctx: int | None) -> int:
    """Return the tokens of the longest window that a model of this context reads."""
    return config.max_length if n_ctx is None else min(config.max_length, n_ctx)


def _attention_probe(
    topics: Bool[Tensor, "word topic"], config: TopicsConfig, max_distance: int
) -> DistanceMatchedTopicAttention:
    return DistanceMatchedTopicAttention(
        topics, attention(), "word", max_distance, config.resamples, "document", config.seed
    )


def _word_rows(hooked: Any, tokens: Int[Tensor, "word"]) -> Float[Tensor, "word dim"]:
    """Return rows of the token embedding matrix. Tokens below 0 give any row."""
    table = token_embeddings(hooked)
    return table[tokens.clamp(min=0).to(table.device)].to("cpu", torch.float64)


def _in_place(probes: Sequence[object | None], results: Iterator[ProbeResult]) -> list[ProbeResult | None]:
    """Return the result of each probe, with ``None`` for missing ones."""
    return [None if probe is None else next(results) for probe in probes]


# ---- all topic models and variants as one result ----


def _by_variant(
    job: ModelJob, values: Sequence[Float[Tensor, "..."] | None]
) -> Float[Tensor, "topic_seed variant *axes"]:
    """Stack values of every topic model and variant, with NaN if a variant has none."""
    measured = next(value for value in values if value is not None)
    lacking = torch.full_like(measured, torch.nan)
    stacked = torch.stack([lacking if value is None else value for value in values])
    return rearrange(stacked, "(seed variant) ... -> seed variant ...", seed=len(job.topics))


def _coords(job: ModelJob) -> dict[str, list[str]]:
    variants = next(iter(job.topics.values()))
    return {"topic_seed": [str(seed) for seed in job.topics], "variant": [variant.name for variant in variants]}


def _attention_result(job: ModelJob, results: Sequence[ProbeResult | None], about: Mapping[str, Any]) -> ProbeResult:
    measured = next(result for result in results if result is not None)
    values = {}
    axes: dict[str, tuple[str, ...]] = {}
    for name, measure in _ATTENTION_MEASURES.items():
        values[name] = _by_variant(job, [None if result is None else result[measure] for result in results])
        axes[name] = ("topic_seed", "variant", *measured.axes[measure])
    pairs = [torch.zeros(2) if result is None else result["pairs"].sum(dim=-1).float() for result in results]
    values["pairs"] = _by_variant(job, pairs).double()
    axes["pairs"] = ("topic_seed", "variant", "bucket")
    lacking = any(result is None for result in results)
    notes = []
    if lacking:
        notes.append("at thresholds without a value, fewer than two topics keep a word, so there is nothing to compare")
    coords = {**measured.coords, **_coords(job)}
    del coords["distance"]  # every number is over all distances
    return ProbeResult("TopicsSuiteAttention", values, axes, coords, measured.layers, about, notes)


def _embedding_result(job: ModelJob, measured: Sequence[Measures | None], about: Mapping[str, Any]) -> ProbeResult:
    place = ("topic_seed", "variant", "vectors", "similarity")
    axes = {"ratio": place, "difference": place, "mean": (*place, "bucket"), "ratio_without": (*place, "left_out")}
    values = {}
    for name in axes:
        values[name] = _by_variant(job, [None if measures is None else measures[name] for measures in measured])
    coords = {
        **_coords(job),
        "vectors": list(VECTORS),
        "similarity": list(SIMILARITIES),
        "bucket": ["same_topic", "different_topic"],
        "left_out": [str(part) for part in range(PARTS)],
    }
    return ProbeResult("TopicsSuiteEmbedding", values, axes, coords, metadata=about)
