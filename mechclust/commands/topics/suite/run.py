"""From a suite and a corpus to both published tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from mechclust.commands.folder import own_folder
from mechclust.commands.settings import stamps_of
from mechclust.commands.topics.suite.config import SuiteConfig
from mechclust.commands.topics.suite.job import Measured, ModelJob, SuiteReading, measure_model
from mechclust.commands.topics.suite.models import SuiteModel, suite_models
from mechclust.commands.topics.suite.result import SuiteResult
from mechclust.commands.topics.suite.texts import Texts, read_texts
from mechclust.commands.topics.variants import Variant
from mechclust.jobs import map_jobs
from mechclust.report.folder import check_command
from mechclust.report.page import save_results
from probes.store.digest import digest_of
from tasks import InputError
from tasks.text.words import words_of

MEASURED = "measured"  # what is kept of each encoder until the report is there, and after
_BEGINNING = 60  # words of a document that are looked at to choose the one that is shown


def run_suite(config: SuiteConfig, out: str | Path, *, progress: bool = False) -> SuiteResult:
    """Measure many encoders and their random twins with one topic model.

    The topic models are fitted once, one for each seed, and kept as ``out/topics.safetensors``. Every encoder and every
    random twin is a job; a second call resumes where the first was interrupted. An encoder that cannot be measured
    leaves the others alone; the tables say why.

    Source: Li, Li & Risteski (ICML 2023, arXiv 2303.04245).

    Args:
        config: suite, corpus, topics, measures.
        out: folder of the run.
        progress: show progress bars.

    Raises:
        InputError: before models are loaded: for settings, a suite, a corpus or topics that nothing can be measured
            with, and an ``out`` that holds something else. Later: when no encoder at all can be measured.

    Example:
        >>> # config = SuiteConfig(suite=("bert-base-uncased", "albert-base-v2"), corpus=(Path("texts"),))
        >>> # result = run_suite(config, "runs/suite")
        >>> # result.shown(overlap=False), result.findings, result.heads()
    """
    config.check()
    out = Path(out)
    check_command(out, "topics")
    models = suite_models(config.suite)
    with own_folder(out, "topics", {"model": "a suite"}):
        texts = read_texts(config, out, progress=progress)
        subject = {"model": "a suite", "texts": digest_of(texts.documents)}
        jobs = _jobs(models, texts, config, out)
        workers = {**config.on, "workers": 1} if config.here else config.on
        told = "encoders" if progress else None
        found = dict(zip(jobs, map_jobs(measure_model, [*jobs.values()], **workers, progress=told), strict=True))
        result = _result(config, models, texts, found)
        save_results(out, "topics", result.results(), subject)
    return result


def _result(
    config: SuiteConfig, models: Sequence[SuiteModel], texts: Texts, found: dict[tuple[str, int | None], Measured | str]
) -> SuiteResult:
    trained, twins, failed = dict[str, Measured](), dict[str, list[Measured]](), dict[str, str]()
    for model in models:
        own = found[model.name, None]
        if isinstance(own, str):
            failed[model.name] = own
            continue
        trained[model.name], twins[model.name] = own, []
        for seed in range(model.twins):
            twin = found[model.name, seed]
            if isinstance(twin, str):
                failed[f"{model.name}, random weights of seed {seed}"] = twin
            else:
                twins[model.name].append(twin)
    if not trained:
        first, why = next(iter(failed.items()))
        n = len(failed) - 1
        others = f"; nor can the {f'{n} others' if n > 1 else 'other'}" if n else ""
        raise InputError(f"no encoder of the suite can be measured: {first}: {why}{others}")
    return SuiteResult(config, models, texts, trained, twins, failed)


def _jobs(
    models: Sequence[SuiteModel], texts: Texts, config: SuiteConfig, out: Path
) -> dict[tuple[str, int | None], ModelJob]:
    """By model and seed of its random weights; trained ones come first."""
    words, topics = _variants(texts, config)
    document = _shown_document(texts, config) if config.document is None else config.document
    if document >= len(texts.documents):
        raise InputError(
            f"document is {document}, and {len(texts.documents)} documents are measured; give a smaller number"
        )
    reading = SuiteReading(
        config.max_length, config.tokens_per_batch, config.bos, config.resamples, config.seed, document
    )
    seeds: list[tuple[SuiteModel, int | None]] = [(model, None) for model in models]
    seeds += [(model, seed) for model in models for seed in range(model.twins)]
    resolved_models = {model.name: config.resolve(model.model) for model in models}
    jobs: dict[tuple[str, int | None], ModelJob] = {}
    for model, seed in seeds:
        options = {} if seed is None else {"untrained": True, "seed": seed}
        resolved = resolved_models[model.name]
        source = resolved.portable.source
        about = {
            "name": model.name, "position": models.index(model), "published": model.published, "twin": seed,
            "variants": [[t, overlap] for overlap in (False, True) for t in config.thresholds],
            "n_documents": len(texts.documents), "topic_seeds": list(texts.fitted.seeds),
        }  # fmt: skip
        jobs[model.name, seed] = ModelJob(
            name=model.name if seed is None else f"{model.name}-random-seed{seed}",
            load=config.loader(resolved, "text", attention="eager", **options),
            identity=repr((source, stamps_of(source), config.dtype, config.quantize, seed)),
            words=words,
            topics=topics,
            documents=texts.documents,
            reading=reading,
            folder=(out / MEASURED).absolute(),
            shown=seed is None,
            about=about,
        )
    return jobs


def _variants(texts: Texts, config: SuiteConfig) -> tuple[list[str], dict[int, list[Variant]]]:
    """The words that any topic model keeps at any threshold, and every variant over these by topic seed."""
    models = texts.fitted.models
    kept = torch.stack([model.membership(max(config.thresholds)).any(dim=1) for model in models]).any(dim=0)
    words = [word for word, keep in zip(texts.fitted.words, kept.tolist(), strict=True) if keep]
    return words, {
        seed: [
            Variant(t, overlap, model.membership(t, overlap)[kept])
            for overlap in (False, True)
            for t in config.thresholds
        ]
        for seed, model in zip(texts.fitted.seeds, models, strict=True)
    }


def _shown_document(texts: Texts, config: SuiteConfig) -> int:
    """One whose beginning has many different topic words."""
    model = texts.fitted.models[0]
    topical = model.membership(max(config.thresholds), overlap=False)
    known = {word for word, keep in zip(model.words, topical.any(dim=1).tolist(), strict=True) if keep}
    counts = [len(known.intersection(words_of(text)[:_BEGINNING])) for text in texts.documents]
    return counts.index(max(counts))
