"""The job that measures one model, trained or with random weights, possibly in another process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechclust.commands.topics.config import TopicsConfig
from mechclust.commands.topics.variants import variant_name, variants_of
from mechclust.commands.topics.vectors import PARTS, VECTORS, Measures, WordStates, word_similarities
from mechclust.models import token_embeddings
from mechclust.models.resolved import ResolvedModel
from mechclust.models.tokenizers import tokenization_of
from probes import DistanceMatchedTopicAttention, ProbeResult, load_result, run
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
        topic_seeds: of the topic models.
        topics: topics of ``words`` under every variant of every topic model.
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
    topic_seeds: Sequence[int]
    topics: Bool[Tensor, "topic_seed variant word topic"]
    documents: Sequence[str]
    config: TopicsConfig
    folder: Path
    about: Mapping[str, Any]

    @property
    def variants(self) -> list[str]:
        """The names of the variants."""
        return [variant_name(*variant) for variant in variants_of(self.config.thresholds)]

    @property
    def place(self) -> Path:
        """The folder of its measurements."""
        names = [repr([(seed, variant) for variant in self.variants]) for seed in self.topic_seeds]
        measured = (DistanceMatchedTopicAttention.states, PARTS, VECTORS)
        config = self.config
        reading = (config.max_length, config.tokens_per_batch, config.bos, config.resamples, config.seed)
        loading = (config.dtype, config.quantize, self.random_seed)
        settings = repr((self.identity, loading, reading, package_versions(), measured))
        digest = digest_of([settings, *names, *self.words, *self.documents, *self.topics.flatten(end_dim=1)])
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
        kept = [load_result(place / "attention.safetensors"), load_result(place / "embedding.safetensors")]
        return Measured(*[replace(result, metadata={**result.metadata, **job.about}) for result in kept])
    return None


def _measure(job: ModelJob) -> Measured:
    options: dict[str, Any] = {} if job.random_seed is None else {"untrained": True, "seed": job.random_seed}
    loading = job.config.loaded(job.model, "text", tokenizer=job.tokenizer, without_patterns=True, **options)
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
    topics = (job.topics & whole[:, None]).flatten(end_dim=1)
    places = (topics.any(dim=1).sum(dim=1) >= 2).nonzero().flatten()  # fewer topics cannot be compared
    if not len(places):
        raise InputError(
            f"of the {len(job.words)} topic words, the {int(whole.sum())} that the tokenizer leaves whole have fewer "
            "than two topics at every threshold; give more text or larger thresholds"
        )
    compared = list(topics[places])
    pairs: dict[str, Any] = {"words": "word", "max_distance": max(1, max_length - 1)}
    resampling: dict[str, Any] = {"n_resamples": config.resamples, "units": "document", "seed": config.seed}
    probes = [DistanceMatchedTopicAttention(each, **pairs, **resampling) for each in compared]
    states = WordStates.from_corpus(encoded, len(job.words))
    gathered = states.probe()
    *results, _ = run(hooked, states.batches(config.tokens_per_batch), [*probes, gathered])
    similarities = word_similarities(compared, _word_rows(hooked, encoded.token_of_word), states, gathered)
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
    return Measured(_attention_result(job, places, results, about), _embedding_result(job, places, similarities, about))


def longest_window(config: TopicsConfig, n_ctx: int | None) -> int:
    """Return the tokens of the longest window that a model of this context reads."""
    return config.max_length if n_ctx is None else min(config.max_length, n_ctx)


def _word_rows(hooked: Any, tokens: Int[Tensor, "word"]) -> Float[Tensor, "word dim"]:
    """Return rows of the token embedding matrix. Tokens below 0 give any row."""
    table = token_embeddings(hooked)
    return table[tokens.clamp(min=0).to(table.device)].to("cpu", torch.float64)


# ---- all topic models and variants as one result ----


def _by_variant(
    job: ModelJob, places: Int[Tensor, "compared"], values: list[Float[Tensor, "..."]]
) -> Float[Tensor, "topic_seed variant *axes"]:
    """Stack the values of every topic model and variant, with NaN where there is nothing to compare.

    Args:
        job: the job.
        places: places of the variants that have values, among those of all topic models.
        values: of these.
    """
    measured = torch.stack(values)
    n_seeds, n_variants = job.topics.shape[:2]
    stacked = measured.new_full((n_seeds * n_variants, *measured.shape[1:]), torch.nan)
    stacked[places] = measured
    return rearrange(stacked, "(seed variant) ... -> seed variant ...", seed=n_seeds)


def _coords(job: ModelJob) -> dict[str, list[str]]:
    return {"topic_seed": [str(seed) for seed in job.topic_seeds], "variant": job.variants}


def _attention_result(
    job: ModelJob, places: Int[Tensor, "compared"], results: Sequence[ProbeResult], about: Mapping[str, Any]
) -> ProbeResult:
    measured = results[0]
    values = {}
    axes: dict[str, tuple[str, ...]] = {}
    for name, measure in _ATTENTION_MEASURES.items():
        values[name] = _by_variant(job, places, [result[measure] for result in results])
        axes[name] = ("topic_seed", "variant", *measured.axes[measure])
    pairs = [result["pairs"].sum(dim=-1).double() for result in results]
    values["pairs"] = _by_variant(job, places, pairs).nan_to_num(nan=0.0)
    axes["pairs"] = ("topic_seed", "variant", "bucket")
    notes = []
    if len(places) < job.topics.shape[:2].numel():
        notes.append("at thresholds without a value, fewer than two topics keep a word, so there is nothing to compare")
    coords = {**measured.coords, **_coords(job)}
    del coords["distance"]  # every number is over all distances
    return ProbeResult("TopicsSuiteAttention", values, axes, coords, measured.layers, about, notes)


def _embedding_result(
    job: ModelJob, places: Int[Tensor, "compared"], measured: Sequence[Measures], about: Mapping[str, Any]
) -> ProbeResult:
    place = ("topic_seed", "variant", "vectors", "similarity")
    axes = {"ratio": place, "difference": place, "mean": (*place, "bucket"), "ratio_without": (*place, "left_out")}
    values = {name: _by_variant(job, places, [measures[name] for measures in measured]) for name in axes}
    coords = {
        **_coords(job),
        "vectors": list(VECTORS),
        "similarity": list(SIMILARITIES),
        "bucket": ["same_topic", "different_topic"],
        "left_out": [str(part) for part in range(PARTS)],
    }
    return ProbeResult("TopicsSuiteEmbedding", values, axes, coords, metadata=about)
