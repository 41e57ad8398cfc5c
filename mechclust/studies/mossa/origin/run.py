"""Trains models of several domains and of one each from scratch, and measures their similarity by SVCCA."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechclust.models import build_model, load_model, model_for, save_model
from mechclust.studies.extra_probes import TrainedModel
from mechclust.studies.kept import once
from mechclust.studies.mossa.config import MossaConfig, suite_of
from mechclust.studies.mossa.origin.corpus import DomainCorpus, skills_of
from mechclust.studies.mossa.origin.jobs import OriginJob, cells_of, models_of
from mechclust.studies.mossa.run import readout, sites
from mechclust.training import TrainConfig, train
from mechclust.training.callbacks import accuracy
from probes import HookedModel, ProbeResult, collect_rows
from probes.engine.identity import fingerprint
from probes.functional.svcca import mean_correlation, principal
from probes.store.files import is_whole, versions
from tasks import Batch

VARIANCE = 0.99  # of each side, as published


def run_origin_job(config: MossaConfig, job: OriginJob, out: Path) -> None:
    """Train a model, or measure those of a cell; existing results are not recomputed."""
    if job.kind == "compare":
        models = {other: _load(config, out, other) for other in models_of(config, job.seed, job.cell)}
        prints = {other.name: fingerprint(model) for other, model in models.items()}
        once(job.result_path(out), partial(_compared, config, job, models), prints)
    else:
        _train(config, job, out)


def corpus_of(config: MossaConfig, job: OriginJob) -> DomainCorpus:
    """The data that a model is trained on."""
    domains = (job.domain,) if job.domain else config.origin.domains
    n = round(job.cell.size * config.origin.examples)
    return DomainCorpus(suite_of(config, job.seed), domains, n, order=int(job.again))


def training_of(config: MossaConfig, job: OriginJob) -> TrainConfig:
    """How a model is trained."""
    origin = config.origin
    steps = origin.training.steps if job.kind == "experimental" else origin.control_steps
    return replace(origin.training, steps=steps, lr=origin.training.lr * origin.width / job.cell.width)


def trained_origin_models(config: MossaConfig, out: Path) -> list[TrainedModel]:
    """The model of all domains of each cell and seed, with its domains' test prompts."""

    def load(job: OriginJob) -> tuple[HookedModel, Iterable[Batch]]:
        return _load(config, out, job), corpus_of(config, job).batches("test")

    chosen = [models_of(config, seed, cell)[0] for seed in config.seeds for cell in cells_of(config)]
    return [TrainedModel(job.name, partial(load, job)) for job in chosen]


def _train(config: MossaConfig, job: OriginJob, out: Path) -> None:
    path, settings = job.model_path(out), training_of(config, job)
    state = path.with_suffix("")
    if is_whole(path):
        shutil.rmtree(state, ignore_errors=True)  # left by a run killed between saving and this
        return
    corpus, width = corpus_of(config, job), job.cell.width
    init_std = width**-0.5 if config.init_std is None else config.init_std
    shape = model_for(
        corpus,
        seed=_initial_seed(config, job),
        init_std=init_std,
        n_layers=config.n_layers,
        d_model=width,
        n_heads=config.n_heads,
    )
    model = _moved(build_model(shape), config)
    train(model, corpus, settings, state, progress=True, name=job.name)
    save_model(model, path, steps=settings.steps)
    shutil.rmtree(state)


def _initial_seed(config: MossaConfig, job: OriginJob) -> int:
    """Seed of the initial weights: no two models of a cell and no two seeds start from the same weights."""
    models = models_of(config, job.seed, job.cell)
    return job.seed * len(models) + models.index(job)


def _load(config: MossaConfig, out: Path, job: OriginJob) -> HookedModel:
    return _moved(load_model(job.model_path(out)), config)


def _moved(model: HookedModel, config: MossaConfig) -> HookedModel:
    if config.device != "cpu":  # TransformerLens reports every move
        model.to(config.device)
    return model


def _compared(config: MossaConfig, job: OriginJob, models: Mapping[OriginJob, HookedModel]) -> ProbeResult:
    """On each domain's test prompts: the model of all domains against every control, with ceiling and chance."""
    domains, suite = list(config.origin.domains), suite_of(config, job.seed)
    found = [_on_domain(config, job, models, domain) for domain in domains]
    values = {name: torch.tensor([each[name] for each, _ in found], dtype=torch.float64) for name in found[0][0]}
    layers = {"layer": [str(layer) for layer in range(1, config.n_layers + 1)]}
    return ProbeResult(
        "Origin",
        values,
        {
            **dict.fromkeys(values, ("domain", "layer")),
            "svcca": ("domain", "control", "layer"),
            "accuracy": ("domain", "model"),
        },
        {"domain": domains, "control": domains, **layers, "model": ["experimental", "control"]},
        metadata={"n": suite.n_eval * suite.n_arguments, "variance": VARIANCE, "versions": versions()},
        notes=[note for _, notes in found for note in notes],
    )


def _on_domain(
    config: MossaConfig, job: OriginJob, models: Mapping[OriginJob, HookedModel], domain: str
) -> tuple[dict[str, Any], list[str]]:
    """Measure to numbers by layer (``svcca`` by control and layer), and why some are NaN."""
    suite = suite_of(config, job.seed)
    skills, notes = skills_of(suite, domain), list[str]()
    bases = {other: _bases(config, model, suite.batches("test", tasks=skills)) for other, model in models.items()}
    experimental, own = job._replace(kind="experimental"), job._replace(kind="control", domain=domain)
    whole, again = bases[experimental], own._replace(again=True)
    order = np.random.default_rng([job.seed, config.origin.domains.index(domain)]).permutation(len(whole[0]))
    shuffled = [basis[torch.from_numpy(order)] for basis in bases[own]]

    def alike(what: str, one: list[Tensor], other: list[Tensor]) -> list[float]:
        values = []
        for layer, (x, y) in enumerate(zip(one, other, strict=True), start=1):
            value, why = mean_correlation(x, y)
            values.append(value)
            notes.extend([f"{domain}, layer {layer}, {what} is NaN: {why}"] if why else [])
        return values

    found = {
        "svcca": [alike(f"svcca with {c}", whole, bases[own._replace(domain=c)]) for c in config.origin.domains],
        "chance": alike("chance", whole, shuffled),
        "n_dims": [float(basis.shape[1]) for basis in whole],
        "accuracy": [accuracy(models[which], suite, "test", tasks=skills)[0] for which in (experimental, own)],
    }
    if again in models:
        found["ceiling"] = alike("ceiling", bases[own], bases[again])
    return found, notes


def _bases(config: MossaConfig, model: HookedModel, prompts: Iterable[Batch]) -> list[Tensor]:
    """By layer ``[n k]``: what SVCCA compares."""
    rows = collect_rows(model, prompts, sites(config), readout())
    return [principal(x.double(), VARIANCE) for x in rows.values()]
