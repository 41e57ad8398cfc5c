"""How far a user's own model and corpus keep words of a topic together, in attention and in embeddings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from mechclust.commands.topics.result import Measured, TopicsResult, Variant
from mechclust.jobs import progress_bar
from mechclust.models import load_pretrained, token_embeddings
from mechclust.report.folder import check_writable, machine
from probes import ProbeResult, TopicAttention, TopicEmbedding, attention_pattern, residual, run
from probes.files import write_atomic
from probes.hooks import check_device
from probes.sites import Sites
from tasks import Batch, Corpus, InputError, TopicModel
from tasks.text.encoding import EncodedCorpus, check_tokenizer
from tasks.text.topic_model import (
    check_corpus_size,
    check_threshold,
    check_topics,
    count_words,
    fit_counts,
    least_threshold,
)

MATRIX = "token embedding matrix"
_LOOK = 32  # documents in which a whole word is looked for first


@dataclass(frozen=True)
class TopicsConfig:
    """Settings of ``mechclust topics``.

    Args:
        corpus: UTF-8 text files, or directories of ``*.txt`` files.
        split: what a document is: a ``paragraph`` (between blank lines), a ``file`` or a ``line``.
        min_words: paragraphs with fewer words are joined with the next ones of their file.
        n_topics: topics of the LDA model.
        passes: times the topic model goes through the corpus.
        min_documents: words in fewer documents are left out of the topics.
        max_share: words in more than this share of the documents are left out of the topics.
        stop_words: left out of the topics: ``english``, ``none``, or a file with one word a line.
        thresholds: ambiguity: of V words, each topic keeps the int(V * threshold) + 1 likeliest. Corpora
            of less than about 10,000 different words need larger ones, such as .005 .01 .02.
        max_documents: measure the model on at most this many documents, drawn at random; the topics
            are fitted on all.
        max_length: tokens of a window, at most the model's context; longer documents are cut.
        baselines: untrained models (same architecture, random weights, seeds 0, 1, ...) to compare with.
        n_permutations: random relabellings behind the null interval; 0 for none.
        batch_size: windows a forward pass.
        device: such as ``cpu`` or ``cuda``.
        dtype: of the model's weights.
        seed: of the topic model, the documents drawn and the relabellings.
    """

    corpus: tuple[Path, ...]
    split: Literal["paragraph", "file", "line"] = "paragraph"
    min_words: int = 100
    n_topics: int = 100
    passes: int = 6
    min_documents: int = 5
    max_share: float = 0.5
    stop_words: str = "english"
    thresholds: tuple[float, ...] = (0.0005, 0.001, 0.002)
    max_documents: int | None = None
    max_length: int = 256
    baselines: int = 1
    n_permutations: int = 99
    batch_size: int = 8
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    seed: int = 0


def measure_topics(model: str, config: TopicsConfig, *, progress: bool = False) -> TopicsResult:
    """Attention and similarity between words of a topic, against words of different topics.

    Topics come from an LDA model of the corpus. All thresholds share one forward pass a batch. Case is
    ignored, so several token ids can be the same word (``Cat``, ``cat``); its row of the embedding matrix is
    the one of its most frequent token.

    Args:
        model: hub name or local directory, see ``load_pretrained``.
        config: what to measure.
        progress: show progress bars.

    Raises:
        InputError: for bad settings, a bad corpus, or thresholds that leave each topic one word (before
            the model is loaded), a model that cannot be loaded or whose tokenizer cannot be used or leaves
            no word whole (before the topics are fitted), and no topic word that it leaves whole.
    """
    _check(config)
    corpus = Corpus.from_files(config.corpus, config.split, config.min_words)
    check_corpus_size(len(corpus), config.n_topics)
    counts = count_words(corpus, config.min_documents, config.max_share, config.stop_words, progress=progress)
    _check_pairs(len(counts.words), config.thresholds)
    hooked = _load(model, config)
    sample = corpus if config.max_documents is None else corpus.sample(config.max_documents, config.seed)
    max_length = min(config.max_length, hooked.cfg.n_ctx)
    _check_whole(model, sample, hooked.tokenizer, counts.words, max_length, config.seed)
    topics = fit_counts(counts, config.n_topics, config.passes, config.seed, progress=progress)
    words, variants = _variants(topics, config.thresholds)
    encoded = sample.encode(hooked.tokenizer, words, max_length, progress=progress)
    if not _any_whole(encoded):
        raise InputError(
            f"the tokenizer of {str(model)!r} leaves none of the {len(words)} topic words whole: {encoded.lost} of "
            f"{encoded.occurrences} occurrences were lost, split or unknown; give a corpus in the model's language, "
            "or a larger threshold"
        )
    trained = _measure(hooked, encoded, variants, config, config.n_permutations, progress)
    del hooked  # one model in memory at a time
    untrained = [
        _measure(_load(model, config, untrained=True, seed=seed), encoded, variants, config, 0, progress)
        for seed in range(config.baselines)
    ]
    n_files = len(set(corpus.sources))
    return TopicsResult(
        str(model), config, topics, len(corpus), n_files, encoded, variants, trained, untrained, corpus.empty_files
    )


def _check(config: TopicsConfig) -> None:
    check_device(config.device)
    check_topics(config.n_topics, config.passes, config.seed)
    for name, least in (("batch_size", 1), ("baselines", 0), ("n_permutations", 0), ("max_length", 2)):
        if getattr(config, name) < least:
            raise InputError(f"{name} is {getattr(config, name)}; expected at least {least}")
    if config.max_documents is not None and config.max_documents < 1:
        raise InputError(f"max_documents is {config.max_documents}; expected at least 1, or leave it out for all")
    if not config.thresholds or len(set(config.thresholds)) < len(config.thresholds):
        raise InputError(f"thresholds is {config.thresholds}; expected one or several different numbers")
    for threshold in config.thresholds:
        check_threshold(threshold)


def _check_pairs(n_words: int, thresholds: Sequence[float]) -> None:
    """Refuse thresholds of which none lets two words share a topic: every same-topic mean would be NaN."""
    if int(n_words * max(thresholds)) > 0:
        return
    least = least_threshold(n_words)
    more = f"a threshold of at least {least:g}, or more text" if least < 1 else "more text"
    raise InputError(
        f"the topics have {n_words} different word{'s' * (n_words != 1)}, of which the largest threshold, "
        f"{max(thresholds):g}, keeps one a topic, and comparing words of a topic takes two; give {more}"
    )


def _check_whole(model: str, documents: Corpus, tokenizer: Any, words: list[str], max_length: int, seed: int) -> None:
    """Refuse a tokenizer that splits every word, before the topics are fitted. A few documents are enough to
    find a whole word; that there is none, only all of them can say."""
    for n in (_LOOK, len(documents)):
        encoded = documents.sample(n, seed).encode(tokenizer, words, max_length)
        if _any_whole(encoded):
            return
    if not encoded.occurrences:
        raise InputError(
            f"none of the corpus's {len(words)} different words is in the {len(documents)} documents measured; give a "
            "larger max_documents"
        )
    raise InputError(
        f"the tokenizer of {str(model)!r} leaves none of the corpus's {len(words)} different words whole: all "
        f"{encoded.lost} occurrences were lost, split or unknown; give a corpus in the model's language, or another "
        "model"
    )


def _any_whole(encoded: EncodedCorpus) -> bool:
    return bool((encoded.token_of_word >= 0).any())


def _load(model: str, config: TopicsConfig, **options: Any) -> Any:
    hooked = load_pretrained(model, device=config.device, dtype=getattr(torch, config.dtype), **options)
    if hooked.tokenizer is None:
        raise InputError(f"{str(model)!r} has no tokenizer to read text; give a Hugging Face checkpoint")
    check_tokenizer(hooked.tokenizer)
    return hooked


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
) -> Measured:
    options: dict[str, Any] = {"words": "word", "n_permutations": n_permutations, "seed": config.seed}
    usable = [variant for variant in variants if variant.n_topics >= 2]
    attention = [TopicAttention(variant.topics, at=attention_pattern(), **options) for variant in usable]
    # Every word's mean hidden state is gathered once; the variants differ in which words count.
    widest = max(variants, key=lambda variant: (variant.threshold, variant.overlap)).topics
    gathered = TopicEmbedding(widest, at=residual(), words="word", n_permutations=0)
    batches: Iterable[Batch] = encoded.batches(config.batch_size)
    if progress:
        total = -(-len(encoded.windows) // config.batch_size)
        batches = progress_bar(batches, total=total, desc="measuring", unit="batch")
    results = iter(run(hooked, batches, [*attention, gathered]))
    state = gathered.state_dict()

    tokens = encoded.token_of_word
    table = token_embeddings(hooked)
    rows = table[tokens.clamp(min=0).to(table.device)].to("cpu", torch.float64)
    matrix = {"sites": [[MATRIX, 0]], "tensors": {f"vectors/{MATRIX}": rows, "seen/words": (tokens >= 0).long()}}

    def similarity(variant: Variant, at: Sites, state: dict[str, Any]) -> ProbeResult | None:
        if variant not in usable:
            return None
        probe = TopicEmbedding(variant.topics, at=at, **options)
        has = variant.topics.any(dim=1)
        probe.load_state_dict({"sites": state["sites"], "tensors": {k: t[has] for k, t in state["tensors"].items()}})
        return probe.compute()

    shown = progress_bar(variants, desc="comparing word vectors") if progress and n_permutations else variants
    return Measured(
        attention=[next(results) if variant in usable else None for variant in variants],
        vectors=[similarity(variant, residual(), state) for variant in shown],
        embedding=[similarity(variant, MATRIX, matrix) for variant in variants],
    )


def write_topics_report(result: TopicsResult, out: str | Path) -> Path:
    """Write ``summary.csv``, ``attention.csv``, ``layers.csv``, ``topics.csv``, the probe results, the figures
    and ``report.html`` into ``out``.

    Raises:
        InputError: when ``out`` cannot be written.
    """
    from mechclust.commands.topics.report import analyse, topics_table
    from mechclust.report.page import render_report, save_panels

    out, config = Path(out), result.config
    tables = {
        "summary": result.summary(),
        "attention": result.table(),
        "layers": result.layers(),
        "topics": topics_table(result),
    }
    analysis = analyse(result, tables, _reading(config))
    files = [str(path) for path in config.corpus]
    page = render_report(
        title=f"Topic structure in {result.model}",
        source=f"Corpus: {', '.join(files)}",
        analysis=analysis,
        facts=machine(),
        config={"model": result.model, **vars(config), "corpus": files},
    )
    check_writable(out)
    save_panels(analysis.panels, out / "figures")
    models = {"trained": result.trained, **{f"untrained-seed{i}": m for i, m in enumerate(result.untrained)}}
    for name, measured in models.items():
        for kind, results in vars(measured).items():
            for variant, found in zip(result.variants, results, strict=True):
                if found is not None:
                    found.save(out / "results" / name / f"{kind}-{variant.name}.safetensors")
    for name, table in tables.items():
        write_atomic(out / f"{name}.csv", table.to_csv(index=False).encode())
    write_atomic(out / "report.html", page.encode())
    return out / "report.html"


def _reading(config: TopicsConfig) -> str:
    """What a document is, in words."""
    return {
        "paragraph": f"paragraphs, joined up to {config.min_words} words",
        "file": "whole files",
        "line": "lines",
    }[config.split]
