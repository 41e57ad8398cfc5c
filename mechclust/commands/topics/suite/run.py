"""From a suite and a corpus to both published tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mechclust.commands.cost import Cost
from mechclust.commands.folder import check_outside, own_folder
from mechclust.commands.settings import stamps_of
from mechclust.commands.topics.suite.config import SuiteConfig
from mechclust.commands.topics.suite.job import Measured, ModelJob, SuiteReading, measure_model
from mechclust.commands.topics.suite.models import SuiteModel, suite_models
from mechclust.commands.topics.suite.result import SuiteResult
from mechclust.commands.topics.suite.texts import TOPIC_SEEDS, Texts, read_texts
from mechclust.commands.topics.variants import chosen_words, kept_words, keys_of, variants_of
from mechclust.jobs import map_jobs
from mechclust.report.folder import check_folder, save_folder_results
from probes.store.digest import digest_of
from tasks import InputError

MEASURED = "measured"  # folder of each encoder's measurements
_DRAW_S = 3e-8  # how often a document is drawn in a resample
_BATCH_DOCUMENTS = 64  # documents of a batch, at least

_Key = tuple[str, int | None]  # an encoder's name, and the seed of its random weights


def run_suite(config: SuiteConfig, out: str | Path, *, progress: bool = False) -> SuiteResult:
    """Measure many encoders and their random twins with one topic model.

    The topic models are fitted once, one for each seed, and kept as ``out/topics.safetensors``. Every encoder and every
    random twin is a job. A second call resumes an interrupted one. An encoder that cannot be measured leaves the others
    alone, and the tables say why.

    Source: Li, Li & Risteski (ICML 2023, arXiv 2303.04245).

    Args:
        config: suite, corpus, topics, measures.
        out: folder of the run.
        progress: show progress bars.

    Raises:
        InputError: before models are loaded, for settings, a suite, a corpus or topics that do not allow any
            measurement, or an ``out`` that holds another run. Later, if no encoder at all can be measured.

    Example:
        >>> # config = SuiteConfig(suite=("bert-base-uncased", "albert-base-v2"), corpus=(Path("texts"),))
        >>> # result = run_suite(config, "runs/suite")
        >>> # result.headline, result.findings, result.shown(overlap=False)
    """
    config.check()
    out = Path(out)
    check_folder(out, "topics")
    check_outside(out, config.corpus)
    models = suite_models(config.suite)
    if progress:
        _cost_of(models, config).check(config, "fewer --resamples or --max-documents")
    with own_folder(out, "topics", {"model": "a suite"}):
        texts = read_texts(config, out, progress=progress)
        subject = {"model": "a suite", "texts": digest_of(texts.documents)}
        jobs = _jobs(models, texts, config, out)
        workers = {**config.on, "workers": 1} if config.here else config.on
        measured = map_jobs(measure_model, [*jobs.values()], **workers, progress="encoders" if progress else None)
        result = _result(config, models, texts, dict(zip(jobs, measured, strict=True)))
        save_folder_results(out, "topics", result.results, subject)
    return result


def _cost_of(models: Sequence[SuiteModel], config: SuiteConfig) -> Cost:
    """Return the time and memory of resampling documents; forward passes come on top."""
    n_variants = len(keys_of(config.thresholds)) * (len(config.topic_seeds or TOPIC_SEEDS))
    n_models = sum(1 + model.twins for model in models)
    drawn = _DRAW_S * config.max_documents * config.resamples
    at_once = 3 * min(config.max_documents, _BATCH_DOCUMENTS) + 2 * n_variants  # numbers of a resample
    return Cost(n_models * n_variants * drawn, 8.0 * at_once * config.resamples)


def _result(
    config: SuiteConfig, models: Sequence[SuiteModel], texts: Texts, measured: Mapping[_Key, Measured | str]
) -> SuiteResult:
    """Sort measurements and reasons why there are none."""
    trained: dict[str, Measured] = {}
    twins: dict[str, list[Measured]] = {}
    failed: dict[str, str] = {}
    for (name, seed), outcome in measured.items():  # trained encoders come first
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
        raise InputError(f"no encoder of the suite can be measured: {_first_of(failed)}")
    return SuiteResult(config, models, texts, trained, twins, failed)


def _first_of(failed: Mapping[str, str]) -> str:
    """Return why the first encoder cannot be measured, and the number of others."""
    (name, why), *others = failed.items()
    if not others:
        return f"{name}: {why}"
    return f"{name}: {why}; nor can the {'other' if len(others) == 1 else f'{len(others)} others'}"


def _jobs(models: Sequence[SuiteModel], texts: Texts, config: SuiteConfig, out: Path) -> dict[_Key, ModelJob]:
    """Return the jobs, trained encoders first."""
    fitted = texts.fitted
    kept = kept_words(fitted.models, config.thresholds)
    words = chosen_words(fitted.words, kept)
    by_seed = zip(fitted.seeds, fitted.models, strict=True)
    topics = {seed: variants_of(model, config.thresholds, kept) for seed, model in by_seed}
    reading = SuiteReading(config.max_length, config.tokens_per_batch, config.bos, config.resamples, config.seed)
    keys: list[tuple[SuiteModel, int | None]] = [(model, None) for model in models]
    for model in models:
        keys += [(model, seed) for seed in range(model.twins)]
    resolved_models = {model.name: config.resolve(model.model) for model in models}
    jobs = {}
    for model, seed in keys:
        options = {} if seed is None else {"untrained": True, "seed": seed}
        resolved = resolved_models[model.name]
        source = resolved.portable.source
        about = {
            "name": model.name, "position": models.index(model), "published": model.published, "twin": seed,
            "variants": [list(key) for key in keys_of(config.thresholds)],
            "n_documents": len(texts.documents), "topic_seeds": list(fitted.seeds),
        }  # fmt: skip
        jobs[model.name, seed] = ModelJob(
            name=model.name if seed is None else f"{model.name}-random-seed{seed}",
            load=config.loader(resolved, "text", measures_attention=True, **options),
            identity=repr((source, stamps_of(source), config.dtype, config.quantize, seed)),
            words=words,
            topics=topics,
            documents=texts.documents,
            reading=reading,
            folder=(out / MEASURED).absolute(),
            about=about,
        )
    return jobs
