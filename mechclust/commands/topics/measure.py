"""From models and a corpus to both published tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from mechclust.commands.cost import Cost
from mechclust.commands.folder import check_outside, folder_or_temporary, own_folder
from mechclust.commands.settings import stamps_of
from mechclust.commands.topics.config import TopicsConfig
from mechclust.commands.topics.job import Measured, ModelJob, measure_model
from mechclust.commands.topics.models import TopicsModel, topics_models
from mechclust.commands.topics.readers import check_models, forward_cost, none_measured, read_tokenizers
from mechclust.commands.topics.result import TopicsResult
from mechclust.commands.topics.texts import TOPIC_SEEDS, Texts, read_texts
from mechclust.commands.topics.variants import chosen_words, kept_words, keys_of, variants_of
from mechclust.jobs import map_jobs
from mechclust.models.adapter_fit import adapter_fit_notes
from mechclust.models.pretrained import AnyModel
from mechclust.models.resolved import ResolvedModel
from mechclust.report.folder import check_folder, save_folder_results
from mechclust.report.manifest import WAY_OUT
from mechclust.report.text import list_text
from probes.engine.fingerprint import fingerprint
from probes.store.file_names import file_name
from tasks import InputError

MEASURED = "measured"  # folder of each model's measurements
_DRAW_S = 3e-8  # how often a document is drawn in a resample
_BATCH_DOCUMENTS = 64  # documents of a batch, at least

_Key = tuple[str, int | None]  # a model's name, and the seed of its random weights


def measure_topics(
    models: AnyModel | TopicsModel | Sequence[AnyModel | TopicsModel],
    config: TopicsConfig,
    out: str | Path | None = None,
    *,
    tokenizer: Any = None,
    progress: bool = False,
) -> TopicsResult:
    """Measure attention and similarity between words of one topic, against words of different topics.

    The topic models are fitted once, one for each seed, and kept as ``out/topics.safetensors``. Every model and every
    copy with random weights is a job. A second call resumes an interrupted one. If there are several models, one that
    cannot be measured leaves the others alone, and the tables say why.

    Source: Li, Li & Risteski (ICML 2023, arXiv 2303.04245).

    Args:
        models: one or several: hub names, local directories, adapters, or models in memory. ``read_suite`` gives those
            of a suite file.
        config: corpus, topics, measures.
        out: folder of the run. If ``None``, no files are kept.
        tokenizer: tokenizer of models in memory.
        progress: show progress bars.

    Raises:
        InputError: before weights are loaded, for settings, models, a corpus or topics that do not allow any
            measurement, or an ``out`` that holds another corpus or other models. Later, if no model can be measured.

    Example:
        >>> config = TopicsConfig((Path("texts"),), n_topics=20, thresholds=(0.005, 0.01))
        >>> result = measure_topics(["bert-base-uncased", "albert-base-v2"], config, "runs/topics")  # doctest: +SKIP
        >>> result.headline, result.findings, result.shown(overlap=False)  # doctest: +SKIP
    """
    config.check()
    if out is not None:
        check_folder(Path(out), "topics")
        check_outside(out, config.corpus)
    given = topics_models(models, config.adapter)
    given = [replace(model, twins=config.untrained if model.twins is None else model.twins) for model in given]
    resolved = {model.name: config.resolve(model.model) for model in given}
    config.check_shared(*resolved.values())
    if progress:
        _cost_of(given, config).check(config, "fewer --resamples or --max-documents", " of resampling")
    readers = read_tokenizers(resolved, config, tokenizer)
    with folder_or_temporary(out) as folder, own_folder(out, "topics"):
        _check_models_kept(folder, given)
        texts = read_texts(config, folder, partial(check_models, readers, config), progress=progress)
        texts = replace(texts, notes=[*texts.notes, *adapter_fit_notes(resolved.values())])
        if progress:
            n_twins = {model.name: model.twins or 0 for model in given}
            forward = forward_cost(readers, n_twins, config, texts.documents)
            forward.check(config, "fewer --max-documents", " of forward passes")
        jobs = _jobs(given, resolved, tokenizer, texts, config, folder)
        workers = {**config.on, "workers": 1} if config.here else config.on
        measured = map_jobs(measure_model, [*jobs.values()], **workers, progress="models" if progress else None)
        named = [replace(model, model=str(resolved[model.name])) for model in given]
        result = _result(config, named, texts, dict(zip(jobs, measured, strict=True)))
        if out is not None:
            save_folder_results(out, "topics", result.results, {"corpus": texts.corpus})
    return result


def _check_models_kept(folder: Path, models: Sequence[TopicsModel]) -> None:
    """Refuse a folder with a report of models that are not measured this time. Models may be added."""
    held = {path.parents[1].name for path in folder.glob("results/*/trained/attention.safetensors")}
    lost = sorted(held - {file_name(model.name) for model in models})
    if lost:
        raise InputError(
            f"{str(folder)!r} holds what was measured of {list_text(map(unquote, lost))}, which is not asked for; name "
            f"it too, or {WAY_OUT}"
        )


def _cost_of(models: Sequence[TopicsModel], config: TopicsConfig) -> Cost:
    """Return the time and memory of resampling documents; forward passes come on top."""
    n_variants = len(keys_of(config.thresholds)) * (len(config.topic_seeds or TOPIC_SEEDS))
    n_models = sum(1 + (model.twins or 0) for model in models)
    drawn = _DRAW_S * config.max_documents * config.resamples
    at_once = 3 * min(config.max_documents, _BATCH_DOCUMENTS) + 2 * n_variants  # numbers of a resample
    return Cost(n_models * n_variants * drawn, 8.0 * at_once * config.resamples)


def _result(
    config: TopicsConfig, models: Sequence[TopicsModel], texts: Texts, measured: Mapping[_Key, Measured | str]
) -> TopicsResult:
    """Sort measurements and reasons why there are none."""
    trained: dict[str, Measured] = {}
    twins: dict[str, list[Measured]] = {}
    failed: dict[str, str] = {}
    for (name, seed), outcome in measured.items():  # trained models come first
        if seed is None and isinstance(outcome, str):
            failed[name] = outcome
        elif seed is None and isinstance(outcome, Measured):
            trained[name] = outcome
            twins[name] = []
        elif name in trained and isinstance(outcome, str):
            failed[f"{name}, random weights of seed {seed}"] = outcome
        elif name in trained and isinstance(outcome, Measured):
            twins[name].append(outcome)
    if not trained:
        raise InputError(none_measured(failed))
    return TopicsResult(config, models, texts, trained, twins, failed)


def _jobs(
    models: Sequence[TopicsModel],
    resolved: Mapping[str, ResolvedModel],
    tokenizer: Any,
    texts: Texts,
    config: TopicsConfig,
    out: Path,
) -> dict[_Key, ModelJob]:
    """Return the jobs, those of trained models first."""
    fitted = texts.fitted
    kept = kept_words(fitted.models, config.thresholds)
    by_seed = zip(fitted.seeds, fitted.models, strict=True)
    topics = {seed: variants_of(model, config.thresholds, kept) for seed, model in by_seed}
    jobs: dict[_Key, ModelJob] = {}
    for model in models:
        about = {
            "name": model.name, "position": models.index(model), "published": model.published, "twin": None,
            "variants": [list(key) for key in keys_of(config.thresholds)],
            "n_documents": len(texts.documents), "topic_seeds": list(fitted.seeds),
        }  # fmt: skip
        jobs[model.name, None] = ModelJob(
            name=model.name,
            model=resolved[model.name].portable,
            untrained=None,
            tokenizer=tokenizer,
            identity=_identity(resolved[model.name], config, tokenizer),
            words=chosen_words(fitted.words, kept),
            topics=topics,
            documents=texts.documents,
            config=config,
            folder=(out / MEASURED).absolute(),
            about=about,
        )
    for model in models:
        job = jobs[model.name, None]
        for seed in range(model.twins or 0):
            name = f"{model.name}-random-seed{seed}"
            jobs[model.name, seed] = replace(job, name=name, untrained=seed, about={**job.about, "twin": seed})
    return jobs


def _identity(model: ResolvedModel, config: TopicsConfig, tokenizer: Any) -> str:
    """Return what distinguishes the weights from others: names with times of files, or a fingerprint."""
    if not model.in_memory:
        return repr([(folder, stamps_of(folder)) for folder in model.portable.folders])
    with config.loaded(model, "text", tokenizer=tokenizer) as (hooked, _):
        return fingerprint(hooked)
