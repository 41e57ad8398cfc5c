"""How far a user's own model and corpus keep words of a topic together, in attention and in embeddings."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from mechclust.commands.folder import own_folder
from mechclust.commands.topics.config import TopicsConfig
from mechclust.commands.topics.report import SHARDS, results_of
from mechclust.commands.topics.result import ModelMeasures, TopicsResult, Variant
from mechclust.jobs import map_jobs, progress_bar, run_sharded
from mechclust.models import token_embeddings
from mechclust.models.pretrained import AnyModel
from mechclust.models.resolved import ResolvedModel
from mechclust.models.tokenizers import tokenization_of, tokenizer_and_sizes
from mechclust.report.folder import check_command, check_subject
from mechclust.report.page import save_results
from probes import ProbeResult, TopicAttention, TopicEmbedding, attention_pattern, residual, run
from probes.engine.identity import fingerprint
from probes.engine.probe import Probe
from probes.engine.sites import Sites
from probes.store.digest import digest_of
from tasks import Batch, Corpus, CorpusStream, InputError, TopicModel
from tasks.batch import token_batches
from tasks.text.encoding import EncodedCorpus, check_tokenizer
from tasks.text.topic_model import check_corpus_size, count_words, fit_counts, least_threshold

MATRIX = "token embedding matrix"
_SHARD_WINDOWS, _SHARDS = 64, 16  # of which a lost worker costs one: windows at least, and how many at most
_LOOK = 32  # documents in which a whole word is looked for first


def measure_topics(
    model: AnyModel,
    config: TopicsConfig,
    out: str | Path | None = None,
    *,
    tokenizer: Any = None,
    progress: bool = False,
) -> TopicsResult:
    """Attention and similarity between words of a topic, against words of different topics.

    Topics come from an LDA model of the corpus. All thresholds share one forward pass per batch. Case is
    ignored, so several token ids can be the same word (``Cat``, ``cat``); its row of the embedding matrix is
    the one of its most frequent token. With ``config.workers`` or a Ray cluster the documents go to several processes;
    what is found is the same, but for the rounding of sums.

    Args:
        model: hub name or local directory, or a loaded model: Hugging Face's, or one that ``load_pretrained`` gave.
        config: what to measure.
        out: folder for what was measured, in ``results``; with several processes also for what each has done, so that
            the same call goes on after an interruption. ``None``: nothing is kept.
        tokenizer: of a loaded Hugging Face model.
        progress: show progress bars.

    Raises:
        InputError: for bad settings, a bad corpus, thresholds that leave each topic one word, a model in memory for
            several processes, or an ``out`` that another process uses or that holds something else (before the model
            is loaded), a model that cannot be loaded or whose tokenizer cannot be used or leaves
            no word whole (before the topics are fitted), and no topic word that it leaves whole.

    Example:
        >>> result = measure_topics("bert-base-uncased", TopicsConfig((Path("corpus.txt"),)))  # doctest: +SKIP
        >>> result.to_dataframe()  # doctest: +SKIP
    """
    config.check()
    resolved = config.resolve(model)
    config.check_shared(resolved)
    if out is not None:
        check_command(Path(out), "topics")
    corpus = CorpusStream(config.corpus, config.split, config.min_words, text_field=config.text_field).read()
    check_corpus_size(len(corpus), config.n_topics)
    subject = {"model": resolved.portable.title, "texts": digest_of(corpus.documents)}
    with own_folder(out, "topics", subject):
        result = _measured(resolved, corpus, _Way(config, None if out is None else Path(out), tokenizer, progress))
        if out is not None:
            weights = _weights(result.trained)
            check_subject(Path(out), weights)
            save_results(out, "topics", results_of(result), {**subject, **weights})
    return result


def _weights(measures: ModelMeasures) -> dict[str, str]:
    """What tells the model's weights from others, as the subject of a folder."""
    known = [r.metadata["model"] for r in measures.attention if r is not None]
    return {"weights": str(known[0])} if known else {}


