"""Measure how a model keeps words of a topic together, in attention and in embeddings, on a corpus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from mechclust.commands.folder import check_outside, own_folder
from mechclust.commands.settings import check_window
from mechclust.commands.topics.config import TopicsConfig
from mechclust.commands.topics.estimate import cost_of
from mechclust.commands.topics.measurements import ModelMeasures
from mechclust.commands.topics.result import TopicsResult
from mechclust.commands.topics.sources import LoadedModel, ModelSource, models_in_workers
from mechclust.commands.topics.variants import Variant, check_pairs, chosen_words, kept_words, variants_of
from mechclust.jobs import progress_bar
from mechclust.models.adapter_fit import adapter_fit_notes
from mechclust.models.pretrained import AnyModel
from mechclust.models.resolved import ResolvedModel
from mechclust.models.tokenizers import tokenization_of, tokenizer_and_sizes
from mechclust.report.folder import check_folder, check_folder_subject, save_folder_results
from probes import ProbeResult, TopicAttention, TopicEmbedding, residual
from probes.engine.fingerprint import fingerprint
from probes.engine.sites import Sites
from probes.store.digest import digest_of
from tasks import Corpus, CorpusStream, InputError, TopicModel
from tasks.text.encoded_corpus import EncodedCorpus, check_corpus_tokenizer
from tasks.text.topic_model import check_enough_for_topics, fit_topics_to_counts
from tasks.text.vocabulary import Vocabulary
from tasks.text.word_counts import WordCounts

MATRIX = "token embedding matrix"
_FIRST_DOCUMENTS = 32  # in which a whole word is looked for before all others


def measure_topics(
    model: AnyModel,
    config: TopicsConfig,
    out: str | Path | None = None,
    *,
    tokenizer: Any = None,
    progress: bool = False,
) -> TopicsResult:
    """Measure attention and similarity between words of one topic, against words of different topics.

    Topics come from an LDA model of the corpus. All thresholds share one forward pass per batch. Case is ignored, so
    several token ids can be one word (``Cat``, ``cat``). Its row of the embedding matrix is its most frequent token's.
    With ``config.workers`` or a Ray cluster, the documents go to several processes. The results agree up to the
    rounding of sums.

    Args:
        model: hub name or local directory, or a loaded model: Hugging Face's, or one from ``load_pretrained``.
        config: the settings.
        out: folder for the measurements, in ``results``. With several processes, also for the results of each process,
            so that a repeated call goes on after an interruption. If ``None``, no files are kept.
        tokenizer: of a loaded Hugging Face model.
        progress: show progress bars.

    Raises:
        InputError: before the model is loaded, for bad settings, a bad corpus, thresholds that leave each topic one
            word, a model in memory for several processes, or an ``out`` that another process uses or that holds other
            measurements. Before the topics are fitted, for a model that cannot be loaded or whose tokenizer cannot be
            used or leaves no word whole. Later, for no topic word that it leaves whole.

    Example:
        >>> result = measure_topics("bert-base-uncased", TopicsConfig((Path("corpus.txt"),)))  # doctest: +SKIP
        >>> result.headline, result.to_dataframe()  # doctest: +SKIP
    """
    config.check()
    resolved = config.resolve(model)
    config.check_shared(resolved)
    if out is not None:
        check_folder(Path(out), "topics")
        check_outside(out, config.corpus)
    corpus = CorpusStream(config.corpus, config.split, config.min_words, text_field=config.text_field).read()
    check_enough_for_topics(len(corpus), config.n_topics)
    subject = {"model": resolved.portable.title, "texts": digest_of(corpus.documents)}
    if progress:
        sizes = tokenizer_and_sizes(resolved, trust_remote_code=config.trust_remote_code)[1]
        cost_of(corpus, sizes, config).check(config, "fewer --max-documents, --n-permutations or --n-resamples")
    with own_folder(out, "topics", subject):
        result = _measured(resolved, corpus, _Call(config, None if out is None else Path(out), tokenizer, progress))
        if out is not None:
            weights = _weights(result.trained)
            check_folder_subject(Path(out), weights)
            save_folder_results(out, "topics", result.results, {**subject, **weights})
    return result


def _weights(measures: ModelMeasures) -> dict[str, str]:
    """Return the part of a folder's subject that distinguishes the model's weights from others."""
    fingerprints = [result.metadata["model"] for result in measures.attention if result is not None]
    return {"weights": str(fingerprints[0])} if fingerprints else {}


@dataclass(frozen=True)
class _Reader:
    """A tokenizer, the sizes of its model, and the model itself if it is loaded."""

    tokenizer: Any
    d_vocab: int | None
    n_ctx: int | None
    hooked: Any = None


@dataclass(frozen=True)
class _Call:
    """Arguments of ``measure_topics``."""

    config: TopicsConfig
    out: Path | None
    tokenizer: Any
    progress: bool

    @contextmanager
    def reader(self, model: ResolvedModel) -> Iterator[_Reader]:
        """Load the tokenizer, and the model if it is measured in this process."""
        if self.config.here:
            with self.loaded(model) as reader:
                yield reader
            return
        tokenizer, sizes = tokenizer_and_sizes(model, trust_remote_code=self.config.trust_remote_code)
        tokenizer = tokenizer if self.tokenizer is None else self.tokenizer
        check_corpus_tokenizer(tokenizer)
        yield _Reader(tokenizer, sizes.d_vocab, sizes.n_ctx)

    @contextmanager
    def loaded(self, model: ResolvedModel, **options: Any) -> Iterator[_Reader]:
        """Load a model whose attention can be measured."""
        with self.config.loaded(model, "text", measures_attention=True, tokenizer=self.tokenizer, **options) as loaded:
            hooked, tokenizer = loaded
            check_corpus_tokenizer(tokenizer)
            yield _Reader(tokenizer, hooked.cfg.d_vocab, hooked.cfg.n_ctx, hooked)


def _measured(model: ResolvedModel, corpus: Corpus, call: _Call) -> TopicsResult:
    config = call.config
    vocabulary = Vocabulary.count(
        corpus.documents, None, config.min_documents, config.max_share, config.stop_words, progress=call.progress
    )
    counts = WordCounts(vocabulary.words, vocabulary.counts(corpus.documents))
    check_pairs(len(counts.words), config.thresholds)
    measures = []
    with call.reader(model) as reader:
        if call.out is not None and reader.hooked is not None:  # before there is anything to lose
            check_folder_subject(call.out, {"weights": fingerprint(reader.hooked)})
        topics, variants, encoded = _read(model.title, corpus, counts, reader, call)
        tokenization = tokenization_of(reader.tokenizer, bos=config.bos)
        if reader.hooked is not None:
            source = LoadedModel(reader.hooked, call.progress)
            measures.append(_measure(source, encoded, variants, call))
            del source
    del reader  # one model in memory at a time
    others = _measure_untrained if config.here else _measure_in_workers
    measures += others(model, encoded, variants, call)
    trained, *untrained = [_with_tokenization(each, tokenization) for each in measures]
    return TopicsResult(
        model=model.title,
        config=config,
        topics=topics,
        n_documents=len(corpus),
        n_files=len(set(corpus.sources)),
        encoded=encoded,
        variants=variants,
        trained=trained,
        untrained=untrained,
        empty_files=corpus.empty_files,
        corpus_notes=[*corpus.notes, *adapter_fit_notes([model])],
    )


def _read(
    model: str, corpus: Corpus, counts: WordCounts, reader: _Reader, call: _Call
) -> tuple[TopicModel, list[Variant], EncodedCorpus]:
    """Fit the topics and tokenize the documents to measure."""
    config = call.config
    documents = corpus if config.max_documents is None else corpus.sample(config.max_documents, config.seed)
    max_length = config.max_length if reader.n_ctx is None else min(config.max_length, reader.n_ctx)
    check_window(max_length, config.tokens_per_batch)
    options: dict[str, Any] = {"bos": config.bos, "d_vocab": reader.d_vocab}
    _check_whole(model, documents, reader.tokenizer, counts.words, max_length, config.seed, **options)
    topics = fit_topics_to_counts(counts, config.n_topics, config.passes, config.seed, progress=call.progress)
    kept = kept_words([topics], config.thresholds)
    words = chosen_words(topics.words, kept)
    encoded = documents.encode(reader.tokenizer, words, max_length, **options, progress=call.progress)
    encoded.check_whole(f"the tokenizer of {model!r}", or_else=", or a larger threshold")
    return topics, variants_of(topics, config.thresholds, kept), encoded


def _check_whole(
    model: str, documents: Corpus, tokenizer: Any, words: list[str], max_length: int, seed: int, **options: Any
) -> None:
    """Refuse a tokenizer that splits every word, before the topics are fitted.

    A few documents are enough to find a whole word. Only all of them show that there is none.
    """
    for n in (_FIRST_DOCUMENTS, len(documents)):
        encoded = documents.sample(n, seed).encode(tokenizer, words, max_length, **options)
        if bool((encoded.token_of_word >= 0).any()):
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


def _measure_untrained(
    model: ResolvedModel, encoded: EncodedCorpus, variants: Sequence[Variant], call: _Call
) -> list[ModelMeasures]:
    measures = []
    for seed in range(call.config.untrained):
        with call.loaded(model, untrained=True, seed=seed) as reader:
            source = LoadedModel(reader.hooked, call.progress)
            measures.append(_measure(source, encoded, variants, call, is_trained=False))
            del source
        del reader  # one model in memory at a time
    return measures


def _measure_in_workers(
    model: ResolvedModel, encoded: EncodedCorpus, variants: Sequence[Variant], call: _Call
) -> list[ModelMeasures]:
    """Measure the model and the untrained ones in other processes."""
    sources = models_in_workers(
        model, encoded.token_of_word, call.config, call.out, tokenizer=call.tokenizer, progress=call.progress
    )
    trained, *untrained = sources
    measures = [_measure(trained, encoded, variants, call)]
    return measures + [_measure(source, encoded, variants, call, is_trained=False) for source in untrained]


def _with_tokenization(measures: ModelMeasures, tokenization: Mapping[str, Any]) -> ModelMeasures:
    """Record in each result how texts became tokens."""
    kinds = {}
    for kind, results in vars(measures).items():
        kinds[kind] = [
            None if result is None else replace(result, metadata={**result.metadata, "tokenization": tokenization})
            for result in results
        ]
    return ModelMeasures(**kinds)


def _measure(
    source: ModelSource, encoded: EncodedCorpus, variants: Sequence[Variant], call: _Call, *, is_trained: bool = True
) -> ModelMeasures:
    """Run all probes on one model. An untrained one has neither chance levels nor intervals.

    Every word's mean hidden state is gathered once. The variants differ in which words count.
    """
    n_permutations = call.config.n_permutations if is_trained else 0
    options: dict[str, Any] = {"words": "word", "n_permutations": n_permutations, "seed": call.config.seed}
    halves: dict[str, Any] = {"n_resamples": call.config.n_resamples if is_trained else 0, "units": "document"}
    usable = [variant for variant in variants if variant.n_topics >= 2]
    widest = max(variants, key=_width)
    gathered = TopicEmbedding(widest.topics, at=residual(), words="word", n_permutations=0)
    probes = [TopicAttention(variant.topics, **options, **halves) for variant in usable]
    *attention, hidden = source.run(encoded, call.config, [*probes, gathered])
    states, seen = gathered.word_vectors()
    tokens = encoded.token_of_word
    rows = {MATRIX: source.word_rows(tokens)}
    shown = progress_bar(usable, desc="comparing word vectors") if call.progress and n_permutations else usable
    vectors = [_similarity(variant, residual(), states, seen, hidden.layers, options) for variant in shown]
    embedding = [_similarity(variant, MATRIX, rows, tokens >= 0, hidden.layers, options) for variant in usable]
    return ModelMeasures(
        attention=_for_each(variants, usable, attention),
        vectors=_for_each(variants, usable, vectors),
        embedding=_for_each(variants, usable, embedding),
    )


def _width(variant: Variant) -> tuple[float, bool]:
    """Return a key that is largest for the variant that keeps the most words."""
    return variant.threshold, variant.overlap


def _similarity(
    variant: Variant,
    at: Sites,
    vectors: Mapping[str, Float[Tensor, "word _"]],
    seen: Bool[Tensor, "word"],
    layers: Mapping[str, int],
    options: Mapping[str, Any],
) -> ProbeResult:
    return TopicEmbedding(variant.topics, at=at, **options).compare_vectors(vectors, seen, layers)


def _for_each(
    variants: Sequence[Variant], usable: Sequence[Variant], results: Sequence[ProbeResult]
) -> list[ProbeResult | None]:
    """Return the result of each variant, or ``None`` for unusable ones."""
    by_variant = dict(zip(usable, results, strict=True))
    return [by_variant.get(variant) for variant in variants]
