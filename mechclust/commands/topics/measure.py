"""Measure models on a corpus, with topics fitted once."""

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
from mechclust.commands.topics.models import TopicsModel, real_path, topics_models
from mechclust.commands.topics.readers import check_one_is_measurable, forward_cost, none_measured, readable_models
from mechclust.commands.topics.result import TopicsResult
from mechclust.commands.topics.texts import TOPIC_SEEDS, Texts, given_topics, read_documents, read_texts
from mechclust.commands.topics.topic_file import FittedTopics
from mechclust.commands.topics.variants import kept_words, variants_of
from mechclust.jobs import map_jobs
from mechclust.models.adapter_fit import adapter_fit_notes
from mechclust.models.pretrained import AnyModel
from mechclust.models.resolved import ResolvedModel
from mechclust.models.tokenizers import tokenizer_digest
from mechclust.report.folder import check_folder, check_folder_subject, save_folder_results
from mechclust.report.manifest import WAY_OUT, read_manifest
from mechclust.report.text import list_text
from probes.engine.fingerprint import fingerprint
from probes.store.file_names import file_name
from tasks import InputError

MEASURED = "measured"  # folder of each model's measurements
_DRAW_S = 3e-8  # seconds to draw how often one document counts in one resample
_BATCH_DOCUMENTS = 64  # documents of a batch, at least
_COUNTS_PER_DOCUMENT = 3  # how often it counts, as an integer and a float, and a copy
_RATIOS_PER_VARIANT = 2  # over all pairs, and at equal distance

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
        progress: show progress bars and estimates, and refuse work of more than a day or more memory than is free,
            unless ``config.yes``.

    Raises:
        InputError: before topics are fitted, for settings, models, a corpus or topics that do not allow any
            measurement, an ``out`` that holds another corpus, other topics or models, and work that ``progress``
            refuses.
            Later, if no model can be measured.

    Example:
        >>> config = TopicsConfig((Path("texts"),), n_topics=20, thresholds=(0.005, 0.01))
        >>> result = measure_topics(["bert-base-uncased", "albert-base-v2"], config, "runs/topics")  # doctest: +SKIP
        >>> result.headline, result.findings, result.shown(overlap=False)  # doctest: +SKIP
    """
    config.check()
    if out is not None:
        check_folder(Path(out), "topics")
        check_outside(out, config.corpus)
    given = topics_models(models, config.adapter, config.untrained)
    n_jobs = {model.name: 1 + (model.twins or 0) for model in given}
    resolved = {model.name: config.resolve(model.model) for model in given}
    config.check_shared(*resolved.values())
    fitted = given_topics(config)
    sharing = replace(config, workers=config.workers and min(config.workers, sum(n_jobs.values())))
    if progress:
        cost = _resampling_cost(sum(n_jobs.values()), fitted, config)
        cost.check(sharing, "fewer --resamples or --max-documents", " of resampling")
    readers = readable_models(resolved, config, tokenizer)
    with folder_or_temporary(out) as folder, own_folder(out, "topics"):
        places = _places(given, resolved)
        _check_no_model_dropped(folder, places)
        documents = read_documents(config, folder)
        if progress:
            forward = forward_cost(readers, n_jobs, config, documents.texts)
            forward.check(sharing, "fewer --max-documents", " of forward passes")
        check_words = partial(check_one_is_measurable, readers, config, documents.texts)
        texts = read_texts(documents, fitted, config, folder, check_words, progress=progress)
        texts = replace(texts, notes=[*texts.notes, *adapter_fit_notes(resolved.values())])
        jobs = _jobs(given, resolved, tokenizer, texts, config, folder)
        measured = _measure_jobs(jobs, config, progress)
        named = [replace(model, model=str(resolved[model.name])) for model in given]
        result = _result(config, named, texts, measured)
        if out is not None:
            subject = {f"model {name}": places[name] for name in result.trained}
            save_folder_results(out, "topics", result.results, {"corpus": texts.corpus, **subject})
    return result


def _places(models: Sequence[TopicsModel], resolved: Mapping[str, ResolvedModel]) -> dict[str, str]:
    """Return each model's hub name, or its path, which is the same for all ways to write it."""
    return {model.name: replace(resolved[model.name], source=real_path(model.model)).portable.title for model in models}


def _check_no_model_dropped(folder: Path, places: Mapping[str, str]) -> None:
    """Refuse a folder with a report of a model that is not measured this time, or is elsewhere now.

    Models may be added. Reports of earlier versions are refused too.

    Args:
        folder: the folder.
        places: by name, as from ``_places``.
    """
    held = read_manifest(folder).subject
    if "texts" in held and "corpus" not in held:
        raise InputError(f"{str(folder)!r} holds a report of mechclust topics of an earlier version; {WAY_OUT}")
    check_folder_subject(folder, {f"model {name}": place for name, place in places.items()})
    asked = [*places, *(kind.removeprefix("model ") for kind, place in held.items() if place in places.values())]
    reported = {path.parents[1].name for path in folder.glob("results/*/trained/attention.safetensors")}
    dropped = sorted(reported - set(map(file_name, asked)))
    if dropped:
        raise InputError(
            f"{str(folder)!r} holds what was measured of {list_text(map(unquote, dropped))}, which is not asked for; "
            f"name it too, or {WAY_OUT}"
        )