@dataclass(frozen=True)
class _Way:
    """How everything is measured."""

    config: TopicsConfig
    out: Path | None
    tokenizer: Any
    progress: bool

    @contextmanager
    def reader(self, model: ResolvedModel) -> Iterator[_Reader]:
        """What reads texts, with the model where it is measured in this process."""
        if self.config.here:
            with _loaded(model, self.config, tokenizer=self.tokenizer) as (hooked, reader):
                yield _Reader(reader, hooked.cfg.d_vocab, hooked.cfg.n_ctx, hooked)
            return
        own_tokenizer, sizes = tokenizer_and_sizes(model, trust_remote_code=self.config.trust_remote_code)
        reader = own_tokenizer if self.tokenizer is None else self.tokenizer
        check_tokenizer(reader)
        yield _Reader(reader, sizes.d_vocab, sizes.n_ctx)


@dataclass(frozen=True)
class _Reader:
    """A tokenizer, sizes of its model, and the model itself where it is loaded."""

    tokenizer: Any
    d_vocab: int | None
    n_ctx: int | None
    hooked: Any = None


def _measured(model: ResolvedModel, corpus: Corpus, way: _Way) -> TopicsResult:
    """All that is measured, in a folder of our own."""
    config, progress = way.config, way.progress
    counts = count_words(corpus, config.min_documents, config.max_share, config.stop_words, progress=progress)
    _check_pairs(len(counts.words), config.thresholds)
    name = model.title
    with way.reader(model) as reader:
        if way.out is not None and reader.hooked is not None:  # before there is anything to lose
            check_subject(way.out, {"weights": fingerprint(reader.hooked)})
        reads: dict[str, Any] = {"bos": config.bos, "d_vocab": reader.d_vocab}
        used = tokenization_of(reader.tokenizer, bos=config.bos)
        sample = corpus if config.max_documents is None else corpus.sample(config.max_documents, config.seed)
        max_length = config.max_length if reader.n_ctx is None else min(config.max_length, reader.n_ctx)
        if max_length > config.tokens_per_batch:
            raise InputError(
                f"tokens_per_batch is {config.tokens_per_batch}, fewer than the {max_length} tokens of a window; give "
                f"at least {max_length}, or shorter windows (--max-length)"
            )
        _check_whole(name, sample, reader.tokenizer, counts.words, max_length, config.seed, **reads)
        topics = fit_counts(counts, config.n_topics, config.passes, config.seed, progress=progress)
        words, variants = _variants(topics, config.thresholds)
        encoded = sample.encode(reader.tokenizer, words, max_length, **reads, progress=progress)
        encoded.check_whole(f"the tokenizer of {name!r}", or_else=", or a larger threshold")
        if config.here:
            trained = _measure(
                _Here(reader.hooked, progress), encoded, variants, config, config.n_permutations, progress
            )
    del reader  # one model in memory at a time
    untrained = []
    if config.here:
        for seed in range(config.untrained):
            with _loaded(model, config, tokenizer=way.tokenizer, untrained=True, seed=seed) as (hooked, _):
                untrained.append(_measure(_Here(hooked, progress), encoded, variants, config, 0, progress))
            del hooked
    else:
        workers = _workers(model, encoded, way)
        trained, *untrained = (
            _measure(each, encoded, variants, config, 0 if i else config.n_permutations, progress)
            for i, each in enumerate(workers)
        )
    n_files = len(set(corpus.sources))
    trained, *untrained = (_with_tokenization(measures, used) for measures in (trained, *untrained))
    return TopicsResult(
        name,
        config,
        topics,
        len(corpus),
        n_files,
        encoded,
        variants,
        trained,
        untrained,
        corpus.empty_files,
        corpus.notes,
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
def _loaded(model: ResolvedModel, config: TopicsConfig, **options: Any) -> Iterator[tuple[Any, Any]]:
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


class _Source(Protocol):
    """A model that is measured."""

    def run(self, encoded: EncodedCorpus, config: TopicsConfig, probes: Sequence[Probe]) -> list[ProbeResult]:
        """What probes find in a corpus; they hold their states afterwards."""

    def matrix(self, tokens: Tensor) -> Tensor:
        """``[tokens d]`` the rows of the token embedding matrix; tokens below 0 give any row."""


@dataclass(frozen=True)
class _Here:
    """A model in this process."""

    hooked: Any
    progress: bool

    def run(self, encoded: EncodedCorpus, config: TopicsConfig, probes: Sequence[Probe]) -> list[ProbeResult]:
        batches: Iterable[Batch] = encoded.batches(config.tokens_per_batch)
        if self.progress:
            total = sum(1 for _ in token_batches(list(map(len, encoded.windows)), config.tokens_per_batch, str))
            batches = progress_bar(batches, total=total, desc="measuring", unit="batch")
        return run(self.hooked, batches, probes)

    def matrix(self, tokens: Tensor) -> Tensor:
        table = token_embeddings(self.hooked)
        return table[tokens.clamp(min=0).to(table.device)].to("cpu", torch.float64)


@dataclass(frozen=True)
class _Workers:
    """A model that other processes load."""

    name: str
    load: Callable[[], Any]
    out: Path | None
    rows: Tensor
    progress: bool

    def run(self, encoded: EncodedCorpus, config: TopicsConfig, probes: Sequence[Probe]) -> list[ProbeResult]:
        folder = None if self.out is None else self._folder(self.out / SHARDS, config, probes)
        size = max(_SHARD_WINDOWS, -(-len(encoded.windows) // _SHARDS))  # whatever the workers: the same bits
        try:
            return run_sharded(
                self.load,
                encoded.batches(config.tokens_per_batch),
                probes,
                **config.on,
                shard_examples=size,
                out=folder,
                progress=self.progress,
            )
        except InputError as error:
            said = str(error).replace("a new folder as out", "another folder with --out")
            raise InputError(f"{self.name}: {said}") from error

    def _folder(self, shards: Path, config: TopicsConfig, probes: Sequence[Probe]) -> Path:
        """Where the states of these probes are kept; those of others are removed."""
        reads = (config.tokens_per_batch, config.max_length, config.max_documents, config.bos, config.seed)
        folder = shards / f"{self.name}-{digest_of([repr(reads), *(repr((probe, probe.states)) for probe in probes)])}"
        for other in shards.glob(f"{self.name}-*"):
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)
        return folder

    def matrix(self, tokens: Tensor) -> Tensor:
        assert len(tokens) == len(self.rows)  # which a job has looked up
        return self.rows


def _workers(model: ResolvedModel, encoded: EncodedCorpus, way: _Way) -> list[_Workers]:
    """The model and the untrained ones."""
    config = way.config
    options: dict[str, Any] = {"tokenizer": way.tokenizer, "attention": "eager"}
    loads = {"trained": config.loader(model, "text", **options)}
    for seed in range(config.untrained):
        loads[f"untrained-seed{seed}"] = config.loader(model, "text", **options, untrained=True, seed=seed)
    told = "embedding matrices" if way.progress else None
    jobs = [_Matrix(name, load, encoded.token_of_word) for name, load in loads.items()]
    rows = map_jobs(_rows, jobs, **config.on, progress=told)
    return [
        _Workers(name, load, way.out, matrix, way.progress)
        for (name, load), matrix in zip(loads.items(), rows, strict=True)
    ]


@dataclass(frozen=True)
class _Matrix:
    """Whose token embeddings are asked for, as a job."""

    name: str
    load: Callable[[], Any]
    tokens: Tensor


def _rows(job: _Matrix) -> Tensor:
    return _Here(job.load(), False).matrix(job.tokens)


def _measure(
    source: _Source,
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
    *found, hidden = source.run(encoded, config, [*attention, gathered])
    results, (states, seen) = iter(found), gathered.word_vectors()

    tokens = encoded.token_of_word
    matrix = source.matrix(tokens)

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