def _resampling_cost(n_jobs: int, given: FittedTopics | None, config: TopicsConfig) -> Cost:
    """Return the time and memory of resampling documents, with given topics or others. Forward passes come on top."""
    n_topic_models = len(config.topic_seeds or TOPIC_SEEDS) if given is None else len(given.seeds)
    n_variants = n_topic_models * len(variants_of(config.thresholds))
    drawn = _DRAW_S * config.max_documents * config.resamples
    counts = _COUNTS_PER_DOCUMENT * min(config.max_documents, _BATCH_DOCUMENTS)
    return Cost(n_jobs * n_variants * drawn, 8.0 * (counts + _RATIOS_PER_VARIANT * n_variants) * config.resamples)


def _jobs(
    models: Sequence[TopicsModel],
    resolved: Mapping[str, ResolvedModel],
    tokenizer: Any,
    texts: Texts,
    config: TopicsConfig,
    out: Path,
) -> dict[_Key, ModelJob]:
    """Return the jobs."""
    fitted = texts.fitted
    words, topics = kept_words(fitted.models, config.thresholds)
    jobs: dict[_Key, ModelJob] = {}
    for position, model in enumerate(models):
        about = {
            "name": model.name, "position": position, "published": model.published, "twin": None,
            "variants": [list(variant) for variant in variants_of(config.thresholds)],
            "n_documents": len(texts.documents), "topic_seeds": list(fitted.seeds),
        }  # fmt: skip
        own_model = resolved[model.name]
        given_tokenizer = tokenizer if own_model.in_memory else None
        trained = ModelJob(
            name=model.name,
            model=own_model.portable,
            random_seed=None,
            tokenizer=given_tokenizer,
            identity=_identity(own_model, config, given_tokenizer, texts.documents),
            words=words,
            topic_seeds=fitted.seeds,
            topics=topics,
            documents=texts.documents,
            config=config,
            folder=(out / MEASURED).absolute(),
            about=about,
        )
        jobs[model.name, None] = trained
        for seed in range(model.twins or 0):
            name = f"{model.name}-random-seed{seed}"
            jobs[model.name, seed] = replace(trained, name=name, random_seed=seed, about={**about, "twin": seed})
    return jobs


def _identity(model: ResolvedModel, config: TopicsConfig, tokenizer: Any, documents: Sequence[str]) -> str:
    """Return what distinguishes weights and tokenizer from others: names with times of files, or digests.

    Empty if the model cannot be read. Its job then says why.
    """
    try:
        if not model.in_memory:
            return repr([(folder, stamps_of(folder)) for folder in model.portable.folders])
        with config.loaded(model, "text", tokenizer=tokenizer) as (hooked, own_tokenizer):
            return f"{fingerprint(hooked)} {tokenizer_digest(own_tokenizer, documents, bos=config.bos)}"
    except InputError:
        return ""


def _measure_jobs(jobs: Mapping[_Key, ModelJob], config: TopicsConfig, progress: bool) -> dict[_Key, Measured | str]:
    """Measure the models. In one process, no copy is measured of a model that could not be measured."""
    options = {**config.on, "workers": 1} if config.here else config.on
    trained = [key for key in jobs if key[1] is None]
    copies = [key for key in jobs if key[1] is not None]
    measured: dict[_Key, Measured | str] = {}
    for keys in [trained, copies] if config.here else [[*trained, *copies]]:
        wanted = [key for key in keys if not isinstance(measured.get((key[0], None)), str)]
        bar = "models" if progress else None
        results = map_jobs(measure_model, [jobs[key] for key in wanted], **options, progress=bar)
        measured |= dict(zip(wanted, results, strict=True))
    return measured


def _result(
    config: TopicsConfig, models: Sequence[TopicsModel], texts: Texts, measured: Mapping[_Key, Measured | str]
) -> TopicsResult:
    """Sort measurements and reasons why there are none."""
    trained: dict[str, Measured] = {}
    twins: dict[str, list[Measured]] = {}
    failed: dict[str, str] = {}
    for (name, seed), outcome in measured.items():  # trained models come first
        if seed is not None and name not in trained:
            continue
        if isinstance(outcome, str):
            failed[name if seed is None else f"{name}, random weights of seed {seed}"] = outcome
        elif seed is None:
            trained[name] = outcome
            twins[name] = []
        else:
            twins[name].append(outcome)
    if not trained:
        raise InputError(none_measured(failed))
    return TopicsResult(config, models, texts, trained, twins, failed)
